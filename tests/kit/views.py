"""Folds of a turn: view, points, timeline, receipt."""

from nb_agents.events.folds import FOLDS
from nb_agents.view.fold import MAX_LEARNED, MAX_LEARNED_CHARS, VIEW, fold
from nb_agents.view.points import Checkpoint, checkpoints_of
from nb_agents.view.receipt import Receipt, receipt, total_cost
from nb_agents.view.run_view import (
    AgentView,
    RunState,
    RunStatus,
    RunView,
    StopView,
    ToolView,
    VoteView,
)
from nb_agents.view.spans import SPANS
from nb_agents.view.step_values import value_of
from nb_agents.view.steps import MAX_TAIL, ApprovalView, GateView, gate_title
from nb_agents.view.timeline import Timeline, TimelineEntry, TurnTime, fold_timeline

__all__ = [
    "FOLDS",
    "AgentView",
    "ApprovalView",
    "Checkpoint",
    "GateView",
    "MAX_LEARNED",
    "MAX_LEARNED_CHARS",
    "MAX_TAIL",
    "Receipt",
    "RunState",
    "RunStatus",
    "RunView",
    "SPANS",
    "StopView",
    "Timeline",
    "TimelineEntry",
    "ToolView",
    "TurnTime",
    "VIEW",
    "VoteView",
    "checkpoints_of",
    "fold",
    "fold_timeline",
    "gate_title",
    "receipt",
    "total_cost",
    "value_of",
]
