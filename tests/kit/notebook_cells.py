"""Agents that read cells of the notebook and propose changes."""

from nb_agents.config.team import TeamSpec
from nb_agents.config.tools import ToolRule
from nb_agents.config.uploads import cell_mentions
from nb_agents.extensions.notebook_cells import notebook_files
from nb_agents.extensions.notebook_cells.applied import (
    AppliedChange,
    TurnRecord,
    applied_changes,
    changes_after,
)
from nb_agents.extensions.notebook_cells.blame import blame as blamed_lines
from nb_agents.extensions.notebook_cells.blame_verb import blame
from nb_agents.extensions.notebook_cells.cell_events import (
    CellsRead,
    CellsState,
    ChangeDecided,
    ChangeProposed,
    ChangesReverted,
    Proposal,
    cells_of,
)
from nb_agents.extensions.notebook_cells.cell_verbs import (
    cells_claim,
    cells_decide,
    cells_read,
    cells_revert,
    cells_reverted,
    cells_run,
    state_of,
)
from nb_agents.extensions.notebook_cells.cells import Cell, cells_in, digest
from nb_agents.extensions.notebook_cells.changes import apply_changes
from nb_agents.extensions.notebook_cells.late_events import FILE as LATE_FILE
from nb_agents.extensions.notebook_cells.late_events import add_late_event, late_events
from nb_agents.extensions.notebook_cells.notebook_files import notebook_path
from nb_agents.extensions.notebook_cells.reverting import apply_steps, plan_revert
from nb_agents.extensions.notebook_cells.task_cells import find_cells, task_cells_text
from nb_agents.launch.finding import attach
from nb_agents.presentation.asking import CELL, TERMINAL
from nb_agents.session.layout import TurnPaths
from nb_agents.session.lookup import with_origin
from nb_agents.turns.awaited import waiting_for
from nb_agents.verbs.verb import Caller

__all__ = [
    "AppliedChange",
    "CELL",
    "Caller",
    "Cell",
    "CellsRead",
    "CellsState",
    "ChangeDecided",
    "ChangeProposed",
    "ChangesReverted",
    "LATE_FILE",
    "Proposal",
    "TERMINAL",
    "TeamSpec",
    "TurnPaths",
    "TurnRecord",
    "add_late_event",
    "applied_changes",
    "apply_changes",
    "apply_steps",
    "attach",
    "blame",
    "blamed_lines",
    "ToolRule",
    "cell_mentions",
    "cells_claim",
    "cells_decide",
    "cells_in",
    "cells_of",
    "cells_read",
    "cells_revert",
    "cells_reverted",
    "changes_after",
    "cells_run",
    "digest",
    "find_cells",
    "late_events",
    "notebook_files",
    "notebook_path",
    "plan_revert",
    "state_of",
    "task_cells_text",
    "waiting_for",
    "with_origin",
]
