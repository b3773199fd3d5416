"""Where the events of a run go: stamped, journalled, folded, shown. Lives on the loop thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from nb_agents.events import Event, Noticed
from nb_agents.fold import apply
from nb_agents.masking import Mask
from nb_agents.runs.hiding import EventMask
from nb_agents.session.journal import Journal
from nb_agents.timeline import Timeline, TimelineFold
from nb_agents.unicode import well_formed
from nb_agents.view import SAVING_FAILED, SAVING_WORKS, RunView

__all__ = ["Recorder"]

logger = logging.getLogger("nb_agents")


class Recorder:
    """Takes events and keeps the view.

    Args:
        journal: Where they are written.
        past: The view of the turn that this one resumes.
        before: The events that led to it.
        mask: Takes secrets out of all that is written and shown.

    Attributes:
        view: The fold of all events so far.
        subscribers: Called with the view by `publish`.
        on_status: Called at once with each status that the turn comes to.
    """

    def __init__(
        self,
        journal: Journal,
        past: RunView | None = None,
        before: Iterable[Event] = (),
        mask: Mask | None = None,
    ) -> None:
        self._journal = journal
        self._mask = mask or Mask()
        self._hiding = EventMask(self._mask)
        self._failing = False
        self.view = replace(past, seq=0) if past else RunView()
        self.subscribers: list[Callable[[RunView], None]] = []
        self.on_status: Callable[[str], None] = lambda status: None
        self._timeline = TimelineFold()
        for event in before:
            self._timeline.add(event)

    @property
    def timeline(self) -> Timeline:
        """What happened so far, and when."""
        return self._timeline.timeline()

    @property
    def error(self) -> OSError | None:
        """What the last write said, or None when all is on disk."""
        return self._journal.error

    def emit(self, event: Event) -> None:
        """Take secrets out of an event, stamp it, write it, fold it.

        A failed write is told once and tried again later.
        """
        for each in self._hiding.hide(well_formed(event)):
            self._record(each)

    def _record(self, event: Event) -> None:
        event = replace(event, seq=self.view.seq + 1, at=time.time())
        logger.debug("%s", event)
        self._journal.append(event)
        before = self.view.status
        self.view = apply(self.view, event)
        self._timeline.add(event)
        if self.view.status != before:
            self.on_status(self.view.status)
        self._tell()

    def flush(self) -> None:
        """Try again what could not be written."""
        if self._journal.error is not None:
            self._journal.flush()
            self._tell()

    def note(self, text: str) -> None:
        """Tell a person something, also when the turn's last line is written already."""
        if self.view.is_over:
            hidden = self._mask.text(text)
            self.view = replace(self.view, notices=(*self.view.notices, hidden))
        else:
            self.emit(Noticed(text=text))

    def _tell(self) -> None:
        """Note when saving begins to fail, and when it works again."""
        error = self._journal.error
        if (error is not None) is self._failing:
            return
        self._failing = error is not None
        if error is not None:
            why = error.strerror or str(error)
            self.note(f"{SAVING_FAILED}{why}. All is kept in memory and tried again.")
        elif not self.view.is_over:
            self.note(SAVING_WORKS)

    def sync(self) -> None:
        """Bring the journal through to the disk; may be called from a worker thread."""
        self._journal.sync()

    def publish(self) -> None:
        """Show the view to all subscribers; one that fails costs nobody else anything."""
        for subscriber in tuple(self.subscribers):
            try:
                subscriber(self.view)
            except Exception:
                name = getattr(subscriber, "__qualname__", repr(subscriber))
                logger.exception("subscriber %s failed", name)

    def close(self) -> None:
        """Close the journal, unless lines still wait to be written."""
        if self._journal.error is None:
            self._journal.close()
