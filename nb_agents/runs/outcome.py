"""What a run that is over gives to who waits for it, or is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nb_agents.errors import RunFailed
from nb_agents.view import RunView

__all__ = ["failure_of", "result_of"]


def result_of(view: RunView) -> Any:
    """Give the final answer, or a recipe's outputs by name; None of a turn that did not complete.

    Args:
        view: The turn.
    """
    if view.status != "completed":
        return None
    return dict(view.outputs) if view.recipe else view.answer


def failure_of(run_id: str, view: RunView, path: Path) -> RunFailed:
    """Make the error of a turn that failed.

    Args:
        run_id: The run's id.
        view: The turn.
        path: Its directory.
    """
    why = view.stop.reason if view.stop else "no answer"
    failed = {s.address: s.why for s in view.steps.values() if s.status == "failed"}
    return RunFailed(run_id, failed or {a.id: a.error or why for a in view.agents.values()}, path)
