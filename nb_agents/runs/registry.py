"""Starting, finding and stopping the runs of this process, for all user interfaces."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nb_agents.cancel import StopResult, StopSource
from nb_agents.config.team import TeamSpec
from nb_agents.errors import (
    SessionBusyError,
    StorageError,
    TaskError,
    UnknownRunError,
    UserError,
)
from nb_agents.masking import safe_errors
from nb_agents.models.fit import check_fit
from nb_agents.models.providers import check_team, load_or_leave
from nb_agents.options import RunOptions
from nb_agents.runs.detach import is_detached
from nb_agents.runs.finding import find_run
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
from nb_agents.runs.loop import at_shutdown, interrupt_tries
from nb_agents.runs.resume import begin_elsewhere, resume
from nb_agents.runs.run import Run
from nb_agents.runs.team_report import skipped
from nb_agents.runs.trust import trusted_mark, would_run
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
from nb_agents.session.lookup import find_session, origin_here, with_task
from nb_agents.session.manage import fork_session
from nb_agents.unicode import well_formed

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

__all__ = [
    "Group",
    "demo_team",
    "find_group",
    "group_at",
    "groups",
    "interrupts_press_new",
    "join",
    "live_runs",
    "press",
    "start",
    "stop",
    "stop_all",
    "team_for",
]

SHUTDOWN_S = 2.0
"""ipykernel gets SIGTERM 2.5 s after a shutdown request. Source: jupyter_client manager.py."""

SHUTDOWN = "the kernel or process is shutting down"


class Group(Protocol):
    """A group of runs that is stopped as a whole, such as a sweep."""

    path: Path
    """The group's directory, which contains those of its runs."""
    began_at: float
    """When the group started, in Unix seconds."""

    @property
    def name(self) -> str:
        """The group's name, unique in its session root."""
        ...

    def stop(self, now: bool, *, reason: str, source: StopSource) -> StopResult:
        """Stop the group; must not block."""
        ...

    def press(self) -> None:
        """Handle an interrupt; must not block."""
        ...


_groups: dict[Path, Group] = {}

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
    """Start a team on a task or a recipe, in the background.

    Args:
        task: The task; leave it empty for a recipe.
        config: A team file, or a TeamSpec, such as ``TeamSpec.from_model("openai:gpt-5-mini")``;
            by default three demo agents that need no key.
        session: The session's id: continues it when it exists, else creates it. By default a new
            session, or with ``continue_`` the last one of this notebook, else of a terminal.
        continue_: Whether to add a turn to a session, which must exist.
        recipe: A recipe file, or a Recipe, for the agents to run.
        context: The values that the recipe starts with.
        tools: Functions that all agents may call; see `nb_agents.tool`.
        options: Time limit, retries, stop, approvals, callbacks, session root.

    Returns:
        The run, without waiting for it. Its turn is on disk already, marked incomplete.

    Raises:
        TaskError: The task is empty or given with a recipe, or values are given without a recipe.
        RecipeError: A value that the recipe requires is missing.
        ConfigError: The team is not valid.
        MissingKeyError: A provider's key is not set.
        UnknownSessionError: There is no such session to continue.
        NotYoursError: The session was made by another user or on another machine, and the options
            don't `trust` it.
        SessionBusyError: The session is already running, or got another turn in the meantime.
        StorageError: The session root can't be written.

    Example:
        run = nb_agents.start("Compare three ways to cache embeddings")
        run.stop(reason="wrong path")
    """
    task, options = _task(task, recipe), options or RunOptions()
    _check_arguments(config, context, recipe, options)
    spec, notices = team_for(config, options)
    found = _find_session(options, session, continue_)
    mark = trusted_mark(found, options, lambda: would_run(spec, _recipes(recipe)))
    if is_detached(options, spec):
        return begin_elsewhere(
            "start",
            spec,
            options,
            tools,
            project=_project_of(recipe) if options.cluster is not None else None,
            task=task,
            config=config,
            session=found.name if found else session,
            continue_=continue_,
            recipe=recipe,
            context=context,
            mark=mark,
        )
    functions = checked_functions(tools)
    loaded = _load_recipe(recipe, context or {}, spec)
    read, given, readable = loaded.recipe, loaded.given, spec.readable_paths
    timeout_s = timeout_of(options.timeout_s, spec, is_recipe=read is not None)
    load_or_leave({agent.backend.type for agent in spec.everyone})
    notices += check_fit(spec)
    past, left_out = _open_session(options, found)
    told = [f"Session: {with_task(past.path, turn.view.task)}" for turn in past.turns[-1:]]
    mask = mask_for(spec)

    def make(paths: TurnPaths) -> TurnSpec:
        if read is not None:
            from nb_agents.runs.recipes import keep_recipe

            keep_recipe(paths, read, mask)
        elif spec.orchestrator.coordination.enable_memory_filesystem_mode:
            past.copy_memories(paths, [agent.id for agent in spec.agents])
        return TurnSpec(
            task=loaded.title or task,
            team=spec,
            paths=paths,
            mark=mark,
            history=past.messages,
            context=(*readable, *past.context_paths),
            writable=() if read else writable_places(spec, paths.root),
            project=project_place(read, spec, given, paths.root) if read else None,
            timeout_s=timeout_s,
            notices=(*notices, *loaded.notices, *past.restored(), *told, *left_out),
            owner=owner(),
            origin=origin_here(paths.root),
            config=config_path(config),
            recipe=read,
            given=given,
            functions=functions,
            options=replace(options, from_turn=None),
            mask=mask,
        )

    return launch(past, make, resume)


