"""Looks up runs by name, in this process and in others.

Runs of this process are looked up in memory, and others by the path of their session, without
reading locks or journals of unrelated runs. If no name is given, only default runs are considered:
those of this kernel or, in a terminal, those of the session root.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nb_agents.errors import UnknownRunError, UserError
from nb_agents.launch.run import Run
from nb_agents.session.layout import RECIPES, TurnPaths, session_root, turns_of
from nb_agents.session.lookup import TERMINAL_ORIGIN, current_origin, existing_turn, origin_of
from nb_agents.turns.handle import check_turn
from nb_agents.turns.live_runs import started_runs
from nb_agents.turns.live_turns import LiveTurn, is_below, live_turns
from nb_agents.turns.reader import TurnReader

Root = str | os.PathLike[str] | None

# The handles of live runs in other processes, so that each run has only one handle.
_handles_elsewhere: dict[Path, Run] = {}

_ON_DISK = "disk"
"""`Run.where` of a turn that has ended."""


def runs(root: Root = None) -> tuple[Run, ...]:
    """Return the runs of this process, oldest first, then the live runs of other processes.

    `Run.where` describes the other process.

    Args:
        root: Return only runs in this session root. By default, in all roots.
    """
    started = {run.path: run for run in _started(root)}
    turns = [turn for turn in live_turns(root=_path(root)) if turn.paths.path not in started]
    if root is None:
        _drop_other_handles(turns)
    return (*started.values(), *_handles(turns))


def find_live(name: str = "", root: Root = None) -> Run:
    """Return a run of this process, or a live run of another process.

    Args:
        name: See `find_run`.
        root: See `find_run`.

    Raises:
        UnknownRunError: There is no such run.
        UserError: Several runs match.
    """
    run = find_run(name, root)
    if run.where == _ON_DISK:
        raise _unknown(name, root)
    return run


def find_run(name: str = "", root: Root = None) -> Run:
    """Return a run or, if there is none, a handle of an ended turn on disk.

    So you get a run again after its kernel was restarted.

    Args:
        name: The run's id, its session's id, "session/turn" or the turn's absolute path. "" means
            the latest live run of this process. If there is none, it means the only default run in
            another process (see `default_runs_elsewhere`), or else the latest run that this process
            started.
        root: A session root to search. By default, the runs of this process are searched first,
            then the session root of this directory, then live runs in all roots.

    Returns:
        A handle. That of an ended turn reads its result, state and timeline from disk, and can
        resume and rewind it. `Run.where` is "" for a run of this process.

    Raises:
        UnknownRunError: There is no such run or turn.
        UserError: Several runs match.
    """
    if not name:
        run = _default_run(root)
    else:
        run = _in_this_process(name, root) or _on_disk(name, root) or _announced(name, root)
    if run is None:
        raise _unknown(name, root)
    return run


def attach(path: str | os.PathLike[str], where: str = "another process") -> Run:
    """Return a handle of a turn that another process runs, or that has ended.

    Args:
        path: The turn's directory.
        where: A description of the process.

    Raises:
        UserError: The directory is not that of a turn.
    """
    paths = TurnPaths(Path(path).absolute())
    check_turn(paths)
    return handle_of(paths, where)


def handle_of(paths: TurnPaths, where: str = _ON_DISK) -> Run:
    """Return a handle of a turn on disk, without checking its files.

    Args:
        where: A description of the process that runs the turn, if any.
    """
    return Run(f"{paths.session}/{paths.number}", TurnReader(paths), paths, where=where)


def _unknown(name: str, root: Root) -> UnknownRunError:
    return UnknownRunError(name, tuple(run.id for run in runs(root)))


def _in_this_process(name: str, root: Root) -> Run | None:
    started = _started(root)
    for run in started:
        if not run.where and run.id == name:
            return run
    matches = [r for r in started if name in (r.session, f"{r.session}/{r.turn}", str(r.path))]
    return _only(name, matches)


def _on_disk(name: str, root: Root) -> Run | None:
    """Return the turn with this name in a session root. By default, in this directory's root."""
    paths = existing_turn(session_root(root), name)
    if paths is None or (root is not None and not is_below(paths, Path(session_root(root)))):
        return None
    with suppress(UserError):  # the directory has no files of a turn
        if not paths.is_live():
            return attach(paths.path, _ON_DISK)
        turns = [turn for turn in live_turns(paths.session) if turn.paths == paths]
        return next(iter(_handles(turns)), None) or attach(paths.path)
    return None


