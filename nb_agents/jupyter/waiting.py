"""Showing a cell's run, and waiting in the cell for one that may ask something.

A gate of a recipe waits for a person, perhaps for ever. A cell must not wait for ever with it where
nobody could answer: in a headless notebook the run is stopped at the gate, to be resumed where
people are; in a terminal the cell ends, and the next line answers. In a notebook the panel can be
answered while the cell waits; the cell says so too, for front ends that show no panel.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.panel import show_earlier, show_run, show_text
from nb_agents.launch.once import EarlierOrNew
from nb_agents.loop import interrupt_calls
from nb_agents.presentation.asking import CELL, how_to_answer, question, wait_for_gate
from nb_agents.runs import registry
from nb_agents.runs.run import Run


def follow_new(
    ip: Any, begin: Callable[[], EarlierOrNew], *, wait: bool, out: str | None = None
) -> None:
    """Begin a run and show it as `follow` does.

    An interrupt of a cell that waits is one of its run from the moment that there is a run.

    Args:
        ip: The shell.
        begin: Begins the run, or returns an earlier one.
        wait: Whether the person asked to wait.
        out: The variable that gets the run.
    """
    with pressing_new(ip, wait=wait):
        run, is_earlier = begin()
        if out:
            ip.user_ns[out] = run
        before = _begun_before(kernel.cell_id(ip), run)
        if is_earlier and run.is_over:
            show_earlier(run)
        else:
            follow(ip, run, wait=wait, beside=before)


_begun: dict[str, Run] = {}
"""The run that each cell has begun last, by the cell's id."""


def _begun_before(cell: str, run: Run) -> Run | None:
    """Note a cell's run; return the one that it had begun before, if that still works."""
    before = _begun.get(cell)
    if cell:
        _begun[cell] = run
    return None if before is None or before.is_over or before.path == run.path else before


def pressing_new(ip: Any, *, wait: bool) -> AbstractContextManager[None]:
    """Make an interrupt of a cell that waits one of what it has begun, before it waits too.

    Args:
        ip: The shell.
        wait: Whether the person asked to wait.
    """
    return registry.interrupts_press_new() if waits_for(ip, wait) else nullcontext()


def follow(ip: Any, run: Run, *, wait: bool, beside: Run | None = None) -> None:
    """Show a run, and wait for it if asked to, or if nobody could see it later.

    Args:
        ip: The shell.
        run: The run.
        wait: Whether the person asked to wait.
        beside: A run that the cell has begun before and that still works.
    """
    has_front_end = kernel.has_front_end(ip)
    if not waits_for(ip, wait):
        if has_front_end:
            show_run(run, beside)
        else:
            show_text(run)
        return
    # From here on, as an interrupt may come while the panel is made.
    with interrupt_calls(run.press):
        if has_front_end:
            show_run(run, beside)
            said = stay(ip, run)
        else:
            with _live_rows(run):
                said = stay(ip, run)
            show_text(run)
    if said:
        display({"text/plain": said})


def _live_rows(run: Run) -> AbstractContextManager[Any]:
    """Show a run in a terminal as its commands do, with their keys."""
    from nb_agents.cli.live_view import live_view  # what no notebook needs

    return live_view(run, asks=False)


def waits_for(ip: Any, wait: bool) -> bool:
    """Return whether a cell waits: it was asked to, or nobody could see its work later."""
    return wait or (kernel.has_front_end(ip) and kernel.is_headless(ip))


def stay(ip: Any, run: Run) -> str:
    """Wait until a run is over, or until it asks what nobody could answer while this cell waits.

    Args:
        ip: The shell.
        run: The run.

    Returns:
        What the person should know besides, or "".
    """
    if not kernel.has_front_end(ip):
        return _until_asked(run)
    return _stop_when_asked(run) if kernel.is_headless(ip) else _tell_when_asked(run)


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
    announced: list[str] = []
    while gate := wait_for_gate(run, announced):
        announced.append(gate.address)
        how = "Answer on the panel. An interrupt stops the run here, and a resume asks again."
        display({"text/plain": f"{question(gate)} {how}"})
    run.wait(raise_on_stop=False)
    return ""
