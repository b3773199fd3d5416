"""Runs: start, resume, limits and stops."""

from pathlib import Path
from typing import Any

from nb_agents import loop
from nb_agents.cancel import (
    AgentStopped,
    CancellationStatus,
    CancelToken,
    StopRequest,
    StopResult,
    StopSource,
    bind,
    checkpoint,
    current_token,
)
from nb_agents.launch import detach, finding, here, quota_waits
from nb_agents.launch import start as start_module
from nb_agents.launch.api import resume, start
from nb_agents.launch.finding import attach, find_live, find_run, handle_of, runs
from nb_agents.launch.here import Loaded
from nb_agents.launch.quota_waits import WAITS_LOCK, ResumedTurn, resume_due_turns
from nb_agents.launch.resume import ResumeRequest
from nb_agents.launch.resume_plan import Preview, preview_of, what_resumes
from nb_agents.launch.rewind import RewindRequest
from nb_agents.launch.rewind_plan import TurnPrefix
from nb_agents.launch.run import Run
from nb_agents.launch.start import StartRequest
from nb_agents.loop import (
    THREAD_NAME,
    call,
    defer_interrupts,
    ensure_loop,
    post,
    redirect_interrupts,
    submit,
)
from nb_agents.options import RunOptions
from nb_agents.turns import drivers, reader, recorder, registry, turn
from nb_agents.turns import live_runs as live_runs_module
from nb_agents.turns.budget import (
    Budget,
    Spent,
    budget_of,
    check_used,
    chosen_raise,
    propose_raise,
    rest_of_budget,
    unpriced,
    usage_of_task,
    used_up,
)
from nb_agents.turns.day_budget import DayLedger
from nb_agents.turns.drivers import DriverDeps
from nb_agents.turns.handle import MAX_SAID
from nb_agents.turns.hooks import Hooks
from nb_agents.turns.ledger import LedgerEntry
from nb_agents.turns.limits import Limits, is_clock_stopped
from nb_agents.turns.live_runs import live_runs
from nb_agents.turns.live_turns import LOOK_S, LiveTurn, announce, live_turns, polling
from nb_agents.turns.offering import Offering
from nb_agents.turns.reader import TurnReader
from nb_agents.turns.recorder import Recorder
from nb_agents.turns.status import failure_of, log_lines, progress_of, result_of
from nb_agents.turns.telemetry import trace_events
from nb_agents.turns.turn import TurnWriter
from nb_agents.turns.turn_spec import TurnSpec, writable_context_paths


def preview(
    session: str | Path = "",
    config: Any = None,
    *,
    session_root: Path | None = None,
    **changes: Any,
) -> Preview:
    """Return a preview of `nb_agents.resume` with these arguments."""
    options = RunOptions(session_root=session_root)
    return ResumeRequest(session, config, options=options, **changes).preview()


__all__ = [
    "WAITS_LOCK",
    "ResumedTurn",
    "resume_due_turns",
    "quota_waits",
    "AgentStopped",
    "Budget",
    "DayLedger",
    "CancelToken",
    "CancellationStatus",
    "DriverDeps",
    "LedgerEntry",
    "Hooks",
    "LOOK_S",
    "Limits",
    "LiveTurn",
    "Loaded",
    "MAX_SAID",
    "Offering",
    "Preview",
    "Recorder",
    "Run",
    "RewindRequest",
    "StartRequest",
    "StopRequest",
    "StopResult",
    "StopSource",
    "THREAD_NAME",
    "TurnPrefix",
    "TurnReader",
    "Spent",
    "TurnSpec",
    "TurnWriter",
    "announce",
    "attach",
    "bind",
    "call",
    "budget_of",
    "check_used",
    "checkpoint",
    "chosen_raise",
    "current_token",
    "defer_interrupts",
    "detach",
    "drivers",
    "ensure_loop",
    "failure_of",
    "find_run",
    "find_live",
    "finding",
    "handle_of",
    "here",
    "is_clock_stopped",
    "live_runs",
    "live_runs_module",
    "live_turns",
    "log_lines",
    "loop",
    "propose_raise",
    "rest_of_budget",
    "unpriced",
    "usage_of_task",
    "used_up",
    "polling",
    "post",
    "preview",
    "preview_of",
    "progress_of",
    "reader",
    "recorder",
    "redirect_interrupts",
    "registry",
    "result_of",
    "resume",
    "runs",
    "start",
    "start_module",
    "submit",
    "trace_events",
    "turn",
    "what_resumes",
    "writable_context_paths",
]
