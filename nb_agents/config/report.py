"""Reports which keys of a team have no effect or prevent a start, and which commands may run.

If a restriction of commands can't be enforced, the agent can't run commands, and a notice says so.
A start and ``%agents check`` use the same reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from shutil import which
from typing import Any, NamedTuple

from pydantic import BaseModel

from nb_agents.config.backends import BackendSpec
from nb_agents.config.external_agent_keys import ExternalAgentKeys
from nb_agents.config.massgen_keys import (
    ForeignKey,
    KeyStatus,
    Restriction,
    foreign_keys,
    own_foreign_keys,
)
from nb_agents.config.model_keys import MODEL_KEYS, Assignment
from nb_agents.config.orchestrator import CoordinationSpec, OrchestratorSpec
from nb_agents.config.permissions import CommandRules, PermissionSpec
from nb_agents.config.tools import MissingTool, ToolKeys, is_for_images

_ALWAYS_READ_ONLY = tuple(f"/{name}/" for name in "bin boot dev etc lib proc sbin sys usr".split())
"""Directories that are read-only in each sandbox and contain no workspaces."""

_NO_COMMANDS = "so agents can't run commands."
_UNCONFINED = f"can't be enforced without a sandbox, which is not available, {_NO_COMMANDS}"


class CommandLine(NamedTuple):
    """The tools that run an agent's commands.

    Attributes:
        has_shell: Whether the agent gets ``run_command``.
        has_python: Whether the agent gets ``run_python``.
        rules: Which commands may run.
        notices: Sentences on requested tools that are not available.
    """

    has_shell: bool = False
    has_python: bool = False
    rules: CommandRules = CommandRules()
    notices: tuple[str, ...] = ()


def command_line(
    keys: ToolKeys, *, is_confined: bool, has_protected_paths: bool = False
) -> CommandLine:
    """Return the tools that run an agent's commands, or the reasons why it has none.

    Args:
        keys: The agent's backend.
        is_confined: Whether its commands run in a sandbox.
        has_protected_paths: Whether the team file has ``protected_paths``.
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
        notice = "run_python is not available, because it could run blocked programs."
        return CommandLine(has_shell=True, rules=rules, notices=(notice,))
    return CommandLine(has_shell=True, has_python=True)


def _faults(
    keys: ToolKeys, rules: CommandRules, is_confined: bool, has_protected_paths: bool
) -> Iterator[str]:
    """Yield reasons why the agent can't run commands."""
    if (mode := keys.command_line_execution_mode) != "local":
        yield (
            f"Command line mode {mode!r} is not supported, {_NO_COMMANDS} Use "
            f"`command_line_execution_mode: local` to run commands on this machine."
        )
    section = ("agents", "*", "backend")
    for unenforced in own_foreign_keys(keys, section):
        if unenforced.sort == "withheld" and unenforced.path[:-1] == section:
            yield (
                f"`{unenforced.key}` can't be enforced, {_NO_COMMANDS} Remove it to allow commands."
            )
    for blocked in rules.blocked:
        if blocked.names_programs and blocked.concerns("bash"):
            yield f"The pattern {blocked.shown!r} blocks bash, which runs commands, {_NO_COMMANDS}"
    for pattern in rules.unclear:
        yield (
            f"The pattern {pattern!r} does not begin with a program's name and can't be enforced, "
            f"{_NO_COMMANDS} Begin it with the name of the program to block."
        )
    if is_confined:
        yield from _unenforced_in_sandbox(keys)
        return
    if rules.blocked:
        yield f"Rules that block commands {_UNCONFINED}"
    if has_protected_paths:
        yield f"`protected_paths` {_UNCONFINED}"
    if _denied(keys, "write_file", "read_file", "read_url"):
        yield f"Rules of `permissions` for files or addresses {_UNCONFINED}"


def _unenforced_in_sandbox(keys: ToolKeys) -> Iterator[str]:
    """Yield a sentence for each denied path that commands in a sandbox could still access."""
    writable = [p for p in _denied(keys, "write_file") if not p.startswith(_ALWAYS_READ_ONLY)]
    for action, patterns in (("write_file", writable), ("read_file", _denied(keys, "read_file"))):
        for pattern in patterns:
            yield (
                f"`permissions` denies {action}({pattern}), which can't be enforced for commands, "
                f"{_NO_COMMANDS}"
            )


def _denied(keys: ToolKeys, *actions: str) -> list[str]:
    rules = keys.rules or PermissionSpec()
    return [target for action in actions for target in rules.targets("deny", action)]


Backends = Sequence[tuple[str, BackendSpec]]
"""Pairs of an agent's id and its backend."""


def foreign_key_names(
    team: BaseModel, sort: KeyStatus, excluded_ids: Collection[str] = ()
) -> Iterator[str]:
    """Yield each key of a team with this status, as a dotted path without list indices.

    Features that a file switches off are not reported as ignored.

    Args:
        sort: The status of the key.
        excluded_ids: Ids of agents that can't run here. Their keys are not reported.
    """
    for foreign_key in foreign_keys(team):
        is_unused = (
            foreign_key.path[0] in ("agents", "callable_agents")
            and foreign_key.path[1] in excluded_ids
        )
        if (
            foreign_key.sort == sort
            and not is_unused
            and not (sort == "harmless" and _is_off(foreign_key.value))
        ):
            yield foreign_key.name


def _is_off(value: Any) -> bool:
    """Return whether a feature is switched off: ``enable_x: false``, or ``x: {enabled: false}``."""
    return (value.get("enabled") if isinstance(value, dict) else value) is False


