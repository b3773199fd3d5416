"""User files changed by agents: their contents before and after each change.

A location is a writable context path or the directory of ``workspace: project``. It is impossible
to predict which files a command will change, so while commands run, there is a copy of the whole
location:

    <session>/snapshots/held/    copies of the locations, until the turn ends
                        <n>.json a record of a running command or edit: its location and the tree
                                 before it; if a stop interrupted it, also the tree after it

Only the files that actually changed are then stored in the session's snapshots. An edit tool knows
which path it changes, so only that file is scanned. Protected paths, such as ``.git`` and
``node_modules``, are left out.

A stop does not wait for a scan of the location of an interrupted command. The scan runs in the
background after the turn has ended, and the next turn writes its result to the journal. If the
process dies before the scan, the files in ``held`` remain. Changes found later may then have been
made by the user and are marked as uncertain. A record without this user's MAC is ignored, because
records determine what a rewind writes into user files.
"""

from __future__ import annotations

import atexit
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
from typing import Any, NamedTuple

from nb_agents.disk.directory import read_file
from nb_agents.disk.entry import TEMP, RefusedError, printable_name
from nb_agents.disk.private import make_folder, write_private
from nb_agents.events import Event, UserFilesSaved
from nb_agents.process.writable import (
    MAX_COPIED_BYTES,
    MAX_SCANNED_FILES,
    NEVER_WRITTEN,
    WritablePath,
)
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import COPIES_FOLDER, SNAPSHOTS, TurnPaths, turns_of
from nb_agents.session.ownership import OwnerMark, add_mac, check_mac, user_mark
from nb_agents.snapshots.index import Index
from nb_agents.snapshots.objects import LIMIT_BYTES
from nb_agents.snapshots.quota import TOTAL_BYTES, SnapshotSpace
from nb_agents.snapshots.store import SnapshotStore
from nb_agents.snapshots.tree import Tree, TreeEntry, with_parents
from nb_agents.snapshots.working_tree import ExcludedNames, measure

logger = logging.getLogger("nb_agents")

MAX_NAMED = 20
_RECORD = ".json"
_RECORDS = "writers at work"
"""The purpose included in a record's MAC."""
_MAX_RECORD_BYTES = 1 << 26
_CUT = "was changed while or after a call was cut"
_TICK_NS = 10_000_000
"""Maximum lag of a file system's clock, in nanoseconds."""
_SCAN_TIMEOUT_S = 2.0
"""Seconds that a reader, or the interpreter at exit, waits for a background scan."""
_scans: dict[Path, list[threading.Thread]] = {}
"""The threads of the background scans, by session directory."""


class UserFileChange(NamedTuple):
    """A change to one user file.

    Attributes:
        root: The absolute path of the directory to which `path` is relative.
        path: The file's path, relative to `root`.
        before: The entry before the change, or None if the path did not exist.
        after: The entry after the change, or None if the path was deleted.
        doubt: Why the change may not be the agents', as a predicate, or "" if there is no doubt.
    """

    root: str
    path: str
    before: TreeEntry | None
    after: TreeEntry | None
    doubt: str = ""

    @property
    def name(self) -> str:
        """The file's absolute path."""
        return f"{self.root}/{self.path}"


@dataclass(frozen=True)
class LocationScan:
    """The result of the last scan of a location.

    Attributes:
        index: The contents of the location at that time.
        paths: The paths that were scanned. None means all.
    """

    index: Index = field(default_factory=Index)
    paths: frozenset[str] | None = frozenset()


class InterruptedWriter(NamedTuple):
    """A command or edit that a stop interrupted, before its changes were scanned.

    Attributes:
        location: The location that it wrote to.
        last_scan: The last scan of the location, from before the call.
        paths: The paths that it may have written to. None means any.
        stopped_ns: When it was interrupted, in Unix nanoseconds.
    """

    location: WritablePath
    last_scan: LocationScan
    paths: Sequence[str] | None
    record: Path
    stopped_ns: int


