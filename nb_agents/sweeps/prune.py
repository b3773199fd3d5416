"""Removes the sessions, and the rows of sweeps, that nobody has used for long.

A sweep keeps its ``rows.jsonl``, so that the same call asks for nothing twice: only a row whose end
stands there goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout

from nb_agents.disk.directory import Directory, real_above
from nb_agents.errors import SessionBusyError, UserError
from nb_agents.session.layout import TurnPaths, last_use, sessions_in, turns_of
from nb_agents.session.manage import delete_session, strip_session, work_of
from nb_agents.session.views import read_json
from nb_agents.sweeps.manifest import owner_lock, read_results, sweeps_in

__all__ = ["PruneSpec", "Pruned", "prune", "seconds_of"]

_AGE = re.compile(r"([0-9]{1,6})([hdw])")
_UNITS_S = {"h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class PruneSpec:
    """What is to be removed.

    Attributes:
        before: What was last used before this moment, in seconds since 1970.
        keep_answers: Whether answers, metadata and summaries stay.
        incomplete: Whether sessions go, too, whose last turn could be resumed.
        is_rehearsal: Whether nothing is removed, but only counted.
    """

    before: float
    keep_answers: bool = False
    incomplete: bool = False
    is_rehearsal: bool = False


@dataclass
class Pruned:
    """What was removed, or would be, and what of that age was left and why.

    Attributes:
        sessions, rows: Sessions, and rows of sweeps.
        files: Files in them that go.
        size_bytes: Their size.
        incomplete: Sessions and rows left because their last turn can be resumed.
        live: Sessions, rows and sweeps left because a process works on them.
        not_noted: Rows left because they ended and their sweep has not noted how.
        unread: Why others were left, a sentence each.
    """

    sessions: int = 0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    incomplete: int = 0
    live: int = 0
    not_noted: int = 0
    unread: list[str] = field(default_factory=list)


def seconds_of(age: str) -> int:
    """Read a length of time, such as 12h, 30d or 8w, as seconds.

    Raises:
        UserError: It is none.
    """
    found = _AGE.fullmatch(age.strip())
    if found is None:
        raise UserError(f"{age!r} is not a duration. Write hours, days or weeks: 12h, 30d, 8w.")
    return int(found[1]) * _UNITS_S[found[2]]


def prune(root: Path, spec: PruneSpec) -> Pruned:
    """Remove the sessions, and the rows of sweeps, that nobody has used for long.

    What a process works on is left, and so is what can't be read or removed.

    Args:
        root: The session root.
        spec: What is to be removed.

    Returns:
        What was removed, or with `PruneSpec.is_rehearsal` would be.
    """
    pruned = Pruned()
    pruned.sessions = sum(_goes(path, spec, pruned) for path in _old(root, spec, pruned))
    for sweep, _, is_live in sweeps_in(root):
        if is_live:
            pruned.live += 1
            continue
        try:
            with nullcontext() if spec.is_rehearsal else owner_lock(sweep).acquire(timeout=0):
                pruned.rows += _prune_rows(sweep, spec, pruned)
        except Timeout:  # by now
            pruned.live += 1
        except OSError as exc:
            pruned.unread.append(f"Sweep {sweep.name} is left: {exc.strerror}.")
    return pruned


def _prune_rows(sweep: Path, spec: PruneSpec, pruned: Pruned) -> int:
    noted = read_results(sweep)
    rows = list(_old(sweep, spec, pruned))
    known = [row for row in rows if row.name in noted]
    pruned.not_noted += len(rows) - len(known)
    return sum(_goes(row, spec, pruned) for row in known)


def _old(root: Path, spec: PruneSpec, pruned: Pruned) -> Iterable[Path]:
    found = sessions_in(root)
    pruned.unread += map(str, found.unreadable)
    return [path for path in found.by_use if last_use(turns_of(path)[-1]) < spec.before]


def _goes(session: Path, spec: PruneSpec, pruned: Pruned) -> bool:
    """Remove a session if it may be; count it, or why it is left."""
    last = turns_of(session)[-1]
    if last.is_live():
        pruned.live += 1
        return False
    if not (spec.incomplete or _is_complete(last)):
        pruned.incomplete += 1
        return False
    try:
        parts = work_of(session) if spec.keep_answers else [session]
        sizes = [size for part in parts for size in _sizes(part)]
        if parts and not spec.is_rehearsal:
            (strip_session if spec.keep_answers else delete_session)(session)
    except SessionBusyError:
        pruned.live += 1
        return False
    except (UserError, OSError) as exc:
        pruned.unread.append(f"Session {session.name} is left: {exc}")
        return False
    pruned.files += len(sizes)
    pruned.size_bytes += sum(sizes)
    return bool(parts)


def _is_complete(turn: TurnPaths) -> bool:
    # There is a status while a turn is incomplete, and at its completion's last write no more.
    data = read_json(turn.metadata)
    return bool(data) and "status" not in data


def _sizes(path: Path) -> list[int]:
    """List the sizes of a file, or of all files below a directory, in bytes; links have none."""
    if path.is_symlink():
        return []
    if path.is_file():
        return [path.stat().st_size]
    with Directory(real_above(path)) as directory:
        return [entry.stat.st_size for entry in directory.walk() if entry.kind == "file"]
