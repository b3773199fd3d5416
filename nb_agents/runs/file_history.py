"""Keeping the workspaces of a turn: before a writer begins, what its workspace holds by then.

So a stop costs nothing: what nobody has written over still lies there. An edit tool knows its path;
for a command, a cell of Python or a program the whole workspace is looked through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from nb_agents.disk.entry import printable_name
from nb_agents.events import Event, FilesKept, Noticed
from nb_agents.session.snapshots import Index, Kept, SnapshotStore

logger = logging.getLogger("nb_agents")

MAX_NAMED = 20


@dataclass
class _Workspace:
    """What is known of a workspace; ``dirty`` are the paths that may have changed, None all."""

    index: Index = field(default_factory=Index)
    dirty: set[str] | None = None
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class FileHistory:
    """Keeps the workspaces of one turn.

    Args:
        store: Where their files are kept.
        workspaces: The directory that they are in.
        known: For workspaces that were kept before, the last tree.
        emit: Records an event.
    """

    def __init__(
        self,
        store: SnapshotStore,
        workspaces: Path,
        known: Mapping[str, str],
        emit: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._root = workspaces
        self._known = known
        self._emit = emit
        self._spaces: dict[str, _Workspace] = {}
        self._has_failed = False

    async def keep(self, workspace: Path, call: str, path: str | None = None) -> None:
        """Keep a workspace before a writer begins; a directory of the user is left alone.

        Args:
            workspace: The workspace.
            call: Whose writer.
            path: The one path that it writes; None means any.
        """
        if workspace.parent != self._root:
            return
        name = workspace.name
        space = self._spaces.setdefault(name, _Workspace())
        async with space.lock:
            try:
                look = partial(self._keep, workspace, space.index, space.dirty)
                kept = await to_thread.run_sync(look, abandon_on_cancel=True)
            except OSError as exc:
                self._fail(name, exc)
                return
            space.index = kept.known
            space.dirty = None if path is None else {path}
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

    def _keep(self, workspace: Path, index: Index, only: Iterable[str] | None) -> Kept:
        if not index.id and (tree := self._known.get(workspace.name)):
            try:
                index = self._store.index(tree)
            except OSError:  # removed, or damaged: all is kept anew
                logger.debug("the tree %s can't be read", tree, exc_info=True)
        return self._store.keep(workspace, index, only)

    def _fail(self, name: str, exc: OSError) -> None:
        """Record once that files can't be kept; the work goes on."""
        if not self._has_failed:
            self._has_failed = True
            why = exc.strerror or exc
            text = f"The files of {name} can't be kept for going back: {why}."
            self._emit(Noticed(text=text))
