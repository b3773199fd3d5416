"""Converts an external agent's permission requests to calls that a team file's rules can check.

An external agent reports a kind and a title for each call, and a model may have written the title.
Neither is trusted: the paths, commands and URLs in the arguments are also checked, and only the
exact name identifies one of the team's tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from nb_agents.extensions.external_agents.acp.acp_updates import (
    COMMANDS,
    PATHS,
    URLS,
    OwnCall,
    texts_in,
)
from nb_agents.tools.base import Tool

_NAME = re.compile(r"[\w.-]{1,64}")
_OF_SERVER = re.compile(r"([\w.-]{1,64}) \(([\w.-]{1,64}) MCP Server\)")
"""The title that Gemini CLI and Qwen Code show for a tool of an MCP server."""
_OF_TEAM = ("mcp__team__{}", "mcp_team_{}", "team_{}", "team-{}")
"""The names of a tool of the server `team` in external agents (versions in `tests/acp`)."""
_NO_KIND = ("", "other", "think")
_FILE_TOOLS = {"delete": "delete_file", "read": "read_file", "search": "read_file"}


def is_of_team(call: OwnCall, tools: Iterable[Tool]) -> bool:
    """Return whether a call is to one of the team's tools, which check the rules themselves.

    Args:
        tools: The tools that the agent can call now.
    """
    name = exact_name(call)
    if call.kind not in ("", "other") or call.is_cut or name is None:
        return False
    args = call.args if isinstance(call.args, dict) else {}
    for tool in tools:
        if name in (form.format(tool.name) for form in _OF_TEAM):
            parameters = tool.definition.parameters_json_schema.get("properties", {})
            return all(each in parameters for each in args)
    return False


def exact_name(call: OwnCall) -> str | None:
    """Return the called tool's name as the agent reports it, or None."""
    name = call.tool or call.title
    if match := _OF_SERVER.fullmatch(name):
        return f"mcp__{match[2]}__{match[1]}"
    return name if _NAME.fullmatch(name) else None


def tool_of(call: OwnCall) -> str:
    """Return the name of a call's tool for the journal: its kind, or its name if it has no kind."""
    name = exact_name(call) if call.kind in _NO_KIND else None
    return name or call.kind or "other"


def as_calls(call: OwnCall) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls of nb_agents tools that are equivalent to an external agent's call.

    Args:
        call: The call. Its kind and the paths, commands and URLs in its arguments are used.
    """
    raw = call.args if isinstance(call.args, dict) else {}
    paths = (*call.paths, *texts_in(raw, PATHS))
    lines = [*texts_in(raw, COMMANDS)]
    if call.kind == "execute" and not lines:
        lines = [call.title]
    for line in lines:
        yield "run_command", {"command": line}
    match call.kind:
        case "execute":
            return
        case "edit" | "delete" | "move" | "read" | "search":
            for path in dict.fromkeys(paths or ("",)):
                yield _FILE_TOOLS.get(call.kind, "edit_file"), {**raw, "path": path}
        case "fetch":
            yield "fetch", {"url": call.title, **raw}
        case _:
            yield tool_of(call), raw
            # It may do anything with a file.
            for path in dict.fromkeys(paths):
                yield "edit_file", {"path": path}
            for url in texts_in(raw, URLS):
                yield "fetch", {"url": url}
