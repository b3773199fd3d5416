"""The states of panels as plain data, sent by the kernel's widget or the server to the page.

``js/src/panel-types.ts`` is made from this file by ``make js-types``: comments and all.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Status = Literal["running", "stopping", "complete", "stopped", "failed", "timed out"]
"""How a run stands: `RunView.state`."""
Tone = Literal["run", "ok", "ing", "cut", "err"]
Asked = Literal["stage", "approval", "text"]
"""Whether a recipe may go on, whether something else may be done, or a text."""

PieceKind = Literal[
    "text", "thought", "writing", "call", "tool", "output", "answer", "vote", "note"
]
"""Of an answer that is being written "writing", of a call's arguments "call"."""


class RowStop(TypedDict):
    """What a row's own Stop button asks for."""

    now: bool


class AgentRow(TypedDict):
    """A row of the panel: an agent, a recipe's unit, or a row of a sweep."""

    id: str
    """Unique in the run: the key of the row."""
    model: str
    chip: str
    tone: Tone
    says: str
    writing: bool
    numbers: str
    stop: NotRequired[RowStop | None]
    """Without it there is no button."""
    name: NotRequired[str]
    """The name that is shown, where the id is an address."""
    depth: NotRequired[int]
    """How many units it is in, or how many called one another until it."""
    title: NotRequired[str]
    """Its prompt or command."""
    pending: NotRequired[bool]
    """Of a recipe: whether it has not begun."""
    current: NotRequired[bool]
    """Whether it is the one in hand."""
    opens: NotRequired[bool]
    """False where it has no transcript."""


class Piece(TypedDict):
    """Something that an agent wrote, did or was told, or more of it."""

    id: str
    """Pieces of one id that follow one another are one part of the transcript."""
    kind: PieceKind
    title: str
    """"" for words."""
    text: str


class Transcript(TypedDict):
    """What an agent wrote and did, from some place of its turn's journal on."""

    pieces: list[Piece]
    end: int
    """The place up to which the journal was read: what comes next begins there."""
    more: bool
    """Whether there is more by now."""


class GateQuestion(TypedDict):
    """A question that waits until a person answers it."""

    id: str
    """Unique in the run."""
    name: str
    asks: Asked
    prompt: str
    countdown: str
    """What becomes of it when nobody answers, such as "58 s, then denied"."""


class StopButton(TypedDict):
    """The big Stop button."""

    label: str
    now: bool
    """What a click asks for: true is an immediate stop, false a graceful one."""
    title: str


class FollowUp(TypedDict):
    """The last follow-up text, and who has read it, in words."""

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
    """How full the bar is, 0..1, and what of."""
    bar: str
    cost: str
    in_flight: str
    agents: list[AgentRow]
    gates: list[GateQuestion]
    """Oldest first."""
    button: StopButton | None
    can_say: bool
    """Whether the run takes follow-up texts."""
    said: FollowUp | None
    notices: list[str]
    footer: list[str]
    card: str
    """ "" while live; at the end the finished card, made and escaped by Python."""
    answers: NotRequired[list[str]]
    """The answers on the card, as Markdown, in its order."""


class SweepRow(AgentRow):
    """A row of a sweep that is at work."""

    run: str
    """The run that works on it."""


class RowCount(TypedDict):
    """How many rows there are of a kind, in words."""

    text: str
    tone: Tone | Literal[""]


class RowFailure(TypedDict):
    """A row that failed."""

    row: str
    why: str


class OpenRow(TypedDict):
    """The one row whose run is drawn whole."""

    row: str
    state: PanelState


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
    """How many failures are not listed, in words."""
    rows: list[SweepRow]
    """The rows at work."""
    more_rows: str
    open: OpenRow | None
    button: StopButton | None
    hold: Literal["pause", "continue", ""]
    """What can be asked of all rows at work."""
    notices: list[str]
    footer: list[str]
    card: str
    """ "" while live; at the end the finished card, made and escaped by Python."""
