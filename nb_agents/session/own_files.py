"""Files of the person's own that agents change: what each held before and after.

A place is a context path that may be written, or the directory of ``workspace: project``. What a
command will change there nobody knows, so all of the place is held aside while commands work in it:

    <session>/snapshots/held/    what places hold, until the turn's end
                        <n>.json which place a writer is at work in, and what it held before

Of that only what a writer changed goes to the session's snapshots. An edit tool knows its path, and
no other file is looked at. Protected paths, such as ``.git`` and ``node_modules``, are left out.

A process that dies leaves the files of ``held`` behind: what changed there since is not known to be
the writer's alone.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from nb_agents.disk.entry import TEMP, RefusedError, printable_name
from nb_agents.events import Event, OwnFilesKept
from nb_agents.process.writable import (
    MAX_COPIED_BYTES,
    MAX_LOOKED_AT,
    NEVER_WRITTEN,
    WritablePath,
)
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.snapshots import (
    HELD,
    LIMIT_BYTES,
    Index,
    KeptPath,
    LeavesOut,
    SnapshotStore,
    measure,
    with_parents,
)

logger = logging.getLogger("nb_agents")

MAX_NAMED = 20
_RECORD = ".json"
_CUT = "was changed while or after a call was cut"


class OwnChange(NamedTuple):
    """A change of one of the person's files.

    Attributes:
        place: The directory below which it is, absolute.
        path: Its path there.
        before: What was there; None for nothing.
        after: What is there since.
        doubt: Why others may have changed it, as the rest of a sentence; else "".
    """

    place: str
    path: str
    before: KeptPath | None
    after: KeptPath | None
    doubt: str = ""

    @property
    def name(self) -> str:
        """The file's absolute name."""
        return f"{self.place}/{self.path}"


@dataclass(frozen=True)
class KnownPlace:
    """What is known of a place.

    Attributes:
        index: What it held when it was looked at last.
        paths: The paths that were looked at; None means all.
    """

    index: Index = field(default_factory=Index)
    paths: frozenset[str] | None = frozenset()


class OwnFiles:
    """Keeps what agents change of the person's files. Methods block.

    Args:
        session: The session's directory.
        limit: Bytes over which a file is not kept.

    Attributes:
        store: The session's kept files.
    """

    def __init__(self, session: Path, limit: int = LIMIT_BYTES) -> None:
        self.store = SnapshotStore(session, limit)
        self._new_held = partial(SnapshotStore, session, limit, HELD)
        self._held = self._new_held()

    def look(
        self, place: WritablePath, known: KnownPlace, only: Collection[str] | None = None
    ) -> tuple[KnownPlace, list[OwnChange]]:
        """Look at a place, and hold what is there.

        Args:
            place: The place.
            known: What is known of it.
            only: The paths to look at, below its `root_of`; None means all.

        Returns:
            What is known now, and what is different from what was known.

        Raises:
            OSError: It can't be read, holds too much, or a write failed.
        """
        root, index, leaves_out = root_of(place), known.index, _leaving_out(place)
        if root != place.path:
            only = [place.path.name]
        if only is None and known.paths is not None:
            _check_size(root, leaves_out)
            index = Index()
        kept = self._held.keep(root, index, only, leaves_out)
        paths = known.paths
        if paths is not None:
            paths = None if only is None else paths.union(with_parents(only) or ())
        old, new = known.index.tree, kept.known.tree
        looked_at = kept.changed if known.paths is None else sorted(known.paths)
        found = (OwnChange(str(root), path, old.get(path), new.get(path)) for path in looked_at)
        changes = [each for each in found if not is_same(each.before, each.after)]
        return KnownPlace(kept.known, paths), changes

    def begin(self, place: WritablePath, known: KnownPlace) -> Path:
        """Record that a writer begins in a place, for the case that its process dies.

        Returns:
            The record, which is removed when the writer has ended.
        """
        said = {
            "place": str(place.path),
            "protected": [*map(str, place.protected)],
            "tree": known.index.id,
            "paths": None if known.paths is None else sorted(known.paths),
        }
        self._held.path.mkdir(parents=True, exist_ok=True)
        record = self._held.path / f"{time.time_ns():020}{_RECORD}"
        temp = record.with_suffix(TEMP)
        temp.write_text(json.dumps(said))
        os.replace(temp, record)
        return record

    def keep(self, place: str, changes: Sequence[OwnChange], call: str) -> OwnFilesKept:
        """Keep what changed files held before and hold since.

        Args:
            place: The place.
            changes: The changes, of which there may be none.
            call: Whose writer made them.
        """
        if not changes:
            return OwnFilesKept(place=place, call=call)
        for change in changes:
            for entry in (change.before, change.after):
                if entry is not None:
                    with suppress(FileNotFoundError):  # the store has it, as after a rewind
                        self.store.take(entry, self._held)
        return OwnFilesKept(
            place=changes[0].place,
            call=call,
            before=self.store.write({c.path: c.before for c in changes if c.before is not None}),
            after=self.store.write({c.path: c.after for c in changes if c.after is not None}),
            changed=tuple(printable_name(c.path) for c in changes[:MAX_NAMED]),
            count=len(changes),
            is_sure=not any(change.doubt for change in changes),
        )

    def read(self, entry: KeptPath) -> bytes:
        """Return what a file held."""
        try:
            return self.store.read(entry)
        except FileNotFoundError:  # of a writer whose process died
            return self._held.read(entry)

    def left_behind(self) -> list[OwnChange]:
        """Return what is different since writers began whose process died."""
        found: dict[str, OwnChange] = {}
        for record in sorted(self._held.path.glob(f"*{_RECORD}")):
            try:
                said = json.loads(record.read_bytes())
                place = WritablePath(Path(said["place"]), [*map(Path, said["protected"])])
                paths = None if said["paths"] is None else frozenset(said["paths"])
                known = KnownPlace(self._held.index(said["tree"]), paths)
                for change in self.look(place, known, paths)[1]:
                    found.setdefault(change.name, change._replace(doubt=_CUT))
            except (ValueError, KeyError, TypeError, OSError):
                logger.debug("%s can't be read", record, exc_info=True)
        return [*found.values()]

    def drop(self, is_settled: bool = False) -> None:
        """Drop what is held; what was kept stays.

        Args:
            is_settled: Whether what writers left behind was kept; else that stays.
        """
        if not is_settled and any(self._held.path.glob(f"*{_RECORD}")):
            return
        self._held.is_closed = True  # a look that a stop has cut may go on in its thread
        shutil.rmtree(self._held.path, ignore_errors=True)
        self._held = self._new_held()


