"""The specification of a turn: its task, team, options and paths."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nb_agents import events as ev
from nb_agents.agents import planning, spawning, subagents
from nb_agents.agents.replay import Past
from nb_agents.cancel import CancelPolicy
from nb_agents.config.decision_tools import OF_MEMBERS
from nb_agents.config.orchestrator import DEFAULT_ORCHESTRATOR_TIMEOUT_S
from nb_agents.config.secrets import secrets_of_environment, secrets_of_team, snapshot
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, UserError
from nb_agents.events import OfferTools
from nb_agents.masking import Mask
from nb_agents.models.retry import Retry
from nb_agents.options import RunOptions
from nb_agents.process.writable import WritablePath
from nb_agents.session.conversation import PastMessage
from nb_agents.session.layout import TurnPaths
from nb_agents.session.own_files import OwnHistory
from nb_agents.session.ownership import OwnerMark
from nb_agents.tools import run_tools
from nb_agents.tools.base import BUILT_IN
from nb_agents.tools.functions import function_tool
from nb_agents.tools.offer import CallInbox, OfferedFunction
from nb_agents.tools.policy import ApprovalConfig
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import TimelineFold

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe
    from nb_agents.recipes.progress import Progress

_DECLARING = (planning, run_tools, spawning, subagents)
"""The modules that declare built-in tools, or import those that do."""
RESERVED_NAMES = frozenset({*BUILT_IN, *OF_MEMBERS})
"""Names of built-in tools, which functions can't have."""


_Function = TypeVar("_Function", bound=Callable[..., Any] | OfferedFunction)


@dataclass(frozen=True)
class Resumed:
    """The turn that a run resumes.

    Attributes:
        turn: The turn's number.
        past: The state of its agents.
        view: Its final view.
        timeline: Its timeline, which goes on.
        progress: The progress of its recipe; None for a team.
        again: Agents that take part again after they failed or were stopped alone.
        revised: Outputs of its steps that were replaced; see `nb_agents.events.TurnStarted`.
        task: The directory of its task; None when it worked in its own.
        point: Of a rewind: number of its last event that counts; else 0.
        said: What the person says when it goes on from there, if anything.
        trees: Of a rewind: what workspaces held at the point, where that is not what they hold.
        kept: For each workspace that was kept, what was kept last.
        own: Of a rewind: what was changed behind the point in files of the person's own.
        put_back: What of that was put back.
    """

    turn: int
    past: Past
    view: RunView
    timeline: TimelineFold
    progress: Progress | None = None
    again: tuple[str, ...] = ()
    revised: Mapping[str, str | None] = field(default_factory=dict)
    task: Path | None = None
    point: int = 0
    said: ev.Said | None = None
    trees: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    own: OwnHistory = OwnHistory()
    put_back: tuple[ev.OwnFilesKept, ...] = ()


@dataclass(frozen=True)
class TurnSpec:
    """The specification of a turn.

    Attributes:
        task: The task.
        team: The team.
        paths: The turn's paths.
        mark: The session's mark.
        history: The earlier conversation.
        context: Files and directories that agents may read.
        writable: Those of them that the presenting agent may write.
        project: The user's directory that a recipe's steps work in, if any.
        timeout_s: The orchestrator timeout, in seconds.
        notices: One-line notices for the panel.
        origin: The notebook or terminal that it was begun in; see `nb_agents.session.lookup`.
        config: The team file's path, or "".
        digest: The digest of what was asked for, or ""; see `nb_agents.launch.once`.
        resumed: The turn that this one resumes, or None.
        recipe: The recipe that the agents run instead of a task, or None.
        given: The values that the recipe was started with.
        functions: Functions of this process or another that all agents may call.
        options: The user's options; see `cancel`, `approval` and `retry`.
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
    recipe: Recipe | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    functions: Sequence[Callable[..., Any] | OfferedFunction] = ()
    options: RunOptions = RunOptions()

    @property
    def own_places(self) -> tuple[WritablePath, ...]:
        """The person's own files that agents, or the merge of their copies, may change."""
        return (*self.writable, *([self.project] if self.project else ()))

    @property
    def workspaces(self) -> tuple[str, ...]:
        """The names of the turn's workspaces, like `RunView.workspaces`."""
        return (self.recipe.name,) if self.recipe else tuple(a.id for a in self.team.agents)

    @property
    def cancel(self) -> CancelPolicy:
        """The policy for stops, from the options or the team file."""
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
        """The rules for retrying model calls; None for the default ones."""
        spec = self.team.retry
        if self.options.retry or spec is None:
            return self.options.retry
        return Retry(
            spec.attempts, spec.delay, spec.backoff, spec.max_delay, max_silence=spec.max_silence
        )

    @cached_property
    def mask(self) -> Mask:
        """The mask of secrets in everything that is written and shown."""
        return mask_for(self.team)

    @cached_property
    def started(self) -> ev.TurnStarted:
        """The turn's first event."""
        return ev.TurnStarted(
            session=self.paths.session,
            turn=self.paths.number,
            task=self.task,
            agents=() if self.recipe else tuple(map(_info, self.team.agents)),
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
            recipe=self.recipe.name if self.recipe else "",
            context=dict(self.given),
        )


