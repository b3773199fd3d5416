"""The verbs of pages and users for cells: list proposals, answer a request, decide a proposal."""

from __future__ import annotations

from getpass import getuser

from pydantic import TypeAdapter, ValidationError

from nb_agents.errors import UserError, as_storage_error
from nb_agents.events import Event
from nb_agents.extensions.notebook_cells.cell_events import (
    PAGE_OUTCOMES,
    CellRunEnded,
    CellRunQueued,
    CellRunStarted,
    CellsRead,
    CellsState,
    ChangeClaimed,
    ChangeDecided,
    ChangesReverted,
    Decision,
    RevertStarted,
    cells_of,
    counts,
)
from nb_agents.extensions.notebook_cells.cell_images import (
    StoredImages,
    parse_images,
    store_images,
    with_images,
)
from nb_agents.extensions.notebook_cells.cell_outputs import MAX_OUTPUT, last_chars, plain
from nb_agents.extensions.notebook_cells.cell_views import facts, row, run_row
from nb_agents.extensions.notebook_cells.cells import Cell
from nb_agents.extensions.notebook_cells.changes import MAX_ABOVE
from nb_agents.extensions.notebook_cells.late_events import add_late_event, with_late_events
from nb_agents.extensions.notebook_cells.reverting import plan_revert
from nb_agents.extensions.notebook_cells.rewinding import changes_named
from nb_agents.launch.run import Run
from nb_agents.session.layout import TurnPaths
from nb_agents.verbs.outcome import Reply
from nb_agents.verbs.verb import REQUIRED, Caller, Interface, Parameter, Verb

MAX_ANSWER = 800_000
"""Maximum length of a page's answer, in characters."""

_CELLS = TypeAdapter(tuple[Cell, ...])
_DECISIONS: tuple[Decision, ...] = ("accepted", "inserted", "rejected", "stale")


def cells(run: Run, caller: Caller, *, since: int = 0) -> Reply:
    """List the changes of cells that a turn's agents have proposed."""
    state = state_of(run)
    lines = [*map(row, state.proposals.values()), *map(run_row, state.runs.values())]
    runs = [
        {
            "number": each.request.number,
            "cell": each.request.cell,
            "source": each.request.source,
            "images": each.request.images,
        }
        for each in state.open_runs
    ]
    text = "\n".join(lines) or "No changes were proposed."
    return Reply(text, {"proposals": facts(state, run.id, since), "runs": runs})


def cells_read(
    run: Run,
    caller: Caller,
    *,
    request: int,
    notebook: str,
    count: int,
    cells: str,
    problem: str,
    images: str = "",
    untrusted: bool = False,
) -> Reply:
    """Answer an agent's request to read cells. Pages use this."""
    try:
        answered = _CELLS.validate_json(cells or "[]")
    except ValidationError as exc:
        raise UserError(f"`cells` is invalid: {exc.errors()[0]['msg']}.") from None
    answer = CellsRead(
        number=request,
        notebook=notebook,
        cells=with_images(answered, _stored(run, images)),
        count=count,
        problem=problem,
        is_trusted=not untrusted,
    )
    changed = run.record_event(answer)
    return Reply("Sent." if changed else "The request is no longer open.", {"changed": changed})


def cells_claim(run: Run, caller: Caller, *, number: int, page: str, force: bool = False) -> Reply:
    """Claim a proposal before it is decided. Of several pages, one gets it."""
    if record(run, ChangeClaimed(number=number, page=page, is_forced=force)):
        return Reply(f"Proposal {number} is this page's.", {"open": True, "mine": True})
    proposal = state_of(run).proposals.get(number)
    if proposal is None:
        raise UserError(f"Run {run.id} has no proposal {number}.")
    if proposal.decided is not None:
        text = f"Proposal {number} is already {proposal.decided.how}."
        return Reply(text, {"open": False, "mine": False})
    return Reply(f"Another page decides proposal {number}.", {"open": True, "mine": False})


