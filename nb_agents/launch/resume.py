"""Resuming an incomplete turn exactly where it stopped.

The old turn's journal is folded into the state of its agents (`nb_agents.launch.resume_plan`), from
which the new turn continues. No finished model or tool call is repeated, and the calls that are
repeated are announced first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.agents.programs.program_objects import check_objects
from nb_agents.agents.replay import replay
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, RecipeError, SessionBusyError, UserError
from nb_agents.events import Event, FilesKept, TurnStarted
from nb_agents.launch.here import Loaded, RunRequest, launch
from nb_agents.launch.resume_plan import (
    Preview,
    Resumption,
    checked,
    started_of,
    stored_team,
    what_resumes,
    would_run_of,
)
from nb_agents.launch.trust import trusted_mark
from nb_agents.models.fit import check_fit
from nb_agents.models.providers import check_team, load
from nb_agents.runs.live_runs import owner_of, wait_until_saved
from nb_agents.runs.run import Run
from nb_agents.runs.turn_spec import Resumed, TurnSpec, checked_functions, config_path, timeout_of
from nb_agents.session import layout
from nb_agents.session.history import PastTurn, Session, load_session, past_events
from nb_agents.session.layout import find_task, turns_of
from nb_agents.session.lookup import find_session, with_task
from nb_agents.session.ownership import OwnerMark
from nb_agents.view.timeline import TimelineFold

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe


def preview(
    session: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    agent: str = "",
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    from_step: str = "",
    session_root: str | os.PathLike[str] | None = None,
) -> Preview:
    """Return what `resume` would do with the same arguments, without doing it.

    Args:
        session: The session's id; "" means the last one of this notebook, else of a
            terminal.
        config: The team.
        agent: Id of an agent that failed or was stopped alone and is to take part again.
        recipe: A recipe that replaces the turn's.
        context: Values that are added to the recipe's context, or outputs of its steps.
        from_step: Id of the recipe's step that runs again, with all that comes after it.
        session_root: The session root.

    Raises:
        UserError: There is nothing to resume.
    """
    turn, found = _find(session, session_root, agent, from_step)
    events = turn.events
    try:
        team = _team(config, events).spec
    except UserError:
        if config is not None or recipe is not None:
            raise
        team = None  # models created in Python are needed for a resume, but not for its preview
    kept = _resumption(events, team, agent, recipe, context, from_step)
    return checked(kept, team or stored_team(started_of(events)), found.path)


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(RunRequest):
    """The arguments of `nb_agents.resume`."""

    agent: str
    from_step: str

    def load(self) -> Loaded:
        """Load the turn to resume and its team, and fold its journal."""
        options = self.options
        if options.from_turn is not None:
            raise UserError(
                "from_turn names a turn to go on from: it goes with start and continue_."
            )
        turn, session = self.find()
        events = turn.events
        team = self.team_of(events)
        kept = _resumption(events, team.spec, self.agent, self.recipe, self.context, self.from_step)
        if kept.going and kept.going.stuck:
            raise RecipeError(kept.going.stuck)
        mark = trusted_mark(session.path, options, lambda: would_run_of(kept, team.spec))
        if options.cluster is None:  # on a cluster, the worker's keys count
            check_team(team.spec)
            check_objects(team.spec)
        return Loaded(
            team.spec,
            session.path.name,
            mark,
            partial(self._begin, session, turn, team, mark, kept),
            project_of(events) if options.cluster is not None else None,
        )

    def find(self) -> tuple[PastTurn, Session]:
        """Return the turn to go on with, as far as it counts, and its session."""
        return _find(self.session or "", self.options.session_root, self.agent, self.from_step)

    def team_of(self, events: Sequence[Event]) -> ResumedTeam:
        """Return the team that goes on with a turn.

        Args:
            events: The turn's events.

        Raises:
            UserError: It can't be made from the turn, or is not the turn's.
        """
        return _team(self.config, events)

    def about(self, preview: Preview) -> str:
        """Return the new turn's first notice."""
        return str(preview)

    def resumed(self, resumed: Resumed) -> Resumed:
        """Return what the new turn goes on from."""
        return resumed

    def _begin(
        self,
        session: Session,
        turn: PastTurn,
        team: ResumedTeam,
        mark: OwnerMark,
        kept: Resumption,
    ) -> Run:
        load({agent.backend.type for agent in team.spec.everyone})
        fit, going, events = check_fit(team.spec), kept.going, turn.events
        about = (self.about(kept.preview), f"Session: {with_task(session.path, turn.view.task)}")
        before = [e.resumes for e in events if isinstance(e, TurnStarted) and e.resumes]
        spec = TurnSpec(
            task=turn.view.task,
            team=team.spec,
            paths=session.next_turn,
            mark=mark,
            timeout_s=timeout_of(self.options.timeout_s, team.spec, is_recipe=going is not None),
            notices=(*about, *team.notices, *fit, *(going.notices if going else ())),
            config=team.path,
            digest=turn.view.digest,
            recipe=going.recipe if going else None,
            given=going.progress.context if going else {},
            functions=checked_functions(self.tools),
            options=self.options,
            resumed=self.resumed(
                Resumed(
                    turn.paths.number,
                    kept.past,
                    turn.view,
                    TimelineFold(events),
                    going.progress if going else None,
                    (self.agent,) if self.agent else (),
                    going.revised if going else {},
                    find_task(session.path, [turn.paths.number, *before]),
                    kept={e.workspace: e.tree for e in events if isinstance(e, FilesKept)},
                )
            ),
        )
        return launch(spec, session)


