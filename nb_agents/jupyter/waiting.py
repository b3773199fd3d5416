"""Waiting in a cell for a run that may ask something.

A gate of a recipe waits for a person, perhaps for ever. A cell must not wait for ever with it where
nobody could answer: in a headless notebook the run is stopped at the gate, to be resumed where
people are; in a terminal the cell ends, and the next line answers. In a notebook the panel can be
answered while the cell waits; the cell says so too, for front ends that show no panel.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.rows import asked_for
from nb_agents.jupyter.text import clip
from nb_agents.runs.loop import interrupt_calls
from nb_agents.runs.run import Run
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import GateView

__all__ = ["question", "stay"]


def stay(ip: Any, run: Run) -> str:
    """Wait until a run is over, or until it asks what nobody could answer while this cell waits.

    Args:
        ip: The shell.
        run: The run.

    Returns:
        What the person should know besides, or "".
    """
    if not kernel.has_front_end(ip):
        said = _until_asked(run)
    elif kernel.is_headless(ip):
        said = _stop_when_asked(run)
    else:
        said = _tell_when_asked(run)
    return said


def _until_asked(run: Run) -> str:
    gate = _wait_for_gate(run)
    if gate is None:
        run.wait(raise_on_stop=False)
        return ""
    deny = f"`%agents deny {run.id} [MESSAGE]`"
    match asked_for(gate, run.view):
        case "text":
            how = f"`%agents answer {run.id} TEXT` answers, {deny} refuses."
        case "stage":
            approve = f"`%agents approve {run.id} [MESSAGE]` lets the recipe go on"
            how = f"{approve}, {deny} stops it."
        case "approval":
            how = f"`%agents approve {run.id} [MESSAGE]` allows it, {deny} does not."
    return f"{question(gate)} {how}"


def _stop_when_asked(run: Run) -> str:
    gate = _wait_for_gate(run)
    if gate is not None:
        why = f"nobody is there to answer {gate.address!r}"
        run.stop(reason=why, source="approval")
    run.wait(raise_on_stop=False)
    if gate is None:
        return ""
    return (
        f"{question(gate)} Nobody can answer in a notebook that runs by itself, so the run was "
        f"stopped. `%agents resume {run.session}` in an open notebook asks again; a gate with "
        "`timeout` and `default` decides by itself."
    )


def _tell_when_asked(run: Run) -> str:
    told: list[str] = []
    while gate := _wait_for_gate(run, told):
        told.append(gate.address)
        how = "Answer on the panel. An interrupt stops the run here, and a resume asks again."
        display({"text/plain": f"{question(gate)} {how}"})
    run.wait(raise_on_stop=False)
    return ""


def question(gate: GateView) -> str:
    """Return what an open gate asks."""
    return f"The gate {gate.address!r} asks: “{clip(gate.prompt, 200)}”"


def _wait_for_gate(run: Run, told: Collection[str] = ()) -> GateView | None:
    """Wait for a gate that only a person can decide.

    Args:
        run: The run.
        told: Addresses of the gates that the person knows of.

    Returns:
        The gate; None when the run is over without one.
    """
    found = Future[GateView | None]()

    def look(view: RunView) -> None:
        gates = (g for g in view.gates.values() if not g.timeout_s and g.address not in told)
        gate = None if view.is_over else next(gates, None)
        if (gate or view.is_over) and not found.done():
            found.set_result(gate)

    end = run.subscribe(look)
    look(run.view)
    try:
        with interrupt_calls(run.press):
            return found.result()
    finally:
        end()
