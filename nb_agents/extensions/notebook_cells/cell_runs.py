"""Runs cells of the notebook for agents: approval, the queue, and the end.

A page runs the cell in the notebook, behind the user's own cells. A cell that waits for the run
would wait forever for a cell behind it, so such a request is refused. If the user named the
notebook's file for the run, a kernel that belongs to the run runs the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio import to_thread

from nb_agents.config.secret_names import MASK
from nb_agents.config.tools import ToolRule
from nb_agents.errors import UserError
from nb_agents.events import Event, StopRequested
from nb_agents.extensions.notebook_cells.cell_events import (
    CellRun,
    CellRunEnded,
    CellRunQueued,
    CellRunRequested,
    CellRunStarted,
    CellsState,
    RunOutcome,
)
from nb_agents.extensions.notebook_cells.cell_images import (
    StoredImages,
    images_in,
    store_images,
)
from nb_agents.extensions.notebook_cells.cell_kernel import CellKernel, Executed
from nb_agents.extensions.notebook_cells.cell_outputs import images_text, quoted
from nb_agents.extensions.notebook_cells.cells import DATA_NOTICE, Cell
from nb_agents.extensions.notebook_cells.notebook_files import (
    NotebookPlace,
    find_cell,
    kernel_name,
    read_notebook,
)
from nb_agents.tools.base import TextWithImages, ToolError, current_call
from nb_agents.tools.policy import with_visible_direction
from nb_agents.turns.awaited import is_awaited
from nb_agents.turns.drivers import DriverDeps

PAGE_S = 10.0
"""Seconds to wait for an open page to answer."""
QUEUE_S = 600.0
"""Seconds that a cell waits for the kernel before the agent continues without it."""
CHECK_S = 0.5
"""Seconds between two checks whether the kernel waits for this run."""
MAX_SOURCE = 20_000
"""Maximum length of a cell that the user can approve, in characters."""

_DEADLOCK = (
    "The cell that the kernel runs waits for this run, so cell {cell} can't run before the run "
    "ends."
)
_START_OTHERWISE = " Start the run without `--wait`."
_START_ON_FILE = (
    " In a notebook that is executed without a user, each cell waits for its run. `nb-agents run "
    "--on NOTEBOOK` runs cells in a kernel of its own."
)
_NO_PAGE = (
    "No open page shows this run in a notebook, so no cell can run. The user can name a notebook's "
    "file with --on FILE."
)
_KERNEL = "kernel"
"""The name under which the run's own kernel takes requests, as a page does."""
_ENDS: dict[RunOutcome, str] = {
    "error": "the cell raised an error.",
    "aborted": "the kernel did not run the cell.",
    "changed": "the cell has changed since you read it, so it was not run. Read it again.",
    "missing": "the cell is no longer in the notebook.",
    "refused": "the cell can't be run by agents.",
    "lost": "the page or the kernel went away while the cell ran, so its outputs are unknown.",
    "withdrawn": "the cell was not run. {why}",
    "deadlock": "the cell was not run, because the cell that the kernel runs waits for this run.",
    "cut": "the run was stopped while the cell ran, so the cell may have had an effect.",
}