def foreign_values(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Yield each MassGen value that is replaced with another one, and its replacement."""
    value, used = orchestrator.voting_sensitivity, orchestrator.voting_criteria
    if value != used:
        yield f"orchestrator.voting_sensitivity: {value} ({used} is used)"


def backend_notices(backends: Backends, max_cost: float | None) -> Iterator[str]:
    """Yield notices for the user on backend keys that don't work as written.

    Args:
        backends: The backends of agents that can run here.
        max_cost: The team's cost limit, or None.
    """
    notice_functions = (_not_uploaded, _no_program, _own_tools)
    for notices in (_not_sent, _not_given, _without_tools, *notice_functions):
        yield from notices(backends)
    yield from _uncounted(backends, max_cost)


def _not_sent(backends: Backends) -> Iterator[str]:
    """Yield notices on keys that are not sent to a model, because its server doesn't have them."""
    by_receiver: dict[str, dict[str, None]] = {}
    for agent, backend in backends:
        refused = {each.path[3:] for each in unsendable([(agent, backend)])}
        for each in backend.assignments:
            if not each.setting and tuple(each.key.split(".")) not in refused:
                by_receiver.setdefault(_receiver(backend, each), {})[each.key] = None
    for receiver, keys in by_receiver.items():
        yield f"{receiver}: {', '.join(keys)}"


def _receiver(backend: BackendSpec, unsent: Assignment) -> str:
    if backend.wire_format == "openai responses":
        return "Not sent to openai models, because the Responses API does not support it"
    if backend.type == "openai" and "openai responses" in MODEL_KEYS[unsent.key].settings:
        return "Sent to openai models only with `api: responses`"
    return f"Not sent to {backend.type} models, which don't support it"


def _not_given(backends: Backends) -> Iterator[str]:
    """Yield notices on requested provider tools that agents do not get."""
    missing: dict[MissingTool, list[str]] = {}
    for agent, backend in backends:
        for each in backend.missing_tools:
            missing.setdefault(each, []).append(agent)
    for (key, why), agents in missing.items():
        yield f"No {key.removeprefix('enable_')} for {', '.join(agents)}: {why}"


def _without_tools(backends: Backends) -> Iterator[str]:
    """Yield notices on agents that can only produce text and images, because they call no tools."""
    for agent, backend in backends:
        if backend.type == "gemini" and is_for_images(backend.model):
            reason = "generates images and calls no tools: its text and images are its answer"
            yield f"{agent}: {backend.model} {reason}, and it does not vote"


def _not_uploaded(backends: Backends) -> Iterator[str]:
    """Yield notices on files of a kind that a model's server does not accept."""
    for agent, backend in backends:
        for upload in backend.upload_files:
            if upload not in backend.uploads:
                how = " by its address" if upload.url else ""
                how += (
                    " except YouTube's"
                    if (backend.type, upload.kind) == ("gemini", "video")
                    else ""
                )
                reason = f"{backend.type} accepts no {upload.kind}{how}"
                yield f"Not sent to {agent}: {upload.name}; {reason}"


def _no_program(backends: Backends) -> Iterator[str]:
    """Yield notices on keys of external agents in backends of other types."""
    for agent, backend in backends:
        keys = [key for key in ExternalAgentKeys.model_fields if key in backend.model_fields_set]
        if keys and not backend.is_program:
            reason = f"because type {backend.type!r} is not an external agent"
            yield f"Ignored for {agent}, {reason}: {', '.join(keys)}"


_OF_OUR_TOOLS = (
    "allowed_tools",
    "exclude_tools",
    "command_line_allowed_commands",
    "command_line_blocked_commands",
    "limits",
)


def _own_tools(backends: Backends) -> Iterator[str]:
    """Yield notices on keys that can't restrict the built-in tools of external agents."""
    for agent, backend in backends:
        keys = [key for key in _OF_OUR_TOOLS if key in backend.model_fields_set]
        if keys and backend.is_program:
            yield (
                f"These keys do not restrict {agent}'s built-in tools: {', '.join(keys)}. "
                "`tool_policy` and `permissions` apply to calls for which it requests permission"
            )


def _uncounted(backends: Backends, max_cost: float | None) -> Iterator[str]:
    """Yield a notice that a cost limit does not include the providers' charges for tools."""
    if max_cost is not None and any(backend.native_tools for _, backend in backends):
        yield "`max_cost` includes tokens, but not what providers charge for their tools"


def unsendable(backends: Backends) -> Iterator[ForeignKey]:
    """Yield the keys that restrict a model and can't be sent to its server."""
    for agent, backend in backends:
        for each in backend.assignments if backend.wire_format else ():
            reason = MODEL_KEYS[each.key].restricts if each.value and not each.setting else ""
            if reason:
                path = ("agents", agent, "backend", *each.key.split("."))
                yield ForeignKey(path, "refused", Restriction(reason), each.value)


def orchestrator_notices(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Yield notices on paths that can't be changed and skills that are not available."""
    yield from _uncopied_paths(orchestrator)
    yield from _skills(orchestrator.coordination)


def _uncopied_paths(orchestrator: OrchestratorSpec) -> Iterator[str]:
    if orchestrator.copies_context_paths and not which("git"):
        paths = ", ".join(c.path for c in orchestrator.context_paths if c.permission == "write")
        yield (
            f"{paths} can only be read, because git is not installed, which "
            "`orchestrator.coordination.write_mode` needs for copies. Install git, or write "
            "`legacy` to let the presenter change the files directly."
        )


def _skills(coordination: CoordinationSpec) -> Iterator[str]:
    if not coordination.use_skills:
        return
    if coordination.skills_path is None:
        directory = coordination.skills_directory
        yield (
            f"There are no skills: {directory!r} is not a directory. Create it, or set "
            "`skills_directory` to another one."
        )
    if coordination.massgen_skills:
        names = ", ".join(coordination.massgen_skills)
        yield f"Skills that come with MassGen are not available here: {names}"
