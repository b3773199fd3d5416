"""Exact resume: go on with an incomplete turn as if it had never been stopped.

The journal of the old turn is folded into where its agents were (`nb_agents.runs.resumption`); the
new turn's journal begins there. No model call and no tool call that finished runs again, and what
will is told before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.agents.replay import replay
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, SessionBusyError, UserError
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
from nb_agents.session.layout import TurnPaths, find_task, restore_workspaces

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

__all__ = ["Preview", "attach", "begin_elsewhere", "preview", "resume"]


def preview(
    session: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    agent: str = "",
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    session_root: str | os.PathLike[str] | None = None,
) -> Preview:
    """Say what `resume` would do with the same arguments, without doing it.

    Args:
        session: The session's id; "" means the one used last.
        config: The team.
        agent: Id of an agent that failed or was stopped alone and takes part again.
        recipe: Takes the place of the recipe that the turn has kept.
        context: Values that its recipe goes on with besides.
        session_root: Where sessions are.

    Returns:
        The preview.

    Raises:
        UserError: There is nothing to resume.
    """
    turn, _ = _find(session, session_root, agent)
    events = past_events(turn.paths)
    try:
        team = _team(config, events).spec
    except UserError:
        if config is not None or recipe is not None:
            raise
        team = None  # of models made in Python: needed to go on, and not to tell
    given = _given(context, events)
    changed = _changed_recipe(recipe, events, team, given)
    return what_resumes(events, _named(agent, events), team, changed, given).preview


@safe_errors
def resume(
    session: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    agent: str = "",
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Run:
    """Resume the incomplete last turn of a session: same task, same agents.

    Agents that failed are asked again; those that a person stopped alone stay out.

    Args:
        session: The session's id; "" means the one used last.
        config: The team; by default the turn's own file, else the team as the journal has it.
        agent: Id of an agent that failed or was stopped alone and takes part again; then the turn
            may be complete, too. Who has an answer or a vote keeps it; votes and a new answer
            decide once more.
        recipe: Takes the place of the recipe that the turn has kept: what finished stays as it is.
        context: Values that its recipe goes on with, besides those that it was started with or
            instead of them: what finished stays as it is.
        tools: Functions that all agents may call: those of the turn are not stored.
        options: How it goes; its time is counted anew.

    Returns:
        The run, as the next turn of the session.

    Raises:
        UserError: There is nothing to resume, or the team is another one.
        RecipeError: A value is no plain data.
        SessionBusyError: The session is being run, or another run has resumed it meanwhile.
        StorageError: The session can't be written.
    """
    options = options or RunOptions()
    if options.from_turn is not None:
        raise UserError("from_turn names a turn to go on from: it goes with start and continue_.")
    turn, past_session = _find(session, options.session_root, agent)
    events = past_events(turn.paths)
    again = _named(agent, events)
    team = _team(config, events)
    spec = team.spec
    if options.cluster is None:  # else the worker's keys are what counts
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
        )
    load({agent.backend.type for agent in spec.everyone})
    fit = check_fit(spec)
    functions = checked_functions(tools)
    given = _given(context, events)
    changed = _changed_recipe(recipe, events, spec, given)
    past, going, told = what_resumes(events, again, spec, changed, given)
    before = past_session.before(turn.paths.number)
    timeout_s = timeout_of(options.timeout_s, spec, is_recipe=going is not None)
    notices = (str(told), *team.notices, *fit, *(going.notices if going else ()))
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
            history=before.messages,
            context=(*spec.readable_paths, *before.context_paths),
            writable=() if going else writable_places(spec, paths.root),
            project=going and project_place(going.recipe, spec, going.progress.context, paths.root),
            timeout_s=timeout_s,
            notices=(*notices, *not_copied(left_out)),
            owner=owner(),
            config=team.path,
            resumed=Resumed(
                turn.paths.number, past, turn.view, going.progress if going else None, again
            ),
            recipe=going.recipe if going else None,
            given=going.progress.context if going else {},
            functions=functions,
            options=options,
            mask=mask,
        )

    return launch(past_session, make, resume, task)


def begin_elsewhere(
    what: str,
    team: TeamSpec,
    options: RunOptions,
    tools: Sequence[Callable[..., Any]],
    **arguments: Any,
) -> Run:
    """Start or resume a run in another process, and give the handle; see `begin_detached`."""
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
    """Give a handle on a turn that another process writes, or that is over.

    Args:
        path: The turn's directory.
        where: Where it lives, in words.
        options: How it goes, if that is known.
        functions: Those of this process that it calls.
        restart: Ends the process that writes it, when that does not hear a stop.
        grace_s: Seconds that a graceful stop has before that; None means for ever.

    Raises:
        UserError: There is no turn.
    """
    paths = TurnPaths(Path(path).absolute())
    if not (paths.journal.is_file() or paths.metadata.is_file()):
        raise UserError(
            f"{paths.path} is not a turn: it has no {paths.journal.name}. Give its turn_N."
        )
    name = f"{paths.session}/{paths.number}"
    run = Run(name, TurnReader(paths, restart=restart, grace_s=grace_s), paths, resume, where=where)
    run.options = options or run.options
    run.functions = tuple(functions)
    return run


def _find(
    session: str, root: str | os.PathLike[str] | None, agent: str = ""
) -> tuple[PastTurn, Session]:
    path = layout.find_session(layout.session_root(root), session)
    wait_until_saved(path)
    found = load_session(path)
    # One that has no first line was never begun: its process died while it was made ready.
    begun = [t for t in found.turns if os.path.exists(t.paths.journal) or t.is_live]
    last = (begun or found.turns)[-1]
    name = f"{found.path.name}/{last.paths.number}"
    if last.is_live and agent:
        raise UserError(
            f"Turn {name} still goes on, and an agent takes part again in the next one. Wait for "
            f"its end or stop it, then resume {agent!r}."
        )
    if last.is_live:
        raise SessionBusyError(found.path.name, owner_of(found.path))
    if last.is_complete and not agent:
        raise UserError(
            f"Turn {name} is complete: there is nothing to resume. "
            f"`%%agents --continue --session {found.path.name}` asks something new."
        )
    if not last.view.recipe and not _agents(past_events(last.paths)):
        raise UserError(
            f"Turn {name} has no journal, so that its calls are not known one by one. "
            f"`%%agents --continue --session {found.path.name}` goes on with what it holds."
        )
    return last, found


def _project_of(events: Sequence[Event]) -> Path | None:
    """Return the person's directory that a turn's recipe works in, if it does."""
    if not started_of(events).recipe:
        return None
    from nb_agents.runs.recipes import past

    progress = past(events)
    is_there = progress.recipes[""].workspace == "project"
    return Path(progress.context["_project"]) if is_there else None


def _given(context: Mapping[str, Any] | None, events: Sequence[Event]) -> Mapping[str, Any]:
    """Return the values that a recipe goes on with; refuse them for a team."""
    if context and not started_of(events).recipe:
        raise UserError("The turn ran no recipe: leave out --set.")
    return context or {}


def _changed_recipe(
    changed: str | os.PathLike[str] | Recipe | None,
    events: Sequence[Event],
    team: TeamSpec | None,
    given: Mapping[str, Any],
) -> Recipe | None:
    """Read the recipe that takes the place of the turn's own, if one does."""
    if changed is None or team is None:
        return None
    if not started_of(events).recipe:
        raise UserError("The turn ran no recipe: leave out --recipe.")
    from nb_agents.runs.recipes import given_to, read_recipe

    return read_recipe(changed, {**given_to(events), **given}, team)


def _agents(events: Sequence[Event]) -> list[str]:
    started = [e for e in events if isinstance(e, TurnStarted)]
    return [a.id for a in started[-1].agents] if started else []


def _named(agent: str, events: Sequence[Event]) -> tuple[str, ...]:
    """Name who takes part again; refuse one that neither failed nor was stopped alone."""
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
    """The team that goes on, the file that it is from or "", and what a person should know."""

    spec: TeamSpec
    path: str = ""
    notices: tuple[str, ...] = ()


def _team(config: str | os.PathLike[str] | TeamSpec | None, events: Sequence[Event]) -> _Team:
    """Find the team that goes on: the agents of the turn, as the person or the turn names them."""
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
    """Name those of a team that can't run here, and that the turn was started without."""
    stored = started.team or {}
    everyone = [*stored.get("agents", ()), *stored.get("callable_agents", ())]
    known = {a.id for a in started.agents} | {a.get("id") for a in everyone}
    return {each.agent for each in spec.unsupported} - known
