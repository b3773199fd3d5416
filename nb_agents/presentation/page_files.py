"""The files of a turn as its page shows them: their text, and what the turn changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from nb_agents import events as ev
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import printable_name
from nb_agents.presentation import text
from nb_agents.session.history import PastTurn
from nb_agents.session.journal import read_journal
from nb_agents.snapshots.store import SnapshotStore
from nb_agents.snapshots.tree import TreeEntry
from nb_agents.unicode import well_formed, without_controls

MAX_FILE_CHARS = 20_000
"""Maximum length of a file's shown text or diff, in characters. A longer one is cut."""
MAX_FILE_BYTES = 1_000_000
"""A larger file is listed without its text."""
MAX_DIFFED_BYTES = 200_000
"""A larger file is not compared."""
MAX_TEXT_CHARS = 150_000
"""Maximum length of the text of all files of a turn, in characters."""


class ShownFile(NamedTuple):
    """A file of a workspace, or a user file that agents changed.

    Attributes:
        name: The agent and the path, or the path of a user file.
        size: The size as text, or "" for a user file.
        text: The beginning of its text or diff, or "" for a file that is not text.
        is_cut: Whether text is missing.
        is_diff: Whether the text is the diff of what the turn changed.
    """

    name: str
    size: str = ""
    text: str = ""
    is_cut: bool = False
    is_diff: bool = False


def shown_files(turn: PastTurn, previous: PastTurn | None = None) -> Iterator[ShownFile]:
    """Yield the files of a turn, as far as the page has room.

    A file that the turn has created is shown whole. Of a file that it has changed, the diff comes
    first: from the beginning of the turn or, if the workspace was empty then, from the files of the
    previous turn's answer.

    Args:
        turn: The turn.
        previous: The turn before it in the session, or None.
    """
    room = MAX_TEXT_CHARS
    for file in _all_files(turn, previous):
        shown = file.text[: min(room, MAX_FILE_CHARS)]
        room -= len(shown)
        yield file._replace(text=shown, is_cut=len(shown) < len(file.text))


def _all_files(turn: PastTurn, previous: PastTurn | None) -> Iterator[ShownFile]:
    own = read_journal(turn.paths.journal).events
    store = SnapshotStore(turn.paths.path.parent)
    before = _first_trees(store, own)
    for file in turn.view.files:
        name, size = without_controls(f"{file.agent}: {file.path}"), text.size(file.size)
        content = _text_of(turn, file.agent, file.path) if file.size else ""
        old = _stored(store, before.get(file.agent, {}).get(file.path))
        old = old or (_text_of(previous, previous.view.winner, file.path) if previous else "")
        if old and (diff := _diff(old, content)):
            yield ShownFile(name, size, diff, is_diff=True)
        yield ShownFile(name, size, content)
    for path, (first, last) in _user_files(store, own).items():
        if diff := _diff(_stored(store, first), _stored(store, last)):
            yield ShownFile(printable_name(path), "", diff, is_diff=True)


def _first_trees(
    store: SnapshotStore, events: tuple[ev.Event, ...] | list[ev.Event]
) -> dict[str, Mapping[str, TreeEntry]]:
    """Return the files of each workspace before the turn's first call that may write."""
    trees = dict[str, Mapping[str, TreeEntry]]()
    for event in events:
        if isinstance(event, ev.FilesSaved) and event.workspace not in trees:
            with suppress(OSError):
                trees[event.workspace] = store.read_tree(event.tree)
    return trees


def _user_files(
    store: SnapshotStore, events: tuple[ev.Event, ...] | list[ev.Event]
) -> dict[str, tuple[TreeEntry | None, TreeEntry | None]]:
    """Return the user files that the turn changed, before the first change and after the last."""
    found = dict[str, tuple[TreeEntry | None, TreeEntry | None]]()
    for event in events:
        if isinstance(event, ev.UserFilesSaved) and event.before and event.after:
            with suppress(OSError):
                old, new = store.read_tree(event.before), store.read_tree(event.after)
                for path in sorted({*old, *new}):
                    name = f"{event.place}/{path}"
                    first = found[name][0] if name in found else old.get(path)
                    found[name] = first, new.get(path)
    return found


def _stored(store: SnapshotStore, entry: TreeEntry | None) -> str:
    if entry is None or entry.kind != "f" or entry.size > MAX_DIFFED_BYTES:
        return ""
    with suppress(OSError, ValueError):
        return store.read_blob(entry).decode()
    return ""


def _diff(before: str, after: str) -> str:
    if len(after) > MAX_DIFFED_BYTES:
        return ""
    old, new = (
        [without_controls(well_formed(line)) for line in each.splitlines()]
        for each in (before, after)
    )
    return "\n".join([*difflib.unified_diff(old, new, lineterm="")][2:])


def _text_of(turn: PastTurn, agent: str, path: str) -> str:
    return _read(turn.paths.path / "workspaces" / agent, path)


def _read(root: Path, path: str) -> str:
    """Return the text of a file, or "" if it is not text, too large or unreadable."""
    with suppress(OSError, ValueError), Directory.at(root) as folder:
        return without_controls(folder.read(path, MAX_FILE_BYTES).decode())
    return ""
