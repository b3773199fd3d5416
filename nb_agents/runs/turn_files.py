"""The files of a turn besides its journal: written once at its beginning and once at its end."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

import anyio
from anyio import to_thread

from nb_agents.events import FilesListed
from nb_agents.runs.recorder import Recorder
from nb_agents.session.history import workspace_files
from nb_agents.session.layout import TurnPaths
from nb_agents.session.task import settle
from nb_agents.session.views import write_views

__all__ = ["TurnFiles"]

logger = logging.getLogger("nb_agents")

LISTING_S = 20.0
"""What listing the workspaces gets: a drive may hang. Who reads the turn later lists them again."""


PATIENCE_S = 0.3
"""How long the files wait for the list; after that they are written without it, and again then."""


class TurnFiles:
    """Brings a turn to the disk. Lives on the loop thread; the disk is waited for in others.

    Args:
        run_id: The run's name, for the log.
        paths: Where the turn is.
        owner: Who runs it, in words.
        recorder: Has its view, and is told what could not be written.
    """

    def __init__(self, run_id: str, paths: TurnPaths, owner: str, recorder: Recorder) -> None:
        self._id = run_id
        self._paths = paths
        self._owner = owner
        self._recorder = recorder

    def write(self) -> OSError | None:
        """Bring the files up to date, blocking.

        Returns:
            What the disk said when it refused, else None.
        """
        try:
            self._tell(write_views(self._recorder.view, self._paths, self._owner))
        except OSError as exc:
            return exc
        return None

    async def finish(self) -> None:
        """List what the workspaces hold, and write all of a turn that has ended."""
        await to_thread.run_sync(self._recorder.sync)
        is_listed = anyio.Event()

        async def list_files() -> None:
            await self._list()
            is_listed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(list_files)
            with anyio.move_on_after(PATIENCE_S):
                await is_listed.wait()
            if not is_listed.is_set():
                # Its process may end meanwhile.
                await self._write_last()
        await to_thread.run_sync(self._recorder.sync)
        await self._write_last()

    async def write_again(self, *, is_last: bool) -> OSError | None:
        """Write everything again, after saving had failed.

        Args:
            is_last: Whether nothing more will be written.

        Returns:
            What the disk said when it refused again, else None.
        """
        self._recorder.flush()
        error = self._recorder.error or await self._write_last()
        if error is None and not self._recorder.view.is_saved:
            self._recorder.note("Saving works again; everything is on disk.", is_saved=True)
        if error is None and is_last:
            self._recorder.close()
        return error

    async def _write_last(self) -> OSError | None:
        view = self._recorder.view
        try:
            self._tell(await to_thread.run_sync(write_views, view, self._paths, self._owner))
        except OSError as exc:
            logger.warning("run %s: saving failed: %s", self._id, exc)
            why = exc.strerror or str(exc)
            text = f"Saving failed: {why}. All is kept in memory: run.save() tries again."
            self._tell([text], is_saved=False)
            return exc
        return None

    def _tell(self, texts: Iterable[str], *, is_saved: bool | None = None) -> None:
        """Note what is not noted yet."""
        for text in texts:
            if text not in self._recorder.view.notices:
                self._recorder.note(text, is_saved=is_saved)

    async def _list(self) -> None:
        """Record what the workspaces hold: they may be large."""
        listed = None
        with anyio.move_on_after(LISTING_S):
            try:
                listed = await to_thread.run_sync(
                    _settle_and_list,
                    self._paths,
                    self._recorder.view.workspaces,
                    abandon_on_cancel=True,
                )
            except OSError as exc:
                self._recorder.note(f"The workspaces can't be listed: {exc.strerror or exc}.")
                return
        if listed is None:
            self._recorder.note(f"The workspaces can't be listed within {LISTING_S:g} s.")
            return
        if listed.left_out:
            self._recorder.note(f"Left out of lists, copies and exports: {listed.left_out}.")
        self._recorder.emit(listed)


def _settle_and_list(paths: TurnPaths, workspaces: Iterable[str]) -> FilesListed:
    if paths.task is not None:
        with suppress(OSError):  # the turn still leads to them
            settle(paths, paths.task)
    return workspace_files(paths, workspaces)
