"""The specification of a turn: its task, team, options and paths."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nb_agents import events as ev
from nb_agents.agents import planning, spawning, subagents
from nb_agents.agents.replay import Past
from nb_agents.cancel import CancelPolicy
from nb_agents.config.decision_tools import OF_MEMBERS
from nb_agents.config.orchestrator import DEFAULT_ORCHESTRATOR_TIMEOUT_S, absolute_paths
from nb_agents.config.secrets import secrets_of_environment, secrets_of_team, snapshot
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.disk.names import as_on_disk
from nb_agents.errors import ConfigError, UserError
from nb_agents.events import OfferTools
from nb_agents.events.work_kinds import RECIPE, TEAM
from nb_agents.masking import Mask
from nb_agents.models.retry import Retry
from nb_agents.options import RunOptions
from nb_agents.process.writable import WritablePath
from nb_agents.session.conversation import PastMessage
from nb_agents.session.history import Session
from nb_agents.session.layout import TurnPaths
from nb_agents.session.ownership import OwnerMark
from nb_agents.snapshots.user_files import UserFileHistory
from nb_agents.tools import run_tools
from nb_agents.tools.base import BUILT_IN
from nb_agents.tools.functions import function_tool
from nb_agents.tools.offer import CallInbox, OfferedFunction
from nb_agents.tools.policy import ApprovalConfig
from nb_agents.turns.stand_in import StandIn
from nb_agents.turns.task_ledger import PastTask
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import TimelineFold

_DECLARING = (planning, run_tools, spawning, subagents)
"""The modules that declare built-in tools, or import modules that do."""
RESERVED_NAMES = frozenset({*BUILT_IN, *OF_MEMBERS})
"""Names of built-in tools, which user functions can't have."""


_Function = TypeVar("_Function", bound=Callable[..., Any] | OfferedFunction)


@dataclass(frozen=True)
class Resumed:
    """The earlier turn that a run resumes or rewinds.

    Attributes:
        turn: The turn's number.
        past: The state of its agents.
        view: Its final view.
        timeline: Its timeline, which the new turn continues.
        again: Agents that failed or were stopped individually, and that the user restarts.
        revised: Replaced outputs of its steps; see `nb_agents.events.TurnStarted`.
        task: The directory with the files of its task, or None for its own directory.
        point: For a rewind, the number of the last event that counts, or 0.
        said: The user's message at the start of the new turn, if any.
        trees: For a rewind, the snapshots of workspaces that differ from their current files.
        kept: The latest snapshot of each workspace that has one.
        own: For a rewind, the changes to user files after the checkpoint.
        put_back: The changes to user files that were undone.
        started: The turn's first event.
        carried: Events that extensions add to the start of the new turn.
        task_budget: The earlier turns of the task, which share its budget.
    """

    turn: int
    past: Past
    view: RunView
    timeline: TimelineFold
    again: tuple[str, ...] = ()
    revised: Mapping[str, str | None] = field(default_factory=dict)
    task: Path | None = None
    point: int = 0
    said: ev.UserMessage | None = None
    trees: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    own: UserFileHistory = UserFileHistory()
    put_back: tuple[ev.UserFilesSaved, ...] = ()
    started: ev.TurnStarted | None = None
    carried: tuple[ev.Event, ...] = ()
    task_budget: PastTask = PastTask()


class TurnWork(Protocol):
    """The work of a turn: a task for its team, or work of another kind.

    It includes the state from which a resumed turn continues.
    """

    @property
    def kind(self) -> str:
        """The name of the kind of work, which makes its driver; see `nb_agents.turns.drivers`."""
        ...

    @property
    def name(self) -> str:
        """The name of the work; "" for a task."""
        ...

    @property
    def given(self) -> Mapping[str, Any]:
        """The values that the work was started with."""
        ...

    @property
    def opens_tools(self) -> bool:
        """Whether the driver opens all agents' tools first, which a stop interrupts."""
        ...

    @property
    def has_default_timeout(self) -> bool:
        """Whether the default timeout of turns applies, see `timeout_of`."""
        ...

    def members(self, team: TeamSpec) -> tuple[AgentSpec, ...]:
        """Return the agents that take part from the start."""
        ...

    def workspaces(self, team: TeamSpec) -> tuple[str, ...]:
        """Return the names of the turn's workspaces, as in `RunView.workspaces`."""
        ...

    def first_events(self) -> tuple[ev.Event, ...]:
        """Return the events that follow the turn's first one."""
        ...

    def fill(self, spec: TurnSpec, session: Session) -> TurnSpec:
        """Write the files that the turn starts with, and return the spec with their paths.

        Args:
            spec: The turn's spec, with the paths of the turn.
            session: The session up to the turn.

        Raises:
            ConfigError: A directory that it works in does not exist.
            OSError: The turn's directory can't be written.
        """
        ...


