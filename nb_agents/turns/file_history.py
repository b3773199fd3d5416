"""Takes snapshots of a turn's files, for rewinds.

A workspace is saved before each writer starts, so a stop does not have to save anything. A writer
is a tool call, step or process that may change files. The whole workspace is scanned each time,
because a thread of an interpreter or a server may change any file at any time.

Of user files, only changes are saved, so their directory is scanned again when the writer has
finished. A change made while a writer works is attributed to the writer, any other change to the
user. A stop does not wait for the second scan, which a separate thread does after the turn has
ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import anyio
from anyio import to_thread

from nb_agents.disk.entry import printable_name
from nb_agents.events import Event, FilesSaved, Noticed, UserFilesSaved
from nb_agents.process.writable import WritablePath
from nb_agents.snapshots.index import Index, Snapshot
from nb_agents.snapshots.quota import NoSpaceError
from nb_agents.snapshots.user_files import (
    InterruptedWriter,
    LocationScan,
    UserFileChange,
    UserFiles,
    root_of,
)

logger = logging.getLogger("nb_agents")

MAX_NAMED = 20


@dataclass
class _Workspace:
    """The latest snapshot of a workspace."""

    index: Index = field(default_factory=Index)
    lock: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass
class _UserFolder:
    """The last known state of a user file or directory, and the calls that are writing to it."""

    last_scan: LocationScan = field(default_factory=LocationScan)
    calls: list[str] = field(default_factory=list)
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class FileHistory:
    """Saves a turn's workspaces and its changes to user files.

    Args:
        own: The store of snapshots and changes.
        workspaces: The directory that contains the workspaces.
        earlier_trees: The latest snapshots of workspaces from earlier turns.
        emit: Records an event.
    """

    def __init__(
        self,
        own: UserFiles,
        workspaces: Path,
        earlier_trees: Mapping[str, str],
        emit: Callable[[Event], None],
    ) -> None:
        self._user_files = own
        self._root = workspaces
        self._earlier_trees = earlier_trees
        self._emit = emit
        self._workspaces: dict[str, _Workspace] = {}
        self._user_folders: dict[Path, _UserFolder] = {}
        self._lock = anyio.Lock()
        self._failed: set[str] = set()
        self._is_full = False
        self._interrupted: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def writing(
        self,
        workspace: Path,
        call: str,
        paths: Sequence[str] | None,
        own: Sequence[WritablePath],
    ) -> AsyncIterator[None]:
        """Save the files that a writer may change, before and after the block.

        Args:
            workspace: The writer's workspace.
            call: The call or step of the writer, for the events.
            paths: The paths that it will write to, as given by the model. None means any path.
            own: The user files and directories that it may write to.
        """
        if workspace.parent == self._root:
            await self._save_workspace(workspace, call)
        async with AsyncExitStack() as stack:
            locations = (
                await to_thread.run_sync(_writable_paths, own, workspace, paths) if own else ()
            )
            for location, only in locations:
                await stack.enter_async_context(self._writing_user_files(location, call, only))
            yield

    async def close(self) -> None:
        """Delete temporary copies of user files, once no writer is running."""
        for each in self._interrupted:
            each.cancel()
        if self._interrupted:
            await asyncio.wait(self._interrupted)
        if self._user_folders:
            await to_thread.run_sync(self._user_files.delete_copies)

    async def _save_workspace(self, workspace: Path, call: str) -> None:
        name = workspace.name
        space = self._workspaces.setdefault(name, _Workspace())
        async with space.lock:
            try:
                look = partial(self._snapshot, workspace, space.index)
                snapshot = await to_thread.run_sync(look, abandon_on_cancel=True)
            except OSError as exc:
                await self._record_failure(name, exc)
                return
            space.index = snapshot.new_index
            await self._report_full()
            self._emit(
                FilesSaved(
                    workspace=name,
                    call=call,
                    tree=snapshot.new_index.tree_id,
                    changed=tuple(map(printable_name, snapshot.changed[:MAX_NAMED])),
                    count=len(snapshot.changed),
                    not_kept=snapshot.not_stored[:MAX_NAMED],
                )
            )

    def _snapshot(self, workspace: Path, index: Index) -> Snapshot:
        if not index.tree_id and (tree := self._earlier_trees.get(workspace.name)):
            try:
                index = self._user_files.store.read_index(tree)
            except OSError:  # removed or damaged; all files are saved again
                logger.debug("the tree %s can't be read", tree, exc_info=True)
        return self._user_files.store.snapshot(workspace, index)

    @asynccontextmanager
    async def _writing_user_files(
        self, location: WritablePath, call: str, only: Sequence[str] | None
    ) -> AsyncIterator[None]:
        own = await self._user_folder(location)
        try:
            async with own.lock:
                record = await self._start_writer(location, own, only)
                own.calls.append(call)
        except OSError as exc:
            why = await self._record_failure(str(location.path), exc)
            self._emit(UserFilesSaved(place=str(location.path), call=call, why_not=why))
            yield
            return
        failure: Exception | None = None
        is_over = False
        try:
            try:
                yield
            except Exception as exc:  # an error of the writer, not a stop
                failure = exc
            async with own.lock:
                await self._end(location, own, only, call, record)
            is_over = True
        finally:
            own.calls.remove(call)
            if not is_over:
                cut = InterruptedWriter(location, own.last_scan, only, record, time.time_ns())
                self._interrupted.append(asyncio.create_task(self._end_later(cut, own, call)))
        if failure is not None:
            raise failure

    async def _end_later(self, cut: InterruptedWriter, own: _UserFolder, call: str) -> None:
        """Save the changes of an interrupted writer. If the turn ends first, a thread does this."""
        try:
            async with own.lock:
                await self._end(cut.location, own, cut.paths, call, cut.record)
        except asyncio.CancelledError:
            self._user_files.scan_in_background(cut._replace(last_scan=own.last_scan))

    async def _user_folder(self, location: WritablePath) -> _UserFolder:
        """Return the state of a user directory.

        Changes made by dead processes are recorded first.
        """
        async with self._lock:
            if not self._user_folders:
                leftover = await to_thread.run_sync(self._user_files.leftover_changes)
                for (name, _), changes in groupby(leftover, attrgetter("root", "doubt")):
                    await self._record_changes(name, [*changes], "")
                await to_thread.run_sync(self._user_files.delete_copies, True)
            return self._user_folders.setdefault(location.path, _UserFolder())

    async def _start_writer(
        self, location: WritablePath, own: _UserFolder, only: Sequence[str] | None
    ) -> Path:
        look = partial(self._user_files.scan, location, own.last_scan, only)
        own.last_scan, changes = await to_thread.run_sync(look, abandon_on_cancel=True)
        await self._report_full()
        if own.calls and changes:
            await self._record_changes(str(location.path), changes, own.calls[-1])
        return await to_thread.run_sync(self._user_files.record_start, location, own.last_scan)

    async def _end(
        self,
        location: WritablePath,
        own: _UserFolder,
        only: Sequence[str] | None,
        call: str,
        record: Path,
    ) -> None:
        look = partial(self._user_files.scan, location, own.last_scan, only)
        try:
            last_scan, changes = await to_thread.run_sync(look, abandon_on_cancel=True)
            await self._record_changes(str(location.path), changes, call)
            own.last_scan = last_scan
            with anyio.CancelScope(shield=True):  # otherwise the next turn would record it again
                await to_thread.run_sync(partial(record.unlink, missing_ok=True))
        except OSError as exc:
            await self._record_failure(str(location.path), exc)

    async def _record_changes(
        self, root: str, changes: Sequence[UserFileChange], call: str
    ) -> None:
        keep = partial(self._user_files.store_changes, root, changes, call)
        self._emit(await to_thread.run_sync(keep, abandon_on_cancel=True))

    async def _report_full(self) -> None:
        """Report once that the total limit was reached and some files are not saved."""
        space = self._user_files.store.space
        if space.rejected_bytes is None or self._is_full:
            return
        self._is_full = True
        used = await to_thread.run_sync(lambda: space.used, abandon_on_cancel=True)
        has, more, limit = (
            f"{size / 1e6:,.1f} MB" for size in (used, space.rejected_bytes, space.limit)
        )
        self._emit(
            Noticed(
                text=f"This session's snapshots have {has}, and {more} more would exceed their "
                f"limit of {limit}. Files that do not fit are not saved, and a rewind lists them. "
                f"To save them, set a higher `snapshot_total_limit` (in MB) in the team file."
            )
        )

    async def _record_failure(self, name: str, exc: OSError) -> str:
        """Record once that files can't be saved, and return the reason. The run continues."""
        why = str(exc.strerror or exc)
        await self._report_full()
        if name not in self._failed and not isinstance(exc, NoSpaceError):
            self._failed.add(name)
            self._emit(Noticed(text=f"The files of {name} can't be saved for a rewind: {why}."))
        return why


