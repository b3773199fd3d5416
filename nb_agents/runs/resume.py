"""Resuming an incomplete turn exactly where it stopped.

The old turn's journal is folded into the state of its agents (`nb_agents.runs.resumption`), from
which the new turn continues. No finished model or tool call is repeated, and the calls that are
repeated are announced first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.agents.replay import replay
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, RecipeError, SessionBusyError, UserError
from nb_agents.events import Event, TurnStarted
from nb_agents.masking import safe_errors
from nb_agents.models.fit import check_fit
from nb_agents.models.providers import check_team, load
from nb_agents.options import RunOptions
from nb_agents.runs.detach import begin_detached, is_detached
from nb_agents.runs.live_runs import (
    config_path,
    launch,
    owner,
    owner_of,
    remember,
    timeout_of,
    wait_until_saved,
)
from nb_agents.runs.reader import TurnReader
from nb_agents.runs.resumption import Preview, started_of, stored_team, what_resumes
from nb_agents.runs.run import Run
from nb_agents.runs.trust import calls_again, trusted_mark, would_run
from nb_agents.runs.turn_spec import (
    Resumed,
    TurnSpec,
    cancel_policy,
    checked_functions,
    mask_for,
    project_place,
    writable_places,
)
from nb_agents.session import layout
from nb_agents.session.copying import copy_workspaces, not_copied
from nb_agents.session.history import PastTurn, Session, load_session, past_events
from nb_agents.session.layout import TurnPaths, find_task, restore_workspaces, turns_of
from nb_agents.session.lookup import find_session, origin_here, with_task
from nb_agents.view.timeline import TimelineFold

if TYPE_CHECKING:
    from nb_agents.agents.replay import Past
    from nb_agents.config.recipe import Recipe
    from nb_agents.runs.recipes import RecipeResume

__all__ = ["Preview", "attach", "begin_elsewhere", "preview", "resume", "would_resume"]


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
    turn, _ = _find(session, session_root, agent, from_step)
    events = turn.events
    try:
        team = _team(config, events).spec
    except UserError:
        if config is not None or recipe is not None:
            raise
        team = None  # models created in Python are needed for a resume, but not for its preview
    given = _given(context, events, from_step)
    changed = _changed_recipe(recipe, events, team, given)
    again = _named(agent, events)
    return what_resumes(events, again, team, changed, given, from_step).preview


@safe_errors
def resume(
    session: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    agent: str = "",
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    from_step: str = "",
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Run:
    """Resume the incomplete last turn of a session, with the same task and agents.

    Agents that failed are called again; those that were stopped alone stay out.

    Args:
        session: The session's id; "" means the last one of this notebook, else of a
            terminal.
        config: The team; by default that of the turn's team file, else the one in its journal.
        agent: Id of an agent that failed or was stopped alone and is to take part again; then the
            turn may also be complete. Existing answers and votes are kept, and the vote is decided
            again with the agent's answer.
        recipe: A recipe that replaces the turn's; finished steps are kept.
        context: Values that are added to the recipe's context or replace values there, or the
            output of a step that has begun; finished steps are kept.
        from_step: Id of the recipe's step that runs again, with all that comes after it; then the
            turn may also be complete.
        tools: Functions that all agents may call, as the turn's own are not stored.
        options: The run's options; the timeout starts again.

    Returns:
        The run, which is the next turn of the session.

    Raises:
        UserError: There is nothing to resume, or the team is not the turn's.
        RecipeError: A value is not plain data.
        SessionBusyError: The session is running, or another run has resumed it in the meantime.
        NotYoursError: The session was made by another user or on another machine, and the options
            don't `trust` it.
        StorageError: The session can't be written.
    """
    options = options or RunOptions()
    if options.from_turn is not None:
        raise UserError("from_turn names a turn to go on from: it goes with start and continue_.")
    turn, past_session = _find(session, options.session_root, agent, from_step)
    events = turn.events
    again = _named(agent, events)
    team = _team(config, events)
    spec = team.spec
    given = _given(context, events, from_step)
    changed = _changed_recipe(recipe, events, spec, given)
    past, going, told = what_resumes(events, again, spec, changed, given, from_step)
    if going and going.stuck:
        raise RecipeError(going.stuck)
    mark = trusted_mark(past_session.path, options, lambda: _would_run(spec, past, going))
    if options.cluster is None:  # on a cluster, the worker's keys count
        check_team(spec)
    if is_detached(options, spec):
        return begin_elsewhere(
            "resume",
            spec,
            options,
            tools,
            project=_project_of(events) if options.cluster is not None else None,
            session=past_session.path.name,
            config=config,
            agent=agent,
            recipe=recipe,
            context=context,
            from_step=from_step,
            mark=mark,
        )
    load({agent.backend.type for agent in spec.everyone})
    fit = check_fit(spec)
    functions = checked_functions(tools)
    before = past_session.before(turn.paths.number)
    timeout_s = timeout_of(options.timeout_s, spec, is_recipe=going is not None)
    session_told = f"Session: {with_task(past_session.path, turn.view.task)}"
    notices = (str(told), session_told, *team.notices, *fit, *(going.notices if going else ()))
    mask = mask_for(spec)

    before_it = [e.resumes for e in events if isinstance(e, TurnStarted) and e.resumes]
    task = find_task(past_session.path, [turn.paths.number, *before_it])

    def make(paths: TurnPaths) -> TurnSpec:
        if task is not None and paths.task == task:
            left_out = restore_workspaces(task, turn.paths)
        else:
            left_out = copy_workspaces(turn.paths.workspaces, paths.live_workspaces)
        if going is not None:
            from nb_agents.runs.recipes import keep_recipe

            keep_recipe(paths, going.recipe, mask, turn.view.recipe)
        return TurnSpec(
            task=turn.view.task,
            team=spec,
            paths=paths,
            mark=mark,
            history=before.messages,
            context=(*spec.readable_paths, *before.context_paths),
            writable=() if going else writable_places(spec, paths.root),
            project=going and project_place(going.recipe, spec, going.progress.context, paths.root),
            timeout_s=timeout_s,
            notices=(*notices, *not_copied(left_out)),
            owner=owner(),
            origin=origin_here(paths.root),
            config=team.path,
            resumed=Resumed(
                turn.paths.number,
                past,
                turn.view,
                TimelineFold(events),
                going.progress if going else None,
                again,
                going.revised if going else {},
            ),
            recipe=going.recipe if going else None,
            given=going.progress.context if going else {},
            functions=functions,
            options=options,
            mask=mask,
        )

    return launch(past_session, make, resume, task)


def _would_run(team: TeamSpec, past: Past, going: RecipeResume | None) -> tuple[str, ...]:
    return would_run(team, going.recipes if going else (), calls_again(past))


def would_resume(session: Path, team: TeamSpec) -> tuple[str, ...]:
    """Return what a resume of a session with a team would run; nothing where there is none."""
    begun = [turn for turn in turns_of(session) if turn.has_begun]
    try:
        past, going, _ = what_resumes(past_events(begun[-1]), (), team)
    except UserError:
        return ()
    return _would_run(team, past, going)


def begin_elsewhere(
    what: str,
    team: TeamSpec,
    options: RunOptions,
    tools: Sequence[Callable[..., Any]],
    **arguments: Any,
) -> Run:
    """Start or resume a run in another process and return its handle; see `begin_detached`."""
    begun = begin_detached(what, team, options, tools, **arguments)
    grace_s = cancel_policy(team, options).grace_timeout_s
    return remember(attach(begun.path, begun.where, options, tools, begun.restart, grace_s))


def attach(
    path: str | os.PathLike[str],
    where: str = "another process",
    options: RunOptions | None = None,
    functions: Sequence[Callable[..., Any]] = (),
    restart: Callable[[], object] | None = None,
    grace_s: float | None = None,
) -> Run:
    """Return a handle of a turn that another process runs, or that has ended.

    Args:
        path: The turn's directory.
        where: A description of the process.
        options: The run's options, if known.
        functions: The functions of this process that the run calls.
        restart: Ends the process that runs the turn, if it does not answer a stop.
        grace_s: The grace time of a graceful stop, in seconds; None means no limit.

    Raises:
        UserError: The directory is not a turn's.
    """
    paths = TurnPaths(Path(path).absolute())
    if not (os.path.isfile(paths.journal) or os.path.isfile(paths.metadata)):
        raise UserError(
            f"{paths.path} is not a turn: it has no {paths.journal.name}. Give its turn_N."
        )
    name = f"{paths.session}/{paths.number}"
    run = Run(name, TurnReader(paths, restart=restart, grace_s=grace_s), paths, resume, where=where)
    run.options = options or run.options
    run.functions = tuple(functions)
    return run


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


def _project_of(events: Sequence[Event]) -> Path | None:
    """Return the user's directory that a turn's recipe works in, if any."""
    if not started_of(events).recipe:
        return None
    from nb_agents.runs.recipes import fold_turns

    progress = fold_turns(events)
    is_there = progress.recipes[""].workspace == "project"
    return Path(progress.context["_project"]) if is_there else None


def _given(
    context: Mapping[str, Any] | None, events: Sequence[Event], from_step: str
) -> Mapping[str, Any]:
    """Return the values to add to a recipe's context; refuse what a team's turn has no use for."""
    if (context or from_step) and not started_of(events).recipe:
        raise UserError(f"The turn ran no recipe: leave out {'--set' if context else '--from'}.")
    return context or {}


def _changed_recipe(
    changed: str | os.PathLike[str] | Recipe | None,
    events: Sequence[Event],
    team: TeamSpec | None,
    given: Mapping[str, Any],
) -> Recipe | None:
    """Load the recipe that replaces the turn's, if any."""
    if changed is None or team is None:
        return None
    if not started_of(events).recipe:
        raise UserError("The turn ran no recipe: leave out --recipe.")
    from nb_agents.runs.recipes import read_recipe, started_values

    return read_recipe(changed, {**started_values(events), **given}, team)


def _agents(events: Sequence[Event]) -> list[str]:
    started = [e for e in events if isinstance(e, TurnStarted)]
    return [a.id for a in started[-1].agents] if started else []


def _named(agent: str, events: Sequence[Event]) -> tuple[str, ...]:
    """Return the agent to take part again, if any, after checking that it failed or was stopped."""
    if not agent:
        return ()
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
    return (agent,)


class _Team(NamedTuple):
    """The team of a resume, the path of its file or "", and notices for the user."""

    spec: TeamSpec
    path: str = ""
    notices: tuple[str, ...] = ()


def _team(config: str | os.PathLike[str] | TeamSpec | None, events: Sequence[Event]) -> _Team:
    """Return the team of a resume: the turn's agents from the given config, else from the turn."""
    started = started_of(events)
    if isinstance(config, TeamSpec):
        return _Team(_same_agents(config, started))
    if config is not None:
        return _Team(_same_agents(TeamSpec.from_file(config), started), config_path(config))
    is_there = bool(started.config) and Path(started.config).is_file()
    if is_there:
        try:
            spec = _same_agents(TeamSpec.from_file(started.config), started)
            return _Team(spec, started.config)
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
    return _Team(spec, started.config, (changed,) if is_there else ())


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
