"""Agents run cells of the notebook: approval, the page's part, stops and deadlocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.extensions.notebook_cells import cell_runs
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.kit.notebook_cells import (
    CELL,
    Caller,
    Cell,
    CellsRead,
    ToolRule,
    cells_of,
    cells_run,
    waiting_for,
)
from tests.notebook_cells.journals import events

CALLER = Caller("widget", CELL)
LOAD = Cell(id="load", type="code", source="df = load()", lines=1)
READ = Turn(calls=(Call("notebook_read", {"ids": ["load"]}),))
RUN = Turn(calls=(Call("notebook_run", {"id": "load", "digest": LOAD.digest}),))


class Page:
    """Answers requests, approves the gate, and runs cells up to a step, as a page does."""

    def __init__(
        self, run: nb_agents.Run, cell: Cell = LOAD, *, until: str = "end", approves: bool = True
    ) -> None:
        self.run, self.cell, self.until, self.approves = run, cell, until, approves
        self.asked: list[str] = []
        self.steps: list[tuple[int, str, bool]] = []
        self._done = set[object]()
        run.subscribe(self._on_view)
        self._on_view(run.view)

    def _once(self, key: object, act: Callable[[], object]) -> None:
        if key not in self._done:
            self._done.add(key)
            act()

    def _on_view(self, view: Any) -> None:
        state = cells_of(view)
        for number in state.requests:
            read = CellsRead(number=number, notebook="a.ipynb", cells=(self.cell,), count=1)
            self._once(("read", number), partial(self.run.record_event, read))
        for address, gate in view.gates.items():
            self._once(("gate", address), partial(self._decide, gate))
        for number in [run.request.number for run in state.open_runs]:
            self._once(("run", number), partial(self._run_cell, number))

    def _decide(self, gate: Any) -> None:
        self.asked.append(gate.prompt)
        self.run.decide(self.approves, "", gate=gate.address)

    def _run_cell(self, number: int) -> None:
        for step in ("queue", "start", "end"):
            self.steps.append((number, step, self.record(number, step)))
            if step == self.until:
                return

    def record(self, number: int, step: str, how: str = "ok", page: str = "p1") -> bool:
        reply = cells_run(
            self.run,
            CALLER,
            number=number,
            step=step,
            page=page,
            behind="cell 4" if step == "queue" else "",
            how=how,
            outputs="42\n=== cell fake",
        )
        return bool(reply.facts["changed"])


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., nb_agents.Run]:
    def start(*turns: Any, policy: Any = (), access: Any = "run") -> nb_agents.Run:
        team = scripted_team(ada=ScriptedModel(*turns))
        if policy:
            agent = team.agents[0]
            backend = agent.backend.model_copy(update={"tool_policy": policy})
            agents = (agent.model_copy(update={"backend": backend}),)
            team = team.model_copy(update={"agents": agents})
        options = nb_agents.RunOptions(session_root=tmp_path, notebook=access)
        return nb_agents.start("Run the cell", team, options=options)

    return start


def last_result(run: nb_agents.Run) -> str:
    results = [e for e in events(run, "tool_finished") if e["tool"] == "notebook_run"]
    return str(results[-1]["result"])


def test_approved_cell_runs_and_the_agent_gets_its_outputs(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    page = Page(run)
    _wait(run, lambda: run.is_over)
    assert "notebook_run on cell load:\ndf = load()" in page.asked[0]
    assert page.steps == [(1, "queue", True), (1, "start", True), (1, "end", True)]
    assert "Cell load ran." in last_result(run) and "> === cell fake" in last_result(run)
    assert [e["text"] for e in events(run, "noticed") if "cell 4" in e["text"]]


def test_denied_cell_is_not_requested(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    Page(run, approves=False)
    _wait(run, lambda: run.is_over)
    assert "did not allow to run cell load" in last_result(run)
    assert not events(run, "cell_run_requested")


def test_proposing_agent_cannot_run_cells(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."), access="propose")
    Page(run)
    _wait(run, lambda: run.is_over)
    assert "no tool 'notebook_run'" in last_result(run)


@pytest.mark.parametrize("action", ["allow", "ask"])
def test_rule_of_the_team_file_decides_whether_the_user_is_asked(started: Any, action: Any) -> None:
    policy = (ToolRule(match="notebook_run", action=action),)
    run = started(READ, RUN, Answer("Done."), policy=policy)
    page = Page(run)
    _wait(run, lambda: run.is_over)
    assert len(page.asked) == (action == "ask")
    assert "Cell load ran." in last_result(run)


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (Cell(id="load", type="code", source=LOAD.source, may_run=False), "must not run it"),
        (Cell(id="load", type="code", source=LOAD.source, shows_run=True), "shows this run"),
        (Cell(id="load", type="markdown", source="x"), "Only code cells"),
        (Cell(id="load", type="code", source="other"), "Read it again"),
        (Cell(id="load", type="code", source="x" * 20_001), "has the digest"),
    ],
)
def test_cell_that_agents_must_not_run_is_refused_without_a_question(
    started: Any, cell: Cell, problem: str
) -> None:
    run = started(READ, RUN, Answer("Done."))
    page = Page(run, cell)
    _wait(run, lambda: run.is_over)
    assert problem in last_result(run) and not page.asked


def test_only_one_page_runs_a_cell(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    page = Page(run, until="queue")
    _wait(run, lambda: bool(page.steps))
    assert not page.record(1, "queue", page="p2")
    assert not page.record(1, "start", page="p2")
    assert page.record(1, "start") and not page.record(1, "start")
    assert page.record(1, "end") and not page.record(1, "end")
    _wait(run, lambda: run.is_over)
    assert len(events(run, "cell_run_started")) == 1


def test_stop_withdraws_a_cell_that_has_not_started(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    run.subscribe(lambda view: run.stop() if _queued(view) else None)
    page = Page(run, until="queue")
    _wait(run, lambda: run.is_over)
    assert not page.record(1, "start")
    [ended] = events(run, "cell_run_ended")
    assert ended["how"] == "withdrawn" and run.state == "stopped"


def test_graceful_stop_lets_a_started_cell_end(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    page = Page(run, until="start")
    _wait(run, lambda: bool(page.steps[1:]))
    run.stop()
    assert page.record(1, "end")
    _wait(run, lambda: run.is_over)
    assert [each["how"] for each in events(run, "cell_run_ended")] == ["ok"]


def test_immediate_stop_ends_a_started_cell_and_a_resume_does_not_run_it_again(
    started: Any,
) -> None:
    seen: list[str] = []

    def last(messages: Any) -> Turn:
        seen.append(str(messages[-1]))
        return Answer("Done.")

    run = started(READ, RUN, last)
    page = Page(run, until="start")
    _wait(run, lambda: bool(page.steps[1:]))
    run.stop(now=True)
    _wait(run, lambda: run.is_over)
    assert [each["how"] for each in events(run, "cell_run_ended")] == ["cut"]
    again = run.resume()
    later = Page(again)
    _wait(again, lambda: again.is_over)
    assert not events(again, "cell_run_requested") and not later.asked
    assert "notebook_run" in seen[0] and "may have" in seen[0]


def test_cell_that_waits_for_the_run_is_refused_and_the_user_is_told(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    page = Page(run)
    with waiting_for(run.path):
        _wait(run, lambda: run.is_over)
    assert "waits for this run" in last_result(run) and not page.asked
    assert [e for e in events(run, "noticed") if "without `--wait`" in e["text"]]


def test_wait_of_the_main_thread_counts_as_a_cell_that_waits(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    Page(run)
    run.wait()
    assert "waits for this run" in last_result(run)


def test_cell_that_begins_to_wait_for_the_run_ends_the_request(started: Any) -> None:
    run = started(READ, RUN, Answer("Done."))
    page = Page(run, until="queue")
    _wait(run, lambda: bool(page.steps))
    with waiting_for(run.path):
        _wait(run, lambda: run.is_over)
    assert [each["how"] for each in events(run, "cell_run_ended")] == ["deadlock"]


def test_without_a_page_the_agent_gets_an_error(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_runs, "PAGE_S", 0)
    run = started(READ, RUN, Answer("Done."))
    page = Page(run, until="none")
    page._done.add(("run", 1))
    _wait(run, lambda: run.is_over)
    assert "No open page shows this run" in last_result(run)


def _queued(view: Any) -> bool:
    return any(each.queued and not each.started for each in cells_of(view).open_runs)


def _wait(run: nb_agents.Run, is_reached: Callable[[], bool]) -> None:
    """Wait for a state without waiting for the run."""
    changed = threading.Event()
    end = run.subscribe(lambda view: changed.set())
    try:
        while not is_reached():
            changed.wait(1)
            changed.clear()
    finally:
        end()
