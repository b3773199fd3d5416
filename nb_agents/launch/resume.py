"""Resumes an incomplete turn exactly where it stopped.

The old turn's journal is folded into the state of its agents (`nb_agents.launch.resume_plan`), from
which the new turn continues. Finished model and tool calls are not repeated, and the calls that are
repeated are announced first.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, cast, get_args

from nb_agents.config.orchestrator import absolute_paths
from nb_agents.config.secrets import snapshot
from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec
from nb_agents.config.tools import NotebookAccess
from nb_agents.errors import ConfigError, RecipeError, SessionBusyError, UserError
from nb_agents.events import Event, FilesSaved, TurnStarted
from nb_agents.launch.carry_over import CarryOver, carry_over
from nb_agents.launch.here import Loaded, RunRequest, absolute, launch
from nb_agents.launch.resume_plan import (
    Preview,
    Resumption,
    checked,
    what_resumes,
    would_run_of,
)
from nb_agents.launch.team_findings import check_start
from nb_agents.launch.team_kind import kind_of, started_of, stored_team
from nb_agents.launch.trust import trusted_mark
from nb_agents.models.fit import check_fit
from nb_agents.models.providers import load
from nb_agents.options import ApprovalConfig, RunOptions
from nb_agents.session import layout
from nb_agents.session.history import PastTurn, Session, load_session, past_events
from nb_agents.session.layout import TurnPaths, find_task, turns_of
from nb_agents.session.lookup import find_session, parse_session_reference, with_task
from nb_agents.session.ownership import OwnerMark
from nb_agents.signatures import described
from nb_agents.turns.budget import asks_at_budget, budget_of, with_budget_of
from nb_agents.turns.day_budget import check_day_budget
from nb_agents.turns.handle import RunHandle
from nb_agents.turns.live_runs import owner_of, wait_until_saved
from nb_agents.turns.task_ledger import check_budget, past_task
from nb_agents.turns.turn_spec import Resumed, TurnSpec, checked_functions, config_path, timeout_of
from nb_agents.view.timeline import TimelineFold


@dataclass(frozen=True)
class ContinuingRequest(RunRequest):
    """The arguments of a function that starts a turn from the state of another one."""

    @property
    @abstractmethod
    def config(self) -> str | os.PathLike[str] | TeamSpec | None:
        """The team to use. None means the turn's own team."""

    @property
    def again(self) -> tuple[str, ...]:
        """Agents that failed or were stopped individually, and that the user restarts."""
        return ()

    def load(self) -> Loaded:
        """Load the turn to resume and its team, and fold its journal."""
        if self.options.from_turn is not None:
            raise UserError("from_turn can only be used with start and continue_.")
        turn, session = self.find()
        events = turn.events
        options = with_options_of(turn, self.options)
        team = self.team_of(events).with_options(options)
        resumption = self.resumption(events, team.spec)
        if resumption.going.stuck:
            raise RecipeError(resumption.going.stuck)
        check_day_budget()
        if not asks_at_budget(team.spec, options):
            check_budget(turn, session, budget_of(team.spec, options))
        mark = trusted_mark(session.path, options, lambda: would_run_of(resumption, team.spec))
        if options.cluster is None:  # on a cluster, the keys of the worker's environment are used
            check_start(team.spec)
        return Loaded(
            team.spec,
            session.path.name,
            mark,
            partial(self._start, session, turn, team, mark, resumption, options),
            kind_of(started_of(events)).past_project(events)
            if options.cluster is not None
            else None,
        )

    def outgoing(self, session: str | None) -> Self:
        """Return a copy of the request for another process, with absolute paths."""
        return self.changed(config=absolute(self.config))

    @abstractmethod
    def find(self) -> tuple[PastTurn, Session]:
        """Return the turn to continue from and its session."""

    def resumption(self, events: Sequence[Event], team: TeamSpec | None) -> Resumption:
        """Return the state that the turn continues from.

        Args:
            events: The events of the turn to continue from.
            team: The team, or None if it can't be restored.

        Raises:
            UserError: The turn can't use the arguments.
        """
        return what_resumes(events, (), team)

    def team_of(self, events: Sequence[Event]) -> ResumedTeam:
        """Return the team that resumes a turn.

        Args:
            events: The turn's events.

        Raises:
            UserError: The turn's team can't be restored, or the given team does not match it.
        """
        return _team(self.config, events)

    def about(self, preview: Preview) -> str:
        """Return the new turn's first notice."""
        return str(preview)

    def changes_request(self, turn: PastTurn, team: TeamSpec) -> bool:
        """Return whether the new turn answers a different request than the old turn.

        If so, `nb_agents.once` does not return it for the old turn's request.
        """
        return self.config is not None and snapshot(team) != started_of(turn.events).team

    def carried(self, turn: TurnPaths) -> CarryOver:
        """Return what extensions add to the new turn."""
        return carry_over(turn)

    def resumed(self, resumed: Resumed) -> Resumed:
        """Return the state from which the new turn continues."""
        return resumed

    def _start(
        self,
        session: Session,
        turn: PastTurn,
        team: ResumedTeam,
        mark: OwnerMark,
        resumption: Resumption,
        options: RunOptions,
        handle: type[RunHandle],
    ) -> RunHandle:
        load({agent.backend.type for agent in team.spec.everyone})
        fit, continuation, events = check_fit(team.spec), resumption.going, turn.events
        about = (
            self.about(resumption.preview),
            f"Session: {with_task(session.path, turn.view.task)}",
        )
        before = [e.resumes for e in events if isinstance(e, TurnStarted) and e.resumes]
        spec = TurnSpec(
            task=turn.view.task,
            team=team.spec,
            paths=session.next_turn,
            mark=mark,
            timeout_s=timeout_of(
                options.timeout_s, team.spec, has_default=continuation.work.has_default_timeout
            ),
            notices=(*about, *team.notices, *fit, *continuation.notices),
            config=team.path,
            digest="" if self.changes_request(turn, team.spec) else turn.view.digest,
            work=continuation.work,
            functions=checked_functions(self.tools),
            options=options,
            resumed=self.resumed(
                Resumed(
                    turn.paths.number,
                    resumption.past,
                    turn.view,
                    TimelineFold(events),
                    self.again,
                    continuation.revised,
                    find_task(session.path, [turn.paths.number, *before]),
                    kept={e.workspace: e.tree for e in events if isinstance(e, FilesSaved)},
                    started=started_of(events),
                    carried=self.carried(turn.paths).events,
                    task_budget=past_task(events, turn, session),
                )
            ),
        )
        return launch(spec, session, handle)


