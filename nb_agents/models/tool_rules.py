"""The providers' limits on tools. A single invalid tool causes the request to be rejected.

Source: OpenAI's "array too long. Expected an array with maximum length 128" and "string too long.
Expected a string with maximum length 1024" (a tool's description); Google's "At most 512 function
declarations can be specified". Anthropic has no limit for either.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.errors import error_message

if TYPE_CHECKING:
    from pydantic_ai.models import Model

MAX_SCHEMA_CHARS = 20_000
"""Maximum length of a tool's schema in characters, before and after pydantic-ai's conversion."""

MAX_DESCRIPTION_CHARS = 1024
"""OpenAI's maximum length of a tool's description."""

_MAX_OTHER_DESCRIPTION_CHARS = 10_000


def _accept(schema: dict[str, Any]) -> str:
    return ""


class ToolRules(NamedTuple):
    """A model's limits on tools. The defaults satisfy every provider.

    Attributes:
        most: Maximum number of tools in a request; None means no limit.
        description_chars: Maximum length of a tool's description in characters.
        strict: Whether the provider should enforce the schema of an external tool. None leaves the
            decision to pydantic-ai.
        refusal: Returns why a schema can't be sent to the model, or "".
    """

    most: int | None = 128
    description_chars: int = MAX_DESCRIPTION_CHARS
    strict: bool | None = None
    refusal: Callable[[dict[str, Any]], str] = _accept


ANY_MODEL = ToolRules()
"""The rules for tools whose model is not known yet."""


def rules_of(model: Model) -> ToolRules:
    """Return a model's limits on tools."""

    def refusal(schema: dict[str, Any]) -> str:
        return _refusal(model, schema)

    if model.system == "anthropic":
        return ToolRules(None, _MAX_OTHER_DESCRIPTION_CHARS, refusal=refusal)
    if model.system.startswith("google"):
        return ToolRules(512, _MAX_OTHER_DESCRIPTION_CHARS, refusal=refusal)
    # In strict mode, OpenAI rejects schemas that pydantic-ai's transformer considers valid.
    return ToolRules(strict=False, refusal=refusal)


def _refusal(model: Model, schema: dict[str, Any]) -> str:
    """Return why a model can't accept a tool's schema, or "".

    Runs the same pydantic-ai conversion as a real request.
    """
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tool = ToolDefinition(name="tool", parameters_json_schema=schema)
    parameters = ModelRequestParameters(function_tools=[tool])
    try:
        [sent] = model.customize_request_parameters(parameters).function_tools
        size = len(json.dumps(sent.parameters_json_schema))
    except Exception as exc:  # unusual schemas raise errors that pydantic-ai does not foresee
        return f"its schema can't be sent to the model: {error_message(exc):.200}"
    return "its schema is too long for the model" if size > 2 * MAX_SCHEMA_CHARS else ""
