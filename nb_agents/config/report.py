"""What of a team means nothing here, what stops its start, and what its agents may run.

What restricts a command line and can't be kept to withholds it, and says so in a sentence. A start
and ``%agents check`` both ask here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from shutil import which
from typing import Any, NamedTuple

from pydantic import BaseModel

from nb_agents.config.backends import BackendSpec
from nb_agents.config.massgen_keys import (
    ForeignKey,
    Restriction,
    Sort,
    foreign_keys,
    own_foreign_keys,
)
from nb_agents.config.model_keys import MODEL_KEYS, Assignment
from nb_agents.config.orchestrator import CoordinationSpec, OrchestratorSpec
from nb_agents.config.permissions import CommandRules, PermissionSpec
from nb_agents.config.programs import ProgramKeys
from nb_agents.config.tools import Missing, ToolKeys, is_for_images

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
        notices: What was asked for and is not available, in sentences.
    """

    has_shell: bool = False
    has_python: bool = False
    rules: CommandRules = CommandRules()
    notices: tuple[str, ...] = ()


def command_line(
    keys: ToolKeys, *, is_confined: bool, has_protected_paths: bool = False
) -> CommandLine:
    """Return what an agent gets to run commands with.

    Args:
        keys: Its configuration.
        is_confined: Whether its commands run in a sandbox.
        has_protected_paths: Whether there are files that it must not write, by the team's file.
    """
    denied = _denied(keys, "command")
    if not keys.enable_mcp_command_line or any(not glob.strip("*") for glob in denied):
        return CommandLine()
    rules = CommandRules.of(
        keys.command_line_allowed_commands, keys.command_line_blocked_commands, denied
    )
    if faults := tuple(_faults(keys, rules, is_confined, has_protected_paths)):
        return CommandLine(notices=faults)
    if not rules.is_open:
        notice = "run_python is left out, because it could run blocked programs."
        return CommandLine(has_shell=True, rules=rules, notices=(notice,))
    return CommandLine(has_shell=True, has_python=True)


def _faults(
    keys: ToolKeys, rules: CommandRules, is_confined: bool, has_protected_paths: bool
) -> Iterator[str]:
    """Yield why there is no command line."""
    if (mode := keys.command_line_execution_mode) != "local":
        yield (
            f"Commands can't run in {mode!r} here, so there is no command line. Use "
            f"`command_line_execution_mode: local` to run them on this machine."
        )
    section = ("agents", "*", "backend")
    for found in own_foreign_keys(keys, section):
        if found.sort == "withheld" and found.path[:-1] == section:
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
    """Yield what rules deny, and commands in a sandbox can reach all the same."""
    written = [p for p in _denied(keys, "write_file") if not p.startswith(_ALWAYS_READ_ONLY)]
    for action, patterns in (("write_file", written), ("read_file", _denied(keys, "read_file"))):
        for pattern in patterns:
            yield (
                f"`permissions` deny {action}({pattern}), which commands can't be kept from, "
                f"{_NO_COMMANDS}"
            )


def _denied(keys: ToolKeys, *actions: str) -> list[str]:
    rules = keys.rules or PermissionSpec()
    return [target for action in actions for target in rules.targets("deny", action)]


Backends = Sequence[tuple[str, BackendSpec]]
"""Agents' ids, and their backends."""


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


def foreign(team: BaseModel, sort: Sort, gone: Collection[str] = ()) -> Iterator[str]:
    """Yield each key of a team that is so sorted, as a dotted path without positions.

    Not a harmless one that is switched off: that is not available here, as the file wants it.

    Args:
        team: The team.
        sort: What becomes of the key.
        gone: Ids of agents that can't run here: nothing of theirs is heeded.
    """
    for found in foreign_keys(team):
        is_gone = found.path[0] in ("agents", "callable_agents") and found.path[1] in gone
        if found.sort == sort and not is_gone and not (sort == "harmless" and _is_off(found.value)):
            yield found.name


def _is_off(value: Any) -> bool:
    """Return whether a feature is switched off: ``enable_x: false``, or ``x: {enabled: false}``."""
    return (value.get("enabled") if isinstance(value, dict) else value) is False


