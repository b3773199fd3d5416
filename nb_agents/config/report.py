"""What of a team means nothing here, what stops its start, and what its agents may run.

What restricts a command line and can't be kept to withholds it, and says so in a sentence. A start
and ``%agents check`` both ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import BaseModel

from nb_agents.config.backends import why_unsupported
from nb_agents.config.faults import foreign_keys
from nb_agents.config.mcp_servers import McpServerSpec
from nb_agents.config.orchestrator import CoordinationSpec, OrchestratorSpec
from nb_agents.config.permissions import CommandRules
from nb_agents.config.tools import ToolKeys

__all__ = [
    "CommandLine",
    "Unsupported",
    "command_line",
    "foreign_values",
    "ignored",
    "left_out",
    "read_only",
    "skills",
    "tool_notices",
    "unknown",
    "unsupported",
]

_ALWAYS_READ_ONLY = tuple(f"/{name}/" for name in "bin boot dev etc lib proc sbin sys usr".split())
"""What no sandbox lets be written, and where no workspace is."""

_NO_COMMANDS = "so there is no command line."
_UNCONFINED = f"can't be kept without a sandbox, and there is none here, {_NO_COMMANDS}"


class CommandLine(NamedTuple):
    """What an agent has to run commands with.

    Attributes:
        has_shell: Whether it gets ``run_command``.
        has_python: Whether it gets ``run_python``.
        rules: What it may run.
        notices: What was asked for and is not to be had, in sentences.
    """

    has_shell: bool = False
    has_python: bool = False
    rules: CommandRules = CommandRules()
    notices: tuple[str, ...] = ()


def command_line(
    keys: ToolKeys, *, is_confined: bool, has_protected_paths: bool = False
) -> CommandLine:
    """Say what an agent gets to run commands with.

    Args:
        keys: Its configuration.
        is_confined: Whether its commands run in a sandbox.
        has_protected_paths: Whether there are files that it must not write, by the team's file.
    """
    permissions = keys.rules
    denied = permissions.denied("command") if permissions else ()
    if not keys.enable_mcp_command_line or any(not glob.strip("*") for glob in denied):
        return CommandLine()
    rules = CommandRules.of(
        keys.command_line_allowed_commands, keys.command_line_blocked_commands, denied
    )
    if faults := tuple(_faults(keys, rules, is_confined, has_protected_paths)):
        return CommandLine(notices=faults)
    if not rules.is_open:
        told = "There is no run_python, which could run what may not be run."
        return CommandLine(has_shell=True, rules=rules, notices=(told,))
    return CommandLine(has_shell=True, has_python=True)


def _faults(
    keys: ToolKeys, rules: CommandRules, is_confined: bool, has_protected_paths: bool
) -> Iterator[str]:
    """Give the reasons for which there is no command line."""
    if (mode := keys.command_line_execution_mode) != "local":
        yield (
            f"Commands can't run in {mode!r} here, so there is no command line. Use "
            f"`command_line_execution_mode: local` to run them on this machine."
        )
    for found in foreign_keys(keys, section=("agents", "*", "backend")):
        if found.sort == "withheld" and len(found.path) == 1:
            yield f"`{found.key}` can't be kept here, {_NO_COMMANDS} Remove it to have one."
    for blocked in rules.blocked:
        if blocked.names_programs and blocked.concerns("bash"):
            yield f"The pattern {blocked.shown!r} blocks bash, which runs them all, {_NO_COMMANDS}"
    for pattern in rules.unclear:
        yield (
            f"The pattern {pattern!r} begins with the name of no program, so nothing can be kept "
            f"from running what it blocks, {_NO_COMMANDS} Write the program's name first."
        )
    if is_confined:
        yield from _seen_in_a_sandbox(keys)
        return
    if rules.blocked:
        yield f"That commands are blocked {_UNCONFINED}"
    if has_protected_paths:
        yield f"That paths are protected {_UNCONFINED}"
    if _denied(keys, "write_file", "read_file", "read_url"):
        yield f"That `permissions` deny files or addresses {_UNCONFINED}"


def _seen_in_a_sandbox(keys: ToolKeys) -> Iterator[str]:
    """Give what rules deny, and commands in a sandbox can reach all the same."""
    written = [p for p in _denied(keys, "write_file") if not p.startswith(_ALWAYS_READ_ONLY)]
    for action, patterns in (("write_file", written), ("read_file", _denied(keys, "read_file"))):
        for pattern in patterns:
            yield (
                f"`permissions` deny {action}({pattern}), which commands can't be kept from, "
                f"{_NO_COMMANDS}"
            )


def _denied(keys: ToolKeys, *actions: str) -> list[str]:
    rules = keys.rules
    return [target for action in actions for target in rules.denied(action)] if rules else []


class Unsupported(NamedTuple):
    """An agent that can't run here.

    Attributes:
        agent: Its id.
        type: Its backend type.
        why: What that is, in a sentence or two.
    """

    agent: str
    type: str
    why: str


def ignored(team: BaseModel) -> Iterator[str]:
    """Give every key of a team that is harmless to ignore, as a dotted path without positions."""
    return (found.name for found in foreign_keys(team) if found.sort == "harmless")


def unknown(team: BaseModel) -> Iterator[str]:
    """Give every key of a team of which nothing is known, as a dotted path without positions."""
    return (found.name for found in foreign_keys(team) if found.sort == "unknown")


def foreign_values(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Give every value that MassGen knows and we take for another, with the one we take."""
    given, taken = orchestrator.voting_sensitivity, orchestrator.voting_criteria
    if given != taken:
        yield f"orchestrator.voting_sensitivity: {given} ({taken} is used)"


def read_only(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Say that context paths are only read, where the file lets them be written."""
    is_asked = any(each.permission == "write" for each in orchestrator.context_paths)
    if is_asked and not orchestrator.writes_context_paths:
        yield (
            "Context paths are only read: changes can't be kept apart for a review here, as "
            "`orchestrator.coordination.write_mode` wants it. Write `legacy` to let the presenter "
            "change them."
        )


def skills(coordination: CoordinationSpec) -> Iterator[str]:
    """Say which skills agents do not get, where the file wants them."""
    if not coordination.use_skills:
        return
    if coordination.skills_path is None:
        where = coordination.skills_directory
        yield (
            f"There are no skills: {where!r} is no directory. Install some there, or name another "
            "by `skills_directory`."
        )
    if coordination.massgen_skills:
        named = ", ".join(coordination.massgen_skills)
        yield f"Not here, as they come with MassGen: the skills {named}"


def tool_notices(keys: ToolKeys, *, is_confined: bool, has_protected_paths: bool) -> Iterator[str]:
    """Say which tools an agent does not get though its configuration asks for them, and why.

    Args:
        keys: Its configuration.
        is_confined: Whether its commands run in a sandbox.
        has_protected_paths: Whether there are files that it must not write, by the team's file.
    """
    for server in keys.mcp_servers:
        if server.fault:
            yield left_out(server)
    line = command_line(keys, is_confined=is_confined, has_protected_paths=has_protected_paths)
    yield from line.notices


def left_out(server: McpServerSpec) -> str:
    """Say that a server which may not be is left out."""
    return f"MCP server {server.name!r} is left out: {server.fault}."


def unsupported(types: Iterable[tuple[str, str]]) -> Iterator[Unsupported]:
    """Give those of some (agent id, backend type) that can't run here."""
    for agent, kind in types:
        if why := why_unsupported(kind):
            yield Unsupported(agent, kind, why)