class UserFiles:
    """Stores the contents of user files before and after agents change them. Methods block.

    Args:
        session: The session's directory.
        limit: Maximum size of a file in bytes. Larger files are not stored.
        mark: The session's mark, which authenticates records. By default it is derived from the
            session's name.
        total: Maximum total size of all snapshots of the session, in bytes.

    Attributes:
        store: The session's snapshots.
    """

    def __init__(
        self,
        session: Path,
        limit: int = LIMIT_BYTES,
        mark: OwnerMark | None = None,
        total: int = TOTAL_BYTES,
    ) -> None:
        space = SnapshotSpace(session / SNAPSHOTS, total)
        self.store = SnapshotStore(session, limit, space=space)
        self._session = session
        self._new_copies = partial(SnapshotStore, session, limit, COPIES_FOLDER, space)
        self._copies = self._new_copies()
        self._mark = mark

    def scan(
        self, location: WritablePath, last_scan: LocationScan, only: Collection[str] | None = None
    ) -> tuple[LocationScan, list[UserFileChange]]:
        """Scan a location, and store its contents until the turn ends.

        Args:
            location: The location.
            last_scan: The previous scan.
            only: The paths to scan, relative to `root_of` the location. None means all.

        Returns:
            The new scan, and the changes since the previous one.

        Raises:
            OSError: The location can't be read or is too large, or a write failed.
        """
        root, index, leaves_out = root_of(location), last_scan.index, _leaves_out_of(location)
        if root != location.path:
            only = [location.path.name]
        if only is None and last_scan.paths is not None:
            _check_size(root, leaves_out)
            index = Index()
        new_snapshot = self._copies.snapshot(root, index, only, leaves_out)
        paths = last_scan.paths
        if paths is not None:
            paths = None if only is None else paths.union(with_parents(only) or ())
        looked_at = new_snapshot.changed if last_scan.paths is None else sorted(last_scan.paths)
        changes = _changes_between(
            str(root), last_scan.index.entries, new_snapshot.new_index.entries, looked_at
        )
        return LocationScan(new_snapshot.new_index, paths), changes

    def record_start(self, location: WritablePath, last_scan: LocationScan) -> Path:
        """Record that a command or edit starts in a location, in case this process dies.

        Returns:
            The path of the record. The caller removes it when the command or edit has ended.
        """
        content = {
            "place": str(location.path),
            "protected": [*map(str, location.protected)],
            "tree": last_scan.index.tree_id,
            "paths": None if last_scan.paths is None else sorted(last_scan.paths),
        }
        make_folder(self._copies.path)
        record = self._copies.path / f"{time.time_ns():020}{_RECORD}"
        self._write_record(record, content)
        return record

    def scan_in_background(self, cut: InterruptedWriter) -> None:
        """Call `scan_interrupted` in a background thread, so that the stop does not wait for it."""
        scan = threading.Thread(target=self._try_to_scan, args=(cut,), daemon=True)
        with suppress(RuntimeError):  # the interpreter is shutting down
            scan.start()
            other_threads = [each for each in _scans.get(self._session, ()) if each.is_alive()]
            _scans[self._session] = [*other_threads, scan]

    def _try_to_scan(self, cut: InterruptedWriter) -> None:
        try:
            self.scan_interrupted(cut)
        except (OSError, ValueError):  # all of its changes will be uncertain, as after a kill
            logger.debug("%s can't be scanned", cut.location.path, exc_info=True)

    def scan_interrupted(self, cut: InterruptedWriter) -> None:
        """Scan for the changes of an interrupted call, and add them to its record.

        Changes that may have been made after the interruption are marked as uncertain.

        Raises:
            OSError: The location can't be read, a write failed, or the next turn has already
                removed the record.
        """
        now, changes = self.scan(cut.location, cut.last_scan, cut.paths)
        late = [each.path for each in changes if _last_change(each) >= cut.stopped_ns - _TICK_NS]
        content = _read_record(cut.record)
        paths = None if cut.last_scan.paths is None else sorted(cut.last_scan.paths)
        content |= {
            "tree": cut.last_scan.index.tree_id,
            "paths": paths,
            "after": now.index.tree_id,
            "late": late,
        }
        self._write_record(cut.record, content)

    def store_changes(
        self, root: str, changes: Sequence[UserFileChange], call: str
    ) -> UserFilesSaved:
        """Store the contents of changed files, before and after, and return the event.

        Args:
            root: The location.
            changes: The changes. May be empty.
            call: The id of the tool call that made them.
        """
        if not changes:
            return UserFilesSaved(place=root, call=call)
        for change in changes:
            for entry in (change.before, change.after):
                if entry is not None:
                    with suppress(FileNotFoundError):  # already in the store, as after a rewind
                        self.store.fetch(entry, self._copies)
        return UserFilesSaved(
            place=changes[0].root,
            call=call,
            before=self.store.write_tree(
                {c.path: c.before for c in changes if c.before is not None}
            ),
            after=self.store.write_tree({c.path: c.after for c in changes if c.after is not None}),
            changed=tuple(printable_name(c.path) for c in changes[:MAX_NAMED]),
            count=len(changes),
            is_sure=not any(change.doubt for change in changes),
        )

    def read_blob(self, entry: TreeEntry) -> bytes:
        """Return the stored content of a file."""
        try:
            return self.store.read_blob(entry)
        except FileNotFoundError:  # the process died before the change was moved to the snapshots
            return self._copies.read_blob(entry)

    def verify_blob(self, entry: TreeEntry | None) -> None:
        """Check that the content of a file is stored and undamaged.

        Raises:
            OSError: It is missing or damaged.
        """
        try:
            self.store.verify_blob(entry)
        except FileNotFoundError:
            self._copies.verify_blob(entry)

    def leftover_changes(self) -> list[UserFileChange]:
        """Return the changes of calls that were interrupted by a stop or by the death of a process.

        Records that can't be read are skipped.
        """
        _wait_for_scans(self._session)
        unique_changes: dict[str, UserFileChange] = {}
        for record in sorted(self._copies.path.glob(f"*{_RECORD}")):
            try:
                content = _read_record(record)
                location = WritablePath(Path(content["place"]), [*map(Path, content["protected"])])
                paths = None if content["paths"] is None else frozenset(content["paths"])
                last_scan = LocationScan(self._copies.read_index(content["tree"]), paths)
                late = None
                if "after" in content:
                    late = frozenset(content["late"])
                    after = self._copies.read_tree(content["after"])
                    changes = _changes_since(str(root_of(location)), last_scan, after)
                else:
                    changes = self.scan(location, last_scan, paths)[1]
                for change in changes:
                    doubt = _CUT if late is None or change.path in late else ""
                    unique_changes.setdefault(change.name, change._replace(doubt=doubt))
            except (ValueError, KeyError, TypeError, OSError):
                logger.debug("%s can't be read", record, exc_info=True)
        return [*unique_changes.values()]

    def _write_record(self, record: Path, content: Mapping[str, object]) -> None:
        mark = self._mark or user_mark(self._session.name)
        temp = record.with_suffix(TEMP)
        write_private(temp, add_mac(mark, _RECORDS, content))
        os.replace(temp, record)

    def delete_copies(self, is_scanned: bool = False) -> None:
        """Delete the copies of the locations. The session's snapshots are kept.

        Args:
            is_scanned: Whether the changes of interrupted calls were stored. If not, and there are
                records of such calls, nothing is deleted.
        """
        if not is_scanned and any(self._copies.path.glob(f"*{_RECORD}")):
            return
        self._copies.is_closed = True  # an interrupted scan may still run in its thread
        shutil.rmtree(self._copies.path, ignore_errors=True)
        self.store.space.remeasure()
        self._copies = self._new_copies()


