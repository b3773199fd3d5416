"""Reads the accepted changes of a session, and what a resume or rewind has to do with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nb_agents.disk.directory import read_file
from nb_agents.events import Event
from nb_agents.extensions.notebook_cells.applied import (
    AppliedChange,
    TurnRecord,
    applied_changes,
    changes_after,
    last_checkpoint,
)
from nb_agents.extensions.notebook_cells.cell_events import ChangeDecided, RevertRequested
from nb_agents.extensions.notebook_cells.late_events import late_events
from nb_agents.extensions.notebook_cells.reverting import summary
from nb_agents.launch.carry_over import CarryOver
from nb_agents.session.journal import MAX_BYTES, read_journal
from nb_agents.session.layout import TurnPaths, turns_of


def turn_records(session: Path) -> list[TurnRecord]:
    """Return the turns of a session in which agents proposed or took back changes of cells."""
    return [
        TurnRecord(turn.number, read_journal(turn.journal).events, late_events(turn), session.name)
        for turn in turns_of(session)
        if _has_changes(turn)
    ]


def _has_changes(turn: TurnPaths) -> bool:
    with suppress(OSError):
        data = read_file(turn.journal, MAX_BYTES)
        return b'"change_proposed"' in data or b'"revert_requested"' in data
    return False


def changes_named(session: Path, names: tuple[str, ...]) -> list[AppliedChange]:
    """Return the changes of a session with these names that were not taken back yet."""
    changes = applied_changes(turn_records(session)) if names else []
    return [each for each in changes if each.name in names]


def carry_over(turn: TurnPaths, point: int) -> CarryOver:
    """Return the late decisions of a turn that is continued, and the changes to take back."""
    late = [*_decisions_at(turn, point)]
    if not point:
        return CarryOver(events=tuple(late))
    turns = turn_records(turn.path.parent)
    changes = changes_after(applied_changes(turns), turns, turn.number, point)
    if not changes:
        return CarryOver(events=tuple(late))
    request = RevertRequested(changes=tuple(each.name for each in changes))
    line = (
        f"Taken back in the notebook: the accepted changes of {summary(changes)}. Cells that you "
        "have edited since stay as they are."
    )
    return CarryOver((*late, request), (line,))


def _decisions_at(turn: TurnPaths, point: int) -> Iterator[Event]:
    """Yield the decisions after the turn's end, if the whole turn counts."""
    events = late_events(turn)
    if events and point:
        if point < last_checkpoint(read_journal(turn.journal).events):
            return
    for event in events:
        if isinstance(event, ChangeDecided):
            yield replace(event, turn=turn.number)