def foreign_values(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Yield each value of MassGen's that is replaced by another, with the one that is used."""
    given, taken = orchestrator.voting_sensitivity, orchestrator.voting_criteria
    if given != taken:
        yield f"orchestrator.voting_sensitivity: {given} ({taken} is used)"


def of_backends(backends: Backends, max_cost: float | None) -> Iterator[str]:
    """Yield what a person should know of the backends of agents that can run here.

    Args:
        backends: Agents' ids, and their backends.
        max_cost: The team's limit of cost, if there is one.
    """
    others = (_not_uploaded, _no_program, _own_tools)
    for notices in (_not_sent, _not_given, _without_tools, *others):
        yield from notices(backends)
    yield from _uncounted(backends, max_cost)


def _not_sent(backends: Backends) -> Iterator[str]:
    """Yield which keys are not sent to a model, because its server does not know them."""
    by_whom: dict[str, dict[str, None]] = {}
    for agent, backend in backends:
        refused = {each.path[3:] for each in unsendable([(agent, backend)])}
        for each in backend.assignments:
            if not each.setting and tuple(each.key.split(".")) not in refused:
                by_whom.setdefault(_whom(backend, each), {})[each.key] = None
    for whom, keys in by_whom.items():
        yield f"{whom}: {', '.join(keys)}"


def _whom(backend: BackendSpec, unsent: Assignment) -> str:
    if backend.wire_format == "openai responses":
        return "Not sent to openai models, whose Responses API does not take it"
    if backend.type == "openai" and "openai responses" in MODEL_KEYS[unsent.key].settings:
        return "Sent to openai models with `api: responses` only"
    return f"Not sent to {backend.type} models, which don't take it"


def _not_given(backends: Backends) -> Iterator[str]:
    """Yield which provider tools agents do not get, though their backends ask for them."""
    lacking: dict[Missing, list[str]] = {}
    for agent, backend in backends:
        for each in backend.missing_tools:
            lacking.setdefault(each, []).append(agent)
    for (key, why), agents in lacking.items():
        yield f"No {key.removeprefix('enable_')} for {', '.join(agents)}: {why}"


def _without_tools(backends: Backends) -> Iterator[str]:
    """Yield which models call no tools, so that their agents answer in words and images only."""
    for agent, backend in backends:
        if backend.type == "gemini" and is_for_images(backend.model):
            what = "makes images and calls no tools: what it writes and makes is its answer"
            yield f"{agent}: {backend.model} {what}, and it does not vote"


def _not_uploaded(backends: Backends) -> Iterator[str]:
    """Yield which files are not sent to a model, because its server accepts none of their kind."""
    for agent, backend in backends:
        for upload in backend.upload_files:
            if upload not in backend.uploads:
                how = " by its address" if upload.url else ""
                how += (
                    " but YouTube's" if (backend.type, upload.kind) == ("gemini", "video") else ""
                )
                what = f"{backend.type} takes no {upload.kind}{how}"
                yield f"Not sent to {agent}: {upload.name}; {what}"


def _no_program(backends: Backends) -> Iterator[str]:
    """Yield which keys of programs are given to agents that are none."""
    for agent, backend in backends:
        keys = [key for key in ProgramKeys.model_fields if key in backend.model_fields_set]
        if keys and not backend.is_program:
            what = f"whose type {backend.type!r} starts no program"
            yield f"Ignored for {agent}, {what}: {', '.join(keys)}"


_OF_OUR_TOOLS = (
    "allowed_tools",
    "exclude_tools",
    "command_line_allowed_commands",
    "command_line_blocked_commands",
    "limits",
)


def _own_tools(backends: Backends) -> Iterator[str]:
    """Yield which keys can't be kept to by programs, which have tools of their own."""
    for agent, backend in backends:
        keys = [key for key in _OF_OUR_TOOLS if key in backend.model_fields_set]
        if keys and backend.is_program:
            yield (
                f"{agent} has tools of its own, for which this does not hold: {', '.join(keys)}. "
                "`tool_policy` and `permissions` hold for the calls that it asks about"
            )


def _uncounted(backends: Backends, max_cost: float | None) -> Iterator[str]:
    """Yield that a cost limit does not count what providers charge for their tools."""
    if max_cost is not None and any(backend.native_tools for _, backend in backends):
        yield "`max_cost` counts tokens, and not what providers take besides for their own tools"


def unsendable(backends: Backends) -> Iterator[ForeignKey]:
    """Yield the keys that restrict a model, and that its server does not know.

    Args:
        backends: Agents' ids, and their backends.
    """
    for agent, backend in backends:
        for each in backend.assignments if backend.wire_format else ():
            what = MODEL_KEYS[each.key].restricts if each.value and not each.setting else ""
            if what:
                path = ("agents", agent, "backend", *each.key.split("."))
                yield ForeignKey(path, "refused", Restriction(what), each.value)


def of_orchestrator(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Yield which paths can't be changed, and which skills are not available; looks for git."""
    yield from _uncopied_paths(orchestrator)
    yield from _skills(orchestrator.coordination)


def _uncopied_paths(orchestrator: OrchestratorSpec) -> Iterator[str]:
    if orchestrator.copies_context_paths and not which("git"):
        paths = ", ".join(c.path for c in orchestrator.context_paths if c.permission == "write")
        yield (
            f"{paths} can only be read: git, which keeps changes apart as "
            "`orchestrator.coordination.write_mode` wants it, is not installed. Install git, or "
            "write `legacy` to let the presenter change them itself."
        )


def _skills(coordination: CoordinationSpec) -> Iterator[str]:
    if not coordination.use_skills:
        return
    if coordination.skills_path is None:
        where = coordination.skills_directory
        yield (
            f"There are no skills: {where!r} is not a directory. Install some there, or name "
            "another by `skills_directory`."
        )
    if coordination.massgen_skills:
        named = ", ".join(coordination.massgen_skills)
        yield f"Not available here, as they come with MassGen: the skills {named}"
