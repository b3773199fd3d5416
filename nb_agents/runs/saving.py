"""The files of a turn, besides its journal: written at its beginning and its end, and again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

import anyio
from anyio import to_thread

from nb_agents.events import FilesListed
from nb_agents.runs.recorder import Recorder
from nb_agents.runs.work import Work
from nb_agents.session.history import workspace_files
from nb_agents.session.layout import TurnPaths
from nb_agents.session.task import settle
from nb_agents.session.turn import write_views
from nb_agents.view import SAVING_FAILED, SAVING_WORKS

__all__ = ["Saving"]

logger = logging.getLogger("nb_agents")

LISTING_S = 20.0
"""What listing the workspaces gets: a drive may hang. Who reads the turn later lists them again."""


class Saving:
    """Brings a turn to the disk. Lives on the loop thread.

    Args:
        run_id: The run's name, for the log.
        work: Whose turn.
        recorder: Has its view, and is told what could not be written.
    """

    def __init__(self, run_id: str, work: Work, recorder: Recorder) -> None:
        self._id = run_id
        self._work = work
        self._recorder = recorder

    def write_views(self) -> OSError | None:
        """Bring the turn's files up to date.

        Returns:
            What the disk said when it refused, else None.
        """
        try:
            for told in write_views(self._recorder.view, self._work.paths, self._work.owner):
                if told not in self._recorder.view.notices:
                    self._recorder.note(told)
        except OSError as exc:
            logger.warning("run %s: saving failed: %s", self._id, exc)
            if self._recorder.view.is_over:
                why = exc.strerror or str(exc)
                text = f"{SAVING_FAILED}{why}. All is kept in memory: run.save() tries again."
                if text not in self._recorder.view.notices:
                    self._recorder.note(text)
            return exc
        return None

    def save(self) -> None:
        """Bring the journal through to the disk itself, and the files up to date."""
        self._recorder.sync()
        self.write_views()

    def again(self, *, is_last: bool) -> OSError | None:
        """Write everything again, after saving had failed.

        Args:
            is_last: Whether nothing more will be written.

        Returns:
            What the disk said when it refused again, else None.
        """
        self._recorder.flush()
        error = self._recorder.error or self.write_views()
        if error is None and not self._recorder.view.is_saved:
            self._recorder.note(SAVING_WORKS)
        if error is None and is_last:
            self._recorder.close()
        return error

    async def list_files(self) -> None:
        """Add to the saved turn what the workspaces hold, off the loop: they may be large."""
        listed = None
        with anyio.move_on_after(LISTING_S):
            try:
                listed = await to_thread.run_sync(
                    _settle_and_list,
                    self._work.paths,
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
        self.save()


def _settle_and_list(paths: TurnPaths, workspaces: Iterable[str]) -> FilesListed:
    if paths.task is not None:
        with suppress(OSError):  # the turn still leads to them
            settle(paths, paths.task)
    return workspace_files(paths, workspaces)