class OwnHistory(NamedTuple):
    """What was changed of the person's own files behind a point.

    Attributes:
        changes: The changes, in order.
        unkept: For each place of which something was not kept, why.
    """

    changes: tuple[OwnChange, ...] = ()
    unkept: Mapping[str, str] = MappingProxyType({})


def changes_after(session: Path, turn: int, point: int) -> OwnHistory:
    """Return what was changed of the person's own files behind a point.

    Args:
        session: The session's directory.
        turn: Number of the turn.
        point: Number of its last event that counts.

    Raises:
        OSError: What was kept is missing or damaged.
    """
    own, found, unkept = OwnFiles(session), list[OwnChange](), dict[str, str]()
    turns = [each for each in turns_of(session) if each.number >= turn]
    for each in turns:
        for event in _events_of(each):
            if not isinstance(event, OwnFilesKept) or each.number == turn and event.seq <= point:
                continue
            if event.why_not:
                unkept.setdefault(event.place, event.why_not)
            elif event.count:
                doubt = "" if event.is_sure else _CUT
                if event.place in unkept:
                    doubt = doubt or "may have been changed before, by a call that was not kept"
                found += _changes(own.store, event, doubt)
    if turns and not turns[-1].is_live():
        found += own.left_behind()
    return OwnHistory(tuple(found), unkept)


def _events_of(turn: TurnPaths) -> Sequence[Event]:
    """Return a turn's events, or none where it changed nothing of the person's own."""
    with suppress(OSError):
        if b'"own_files_kept"' not in turn.journal.read_bytes():
            return ()
    return read_journal(turn.journal).events


def _changes(store: SnapshotStore, event: OwnFilesKept, doubt: str) -> Iterator[OwnChange]:
    before, after = store.tree(event.before), store.tree(event.after)
    for path in sorted({*before, *after}):
        yield OwnChange(event.place, path, before.get(path), after.get(path), doubt)


def root_of(place: WritablePath) -> Path:
    """Return the directory below which the paths of a place are; it may be a single file."""
    return place.path if place.path.is_dir() else place.path.parent


def is_same(one: KeptPath | None, other: KeptPath | None) -> bool:
    """Return whether two states of a path are the same, whenever it was written."""
    if one is None or other is None or "x" in (one.kind, other.kind):
        return one == other
    return (one.kind, one.mode, one.value) == (other.kind, other.mode, other.value)


def _leaving_out(place: WritablePath) -> LeavesOut:
    """Return which paths of a place are protected, by their names."""
    protected = place.protected_names
    if not protected:
        return lambda prefix, name: name.casefold() in NEVER_WRITTEN
    return lambda prefix, name: (
        name.casefold() in NEVER_WRITTEN or f"{prefix}{name}".casefold() in protected
    )


def _check_size(root: Path, leaves_out: LeavesOut) -> None:
    """Refuse a place that holds too much to be held aside."""
    files, size = measure(root, leaves_out)
    if files > MAX_LOOKED_AT or size > MAX_COPIED_BYTES:
        raise RefusedError(f"it holds more than {MAX_LOOKED_AT} files or {MAX_COPIED_BYTES} bytes")