class UserFileHistory(NamedTuple):
    """The changes to user files after a checkpoint.

    Attributes:
        changes: The changes, in order.
        not_saved: The reason for each location where some change was not stored.
    """

    changes: tuple[UserFileChange, ...] = ()
    not_saved: Mapping[str, str] = MappingProxyType({})


def changes_after(session: Path, turn: int, point: int) -> UserFileHistory:
    """Return the changes to user files after a checkpoint, in this turn and all later turns.

    Args:
        session: The session's directory.
        turn: Number of the turn.
        point: Sequence number of the checkpoint's event. Only later events count.

    Raises:
        OSError: A stored tree is missing or damaged.
    """
    own, changes, unkept = UserFiles(session), list[UserFileChange](), dict[str, str]()
    turns = [each for each in turns_of(session) if each.number >= turn]
    for each in turns:
        for event in _events_of(each):
            if not isinstance(event, UserFilesSaved) or each.number == turn and event.seq <= point:
                continue
            if event.why_not:
                unkept.setdefault(event.place, event.why_not)
            elif event.count:
                doubt = "" if event.is_sure else _CUT
                if event.place in unkept:
                    doubt = doubt or "may have been changed before, by a call that was not kept"
                changes += _changes(own.store, event, doubt)
    if turns and not turns[-1].is_live():
        changes += own.leftover_changes()
    return UserFileHistory(tuple(changes), unkept)


