"""Shows a cell's run, and waits in the cell until it ends.

A gate waits until a user decides, and a cell must not wait forever if nobody can. In a headless
notebook, the run is stopped at the gate and can be resumed later. In a terminal, the cell ends and
the next input can answer. In a notebook, the user can answer in the panel while the cell waits; the
cell also prints the question, for front ends without panels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.panel import show_cached_run, show_group, show_run, show_text
from nb_agents.launch.once import CachedRun
from nb_agents.launch.run import Run
from nb_agents.loop import redirect_interrupts
from nb_agents.presentation.asking import CELL, how_to_answer, question, unanswered, wait_for_gate
from nb_agents.turns import registry
from nb_agents.turns.groups import Group


def follow_new(
    ip: Any, begin: Callable[[], CachedRun], *, wait: bool, out: str | None = None
) -> None:
    """Start a run and show it with `follow`.

    If the cell waits, an interrupt stops the run, even before the run is shown.

    Args:
        ip: The shell.
        begin: Starts the run, or returns an earlier one.
        wait: Whether the user requested to wait.
        out: Name of the variable to assign the run to.
    """
    with interrupts_stop_new_runs(ip, wait=wait):
        run, is_earlier = begin()
        if out:
            ip.user_ns[out] = run
        before = _begun_before(kernel.cell_id(ip), run)
        if is_earlier and run.is_over:
            show_cached_run(run)
        else:
            follow(ip, run, wait=wait, earlier_run=before)


_runs: dict[str, Run] = {}
"""The latest run of each cell, by the cell's id."""


def _begun_before(cell: str, run: Run) -> Run | None:
    """Record a cell's run, and return the cell's previous run if it is still live."""
    before = _runs.get(cell)
    if cell:
        _runs[cell] = run
    return None if before is None or before.is_over or before.path == run.path else before


def interrupts_stop_new_runs(ip: Any, *, wait: bool) -> AbstractContextManager[None]:
    """Make an interrupt stop the runs started in the block, if the cell waits for them.

    Args:
        ip: The shell.
        wait: Whether the user requested to wait.
    """
    return registry.interrupts_stop_new_runs() if waits_for(ip, wait) else nullcontext()


def follow_group(ip: Any, group: Group, *, wait: bool) -> None:
    """Show a group of runs. Wait for it if requested, or if later output would be lost.

    Args:
        ip: The shell.
        wait: Whether the user requested to wait.
    """
    has_front_end, waits = kernel.has_front_end(ip), waits_for(ip, wait)
    # Includes the display, because an interrupt may arrive while the panel is created.
    with redirect_interrupts(group.press) if waits else nullcontext():
        if has_front_end:
            show_group(group)
        if waits:
            group.wait()
        if not has_front_end:
            display({"text/plain": repr(group)})


def follow(ip: Any, run: Run, *, wait: bool, earlier_run: Run | None = None) -> None:
    """Show a run. Wait for it if requested, or if later output would be lost.

    Args:
        ip: The shell.
        wait: Whether the user requested to wait.
        earlier_run: An earlier run of the cell that is still live.
    """
    has_front_end = kernel.has_front_end(ip)
    if not waits_for(ip, wait):
        if has_front_end:
            show_run(run, earlier_run)
        else:
            show_text(run)
        return
    # Includes the display, because an interrupt may arrive while the panel is created.
    with redirect_interrupts(run.press):
        if has_front_end:
            show_run(run, earlier_run)
            message = wait_for_run(ip, run)
        else:
            with _live_rows(run):
                message = wait_for_run(ip, run)
            show_text(run)
    if message:
        display({"text/plain": message})


def _live_rows(run: Run) -> AbstractContextManager[Any]:
    """Show a run in a terminal with the rows and keys of the command line."""
    from nb_agents.cli.live_view import live_view  # not needed in notebooks

    return live_view(run, asks=False)


def waits_for(ip: Any, wait: bool) -> bool:
    """Return whether a cell waits for its run, on request or because later output would be lost."""
    return wait or (kernel.has_front_end(ip) and kernel.is_headless(ip))


def wait_for_run(ip: Any, run: Run) -> str:
    """Wait until a run ends, or reaches a gate that can't be answered while this cell waits.

    Args:
        ip: The shell.

    Returns:
        A message for the user about the gate, or "".
    """
    if not kernel.has_front_end(ip):
        return _wait_until_gate(run)
    return _stop_at_gate(run) if kernel.is_headless(ip) else _announce_gates(run)


def _wait_until_gate(run: Run) -> str:
    gate = wait_for_gate(run)
    if gate is None:
        run.wait(raise_on_stop=False)
        return ""
    return f"{question(gate)} {how_to_answer(gate, run.view, run.id, CELL)}"


def _stop_at_gate(run: Run) -> str:
    gate = wait_for_gate(run)
    if gate is not None:
        run.stop(reason=unanswered(gate), source="approval")
    run.wait(raise_on_stop=False)
    if gate is None:
        return ""
    return (
        f"{question(gate)} Nobody can answer in a headless notebook, so the run was stopped. "
        f"`%agents resume {run.session}` in an open notebook asks again. A gate with `timeout` and "
        "`default` needs no answer."
    )


def _announce_gates(run: Run) -> str:
    announced: list[str] = []
    while gate := wait_for_gate(run, announced):
        announced.append(gate.address)
        how = "Answer in the panel. An interrupt stops the run here. It asks again on resume."
        display({"text/plain": f"{question(gate)} {how}"})
    run.wait(raise_on_stop=False)
    return ""
