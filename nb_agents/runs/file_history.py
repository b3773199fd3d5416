"""Keeping the files of a turn: before a writer begins, what its workspace holds by then.

So a stop costs nothing: what nobody has written over still lies there. An edit tool knows its path;
for a command, a cell of Python or a program the whole workspace is looked through.

Of the person's own files changes alone are kept, so a place of those is looked at once more when a
writer has ended. What is different while a writer is at work is its doing; else it is the person's.
No stop waits for that look: behind the turn's end a thread of its own does it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import anyio
from anyio import to_thread

from nb_agents.disk.entry import printable_name
from nb_agents.events import Event, FilesKept, Noticed, OwnFilesKept
from nb_agents.process.writable import WritablePath
from nb_agents.session.own_files import CutWriter, KnownPlace, OwnChange, OwnFiles, root_of
from nb_agents.session.snapshots import Index, Kept

logger = logging.getLogger("nb_agents")

MAX_NAMED = 20


@dataclass
class _Workspace:
    """What is known of a workspace; ``dirty`` are the paths that may have changed, None all."""

    index: Index = field(default_factory=Index)
    dirty: set[str] | None = None
    lock: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass
class _OwnPlace:
    """What is known of a place of the person's own files, and whose writers are at work there."""

    known: KnownPlace = field(default_factory=KnownPlace)
    calls: list[str] = field(default_factory=list)
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class FileHistory:
    """Keeps the workspaces of one turn, and what it changes of the person's own files.

    Args:
        own: Where they are kept.
        workspaces: The directory that the workspaces are in.
        known: For workspaces that were kept before, the last tree.
        emit: Records an event.
    """

    def __init__(
        self,
        own: OwnFiles,
        workspaces: Path,
        known: Mapping[str, str],
        emit: Callable[[Event], None],
    ) -> None:
        self._own = own
        self._root = workspaces
        self._known = known
        self._emit = emit
        self._spaces: dict[str, _Workspace] = {}
        self._places: dict[Path, _OwnPlace] = {}
        self._lock = anyio.Lock()
        self._failed: set[str] = set()
        self._cut: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def writing(
        self,
        workspace: Path,
        call: str,
        paths: Sequence[str] | None,
        own: Sequence[WritablePath],
    ) -> AsyncIterator[None]:
        """Keep what a writer may change within the block.

        Args:
            workspace: Its workspace.
            call: Whose writer.
            paths: What it writes, as it names it; None means anything.
            own: Places of the person's own that it may write.
        """
        if workspace.parent == self._root:
            await self._keep(workspace, call, paths)
        async with AsyncExitStack() as stack:
            found = await to_thread.run_sync(_places, own, workspace, paths) if own else ()
            for place, only in found:
                await stack.enter_async_context(self._writing_own(place, call, only))
            yield

    async def close(self) -> None:
        """Drop what was held aside of the person's own files; no writer is at work."""
        for each in self._cut:
            each.cancel()
        if self._cut:
            await asyncio.wait(self._cut)
        if self._places:
            await to_thread.run_sync(self._own.drop)

    async def _keep(self, workspace: Path, call: str, paths: Sequence[str] | None) -> None:
        name = workspace.name
        space = self._spaces.setdefault(name, _Workspace())
        async with space.lock:
            try:
                look = partial(self._keep_now, workspace, space.index, space.dirty)
                kept = await to_thread.run_sync(look, abandon_on_cancel=True)
            except OSError as exc:
                self._fail(name, exc)
                return
            space.index = kept.known
            space.dirty = None if paths is None else {*paths}
            self._emit(
                FilesKept(
                    workspace=name,
                    call=call,
                    tree=kept.known.id,
                    changed=tuple(map(printable_name, kept.changed[:MAX_NAMED])),
                    count=len(kept.changed),
                    not_kept=kept.not_kept[:MAX_NAMED],
                )
            )

    def _keep_now(self, workspace: Path, index: Index, only: Iterable[str] | None) -> Kept:
        if not index.id and (tree := self._known.get(workspace.name)):
            try:
                index = self._own.store.index(tree)
            except OSError:  # removed, or damaged: all is kept anew
                logger.debug("the tree %s can't be read", tree, exc_info=True)
        return self._own.store.keep(workspace, index, only)

    @asynccontextmanager
    async def _writing_own(
        self, place: WritablePath, call: str, only: Sequence[str] | None
    ) -> AsyncIterator[None]:
        own = await self._own_place(place)
        try:
            async with own.lock:
                record = await self._begin(place, own, only)
                own.calls.append(call)
        except OSError as exc:
            why = self._fail(str(place.path), exc)
            self._emit(OwnFilesKept(place=str(place.path), call=call, why_not=why))
            yield
            return
        failure: Exception | None = None
        is_over = False
        try:
            try:
                yield
            except Exception as exc:  # its own, which is no stop
                failure = exc
            async with own.lock:
                await self._end(place, own, only, call, record)
            is_over = True
        finally:
            own.calls.remove(call)
            if not is_over:
                cut = CutWriter(place, own.known, only, record, time.time_ns())
                self._cut.append(asyncio.create_task(self._end_later(cut, own, call)))
        if failure is not None:
            raise failure

    async def _end_later(self, cut: CutWriter, own: _OwnPlace, call: str) -> None:
        """Look at what a cut writer has changed; the end of the turn leaves it to a thread."""
        try:
            async with own.lock:
                await self._end(cut.place, own, cut.only, call, cut.record)
        except asyncio.CancelledError:
            self._own.settle_behind(cut._replace(known=own.known))

    async def _own_place(self, place: WritablePath) -> _OwnPlace:
        """Return what is known of a place; at first, what a process that died has left."""
        async with self._lock:
            if not self._places:
                left = await to_thread.run_sync(self._own.left_behind)
                for (name, _), changes in groupby(left, attrgetter("place", "doubt")):
                    await self._tell(name, [*changes], "")
                await to_thread.run_sync(self._own.drop, True)
            return self._places.setdefault(place.path, _OwnPlace())

    async def _begin(self, place: WritablePath, own: _OwnPlace, only: Sequence[str] | None) -> Path:
        look = partial(self._own.look, place, own.known, only)
        own.known, changes = await to_thread.run_sync(look, abandon_on_cancel=True)
        if own.calls and changes:
            await self._tell(str(place.path), changes, own.calls[-1])
        return await to_thread.run_sync(self._own.begin, place, own.known)

    async def _end(
        self,
        place: WritablePath,
        own: _OwnPlace,
        only: Sequence[str] | None,
        call: str,
        record: Path,
    ) -> None:
        look = partial(self._own.look, place, own.known, only)
        try:
            known, changes = await to_thread.run_sync(look, abandon_on_cancel=True)
            await self._tell(str(place.path), changes, call)
            own.known = known
            with anyio.CancelScope(shield=True):  # else the next turn would tell it again
                await to_thread.run_sync(partial(record.unlink, missing_ok=True))
        except OSError as exc:
            self._fail(str(place.path), exc)

    async def _tell(self, place: str, changes: Sequence[OwnChange], call: str) -> None:
        keep = partial(self._own.keep, place, changes, call)
        self._emit(await to_thread.run_sync(keep, abandon_on_cancel=True))

    def _fail(self, name: str, exc: OSError) -> str:
        """Record once that files can't be kept, and return why; the work goes on."""
        why = str(exc.strerror or exc)
        if name not in self._failed:
            self._failed.add(name)
            self._emit(Noticed(text=f"The files of {name} can't be kept for going back: {why}."))
        return why


