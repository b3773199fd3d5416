"""All runs of this process: start them, find them, stop them. Every door ends here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nb_agents.cancel import StopResult, StopSource
from nb_agents.config.team import TeamSpec
from nb_agents.errors import (
    SessionBusyError,
    StorageError,
    TaskError,
    UnknownRunError,
    UnknownSessionError,
    UserError,
)
from nb_agents.masking import safe_errors
from nb_agents.models.fit import check_fit
from nb_agents.models.providers import check_team, load
from nb_agents.options import RunOptions
from nb_agents.runs.detach import is_detached
from nb_agents.runs.live_runs import (
    begun_runs,
    config_path,
    launch,
    live_runs,
    owner,
    owner_of,
    timeout_of,
    wait_until_saved,
)
from nb_agents.runs.live_turns import live_turns
from nb_agents.runs.loop import at_shutdown
from nb_agents.runs.resume import attach, begin_elsewhere, resume
from nb_agents.runs.run import Run
from nb_agents.runs.team_report import skipped
from nb_agents.runs.turn_spec import (
    TurnSpec,
    checked_functions,
    mask_for,
    project_place,
    writable_places,
)
from nb_agents.session import layout
from nb_agents.session.copying import not_copied
from nb_agents.session.history import Session, load_session
from nb_agents.session.layout import TurnPaths
from nb_agents.session.manage import fork_session
from nb_agents.unicode import well_formed

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

__all__ = [
    "Group",
    "attach",
    "demo_team",
    "find_group",
    "find_known",
    "find_run",
    "groups",
    "join",
    "live_runs",
    "press",
    "runs",
    "start",
    "stop",
    "stop_all",
    "team_for",
]

SHUTDOWN_S = 2.0
"""ipykernel gets SIGTERM 2.5 s after a shutdown request. Source: jupyter_client manager.py."""

SHUTDOWN = "the kernel or process is shutting down"


class Group(Protocol):
    """Runs that begin and end as one, such as a sweep: who stops it lets no further one begin."""

    path: Path
    """Its directory, which those of its runs are below."""
    began_at: float
    """When it began, in Unix seconds."""

    @property
    def name(self) -> str:
        """Its name among groups and runs."""
        ...

    def stop(self, now: bool, *, reason: str, source: StopSource) -> StopResult:
        """Stop all of it; must not wait."""
        ...

    def press(self) -> None:
        """Take one interrupt; must not wait."""
        ...

    def hold(self, is_paused: bool) -> None:
        """Let all of it hold still, or go on; must not wait."""
        ...


_groups: dict[str, Group] = {}

# The handles on live runs of other processes, so that asking twice gives the same one.
_elsewhere: dict[Path, Run] = {}

DEMO_NOTICE = (
    "Demo model: offline, free, nobody's key is used. For real models give --config team.yaml "
    "(see the README)."
)


@safe_errors
def start(
    task: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    session: str | None = None,
    continue_: bool = False,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Run:
    """Start a team on a task, or on a recipe, in the background.

    Args:
        task: What is asked; a recipe asks for itself.
        config: A team file, or a TeamSpec, such as ``TeamSpec.from_model("openai:gpt-5-mini")``;
            by default three demo agents that need no key.
        session: The session's id: goes on in it when it exists, else begins it. By default a new
            session of its own, or with ``continue_`` the one used last.
        continue_: Whether to take the next turn of a session, which must exist.
        recipe: A recipe file, or a Recipe, for the agents to work through.
        context: The values that the recipe starts with.
        tools: Functions that all agents may call; see `nb_agents.tool`.
        options: Time limit, retries, stop, approvals, callbacks, session root.

    Returns:
        The run, at once. Its turn is on disk already, marked incomplete.

    Raises:
        TaskError: The task is empty, there is a recipe besides, or values are given without one.
        RecipeError: The recipe needs a value that is not given.
        ConfigError: The team can't be used.
        MissingKeyError: A provider's key is not set.
        UnknownSessionError: There is no such session to continue.
        SessionBusyError: The session is being run already, or got another turn meanwhile.
        StorageError: The session root can't be written.

    Example:
        run = nb_agents.start("Compare three ways to cache embeddings")
        run.stop(reason="wrong path")
    """
    task, options = _task(task, recipe), options or RunOptions()
    _check_arguments(config, context, recipe, options)
    spec, notices = team_for(config, options)
    if is_detached(options, spec):
        return begin_elsewhere(
            "start",
            spec,
            options,
            tools,
            project=_project_of(recipe) if options.cluster is not None else None,
            task=task,
            config=config,
            session=session,
            continue_=continue_,
            recipe=recipe,
            context=context,
        )
    functions = checked_functions(tools)
    script = _script(recipe, context or {}, spec)
    read, given, readable = script.recipe, script.given, spec.readable_paths
    timeout_s = timeout_of(options.timeout_s, spec, is_recipe=read is not None)
    load({agent.backend.type for agent in spec.everyone})
    notices += check_fit(spec)
    past, left_out = _open_session(options, session, continue_)
    mask = mask_for(spec)

    def make(paths: TurnPaths) -> TurnSpec:
        if read is not None:
            from nb_agents.runs.recipes import keep_recipe

            keep_recipe(paths, read, mask)
        elif spec.orchestrator.coordination.enable_memory_filesystem_mode:
            past.copy_memories(paths, [agent.id for agent in spec.agents])
        return TurnSpec(
            task=script.title or task,
            team=spec,
            paths=paths,
            history=past.messages,
            context=(*readable, *past.context_paths),
            writable=() if read else writable_places(spec, paths.root),
            project=project_place(read, spec, given, paths.root) if read else None,
            timeout_s=timeout_s,
            notices=(*notices, *script.notices, *past.restored(), *left_out),
            owner=owner(),
            config=config_path(config),
            recipe=read,
            given=given,
            functions=functions,
            options=replace(options, from_turn=None),
            mask=mask,
        )

    return launch(past, make, resume)


def runs() -> tuple[Run, ...]:
    """Return the runs of this process, oldest first, and then the live ones of other processes.

    `Run.where` tells where one of another process lives.
    """
    begun = {run.path: run for run in begun_runs()}
    others = {turn.paths.path: turn for turn in live_turns() if turn.paths.path not in begun}
    for gone in _elsewhere.keys() - others.keys():
        del _elsewhere[gone]
    for path, turn in others.items():
        if path not in _elsewhere:
            _elsewhere[path] = attach(path, turn.where)
    return (*begun.values(), *_elsewhere.values())


def groups() -> tuple[Group, ...]:
    """The live groups of this process, oldest first."""
    return tuple(_groups.values())


def find_group(name: str = "") -> Group | None:
    """Find a live group of this process.

    Args:
        name: Its name; "" means the one that began last, if no run of its own did later.

    Returns:
        The group; None when a run is meant.
    """
    if name:
        return _groups.get(name)
    latest = max(groups(), key=lambda group: group.began_at, default=None)
    if latest is None:
        return None
    alone = (run for run in begun_runs() if not _is_in_group(run))
    is_later = any(run.view.started_at > latest.began_at for run in alone if not run.view.is_over)
    return None if is_later else latest


def press() -> bool:
    """Take one interrupt for all that lives here; must not wait, for signal handlers.

    A run of a group gets it through the group alone: it would be taken for a second one.

    Returns:
        Whether anything lives here.
    """
    alone = (run for run in live_runs() if not _is_in_group(run))
    pressed: list[Group | Run] = [*groups(), *alone]
    for each in pressed:
        each.press()
    return bool(pressed)


def _is_in_group(run: Run) -> bool:
    return any(group.path in run.path.parents for group in groups())


def join(group: Group) -> Callable[[], None]:
    """Let every door of this process reach a group.

    Args:
        group: What has begun.

    Returns:
        Ends that.
    """
    _groups[group.name] = group

    def leave() -> None:
        if _groups.get(group.name) is group:
            del _groups[group.name]

    return leave


def find_run(name: str = "") -> Run:
    """Find a run of this process, or a live one of another.

    Args:
        name: Its id, its session's id, or "session/turn"; "" means the latest live one here, else
            the only one that lives elsewhere, else the latest that this process began and is over.

    Returns:
        The run.

    Raises:
        UnknownRunError: There is none.
    """
    if not name and (live := live_runs()):
        return live[-1]
    known = runs()
    elsewhere = [run for run in known if run.where and not run.is_over]
    if not name and len(elsewhere) == 1:
        return elsewhere[0]
    if not name and (over := [run for run in begun_runs() if run.is_over]):
        return over[-1]
    if not name and elsewhere:
        raise UserError(f"Several runs are live: {', '.join(r.id for r in elsewhere)}. Name one.")
    for run in reversed(known):
        if name in (run.id, run.session, f"{run.session}/{run.turn}"):
            return run
    raise UnknownRunError(name, tuple(run.id for run in known))


def find_known(name: str = "", root: str | os.PathLike[str] | None = None) -> Run:
    """Find a run, or else a turn on disk that nobody works on any more.

    Args:
        name: As for `find_run`; "" finds runs alone.
        root: Where sessions are.

    Raises:
        UnknownRunError: There is neither.
    """
    try:
        return find_run(name)
    except UnknownRunError:
        if not name:
            raise
        with suppress(UnknownSessionError):
            return attach(layout.find_turn(layout.session_root(root), name).path, "disk")
        raise


def stop(
    run_id: str,
    now: bool,
    source: StopSource,
    reason: str = "",
    agent: str | None = None,
) -> StopResult:
    """Stop a run by its id; what every door calls.

    Args:
        run_id: As for `find_run`, or a group's name.
        now: Whether it is immediate.
        source: The door.
        reason: Why.
        agent: Id of the one agent to stop, or None.

    Returns:
        Whether this changed anything, and where the run stands: an unknown run is told apart from
        a finished one and from one that is stopping already.
    """
    if (group := _groups.get(run_id)) is not None:
        return group.stop(now, reason=reason, source=source)
    try:
        run = find_run(run_id)
    except UnknownRunError:
        return StopResult(False, "unknown")
    return run.stop(now, agent, reason, source=source)


class _Script(NamedTuple):
    """The recipe that a run works through, if it does.

    Attributes:
        recipe: It, with the values that are given put into its context.
        given: The values that it starts with.
        title: What the turn is called.
        notices: What a person should know of it.
    """

    recipe: Recipe | None = None
    given: dict[str, Any] = {}
    title: str = ""
    notices: tuple[str, ...] = ()


def _script(
    recipe: str | os.PathLike[str] | Recipe | None, context: Mapping[str, Any], team: TeamSpec
) -> _Script:
    if recipe is None:
        return _Script()
    from nb_agents.runs.recipes import given_values, read_recipe, title, told_beforehand, unread

    given = given_values(context)
    read = read_recipe(recipe, given, team)
    told = (*told_beforehand(read, team, given), *unread(read, given))
    return _Script(read, given, title(read), told)


def _task(task: str, recipe: object) -> str:
    if not isinstance(task, str):
        raise TaskError(f"The task is of type {type(task).__name__!r}. Give a string.")
    task = well_formed(task.strip())
    if task and recipe is not None:
        raise TaskError("A task and a recipe are both given. A recipe asks for itself.")
    if not task and recipe is None:
        raise TaskError(
            "The task is empty. Write what the agents are to do; in a cell, below its first line."
        )
    return task


def _check_arguments(config: object, context: object, recipe: object, options: object) -> None:
    if context and recipe is None:
        raise TaskError("Values (--set, `context=`) are given without a recipe. Add --recipe FILE.")
    if not isinstance(config, str | os.PathLike | TeamSpec | None):
        kind = type(config).__name__
        raise UserError(f"config is of type {kind!r}. Give the path of a team file, or a TeamSpec.")
    if not isinstance(options, RunOptions):
        kind = type(options).__name__
        raise UserError(f"options is of type {kind!r}. Give RunOptions, as RunOptions(timeout=60).")


def _skipping(spec: TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    """Leave out the agents that can't run here, and say which."""
    gone = spec.unsupported
    if not gone:
        return spec, ()
    return spec.without_unsupported(), (f"Skipped, not supported here: {skipped(gone)}",)


