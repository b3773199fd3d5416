"""Waiting in a cell for a run that may ask something.

A gate of a recipe waits for a person, perhaps for ever. A cell must not wait for ever with it where
nobody could answer: in a headless notebook the run is stopped at the gate, to be resumed where
people are; in a terminal the cell ends, and the next line answers. In a notebook the panel asks.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.text import clip
from nb_agents.runs.interrupts import interrupt_calls
from nb_agents.runs.run import Run
from nb_agents.steps import GateView
from nb_agents.view import RunView

__all__ = ["question", "stay"]


def stay(ip: Any, run: Run) -> str:
    """Wait until a run is over, or until it asks what nobody could answer while this cell waits.

    Args:
        ip: The shell.
        run: The run.

    Returns:
        What the person should know besides, or "".
    """
    if kernel.has_front_end(ip) and not kernel.is_headless(ip):
        run.wait_quietly()
        return ""
    gate = _wait_for_gate(run)
    if gate is None:
        run.wait_quietly()
        return ""
    if not kernel.has_front_end(ip):
        return (
            f"{question(gate)} `%agents approve {run.id} [MESSAGE]` lets the recipe go on, "
            f"`%agents deny {run.id} [MESSAGE]` stops it."
        )
    run.request_stop(False, "approval", f"nobody is there to answer {gate.address!r}")
    run.wait_quietly()
    return (
        f"{question(gate)} Nobody can answer in a notebook that runs by itself, so the run was "
        f"stopped. `%agents resume {run.session}` in an open notebook asks again; a gate with "
        "`timeout` and `default` decides by itself."
    )


def question(gate: GateView) -> str:
    """Say what an open gate asks."""
    return f"The gate {gate.address!r} asks: “{clip(gate.prompt, 200)}”"


def _wait_for_gate(run: Run) -> GateView | None:
    """Wait for a gate that only a person can decide; None when the run is over without one."""
    found = Future[GateView | None]()

    def look(view: RunView) -> None:
        gate = next((g for g in view.gates.values() if not g.timeout_s), None)
        if (gate or view.is_over) and not found.done():
            found.set_result(gate)

    run.subscribe(look)
    look(run.view)
    with interrupt_calls(run.press):
        return found.result()