def groups() -> tuple[Group, ...]:
    """Return the live groups of this process, oldest first."""
    return tuple(_groups.values())


def find_group(name: str = "", root: str | os.PathLike[str] | None = None) -> Group | None:
    """Return a live group of this process; None if there is none.

    Args:
        name: The group's name; "" means the one that started last, unless a single run started
            later.
        root: A session root that limits the search.

    Raises:
        UserError: There are several groups of that name.
    """
    here = [each for each in groups() if root is None or _is_same(each.path.parent, root)]
    if name:
        named = [each for each in here if each.name == name]
        if len(named) > 1:
            told = ", ".join(str(each.path.parent) for each in named)
            raise UserError(f"{name!r} names several sweeps, in {told}. Add --session-root DIR.")
        return named[0] if named else None
    latest = max(here, key=lambda group: group.began_at, default=None)
    if latest is None:
        return None
    later = (run for run in begun_runs() if run.began_at > latest.began_at and not run.is_over)
    return latest if all(map(_is_in_group, later)) else None


def group_at(path: Path) -> Group | None:
    """Return the live group of this process in a directory; None if there is none."""
    return next((each for each in groups() if _is_same(each.path, path)), None)


def _is_same(path: Path, other: str | os.PathLike[str]) -> bool:
    return path == other or os.path.realpath(path) == os.path.realpath(other)


def press(but: Collection[Group | Run] = ()) -> bool:
    """Pass an interrupt to live runs and groups; return whether there are any.

    Does not block, for signal handlers. A run in a group gets the interrupt from the group only, as
    a second one would stop it immediately.

    Args:
        but: Those that don't get it.
    """
    pressed = [each for each in _stopped_alone() if each not in but]
    for each in pressed:
        each.press()
    return bool(pressed)


def interrupts_press_new() -> AbstractContextManager[None]:
    """Make an interrupt within the block one of the runs and groups that it has begun, if any."""
    return interrupt_tries(partial(press, but=_stopped_alone()))


def _stopped_alone() -> list[Group | Run]:
    return [*groups(), *(run for run in live_runs() if not _is_in_group(run))]


def _is_in_group(run: Run) -> bool:
    return any(group.path in run.path.parents for group in groups())


def join(group: Group) -> Callable[[], None]:
    """Register a group that has started; return a function that unregisters it."""
    _groups[group.path] = group

    def leave() -> None:
        if _groups.get(group.path) is group:
            del _groups[group.path]

    return leave


def stop(
    run_id: str,
    now: bool,
    source: StopSource,
    reason: str = "",
    agent: str | None = None,
) -> StopResult:
    """Stop a run or a group by its id, for all user interfaces.

    Args:
        run_id: As for `find_run`, or a group's name.
        now: Whether to stop it immediately.
        source: The interface that the request came from.
        reason: The reason, for the record.
        agent: Id of the one agent to stop, or None.

    Returns:
        Whether this changed anything, and the run's state; "unknown" if there is no such run.

    Raises:
        UserError: The run has no such agent, or there are several runs or groups of that name.
    """
    if run_id and (group := find_group(run_id)) is not None:
        return group.stop(now, reason=reason, source=source)
    try:
        run = find_run(run_id)
    except UnknownRunError:
        return StopResult(False, "unknown")
    return run.stop(now, agent, reason, source=source)


