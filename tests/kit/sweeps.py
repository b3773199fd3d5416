"""Sweeps, their notes and their rows."""

from pathlib import Path
from typing import TypeVar

from nb_agents.extensions.sweeps import mapping, sweep, sweep_cells
from nb_agents.extensions.sweeps.comparison import ComparisonDecider, ComparisonSpec, arm_name
from nb_agents.extensions.sweeps.confidence import BettingEvidence
from nb_agents.extensions.sweeps.manifest import has_died, is_live_sweep, over_budget, owner_lock
from nb_agents.extensions.sweeps.notes import (
    ROWS,
    InterimScore,
    Note,
    NoteReader,
    RowBegan,
    RowOutcome,
    RowResult,
    Steered,
    SweepBegan,
    SweepChanged,
)
from nb_agents.extensions.sweeps.notes import _note_type as note_type
from nb_agents.extensions.sweeps.row_session import result_of_turn, text_so_far
from nb_agents.extensions.sweeps.source import Row, read_rows
from nb_agents.extensions.sweeps.steering import Steering, SteerRequest, uses_paused
from nb_agents.extensions.sweeps.sweep import Sweep
from nb_agents.extensions.sweeps.sweep_card import (
    MAX_FAILURES,
    MAX_LIVE,
    MAX_TABLE,
    SWEEP_MIME,
    OpenedRow,
    sweep_bundle,
    sweep_notices,
    sweep_state,
    sweep_text,
    sweep_title,
)
from nb_agents.extensions.sweeps.sweep_cells import _scorer as scorer
from nb_agents.extensions.sweeps.sweep_facts import sweep_facts
from nb_agents.extensions.sweeps.sweep_feed import SweepFeed
from nb_agents.extensions.sweeps.sweep_file import SWEEP_FILE, is_sweep, sweep_paths
from nb_agents.extensions.sweeps.sweep_fold import (
    FIRST_ROWS,
    PROCESS_DIED,
    EndedRow,
    LiveRow,
    SweepFold,
    SweepView,
    fold_notes,
)
from nb_agents.extensions.sweeps.sweep_reader import SweepReader
from nb_agents.extensions.sweeps.sweep_table import row_record
from nb_agents.extensions.sweeps.waiting_rows import WaitingRows
from nb_agents.session.prune import PruneSpec
from nb_agents.turns.ledger_prune import prune

_Kind = TypeVar("_Kind", bound=Note)


def notes_in(sweep: Path, kind: type[_Kind]) -> list[_Kind]:
    """Return the notes of a kind in a sweep's directory."""
    return [note for _, note in NoteReader(sweep).read() if isinstance(note, kind)]


__all__ = [
    "BettingEvidence",
    "ComparisonDecider",
    "ComparisonSpec",
    "arm_name",
    "InterimScore",
    "Steered",
    "SteerRequest",
    "Steering",
    "notes_in",
    "text_so_far",
    "uses_paused",
    "MAX_FAILURES",
    "MAX_LIVE",
    "MAX_TABLE",
    "SWEEP_MIME",
    "OpenedRow",
    "sweep_bundle",
    "sweep_notices",
    "sweep_state",
    "sweep_text",
    "sweep_title",
    "FIRST_ROWS",
    "note_type",
    "EndedRow",
    "LiveRow",
    "Note",
    "PROCESS_DIED",
    "PruneSpec",
    "ROWS",
    "Row",
    "RowBegan",
    "RowOutcome",
    "RowResult",
    "Sweep",
    "SWEEP_FILE",
    "SweepBegan",
    "SweepChanged",
    "SweepFeed",
    "SweepFold",
    "SweepReader",
    "SweepView",
    "fold_notes",
    "has_died",
    "is_live_sweep",
    "is_sweep",
    "mapping",
    "over_budget",
    "owner_lock",
    "prune",
    "read_rows",
    "result_of_turn",
    "row_record",
    "scorer",
    "sweep",
    "sweep_cells",
    "sweep_facts",
    "sweep_paths",
    "PruneSpec",
    "WaitingRows",
]