def cells_decide(
    run: Run,
    caller: Caller,
    *,
    number: int,
    how: str,
    cell: str,
    removed: str = "",
    above: str = "",
    found: bool = False,
) -> Reply:
    """Record a user's decision on a proposed change. Pages use this after they applied it."""
    decision = next((each for each in _DECISIONS if each == how), None)
    if decision is None:
        raise UserError(f"`how` is {how!r}. Use one of: {', '.join(_DECISIONS)}.")
    proposal = state_of(run).proposals.get(number)
    if proposal is None:
        raise UserError(f"Run {run.id} has no proposal {number}.")
    event = ChangeDecided(
        number=number,
        how=decision,
        by=caller.user or getuser(),
        cell=cell,
        removed=removed,
        above=tuple(above.split()[:MAX_ABOVE]),
        is_found=found,
    )
    if proposal.decided is not None and not counts(proposal, event):
        return Reply(f"Proposal {number} is already {proposal.decided.how}.", {"changed": False})
    return Reply(f"Proposal {number}: {how}.", {"changed": record(run, event)})


def cells_run(
    run: Run,
    caller: Caller,
    *,
    number: int,
    step: str,
    page: str,
    behind: str,
    how: str,
    outputs: str,
    images: str = "",
) -> Reply:
    """Record that a page takes, starts or ends the run of a cell. Pages use this.

    A page runs a cell only if "start" was recorded, so no other page runs it, and no stop came
    first.
    """
    match step:
        case "queue":
            event: Event = CellRunQueued(number=number, page=page, behind=behind)
        case "start":
            event = CellRunStarted(number=number, page=page)
        case "end":
            outcome = next((each for each in PAGE_OUTCOMES if each == how), None)
            if outcome is None:
                raise UserError(f"`how` is {how!r}. Use one of: {', '.join(PAGE_OUTCOMES)}.")
            text = last_chars(plain(outputs), MAX_OUTPUT)
            stored = [*_stored(run, images).values()][:1]
            kept = stored[0] if stored else StoredImages()
            event = CellRunEnded(
                number=number,
                how=outcome,
                outputs=text,
                images=kept.images,
                images_left_out=kept.left_out,
            )
        case _:
            raise UserError(f"`step` is {step!r}. Use 'queue', 'start' or 'end'.")
    changed = run.record_event(event)
    return Reply("Recorded." if changed else "It no longer applies.", {"changed": changed})


def _stored(run: Run, images: str) -> dict[str, StoredImages]:
    """Store the images that a page sends.

    Raises:
        UserError: They are invalid.
        StorageError: They can't be written.
    """
    parsed = parse_images(images)
    with as_storage_error(run.path):
        return store_images(run.path, parsed)


def cells_revert(run: Run, caller: Caller, *, page: str, cells: str, force: bool = False) -> Reply:
    """Plan how a page takes back the changes of a rewind. One page gets the plan."""
    try:
        current = _CELLS.validate_json(cells)
    except ValidationError as exc:
        raise UserError(f"`cells` is invalid: {exc.errors()[0]['msg']}.") from None
    state = state_of(run)
    if state.revert is None or not state.is_revert_open:
        return Reply("There is nothing to take back.", {"open": False, "mine": False})
    if not record(run, RevertStarted(page=page, is_forced=force)):
        return Reply("Another page takes the changes back.", {"open": True, "mine": False})
    changes = changes_named(run.path.parent, state.revert.changes)
    plan = plan_revert(current, changes)
    facts = {
        "open": True,
        "mine": True,
        "steps": [each._asdict() for each in plan.steps],
        "kept": [each._asdict() for each in plan.kept],
        "done": [*plan.done],
    }
    return Reply("\n".join(plan.lines) or "There is nothing to take back.", facts)


def cells_reverted(run: Run, caller: Caller, *, changes: str, kept: str) -> Reply:
    """Record which changes a page took back. Pages use this after they changed the notebook."""
    user = caller.user or getuser()
    event = ChangesReverted(changes=tuple(changes.split()), kept=tuple(kept.split()), by=user)
    is_new = record(run, event)
    return Reply("Recorded." if is_new else "It was recorded before.", {"changed": is_new})