@dataclass(frozen=True)
class ResumeRequest(ContinuingRequest):
    """The arguments of `nb_agents.resume`, which describes them."""

    session: str | os.PathLike[str] = field(
        default="",
        metadata=described(
            "session id or path (default: the last session of this notebook or terminal)"
        ),
    )
    config: str | os.PathLike[str] | TeamSpec | None = field(
        default=None,
        metadata=described(
            "team file (default: the turn's team file)",
            metavar="F",
            flags=("--config", "-c", "--agents-config"),
        ),
    )
    _: KW_ONLY
    agent: str = field(
        default="",
        metadata=described("an agent to restart, which failed or was stopped", metavar="A"),
    )
    recipe: str | os.PathLike[str] | Spec | None = field(
        default=None,
        metadata=described(
            "a changed recipe that replaces the turn's recipe",
            metavar="F",
            flags=("--recipe", "-r"),
        ),
    )
    context: Mapping[str, Any] | None = field(
        default=None,
        metadata=described("values to add to the recipe's context, or outputs of its steps"),
    )
    from_step: str = field(
        default="",
        metadata=described(
            "run the recipe again from this step on", metavar="STEP", flags=("--from",)
        ),
    )

    def _locate(self) -> None:
        if not self.session:
            return
        location = parse_session_reference(self.session, self.options.session_root)
        options = replace(self.options, session_root=location.root)
        self._set(session=location.name, options=options)

    def outgoing(self, session: str | None) -> Self:
        """Return a copy of the request for another process, with absolute paths."""
        request = super().outgoing(session)
        return request.changed(session=session, recipe=absolute(self.recipe))

    @property
    def again(self) -> tuple[str, ...]:
        """The agent that the user restarts, if any."""
        return (self.agent,) if self.agent else ()

    def find(self) -> tuple[PastTurn, Session]:
        """Return the turn to resume and its session."""
        name, root = os.fspath(self.session or ""), self.options.session_root
        return _find(name, root, self.agent, self.from_step)

    def resumption(self, events: Sequence[Event], team: TeamSpec | None) -> Resumption:
        """Return the state from which the resume continues."""
        again, given = (self.agent,) if self.agent else (), self.context
        return what_resumes(events, again, team, self.recipe, given, self.from_step)

    def changes_request(self, turn: PastTurn, team: TeamSpec) -> bool:
        """Return whether the new turn answers a different request than the old turn."""
        return bool(self.recipe or self.context) or super().changes_request(turn, team)

    def preview(self) -> Preview:
        """Return what the resume would do, without doing it.

        Raises:
            UserError: There is nothing to resume.
        """
        turn, session = self.find()
        events = turn.events
        try:
            team = self.team_of(events).spec
        except UserError:
            if self.config is not None or self.recipe is not None:
                raise
            team = None  # a model created in Python is only needed for the resume itself
        resumption = self.resumption(events, team)
        return checked(resumption, team or stored_team(started_of(events)), session.path)


def would_resume(session: Path, team: TeamSpec) -> tuple[str, ...]:
    """List what resuming a session would run. Returns () if it can't be resumed."""
    begun = [turn for turn in turns_of(session) if turn.has_begun]
    try:
        return would_run_of(what_resumes(past_events(begun[-1]), (), team), team)
    except UserError:
        return ()


