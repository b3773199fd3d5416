"""Starts a run in this process: claims its turn, fills it with files, and creates the handle."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from nb_agents.config.spec import safe_name
from nb_agents.config.team import TeamSpec
from nb_agents.context import within
from nb_agents.disk.entry import RefusedError, join_names, printable_name
from nb_agents.disk.lock import FileLock
from nb_agents.disk.private import make_folder
from nb_agents.errors import StorageError, UnknownSessionError, error_message
from nb_agents.launch.rewind_plan import files_read, plan_files
from nb_agents.loop import defer_interrupts, ensure_loop, submit
from nb_agents.options import RunOptions
from nb_agents.session import layout
from nb_agents.session.copying import copy_workspaces, skipped_notice
from nb_agents.session.history import Session
from nb_agents.session.layout import TurnPaths, restore_workspaces
from nb_agents.session.lookup import current_origin
from nb_agents.session.ownership import OwnerMark
from nb_agents.signatures import described
from nb_agents.snapshots.store import SnapshotStore
from nb_agents.snapshots.user_file_restore import restore_files, undo_restore, write_patches
from nb_agents.snapshots.user_files import UserFileChange, UserFileHistory, UserFiles
from nb_agents.turns.handle import RunHandle
from nb_agents.turns.hiding import open_debug_log
from nb_agents.turns.live_runs import owner_of, remember
from nb_agents.turns.live_turns import announce_here
from nb_agents.turns.stand_in import current_stand_in
from nb_agents.turns.turn import TurnWriter
from nb_agents.turns.turn_spec import Resumed, TurnSpec

_numbers = itertools.count(1)
_before_start: ContextVar[Callable[[Path, str], object]] = ContextVar(
    "nb_agents_before_start", default=lambda path, run_id: None
)


class Loaded(NamedTuple):
    """A request with its team and session loaded. Nothing is written yet.

    Attributes:
        session: The session's id, or None for a new one.
        mark: The session's owner mark.
        begin: Starts the run in this process. The argument is the class of the run's handle.
        project: The user's directory that the work is done in, if any. Only set for a cluster.
    """

    team: TeamSpec
    session: str | None
    mark: OwnerMark
    begin: Callable[[type[RunHandle]], RunHandle]
    project: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RunRequest(ABC):
    """The arguments of a function that starts a run, in this process or another.

    Attributes:
        tools: Functions that all agents may call, or stand-ins for functions of another process.
        options: The run's options.
    """

    tools: Sequence[Callable[..., object]] = field(
        default=(), metadata=described("functions that all agents may call", metavar="F,G")
    )
    options: RunOptions = field(
        default=RunOptions(),
        metadata=described("the options of the run", metavar="NAME"),
    )

    def __post_init__(self) -> None:
        """Accept None for the defaults, and the path of a session or turn."""
        if self.options is None:
            self._set(options=RunOptions())
        if self.tools is None:
            self._set(tools=())
        if isinstance(self.options, RunOptions):  # other types are refused later
            self._locate()

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def _locate(self) -> None:
        """Replace the path of a session or turn with its name and session root."""

    def changed(self, **values: object) -> Self:
        """Return a copy of the request in which some attributes are changed."""
        new = copy(self)
        new._set(**values)
        return new

    @abstractmethod
    def load(self) -> Loaded:
        """Load and check everything that the run needs.

        Raises:
            UserError: An argument is invalid; see `nb_agents.start` and `nb_agents.resume`.
        """

    @abstractmethod
    def outgoing(self, session: str | None) -> Self:
        """Return a copy of the request for another process, with absolute paths.

        Args:
            session: The session's id, as loaded.
        """


_Value = TypeVar("_Value")


def absolute(value: _Value | str | os.PathLike[str]) -> _Value | Path:
    """Return the absolute path of a file, and a value of another type unchanged."""
    if isinstance(value, str | os.PathLike):
        return Path(value).expanduser().absolute()
    return value


class Job(NamedTuple):
    """A request for another process to carry out.

    Attributes:
        request: The request. Its run starts in the process that loads it.
        mark: The session's owner mark.
        origin: The notebook or terminal of the requesting process.
        place: The working directory of the requesting process.
        handle: The class of the run's handle.
    """

    request: RunRequest
    mark: OwnerMark
    origin: str
    place: Path
    handle: type[RunHandle]


class Begun(NamedTuple):
    """A run that another process has started.

    Attributes:
        path: The turn's directory.
        where: A description of the process.
        restart: Restarts a worker that does not respond. None without a cluster.
    """

    path: Path
    where: str
    restart: Callable[[], object] | None = None


def asking_before_start(ask: Callable[[Path, str], object]) -> AbstractContextManager[None]:
    """Call a function before each run in the block starts.

    Args:
        ask: Called with the turn's path and the run's id. If it raises an error, the run does not
            start and its turn is discarded.
    """
    return within(_before_start, ask)


def launch(spec: TurnSpec, session: Session, handle: type[RunHandle]) -> RunHandle:
    """Claim the next turn of a session, and start a run in it.

    An interrupt cancels the copying of files, and does not prevent other runs from starting.

    Args:
        spec: The turn's spec, without the values that depend on its session.
        session: The session, as loaded.
        handle: The class of the run's handle.

    Raises:
        SessionBusyError: A turn of the session is live.
        SessionChangedError: The session got another turn since it was loaded.
        UnknownSessionError: The session was removed or renamed since then.
        StorageError: The directory can't be written.
    """
    ensure_loop()  # fails before anything is created
    path = session.path
    if not path.is_dir():  # claiming a turn would create the directory again, without its turns
        raise UnknownSessionError(path.name, str(path.parent))
    task = spec.resumed.task if spec.resumed else None
    with ExitStack() as undo:
        with defer_interrupts():
            paths, lock = layout.claim_turn(path, owner_of, task, session.last)
            undo.callback(layout.discard_turn, paths)
            undo.callback(lock.release)
        try:
            spec = replace(spec, stand_in=current_stand_in())
            spec = _restore_user_files(_fill_turn(spec, session, paths), undo)
            # Interrupts are deferred until the run is in the list of runs, where a stop can find
            # it.
            with defer_interrupts():
                run = _start(handle, f"r{next(_numbers)}", spec, lock, undo)
                undo.pop_all()
                return remember(run)
        except OSError as exc:
            raise StorageError(str(paths.path), error_message(exc)) from None


def _fill_turn(spec: TurnSpec, session: Session, paths: TurnPaths) -> TurnSpec:
    """Copy the files that a claimed turn starts with, and return its complete spec."""
    team, resumed = spec.team, spec.resumed
    past = session.before(resumed.turn) if resumed else session
    left_out = _copy_workspaces(resumed, paths) if resumed else ()
    return replace(
        spec.work.fill(replace(spec, paths=paths), session),
        history=past.messages,
        context=(*team.readable_paths, *past.context_paths),
        notices=(*spec.notices, *skipped_notice(left_out)),
        origin=current_origin(paths.root),
    )


def _restore_user_files(spec: TurnSpec, undo: ExitStack) -> TurnSpec:
    """Restore user files to their state at the checkpoint of a rewind.

    This is the last step before the turn starts, so a kill can't leave a turn without the files.

    Args:
        spec: The spec of the turn, whose directory already has its other files.
        undo: A stack for callbacks that undo the changes after a failure.
    """
    resumed = spec.resumed
    if resumed is None or resumed.own == UserFileHistory():
        return spec
    own, writable_roots, moved_files = (
        UserFiles(
            spec.paths.path.parent,
            spec.team.snapshot_bytes,
            total=spec.team.snapshot_total_bytes,
        ),
        spec.own_places,
        list[UserFileChange](),
    )
    plan = plan_files(resumed.own, own, writable_roots)
    undo.callback(undo_restore, moved_files, own, writable_roots)
    lines = write_patches(
        restore_files(plan, own, writable_roots, moved_files), own, spec.paths.path
    )
    moved = sorted([*moved_files, *plan.already_restored])
    groups = groupby(moved, attrgetter("root"))
    events = tuple(own.store_changes(root, [*changes], "") for root, changes in groups)
    names = join_names([printable_name(each.name) for each in moved_files])
    notices = [f"Restored your files: {names}."] if moved_files else []
    notices += [f"Not restored: {join_names(lines)}"] if lines else []
    spec = replace(spec, notices=(*spec.notices, *notices))
    return replace(spec, resumed=replace(resumed, put_back=events))


def _copy_workspaces(resumed: Resumed, paths: TurnPaths) -> tuple[str, ...]:
    """Copy the workspaces of the turn that this turn resumes, as they were at the checkpoint.

    Returns:
        The names of files that could not be copied.
    """
    old_turn = TurnPaths(paths.path.with_name(f"turn_{resumed.turn}"))
    fill = partial(_fill_workspaces, resumed.trees, old_turn)
    if resumed.task is not None and paths.task == resumed.task:
        return restore_workspaces(resumed.task, old_turn, fill)
    return fill(paths.live_workspaces)


def _fill_workspaces(
    trees: Mapping[str, str], old_turn: TurnPaths, target: Path
) -> tuple[str, ...]:
    """Write workspaces from their snapshots, and copy those without a snapshot."""
    if not trees:
        return copy_workspaces(old_turn.workspaces, target)
    store = SnapshotStore(old_turn.path.parent)
    make_folder(target)
    left_out = list[str]()
    for name, tree in trees.items():
        with files_read(name, RefusedError):
            missing = store.checkout(tree, target / safe_name(name), old_turn.workspaces / name)
        left_out += [f"{name}/{each}" for each in missing]
    other_workspaces = copy_workspaces(old_turn.workspaces, target, leaving_out=trees)
    return (*left_out, *other_workspaces)


def _start(
    handle: type[RunHandle], run_id: str, spec: TurnSpec, lock: FileLock, undo: ExitStack
) -> RunHandle:
    """Create and start a run. ``undo`` receives the callbacks that undo it after a failure."""
    paths = spec.paths
    for name in spec.workspaces:
        make_folder(paths.live_workspaces / name)
    # First, so that a stop finds each turn whose journal has begun.
    withdraw = announce_here(paths.path, run_id)
    undo.callback(withdraw)
    turn = TurnWriter(run_id, spec, lock)
    undo.callback(turn.discard)
    run = handle(run_id, turn, paths, spec)
    turn.done.add_done_callback(lambda _: withdraw())
    if spec.options.debug:
        close_log = open_debug_log(paths.path)
        undo.callback(close_log)
        run.subscribe(lambda view: close_log() if view.is_over else None)
    _before_start.get()(paths.path, run_id)
    submit(run.execute)
    return run