class CellRuns:
    """The requests of a run's agents to run cells.

    Args:
        deps: The turn's spec, and the run's functions.
        place: Where the turn finds its notebook.
    """

    def __init__(self, deps: DriverDeps, place: NotebookPlace) -> None:
        self._deps = deps
        self._place = place
        self._kernel: CellKernel | None = None
        self._state = CellsState()
        self._changed: dict[int, anyio.Event] = {}

    async def run(
        self, cell: Cell, digest: str, rule: ToolRule | None, *, images: bool = False
    ) -> str:
        """Run a cell, and return its outputs as text for the agent.

        Args:
            cell: The cell as the agent has read it.
            digest: The digest that the agent names.
            rule: The rule of the team file for the tool, or None.
            images: Whether the agent also gets the images in the outputs.

        Raises:
            ToolError: The cell was not run, or it raised an error.
        """
        _check(cell, digest)
        self._refuse_what_cannot_run(cell)
        if rule is None or rule.action != "allow":
            await self._ask(cell, stops=rule is not None and rule.on_denial == "stop")
        self._refuse_what_cannot_run(cell)
        number = max(self._state.runs, default=0) + 1
        self._changed[number] = anyio.Event()
        agent = current_call().agent
        self._deps.emit(
            CellRunRequested(
                agent=agent, number=number, cell=cell.id, source=cell.source, images=images
            )
        )
        try:
            if self._place.is_own:
                await self._run_in_kernel(number, cell)
            return _result(cell, await self._end_of(number))
        finally:
            del self._changed[number]

    async def close(self) -> None:
        """End the run's own kernel, if it was started."""
        if self._kernel is not None:
            await self._kernel.close()

    async def _ask(self, cell: Cell, *, stops: bool) -> None:
        about = f"notebook_run on cell {cell.id}:\n{with_visible_direction(cell.source)}\n"
        with current_call().waiting():
            decision = await self._deps.ask(current_call().agent, "notebook_run", about, stops)
        if not decision.approved:
            why = f": {decision.message}" if decision.message else "."
            raise ToolError(f"the user did not allow to run cell {cell.id}{why}")

    def _refuse_what_cannot_run(self, cell: Cell) -> None:
        if self._place.is_own:
            return
        if not (self._place.has_page or self._place.is_executing):
            raise ToolError(_ENDS["withdrawn"].format(why=_NO_PAGE))
        if is_awaited(self._deps.spec.paths.path):
            self._report_deadlock(cell.id)
            raise ToolError(_ENDS["deadlock"])

    def _report_deadlock(self, cell: str) -> None:
        advice = _START_ON_FILE if self._place.is_executing else _START_OTHERWISE
        self._deps.note(f"{_DEADLOCK.format(cell=cell)}{advice}")

    async def _run_in_kernel(self, number: int, cell: Cell) -> None:
        """Run a cell in the run's own kernel, behind the cells of other agents."""
        kernel = await self._own_kernel()
        behind = "the cell of another agent" if kernel.is_busy else ""
        self._deps.emit(CellRunQueued(number=number, page=_KERNEL, behind=behind))
        async with kernel.turn:
            if not self._is_waiting(number):
                return
            if how := await to_thread.run_sync(self._unfit, cell):
                self._deps.emit(CellRunEnded(number=number, how=how))
                return
            self._deps.emit(CellRunStarted(number=number, page=_KERNEL))
            try:
                done = await kernel.run(cell.source)
                kept = await to_thread.run_sync(self._images_of, number, done)
                ended = CellRunEnded(
                    number=number,
                    how=done.how,
                    outputs=done.text,
                    images=kept.images,
                    images_left_out=kept.left_out,
                )
            except UserError as exc:
                ended = CellRunEnded(number=number, how="lost", outputs=str(exc))
            if self._state.runs[number].ended is None:
                self._deps.emit(ended)

    def _images_of(self, number: int, done: Executed) -> StoredImages:
        """Store the images of a cell that was run, if the agent gets them."""
        request = self._state.runs[number].request
        if not request.images:
            return StoredImages()
        images = images_in(request.cell, done.outputs)
        with suppress(OSError):
            stored = store_images(self._deps.spec.paths.path, images)
            return stored.get(request.cell, StoredImages())
        return StoredImages(left_out=len(images))

    async def _own_kernel(self) -> CellKernel:
        if self._kernel is None:
            assert self._place.path is not None
            name = await to_thread.run_sync(self._kernel_name)
            # Another agent may have created it in the meantime.
            self._kernel = self._kernel or CellKernel(self._place.path, name)
        return self._kernel

    def _kernel_name(self) -> str:
        with suppress(UserError):
            return kernel_name(read_notebook(self._place))
        return ""

    def _unfit(self, cell: Cell) -> RunOutcome | None:
        """Return why the cell in the file can't run now, or None."""
        try:
            current = find_cell(self._place, cell.id)
        except UserError:
            current = None
        if current is None:
            return "missing"
        if not current.may_run:
            return "refused"
        return None if current.source == cell.source else "changed"

    async def _end_of(self, number: int) -> CellRunEnded:
        """Wait until a request has ended, and end it if no page runs the cell."""
        why = _NO_PAGE
        with anyio.move_on_after(PAGE_S):
            await self._until(number, lambda run: run.queued is not None)
        if self._is_queued(number):
            why = f"The kernel was busy for {QUEUE_S:.0f} seconds."
            with anyio.move_on_after(QUEUE_S):
                await self._until_started(number)
        if self._is_waiting(number):
            self._deps.emit(CellRunEnded(number=number, how="withdrawn", outputs=why))
        await self._until(number, lambda run: False)
        ended = self._state.runs[number].ended
        assert ended is not None
        return ended

    async def _until_started(self, number: int) -> None:
        run = self._state.runs[number]
        while self._is_waiting(number):
            if is_awaited(self._deps.spec.paths.path):
                self._report_deadlock(run.request.cell)
                self._deps.emit(CellRunEnded(number=number, how="deadlock"))
                return
            with anyio.move_on_after(CHECK_S):
                await self._until(number, lambda run: run.started is not None)

    async def _until(self, number: int, is_reached: Callable[[CellRun], bool]) -> None:
        """Wait until a request has reached a state, or has ended."""
        while not ((run := self._state.runs[number]).ended or is_reached(run)):
            self._changed[number] = anyio.Event()
            await self._changed[number].wait()

    def _is_queued(self, number: int) -> bool:
        return self._is_waiting(number) and self._state.runs[number].queued is not None

    def _is_waiting(self, number: int) -> bool:
        run = self._state.runs[number]
        return run.started is None and run.ended is None

    def follow(self, state: CellsState, event: Event) -> None:
        """Take the state after an event of the turn.

        A stop withdraws what has not started. A graceful stop lets a started cell end, and an
        immediate one lets the page interrupt it.
        """
        self._state = state
        for changed in self._changed.values():
            changed.set()
        match event:
            case CellRunQueued(behind=behind, number=number) if behind:
                request = state.runs[number].request
                self._deps.note(f"Cell {request.cell} waits until the kernel has run {behind}.")
            case StopRequested(agent=agent, level=level):
                for run in state.open_runs:
                    if not agent or run.request.agent == agent:
                        self._end_at_stop(run, is_graceful=level == "requested")

    def _end_at_stop(self, run: CellRun, *, is_graceful: bool) -> None:
        number = run.request.number
        if run.started is None:
            why = "The run was stopped before."
            self._deps.emit(CellRunEnded(number=number, how="withdrawn", outputs=why))
        elif not is_graceful:
            self._deps.emit(CellRunEnded(number=number, how="cut"))


