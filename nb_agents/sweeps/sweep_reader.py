"""A sweep by what is on disk, read on from where it was, for those who look on."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nb_agents.session.journal import LineReader
from nb_agents.session.layout import TurnPaths
from nb_agents.session.views import read_json
from nb_agents.sweeps.manifest import (
    ABOUT,
    FIRST_ROWS,
    ROWS,
    Note,
    Result,
    RowBegan,
    SweepBegan,
    SweepChanged,
    SweepStatus,
    read_notes,
)
from nb_agents.sweeps.sweep_view import LiveRow, SweepView, Totals, row_record
from nb_agents.view import RunView

__all__ = ["NoteReader", "SweepReader"]

DIED = "the process that worked on it died"


class NoteReader(LineReader):
    """Reads on in what a sweep notes.

    Args:
        path: The sweep's directory.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path / ROWS)
        self._count = 0

    def read(self) -> list[tuple[int, Note]]:
        """Read what has come since the last time; lines that can't be read are left out.

        Returns:
            Each note with the number of its line, from 1.

        Raises:
            OSError: There is no such file, or it can't be read.
        """
        if not stat.S_ISREG(os.lstat(self._path).st_mode):  # a link may lead to a device
            return []
        found = []
        for line in self.read_lines():
            self._count += 1
            found += [(self._count, note) for note in read_notes([line])]
        return found


class SweepReader:
    """Follows a sweep.

    Args:
        path: Its directory.

    Attributes:
        about: What it is.
        turns: The turns of the rows at work, by the rows' names.
        changed_at: When a row ended or began last, in Unix seconds; None before the first.
    """

    def __init__(self, path: Path) -> None:
        self.about = read_json(path / ABOUT)
        self.turns: dict[str, TurnPaths] = {}
        self.changed_at: float | None = None
        self._path, self._notes = path, NoteReader(path)
        self._began = SweepBegan(0.0, 0, (), (), False)
        self._last = SweepChanged(0.0, "running")
        self._results: dict[str, Result] = {}
        self._totals = Totals()
        self._not_to_go: set[str] = set()
        self._ended: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the process that worked on it has said that this is its end."""
        return self._last.status in ("completed", "cancelled")

    def is_same(self) -> bool:
        """Whether it is not another sweep by now, of the same name."""
        return self._notes.is_same()

    def read(self) -> bool:
        """Read what has come since the last time; returns whether anything has."""
        has_news = False
        with suppress(OSError):
            while notes := self._notes.read():
                for _, note in notes:
                    self._take(note)
                has_news, self.changed_at = True, os.stat(self._path / ROWS).st_mtime
        return has_news

    def view(self, live: Mapping[str, RunView], is_live: bool, now: float) -> SweepView:
        """Return how it stands.

        Args:
            live: The turns of the rows at work, by the rows' names.
            is_live: Whether a process works on it.
            now: Unix seconds.
        """
        status, until, reason = self._standing(is_live, now)
        return self._totals.view(
            tuple(LiveRow(row, _run_of(self.turns[row]), view) for row, view in live.items()),
            name=self._path.name,
            status=status,
            total=self._total,
            elapsed_s=max(0.0, until - self._began.at) if self._began.at else 0.0,
            ended=len(self._ended) if self._began.at else 0,
            to_go=max(0, self._total - len(self._not_to_go)),
            reason=reason,
        )

    def table(self) -> Sequence[dict[str, Any]]:
        """Give the records of the first rows, as `Sweep.table` does, but for their own columns."""
        names = self._began.first or tuple(self._results)[:FIRST_ROWS]
        found = ((name, self._results.get(name)) for name in names)
        return [
            row_record(name, self._status_of(name, each), each, self._path / name)
            for name, each in found
        ]

    def _status_of(self, row: str, result: Result | None) -> str:
        # One that was at work when its process died has begun.
        return "cancelled" if row in self.turns else result.status if result else "waiting"

    @property
    def _total(self) -> int:
        rows = self._began.rows or self.about.get("rows")
        # The files are anybody's to write.
        return rows if isinstance(rows, int) else len(self._results)

    def _standing(self, is_live: bool, now: float) -> tuple[SweepStatus, float, str]:
        """Give the status, the time up to which it was worked on, and why it stops."""
        if is_live or self.is_over:
            return self._last.status, self._last.at if self.is_over else now, self._last.reason
        ended = self._totals.completed + len(self._totals.failures)
        is_complete = ended >= self._total
        until = max([self.changed_at or 0.0, *map(_written_at, self.turns.values())])
        return ("completed", until, "") if is_complete else ("cancelled", until, DIED)

    # What a line changes ----------------------------------------------------------------------

    def _take(self, note: Note) -> None:
        match note:
            case SweepBegan():
                self._begin(note)
            case SweepChanged():
                self._last = note
            case RowBegan():
                self._begin_row(note)
            case Result():
                self._end(note)

    def _begin(self, began: SweepBegan) -> None:
        self._began, self._last = began, SweepChanged(began.at, "running")
        self.turns.clear()
        self._ended.clear()
        results = {n: r for n, r in self._results.items() if n not in began.others}
        over = ("completed",) if began.retry_failed else ("completed", "failed")
        self._not_to_go = {row for row, result in results.items() if result.status in over}
        self._totals = Totals()
        for row, result in results.items():
            # One that is done again counts by what it has cost alone.
            is_over = row in self._not_to_go
            self._totals.put(result if is_over else replace(result, status="cancelled"), None)

    def _begin_row(self, began: RowBegan) -> None:
        self._not_to_go.add(began.row)
        turn = self._path / began.row / f"turn_{began.turn}"
        # The files are anybody's to write, and a name or a link may lead elsewhere.
        with suppress(ValueError):  # it has characters that no name has
            inside = Path(os.path.realpath(self._path), *turn.parts[-2:])
            if Path(os.path.realpath(turn)) == inside and os.path.isdir(turn):
                self.turns[began.row] = TurnPaths(turn)

    def _end(self, result: Result) -> None:
        row = result.row
        self._totals.put(result, self._results.get(row))
        # Of the others the numbers are enough, and there may be many with long answers.
        is_shown = row in self._began.first or len(self._results) < FIRST_ROWS
        self._results[row] = result if is_shown else replace(result, answer=None)
        self.turns.pop(row, None)
        self._not_to_go.add(row)
        if result.status != "cancelled":
            self._ended.add(row)


def _written_at(turn: TurnPaths) -> float:
    """Return when a turn's last event was written, in Unix seconds."""
    try:
        return turn.journal.stat().st_mtime
    except OSError:
        return 0.0


def _run_of(turn: TurnPaths) -> str:
    return f"{turn.session}/{turn.number}"
