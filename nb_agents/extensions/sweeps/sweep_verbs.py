"""The verbs that list and steer sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.steering import SteerRequest
from nb_agents.extensions.sweeps.sweep_handle import steer_from
from nb_agents.extensions.sweeps.sweep_kind import SWEEPS
from nb_agents.signatures import arguments_of
from nb_agents.verbs.on_runs import status_of_work
from nb_agents.verbs.outcome import Reply, Table, Work
from nb_agents.verbs.parameters import on_line
from nb_agents.verbs.targets import target_of
from nb_agents.verbs.verb import Caller, Verb


def sweeps(root: Path, caller: Caller) -> Table:
    """List the sweeps on disk."""
    facts = [SWEEPS.facts_at(path) for path in SWEEPS.paths(root)]
    rows = [SWEEPS.row(each) for each in facts]
    return Table(SWEEPS.heads, rows, facts, empty="There are no sweeps.")


def steer(work: Work, caller: Caller, **changes: Any) -> Reply:
    """Change the limits of a running sweep, pause models, requeue rows, or score partial answers.

    Args:
        work: The sweep.
        caller: The user interface that makes the request.
        changes: The arguments of `SteerRequest`. None, "" and False mean no change.

    Raises:
        UserError: It is not a sweep or has ended, or an argument is invalid.
    """
    if not SWEEPS.is_handle(work):
        raise UserError(f"{target_of(work).at_start} is not a sweep, so it can't be steered.")
    given = {k: v for k, v in changes.items() if v is not None and v is not False and v != ""}
    request = SteerRequest(work.name, **given)
    steer_from(work, request, caller.source)
    made = ", ".join(map(_described, request.changes.items()))
    facts = {**status_of_work(work), "changes": request.changes}
    return Reply(f"Sweep {work.name}: {made}.", facts)


def _described(change: tuple[str, Any]) -> str:
    name, value = change
    match name:
        case "limit":
            return f"at most {value} rows at the same time"
        case "max_cost":
            return f"a budget of ${value:,.10g}"
        case "timeout":
            return f"a time limit of {value:,.10g} s for each row"
        case "pause_model":
            return f"rows that use {value} are paused"
        case "unpause_model":
            return f"rows that use {value} are unpaused"
        case "requeue":
            return "all failed rows run again" if value == "failed" else f"row {value!r} runs again"
        case _:
            return "the running rows are scored"


LIST_SWEEPS = Verb("sweeps", sweeps, "root")
STEER = Verb(
    "steer",
    steer,
    parameters=tuple(map(on_line, arguments_of(SteerRequest, without=("sweep",)))),
    route="steer",
)
