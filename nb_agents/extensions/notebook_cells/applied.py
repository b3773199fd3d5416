"""The changes of agents that a notebook contains, from the journals of a session. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nb_agents.events import Event
from nb_agents.extensions.notebook_cells.cell_events import (
    APPLIED,
    ChangeDecided,
    ChangesReverted,
)
from nb_agents.extensions.notebook_cells.origins import ProposalOrigin, proposals_of
from nb_agents.launch.agent_prompts import Prompts
from nb_agents.view.points import checkpoints_of


class TurnRecord(NamedTuple):
    """What is known of a turn.

    Attributes:
        turn: The number of the turn.
        events: The events of its journal.
        late: The events after its end.
        session: The session's name.
    """

    turn: int
    events: Sequence[Event]
    late: Sequence[Event] = ()
    session: str = ""


@dataclass(frozen=True, kw_only=True)
class AppliedChange:
    """A change that a user has accepted.

    Attributes:
        turn, number: The turn and the number of the proposal.
        op: The kind of change. A text that was put into a new cell is an insertion.
        cell: The id of the changed cell.
        cell_type: The type of the cell.
        before: The source before the change, or "" for an insertion.
        after: The source after the change, or "" for a deletion.
        removed: The JSON text of a deleted cell, or "".
        above: The ids of the cells above a deleted or moved cell, nearest first.
        is_found: Whether the change was found in the notebook, so the earlier place is unknown.
        moved_below: For a move, the id of the cell below which the cell was put, or "" for the top.
        agent: The agent's id.
        model: The agent's model, or "".
        call: The id of the tool call, or "".
        by: The name of the user.
        at: When it was accepted, in Unix seconds.
        seq: The number of the decision's event, or 0 if it was made after the end of the turn.
        session: The session's name.
        prompt: The beginning of the agent's prompt.
    """

    turn: int
    number: int
    op: str
    cell: str
    cell_type: str = "code"
    before: str = ""
    after: str = ""
    removed: str = ""
    above: tuple[str, ...] = ()
    is_found: bool = False
    moved_below: str = ""
    agent: str = ""
    model: str = ""
    call: str = ""
    by: str = ""
    at: float = 0.0
    seq: int = 0
    session: str = ""
    prompt: str = ""

    @property
    def name(self) -> str:
        """The turn and the number, such as "2/5"."""
        return f"{self.turn}/{self.number}"


def applied_changes(turns: Iterable[TurnRecord]) -> list[AppliedChange]:
    """Return the changes that were accepted and not taken back, in the order of acceptance.

    Args:
        turns: The turns of one session.
    """
    records = [*turns]
    reverted = {
        name
        for turn in records
        for event in (*turn.events, *turn.late)
        if isinstance(event, ChangesReverted)
        for name in event.changes
    }
    changes = [change for turn in records for change in _changes_of(turn)]
    return sorted((each for each in changes if each.name not in reverted), key=lambda c: c.at)


def _changes_of(turn: TurnRecord) -> Iterator[AppliedChange]:
    proposed, prompts = proposals_of(turn.events), Prompts(turn.events)
    late = {id(event) for event in turn.late}
    applied = set[int]()
    for event in (*turn.events, *turn.late):
        if not isinstance(event, ChangeDecided) or event.turn or event.how not in APPLIED:
            continue
        origin = proposed.get(event.number)
        if origin is None or event.number in applied:
            continue
        applied.add(event.number)
        prompt = prompts.of(origin.change.agent, origin.change.at)
        yield _applied(turn, origin, event, prompt, 0 if id(event) in late else event.seq)


def _applied(
    turn: TurnRecord, origin: ProposalOrigin, event: ChangeDecided, prompt: str, seq: int
) -> AppliedChange:
    change = origin.change
    is_new = event.how == "inserted"
    return AppliedChange(
        turn=turn.turn,
        number=change.number,
        op="insert" if is_new else change.op,
        cell=event.cell or change.cell,
        cell_type=change.cell_type,
        before="" if is_new else change.base_source,
        after=change.source,
        removed=event.removed,
        above=event.above,
        is_found=event.is_found,
        moved_below=change.after,
        agent=change.agent,
        model=origin.model,
        call=origin.call,
        by=event.by,
        at=event.at,
        seq=seq,
        session=turn.session,
        prompt=prompt,
    )


def last_checkpoint(events: Sequence[Event]) -> int:
    """Return the number of the last event to which a rewind of a turn can go back."""
    points = checkpoints_of(events)
    return points[-1].seq if points else events[-1].seq if events else 0


def changes_after(
    changes: Iterable[AppliedChange], turns: Sequence[TurnRecord], turn: int, point: int
) -> list[AppliedChange]:
    """Return the changes that were accepted after a checkpoint.

    Decisions after the end of the checkpoint's turn belong to its last checkpoint.

    Args:
        changes: The changes of the session.
        turns: The turns of the session.
        turn: The number of the checkpoint's turn.
        point: The number of the last event that counts. 0 means all events of the turn.
    """
    events = next((each.events for each in turns if each.turn == turn), ())
    last = last_checkpoint(events)
    end = point or last
    at = next((each.at for each in events if each.seq == end), 0.0)

    def is_after(change: AppliedChange) -> bool:
        if change.turn != turn:
            return change.turn > turn or (not change.seq and change.at > at)
        return (change.seq or last) > end

    return [each for each in changes if is_after(each)]
