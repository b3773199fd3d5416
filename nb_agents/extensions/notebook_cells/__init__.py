"""Lets agents read cells of the open notebook, propose changes, and run cells."""

from __future__ import annotations

from nb_agents.plugins import Extension

_EVENTS = f"{__name__}.cell_events"

EXTENSION = Extension(
    name="notebook_cells",
    agent_tools={"notebook": f"{__name__}.cell_tools:NotebookTools"},
    events={
        "cells_requested": f"{_EVENTS}:CellsRequested",
        "cells_read": f"{_EVENTS}:CellsRead",
        "change_proposed": f"{_EVENTS}:ChangeProposed",
        "change_claimed": f"{_EVENTS}:ChangeClaimed",
        "change_decided": f"{_EVENTS}:ChangeDecided",
        "revert_requested": f"{_EVENTS}:RevertRequested",
        "revert_started": f"{_EVENTS}:RevertStarted",
        "changes_reverted": f"{_EVENTS}:ChangesReverted",
        "cell_run_requested": f"{_EVENTS}:CellRunRequested",
        "cell_run_queued": f"{_EVENTS}:CellRunQueued",
        "cell_run_started": f"{_EVENTS}:CellRunStarted",
        "cell_run_ended": f"{_EVENTS}:CellRunEnded",
    },
    user_events={
        "cells_read": f"{_EVENTS}:may_answer",
        "change_claimed": f"{_EVENTS}:may_claim",
        "change_decided": f"{_EVENTS}:may_decide",
        "revert_started": f"{_EVENTS}:may_start_revert",
        "changes_reverted": f"{_EVENTS}:may_revert",
        "cell_run_queued": f"{_EVENTS}:may_queue",
        "cell_run_started": f"{_EVENTS}:may_start",
        "cell_run_ended": f"{_EVENTS}:may_end",
    },
    carry_overs={"cells": f"{__name__}.rewinding:carry_over"},
    late_events={"cells": f"{__name__}.late_events:late_events_in"},
    panel_parts={"cells": f"{__name__}.cell_views:cells_part"},
    cards={"cells": f"{__name__}.cell_views:cells_card"},
    verbs={
        "apply": f"{__name__}.apply_verb:APPLY",
        "blame": f"{__name__}.blame_verb:BLAME",
        "cells": f"{__name__}.cell_verbs:CELLS",
        "cells_read": f"{__name__}.cell_verbs:CELLS_READ",
        "cells_claim": f"{__name__}.cell_verbs:CELLS_CLAIM",
        "cells_decide": f"{__name__}.cell_verbs:CELLS_DECIDE",
        "cells_revert": f"{__name__}.cell_verbs:CELLS_REVERT",
        "cells_reverted": f"{__name__}.cell_verbs:CELLS_REVERTED",
        "cells_run": f"{__name__}.cell_verbs:CELLS_RUN",
    },
)