def would_resume(session: Path, team: TeamSpec) -> tuple[str, ...]:
    """Return what a resume of a session with a team would run; nothing where there is none."""
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
    found = load_session(path)
    last = (found.begun or found.turns)[-1]
    name = f"{found.path.name}/{last.paths.number}"
    if last.is_live and agent:
        raise UserError(
            f"Turn {name} still goes on, and an agent takes part again in the next one. Wait for "
            f"its end or stop it, then resume {agent!r}."
        )
    if last.is_live:
        raise SessionBusyError(found.path.name, owner_of(found.path))
    if last.is_complete and not agent and not from_step:
        raise UserError(
            f"Turn {name} is complete: there is nothing to resume. "
            f"`%%agents --continue --session {found.path.name}` asks something new."
        )
    if not last.view.recipe and not _agents(last.events):
        raise UserError(
            f"Turn {name} has no journal, so that its calls are not known one by one. "
            f"`%%agents --continue --session {found.path.name}` goes on with what it holds."
        )
    return last, found


def project_of(events: Sequence[Event]) -> Path | None:
    """Return the user's directory that a turn's recipe works in, if any."""
    if not started_of(events).recipe:
        return None
    from nb_agents.launch.recipes import fold_turns

    progress = fold_turns(events)
    is_there = progress.recipes[""].workspace == "project"
    return Path(progress.context["_project"]) if is_there else None


def _resumption(
    events: Sequence[Event],
    team: TeamSpec | None,
    agent: str,
    recipe: str | os.PathLike[str] | Recipe | None,
    context: Mapping[str, Any] | None,
    from_step: str,
) -> Resumption:
    """Return what a resume keeps; refuse arguments that are of no use for the turn."""
    given = context or {}
    useless = {"--set": context, "--from": from_step, "--recipe": recipe}
    if not started_of(events).recipe and (named := [key for key in useless if useless[key]]):
        raise UserError(f"The turn ran no recipe: leave out {named[0]}.")
    if agent:
        _check_agent(agent, events)
    changed = None
    if recipe is not None and team is not None:
        from nb_agents.launch.recipes import fold_turns, read_recipe

        changed = read_recipe(recipe, {**fold_turns(events).context, **given}, team)
    return what_resumes(events, (agent,) if agent else (), team, changed, given, from_step)


def _agents(events: Sequence[Event]) -> list[str]:
    started = [e for e in events if isinstance(e, TurnStarted)]
    return [a.id for a in started[-1].agents] if started else []


def _check_agent(agent: str, events: Sequence[Event]) -> None:
    """Raise `UserError` unless an agent failed or was stopped, so that it can take part again."""
    if started_of(events).recipe:
        raise UserError(f"The turn ran a recipe, which has no agent {agent!r} to resume alone.")
    known = _agents(events)
    if agent not in known:
        raise UserError(f"The turn has no agent {agent!r} to resume. It has: {', '.join(known)}.")
    past = replay(known, events)
    if agent not in past.state.out and agent not in past.failed:
        raise UserError(
            f"Agent {agent!r} was not stopped alone, nor has it failed: there is nothing to resume "
            "of it by itself."
        )


class ResumedTeam(NamedTuple):
    """The team of a resume, the path of its file or "", and notices for the user."""

    spec: TeamSpec
    path: str = ""
    notices: tuple[str, ...] = ()


def _team(config: str | os.PathLike[str] | TeamSpec | None, events: Sequence[Event]) -> ResumedTeam:
    """Return the team of a resume: the turn's agents from the given config, else from the turn."""
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
            "The team of this turn can't be made from its journal: a model was made in Python, or "
            "a base_url has a password. Give the team again: --config FILE, or config=."
        )
    changed = f"{started.config} is not that team any more; it goes on as the journal has it."
    stored = stored_team(started)
    if stored is None:
        raise UserError(
            "The team of this turn can't be read from its journal. Give the team again: "
            "--config FILE, or config=."
        )
    spec = _same_agents(stored, started)
    return ResumedTeam(spec, started.config, (changed,) if is_there else ())


def _same_agents(spec: TeamSpec, started: TurnStarted) -> TeamSpec:
    spec = spec.without(_skipped(spec, started))
    if started.recipe:
        return spec
    wanted = [a.id for a in started.agents]
    same = spec.without({a.id for a in spec.agents} - {*wanted})
    if [a.id for a in same.agents] != wanted:
        raise ConfigError(
            f"The turn's agents are {', '.join(wanted)}; the team has "
            f"{', '.join(a.id for a in spec.agents)}. Resume it with its own, or use --continue."
        )
    return same


def _skipped(spec: TeamSpec, started: TurnStarted) -> set[str]:
    """Return the agents that can't run here and that the turn was started without."""
    stored = started.team or {}
    everyone = [*stored.get("agents", ()), *stored.get("callable_agents", ())]
    known = {a.id for a in started.agents} | {a.get("id") for a in everyone}
    return {each.agent for each in spec.unsupported} - known
