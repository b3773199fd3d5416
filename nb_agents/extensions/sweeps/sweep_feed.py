"""The feed of a sweep, from which the server streams changes to pages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from nb_agents.disk.lock import is_held
from nb_agents.extensions.sweeps.comparison_card import comparison_bundle
from nb_agents.extensions.sweeps.comparison_file import read_comparison
from nb_agents.extensions.sweeps.manifest import owner_lock
from nb_agents.extensions.sweeps.notes import Note, NoteReader, RowResult
from nb_agents.extensions.sweeps.sweep_card import (
    sweep_bundle,
    sweep_notices,
    sweep_state,
    sweep_title,
)
from nb_agents.extensions.sweeps.sweep_facts import SweepFacts, sweep_facts
from nb_agents.extensions.sweeps.sweep_fold import LiveRow
from nb_agents.extensions.sweeps.sweep_reader import SweepReader
from nb_agents.presentation.panel_types import SweepState
from nb_agents.server.feeds import Feeds, GroupFeed, Record, RecordReader, TurnFeed, records
from nb_agents.server.places import display_path

SWEEP_S = 0.2
"""Minimum interval between two reads of a sweep, in seconds."""


class SweepFeed(GroupFeed):
    """Follows a sweep and its running rows.

    Args:
        path: The sweep's directory.
        feeds: The feeds of the server, including those of the rows.

    Attributes:
        view: The sweep's state at the last read.
    """

    poll_s = SWEEP_S

    def __init__(self, path: Path, feeds: Feeds) -> None:
        super().__init__(path, feeds)
        self._reader = SweepReader(path)
        self._rows: dict[str, TurnFeed] = {}
        self._row_states: tuple[object, ...] = ()
        self._changes = 0
        self.view = self._reader.view_of((), True, 0.0)

    def card(self) -> dict[str, Any]:
        """Return the card of the sweep."""
        self.path.stat()
        if (found := read_comparison(self.path)) is not None:
            title = sweep_title(self.path)
            return comparison_bundle(self.view, found, title, display_path(self.path))
        table = self._reader.table()
        return sweep_bundle(self.view, sweep_title(self.path), display_path(self.path), table)

    def facts(self, where: str = "") -> SweepFacts:
        """Return the sweep's list entry."""
        return sweep_facts(self.view, self._reader.changed_at, self.path, where)

    def record_reader(self) -> RecordReader:
        """Return a function that returns the notes added since its last call."""
        reader = NoteReader(self.path)
        return lambda: records(reader.read(), _record)

    @property
    def _has_recorded_end(self) -> bool:
        return self._reader.has_ended

    @property
    def standing(self) -> int:
        """The number of changes of the sweep or its rows so far."""
        return self._changes

    def _is_owned(self) -> bool:
        return is_held(owner_lock(self.path))

    def _read_on(self, is_live: bool) -> bool:
        if not self._reader.is_same():
            self._reader = SweepReader(self.path)
        has_news = self._reader.read()
        self._read_rows()
        # Only live rows, because the sweep's process reports the end of a row shortly afterwards.
        rows = self._rows.items() if is_live else ()
        live = [LiveRow(name, row.turn, row.view) for name, row in rows if row.is_live]
        states = (is_live, *((row.name, row.view.seq) for row in live))
        has_news = has_news or states != self._row_states
        self._row_states, self._changes = states, self._changes + has_news
        self.view = self._reader.view_of(live, is_live)
        return has_news

    def _read_rows(self) -> None:
        now, turns = time.monotonic(), self._reader.turns
        self._rows = {
            name: row
            if (row := self._rows.get(name)) and row.path == turn.path
            else self._feeds.turn(turn.path)
            for name, turn in turns.items()
        }
        for row in self._rows.values():
            if row.is_due(now):
                row.read()

    def _draw(self, now: float) -> SweepState:
        title, notices = sweep_title(self.path), sweep_notices(self.path)
        return sweep_state(self.view, title, display_path(self.path), now, notices=notices)


def _record(numbered: tuple[int, Note]) -> Record:
    number, note = numbered
    kind = "row_ended" if isinstance(note, RowResult) else note.kind
    return Record(kind, to_jsonable_python(note, inf_nan_mode="null"), number)
