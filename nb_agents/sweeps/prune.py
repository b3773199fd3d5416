"""Removing old sessions and old rows of sweeps.

A sweep keeps its ``rows.jsonl``, so that repeating the call runs no row twice; only rows whose
result is recorded there are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout

from nb_agents.disk.directory import Directory
from nb_agents.errors import SessionBusyError, UserError
from nb_agents.session.layout import TurnPaths, last_use, sessions_in, turns_of
from nb_agents.session.manage import delete_session, strip_session, strippable_paths
from nb_agents.session.views import read_json
from nb_agents.sweeps.manifest import is_live_sweep, owner_lock, sweep_paths
from nb_agents.sweeps.sweep_fold import fold_notes

_AGE = re.compile(r"([0-9]{1,6})([hdw])")
_UNITS_S = {"h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class PruneSpec:
    """Which sessions to remove.

    Attributes:
        before: Only those last used before this time, in Unix seconds.
        keep_answers: Whether to keep answers, metadata and summaries.
        incomplete: Whether to include sessions whose last turn can be resumed.
        is_dry_run: Whether to only count, and remove nothing.
    """

    before: float
    keep_answers: bool = False
    incomplete: bool = False
    is_dry_run: bool = False


@dataclass
class Pruned:
    """The number of sessions removed, or to be removed, and of those kept for a reason.

    Attributes:
        sessions, rows: Sessions and rows of sweeps removed.
        files: Files removed.
        size_bytes: The files' total size.
        incomplete: Sessions and rows kept because their last turn can be resumed.
        live: Sessions, rows and sweeps kept because a process is running them.
        not_noted: Rows kept because their sweep has no result of them.
        unread: A sentence for each session kept because of an error.
    """

    sessions: int = 0
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    incomplete: int = 0
    live: int = 0
    not_noted: int = 0
    unread: list[str] = field(default_factory=list)


def parse_age(age: str) -> int:
    """Parse a duration such as 12h, 30d or 8w; return it in seconds.

    Raises:
        UserError: The text is not a duration.
    """
    found = _AGE.fullmatch(age.strip())
    if found is None:
        raise UserError(f"{age!r} is not a duration. Write hours, days or weeks: 12h, 30d, 8w.")
    return int(found[1]) * _UNITS_S[found[2]]


def prune(root: Path, spec: PruneSpec) -> Pruned:
    """Remove old sessions and old rows of sweeps.

    Those that are running, and those that can't be read or removed, are kept.

    Args:
        root: The session root.
        spec: Which sessions to remove.

    Returns:
        What was removed, or would be with `PruneSpec.is_dry_run`.
    """
    pruned = Pruned()
    pruned.sessions = sum(_prune_one(path, spec, pruned) for path in _old(root, spec, pruned))
    for sweep in sweep_paths(root):
        if is_live_sweep(sweep):
            pruned.live += 1
            continue
        try:
            with nullcontext() if spec.is_dry_run else owner_lock(sweep).acquire(timeout=0):
                pruned.rows += _prune_rows(sweep, spec, pruned)
        except Timeout:  # it has just been started
            pruned.live += 1
        except OSError as exc:
            pruned.unread.append(f"Sweep {sweep.name} is left: {exc.strerror}.")
    return pruned


def _prune_rows(sweep: Path, spec: PruneSpec, pruned: Pruned) -> int:
    noted = fold_notes(sweep).results
    rows = list(_old(sweep, spec, pruned))
    known = [row for row in rows if row.name in noted]
    pruned.not_noted += len(rows) - len(known)
    return sum(_prune_one(row, spec, pruned) for row in known)


def _old(root: Path, spec: PruneSpec, pruned: Pruned) -> Iterable[Path]:
    found = sessions_in(root)
    pruned.unread += map(str, found.unreadable)
    return [path for path in found.by_use if last_use(turns_of(path)[-1]) < spec.before]


def _prune_one(session: Path, spec: PruneSpec, pruned: Pruned) -> bool:
    """Remove a session unless it must be kept, and count it; return whether it was removed."""
    last = turns_of(session)[-1]
    if last.is_live():
        pruned.live += 1
        return False
    if not (spec.incomplete or _is_complete(last)):
        pruned.incomplete += 1
        return False
    try:
        parts = strippable_paths(session) if spec.keep_answers else [session]
        sizes = [size for part in parts for size in _sizes(part)]
        if parts and not spec.is_dry_run:
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
    # The last write of a completed turn removes the status.
    data = read_json(turn.metadata)
    return bool(data) and "status" not in data


def _sizes(path: Path) -> list[int]:
    """Return the sizes of a file, or of all files in a directory, in bytes; links are skipped."""
    if path.is_symlink():
        return []
    if path.is_file():
        return [path.stat().st_size]
    with Directory.at(path) as directory:
        return [entry.stat.st_size for entry in directory.walk() if entry.kind == "file"]
