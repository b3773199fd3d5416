"""The way of an event: well-formed, masked, stamped, journalled, folded, observed.

Lives on the loop thread, once the run does.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from nb_agents.events import Event, Noticed
from nb_agents.fold import apply
from nb_agents.masking import Mask
from nb_agents.runs.hiding import EventMask
from nb_agents.session.journal import Journal
from nb_agents.timeline import Timeline, TimelineFold
from nb_agents.unicode import well_formed
from nb_agents.view import RunView

__all__ = ["Observer", "Recorder"]

logger = logging.getLogger("nb_agents")

Observer = Callable[[Event, RunView, RunView], None]
"""Is told of an event that was recorded, with the view before and after it."""


class Recorder:
    """Takes events and keeps the view.

    Args:
        journal: Where they are written.
        past: The view of the turn that this one resumes.
        before: The events that led to it.
        mask: Takes secrets out of all that is written and shown.

    Attributes:
        view: The fold of all events so far.
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
        self._observers: list[Observer] = []
        self._untold: deque[tuple[Event, RunView, RunView]] = deque()
        self._is_telling = False
        self._failing = False
        self.view = replace(past, seq=0) if past else RunView()
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

    def observe(self, observer: Observer) -> None:
        """Tell somebody of each event from now on.

        Args:
            observer: Called right behind the event's journalling; must not block. What it records
                itself comes behind that event, in the journal and for all who observe.
        """
        self._observers.append(observer)

    def emit(self, event: Event) -> None:
        """Take an event. A failed write is told once and tried again later."""
        for each in self._hiding.hide(well_formed(event)):
            self._record(each)

    def _record(self, event: Event) -> None:
        event = replace(event, seq=self.view.seq + 1, at=time.time())
        logger.debug("%s", event)
        self._journal.append(event)
        before = self.view
        after = self.view = apply(before, event)
        self._timeline.add(event)
        self._untold.append((event, before, after))
        self._tell_observers()
        self._tell_of_saving()

    def _tell_observers(self) -> None:
        """Tell of events in their order, also of those that an observer itself records."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._untold:
                told = self._untold.popleft()
                for observer in self._observers:
                    observer(*told)
        finally:
            self._is_telling = False

    def flush(self) -> None:
        """Try again what could not be written."""
        if self._journal.error is not None:
            self._journal.flush()
            self._tell_of_saving()

    def note(self, text: str, *, is_saved: bool | None = None) -> None:
        """Tell a person something, also when the turn's last line is written already.

        Args:
            text: A sentence.
            is_saved: Of a notice about saving: whether all is on disk now.
        """
        event = Noticed(text=text, is_saved=is_saved)
        if self.view.is_over:
            self.view = apply(self.view, self._mask.value(event))
        else:
            self.emit(event)

    def _tell_of_saving(self) -> None:
        """Note when saving begins to fail, and when it works again."""
        error = self._journal.error
        if (error is not None) is self._failing:
            return
        self._failing = error is not None
        if error is not None:
            why = error.strerror or str(error)
            text = f"Saving failed: {why}. All is kept in memory and tried again."
            self.note(text, is_saved=False)
        elif not self.view.is_over:
            self.note("Saving works again; everything is on disk.", is_saved=True)

    def sync(self) -> None:
        """Bring the journal through to the disk; may be called from a worker thread."""
        self._journal.sync()

    def close(self) -> None:
        """Close the journal, unless lines still wait to be written."""
        if self._journal.error is None:
            self._journal.close()
