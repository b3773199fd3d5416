"""The states of panels as plain data, sent to the page by the kernel's widget or the server.

``make js-types`` generates ``js/src/panel-types.ts`` from this file, including the comments.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Status = Literal["running", "stopping", "complete", "stopped", "failed", "timed out"]
"""The state of a run: `RunView.state`."""
Tone = Literal["run", "ok", "ing", "cut", "err"]
Asked = Literal["stage", "approval", "text", "budget"]
"""What a gate asks for: to continue a recipe, approve a call, give text or raise the budget."""

PieceKind = Literal[
    "text", "thought", "writing", "call", "tool", "output", "answer", "vote", "note"
]
"""The kind of a transcript part.

"writing" is an unfinished answer, "call" the arguments of a tool call.
"""


RowState = Literal["running", "waiting", "complete", "failed", "timed out", "stopped"]
"""The state of a listed row of a sweep. "waiting" is for the user."""


class RowStop(TypedDict):
    """The stop level that a row's Stop button requests."""

    now: bool


class AgentRow(TypedDict):
    """A row of the panel: an agent, a unit of a recipe, or a row of a sweep."""

    id: str
    """The key of the row, unique in the run."""
    model: str
    chip: str
    tone: Tone
    says: str
    writing: bool
    numbers: str
    stop: NotRequired[RowStop | None]
    """Missing or null if the row has no button."""
    name: NotRequired[str]
    """The name to show, if the id is an address."""
    depth: NotRequired[int]
    """Number of units around it, or of its callers."""
    title: NotRequired[str]
    """The prompt or command."""
    pending: NotRequired[bool]
    """Whether a recipe's unit has not started."""
    current: NotRequired[bool]
    """Whether it is the current row."""
    opens: NotRequired[bool]
    """False if it has no transcript."""
    again: NotRequired[bool]
    """Whether it has a button that runs it again."""


class Piece(TypedDict):
    """A part of a transcript, or the continuation of one: text, a call, a result or a note."""

    id: str
    """Consecutive parts with the same id belong together."""
    kind: PieceKind
    title: str
    """Empty for plain text."""
    text: str


class Transcript(TypedDict):
    """What an agent wrote and did, starting at a position in its turn's journal."""

    pieces: list[Piece]
    end: int
    """The journal position to read from next, in bytes."""
    more: bool
    """Whether the journal already has more to read."""


class GateQuestion(TypedDict):
    """A question that is waiting for the user."""

    id: str
    """Unique in the run."""
    name: str
    asks: Asked
    prompt: str
    countdown: str
    """What happens if nobody answers, such as "58 s, then denied"."""


class StopButton(TypedDict):
    """The Stop button of a run or sweep."""

    label: str
    now: bool
    """Whether a click requests an immediate stop instead of a graceful one."""
    title: str


class FollowUp(TypedDict):
    """The last message to the agents, and a note on who has read it."""

    text: str
    read: str


class PanelState(TypedDict):
    """The panel of a run."""

    run: str
    session: str
    turn: int
    task: str
    status: Status
    chip: str
    round: str
    elapsed: str
    fraction: float
    """How full the bar is, from 0 to 1. `bar` is its label."""
    bar: str
    cost: str
    in_flight: str
    agents: list[AgentRow]
    gates: list[GateQuestion]
    """Open gates, oldest first."""
    button: StopButton | None
    can_say: bool
    """Whether the run accepts messages."""
    said: FollowUp | None
    notices: list[str]
    footer: list[str]
    card: str
    """The finished card as escaped HTML. Empty while the run is live."""
    waits: NotRequired[bool]
    """Whether all agents wait for their providers."""
    answers: NotRequired[list[str]]
    """The answers on the card as Markdown, in their order."""
    parts: NotRequired[dict[str, object]]
    """Data of extensions, by name."""
    summary: NotRequired[str]
    """For a large team: the numbers of agents by activity, such as "4 writing · 1 failed"."""


class SweepRow(AgentRow):
    """A row of a sweep that is live or has ended."""

    run: str
    """The id of the row's run."""
    state: RowState
    tokens: int
    score: float | None


class RowCount(TypedDict):
    """The number of rows in a state, as text."""

    text: str
    tone: Tone | Literal[""]
    state: RowState | Literal[""]
    """The state, if rows in it are listed."""


class RowFailure(TypedDict):
    """A row that failed."""

    row: str
    why: str


class OpenRow(TypedDict):
    """The open row, with the state of its panel."""

    row: str
    title: str
    state: PanelState


class SweepModel(TypedDict):
    """A model or provider whose rows can be paused."""

    name: str
    is_paused: bool


class SweepSteering(TypedDict):
    """What the user can change about a running sweep."""

    says: str
    """The limits as text."""
    limit: int
    max_cost: float | None
    timeout: float | None
    """In seconds."""
    models: list[SweepModel]
    can_score: bool
    failed: int


class SweepState(TypedDict):
    """The panel of a sweep."""

    sweep: str
    task: str
    status: Status
    chip: str
    round: str
    fraction: float
    bar: str
    in_flight: str
    elapsed: str
    cost: str
    counts: list[RowCount]
    failures: list[RowFailure]
    more_failures: str
    """The number of failures that are not listed, as text."""
    rows: list[SweepRow]
    """The live rows, and the rows that ended last, newest first."""
    more_rows: str
    open: OpenRow | None
    button: StopButton | None
    hold: Literal["pause", "unpause", ""]
    """The action of the second button, on all live rows."""
    steering: SweepSteering | None
    """Null while nothing can be changed."""
    notices: list[str]
    footer: list[str]
    card: str
    """The finished card as escaped HTML. Empty while the sweep is live."""
