"""Waiting in a cell for a run that may ask something.

A gate of a recipe waits for a person, perhaps for ever. A cell must not wait for ever with it where
nobody could answer: in a headless notebook the run is stopped at the gate, to be resumed where
people are; in a terminal the cell ends, and the next line answers. In a notebook the panel can be
answered while the cell waits; the cell says so too, for front ends that show no panel.
"""

from __future__ import annotations

from typing import Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.asking import how_to_answer, question, wait_for_gate
from nb_agents.jupyter.door import CELL
from nb_agents.jupyter.ipython import display
from nb_agents.runs.run import Run

__all__ = ["stay"]


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
    gate = wait_for_gate(run)
    if gate is None:
        run.wait(raise_on_stop=False)
        return ""
    return f"{question(gate)} {how_to_answer(gate, run.view, run.id, CELL)}"


def _stop_when_asked(run: Run) -> str:
    gate = wait_for_gate(run)
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
    while gate := wait_for_gate(run, told):
        told.append(gate.address)
        how = "Answer on the panel. An interrupt stops the run here, and a resume asks again."
        display({"text/plain": f"{question(gate)} {how}"})
    run.wait(raise_on_stop=False)
    return ""
