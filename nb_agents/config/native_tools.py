"""Tools that a provider runs beside its model: who has them, and which an agent can be given.

No call of such a tool passes here. So where a team file says what an agent's calls may do, it gets
none that this could be said of. Of a search of the web there is an ordinary tool besides, for those
whose provider has none (`nb_agents.tools.web_search`).

Source: MassGen 0.1.97, `backend/capabilities.py` (keys and types); pydantic-ai 2.68,
`supported_native_tools` of its models, and `profiles/google.py` (which of Gemini's take them beside
an agent's own tools).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Literal, NamedTuple

from nb_agents.config.model_keys import WireFormat
from nb_agents.config.permissions import PermissionSpec
from nb_agents.config.tools import ToolKeys, rule_for

__all__ = [
    "Missing",
    "NATIVE_KEYS",
    "NativeTool",
    "OFFERED",
    "has_search_library",
    "is_for_images",
    "judged",
    "needs_ordinary_search",
    "why_withheld",
]

NativeTool = Literal["web_search", "code_execution", "image_generation"]
"""As pydantic-ai names them."""

NATIVE_KEYS: Mapping[str, NativeTool] = {
    "enable_web_search": "web_search",
    "enable_code_interpreter": "code_execution",
    "enable_code_execution": "code_execution",
    "enable_image_generation": "image_generation",
}

OFFERED: Mapping[WireFormat, frozenset[NativeTool]] = {
    "openai responses": frozenset({"web_search", "code_execution", "image_generation"}),
    "anthropic": frozenset({"web_search", "code_execution"}),
    "google": frozenset({"web_search", "code_execution"}),
}
_DOES: Mapping[NativeTool, str] = {
    "web_search": "read_url",
    "code_execution": "command",
    "image_generation": "write_file",
}
"""The action, as permissions name it, that a provider's tool comes to."""

_SEARCH_EXTRA = ". `pip install 'nb_agents[search]'` gives any model an ordinary one"

_TOO_OLD = re.compile(r"gemini-[12]\b|gemini-pro$|gemma", re.IGNORECASE)


class Missing(NamedTuple):
    """A tool that was asked for and is not given.

    Attributes:
        key: By which it was.
        why: Why not, after "because".
    """

    key: str
    why: str


def judged(
    keys: ToolKeys, kind: str, model: str, offered: frozenset[NativeTool]
) -> Iterator[NativeTool | Missing]:
    """Say of each tool that was asked for that an agent gets it, or why not.

    Args:
        keys: The agent's backend.
        kind: Its type.
        model: Its model.
        offered: What its server has.
    """
    for key, tool in NATIVE_KEYS.items():
        is_ordinary = tool == "web_search" and needs_ordinary_search(keys, kind, model, offered)
        if getattr(keys, key) and not (is_ordinary and has_search_library()):
            why = _not_to_be_had(tool, kind, model, offered) or why_withheld(keys, key, tool)
            why += _SEARCH_EXTRA if is_ordinary else ""
            yield Missing(key, why) if why else tool


def needs_ordinary_search(
    keys: ToolKeys, kind: str, model: str, offered: frozenset[NativeTool]
) -> bool:
    """Say whether an agent is to search the web by a tool of ours; see `judged` for what is given.

    Of a model made in Python nothing is known but that it calls tools.
    """
    wants = keys.enable_web_search and keys.takes("web_search")
    calls_tools = not (kind == "gemini" and is_for_images(model))
    return wants and calls_tools and bool(_not_to_be_had("web_search", kind, model, offered))


def is_for_images(model: str) -> bool:
    """Whether a model of Google's makes images, and calls no tools of an agent's.

    Source: pydantic-ai 2.68, `profiles/google.py`.
    """
    return "image" in model


@cache
def has_search_library() -> bool:
    """Whether the library is installed by which an ordinary tool searches the web."""
    return find_spec("ddgs") is not None


def _not_to_be_had(tool: NativeTool, kind: str, model: str, offered: frozenset[NativeTool]) -> str:
    if kind == "gemini" and tool != "web_search" and is_for_images(model):
        return "" if tool == "image_generation" else f"{model} makes images, and runs no code"
    if tool not in offered:
        return f"{kind} has none" + (
            " by this API; write `api: responses`" if kind == "openai" else ""
        )
    if kind == "gemini" and _TOO_OLD.search(model):
        return f"{model} has none beside an agent's own tools; those from Gemini 3 on have"
    return ""


def why_withheld(keys: ToolKeys, key: str, tool: NativeTool) -> str:
    """Say why an agent may not have a tool that its provider runs; "" when it may.

    Args:
        keys: The agent's backend.
        key: By which it is asked for.
        tool: The tool.
    """
    if not keys.takes(tool, key.removeprefix("enable_")):
        return "the agent's list of tools leaves it out"
    rule = rule_for(tool, keys.tool_policy)
    if rule is not None and rule.action != "allow":
        return "its provider calls it, so that `tool_policy` can't be kept"
    if keys.rules is not None and _restricts(keys.rules, _DOES[tool]):
        return "its provider calls it, so that `permissions` can't be kept"
    return ""


def _restricts(rules: PermissionSpec, action: str) -> bool:
    return any((*rules.denied(action), *rules.asked(action)))
