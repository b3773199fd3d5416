"""Which agent's call wrote each line of a file, from the snapshots before and after each call.

A snapshot of a workspace is saved before each call that may write to it, so the next one shows what
the call did, whether it was an edit or a shell command. Of user files, the content before and after
each call is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple, TypeVar

from nb_agents import events as ev
from nb_agents.disk.directory import read_file
from nb_agents.errors import UserError
from nb_agents.launch.file_calls import FileCall, FileCalls
from nb_agents.session.history import past_events
from nb_agents.session.journal import MAX_BYTES as MAX_JOURNAL_BYTES
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.snapshots.store import SnapshotStore

MAX_BYTES = 1_000_000
"""Maximum size of a file whose lines are compared, in bytes."""
MAX_LINES = 50_000
"""Maximum number of lines of such a file."""
MANY_LINES = 2000
"""In a change of more lines, lines that are repeated very often may be assigned to the change."""
_WORKSPACES = "workspaces"

Author = TypeVar("Author")


class FileVersion(NamedTuple):
    """What a file contained before and after a call."""

    before: str
    after: str
    call: FileCall


def carried(
    before: Sequence[str],
    authors: Sequence[Author | None],
    after: Sequence[str],
    author: Author | None,
) -> list[Author | None]:
    """Return the authors of new lines: unchanged lines keep theirs, and all others get `author`.

    Args:
        before: The old lines.
        authors: Their authors.
        after: The new lines.
        author: The author of the change, or None for the user.
    """
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    old, changed = before[head : len(before) - tail], after[head : len(after) - tail]
    new = [*authors[:head], *[author] * len(changed), *authors[len(authors) - tail :]]
    # Without autojunk, the time for repeated lines is quadratic.
    matcher = SequenceMatcher(None, old, changed, autojunk=len(changed) > MANY_LINES)
    for start, new_start, size in matcher.get_matching_blocks():
        new[head + new_start : head + new_start + size] = authors[
            head + start : head + start + size
        ]
    return new


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of equal lines at the beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def line_authors(
    versions: Iterable[FileVersion], current: str
) -> list[tuple[str, FileCall | None]]:
    """Return each line of a file with the call that wrote it, or None for the user's lines.

    Args:
        versions: The changes of agents, oldest first. Between two, the user may have edited it.
        current: The current content.
    """
    lines, authors = list[str](), list[FileCall | None]()
    for version in versions:
        before, after = version.before.splitlines(), version.after.splitlines()
        authors = carried(lines, authors, before, None)
        authors = carried(before, authors, after, version.call)
        lines = after
    now = current.splitlines()
    return [*zip(now, carried(lines, authors, now, None), strict=True)]


def blame_file(sessions: Iterable[Path], file: Path) -> list[tuple[str, FileCall | None]]:
    """Return each line of a file of a workspace, or of a user file, with the call that wrote it.

    Args:
        sessions: The directories of the sessions to search.
        file: The file.

    Raises:
        UserError: The file is not text, is too large, or can't be read.
    """
    path = file.expanduser().resolve()
    try:
        current = read_file(path, MAX_BYTES).decode()
    except OSError as exc:
        raise UserError(f"{file} can't be read: {exc.strerror or exc}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text in UTF-8.") from None
    return blame_text(sessions, path, current, current)


def blame_text(
    sessions: Iterable[Path], file: Path, saved: str, current: str
) -> list[tuple[str, FileCall | None]]:
    """Return each line of an edited file with the call that wrote it, or None for the user's lines.

    Args:
        sessions: The directories of the sessions to search.
        file: The resolved path of the file.
        saved: The content of the file.
        current: The text in the editor.

    Raises:
        UserError: The text has too many lines.
    """
    if max(saved.count("\n"), current.count("\n")) > MAX_LINES:
        raise UserError(f"{file} has more than {MAX_LINES:,} lines.")
    turn = _turn_of(file)
    versions = _workspace_versions(*turn, saved) if turn else _user_versions(sessions, file)
    return line_authors(versions, current)


def _turn_of(path: Path) -> tuple[TurnPaths, str, str] | None:
    """Return the turn, the workspace and the path in it of a file of a workspace, or None."""
    for folder in path.parents:
        if folder.name == _WORKSPACES and TurnPaths(folder.parent).journal.is_file():
            workspace, *rest = path.relative_to(folder).parts
            return TurnPaths(folder.parent), workspace, "/".join(rest)
    return None


def _workspace_versions(
    turn: TurnPaths, workspace: str, path: str, current: str
) -> Iterator[FileVersion]:
    """Yield the changes of a file of a workspace, from one snapshot to the next."""
    events = past_events(turn)
    calls, store = FileCalls(turn, events), SnapshotStore(turn.path.parent)
    earlier: tuple[str, FileCall] | None = None
    for event in events:
        if isinstance(event, ev.FilesSaved) and event.workspace == workspace:
            content = _content(store, event.tree, path)
            if earlier is not None and earlier[0] != content:
                yield FileVersion(earlier[0], content, earlier[1])
            earlier = content, calls.of(event.call, event.at)
    if earlier is not None and earlier[0] != current:
        yield FileVersion(earlier[0], current, earlier[1])


def _user_versions(sessions: Iterable[Path], path: Path) -> list[FileVersion]:
    """Return the changes of a user file by the agents of all sessions, oldest first."""
    found = list[tuple[float, FileVersion]]()
    for session in sessions:
        store = SnapshotStore(session)
        for turn in turns_of(session):
            events = _events_with_user_files(turn)
            calls = FileCalls(turn, events)
            found += [
                (event.at, FileVersion(before, after, calls.of(event.call, event.at)))
                for event in events
                if isinstance(event, ev.UserFilesSaved) and event.before and event.after
                for before, after in _changes(store, event, path)
            ]
    return [version for _, version in sorted(found, key=lambda each: each[0])]


def _events_with_user_files(turn: TurnPaths) -> Sequence[ev.Event]:
    """Return the events of a turn that changed user files, or nothing."""
    with suppress(OSError, UserError):
        if b'"own_files_kept"' in read_file(turn.journal, MAX_JOURNAL_BYTES):
            return read_journal(turn.journal).events
    return ()


def _changes(
    store: SnapshotStore, event: ev.UserFilesSaved, path: Path
) -> Iterator[tuple[str, str]]:
    """Yield what a user file contained before and after a call, if the call changed it."""
    place = Path(event.place)
    if path.is_relative_to(place):
        name = path.relative_to(place).as_posix()
        before, after = _content(store, event.before, name), _content(store, event.after, name)
        if before != after:
            yield before, after


def _content(store: SnapshotStore, tree: str, path: str) -> str:
    """Return the text of a file in a snapshot, or "" if it is not there or not text."""
    with suppress(OSError, ValueError):
        entry = store.read_tree(tree).get(path)
        if entry is not None and entry.kind == "f" and entry.size <= MAX_BYTES:
            return store.read_blob(entry).decode()
    return ""
