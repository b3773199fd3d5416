"""The lines of a sweep's ``rows.jsonl``.

A line is written for each row that started or ended, and for each change of the sweep's status. The
lines spare readers from opening hundreds of sessions; a row without one is read from its session.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    Tag,
    TypeAdapter,
    ValidationError,
)

from nb_agents.session.journal import LineReader
from nb_agents.view.run_view import RunState

RowOutcome = Literal["completed", "failed", "cancelled"]
SweepStatus = Literal["running", "paused", "stopping", "completed", "cancelled"]

_STATES: dict[RowOutcome, RunState] = {
    "completed": "complete",
    "failed": "failed",
    "cancelled": "stopped",
}

ROWS = "rows.jsonl"


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of a row.

    Attributes:
        row: The row's name.
        status: How the row ended.
        answer: The final answer, or a recipe's outputs by name; None when there is none.
        error: Why the row failed.
        tokens: Tokens used in all turns of the row's session.
        cost: US dollars, or None when a model's price is unknown.
        seconds: Duration of the row's last turn.
        score: The answer's score.
        timed_out: Whether a time limit ended it.
    """

    row: str
    status: RowOutcome
    answer: Any = None
    error: str = ""
    tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0
    score: float | None = None
    timed_out: bool = False

    @property
    def state(self) -> RunState:
        """How the row ended, in the word that is shown everywhere."""
        if self.timed_out:
            return "timed out"
        return _STATES[self.status]

    def is_final(self, retry_failed: bool) -> bool:
        """Return whether another call of the sweep keeps this result."""
        return self.status == "completed" or (self.status == "failed" and not retry_failed)


@dataclass(frozen=True, slots=True)
class RowBegan:
    """A turn of a row's session started.

    Attributes:
        row: The row's name.
        turn: The turn's number.
    """

    row: str
    turn: PositiveInt
    kind: Literal["row_began"] = "row_began"


@dataclass(frozen=True, slots=True)
class SweepBegan:
    """A process started to run the sweep.

    Attributes:
        at: Unix seconds.
        rows: The number of rows.
        first: The names of the first rows, in the source's order.
        others: Rows with a result that are no longer in the source.
        retry_failed: Whether rows that failed before are run again.
    """

    at: FiniteFloat
    rows: NonNegativeInt
    first: tuple[str, ...]
    others: tuple[str, ...]
    retry_failed: bool
    kind: Literal["sweep_began"] = "sweep_began"


@dataclass(frozen=True, slots=True)
class SweepChanged:
    """The sweep's status changed.

    Attributes:
        at: Unix seconds.
        status: The new status.
        reason: The reason of a stop.
    """

    at: FiniteFloat
    status: SweepStatus
    reason: str = ""
    kind: Literal["sweep_changed"] = "sweep_changed"


Note = RowResult | RowBegan | SweepBegan | SweepChanged
"""A line of ``rows.jsonl``."""

_LINE: TypeAdapter[Note] = TypeAdapter(
    Annotated[
        Annotated[RowResult, Tag("")]
        | Annotated[RowBegan, Tag("row_began")]
        | Annotated[SweepBegan, Tag("sweep_began")]
        | Annotated[SweepChanged, Tag("sweep_changed")],
        Discriminator(lambda line: str(line.get("kind", "")) if isinstance(line, dict) else ""),
    ]
)


class NoteReader(LineReader):
    """Reads new notes from a sweep's ``rows.jsonl``; ``path`` is the sweep's directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / ROWS)
        self._count = 0

    def read(self) -> list[tuple[int, Note]]:
        """Return the notes since the last read, with their line numbers from 1.

        Raises:
            OSError: The file is missing or can't be read.
        """
        if not stat.S_ISREG(os.lstat(self._path).st_mode):  # a link may lead to a device
            return []
        notes: list[tuple[int, Note]] = []
        while not notes and (lines := self.read_lines()):
            notes += _parsed(enumerate(lines, self._count + 1))
            self._count += len(lines)
        return notes


def _parsed(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Note]]:
    """Yield the notes on numbered lines, skipping invalid ones."""
    for number, line in lines:
        with suppress(ValidationError):
            yield number, _LINE.validate_json(line)