def _check(cell: Cell, digest: str) -> None:
    if cell.type != "code":
        raise ToolError(f"cell {cell.id!r} is a {cell.type} cell. Only code cells can be run.")
    if cell.shows_run:
        raise ToolError(f"cell {cell.id!r} shows this run, so agents can't run it.")
    if not cell.may_run:
        raise ToolError(f"the metadata of cell {cell.id!r} says that agents must not run it.")
    if digest != cell.digest:
        raise ToolError(
            f"cell {cell.id!r} has the digest {cell.digest}, not {digest!r}. Read it again."
        )
    if MASK in cell.source:
        raise ToolError(f"cell {cell.id!r} contains a hidden secret, so only the user can run it.")
    if len(cell.source) > MAX_SOURCE:
        raise ToolError(f"a cell that agents run can have at most {MAX_SOURCE} characters.")


def _result(cell: Cell, ended: CellRunEnded) -> str:
    """Return the outputs of a cell for the agent.

    Raises:
        ToolError: The cell did not run to its end.
    """
    if ended.how == "withdrawn":
        raise ToolError(_ENDS["withdrawn"].format(why=ended.outputs))
    outputs = f"\n{DATA_NOTICE}\n{quoted(ended.outputs)}" if ended.outputs else ""
    if images := images_text(ended.images, ended.images_left_out):
        outputs += f"\n--- images: {images}"
    if ended.how == "ok":
        text = f"Cell {cell.id} ran.{outputs or ' It has no outputs.'}"
        return TextWithImages(text, ended.images)
    raise ToolError(f"{_ENDS[ended.how]}{outputs}")