def _announced(name: str, root: Root) -> Run | None:
    session, _, number = name.partition("/")
    if not session:
        return None
    turn_number = number.removeprefix("turn_")
    turns = live_turns(session, _path(root))
    matches = [turn for turn in turns if turn_number in ("", str(turn.paths.number))]
    return _only(name, _handles(matches))


def _only(name: str, runs: list[Run]) -> Run | None:
    """Return the latest of these runs, preferring live ones and those in the default root.

    Raises:
        UserError: The runs belong to several sessions.
    """
    runs = [run for run in runs if not run.is_over] or runs
    runs = [run for run in runs if _is_in(run, session_root())] or runs
    if len({run.path.parent for run in runs}) > 1:
        run_names = ", ".join(f"{run.id} in {run.path.parents[1]}" for run in runs)
        raise UserError(
            f"{name!r} matches several runs: {run_names}. Add --session-root DIR, or give the "
            f"run's id."
        )
    return runs[-1] if runs else None


def _default_run(root: Root) -> Run | None:
    if live := live_runs_in(root):
        return live[-1]
    elsewhere = default_runs_elsewhere(root)
    if len(elsewhere) == 1:
        return elsewhere[0]
    if ended_runs := [run for run in _started(root) if run.is_over]:
        return ended_runs[-1]
    if elsewhere:
        raise UserError(f"Several runs are live: {', '.join(r.id for r in elsewhere)}. Name one.")
    return None


def live_runs_in(root: Root = None) -> list[Run]:
    """Return the live runs in this process, oldest first.

    Recipes run by agents are left out, because stopping the latest run means stopping their caller.

    Args:
        root: Return only runs in this session root. By default, in all roots.
    """
    return [run for run in _started(root) if not (run.where or run.is_over or _is_called(run))]


def _is_called(run: Run) -> bool:
    """Return whether an agent of another run started the run with the `recipes` tool."""
    inside = run.path.parents[1]
    return inside.name == RECIPES and bool(turns_of(inside.parent))


def default_runs_elsewhere(root: Root = None) -> list[Run]:
    """Return live runs in other processes to which a command without a name applies.

    Args:
        root: Session root. If given, all live runs in it are returned. By default: the runs started
            by this process, and live runs in the default session root. In a notebook, the latter
            are limited to runs of the same notebook.
    """
    started = [run for run in _started(root) if run.where and not run.is_over]
    root_path, paths = session_root(root), {run.path for run in started_runs()}
    turns = [turn for turn in live_turns(root=root_path) if turn.paths.path not in paths]
    if root is None and current_origin(root_path) != TERMINAL_ORIGIN:
        turns = [turn for turn in turns if _is_of_this_notebook(turn.paths)]
    return [*started, *_handles(turns)]


def _is_of_this_notebook(turn: TurnPaths) -> bool:
    return origin_of(turn) == current_origin(turn.root)


def _started(root: Root) -> list[Run]:
    runs = (run for run in started_runs() if isinstance(run, Run))
    return [run for run in runs if root is None or _is_in(run, root)]


def _is_in(run: Run, root: Root) -> bool:
    return is_below(TurnPaths(run.path), session_root(root))


def _path(root: Root) -> Path | None:
    return None if root is None else session_root(root)


def _handles(turns: list[LiveTurn]) -> list[Run]:
    handles = list[Run]()
    for turn in turns:
        with suppress(UserError):  # the turn has no files yet, or its session was deleted
            path = turn.paths.path
            handle = _handles_elsewhere.get(path)
            # setdefault is atomic, so that concurrent threads share a handle.
            handle = handle or _handles_elsewhere.setdefault(path, attach(path, turn.where))
            handles.append(handle)
    return handles


def _drop_other_handles(turns: list[LiveTurn]) -> None:
    for path in set(_handles_elsewhere) - {turn.paths.path for turn in turns}:
        _handles_elsewhere.pop(path, None)
