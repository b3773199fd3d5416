"""What pages and cards show of proposals. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nb_agents.extensions.notebook_cells.cell_events import CellRun, CellsState, Proposal, cells_of
from nb_agents.extensions.notebook_cells.cells import digest
from nb_agents.extensions.notebook_cells.changes import describe
from nb_agents.nouns import count
from nb_agents.presentation.text import clip
from nb_agents.view.run_view import RunView

MAX_LISTED = 20
"""Maximum number of proposals on a card."""

MAX_CODE = 60
"""Maximum number of characters of a cell's first line."""


def cells_part(view: RunView) -> Mapping[str, object]:
    """Return the data that a page needs to answer requests, and the numbers of open proposals."""
    state = cells_of(view)
    requests = [
        {
            "request": n,
            "ids": [*each.ids],
            "start": each.start,
            "outputs": each.outputs,
            "images": each.images,
            "untrusted": each.untrusted,
        }
        for n, each in state.requests.items()
    ]
    numbers = [each.number for each in state.open]
    runs = [_run_facts(each) for each in state.open_runs]
    has_none = not (state.proposals or requests or state.runs)
    if has_none and state.revert is None:
        return {}
    part: dict[str, object] = {
        "requests": [] if view.is_over else requests,
        "open": numbers,
        "runs": [] if view.is_over else runs,
    }
    return part | ({"revert": True} if state.is_revert_open else {})


def _run_facts(run: CellRun) -> Mapping[str, object]:
    return {
        "number": run.request.number,
        "page": run.queued.page if run.queued else "",
        "started": run.started is not None,
    }


def run_row(run: CellRun) -> str:
    """Return a request to run a cell, and how it ended, on one line."""
    how = run.ended.how if run.ended else "running" if run.started else "waiting"
    return f"run cell {run.request.cell}, by {run.request.agent}: {how}"


def cells_card(view: RunView) -> str:
    """Return the proposals of a turn as Markdown for its card."""
    state = cells_of(view)
    parts = filter(
        None, [_revert_card(view, state), _proposals_card(view, state), _runs_card(state)]
    )
    return "\n\n".join(parts)


def _runs_card(state: CellsState) -> str:
    runs = [*state.runs.values()]
    if not runs:
        return ""
    rows = [f"- {run_row(each)}" for each in runs[:MAX_LISTED]]
    more = len(runs) - len(rows)
    rows += [f"- and {count(more, 'other')}"] if more else []
    return "\n".join([f"**{count(len(runs), 'request')} to run a cell**", "", *rows])


def _revert_card(view: RunView, state: CellsState) -> str:
    if state.revert is None or not (state.is_revert_open and view.is_over):
        return ""
    number = len(state.revert.changes)
    command = f"nb-agents apply {view.session}/{view.turn} NOTEBOOK"
    return (
        f"**{count(number, 'accepted change')} of cells to take back**\n\n"
        f"`{command}` does it in the file of a notebook that is closed. `cells.patch` in the "
        "turn's directory contains the diffs."
    )


def _proposals_card(view: RunView, state: CellsState) -> str:
    proposals = [*state.proposals.values()]
    if not proposals:
        return ""
    rows = [f"- {row(each)}" for each in proposals[:MAX_LISTED]]
    more = len(proposals) - len(rows)
    rows += [f"- and {count(more, 'other')}"] if more else []
    if state.open and view.is_over:
        command = f"nb-agents apply {view.session}/{view.turn} NOTEBOOK"
        rows += ["", f"`{command}` applies open changes to the file of a notebook that is closed."]
    return "\n".join([f"**{count(len(proposals), 'proposed change')} of cells**", "", *rows])


def row(proposal: Proposal) -> str:
    """Return a proposal, its decision and the cell's first line, as one line of Markdown."""
    change, decided = proposal.change, proposal.decided
    how = decided.how if decided else "open"
    user = f" by {decided.by}" if decided and decided.by else ""
    # A cell's id says nothing to its user. A backtick would end the inline code.
    first = (change.base_source or change.source).strip().partition("\n")[0].replace("`", "'")
    code = f" · `{clip(first, MAX_CODE)}`" if first else ""
    return f"{change.number}: {describe(change)}, by {change.agent}: {how}{user}{code}"


def facts(state: CellsState, turn: str, since: int = 0) -> list[dict[str, object]]:
    """Return all proposals as JSON values, with the texts of open and newly accepted ones.

    Args:
        state: The proposals.
        turn: The session and turn, from which the ids of inserted cells are made. So no cell is
            inserted twice, even if a page ends before it reports what it did.
        since: Accepted changes have their texts if they were accepted after this time, in Unix
            seconds. 0 means that they have none.
    """
    return [_facts(each, turn, since) for each in state.proposals.values()]


def _facts(proposal: Proposal, turn: str, since: int) -> dict[str, object]:
    change, decided = proposal.change, proposal.decided
    fields: dict[str, object] = {
        "number": change.number,
        "agent": change.agent,
        "op": change.op,
        "cell": decided.cell if decided and decided.cell else change.cell,
        "how": decided.how if decided else "",
        "by": decided.by if decided else "",
    }
    is_new = decided is not None and decided.how == "accepted" and 0 < since <= decided.at
    if decided is not None and not is_new:
        return fields
    return fields | {
        "after": change.after,
        "base": change.base_source,
        "source": change.source,
        "cell_type": change.cell_type,
        "why": change.why,
        "new_cell": digest("insert", f"{turn}/{change.number}"),
    }
