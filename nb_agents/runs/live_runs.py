"""The runs that this process began, and how one comes to be: a turn claimed, a handle made."""

from __future__ import annotations

import itertools
import math
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, StorageError, UnknownSessionError
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
"""What a turn that has ended gets to be saved before its session counts as taken."""

MAX_OVER = 50
"""Runs that are over and still known; whoever holds an older one's handle can go on using it."""

# Separates threads that start runs at the same moment.
_lock = threading.Lock()
_runs: dict[str, Run] = {}
_numbers = itertools.count(1)


def launch(
    session: Session,
    make: Callable[[TurnPaths], TurnSpec],
    resume: Callable[..., Run],
    task: Path | None = None,
) -> Run:
    """Take the next turn of a session and let a run go in it.

    Args:
        session: The session, as it was read.
        make: Given the turn's paths, makes what to do; may already write into them.
        resume: What the run's own `resume` calls; handed in, as it lies above this module.
        task: Directory of the task that it goes on with; by default it gets a new one.

    Returns:
        The run.

    Raises:
        SessionBusyError: A turn of the session is live.
        SessionChangedError: It has got another turn since it was read.
        UnknownSessionError: It was removed or renamed since then.
        StorageError: The directory can't be written.
    """
    ensure_loop()  # where it can't be had, nothing is begun
    # An interrupt comes before the run is there, or when it is known and every door reaches it.
    with interrupts_held(), _lock:
        path = session.path
        if not path.is_dir():  # or it would be made anew, without its past
            raise UnknownSessionError(path.name, str(path.parent))
        paths, lock = layout.claim_turn(path, owner_of, task, session.last)
        run = _begin(f"r{next(_numbers)}", make, paths, lock, resume)
        _runs[run.id] = run
        _prune()
    return run


def remember(run: Run) -> Run:
    """Know a run that this process began in another one, also when it is over there.

    Args:
        run: The handle, which knows what this process alone does.

    Returns:
        It.
    """
    with _lock:
        _runs[run.id] = run
        _prune()
    return run


def _prune() -> None:
    """Let go of the oldest runs that are over and saved: what they were is on disk."""
    # No others are asked: of a run that lives elsewhere the disk is.
    for run in tuple(_runs.values())[: max(0, len(_runs) - MAX_OVER)]:
        if run.is_over and not run.is_unsaved:
            run.let_go()
            del _runs[run.id]


def _forget() -> None:
    """Know no run in a forked child: they are the parent's."""
    global _lock
    _lock = threading.Lock()
    _runs.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


def _begin(
    run_id: str,
    make: Callable[[TurnPaths], TurnSpec],
    paths: TurnPaths,
    lock: FileLock,
    resume: Callable[..., Run],
) -> Run:
    """Make a run and let it go; if that can't be, the turn was never there."""
    try:
        spec = make(paths)
        for name in spec.workspaces:
            (paths.live_workspaces / name).mkdir(exist_ok=True)
        turn = Turn(run_id, spec, lock)
        run = Run(run_id, turn, paths, resume, spec)
        withdraw = announce_here(paths.path, run_id)
        turn.done.add_done_callback(lambda _: withdraw())
        if spec.options.debug:
            close_log = open_debug_log(paths.path / "debug.log")
            run.subscribe(lambda view: close_log() if view.is_over else None)
        submit(run.execute)
    except BaseException as exc:
        lock.release()
        layout.discard_turn(paths)
        if isinstance(exc, OSError):
            raise StorageError(str(paths.path), exc.strerror or str(exc)) from None
        raise
    return run


def wait_until_saved(session: Path) -> None:
    """Wait, a moment, for the files of a turn of this process that has ended.

    What could not be saved then is saved now: who reads less of it would have it done again.

    Args:
        session: The session's directory.

    Raises:
        StorageError: It still can't be saved.
    """
    for run in begun_runs():
        if run.where or run.path.parent != session or not run.view.is_over:
            continue
        with suppress(TimeoutError):
            run.wait(SAVED_S, raise_on_stop=False)
        if run.is_unsaved:
            run.save()


def begun_runs() -> tuple[Run, ...]:
    """All runs that this process began, here or elsewhere, oldest first."""
    return tuple(_runs.values())


def live_runs() -> tuple[Run, ...]:
    """The runs that live in this process and are not over, oldest first."""
    return tuple(run for run in begun_runs() if not run.where and not run.is_over)


def owner() -> str:
    """Say who runs what this process starts."""
    return f"pid {os.getpid()} on {socket.gethostname()}"


def owner_of(session: Path) -> str:
    """Say who runs a session, as far as anybody knows."""
    if here := [r for r in live_runs() if r.path.parent == session]:
        return f"run {here[0].id} in this kernel"
    try:
        owner = read_json(layout.turns_of(session)[-1].metadata)["owner"]
    except LookupError:
        owner = ""
    return f"another process, {owner}" if owner else "another process"


def config_path(config: object) -> str:
    """Give the absolute path of a team file, or "" when the team is not from one."""
    return str(Path(config).absolute()) if isinstance(config, str | os.PathLike) else ""


def timeout_of(chosen: float | None, spec: TeamSpec, *, is_recipe: bool = False) -> float:
    """Give the orchestrator timeout in seconds; 0 for none.

    Args:
        chosen: The person's, or None for the team's.
        spec: The team.
        is_recipe: Whether it works through a recipe, whose steps have timeouts of their own: then
            only a timeout that somebody wrote down counts.

    Raises:
        ConfigError: It is no number over 0.
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