class _LoadedRecipe(NamedTuple):
    """The recipe of a run; all fields are empty for a run without one.

    Attributes:
        recipe: The recipe.
        given: The values that it starts with.
        title: The turn's title.
        notices: Notices for the user.
    """

    recipe: Recipe | None = None
    given: dict[str, Any] = {}
    title: str = ""
    notices: tuple[str, ...] = ()


def _recipes(recipe: str | os.PathLike[str] | Recipe | None) -> tuple[Recipe, ...]:
    """Read the recipe of a run, if any."""
    if isinstance(recipe, str | os.PathLike):
        from nb_agents.config.recipe import Recipe

        recipe = Recipe.from_file(recipe)
    return () if recipe is None else (recipe,)


def _load_recipe(
    recipe: str | os.PathLike[str] | Recipe | None, context: Mapping[str, Any], team: TeamSpec
) -> _LoadedRecipe:
    if recipe is None:
        return _LoadedRecipe()
    from nb_agents.runs.recipes import given_values, read_recipe, recipe_notices, title, unread

    given = given_values(context)
    read = read_recipe(recipe, given, team)
    told = (*recipe_notices(read, team, given), *unread(read, given))
    return _LoadedRecipe(read, given, title(read), told)


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
    """Return the team without the agents that can't run here, and a notice about those."""
    gone = spec.unsupported
    if not gone:
        return spec, ()
    return spec.without_unsupported(), (f"Skipped, not supported here: {skipped(gone)}",)


def _project_of(recipe: str | os.PathLike[str] | Recipe | None) -> Path | None:
    """Return the user's directory that a recipe works in, if any."""
    is_there = any(each.workspace == "project" for each in _recipes(recipe))
    return Path.cwd() if is_there else None


def team_for(
    config: str | os.PathLike[str] | TeamSpec | None, options: RunOptions
) -> tuple[TeamSpec, tuple[str, ...]]:
    """Return the team to start, and notices for the user.

    Args:
        config: As for `start`.
        options: The options. On a cluster, keys are not checked here, as the workers' keys count.

    Raises:
        ConfigError: The team is not valid.
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
    """Return the default team of demo agents."""
    agents = [{"id": name, "backend": {"type": "demo"}} for name in ("ada", "ben", "cleo")]
    return TeamSpec.model_validate({"agents": agents})


def _own_team(config: str | os.PathLike[str] | TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    spec = config if isinstance(config, TeamSpec) else TeamSpec.from_file(config)
    return spec, spec.notices


def _find_session(options: RunOptions, session: str | None, continue_: bool) -> Path | None:
    """Return the session that a run goes on with, made if it is named; None for a new one."""
    where = layout.session_root(options.session_root)
    if options.from_turn is not None and not continue_:
        raise UserError("--from names a turn to go on from: it goes with --continue.")
    if continue_:
        return find_session(where, session or "")
    return layout.named_session(where, session) if session else None


def _open_session(options: RunOptions, path: Path | None) -> tuple[Session, tuple[str, ...]]:
    """Load or create the session of a run; return it with notices on what could not be copied."""
    if path is None:
        where = layout.session_root(options.session_root)
        return Session(layout.new_session(where, datetime.now())), ()
    if options.from_turn is not None:
        fork = fork_session(path, options.from_turn, datetime.now())
        return load_session(fork.path), not_copied(fork.left_out)
    wait_until_saved(path)
    found = load_session(path)
    if any(turn.is_live for turn in found.turns[-1:]):
        raise SessionBusyError(path.name, owner_of(path))
    return found, ()


def stop_all() -> None:
    """Stop all runs immediately, as the process is ending, and wait until they are saved.

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
        if run.is_unsaved:  # the disk may have space now
            with suppress(TimeoutError, StorageError):
                run.save(max(0.0, deadline - time.monotonic()))


at_shutdown(stop_all)
