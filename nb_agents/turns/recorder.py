"""Records a turn's events, and writes its other files.

An event is validated as Unicode, masked, stamped, journalled, folded and passed to observers. The
files other than the journal are written at the start and at the end of the turn. Once the run has
started, this code runs on the loop thread.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
from anyio import to_thread

from nb_agents.disk.private import make_folder, open_private
from nb_agents.events import Event, FilesListed, Noticed
from nb_agents.masking import Mask
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.copying import copy_tree
from nb_agents.session.history import workspace_files
from nb_agents.session.journal import Journal
from nb_agents.session.layout import TurnPaths, store_workspaces
from nb_agents.session.views import write_views
from nb_agents.turns.hiding import EventMask
from nb_agents.unicode import well_formed
from nb_agents.view.fold import apply
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import Timeline, TimelineFold

logger = logging.getLogger("nb_agents")

LISTING_S = 20.0
"""Time limit for listing the workspaces in seconds, because a drive may hang."""


PATIENCE_S = 0.3
"""Seconds to wait for the listing before the files are first written without it."""


class TurnFiles:
    """Writes a turn's files. Runs on the loop thread and writes in worker threads.

    Args:
        run_id: The run's id, for the log.
        paths: The turn's paths.
        recorder: The turn's recorder, for the view and for notices about failed writes.
    """

    def __init__(self, run_id: str, paths: TurnPaths, recorder: Recorder) -> None:
        self._id = run_id
        self._paths = paths
        self._owner = f"pid {os.getpid()} on {socket.gethostname()}"
        self._recorder = recorder

    def write(self) -> OSError | None:
        """Update the files, blocking. Returns the error of a failed write."""
        try:
            self._note(write_views(self._recorder.view, self._paths, self._owner))
        except OSError as exc:
            return exc
        return None

    async def finish(self) -> None:
        """List the workspaces, sync the journal and write the files of a turn that has ended.

        Blocking work uses only one thread at a time, because starting a thread usually takes longer
        than the disk operation.
        """
        is_listed = anyio.Event()

        async def list_files() -> None:
            await self._list()
            is_listed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(list_files)
            with anyio.move_on_after(PATIENCE_S):
                await is_listed.wait()
            await self._write_last()
            if (
                not is_listed.is_set()
            ):  # already written once, because the process may end at any time
                await is_listed.wait()
                await self._write_last()

    async def write_again(self, *, is_last: bool) -> OSError | None:
        """Write everything again after saving failed. Returns the error if it fails again.

        Args:
            is_last: Whether nothing more will be written.
        """
        self._recorder.flush()
        error = await self._write_last() or self._recorder.error
        if error is None and not self._recorder.view.is_saved:
            self._recorder.note("Saving works again; everything is on disk.", is_saved=True)
        if error is None and is_last:
            self._recorder.close()
        return error

    def write_elsewhere(self, root: Path) -> Path:
        """Write the session to another directory, including events that are only in memory.

        Args:
            root: The directory that will contain the session's directory.

        Returns:
            The new directory of the session.

        Raises:
            OSError: It can't be written or already exists.
        """
        session = self._paths.path.parent
        target = root / session.name
        make_folder(target, exist_ok=False)
        copy_tree(session, target)
        paths = TurnPaths(target / self._paths.path.name)
        with open_private(paths.journal, "ab") as journal:
            journal.write(self._recorder.unwritten)
        write_views(self._recorder.view, paths, self._owner)
        return target

    async def _write_last(self) -> OSError | None:
        try:
            self._note(await to_thread.run_sync(self._sync_and_write, self._recorder.view))
        except OSError as exc:
            logger.warning("run %s: saving failed: %s", self._id, exc)
            why = exc.strerror or str(exc)
            text = f"Saving failed: {why}. Unsaved events stay in the memory of this process."
            self._note([text], is_saved=False)
            return exc
        return None

    def _sync_and_write(self, view: RunView) -> tuple[str, ...]:
        self._recorder.sync()
        return write_views(view, self._paths, self._owner)

    def _note(self, texts: Iterable[str], *, is_saved: bool | None = None) -> None:
        """Record notices, except those that are already recorded."""
        for text in texts:
            self._recorder.note_once(text, is_saved=is_saved)

    async def _list(self) -> None:
        """Record the files in the workspaces, within a time limit."""
        files = None
        with anyio.move_on_after(LISTING_S):
            try:
                files = await to_thread.run_sync(
                    _store_and_list,
                    self._paths,
                    self._recorder.view.workspaces,
                    abandon_on_cancel=True,
                )
            except OSError as exc:
                self._recorder.note(f"The workspaces can't be listed: {exc.strerror or exc}.")
                return
        if files is None:
            self._recorder.note(f"Listing the workspaces took longer than {LISTING_S:g} s.")
            return
        if files.left_out:
            self._recorder.note(f"Omitted from lists, copies and exports: {files.left_out}.")
        self._recorder.emit(files)


def _store_and_list(paths: TurnPaths, workspaces: Iterable[str]) -> FilesListed:
    if paths.task is not None:
        with suppress(OSError):  # the turn still links to them
            store_workspaces(paths, paths.task)
    return workspace_files(paths, workspaces)


Observer = Callable[[Event, RunView, RunView], None]
"""Called with each recorded event and the views before and after it."""


class Recorder:
    """Records the events of a turn and updates its view.

    Args:
        journal: The journal to write events to.
        past: The view of the turn that this turn resumes.
        timeline: The timeline to continue: that of the turns that this turn resumes.
        mask: The mask for secrets in events.

    Attributes:
        view: The fold of all events so far.
    """

    def __init__(
        self,
        journal: Journal,
        past: RunView | None = None,
        timeline: TimelineFold | None = None,
        mask: Mask | None = None,
    ) -> None:
        self._journal = journal
        self._mask = mask or Mask()
        self._hiding = EventMask(self._mask)
        self._observers: list[Observer] = []
        self._unobserved: deque[tuple[Event, RunView, RunView]] = deque()
        self._is_observing = False
        self._failing = False
        self._log_of = {"turn": journal.path.parent}
        self.view = replace(past, seq=0) if past else RunView()
        self._timeline = timeline or TimelineFold()

    @property
    def timeline(self) -> Timeline:
        """The timeline of the turn so far."""
        return self._timeline.timeline()

    @property
    def unwritten(self) -> bytes:
        """The end of the journal that could not be written yet."""
        return self._journal.unwritten

    @property
    def error(self) -> OSError | None:
        """The error of the last write, or None if all events are on disk."""
        return self._journal.error

    def observe(self, observer: Observer) -> None:
        """Add an observer.

        Args:
            observer: Called after each event has been journalled. It must not block. Events that it
                emits follow the current event, in the journal and for all observers.
        """
        self._observers.append(observer)

    def emit(self, event: Event) -> None:
        """Record an event. A failed write is reported once and retried later."""
        for each in self._hiding.hide(well_formed(event)):
            self._record(each)

    def _record(self, event: Event) -> None:
        event = replace(event, seq=self.view.seq + 1, at=time.time())
        logger.debug("%s", event, extra=self._log_of)
        self._journal.append(event)
        before = self.view
        after = self.view = apply(before, event)
        self._timeline.add(event)
        self._unobserved.append((event, before, after))
        self._call_observers()
        self._note_saving()

    def _call_observers(self) -> None:
        """Call the observers with events in order, including those that observers emit."""
        if self._is_observing:
            return
        self._is_observing = True
        try:
            while self._unobserved:
                record = self._unobserved.popleft()
                for observer in self._observers:
                    with ServiceLoop.OBSERVERS.item(self.note_once):
                        observer(*record)
        finally:
            self._is_observing = False

    def flush(self) -> None:
        """Retry a failed write."""
        if self._journal.error is not None:
            self._journal.flush()
            self._note_saving()

    def note(self, text: str, *, is_saved: bool | None = None) -> None:
        """Add a notice for the user, even after the turn's last event.

        Args:
            text: A sentence.
            is_saved: For a notice about saving, whether everything is on disk now.
        """
        event = Noticed(text=text, is_saved=is_saved)
        if self.view.is_over:
            self.view = apply(self.view, self._mask.value(event))
        else:
            self.emit(event)

    def note_once(self, text: str, *, is_saved: bool | None = None) -> None:
        """Add a notice as `note` does, unless the view already has the same notice."""
        if text not in self.view.notices:
            self.note(text, is_saved=is_saved)

    def _note_saving(self) -> None:
        """Add a notice when saving starts to fail, and when it works again."""
        error = self._journal.error
        if (error is not None) is self._failing:
            return
        self._failing = error is not None
        if error is not None:
            why = error.strerror or str(error)
            text = f"Saving failed: {why}. Unsaved events stay in memory, and saving is retried."
            self.note(text, is_saved=False)
        elif not self.view.is_over:
            self.note("Saving works again; everything is on disk.", is_saved=True)

    def sync(self) -> None:
        """Sync the journal to disk. May be called from a worker thread."""
        self._journal.sync()

    def discard(self) -> None:
        """Close the journal of a turn that can't start, even with unwritten events."""
        self._journal.close()

    def close(self) -> None:
        """Close the journal, unless events are still unwritten."""
        if self._journal.error is None:
            self._journal.close()
