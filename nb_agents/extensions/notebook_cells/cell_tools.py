"""The tools with which agents read the notebook, propose changes and run cells."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from functools import partial

import anyio
from anyio import to_thread

from nb_agents.agents.capabilities import Results
from nb_agents.config.tools import ToolKeys, ToolRule, rule_for
from nb_agents.config.uploads import cell_mentions
from nb_agents.disk.private import write_private
from nb_agents.errors import UserError
from nb_agents.events import Event, StopRequested
from nb_agents.extensions.notebook_cells.cell_events import (
    CellsRead,
    CellsRequested,
    CellsState,
    ChangeDecided,
    ChangeProposed,
    cells_of,
)
from nb_agents.extensions.notebook_cells.cell_images import (
    images_of_cells,
    store_images,
    with_images,
)
from nb_agents.extensions.notebook_cells.cell_outputs import variables_text
from nb_agents.extensions.notebook_cells.cell_runs import PAGE_S, CellRuns
from nb_agents.extensions.notebook_cells.cells import (
    MAX_SOURCES,
    cells_in,
    cells_text,
    chosen,
    outline,
    outline_text,
)
from nb_agents.extensions.notebook_cells.changes import (
    CellChange,
    check_changes,
    describe,
    patch_text,
)
from nb_agents.extensions.notebook_cells.notebook_files import (
    is_trusted,
    place_of,
    read_notebook,
)
from nb_agents.extensions.notebook_cells.reverting import revert_text
from nb_agents.extensions.notebook_cells.rewinding import changes_named
from nb_agents.extensions.notebook_cells.task_cells import (
    MAX_IDS,
    find_cells,
    is_complete,
    task_cells_text,
)
from nb_agents.tools.base import (
    BuiltInTool,
    TextWithImages,
    Tool,
    ToolError,
    current_call,
    declare,
)
from nb_agents.turns.drivers import DriverDeps
from nb_agents.turns.turn_spec import Resumed
from nb_agents.view.run_view import RunView

logger = logging.getLogger("nb_agents")

READ, PROPOSE, RUN = declare(
    BuiltInTool("notebook_read"),
    BuiltInTool("notebook_propose"),
    BuiltInTool("notebook_run", asks_itself=True),
)

PATCH = "cells.patch"
"""The file in the turn's directory with the proposals, and what a rewind has to take back."""

_TOO_LONG = f"These cells have more than {MAX_SOURCES} characters. Read fewer cells in one call."


