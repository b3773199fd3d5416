"""The lines of a sweep's ``rows.jsonl``.

A line is written when a row starts or ends and when the sweep's status changes. With these notes,
readers don't have to open hundreds of sessions. A row without a note is read from its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    FiniteFloat,
    NonNegativeInt,
    PositiveFloat,
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
        answer: The final answer, or a recipe's outputs by name, or None if there is none.
        error: Why the row failed.
        tokens: Tokens used in all turns of the row's session.
        cost: Cost in US dollars, or None if the price of a model is unknown.
        seconds: Duration of the row's last turn.
        score: The answer's score.
        timed_out: Whether a time limit ended the row.
        is_estimated: Whether the tokens and cost are partly estimated.
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
    is_estimated: bool = False

    @property
    def state(self) -> RunState:
        """How the row ended, as shown in all user interfaces."""
        if self.timed_out:
            return "timed out"
        return _STATES[self.status]

    def is_final(self, retry_failed: bool) -> bool:
        """Return whether repeating the sweep keeps this result."""
        return self.status == "completed" or (self.status == "failed" and not retry_failed)


@dataclass(frozen=True, slots=True)
class RowBegan:
    """A turn of a row's session started.

    Attributes:
        row: The row's name.
        turn: The turn's number.
        values: The row's values as short text, by column; see `shown_values`.
    """

    row: str
    turn: PositiveInt
    values: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["row_began"] = "row_began"


@dataclass(frozen=True, slots=True)
class SweepBegan:
    """A process has started to run the sweep.

    Attributes:
        at: Time in Unix seconds.
        rows: The number of rows.
        first: The names of the first rows, in the order of the source.
        others: Rows that have a result but are no longer in the source.
        retry_failed: Whether failed rows run again.
        first_values: The values of the first rows as short text, by column.
        limit: Maximum number of rows that run at the same time, according to the call. 0 in notes
            of earlier versions, like the following.
        max_cost: The call's budget of all rows together in US dollars.
        timeout: The call's time limit of each row in seconds. None means the limit of its team.
        models: Models of the rows, as "provider:model" or "provider".
        has_score: Whether the answers are scored.
    """

    at: FiniteFloat
    rows: NonNegativeInt
    first: tuple[str, ...]
    others: tuple[str, ...]
    retry_failed: bool
    first_values: tuple[Mapping[str, str], ...] = ()
    limit: NonNegativeInt = 0
    max_cost: FiniteFloat | None = None
    timeout: FiniteFloat | None = None
    models: tuple[str, ...] = ()
    has_score: bool = False
    kind: Literal["sweep_began"] = "sweep_began"


@dataclass(frozen=True, slots=True)
class SweepChanged:
    """The sweep's status changed.

    Attributes:
        at: Time in Unix seconds.
        status: The new status.
        reason: Why the sweep was stopped.
    """

    at: FiniteFloat
    status: SweepStatus
    reason: str = ""
    kind: Literal["sweep_changed"] = "sweep_changed"


@dataclass(frozen=True, slots=True)
class Steered:
    """The user steered the sweep. None, "" and False mean no change.

    Attributes:
        at: Time in Unix seconds.
        source: The interface in which the user did that.
        limit: New maximum number of rows that run at the same time.
        max_cost: New budget of all rows together in US dollars.
        timeout: New time limit of each row in seconds.
        pause_model: A model or provider whose rows are paused.
        unpause_model: A model or provider whose rows are unpaused.
        rows: Rows that run again.
        score: Whether the answers of the running rows so far are scored.
    """

    at: FiniteFloat
    source: str = ""
    limit: PositiveInt | None = None
    max_cost: PositiveFloat | None = None
    timeout: PositiveFloat | None = None
    pause_model: str = ""
    unpause_model: str = ""
    rows: tuple[str, ...] = ()
    score: bool = False
    kind: Literal["sweep_steered"] = "sweep_steered"


@dataclass(frozen=True, slots=True)
class InterimScore:
    """A score of what a running row had written so far.

    Attributes:
        row: The row's name.
        score: The score, or None if there is none.
        error: Why there is no score.
        tokens: Tokens that a judge used.
        cost: A judge's cost in US dollars, or None if the price of its model is unknown.
    """

    row: str
    score: FiniteFloat | None = None
    error: str = ""
    tokens: int = 0
    cost: float | None = 0.0
    kind: Literal["interim_score"] = "interim_score"


Note = RowResult | RowBegan | SweepBegan | SweepChanged | Steered | InterimScore
"""A line of ``rows.jsonl``."""


@cache
def _note_type() -> TypeAdapter[Note]:
    """Return what parses a line. It is created on first use, because that takes a while."""
    return TypeAdapter(
        Annotated[
            Annotated[RowResult, Tag("")]
            | Annotated[RowBegan, Tag("row_began")]
            | Annotated[SweepBegan, Tag("sweep_began")]
            | Annotated[SweepChanged, Tag("sweep_changed")]
            | Annotated[Steered, Tag("sweep_steered")]
            | Annotated[InterimScore, Tag("interim_score")],
            Discriminator(lambda line: str(line.get("kind", "")) if isinstance(line, dict) else ""),
        ]
    )


def steered_from(fields: Mapping[str, Any]) -> Steered | None:
    """Return the change that a command of another process contains, or None if it is invalid."""
    with suppress(ValidationError):
        note = _note_type().validate_python({**fields, "kind": "sweep_steered"})
        return note if isinstance(note, Steered) else None
    return None


class NoteReader(LineReader):
    """Reads new notes from a sweep's ``rows.jsonl``. ``path`` is the sweep's directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / ROWS)
        self._count = 0

    def read(self) -> list[tuple[int, Note]]:
        """Return the notes since the last read, with their line numbers, starting at 1.

        Raises:
            OSError: The file is missing or can't be read.
        """
        notes: list[tuple[int, Note]] = []
        while not notes and (lines := self.read_lines()):
            notes += _parsed(enumerate(lines, self._count + 1))
            self._count += len(lines)
        return notes


def _parsed(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Note]]:
    """Yield the notes on numbered lines, skipping invalid ones."""
    for number, line in lines:
        with suppress(ValidationError):
            yield number, _note_type().validate_json(line)