@dataclass(frozen=True)
class TaskWork:
    """A task for a team; see `TurnWork`."""

    kind: str = TEAM
    name: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    opens_tools: bool = True
    has_default_timeout: bool = True

    def members(self, team: TeamSpec) -> tuple[AgentSpec, ...]:
        """Return the team's agents."""
        return tuple(team.agents)

    def workspaces(self, team: TeamSpec) -> tuple[str, ...]:
        """Return the ids of the team's agents."""
        return tuple(agent.id for agent in team.agents)

    def first_events(self) -> tuple[ev.Event, ...]:
        """Return (), because a task needs no other events."""
        return ()

    def fill(self, spec: TurnSpec, session: Session) -> TurnSpec:
        """Copy the agents' memories, and return the spec with the paths that they may write."""
        team, paths = spec.team, spec.paths
        if spec.resumed is None and team.orchestrator.coordination.enable_memory_filesystem_mode:
            session.copy_memories(paths, [agent.id for agent in team.agents])
        return replace(spec, writable=writable_context_paths(team, paths.root))


@dataclass(frozen=True)
class TurnSpec:
    """The specification of a turn.

    Attributes:
        paths: The turn's paths.
        mark: The session's mark, which authenticates its journals.
        history: The messages of earlier turns.
        context: Files and directories that agents may read.
        writable: The files and directories among these that the presenter may write to.
        project: The user's directory that the work is done in, if any.
        timeout_s: The orchestrator timeout, in seconds.
        notices: One-line notices for the panel.
        origin: The notebook or terminal that started it; see `nb_agents.session.lookup`.
        config: The team file's path, or "".
        digest: The digest of the request, or "". See `nb_agents.launch.once`.
        resumed: The turn that this turn resumes or rewinds, or None.
        work: What the turn works on.
        functions: User functions, in this process or another, that all agents may call.
        options: The user's options; see `cancel`, `approval` and `retry`.
        unpriced: Models whose price is unknown, as the notices say.
        stand_in: What answers its calls in place of models, tools and commands, or None.
    """

    task: str
    team: TeamSpec
    paths: TurnPaths
    mark: OwnerMark
    history: Sequence[PastMessage] = ()
    context: Sequence[Path] = ()
    writable: Sequence[WritablePath] = ()
    project: WritablePath | None = None
    timeout_s: float = DEFAULT_ORCHESTRATOR_TIMEOUT_S
    notices: tuple[str, ...] = ()
    origin: str = ""
    config: str = ""
    digest: str = ""
    resumed: Resumed | None = None
    work: TurnWork = TaskWork()
    functions: Sequence[Callable[..., Any] | OfferedFunction] = ()
    options: RunOptions = RunOptions()
    unpriced: tuple[str, ...] = ()
    stand_in: StandIn | None = None

    @property
    def own_places(self) -> tuple[WritablePath, ...]:
        """The user files that may be changed by agents or by merging their copies."""
        return (*self.writable, *([self.project] if self.project else ()))

    @property
    def workspaces(self) -> tuple[str, ...]:
        """The names of the turn's workspaces, as in `RunView.workspaces`."""
        return self.work.workspaces(self.team)

    @property
    def cancel(self) -> CancelPolicy:
        """The stop policy, from the options or the team file."""
        return cancel_policy(self.team, self.options)

    @property
    def approval(self) -> ApprovalConfig:
        """The configuration of approvals, from the options or the team file."""
        spec = self.team.approval
        return self.options.approval or ApprovalConfig(
            spec.timeout, spec.auto_approve_on_timeout, spec.approvers, spec.required_approvals
        )

    @property
    def retry(self) -> Retry | None:
        """The retry policy for model calls. None means the default."""
        spec = self.team.retry
        if self.options.retry or spec is None:
            return self.options.retry
        return Retry(
            spec.attempts, spec.delay, spec.backoff, spec.max_delay, max_silence=spec.max_silence
        )

    @property
    def quota_wait_s(self) -> float:
        """Seconds that a model call may wait for its provider, as set by the options or team."""
        chosen = self.options.wait_for_quota
        return self.team.wait_for_quota if chosen is None else chosen

    @cached_property
    def mask(self) -> Mask:
        """The mask that hides secrets in everything that is written and shown."""
        return mask_for(self.team)

    @property
    def _notebook_file(self) -> str:
        if (path := self.options.notebook_file) is not None:
            return os.path.abspath(os.path.expanduser(path))
        return ""

    @cached_property
    def started(self) -> ev.TurnStarted:
        """The turn's first event."""
        return ev.TurnStarted(
            session=self.paths.session,
            turn=self.paths.number,
            task=self.task,
            agents=tuple(map(_info, self.work.members(self.team))),
            timeout_s=self.timeout_s,
            notices=self.notices,
            resumes=self.resumed.turn if self.resumed else 0,
            point=self.resumed.point if self.resumed else 0,
            again=self.resumed.again if self.resumed else (),
            revised=dict(self.resumed.revised) if self.resumed else {},
            team=snapshot(self.team),
            config=self.config,
            origin=self.origin,
            digest=self.digest,
            work="" if self.work.kind == RECIPE else self.work.kind,
            recipe=self.work.name,
            context=dict(self.work.given),
            max_cost=self.options.max_cost,
            max_tokens=self.options.max_tokens,
            on_budget=self.options.on_budget or "",
            notebook=self.options.notebook or "",
            notebook_file=self._notebook_file,
            context_paths=absolute_paths(self.options.context_paths),
            wait_for_quota=self.options.wait_for_quota,
            approval=_approval_rules(self.options.approval),
        )