class NotebookTools:
    """Makes the notebook tools for the agents of a run.

    Args:
        deps: The turn's spec, and the run's functions.
    """

    def __init__(self, deps: DriverDeps) -> None:
        self._deps = deps
        self._spec = deps.spec
        self._emit = deps.emit
        self._state = _state_at_start(deps.spec.resumed)
        self._members = {agent.id for agent in deps.spec.work.members(deps.spec.team)}
        self._answers: dict[int, CellsRead] = {}
        self._waiting: dict[int, anyio.Event] = {}
        self._place = place_of(deps.spec)
        self._has_page = self._place.has_page
        self._may_read_untrusted = False
        self._asking = anyio.Lock()
        self._reported = set[int]()
        self._noted = set[str]()
        self._runs = CellRuns(deps, self._place)
        self._readers = {each.id for each in deps.spec.team.everyone if each.backend.notebook}
        self._reading_for_task = anyio.Lock()
        deps.observe(self._on_event)

    def tools(self, keys: ToolKeys) -> list[Tool]:
        """Return the tools that the agent's key `notebook` enables."""
        if not keys.notebook:
            return []
        own = _AgentTools(self, keys)
        tools = [Tool(own.notebook_read, is_repeatable=True)]
        if keys.notebook in ("propose", "run"):
            tools.append(Tool(own.notebook_propose))
        if keys.notebook == "run":
            tools.append(Tool(own.notebook_run))
        return tools

    def note(self, agent: str) -> Results:
        """Return the decisions on an agent's proposals that it was not told yet."""
        own = [each for each in self._state.proposals.values() if each.change.agent == agent]
        news = [each for each in own if each.decided and each.change.number not in self._reported]
        self._reported |= {each.change.number for each in news}
        lines = [_decision_text(each.change, each.decided) for each in news if each.decided]
        return Results("\n".join([*self._note_of_resume(agent), *lines]))

    def _note_of_resume(self, agent: str) -> Iterator[str]:
        """Yield, once for each agent, how proposals ended after the end of the resumed turn."""
        if agent in self._noted:
            return
        self._noted.add(agent)
        for each in self._state.earlier.values():
            if each.change.agent != agent:
                continue
            if each.decided is None or each.decided.how == "withdrawn":
                yield _decision_text(each.change, _WITHDRAWN)
            elif each.decided.turn:
                yield _decision_text(each.change, each.decided)

    async def prompt_text(self, agent: str) -> str:
        """Return the cells that the task mentions, for an agent that may read the notebook.

        They are read once. A resume uses what was read.
        """
        if agent not in self._readers or not cell_mentions(self._spec.task):
            return ""
        async with self._reading_for_task:
            try:
                return await self._task_cells(agent)
            except ToolError as exc:
                return f"The cells that the task mentions can't be read: {exc}"

    async def _task_cells(self, agent: str) -> str:
        outline = await self._task_outline(agent)
        found = find_cells(self._spec.task, outline.cells)
        if not found.ids:
            return task_cells_text(outline.notebook, (), found)
        read = self._state.task_cells or await self._read(agent, found.ids, for_task=True)
        _check_read(read)
        return task_cells_text(read.notebook, read.cells, found)

    async def _task_outline(self, agent: str) -> CellsRead:
        """Return as much of the outline as is needed to look up the cells of the task."""
        while True:
            outline = self._state.task_outline
            known = outline.cells if outline else ()
            if outline and is_complete(self._spec.task, known, outline.count):
                return outline
            read = await self._read(agent, start=len(known), for_task=True)
            _check_read(read)
            if outline and not read.cells:  # the notebook has become shorter
                return outline

    async def read(
        self,
        ids: tuple[str, ...],
        *,
        start: int = 0,
        outputs: bool = False,
        images: bool = False,
    ) -> CellsRead:
        """Return cells, or an outline without ids.

        Args:
            ids: The ids of the cells.
            start: For an outline, the number of cells to skip.
            outputs: Whether to read the outputs, too.
            images: Whether to also read the images in the outputs.

        Raises:
            ToolError: The cells can't be read, or the user does not allow it.
        """
        agent = current_call().agent
        ask = partial(self._read, agent, ids, start=start, outputs=outputs, images=images)
        read = await ask()
        if not read.is_trusted and not self._may_read_untrusted:
            async with self._asking:
                await self._ask_about_untrusted(agent, read.notebook)
            read = await ask()
        if read.problem:
            raise ToolError(read.problem)
        return read

    async def _ask_about_untrusted(self, agent: str, notebook: str) -> None:
        if self._may_read_untrusted:  # the user was asked by another agent meanwhile
            return
        about = f"{notebook}, which is not trusted. Its text may contain instructions to agents"
        with current_call().waiting():
            decision = await self._deps.ask(agent, "notebook_read", about, False)
        if not decision.approved:
            raise ToolError("the notebook is not trusted, and the user did not allow to read it.")
        self._may_read_untrusted = True

    async def propose(self, changes: list[CellChange], why: str) -> str:
        """Record proposed changes, and return them as text for the agent."""
        try:
            proposed = check_changes(self._state, current_call().agent, changes, why)
        except UserError as exc:
            raise ToolError(str(exc)) from exc
        for event in proposed:
            self._emit(event)
        await to_thread.run_sync(self._write_patch)
        listed = "; ".join(f"{each.number}: {describe(each)}" for each in proposed)
        return f"Proposed. The user decides each change later. {listed}"

    async def run(
        self, name: str, digest: str, rule: ToolRule | None, *, images: bool = False
    ) -> str:
        """Run a cell in the open notebook, after the user's approval.

        Args:
            name: The cell's id.
            digest: The digest of the cell that the agent has read.
            rule: The rule of the team file for this tool, or None.
            images: Whether the agent also gets the images in the outputs.
        """
        cell = self._state.read_cells.get(name)
        if cell is None:
            raise ToolError(f"cell {name!r} was not read. Read it with notebook_read first.")
        return await self._runs.run(cell, digest, rule, images=images)

    async def close(self) -> None:
        """End the run's own kernel, and write what a rewind still has to take back."""
        await self._runs.close()
        if self._state.is_revert_open:
            await to_thread.run_sync(self._write_patch)

    def news(self, agent: str) -> str:
        """Return the decisions for an agent that gets no notes, such as a called agent."""
        return "" if agent in self._members else self.note(agent).text

    def variables(self) -> str:
        """Return the variables of the notebook's kernel, if this process is the kernel."""
        main = sys.modules.get("__main__")
        is_notebook = self._spec.origin.startswith("notebook:") and hasattr(main, "get_ipython")
        return variables_text(dict(vars(main))) if main and is_notebook else ""

    async def _read(
        self,
        agent: str,
        ids: tuple[str, ...] = (),
        *,
        start: int = 0,
        outputs: bool = False,
        images: bool = False,
        for_task: bool = False,
    ) -> CellsRead:
        number = self._state.last_request + 1
        answered = self._waiting[number] = anyio.Event()
        request = CellsRequested(
            agent=agent,
            number=number,
            ids=ids,
            start=start,
            outputs=outputs,
            images=images,
            untrusted=self._may_read_untrusted,
            for_task=for_task,
        )
        self._emit(request)
        if self._has_page:
            with anyio.move_on_after(PAGE_S):
                await answered.wait()
        if not answered.is_set():
            self._has_page = False
            self._emit(await to_thread.run_sync(self._from_file, request))
        self._waiting.pop(number, None)
        answer = self._answers.pop(number, None)
        if answer is None:
            raise ToolError("the run is being stopped.")
        return answer

    def _from_file(self, request: CellsRequested) -> CellsRead:
        """Return an answer from the notebook's file, which may be older than an open page."""
        number, ids, place = request.number, request.ids, self._place
        try:
            notebook = read_notebook(place)
            cells = cells_in(notebook)
        except UserError as exc:
            return CellsRead(number=number, problem=str(exc))
        assert place.path is not None
        # The code of a notebook that is being executed runs already.
        if not (request.untrusted or place.is_executing or is_trusted(notebook)):
            return CellsRead(number=number, notebook=place.path.name, is_trusted=False)
        outputs, start = request.outputs, request.start
        answer = chosen(cells, ids, outputs=outputs) if ids else outline(cells, start)
        if sum(len(each.source) for each in answer) > MAX_SOURCES:
            return CellsRead(number=number, problem=_TOO_LONG)
        images = images_of_cells(notebook, ids) if request.images else ()
        try:
            answer = [*with_images(answer, store_images(self._spec.paths.path, images))]
        except OSError:
            logger.debug("images of cells can't be stored", exc_info=True)
        return CellsRead(
            number=number, notebook=place.path.name, cells=tuple(answer), count=len(cells)
        )

    def _write_patch(self) -> None:
        revert = self._state.revert
        names = revert.changes if revert and self._state.is_revert_open else ()
        parts = [
            revert_text(changes_named(self._spec.paths.path.parent, names)),
            patch_text(self._state.open),
        ]
        write_private(self._spec.paths.path / PATCH, "\n".join(filter(None, parts)))

    def _on_event(self, event: Event, before: RunView, after: RunView) -> None:
        self._state = cells_of(after)
        self._runs.follow(self._state, event)
        match event:
            case CellsRead(number=number) if number in self._waiting:
                self._answers[number] = event
                self._waiting[number].set()
            case StopRequested(agent=agent):
                self._withdraw(agent)

    def _withdraw(self, agent: str) -> None:
        """End what waits for the user: the open proposals, and the requests of a stopped run."""
        for change in self._state.open:
            if not agent or change.agent == agent:
                self._emit(ChangeDecided(number=change.number, how="withdrawn"))
        for number, request in self._state.requests.items():
            if number in self._waiting and (not agent or request.agent == agent):
                self._waiting[number].set()