def _project_of(recipe: str | os.PathLike[str] | Recipe | None) -> Path | None:
    """Return the person's directory that a recipe works in, if it does."""
    if isinstance(recipe, str | os.PathLike):
        from nb_agents.config.recipe import Recipe

        recipe = Recipe.from_file(recipe)
    return Path.cwd() if recipe is not None and recipe.workspace == "project" else None


def team_for(
    config: str | os.PathLike[str] | TeamSpec | None, options: RunOptions
) -> tuple[TeamSpec, tuple[str, ...]]:
    """Return the team that can start, and what a person should know of it.

    Args:
        config: As for `start`.
        options: What it may read besides, whether agents that can't run here are left out, and
            whether it is to start here: on a cluster, the workers' keys are what counts.

    Raises:
        ConfigError: The team can't be used.
        MissingKeyError: A provider's key is not set.
    """
    spec, notices = (demo_team(), (DEMO_NOTICE,)) if config is None else _own_team(config)
    spec = spec.reading(options.context_paths)
    if options.skip_unsupported:
        spec, skipped = _skipping(spec)
        notices += skipped
    if options.cluster is None:
        check_team(spec)
    return spec, notices


def demo_team() -> TeamSpec:
    """Make the team of those who name none."""
    agents = [{"id": name, "backend": {"type": "demo"}} for name in ("ada", "ben", "cleo")]
    return TeamSpec.model_validate({"agents": agents})