def _events_of(turn: TurnPaths) -> Sequence[Event]:
    """Return a turn's events, or none if it changed no user files."""
    with suppress(OSError):
        if b'"own_files_kept"' not in turn.journal.read_bytes():
            return ()
    return read_journal(turn.journal).events


def _changes(store: SnapshotStore, event: UserFilesSaved, doubt: str) -> Iterator[UserFileChange]:
    before, after = store.read_tree(event.before), store.read_tree(event.after)
    for path in sorted({*before, *after}):
        yield UserFileChange(event.place, path, before.get(path), after.get(path), doubt)


def root_of(location: WritablePath) -> Path:
    """Return a location's directory: the location itself, or the parent of a single file."""
    return location.path if location.path.is_dir() else location.path.parent


def is_same(one: TreeEntry | None, other: TreeEntry | None) -> bool:
    """Return whether two entries are equal, apart from the modification time."""
    if one is None or other is None or "x" in (one.kind, other.kind):
        return one == other
    return (one.kind, one.mode, one.value) == (other.kind, other.mode, other.value)


def _wait_for_scans(session: Path) -> None:
    for scan in _scans.pop(session, ()):
        scan.join(_SCAN_TIMEOUT_S)


@atexit.register
def _wait_at_exit() -> None:
    for session in [*_scans]:
        _wait_for_scans(session)


def _changes_since(root: str, last_scan: LocationScan, after: Tree) -> list[UserFileChange]:
    """Return the differences between a scan of a location and a later tree."""
    before = last_scan.index.entries
    paths = {*before, *after} if last_scan.paths is None else last_scan.paths
    return _changes_between(root, before, after, sorted(paths))


def _changes_between(root: str, old: Tree, new: Tree, paths: Iterable[str]) -> list[UserFileChange]:
    changes = (UserFileChange(root, path, old.get(path), new.get(path)) for path in paths)
    return [each for each in changes if not is_same(each.before, each.after)]


def _last_change(change: UserFileChange) -> int:
    """Return when a path last changed, in nanoseconds.

    For a deleted path, return when its directory last changed.
    """
    path = change.name
    while True:
        try:
            return os.lstat(path).st_ctime_ns
        except (FileNotFoundError, NotADirectoryError):  # a deletion changes the parent's time
            path = os.path.dirname(path)


def _read_record(record: Path) -> dict[str, Any]:
    return check_mac(read_file(record, _MAX_RECORD_BYTES), _RECORDS)


def _leaves_out_of(location: WritablePath) -> ExcludedNames:
    """Return a function that selects the protected paths of a location by name."""
    protected = location.protected_names
    folders = frozenset(path.rpartition("/")[0] for path in protected)

    def leaves_out(prefix: str, names: Collection[str]) -> Collection[str]:
        folded = [*map(str.casefold, names)]
        above = prefix.casefold()
        if above[:-1] not in folders and NEVER_WRITTEN.isdisjoint(folded):
            return ()  # true of most directories, and saves a Python loop over all names
        pairs = zip(names, folded, strict=True)
        return [name for name, low in pairs if low in NEVER_WRITTEN or f"{above}{low}" in protected]

    return leaves_out


def _check_size(root: Path, leaves_out: ExcludedNames) -> None:
    """Raise `RefusedError` for a location that is too large to copy."""
    files, size = measure(root, leaves_out)
    if files > MAX_SCANNED_FILES or size > MAX_COPIED_BYTES:
        raise RefusedError(
            f"it has more than {MAX_SCANNED_FILES} files or {MAX_COPIED_BYTES} bytes"
        )