def _writable_paths(
    own: Sequence[WritablePath], workspace: Path, paths: Sequence[str] | None
) -> list[tuple[WritablePath, Sequence[str] | None]]:
    """Return the user files and directories that a writer may change, with the paths in each."""
    outermost = [
        location
        for location in {each.path: each for each in own}.values()
        if not any(_covers(other, location.path) for other in own)
    ]
    if paths is None:
        return [(location, None) for location in outermost]
    named = [*filter(None, (_resolve(workspace, path) for path in paths))]
    locations: list[tuple[WritablePath, Sequence[str] | None]] = []
    for location in outermost:
        root = root_of(location)
        inside = [each for each in named if each == location.path or _covers(location, each)]
        below = [str(each.relative_to(root)) for each in inside if each != root]
        if below:
            locations.append((location, below))
    return locations


def _resolve(workspace: Path, path: str) -> Path | None:
    """Return a model's path with all symbolic links resolved except in its last component."""
    named = workspace / (path if os.path.isabs(path) else path.replace("\\", "/"))
    try:
        return Path(os.path.realpath(named.parent), named.name)
    except ValueError:  # not a valid file name
        return None


def _covers(location: WritablePath, path: Path) -> bool:
    """Return whether a path is inside a writable directory and not protected."""
    inside = path != location.path and path.is_relative_to(location.path)
    return inside and not location.is_protected(path.relative_to(location.path).parts)
