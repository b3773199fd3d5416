"""Removes old sessions, including those in groups."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from nb_agents.disk.directory import Directory
from nb_agents.errors import SessionBusyError, UserError
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, last_use, sessions_in, turns_of
from nb_agents.session.manage import delete_session, strip_session, strippable_paths
from nb_agents.session.views import read_json
from nb_agents.view.fold import fold

_AGE = re.compile(r"([0-9]{1,6})([hdw])")
_UNITS_S = {"h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class PruneSpec:
    """The sessions to remove.

    Attributes:
        before: Remove only sessions last used before this time, in Unix seconds.
        keep_answers: Whether to keep answers, metadata and summaries.
        incomplete: Whether to also remove sessions whose last turn can be resumed.
        is_dry_run: Whether to only count the sessions.
    """

    before: float
    keep_answers: bool = False
    incomplete: bool = False
    is_dry_run: bool = False


@dataclass
class Pruned:
    """The numbers of removed sessions, and of sessions that were kept for some reason.

    In a dry run, counts the sessions that would be removed.

    Attributes:
        sessions, rows: Removed sessions: those of the root, and those in groups.
        ledgers: Removed ledgers of budgets.
        files: Removed files.
        size_bytes: Their total size.
        incomplete: Sessions kept because their last turn can be resumed.
        live: Sessions and groups kept because a process is running them.
        not_noted: Sessions kept because their group has not recorded their result.
        unread: A message for each session kept because of an error.
    """

    sessions: int = 0
    rows: int = 0
    ledgers: int = 0
    files: int = 0
    size_bytes: int = 0
    incomplete: int = 0
    live: int = 0
    not_noted: int = 0
    unread: list[str] = field(default_factory=list)


def parse_age(age: str) -> int:
    """Return the seconds of a duration such as 12h, 30d or 8w.

    Raises:
        UserError: The text is not a duration.
    """
    match = _AGE.fullmatch(age.strip())
    if match is None:
        raise UserError(f"{age!r} is not a duration. Write hours, days or weeks: 12h, 30d, 8w.")
    return int(match[1]) * _UNITS_S[match[2]]


class Pruning:
    """Removes old sessions. Sessions that are live, or can't be read or removed, are kept.

    Args:
        spec: The sessions to remove.

    Attributes:
        done: The numbers of removed and kept sessions so far.
        removed: The removed sessions. In a dry run, those that would be removed.
    """

    def __init__(self, spec: PruneSpec) -> None:
        self.spec, self.done = spec, Pruned()
        self.removed = set[Path]()

    def remove_sessions(self, root: Path) -> None:
        """Remove the old sessions in a session root."""
        self.done.sessions += sum([self.remove(session) for session in self.old(root)])

    def old(self, root: Path) -> list[Path]:
        """Return the sessions in a directory that have not been used for some time."""
        sessions = sessions_in(root)
        self.done.unread += map(str, sessions.unreadable)
        return [path for path in sessions.by_use if last_use(turns_of(path)[-1]) < self.spec.before]

    def remove(self, session: Path) -> bool:
        """Remove a session, unless it must be kept. Returns whether it was removed."""
        last = turns_of(session)[-1]
        if last.is_live():
            self.done.live += 1
            return False
        if not (self.spec.incomplete or _is_complete(last)):
            self.done.incomplete += 1
            return False
        try:
            parts = strippable_paths(session) if self.spec.keep_answers else [session]
            sizes = [size for part in parts for size in _sizes(part)]
            if parts and not self.spec.is_dry_run:
                (strip_session if self.spec.keep_answers else delete_session)(session)
        except SessionBusyError:
            self.done.live += 1
            return False
        except (UserError, OSError) as exc:
            self.done.unread.append(f"Session {session.name} was not removed: {exc}")
            return False
        if not self.spec.keep_answers:
            self.removed.add(session)
        self.done.files += len(sizes)
        self.done.size_bytes += sum(sizes)
        return bool(parts)


def _is_complete(turn: TurnPaths) -> bool:
    if events := read_journal(turn.journal).events:
        return fold(events).status == "completed"
    # Without a journal: the last write of a completed turn removes the status.
    data = read_json(turn.metadata)
    return bool(data) and "status" not in data


def _sizes(path: Path) -> list[int]:
    """Return the sizes in bytes of a file, or of all files in a directory, without links."""
    if path.is_symlink():
        return []
    if path.is_file():
        return [path.stat().st_size]
    with Directory.at(path) as directory:
        return [entry.stat.st_size for entry in directory.walk() if entry.kind == "file"]
