"""The verbs on runs and sweeps, of this process, of another, or over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nb_agents.errors import UnknownRunError, UserError
from nb_agents.presentation.asking import decide
from nb_agents.runs.finding import find_known
from nb_agents.runs.run import Run
from nb_agents.verbs.on_turns import find_past
from nb_agents.verbs.verb import Caller, Outcome

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep_handle import SweepHandle
    from nb_agents.verbs.verb import Work


def find_work(name: str, caller: Caller, agent: str | None = None) -> Work:
    """Return the run or the sweep that a person means.

    Args:
        name: As for `find_run` and `find_sweep`; "" means the one of here, and the sweep of a row.
        caller: Who asks.
        agent: The one agent of a run that is meant.

    Raises:
        UnknownRunError: There is neither.
        UserError: There are several.
    """
    from nb_agents.sweeps.sweep_lookup import find_sweep  # what not every run needs

    sweep = None if agent else find_sweep(name, caller.root)
    if sweep is not None and not sweep.is_over:
        return sweep
    try:
        run = find_known(name, caller.root)
    except UnknownRunError:
        if sweep is None:
            raise
        return sweep
    return run if name or agent else _sweep_of(run) or run


def _sweep_of(run: Run) -> SweepHandle | None:
    from nb_agents.sweeps.manifest import sweep_of
    from nb_agents.sweeps.sweep_lookup import open_sweep

    path = sweep_of(run.path)
    return None if path is None else open_sweep(path)


def find_shown(name: str, caller: Caller) -> Work:
    """Return the run or the sweep that a person wants to see; else a handle of a turn on disk.

    Args:
        name: As for `find_work` and `find_past`.
        caller: Who asks.

    Raises:
        UserError: There is none, or there are several.
    """
    try:
        return find_work(name, caller)
    except UnknownRunError:
        return find_past(name, caller)


def stop(
    work: Work, caller: Caller, *, now: bool = False, agent: str | None = None, reason: str = ""
) -> Outcome:
    """Stop a run or a sweep, wherever it lives; without a name, the one of here.

    Args:
        work: The run or sweep.
        caller: Who asks.
        now: Whether to cut the calls in flight.
        agent: Id of the one agent to stop.
        reason: Why, for the record.

    Raises:
        UserError: There is no such agent, or it is asked of a sweep.
    """
    if agent or isinstance(work, Run):
        result = run_of(work).stop(now, agent, reason, source=caller.source)
        rest = "calls in flight may finish"
    else:
        result = work.stop(now, reason=reason, source=caller.source)
        rest = "no further row begins"
    # Only of one that is over: the state of a live one elsewhere takes a reading of its journal.
    is_over = result.status == "finished" and not agent
    state = f" ({status_of_work(work)['status']})" if is_over else ""
    said = {
        "finished": f"is over already{state}; nothing was changed.",
        "asked": "is asked to stop; it will as soon as it can be reached.",
        "vetoed": "goes on: its before_cancel hook vetoed the stop. --now can't be vetoed.",
        "stopping": f"is stopping; {rest}. --now cuts what is in flight.",
        "stopping-now": "is stopping now.",
    }
    what = f"Agent {agent} of {_named(work)}" if agent else _sentence(work)
    kind = "run" if isinstance(work, Run) else "sweep"
    facts = {kind: _name(work), "changed": result.changed, "status": result.status}
    return Outcome(f"{what} {said.get(result.status, result.status)}", facts)


def pause(work: Work, caller: Caller) -> Outcome:
    """Pause a run or a sweep at its next boundary; its time does not count meanwhile."""
    if isinstance(work, Run):
        work.pause()
        begins = "none begins"
    else:
        _hold(work, True)
        begins = "no row begins"
    go_on = caller.door.line("continue", [_name(work)])
    said = f"is paused: calls in flight finish, {begins}. `{go_on}` goes on."
    return Outcome(f"{_sentence(work)} {said}", status_of_work(work))


def continue_(work: Work, caller: Caller) -> Outcome:
    """Continue a paused run or sweep."""
    if isinstance(work, Run):
        work.unpause()
    else:
        _hold(work, False)
    return Outcome(f"{_sentence(work)} goes on.", status_of_work(work))


def say(work: Work, caller: Caller, *, message: str) -> Outcome:
    """Add a text to a run's task while it works."""
    run = run_of(work)
    run.say(message)
    return Outcome("Its agents read it with their next request.", status_of_work(run))


def approve(work: Work, caller: Caller, *, message: str = "", gate: str = "") -> Outcome:
    """Approve what a run waits for: a tool's call, or a recipe's gate."""
    run = run_of(work)
    return Outcome(decide(run, True, message, gate), status_of_work(run))


def deny(work: Work, caller: Caller, *, message: str = "", gate: str = "") -> Outcome:
    """Deny what a run waits for; a recipe stops at its gate, and a resume asks again."""
    run = run_of(work)
    return Outcome(decide(run, False, message, gate), status_of_work(run))


def answer(work: Work, caller: Caller, *, message: str) -> Outcome:
    """Answer the question that a run waits with."""
    run = run_of(work)
    run.answer(message)
    return Outcome(f"Run {run.id} has its answer.", status_of_work(run))


def _hold(sweep: SweepHandle, is_paused: bool) -> None:
    if not sweep.hold(is_paused):
        raise UserError(f"Sweep {sweep.name} is over ({sweep.view.state}).")


def run_of(work: Work) -> Run:
    """Return a run as it is.

    Raises:
        UserError: It is a sweep.
    """
    if isinstance(work, Run):
        return work
    raise UserError(
        f"{work.name} is a sweep: it can be stopped, paused and continued as a whole, and its "
        "rows are runs."
    )


def _name(work: Work) -> str:
    return work.id if isinstance(work, Run) else work.name


def _named(work: Work) -> str:
    return f"{'run' if isinstance(work, Run) else 'sweep'} {_name(work)}"


def _sentence(work: Work) -> str:
    named = _named(work)
    return f"{named[:1].upper()}{named[1:]}"


def status_of_work(work: Work) -> dict[str, Any]:
    """Return the name and the state of a run or a sweep, as JSON."""
    if isinstance(work, Run):
        return {"run": work.id, "status": work.view.standing}
    return {"sweep": work.name, "status": work.view.state}
