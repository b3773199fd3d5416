"""One test for each internal part of pydantic-ai, pydantic and mcp that nb_agents uses."""

import inspect

from pydantic import TypeAdapter
from pydantic_ai import Tool

from tests.kit.tools import mcp_server


def test_pydantic_ai_validates_arguments_with_the_function_schema() -> None:
    def double(number: int) -> int:
        """Double it."""
        return 2 * number

    validator = Tool(double).function_schema.validator
    assert validator.validate_python({"number": "3"}) == {"number": 3}


def test_type_adapter_has_a_validator() -> None:
    assert TypeAdapter(dict[str, int]).validator.validate_python({"a": "1"}) == {"a": 1}


def test_mcp_message_for_a_terminated_session() -> None:
    from mcp.client import streamable_http

    message = "Session terminated"
    assert f'"{message}"' in inspect.getsource(streamable_http)
    assert f'"{message}"' in inspect.getsource(mcp_server)
