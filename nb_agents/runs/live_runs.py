"""The runs that this process started, and starting one: claiming a turn and creating the handle."""

from __future__ import annotations

import itertools
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from filelock import FileLock

from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, StorageError, UnknownSessionError, said_by
from nb_agents.runs.hiding import open_debug_log
from nb_agents.runs.live_turns import announce_here
from nb_agents.runs.loop import ensure_loop, interrupts_held, submit
from nb_agents.runs.run import Run
from nb_agents.runs.turn import Turn
from nb_agents.runs.turn_spec import TurnSpec
from nb_agents.session import layout
from nb_agents.session.history import Session
from nb_agents.session.layout import TurnPaths
from nb_agents.session.views import read_json

__all__ = [
    "asking_before_start",
    "begun_runs",
    "config_path",
    "launch",
    "live_runs",
    "owner",
    "owner_of",
    "remember",
    "timeout_of",
    "wait_until_saved",
]

SAVED_S = 2.0
"""How long to wait for an ended turn to be saved before its session counts as busy."""

SAVE_AGAIN_S = 1.0
"""Interval at which a disk that has refused something is tried again."""

MAX_OVER = 50
"""Ended runs that are kept in the list; the handle of an older one can still be used."""

# Separates threads that start runs at the same moment.
_lock = threading.Lock()
_runs: dict[Path, Run] = {}
_numbers = itertools.count(1)
_before_start: ContextVar[Callable[[Path, str], object]] = ContextVar(
    "nb_agents_before_start", default=lambda path, run_id: None
)


@contextmanager
def asking_before_start(ask: Callable[[Path, str], object]) -> Iterator[None]:
    """Call a function with the turn's path and the run's id before a run starts in the block.

    Args:
        ask: May raise an error, and the run does not start; its turn is discarded.
    """
    token = _before_start.set(ask)
    try:
        yield
    finally:
        _before_start.reset(token)


def launch(
    session: Session,
    make: Callable[[TurnPaths], TurnSpec],
    resume: Callable[..., Run],
    task: Path | None = None,
) -> Run:
    """Claim the next turn of a session and start a run in it.

    Args:
        session: The session, as loaded.
        make: Returns the turn's spec for its paths. It may already write there and take its time:
            an interrupt ends it, and other runs start meanwhile.
        resume: The function that `Run.resume` calls, passed in because it is above this module.
        task: Directory of the task that the turn resumes; by default a new one is created.

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
    with ExitStack() as undo:
        with interrupts_held():
            paths, lock = layout.claim_turn(path, owner_of, task, session.last)
            undo.callback(layout.discard_turn, paths)
            undo.callback(lock.release)
        try:
            spec = make(paths)
            # Hold interrupts until the run is in the list, where a stop can find it.
            with interrupts_held():
                run = _begin(f"r{next(_numbers)}", spec, lock, resume, undo)
                undo.pop_all()
                return remember(run)
        except OSError as exc:
            raise StorageError(str(paths.path), said_by(exc)) from None


def remember(run: Run) -> Run:
    """Add a run that this process started, here or in another one, to the list, and return it.

    It stays in the list after its end, as its functions and options are known only here.
    """
    with _lock:
        _runs[run.path] = run
        _prune()
    return run


def _prune() -> None:
    """Drop the oldest runs that are over and saved, which can be read from disk."""
    # Only the oldest are checked, as that reads the disk for a run in another process.
    for run in tuple(_runs.values())[: max(0, len(_runs) - MAX_OVER)]:
        if run.is_over and not run.is_unsaved:
            run.release()
            del _runs[run.path]


def _forget() -> None:
    """Clear the list in a forked child, as the runs are the parent's."""
    global _lock
    _lock = threading.Lock()
    _runs.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


def _begin(
    run_id: str, spec: TurnSpec, lock: FileLock, resume: Callable[..., Run], undo: ExitStack
) -> Run:
    """Create and start a run; ``undo`` is given what a failure must undo."""
    paths = spec.paths
    for name in spec.workspaces:
        (paths.live_workspaces / name).mkdir(exist_ok=True)
    turn = Turn(run_id, spec, lock)
    undo.callback(turn.discard)
    run = Run(run_id, turn, paths, resume, spec)
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


def wait_until_saved(session: Path) -> None:
    """Wait briefly until the ended turns of a session in this process are saved.

    A turn whose saving failed is saved again, as its missing part would otherwise be repeated.

    Args:
        session: The session's directory.

    Raises:
        StorageError: A turn still can't be saved.
    """
    for run in begun_runs():
        if run.where or run.path.parent != session or not run.view.is_over:
            continue
        with suppress(TimeoutError):
            run.wait(SAVED_S, raise_on_stop=False)
        if run.is_unsaved:
            run.save()


def save_patiently(run: Run, limit_s: float) -> bool:
    """Save a run that is over, and try again while the disk refuses it.

    Args:
        run: The run.
        limit_s: Seconds after which to give up.

    Returns:
        Whether all of it is on the disk.
    """
    deadline = time.monotonic() + limit_s
    while run.is_unsaved and time.monotonic() < deadline:
        with suppress(StorageError, TimeoutError):
            run.save(max(0.0, deadline - time.monotonic()))
            break
        time.sleep(SAVE_AGAIN_S)
    return not run.is_unsaved


def begun_runs() -> tuple[Run, ...]:
    """Return the runs that this process started, here or in another process, oldest first."""
    return tuple(_runs.values())


def live_runs() -> tuple[Run, ...]:
    """Return the runs in this process that are not over, oldest first."""
    return tuple(run for run in begun_runs() if not run.where and not run.is_over)


def owner() -> str:
    """Return a description of this process, as the owner of its runs."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


def owner_of(session: Path) -> str:
    """Return a description of the process that runs a session, as far as it is known."""
    if here := [r for r in live_runs() if r.path.parent == session]:
        return f"run {here[0].id} in this kernel"
    try:
        owner = read_json(layout.turns_of(session)[-1].metadata)["owner"]
    except LookupError:
        owner = ""
    return f"another process, {owner}" if owner else "another process"


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
