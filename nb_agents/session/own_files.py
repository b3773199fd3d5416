"""Files of the person's own that agents change: what each held before and after.

A place is a context path that may be written, or the directory of ``workspace: project``. What a
command will change there nobody knows, so all of the place is held aside while commands work in it:

    <session>/snapshots/held/    what places hold, until the turn's end
                        <n>.json which place a writer is at work in, and what it held before;
                                 of one that a stop has cut, also what it held then

Of that only what a writer changed goes to the session's snapshots. An edit tool knows its path, and
no other file is looked at. Protected paths, such as ``.git`` and ``node_modules``, are left out.

A stop does not wait for a look at what the cut writer has changed: that comes behind the turn's
end, and the next turn journals what was found. A process that dies before leaves the files of
``held`` behind: what changed there since is not known to be the writer's alone.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    Tree,
    measure,
    with_parents,
)

logger = logging.getLogger("nb_agents")

MAX_NAMED = 20
_RECORD = ".json"
_CUT = "was changed while or after a call was cut"
_TICK_NS = 10_000_000
"""How far the clock of a file system may be behind."""
_SETTLE_S = 2.0
"""How long a reader, or the interpreter's exit, waits for a look at what was cut, in seconds."""
_settling: dict[Path, list[threading.Thread]] = {}
"""Of each session, the threads that look."""


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


class CutWriter(NamedTuple):
    """A writer that a stop has cut, and of which nobody has looked at what it changed.

    Attributes:
        place: Where it was at work.
        known: What is known of that.
        only: The paths that it writes there; None means all.
        record: Its record.
        at_ns: When it was cut, in nanoseconds.
    """

    place: WritablePath
    known: KnownPlace
    only: Sequence[str] | None
    record: Path
    at_ns: int


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
        self._session = session
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
        looked_at = kept.changed if known.paths is None else sorted(known.paths)
        changes = _differing(str(root), known.index.tree, kept.known.tree, looked_at)
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
        _write_record(record, said)
        return record

    def settle_behind(self, cut: CutWriter) -> None:
        """Settle a cut writer in a thread of its own, for which nothing waits but a reader."""
        look = threading.Thread(target=self._try_to_settle, args=(cut,), daemon=True)
        with suppress(RuntimeError):  # the interpreter is at its end
            look.start()
            others = [each for each in _settling.get(self._session, ()) if each.is_alive()]
            _settling[self._session] = [*others, look]

    def _try_to_settle(self, cut: CutWriter) -> None:
        try:
            self.settle(cut)
        except (OSError, ValueError):  # all that it changed is doubtful then, as after a kill
            logger.debug("%s can't be looked at", cut.place.path, exc_info=True)

    def settle(self, cut: CutWriter) -> None:
        """Look at what a cut writer has changed, and add it to its record for the next turn.

        What may have changed after the cut is doubtful.

        Raises:
            OSError: It can't be read, a write failed, or the next turn has taken the record.
        """
        now, changes = self.look(cut.place, cut.known, cut.only)
        late = [each.path for each in changes if _last_change(each) >= cut.at_ns - _TICK_NS]
        said = json.loads(cut.record.read_bytes())
        paths = None if cut.known.paths is None else sorted(cut.known.paths)
        said |= {"tree": cut.known.index.id, "paths": paths, "after": now.index.id, "late": late}
        _write_record(cut.record, said)

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
        """Return what writers changed that were cut, or whose process died."""
        _wait_until_settled(self._session)
        found: dict[str, OwnChange] = {}
        for record in sorted(self._held.path.glob(f"*{_RECORD}")):
            try:
                said = json.loads(record.read_bytes())
                place = WritablePath(Path(said["place"]), [*map(Path, said["protected"])])
                paths = None if said["paths"] is None else frozenset(said["paths"])
                known = KnownPlace(self._held.index(said["tree"]), paths)
                late = None
                if "after" in said:
                    late = frozenset(said["late"])
                    after = self._held.tree(said["after"])
                    changes = _between(str(root_of(place)), known, after)
                else:
                    changes = self.look(place, known, paths)[1]
                for change in changes:
                    doubt = _CUT if late is None or change.path in late else ""
                    found.setdefault(change.name, change._replace(doubt=doubt))
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


def _wait_until_settled(session: Path) -> None:
    for look in _settling.pop(session, ()):
        look.join(_SETTLE_S)


@atexit.register
def _wait_at_exit() -> None:
    for session in [*_settling]:
        _wait_until_settled(session)


def _between(root: str, known: KnownPlace, after: Tree) -> list[OwnChange]:
    """Return what differs from what was known of a place."""
    before = known.index.tree
    paths = {*before, *after} if known.paths is None else known.paths
    return _differing(root, before, after, sorted(paths))


def _differing(root: str, old: Tree, new: Tree, paths: Iterable[str]) -> list[OwnChange]:
    found = (OwnChange(root, path, old.get(path), new.get(path)) for path in paths)
    return [each for each in found if not is_same(each.before, each.after)]


def _last_change(change: OwnChange) -> int:
    """Return when a path was changed last, in nanoseconds, as far as one can see."""
    path = change.name
    while True:
        try:
            return os.lstat(path).st_ctime_ns
        except (FileNotFoundError, NotADirectoryError):  # the directory knows when it went
            path = os.path.dirname(path)


def _write_record(record: Path, said: Mapping[str, object]) -> None:
    temp = record.with_suffix(TEMP)
    temp.write_text(json.dumps(said))
    os.replace(temp, record)


def _leaving_out(place: WritablePath) -> LeavesOut:
    """Return which paths of a place are protected, by their names."""
    protected = place.protected_names
    folders = frozenset(path.rpartition("/")[0] for path in protected)

    def leaves_out(prefix: str, names: Collection[str]) -> Collection[str]:
        folded = [*map(str.casefold, names)]
        above = prefix.casefold()
        if above[:-1] not in folders and NEVER_WRITTEN.isdisjoint(folded):
            return ()  # as in most directories, without a step in Python for each name
        pairs = zip(names, folded, strict=True)
        return [name for name, low in pairs if low in NEVER_WRITTEN or f"{above}{low}" in protected]

    return leaves_out


def _check_size(root: Path, leaves_out: LeavesOut) -> None:
    """Refuse a place that holds too much to be held aside."""
    files, size = measure(root, leaves_out)
    if files > MAX_LOOKED_AT or size > MAX_COPIED_BYTES:
        raise RefusedError(f"it holds more than {MAX_LOOKED_AT} files or {MAX_COPIED_BYTES} bytes")
