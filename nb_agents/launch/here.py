"""Beginning a run in this process: its turn is claimed and filled, and its handle created."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock

from nb_agents.config.spec import safe_name
from nb_agents.config.team import TeamSpec
from nb_agents.context import within
from nb_agents.disk.entry import RefusedError, join_names, printable_name
from nb_agents.errors import StorageError, UnknownSessionError, said_by
from nb_agents.launch.rewind_plan import files_read
from nb_agents.loop import ensure_loop, interrupts_held, submit
from nb_agents.options import RunOptions
from nb_agents.runs.hiding import open_debug_log
from nb_agents.runs.live_runs import owner_of, remember
from nb_agents.runs.live_turns import announce_here
from nb_agents.runs.run import Run
from nb_agents.runs.turn import TurnWriter
from nb_agents.runs.turn_spec import (
    Resumed,
    TurnSpec,
    project_place,
    writable_places,
)
from nb_agents.session import layout
from nb_agents.session.copying import copy_workspaces, not_copied
from nb_agents.session.history import Session
from nb_agents.session.layout import TurnPaths, restore_workspaces
from nb_agents.session.lookup import origin_here
from nb_agents.session.own_files import OwnChange, OwnFiles, OwnHistory
from nb_agents.session.own_rewind import plan_of, put_back, undo_moves, write_patches
from nb_agents.session.ownership import OwnerMark
from nb_agents.session.snapshots import SnapshotStore

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

_numbers = itertools.count(1)
_before_start: ContextVar[Callable[[Path, str], object]] = ContextVar(
    "nb_agents_before_start", default=lambda path, run_id: None
)


class Loaded(NamedTuple):
    """A request whose team and session are loaded; nothing is written yet.

    Attributes:
        team: The team.
        session: The session's id; None for a new one.
        mark: The session's mark.
        begin: Begins the run in this process.
        project: The user's directory that a recipe works in, if any; known for a cluster only.
    """

    team: TeamSpec
    session: str | None
    mark: OwnerMark
    begin: Callable[[], Run]
    project: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RunRequest(ABC):
    """The arguments of `nb_agents.start` or `nb_agents.resume`, for this process or another."""

    session: str | None
    config: str | os.PathLike[str] | TeamSpec | None
    recipe: str | os.PathLike[str] | Recipe | None
    context: Mapping[str, Any] | None
    tools: Sequence[Any]  # functions, also those that another process offers
    options: RunOptions

    @abstractmethod
    def load(self) -> Loaded:
        """Load what the run goes on with, and check it.

        Raises:
            UserError: An argument is not valid; see `nb_agents.start` and `nb_agents.resume`.
        """


class Job(NamedTuple):
    """A request that another process carries out, as that process gets it.

    Attributes:
        request: The request, of a run that begins in the process that loads it.
        mark: The session's mark.
        origin: The notebook or terminal of the requesting process.
        place: The working directory of that process.
    """

    request: RunRequest
    mark: OwnerMark
    origin: str
    place: Path


class Begun(NamedTuple):
    """A run that another process has started.

    Attributes:
        path: The turn's directory.
        where: A description of the process.
        restart: Restarts a worker that no longer responds; None for a process of its own.
    """

    path: Path
    where: str
    restart: Callable[[], object] | None = None


def asking_before_start(ask: Callable[[Path, str], object]) -> AbstractContextManager[None]:
    """Call a function with the turn's path and the run's id before a run starts in the block.

    Args:
        ask: May raise an error, and the run does not start; its turn is discarded.
    """
    return within(_before_start, ask)


def launch(spec: TurnSpec, session: Session) -> Run:
    """Claim the next turn of a session and start a run in it.

    An interrupt ends what is copied first, and other runs start meanwhile.

    Args:
        spec: The turn's spec, without what follows from its session.
        session: The session, as loaded.

    Raises:
        SessionBusyError: A turn of the session is live.
        SessionChangedError: The session has another turn since it was loaded.
        UnknownSessionError: The session was removed or renamed since then.
        StorageError: The directory can't be written.
    """
    ensure_loop()  # fails before anything is created
    path = session.path
    if not path.is_dir():  # claiming a turn would create it again, without its past
        raise UnknownSessionError(path.name, str(path.parent))
    task = spec.resumed.task if spec.resumed else None
    with ExitStack() as undo:
        with interrupts_held():
            paths, lock = layout.claim_turn(path, owner_of, task, session.last)
            undo.callback(layout.discard_turn, paths)
            undo.callback(lock.release)
        try:
            spec = _own_files_back(_filled(spec, session, paths), undo)
            # Hold interrupts until the run is in the list, where a stop can find it.
            with interrupts_held():
                run = _begin(f"r{next(_numbers)}", spec, lock, undo)
                undo.pop_all()
                return remember(run)
        except OSError as exc:
            raise StorageError(str(paths.path), said_by(exc)) from None


def _filled(spec: TurnSpec, session: Session, paths: TurnPaths) -> TurnSpec:
    """Write to a claimed turn what it goes on with, and return its spec."""
    team, recipe, resumed = spec.team, spec.recipe, spec.resumed
    past = session.before(resumed.turn) if resumed else session
    left_out = _copy_workspaces(resumed, paths) if resumed else ()
    if recipe is not None:
        from nb_agents.launch.recipes import keep_recipe

        keep_recipe(paths, recipe, spec.mask, resumed.view.recipe if resumed else "")
    elif resumed is None and team.orchestrator.coordination.enable_memory_filesystem_mode:
        session.copy_memories(paths, [agent.id for agent in team.agents])
    return replace(
        spec,
        paths=paths,
        history=past.messages,
        context=(*team.readable_paths, *past.context_paths),
        writable=() if recipe else writable_places(team, paths.root),
        project=project_place(recipe, team, spec.given, paths.root) if recipe else None,
        notices=(*spec.notices, *not_copied(left_out)),
        origin=origin_here(paths.root),
    )


def _own_files_back(spec: TurnSpec, undo: ExitStack) -> TurnSpec:
    """Put the person's own files back to what they were at the point of a rewind.

    It is the last thing before the turn begins, so that a kill leaves no turn without them.

    Args:
        spec: The spec of the filled turn.
        undo: Is given what a failure must undo.
    """
    resumed = spec.resumed
    if resumed is None or resumed.own == OwnHistory():
        return spec
    own, places, done = (
        OwnFiles(spec.paths.path.parent, spec.team.snapshot_bytes),
        spec.own_places,
        list[OwnChange](),
    )
    plan = plan_of(resumed.own, own, places)
    undo.callback(undo_moves, done, own, places)
    lines = write_patches(put_back(plan, own, places, done), own, spec.paths.path)
    moved = sorted([*done, *plan.there])
    groups = groupby(moved, attrgetter("place"))
    events = tuple(own.keep(place, [*changes], "") for place, changes in groups)
    names = join_names([printable_name(each.name) for each in done])
    notices = [f"Put back of your own files: {names}."] if done else []
    notices += [f"Not put back: {join_names(lines)}"] if lines else []
    spec = replace(spec, notices=(*spec.notices, *notices))
    return replace(spec, resumed=replace(resumed, put_back=events))


def _copy_workspaces(resumed: Resumed, paths: TurnPaths) -> tuple[str, ...]:
    """Copy the workspaces of the turn that another goes on from, as they were at its point.

    Returns:
        What could not be copied.
    """
    before = TurnPaths(paths.path.with_name(f"turn_{resumed.turn}"))
    fill = partial(_fill_workspaces, resumed.trees, before)
    if resumed.task is not None and paths.task == resumed.task:
        return restore_workspaces(resumed.task, before, fill)
    return fill(paths.live_workspaces)


def _fill_workspaces(trees: Mapping[str, str], before: TurnPaths, target: Path) -> tuple[str, ...]:
    """Write what workspaces held by these trees, and copy the others."""
    if not trees:
        return copy_workspaces(before.workspaces, target)
    store = SnapshotStore(before.path.parent)
    target.mkdir(parents=True, exist_ok=True)
    left_out = list[str]()
    for name, tree in trees.items():
        with files_read(name, RefusedError):
            lacking = store.lay(tree, target / safe_name(name), before.workspaces / name)
        left_out += [f"{name}/{each}" for each in lacking]
    others = copy_workspaces(before.workspaces, target, leaving_out=trees)
    return (*left_out, *others)


def _begin(run_id: str, spec: TurnSpec, lock: FileLock, undo: ExitStack) -> Run:
    """Create and start a run; ``undo`` is given what a failure must undo."""
    paths = spec.paths
    for name in spec.workspaces:
        (paths.live_workspaces / name).mkdir(exist_ok=True)
    turn = TurnWriter(run_id, spec, lock)
    undo.callback(turn.discard)
    run = Run(run_id, turn, paths, spec)
    withdraw = announce_here(paths.path, run_id)
    undo.callback(withdraw)
    turn.done.add_done_callback(lambda _: withdraw())
    if spec.options.debug:
        close_log = open_debug_log(paths.path)
        undo.callback(close_log)
        run.subscribe(lambda view: close_log() if view.is_over else None)
    _before_start.get()(paths.path, run_id)
    submit(run.execute)
    return run