def record(run: Run, event: Event) -> bool:
    """Record an event in the journal or, after the turn's end, in a file next to it.

    Returns:
        Whether it was recorded. It is not if it does not apply to the turn any more.
    """
    if run.record_event(event):
        return True
    return _has_ended(run) and add_late_event(TurnPaths(run.path), run.view, event)


def state_of(run: Run) -> CellsState:
    """Return the proposals of a turn, with the decisions that were made after its end."""
    view = run.view
    return cells_of(with_late_events(TurnPaths(run.path), view) if _has_ended(run) else view)


def _has_ended(run: Run) -> bool:
    """Return whether the turn has ended, even if its last hooks still run."""
    return run.is_over or run.view.is_over


_HTTP: tuple[Interface, ...] = ("http",)
CELLS = Verb(
    "cells",
    cells,
    "turn",
    (
        Parameter(
            "since",
            "Unix seconds; newer accepted changes have texts",
            0,
            kind=int,
            interfaces=_HTTP,
        ),
    ),
    route="cells",
)
CELLS_READ = Verb(
    "cells_read",
    cells_read,
    "turn",
    (
        Parameter("request", "the number of the request", REQUIRED, kind=int),
        Parameter("notebook", "the notebook's name"),
        Parameter("count", "the number of cells in the notebook", REQUIRED, kind=int),
        Parameter("cells", "the cells as JSON text", max_chars=MAX_ANSWER),
        Parameter("problem", "why the cells can't be read"),
        Parameter("images", "the images in outputs as JSON text", max_chars=MAX_ANSWER),
        Parameter("untrusted", "whether the notebook is not trusted", False, kind=bool),
    ),
    route="cells_read",
    interfaces=_HTTP,
)
CELLS_CLAIM = Verb(
    "cells_claim",
    cells_claim,
    "turn",
    (
        Parameter("number", "the number of the proposal", REQUIRED, kind=int),
        Parameter("page", "a random name of the page", REQUIRED),
        Parameter("force", "take over from another page", False, is_option=True),
    ),
    route="cells_claim",
    interfaces=_HTTP,
)
CELLS_DECIDE = Verb(
    "cells_decide",
    cells_decide,
    "turn",
    (
        Parameter("number", "the number of the proposal", REQUIRED, kind=int),
        Parameter("how", f"one of {', '.join(_DECISIONS)}", REQUIRED),
        Parameter("cell", "the id of the cell that was changed or inserted"),
        Parameter("removed", "a deleted cell as JSON text", max_chars=MAX_ANSWER),
        Parameter("above", "the ids of the cells above a deleted or moved cell, nearest first"),
        Parameter("found", "whether the notebook already contained the change", False, kind=bool),
    ),
    route="cells_decide",
    interfaces=_HTTP,
)
CELLS_REVERT = Verb(
    "cells_revert",
    cells_revert,
    "turn",
    (
        Parameter("page", "a random name of the page", REQUIRED),
        Parameter("cells", "the notebook's cells as JSON text", REQUIRED, max_chars=MAX_ANSWER),
        Parameter("force", "take over from another page", False, is_option=True),
    ),
    route="cells_revert",
    interfaces=_HTTP,
)
CELLS_REVERTED = Verb(
    "cells_reverted",
    cells_reverted,
    "turn",
    (
        Parameter("changes", "the changes that were taken back, each as TURN/NUMBER"),
        Parameter("kept", "the ids of the cells that stay as they are"),
    ),
    route="cells_reverted",
    interfaces=_HTTP,
)
CELLS_RUN = Verb(
    "cells_run",
    cells_run,
    "turn",
    (
        Parameter("number", "the number of the request", REQUIRED, kind=int),
        Parameter("step", "'queue', 'start' or 'end'", REQUIRED),
        Parameter("page", "a name of the page"),
        Parameter("behind", "what the kernel runs, such as 'cell 4'"),
        Parameter("how", f"for 'end', one of {', '.join(PAGE_OUTCOMES)}"),
        Parameter("outputs", "for 'end', the outputs as text", max_chars=MAX_ANSWER),
        Parameter("images", "for 'end', the images as JSON text", max_chars=MAX_ANSWER),
    ),
    route="cells_run",
    interfaces=_HTTP,
)