def writable_places(spec: TeamSpec, sessions: Path) -> tuple[WritablePath, ...]:
    """Return the context paths that the presenting agent may write; reads the disk.

    Args:
        spec: The team.
        sessions: The session root, which is protected.

    Raises:
        ConfigError: A path does not exist.
    """
    given = spec.writable_paths
    read_only = {*spec.readable_paths} - {each.path for each in given}
    made = []
    for path, protected in given:
        folder = path if path.is_dir() else path.parent  # protected names may be beside a file
        inside = (each for each in (*read_only, sessions.resolve()) if each.is_relative_to(path))
        made.append(WritablePath(path, [*(folder / each for each in protected), *inside]))
    return tuple(made)


def project_place(
    recipe: Recipe, team: TeamSpec, given: Mapping[str, Any], sessions: Path
) -> WritablePath | None:
    """Return the user's directory that a recipe's steps work in, if any.

    Args:
        recipe: The recipe.
        team: The team whose agents run the steps.
        given: The values that the recipe was started with, which include the directory.
        sessions: The session root, which is protected.

    Raises:
        ConfigError: The directory no longer exists.
    """
    path = Path(given["_project"]) if recipe.workspace == "project" else team.project
    if path is None:
        return None
    if not path.is_dir():
        raise ConfigError(
            f"The recipe works in {str(path)!r}, which is no longer a directory. Put it back, or "
            "start the recipe again elsewhere."
        )
    return WritablePath(path, [sessions.resolve()])


def cancel_policy(team: TeamSpec, options: RunOptions) -> CancelPolicy:
    """Return the policy for stopping a run, from its options or else its team's file."""
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
            raise UserError(f"A tool named {name!r} is there already; give the function another.")
        names.add(name)
    return tuple(functions)


def _name_of(function: Callable[..., Any] | OfferedFunction) -> str:
    if isinstance(function, OfferedFunction):
        return function.name
    return function_tool(function).name


def offered_of(functions: Sequence[object], command: OfferTools) -> list[OfferedFunction]:
    """Return the functions of a run that another process offers.

    Args:
        functions: The run's functions.
        command: The offer.

    Raises:
        UserError: The run has no such function, or the offer's id is not valid.
    """
    known = {each.name: each for each in functions if isinstance(each, OfferedFunction)}
    if not CallInbox.is_id(command.offer):
        raise UserError(f"{command.offer!r} is not an offer of tools.")
    for name in command.names:
        if name not in known:
            has = f"Of a notebook it has: {', '.join(known) or 'none'}"
            raise UserError(f"The run was started without a tool {name!r}. {has}.")
    return [known[name] for name in command.names]


def mask_for(team: TeamSpec) -> Mask:
    """Return the mask of this process's and a team's secrets."""
    return Mask([*secrets_of_environment(), *secrets_of_team(team)])


def config_path(config: object) -> str:
    """Return the absolute path of a team file, or "" when the team is not from a file."""
    return str(Path(config).absolute()) if isinstance(config, str | os.PathLike) else ""


def timeout_of(chosen: float | None, spec: TeamSpec, *, is_recipe: bool = False) -> float:
    """Return the orchestrator timeout in seconds; 0 for none.

    Args:
        chosen: The user's choice; None means the team's timeout.
        spec: The team.
        is_recipe: Whether it runs a recipe, whose steps have timeouts of their own: then the
            team's default does not apply.

    Raises:
        ConfigError: The timeout is not a number over 0.
    """
    written = "orchestrator_timeout_seconds" in spec.timeout_settings.model_fields_set
    if is_recipe and chosen is None and not written:
        return 0.0
    timeout_s = spec.timeout_settings.orchestrator_timeout_seconds if chosen is None else chosen
    if not 0 < timeout_s < math.inf:
        raise ConfigError(
            f"The orchestrator timeout is {timeout_s!r} seconds; it must be a number over 0."
        )
    return float(timeout_s)


def _info(agent: AgentSpec) -> ev.AgentInfo:
    backend = agent.backend
    return ev.AgentInfo(id=agent.id, model=backend.model or backend.type, backend=backend.type)
