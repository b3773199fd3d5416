"""Reads the journals of runs that work on cells."""

from __future__ import annotations

import json
from typing import Any

from nb_agents import Run

__all__ = ["events"]


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    """Return the complete events of a kind in a run's journal."""
    lines = (run.path / "events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [event for event in found if event["kind"] == kind]