def _own_team(config: str | os.PathLike[str] | TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    spec = config if isinstance(config, TeamSpec) else TeamSpec.from_file(config)
    return spec, spec.notices


def _open_session(
    options: RunOptions, session: str | None, continue_: bool
) -> tuple[Session, tuple[str, ...]]:
    """Find or make the session that a run goes into; say what could not be taken along."""
    where, turn, now = layout.session_root(options.session_root), options.from_turn, datetime.now()
    if turn is not None and not continue_:
        raise UserError("--from names a turn to go on from: it goes with --continue.")
    if continue_:
        path = layout.find_session(where, session or "")
        if turn is not None:
            fork = fork_session(path, turn, now)
            return load_session(fork.path), not_copied(fork.left_out)
    elif session:
        path = layout.named_session(where, session)
    else:
        path = layout.new_session(where, now)
    wait_until_saved(path)
    found = load_session(path)
    if any(turn.is_live for turn in found.turns[-1:]):
        raise SessionBusyError(path.name, owner_of(path))
    return found, ()


def stop_all() -> None:
    """Stop every run at once, for good: the process is ending. Waits until all is saved.

    Returns after `SHUTDOWN_S` at the latest; a run's journal is on disk in any case.
    """
    for group in groups():
        group.stop(True, reason=SHUTDOWN, source="parent")
    live = live_runs()
    for run in live:
        run.stop(True, reason=SHUTDOWN, source="parent")
    deadline = time.monotonic() + SHUTDOWN_S
    for run in live:
        with suppress(TimeoutError):
            run.wait(max(0.0, deadline - time.monotonic()), raise_on_stop=False)
    for run in begun_runs():
        if run.is_unsaved:  # there may be room on the disk by now
            with suppress(TimeoutError, StorageError):
                run.save(max(0.0, deadline - time.monotonic()))


at_shutdown(stop_all)
