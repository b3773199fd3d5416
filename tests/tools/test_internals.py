"""The parts of pydantic-ai and mcp that are no promise of theirs, each named by its test."""

import inspect

from pydantic import TypeAdapter
from pydantic_ai import Tool

from nb_agents.tools import mcp_server


def test_pydantic_ai_checks_arguments_by_function_schema_validator() -> None:
    def double(number: int) -> int:
        """Double it."""
        return 2 * number

    validator = Tool(double).function_schema.validator
    assert validator.validate_python({"number": "3"}) == {"number": 3}


def test_pydantic_has_the_validator_of_a_type_adapter() -> None:
    assert TypeAdapter(dict[str, int]).validator.validate_python({"a": "1"}) == {"a": 1}


def test_mcp_words_the_end_of_a_session_as_we_compare_it() -> None:
    from mcp.client import streamable_http

    said = "Session terminated"
    assert f'"{said}"' in inspect.getsource(streamable_http)
    assert f'"{said}"' in inspect.getsource(mcp_server)