def _approval_rules(chosen: ApprovalConfig | None) -> ev.ApprovalRules | None:
    """Return the rules that the user chose, as they are journalled."""
    if chosen is None:
        return None
    return ev.ApprovalRules(
        timeout=chosen.timeout,
        auto_approve_on_timeout=chosen.auto_approve_on_timeout,
        approvers=tuple(chosen.approvers),
        required_approvals=chosen.required_approvals,
    )


def writable_context_paths(spec: TeamSpec, sessions: Path) -> tuple[WritablePath, ...]:
    """Return the context paths that the presenter may write to. Reads the disk.

    Args:
        sessions: The session root, which is protected.

    Raises:
        ConfigError: A path does not exist.
    """
    writable = spec.writable_paths
    read_only = {*spec.readable_paths} - {each.path for each in writable}
    result = []
    for path, protected in writable:
        folder = path if path.is_dir() else path.parent  # protected names are relative to it
        inside = (each for each in (*read_only, sessions.resolve()) if each.is_relative_to(path))
        result.append(
            WritablePath(path, [*(as_on_disk(folder / each) for each in protected), *inside])
        )
    return tuple(result)


def cancel_policy(team: TeamSpec, options: RunOptions) -> CancelPolicy:
    """Return the stop policy of a run from its options or, by default, its team file."""
    spec = team.cancel
    grace_s = None if spec.grace_timeout == "never" else spec.grace_timeout
    return options.cancel or CancelPolicy(
        grace_timeout_s=grace_s, graceful=spec.graceful, reason=spec.reason
    )


def checked_functions(functions: Sequence[_Function]) -> tuple[_Function, ...]:
    """Return the user's functions, after checking that agents can call them.

    Raises:
        UserError: A signature can't be described to a model, or a name is taken.
    """
    names = set(RESERVED_NAMES)
    for function in functions:
        name = _name_of(function)
        if name in names:
            raise UserError(f"There is already a tool {name!r}. Rename the function.")
        names.add(name)
    return tuple(functions)


def _name_of(function: Callable[..., Any] | OfferedFunction) -> str:
    if isinstance(function, OfferedFunction):
        return function.name
    return function_tool(function).name


def offered_of(functions: Sequence[object], command: OfferTools) -> list[OfferedFunction]:
    """Return those of a run's functions that another process now offers to execute.

    Args:
        functions: The run's functions.
        command: The command with the offer's id and function names.

    Raises:
        UserError: The run has no offered function with that name, or the offer's id is malformed.
    """
    offered = {each.name: each for each in functions if isinstance(each, OfferedFunction)}
    if not CallInbox.is_id(command.offer):
        raise UserError(f"Invalid tool offer id {command.offer!r}.")
    for name in command.names:
        if name not in offered:
            names = ", ".join(offered) or "none"
            raise UserError(
                f"The run was started without a tool {name!r}. Its notebook tools are: {names}."
            )
    return [offered[name] for name in command.names]


def mask_for(team: TeamSpec) -> Mask:
    """Return a mask for the secrets of this process and of a team."""
    return Mask([*secrets_of_environment(), *secrets_of_team(team)])


def config_path(config: object) -> str:
    """Return the absolute path of a team file, or "" if the team is not from a file."""
    if not isinstance(config, str | os.PathLike):
        return ""
    return str(as_on_disk(Path(config).absolute()))


def timeout_of(chosen: float | None, spec: TeamSpec, *, has_default: bool = True) -> float:
    """Return the orchestrator timeout in seconds, or 0 for none.

    Args:
        chosen: The user's choice. None means the team's timeout.
        has_default: Whether the default timeout applies. It does not to steps, which have their
            own timeouts.

    Raises:
        ConfigError: The timeout is not a positive number.
    """
    is_set = "orchestrator_timeout_seconds" in spec.timeout_settings.model_fields_set
    if not has_default and chosen is None and not is_set:
        return 0.0
    timeout_s = spec.timeout_settings.orchestrator_timeout_seconds if chosen is None else chosen
    if not 0 < timeout_s < math.inf:
        raise ConfigError(
            f"The orchestrator timeout is {timeout_s!r} seconds, but it must be a positive number."
        )
    return float(timeout_s)


def _info(agent: AgentSpec) -> ev.AgentInfo:
    backend = agent.backend
    return ev.AgentInfo(id=agent.id, model=backend.model or backend.type, backend=backend.type)