def _places(
    own: Sequence[WritablePath], workspace: Path, paths: Sequence[str] | None
) -> list[tuple[WritablePath, Sequence[str] | None]]:
    """Return the places that a writer may change, with the paths that it writes there."""
    outermost = [
        place
        for place in {each.path: each for each in own}.values()
        if not any(_covers(other, place.path) for other in own)
    ]
    if paths is None:
        return [(place, None) for place in outermost]
    named = [*filter(None, (_real(workspace, path) for path in paths))]
    found: list[tuple[WritablePath, Sequence[str] | None]] = []
    for place in outermost:
        root = root_of(place)
        inside = [each for each in named if each == place.path or _covers(place, each)]
        below = [str(each.relative_to(root)) for each in inside if each != root]
        if below:
            found.append((place, below))
    return found


def _real(workspace: Path, path: str) -> Path | None:
    """Return what a model's path names, with no link but its last name."""
    named = workspace / (path if os.path.isabs(path) else path.replace("\\", "/"))
    try:
        return Path(os.path.realpath(named.parent), named.name)
    except ValueError:  # no file can be named so
        return None


def _covers(place: WritablePath, path: Path) -> bool:
    """Return whether a place holds a path that it does not protect."""
    inside = path != place.path and path.is_relative_to(place.path)
    return inside and not place.is_protected(path.relative_to(place.path).parts)
