"""Finding the run that a person means, of this process or of another.

A name is looked up and never searched for: runs of this process in memory, others by the path of
their session. Neither the lock nor the journal of any other run is looked at. Without a name the
run is one of here: of this kernel, or of a terminal's session root.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nb_agents.errors import UnknownRunError, UserError
from nb_agents.options import RunOptions
from nb_agents.runs.live_runs import begun_runs, live_runs
from nb_agents.runs.live_turns import LiveTurn, is_below, live_turns
from nb_agents.runs.reader import TurnReader
from nb_agents.runs.run import Run
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import TERMINAL_ORIGIN, known_turn, origin_here, origin_of

Root = str | os.PathLike[str] | None

# The handles of live runs in other processes, so that each run has only one.
_elsewhere: dict[Path, Run] = {}

_ON_DISK = "disk"
"""Where the handle of a turn that has ended says that its run is."""


def runs(root: Root = None) -> tuple[Run, ...]:
    """Return the runs of this process, oldest first, then the live ones of other processes.

    `Run.where` describes the other process.

    Args:
        root: A session root that limits the list; by default all roots.
    """
    begun = {run.path: run for run in _begun(root)}
    turns = [turn for turn in live_turns(root=_path(root)) if turn.paths.path not in begun]
    if root is None:
        _forget_others(turns)
    return (*begun.values(), *_handles(turns))


def find_run(name: str = "", root: Root = None) -> Run:
    """Return a run of this process, or a live one of another.

    Args:
        name: The run's id, its session's id, "session/turn" or the turn's whole path; "" means the
            latest live run here, else the only live one of here in another process, else the latest
            that this process started.
        root: A session root that limits the search. By default a name means a run of this process,
            else a turn in this directory's root, else a live run in any root.

    Raises:
        UnknownRunError: There is no such run.
        UserError: There are several.
    """
    run = find_known(name, root)
    if run.where == _ON_DISK:
        raise _unknown(name, root)
    return run


def find_known(name: str = "", root: Root = None) -> Run:
    """Return a run, or else a handle of a turn on disk that has ended.

    Args:
        name: As for `find_run`; "" finds only runs.
        root: As for `find_run`.

    Raises:
        UnknownRunError: There is neither.
        UserError: There are several.
    """
    if not name:
        run = _of_here(root)
    else:
        run = _own(name, root) or _on_disk(name, root) or _announced(name, root)
    if run is None:
        raise _unknown(name, root)
    return run


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
    run = handle_of(paths, where, TurnReader(paths, restart=restart, grace_s=grace_s))
    run.options = options or run.options
    run.functions = tuple(functions)
    return run


def handle_of(paths: TurnPaths, where: str = _ON_DISK, reader: TurnReader | None = None) -> Run:
    """Return a handle of a turn on disk, whatever its files hold.

    Args:
        paths: The turn.
        where: A description of the process that runs it, if any does.
        reader: Reads it.
    """
    name = f"{paths.session}/{paths.number}"
    return Run(name, reader or TurnReader(paths), paths, where=where)


def _unknown(name: str, root: Root) -> UnknownRunError:
    return UnknownRunError(name, tuple(run.id for run in runs(root)))


def _own(name: str, root: Root) -> Run | None:
    mine = _begun(root)
    for run in mine:
        if not run.where and run.id == name:
            return run
    known = [r for r in mine if name in (r.session, f"{r.session}/{r.turn}", str(r.path))]
    return _only(name, known)


def _on_disk(name: str, root: Root) -> Run | None:
    """Return the turn of a name in the given root, else in this directory's."""
    paths = known_turn(session_root(root), name)
    if paths is None or (root is not None and not is_below(paths, Path(session_root(root)))):
        return None
    with suppress(UserError):  # it holds no turn's files
        if not paths.is_live():
            return attach(paths.path, _ON_DISK)
        found = [turn for turn in live_turns(paths.session) if turn.paths == paths]
        return next(iter(_handles(found)), None) or attach(paths.path)
    return None


def _announced(name: str, root: Root) -> Run | None:
    session, _, number = name.partition("/")
    if not session:
        return None
    wanted = number.removeprefix("turn_")
    turns = live_turns(session, _path(root))
    found = [turn for turn in turns if wanted in ("", str(turn.paths.number))]
    return _only(name, _handles(found))


def _only(name: str, found: list[Run]) -> Run | None:
    """Return the latest of a session's runs; sessions of one name are told apart by their root."""
    found = [run for run in found if not run.is_over] or found
    found = [run for run in found if _is_in(run, session_root())] or found
    if len({run.path.parent for run in found}) > 1:
        listed = ", ".join(f"{run.id} in {run.path.parents[1]}" for run in found)
        raise UserError(
            f"{name!r} names several runs: {listed}. Add --session-root DIR, or give the run's id."
        )
    return found[-1] if found else None


def _of_here(root: Root) -> Run | None:
    if live := live_runs_of_here(root):
        return live[-1]
    elsewhere = runs_elsewhere_of_here(root)
    if len(elsewhere) == 1:
        return elsewhere[0]
    if over := [run for run in _begun(root) if run.is_over]:
        return over[-1]
    if elsewhere:
        raise UserError(f"Several runs are live: {', '.join(r.id for r in elsewhere)}. Name one.")
    return None


def live_runs_of_here(root: Root = None) -> list[Run]:
    """Return the live runs in this process, oldest first; of one session root if it is given."""
    return [run for run in live_runs() if root is None or _is_in(run, root)]


def runs_elsewhere_of_here(root: Root = None) -> list[Run]:
    """Return the live runs in other processes that are meant here without a name.

    Args:
        root: A session root, of which all are meant. By default those that this process began, and
            of this directory's root a notebook's own, or in a terminal all.
    """
    begun = [run for run in _begun(root) if run.where and not run.is_over]
    place, own = session_root(root), {run.path for run in begun_runs()}
    turns = [turn for turn in live_turns(root=place) if turn.paths.path not in own]
    if root is None and origin_here(place) != TERMINAL_ORIGIN:
        turns = [turn for turn in turns if _is_ours(turn.paths)]
    return [*begun, *_handles(turns)]


def _is_ours(turn: TurnPaths) -> bool:
    return origin_of(turn) == origin_here(turn.root)


def _begun(root: Root) -> list[Run]:
    return [run for run in begun_runs() if root is None or _is_in(run, root)]


def _is_in(run: Run, root: Root) -> bool:
    return is_below(TurnPaths(run.path), session_root(root))


def _path(root: Root) -> Path | None:
    return None if root is None else session_root(root)


def _handles(turns: list[LiveTurn]) -> list[Run]:
    found = list[Run]()
    for turn in turns:
        with suppress(UserError):  # it has not begun, or its session was deleted
            path = turn.paths.path
            # Each step is atomic: threads that look for runs at the same moment share a handle.
            run = _elsewhere.get(path) or _elsewhere.setdefault(path, attach(path, turn.where))
            found.append(run)
    return found


def _forget_others(turns: list[LiveTurn]) -> None:
    for gone in set(_elsewhere) - {turn.paths.path for turn in turns}:
        _elsewhere.pop(gone, None)
