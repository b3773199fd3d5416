"""The events of agents that read the notebook and propose changes, and the state folded from them.

An agent's request is answered by a page that shows the run, or from the notebook's file. A proposal
stays open until the user decides it or the run is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from nb_agents.events import Event, ToolImage
from nb_agents.events.base_event import Count
from nb_agents.extensions.notebook_cells.cells import Cell
from nb_agents.view.fold import VIEW
from nb_agents.view.run_view import RunView

Operation = Literal["insert", "replace", "delete", "move"]
Decision = Literal["accepted", "inserted", "rejected", "stale", "withdrawn"]
"""How a proposal ended. "inserted" means that the user put the text of a stale one into a new cell.

"stale" means that the cell had changed, and "withdrawn" that a stop ended the proposal.
"""

APPLIED: frozenset[Decision] = frozenset({"accepted", "inserted"})
"""The decisions after which the notebook contains the change."""

RunOutcome = Literal[
    "ok",
    "error",
    "aborted",
    "changed",
    "missing",
    "refused",
    "lost",
    "withdrawn",
    "deadlock",
    "cut",
]
"""How a request to run a cell ended.

"aborted" means that the kernel did not run the cell, "changed" and "missing" that the cell is not
as approved, "refused" that its metadata or the page forbids it, "lost" that the page or the kernel
went away, "withdrawn" that the cell had not started, "deadlock" that another cell waits for the
run, and "cut" that a stop interrupts the cell.
"""

STATE = "notebook_cells"
_OTHER_FOLDS = ("replay", "spans", "transcript", "voting")


class CellsRequested(Event, ignored_by=_OTHER_FOLDS):
    """An agent asks to read the notebook.

    Attributes:
        agent: The agent's id.
        number: The number of the request, starting at 1.
        ids: The ids of the cells to read. () asks for an outline of all cells.
        start: For an outline, the number of cells to skip.
        outputs: Whether the agent may read the outputs, too.
        images: Whether the agent also gets the images in the outputs.
        untrusted: Whether the user has allowed to read a notebook that is not trusted.
        for_task: Whether the task mentions the cells, so the prompt contains them.
    """

    agent: str
    number: Count
    ids: tuple[str, ...] = ()
    start: Count = 0
    outputs: bool = False
    images: bool = False
    untrusted: bool = False
    for_task: bool = False


class CellsRead(Event, ignored_by=_OTHER_FOLDS):
    """A request was answered from the open notebook, or from its file.

    Attributes:
        number: The number of the request.
        notebook: The notebook's name.
        cells: The requested cells. For an outline, `Cell.source` is the first line only.
        count: The number of cells in the notebook.
        problem: Why the cells can't be read, or "".
        is_trusted: Whether the notebook is trusted. If it is not, the user is asked before its
            cells are read.
    """

    number: Count
    notebook: str = ""
    cells: tuple[Cell, ...] = ()
    count: Count = 0
    problem: str = ""
    is_trusted: bool = True


class ChangeProposed(Event, ignored_by=_OTHER_FOLDS):
    """An agent proposes to change a cell. Nothing changes until the user accepts it.

    Attributes:
        agent: The agent's id.
        number: The number of the proposal, starting at 1.
        group: The number of the first proposal of the same call.
        op: The kind of change.
        cell: The id of the cell to replace, delete or move, or "".
        after: For an insertion or a move, the id of the cell above, or "" for the top of the
            notebook.
        base: The digest of the cell that the agent has read, or "".
        base_source: The source that the agent has read.
        source: The new source, or "" for a deletion or a move.
        cell_type: The type of the new cell, or of the cell that is changed.
        why: The agent's reason for the changes of the call.
    """

    agent: str
    number: Count
    group: Count
    op: Operation
    cell: str = ""
    after: str = ""
    base: str = ""
    base_source: str = ""
    source: str = ""
    cell_type: str = "code"
    why: str = ""


class ChangeClaimed(Event, ignored_by=_OTHER_FOLDS):
    """A page is about to decide a proposal, so no other page applies the change.

    Attributes:
        number: The number of the proposal.
        page: A random name of the page.
        is_forced: Whether the user asks this page although another one has claimed the proposal.
    """

    number: Count
    page: str
    is_forced: bool = False


class ChangeDecided(Event, ignored_by=_OTHER_FOLDS):
    """A proposal was decided by a user, or withdrawn by a stop.

    Attributes:
        number: The number of the proposal.
        how: How it ended.
        by: The name of the user, or "".
        cell: The id of the cell that was changed or inserted, or "".
        removed: The JSON text of a deleted cell with its outputs, or "".
        above: The ids of the cells that were above a deleted or moved cell, nearest first.
        turn: The number of an earlier turn, if the proposal is from that turn and was decided after
            its end. 0 means this turn.
        is_found: Whether the page found the change in the notebook, and did not apply it then. So
            the cell's earlier place is unknown.
    """

    number: Count
    how: Decision
    by: str = ""
    cell: str = ""
    removed: str = ""
    above: tuple[str, ...] = ()
    turn: Count = 0
    is_found: bool = False


class RevertRequested(Event, ignored_by=_OTHER_FOLDS):
    """A rewind asks to take back changes that were accepted after its checkpoint.

    Attributes:
        changes: The changes, oldest first, each as ``TURN/NUMBER``.
    """

    changes: tuple[str, ...]


class RevertStarted(Event, ignored_by=_OTHER_FOLDS):
    """A page is about to take back the changes, so no other page does.

    Attributes:
        page: A random name of the page.
        is_forced: Whether the user asks this page although another one has started.
    """

    page: str
    is_forced: bool = False


class ChangesReverted(Event, ignored_by=_OTHER_FOLDS):
    """Changes were taken back in the notebook.

    Attributes:
        changes: The changes that were taken back, each as ``TURN/NUMBER``.
        kept: The ids of cells that stay as they are, because the user has edited them.
        by: The name of the user.
    """

    changes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    by: str = ""


@dataclass(frozen=True)
class Revert:
    """Changes that a rewind takes back: the request, the page that does it, and the result."""

    changes: tuple[str, ...]
    page: str = ""
    result: ChangesReverted | None = None


class CellRunRequested(Event, ignored_by=_OTHER_FOLDS):
    """An agent asks the open page to run a cell. The user has approved it.

    Attributes:
        agent: The agent's id.
        number: The number of the request, starting at 1.
        cell: The cell's id.
        source: The approved source. The page runs nothing else.
        images: Whether the agent also gets the images in the outputs.
    """

    agent: str
    number: Count
    cell: str
    source: str
    images: bool = False


class CellRunQueued(Event, ignored_by=_OTHER_FOLDS):
    """A page takes the request, and waits until the kernel is idle. No other page runs the cell.

    Attributes:
        number: The number of the request.
        page: A name of the page.
        behind: What the kernel runs, such as "cell 4", or "".
    """

    number: Count
    page: str
    behind: str = ""


class CellRunStarted(Event, ignored_by=_OTHER_FOLDS):
    """The page sends the cell to the kernel. From now on, it may have an effect.

    Attributes:
        number: The number of the request.
        page: The name of the page.
    """

    number: Count
    page: str


class CellRunEnded(Event, ignored_by=_OTHER_FOLDS):
    """A request to run a cell ended.

    Attributes:
        number: The number of the request.
        how: How it ended.
        outputs: The cell's outputs as text.
        images: The images in the outputs.
        images_left_out: The number of images that the agent does not get.
    """

    number: Count
    how: RunOutcome
    outputs: str = ""
    images: tuple[ToolImage, ...] = ()
    images_left_out: Count = 0


@dataclass(frozen=True)
class CellRun:
    """A request to run a cell, and how far it got."""

    request: CellRunRequested
    queued: CellRunQueued | None = None
    started: CellRunStarted | None = None
    ended: CellRunEnded | None = None


@dataclass(frozen=True)
class Proposal:
    """A proposed change, its decision or None, and the page that has claimed it or ""."""

    change: ChangeProposed
    decided: ChangeDecided | None = None
    page: str = ""


@dataclass(frozen=True)
class CellsState:
    """What the agents of a turn have read and proposed.

    Attributes:
        requests: The requests without an answer, by number.
        last_request: The number of the last request.
        read_cells: The cells whose whole source an agent has read, by id, as last read.
        seen_ids: The ids of all cells that an agent has seen.
        proposals: All proposals by number.
        earlier: The proposals of the turns that this turn resumed, by number. Open ones count as
            withdrawn.
        started_at: When the turn of this state started, in Unix seconds.
        revert: The changes that a rewind takes back, or None.
        runs: All requests to run a cell, by number.
        task_outline: The answer with the outline at which the task's mentions were looked up, or
            None.
        task_cells: The answer with the cells that the task mentions, or None.
    """

    requests: Mapping[int, CellsRequested] = field(default_factory=lambda: MappingProxyType({}))
    last_request: int = 0
    read_cells: Mapping[str, Cell] = field(default_factory=lambda: MappingProxyType({}))
    seen_ids: frozenset[str] = frozenset()
    proposals: Mapping[int, Proposal] = field(default_factory=lambda: MappingProxyType({}))
    earlier: Mapping[int, Proposal] = field(default_factory=lambda: MappingProxyType({}))
    started_at: float = 0.0
    revert: Revert | None = None
    task_outline: CellsRead | None = None
    task_cells: CellsRead | None = None

    @property
    def is_revert_open(self) -> bool:
        """Whether changes are still to be taken back."""
        return self.revert is not None and self.revert.result is None

    @property
    def next_number(self) -> int:
        """The number of the next proposal. Proposals of resumed turns keep theirs."""
        return max([*self.proposals, *self.earlier], default=0) + 1

    runs: Mapping[int, CellRun] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def open_runs(self) -> tuple[CellRun, ...]:
        """The requests to run a cell that have not ended."""
        return tuple(each for each in self.runs.values() if each.ended is None)

    @property
    def open(self) -> tuple[ChangeProposed, ...]:
        """The proposals without a decision, in order."""
        return tuple(each.change for each in self.proposals.values() if each.decided is None)

    def decide(self, event: ChangeDecided) -> CellsState:
        """Return the state after a decision, which is ignored unless it `counts`."""
        proposals = self.earlier if event.turn else self.proposals
        proposal = proposals.get(event.number)
        if proposal is None or not counts(proposal, event):
            return self
        changed = {**proposals, event.number: replace(proposal, decided=event)}
        if event.turn:
            return replace(self, earlier=changed)
        return replace(self, proposals=changed)

    def resumed_at(self, started_at: float) -> CellsState:
        """Return the state with which a turn that resumes this one starts."""
        return replace(
            self,
            requests=MappingProxyType({}),
            proposals=MappingProxyType({}),
            runs=MappingProxyType({}),
            earlier={**self.earlier, **self.proposals},
            started_at=started_at,
            revert=None if self.revert is None or self.revert.result else self.revert,
        )


def counts(proposal: Proposal, event: ChangeDecided) -> bool:
    """Return whether a decision takes effect: each proposal is decided once.

    A page changes the notebook before it reports it. So if a stop withdraws the proposal in
    between, the report replaces the withdrawal.
    """
    decided = proposal.decided
    if decided is None:
        return True
    return decided.how == "withdrawn" and event.how in APPLIED


def cells_of(view: RunView) -> CellsState:
    """Return the state of the notebook's cells in a turn's view."""
    state = view.extension_state.get(STATE)
    if not isinstance(state, CellsState):
        return CellsState(started_at=view.started_at)
    if state.started_at != view.started_at:
        return state.resumed_at(view.started_at)
    return state


def may_answer(view: RunView, event: CellsRead) -> bool:
    """Return whether a page may answer a request to read cells: it has no answer yet."""
    return event.number in cells_of(view).requests


def may_claim(view: RunView, event: ChangeClaimed) -> bool:
    """Return whether a page may claim a proposal: it is open, and no other page has claimed it."""
    proposal = cells_of(view).proposals.get(event.number)
    if proposal is None or proposal.decided is not None:
        return False
    return event.is_forced or proposal.page in ("", event.page)


def may_decide(view: RunView, event: ChangeDecided) -> bool:
    """Return whether a user may decide a proposal. Each one is decided once."""
    proposal = cells_of(view).proposals.get(event.number)
    is_by_user = event.how != "withdrawn" and not event.turn
    return is_by_user and proposal is not None and counts(proposal, event)


def may_start_revert(view: RunView, event: RevertStarted) -> bool:
    """Return whether a page may take back the changes of a rewind: no other page does."""
    state = cells_of(view)
    is_free = state.revert is not None and state.revert.page in ("", event.page)
    return state.is_revert_open and (is_free or event.is_forced)


def may_revert(view: RunView, event: ChangesReverted) -> bool:
    """Return whether a page may report that it took back the changes of a rewind."""
    state = cells_of(view)
    requested = state.revert.changes if state.revert else ()
    return state.is_revert_open and set(event.changes) <= set(requested)


def may_queue(view: RunView, event: CellRunQueued) -> bool:
    """Return whether a page may take a request to run a cell: no other page has taken it."""
    run = cells_of(view).runs.get(event.number)
    return run is not None and not (run.queued or run.ended)


def may_start(view: RunView, event: CellRunStarted) -> bool:
    """Return whether the page that has taken a request may send its cell to the kernel now."""
    run = cells_of(view).runs.get(event.number)
    if run is None or run.queued is None:
        return False
    return run.queued.page == event.page and not (run.started or run.ended)


def may_end(view: RunView, event: CellRunEnded) -> bool:
    """Return whether a page may report the end of a request to run a cell."""
    run = cells_of(view).runs.get(event.number)
    is_open = run is not None and run.queued is not None and run.ended is None
    return is_open and event.how in PAGE_OUTCOMES


PAGE_OUTCOMES: tuple[RunOutcome, ...] = (
    *("ok", "error", "aborted", "changed", "missing", "refused", "lost", "deadlock"),
)
"""The outcomes that a page may report."""


def _with_state(view: RunView, state: CellsState) -> RunView:
    return replace(view, extension_state={**view.extension_state, STATE: state})


@VIEW.on(CellsRequested)
def _requested(view: RunView, event: CellsRequested) -> RunView:
    state = cells_of(view)
    requests = {**state.requests, event.number: event}
    return _with_state(view, replace(state, requests=requests, last_request=event.number))


@VIEW.on(CellsRead)
def _read(view: RunView, event: CellsRead) -> RunView:
    state = cells_of(view)
    request = state.requests.get(event.number)
    if request is None:
        return view
    requests = {n: each for n, each in state.requests.items() if n != event.number}
    cells = {each.id: each for each in event.cells}
    read_cells = {**state.read_cells, **cells} if request.ids else state.read_cells
    is_for_task = request.for_task and event.is_trusted and not event.problem
    state = replace(
        state,
        requests=requests,
        read_cells=read_cells,
        seen_ids=state.seen_ids | cells.keys(),
        task_outline=(
            _joined_outline(state.task_outline, request, event)
            if is_for_task and not request.ids
            else state.task_outline
        ),
        task_cells=event if is_for_task and request.ids else state.task_cells,
    )
    return _with_state(view, state)


def _joined_outline(
    outline: CellsRead | None, request: CellsRequested, event: CellsRead
) -> CellsRead:
    """Return an outline with the cells of another answer, which continues it."""
    if outline is None or request.start != len(outline.cells):
        return event
    return replace(event, cells=(*outline.cells, *event.cells))


@VIEW.on(ChangeProposed)
def _proposed(view: RunView, event: ChangeProposed) -> RunView:
    state = cells_of(view)
    proposals = {**state.proposals, event.number: Proposal(event)}
    return _with_state(view, replace(state, proposals=proposals))


@VIEW.on(ChangeClaimed)
def _claimed(view: RunView, event: ChangeClaimed) -> RunView:
    state = cells_of(view)
    proposal = state.proposals.get(event.number)
    if proposal is None:
        return view
    claimed = {**state.proposals, event.number: replace(proposal, page=event.page)}
    return _with_state(view, replace(state, proposals=claimed))


@VIEW.on(ChangeDecided)
def _decided(view: RunView, event: ChangeDecided) -> RunView:
    return _with_state(view, cells_of(view).decide(event))


@VIEW.on(RevertRequested)
def _revert_requested(view: RunView, event: RevertRequested) -> RunView:
    return _with_state(view, replace(cells_of(view), revert=Revert(event.changes)))


@VIEW.on(RevertStarted)
def _revert_started(view: RunView, event: RevertStarted) -> RunView:
    state = cells_of(view)
    if state.revert is None:
        return view
    return _with_state(view, replace(state, revert=replace(state.revert, page=event.page)))


@VIEW.on(ChangesReverted)
def _reverted(view: RunView, event: ChangesReverted) -> RunView:
    state = cells_of(view)
    if state.revert is None or not state.is_revert_open:
        return view
    return _with_state(view, replace(state, revert=replace(state.revert, result=event)))


def _with_run(view: RunView, number: int, **changes: Any) -> RunView:
    state = cells_of(view)
    run = state.runs.get(number)
    if run is None:
        return view
    return _with_state(view, replace(state, runs={**state.runs, number: replace(run, **changes)}))


@VIEW.on(CellRunRequested)
def _run_requested(view: RunView, event: CellRunRequested) -> RunView:
    state = cells_of(view)
    return _with_state(view, replace(state, runs={**state.runs, event.number: CellRun(event)}))


@VIEW.on(CellRunQueued)
def _run_queued(view: RunView, event: CellRunQueued) -> RunView:
    return _with_run(view, event.number, queued=event)


@VIEW.on(CellRunStarted)
def _run_started(view: RunView, event: CellRunStarted) -> RunView:
    return _with_run(view, event.number, started=event)


@VIEW.on(CellRunEnded)
def _run_ended(view: RunView, event: CellRunEnded) -> RunView:
    return _with_run(view, event.number, ended=event)