def _check_read(read: CellsRead) -> None:
    if not read.is_trusted:
        raise ToolError("the notebook is not trusted. notebook_read asks the user.")
    if read.problem:
        raise ToolError(read.problem)


def _state_at_start(resumed: Resumed | None) -> CellsState:
    """Return the state of a turn before its first event."""
    if resumed is None:
        return CellsState()
    state = cells_of(resumed.view).resumed_at(0.0)
    for event in resumed.carried:
        state = state.decide(event) if isinstance(event, ChangeDecided) else state
    return state


class _AgentTools:
    """The tools of the agents with one configuration. The docstrings are for models."""

    def __init__(self, notebook: NotebookTools, keys: ToolKeys) -> None:
        self._notebook = notebook
        self._keys = keys

    async def notebook_read(
        self,
        ids: list[str] | None = None,
        offset: int = 0,
        outputs: bool = False,
        start: int = 0,
    ) -> str:
        """Read cells of the user's notebook.

        Args:
            ids: The ids of the cells to read whole. Without ids, returns an outline of the
                notebook: the id, type, number of lines and first line of up to 200 cells.
            offset: Where to start in the source of each cell, in characters.
            outputs: Whether to include the outputs of the cells, if you may read them.
            start: Without ids: the number of cells to skip, to continue a long outline.
        """
        cell_ids, has_outputs = tuple(ids or ()), self._keys.notebook_outputs != "none"
        is_with_outputs = outputs and bool(cell_ids)
        if len(cell_ids) > MAX_IDS:
            raise ToolError(f"a call can read at most {MAX_IDS} cells.")
        if outputs and not has_outputs:
            raise ToolError(
                "outputs of cells can't be read. `notebook_outputs: text` in the team file would "
                "allow it."
            )
        start = max(0, start)
        read = await self._notebook.read(
            cell_ids,
            start=start,
            outputs=is_with_outputs,
            images=is_with_outputs and self._gets_images,
        )
        if cell_ids:
            text = cells_text(read.notebook, read.cells, cell_ids, max(0, offset))
        else:
            variables = self._notebook.variables() if has_outputs else ""
            outline = outline_text(read.notebook, read.cells, read.count, start)
            text = "\n".join(filter(None, [outline, variables]))
        news = self._notebook.news(current_call().agent)
        images = [image for cell in read.cells for image in cell.images]
        return TextWithImages("\n\n".join(filter(None, [news, text])), images)

    async def notebook_propose(self, changes: list[CellChange], why: str = "") -> str:
        """Propose changes of cells of the user's notebook.

        Nothing changes until the user accepts a change. This tool does not wait: a later message
        contains the decisions, so continue with your task. Read a cell before you replace, delete
        or move it.

        Args:
            changes: The changes, at most 20.
            why: The reason for the changes, in one sentence for the user.
        """
        return await self._notebook.propose(changes, why)

    async def notebook_run(self, id: str, digest: str) -> str:
        """Run a code cell of the user's notebook in the user's kernel.

        The user approves the code first. The cell waits until the user's own cells have run.
        Returns its outputs. Read the cell before you run it. If the notebook is only a
        file, a new kernel runs the cell, so run the cells that it needs first.

        Args:
            id: The cell's id.
            digest: The digest that notebook_read returned.
        """
        rule = rule_for(RUN, self._keys.tool_policy)
        return await self._notebook.run(id, digest, rule, images=self._gets_images)

    @property
    def _gets_images(self) -> bool:
        return self._keys.notebook_outputs == "images"


_WITHDRAWN = ChangeDecided(number=0, how="withdrawn")
_OUTCOMES = {
    "accepted": "was accepted{by}",
    "inserted": "no longer fitted the cell. Its text was put into a new cell{by}",
    "rejected": "was rejected{by}",
    "stale": "no longer fits the cell, which has changed. Read the cell again",
    "withdrawn": "was withdrawn, because the run was interrupted",
}


def _decision_text(change: ChangeProposed, decided: ChangeDecided) -> str:
    by = f" by {decided.by}" if decided.by else ""
    cell = f" The new cell is {decided.cell}." if decided.cell not in ("", change.cell) else ""
    outcome = _OUTCOMES[decided.how].format(by=by)
    return f"Your proposal {change.number} ({describe(change)}) {outcome}.{cell}"
