"""What one turn is to do: the task, the team, its options, and where it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nb_agents import events as ev
from nb_agents.agents.replay import Past
from nb_agents.cancel import CancelPolicy
from nb_agents.config.secrets import secrets_of_environment, secrets_of_team, snapshot
from nb_agents.config.team import DEFAULT_ORCHESTRATOR_TIMEOUT_S, AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, UserError
from nb_agents.events import OfferTools
from nb_agents.masking import Mask
from nb_agents.models.retry import Retry
from nb_agents.options import RunOptions
from nb_agents.process.writable import WritablePath
from nb_agents.session.conversation import Message
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.functions import function_tool
from nb_agents.tools.offer import Offer, OfferedFunction
from nb_agents.tools.policy import ApprovalConfig
from nb_agents.tools.task_plan import PLAN_ACTIONS
from nb_agents.view.run_view import RunView

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe
    from nb_agents.recipes.progress import Progress

__all__ = [
    "RESERVED_NAMES",
    "Resumed",
    "TurnSpec",
    "cancel_policy",
    "checked_functions",
    "mask_for",
    "offered_of",
    "project_place",
    "writable_places",
]


RESERVED_NAMES = frozenset(
    {"new_answer", "vote", "list_files", "read_file", "write_file", "edit_file", "delete_file"}
    | {"run_command", "run_python", "call_agent"}
    | {"data_get", "data_set", "data_delete", "data_list_keys", "data_list_namespaces"}
    | {"data_get_all", "data_get_many", "data_set_many", "data_delete_many", "data_clear"}
    | {*PLAN_ACTIONS}
    | {"spawn_subagents", "list_subagents", "wait_for_subagents", "cancel_subagent"}
)
"""Tools that agents have, or may have, besides functions."""


_Function = TypeVar("_Function", bound=Callable[..., Any] | OfferedFunction)


@dataclass(frozen=True)
class Resumed:
    """The turn that a run goes on with.

    Attributes:
        turn: Its number.
        past: Where its agents were.
        view: What it showed.
        progress: How far its recipe was; None for a team.
        again: Agents that had been stopped alone and take part again.
    """

    turn: int
    past: Past
    view: RunView
    progress: Progress | None = None
    again: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnSpec:
    """What one turn is to do.

    Attributes:
        task: What was asked.
        team: The team.
        paths: The turn's files.
        history: The conversation before.
        context: Files and directories that may be read.
        writable: What of those the agent may write that presents.
        project: The person's own directory that a recipe's steps work in, if they do.
        timeout_s: The orchestrator timeout, seconds.
        notices: One-line notes for the panel.
        owner: Who runs it, in words.
        config: The team file's path, or "".
        resumed: What this goes on with, or None.
        recipe: What the agents work through instead of a task of their own, or None.
        given: The values that the recipe was started with.
        functions: Functions of the notebook, of this process or another, that all agents may call.
        options: How it goes, as the person has it; see `cancel`, `approval` and `retry`.
        mask: Takes secrets out of all that is written and shown.
    """

    task: str
    team: TeamSpec
    paths: TurnPaths
    history: Sequence[Message] = ()
    context: Sequence[Path] = ()
    writable: Sequence[WritablePath] = ()
    project: WritablePath | None = None
    timeout_s: float = DEFAULT_ORCHESTRATOR_TIMEOUT_S
    notices: tuple[str, ...] = ()
    owner: str = ""
    config: str = ""
    resumed: Resumed | None = None
    recipe: Recipe | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    functions: Sequence[Callable[..., Any] | OfferedFunction] = ()
    options: RunOptions = RunOptions()
    mask: Mask = field(default_factory=Mask)

    @property
    def workspaces(self) -> tuple[str, ...]:
        """Names of the turn's workspaces, as `RunView.workspaces` has them."""
        return (self.recipe.name,) if self.recipe else tuple(a.id for a in self.team.agents)

    @property
    def cancel(self) -> CancelPolicy:
        """How it stops."""
        return cancel_policy(self.team, self.options)

    @property
    def approval(self) -> ApprovalConfig:
        """How calls of tools, and a recipe's gates, are approved."""
        spec = self.team.approval
        return self.options.approval or ApprovalConfig(
            spec.timeout, spec.auto_approve_on_timeout, spec.approvers, spec.required_approvals
        )

    @property
    def retry(self) -> Retry | None:
        """When a failed model call is tried again; None for the usual rules."""
        spec = self.team.retry
        written = Retry(spec.attempts, spec.delay, spec.backoff, spec.max_delay) if spec else None
        return self.options.retry or written

    def started(self) -> ev.TurnStarted:
        """Make the turn's first line."""
        return ev.TurnStarted(
            session=self.paths.session,
            turn=self.paths.number,
            task=self.task,
            agents=() if self.recipe else tuple(map(_info, self.team.agents)),
            timeout_s=self.timeout_s,
            notices=self.notices,
            resumes=self.resumed.turn if self.resumed else 0,
            again=self.resumed.again if self.resumed else (),
            team=snapshot(self.team),
            config=self.config,
            recipe=self.recipe.name if self.recipe else "",
            context=dict(self.given),
        )


