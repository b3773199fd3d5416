"""What a call of a tool does, in the words of MassGen's ``permissions``, and what becomes of it.

A call that no rule fits is made when it reads, or writes, files as an agent may anyway, or runs
commands that only look; a person decides on any other.

Source: MassGen 0.1.97, `permissions/rules.py` (`classify_action_target`) and
`permissions/risk_classifier.py`. Stricter than there: a command is taken apart, a file is known by
all of its names, and a tool is not harmless because of its name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nb_agents.config.permissions import Act, Names, PermissionSpec, Verdict
from nb_agents.tools.command_reader import read_commands

__all__ = ["judge"]

_FILE_TOOLS = {
    "list_files": "read_file",
    "read_file": "read_file",
    "write_file": "write_file",
    "edit_file": "write_file",
    "delete_file": "write_file",
}
_UNASKED = frozenset({"list_files", "read_file", "write_file", "edit_file"})
# None of these runs another program, as git may by its configuration, or writes a file.
_LOOKS = frozenset("ls cat head tail pwd echo which whoami wc grep stat true".split())

_COMMANDS = ("execute_command", "bash", "shell", "exec", "run_command", "terminal")
_NETWORK = ("fetch", "read_url", "websearch", "web_search", "browse")
_WRITES = tuple("write edit create move copy apply_patch notebook delete remove".split())
_READS = tuple("read grep glob list view search cat".split())
_FILE_SERVERS = ("filesystem", "workspace_tools", "workspace_copy")
_PATHS = ("path", "file_path", "destination", "destination_path", "target", "notebook_path")

_UNREADABLE = "\0"
"""Stands for what a line does that can't be told from its text: only ``*`` allows it."""


def judge(permissions: PermissionSpec, tool: str, args: dict[str, Any], workspace: Path) -> Verdict:
    """Decide on a call.

    Args:
        permissions: The rules, which are in force.
        tool: The tool's name.
        args: The model's arguments, of any kind.
        workspace: The agent's directory, real.
    """
    if tool == "run_command":
        return _judge_commands(permissions, _text(args, "command"))
    if tool == "run_python":
        whole = Act("command", f"python -c {_text(args, 'code')}")
        return permissions.decide([[whole], [Act("command", _UNREADABLE)]]) or "ask"
    if action := _FILE_TOOLS.get(tool):
        acts = [Act(action, name) for name in _names(_text(args, "path") or ".", workspace)]
        return permissions.decide([acts]) or ("allow" if tool in _UNASKED else "ask")
    return permissions.decide([_acts(tool, args)]) or "ask"


def _judge_commands(permissions: PermissionSpec, line: str) -> Verdict:
    commands, whole = read_commands(line), Act("command", line.strip())
    if commands is None:
        return permissions.decide([[Act("command", _UNREADABLE)]], [whole]) or "ask"
    parts = [[Act("command", command.text)] for command in commands]
    # A denied command may be run by its full path, or behind another: `env git push`.
    others = [
        Act("command", " ".join([program.rpartition("/")[2], *rest]))
        for command in commands
        for number in range(len(command.words))
        for program, *rest in [command.words[number:]]
    ]
    only_looks = all(c.words[0] in _LOOKS and not c.writes for c in commands)
    return permissions.decide(parts, [whole, *others]) or ("allow" if only_looks else "ask")


def _names(path: str, workspace: Path) -> list[str]:
    """Give a file's names: as it was written, from the workspace, and absolute, links followed."""
    absolute = os.path.normpath(workspace / path)
    found = [path]
    try:
        real = os.path.realpath(absolute)
    except ValueError:  # no file can be named so
        return found
    for each in dict.fromkeys([absolute, real]):
        found.append(each)
        if Path(each).is_relative_to(workspace):
            inner = os.path.relpath(each, workspace)
            found += [inner, f"./{inner}"]
    return found


def _acts(tool: str, args: dict[str, Any]) -> Names:
    """Give what a tool does that is not one of ours, by MassGen's hints in its name."""
    full, name, server = tool, tool.removeprefix("custom_tool__"), ""
    if tool.startswith("mcp__"):
        server, _, name = tool.removeprefix("mcp__").partition("__")
    acts = [Act("mcp", f"{server}/{name}" if server else name), Act("mcp", full)]
    lower = name.lower()
    if any(hint in lower for hint in _COMMANDS):
        acts.append(Act("command", _text(args, "command") or _text(args, "cmd")))
    if any(hint in lower for hint in _NETWORK):
        acts.append(Act("read_url", _text(args, "url") or _text(args, "domain")))
    if not server or server in _FILE_SERVERS:
        action = "write_file" if any(hint in lower for hint in _WRITES) else "read_file"
        if action == "write_file" or any(hint in lower for hint in _READS):
            acts += [Act(action, path) for path in _paths(args)]
    return acts


def _paths(args: dict[str, Any]) -> Sequence[str]:
    return [text for key in _PATHS if (text := _text(args, key))] or [""]


def _text(args: dict[str, Any], name: str) -> str:
    value = args.get(name)
    return value if isinstance(value, str) else ""