def _find(
    session: str, root: str | os.PathLike[str] | None, agent: str = "", from_step: str = ""
) -> tuple[PastTurn, Session]:
    path = find_session(layout.session_root(root), session)
    wait_until_saved(path)
    loaded = load_session(path)
    last = (loaded.begun or loaded.turns)[-1]
    name = f"{loaded.path.name}/{last.paths.number}"
    if last.is_live and agent:
        raise UserError(
            f"Turn {name} is still running, and an agent can only be restarted in the next turn. "
            f"Wait until it ends or stop it, then resume {agent!r}."
        )
    if last.is_live:
        raise SessionBusyError(loaded.path.name, owner_of(loaded.path))
    if last.is_complete and not agent and not from_step:
        raise UserError(
            f"Turn {name} is complete, so there is nothing to resume. To start a new task in this "
            f"session, use `%%agents --continue --session {loaded.path.name}`."
        )
    if not any(isinstance(event, TurnStarted) for event in last.events):
        raise UserError(
            f"Turn {name} has no journal, so its calls are unknown. To continue from its answers, "
            f"use `%%agents --continue --session {loaded.path.name}`."
        )
    return last, loaded


class ResumedTeam(NamedTuple):
    """The team for a resume, the path of its file (or ""), and notices for the user."""

    spec: TeamSpec
    path: str = ""
    notices: tuple[str, ...] = ()

    def with_options(self, options: RunOptions) -> ResumedTeam:
        """Return the team with the access to files and to the notebook that the options give."""
        spec = self.spec.reading(options.context_paths).with_notebook(options.notebook)
        return self._replace(spec=spec)


def with_options_of(turn: PastTurn, options: RunOptions) -> RunOptions:
    """Return the options of a new turn of a task, with those that apply to the whole task.

    These are the budget, the limit of waits for providers, the rules for approvals, the access to
    the notebook, and the context paths that still exist. Other options apply to one turn.

    Args:
        turn: The turn to continue from.
        options: The options of the new turn. Its context paths are added to the task's.
    """
    started, options = started_of(turn.events), with_budget_of(turn.view, options)
    access = started.notebook if started.notebook in get_args(NotebookAccess) else None
    limit_s = started.wait_for_quota if options.wait_for_quota is None else options.wait_for_quota
    paths = (path for path in started.context_paths if os.path.exists(path))
    return replace(
        options,
        notebook=options.notebook or cast(NotebookAccess | None, access),
        notebook_file=options.notebook_file or started.notebook_file or None,
        wait_for_quota=limit_s,
        approval=options.approval or _approval_of(started),
        context_paths=absolute_paths([*paths, *options.context_paths]),
    )


def _approval_of(started: TurnStarted) -> ApprovalConfig | None:
    """Return the rules for approvals that the user chose at the start of a turn, or None."""
    rules = started.approval
    return None if rules is None else ApprovalConfig(**asdict(rules))


def _team(config: str | os.PathLike[str] | TeamSpec | None, events: Sequence[Event]) -> ResumedTeam:
    """Return the team for a resume, from the given config or, if there is none, from the turn."""
    started = started_of(events)
    if isinstance(config, TeamSpec):
        return ResumedTeam(_same_agents(config, started))
    if config is not None:
        return ResumedTeam(_same_agents(TeamSpec.from_file(config), started), config_path(config))
    is_there = bool(started.config) and Path(started.config).is_file()
    if is_there:
        try:
            spec = _same_agents(TeamSpec.from_file(started.config), started)
            return ResumedTeam(spec, started.config)
        except ConfigError:
            if started.team is None:
                raise
    if started.team is None:
        raise UserError(
            "The journal does not contain the whole team: a model was created in Python, or a "
            "base_url has a password. Pass the team again with --config FILE or config=."
        )
    notice = f"{started.config} now has a different team. The team in the journal is used."
    stored = stored_team(started)
    if stored is None:
        raise UserError(
            "The team in the turn's journal is invalid. Pass the team again with --config FILE or "
            "config=."
        )
    spec = _same_agents(stored, started)
    return ResumedTeam(spec, started.config, (notice,) if is_there else ())


def _same_agents(spec: TeamSpec, started: TurnStarted) -> TeamSpec:
    spec = spec.without(_skipped(spec, started))
    ids = [a.id for a in started.agents]
    if not ids:
        return spec
    same = spec.without({a.id for a in spec.agents} - {*ids})
    if [a.id for a in same.agents] != ids:
        raise ConfigError(
            f"The turn's agents are {', '.join(ids)}, but the team has "
            f"{', '.join(a.id for a in spec.agents)}. Use the turn's own team, or --continue."
        )
    return same


def _skipped(spec: TeamSpec, started: TurnStarted) -> set[str]:
    """Return the agents that can't run here and were already left out when the turn started."""
    stored = started.team or {}
    everyone = [*stored.get("agents", ()), *stored.get("callable_agents", ())]
    ids = {a.id for a in started.agents} | {a.get("id") for a in everyone}
    return {each.id for each in spec.unsupported} - ids