def writable_places(spec: TeamSpec, sessions: Path) -> tuple[WritablePath, ...]:
    """Give the context paths that the agent may write which presents; looks at the disk.

    Args:
        spec: The team.
        sessions: Where sessions are: no agent writes another's files, nor a journal.

    Raises:
        ConfigError: One does not exist.
    """
    given = spec.writable_paths
    read_only = {*spec.readable_paths} - {each.path for each in given}
    made = []
    for path, protected in given:
        folder = path if path.is_dir() else path.parent  # of a file, those beside it may be meant
        inside = (each for each in (*read_only, sessions.resolve()) if each.is_relative_to(path))
        made.append(WritablePath(path, [*(folder / each for each in protected), *inside]))
    return tuple(made)


def project_place(
    recipe: Recipe, team: TeamSpec, given: Mapping[str, Any], sessions: Path
) -> WritablePath | None:
    """Give the person's own directory that a recipe's steps work in, if they do.

    Args:
        recipe: The recipe.
        team: Whose agents work.
        given: The values that it was started with: where, is among them.
        sessions: Where sessions are: no step writes a journal.

    Raises:
        ConfigError: It is not there any more.
    """
    path = Path(given["_project"]) if recipe.workspace == "project" else team.project
    if path is None:
        return None
    if not path.is_dir():
        raise ConfigError(
            f"The recipe works in {str(path)!r}, which is no longer a directory. Put it back, or "
            "start the recipe anew elsewhere."
        )
    return WritablePath(path, [sessions.resolve()])


def cancel_policy(team: TeamSpec, options: RunOptions) -> CancelPolicy:
    """Return how a run stops: by its options, else by its team's file."""
    spec = team.cancel
    grace_s = None if spec.grace_timeout == "never" else spec.grace_timeout
    return options.cancel or CancelPolicy(
        grace_timeout_s=grace_s, graceful=spec.graceful, reason=spec.reason
    )


def checked_functions(functions: Sequence[_Function]) -> tuple[_Function, ...]:
    """Refuse functions that agents can't be given.

    Args:
        functions: Of the notebook.

    Raises:
        UserError: One's signature can't be told to a model, or its name is taken.
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
    """Find the functions of a run that another process wants to offer.

    Args:
        functions: The run's.
        command: Which ones, and where they are.

    Raises:
        UserError: It has no such function of another process, or the offer is none.
    """
    known = {each.name: each for each in functions if isinstance(each, OfferedFunction)}
    if not Offer.is_id(command.offer):
        raise UserError(f"{command.offer!r} is not an offer of tools.")
    for name in command.names:
        if name not in known:
            has = f"Of a notebook it has: {', '.join(known) or 'none'}"
            raise UserError(f"The run was started without a tool {name!r}. {has}.")
    return [known[name] for name in command.names]


def mask_for(team: TeamSpec) -> Mask:
    """Make what takes secrets out of all that a run writes and shows.

    Args:
        team: Whose keys and servers it knows besides this process's variables.
    """
    return Mask([*secrets_of_environment(), *secrets_of_team(team)])


def _info(agent: AgentSpec) -> ev.AgentInfo:
    backend = agent.backend
    return ev.AgentInfo(id=agent.id, model=backend.model or backend.type, backend=backend.type)
