"""Agents read the notebook and propose changes; a page answers and decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.sign import NotebookNotary

import nb_agents
from nb_agents.extensions.notebook_cells import cell_tools
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.cards import TURN_MIME, card_of_run
from tests.kit.notebook_cells import (
    CELL,
    LATE_FILE,
    Caller,
    Cell,
    CellsRead,
    ChangeDecided,
    ChangeProposed,
    TeamSpec,
    TurnPaths,
    add_late_event,
    cells_claim,
    cells_decide,
    cells_of,
    late_events,
    notebook_files,
    notebook_path,
    state_of,
    with_origin,
)
from tests.kit.verbs import stop
from tests.notebook_cells.journals import events

LOAD = Cell(id="load", type="code", source="df = pd.read_csv('a.csv')", lines=1)
PLOT = Cell(id="plot", type="code", source="df.plot()\nplt.show()", lines=2)
CALLER = Caller("widget", CELL)
REPLACE = {"op": "replace", "id": "load", "digest": LOAD.digest, "source": "df = load()"}
READ = Turn(calls=(Call("notebook_read", {"ids": ["load"]}),))


def propose(*changes: dict[str, Any]) -> Turn:
    return Turn(calls=(Call("notebook_propose", {"changes": [*changes], "why": "It is faster"}),))


class Page:
    """Answers each request from its cells, as an open notebook does."""

    def __init__(
        self,
        run: nb_agents.Run,
        *cells: Cell,
        is_trusted: bool = True,
        agrees: bool = True,
        answers: bool = True,
    ) -> None:
        self._answers = answers
        self._run, self._cells = run, {each.id: each for each in cells}
        self._is_trusted, self._agrees = is_trusted, agrees
        self.asked: list[str] = []
        self._gates = set[str]()
        self._answered = set[int]()
        run.subscribe(self._on_view)
        self._on_view(run.view)

    def _on_view(self, view: Any) -> None:
        for number, request in cells_of(view).requests.items():
            if number not in self._answered and self._answers:
                self._answered.add(number)
                found = tuple(self._cells[i] for i in request.ids or self._cells)
                is_shown = self._is_trusted or request.untrusted
                answer = CellsRead(
                    number=number,
                    notebook="a.ipynb",
                    cells=found if is_shown else (),
                    count=len(self._cells),
                    is_trusted=is_shown,
                )
                self._run.record_event(answer)
        for address, gate in view.gates.items():
            if address not in self._gates:
                self._gates.add(address)
                self.asked.append(gate.prompt)
                self._run.decide(self._agrees, "", gate=address)


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., nb_agents.Run]:
    def start(
        *turns: Any, access: Any = "propose", outputs: str = "none", **more: Any
    ) -> nb_agents.Run:
        team = scripted_team(ada=ScriptedModel(*turns))
        backend = team.agents[0].backend.model_copy(update={"notebook_outputs": outputs})
        agents = (team.agents[0].model_copy(update={"backend": backend}),)
        team = team.model_copy(update={"agents": agents})
        options = nb_agents.RunOptions(session_root=tmp_path, notebook=access, **more)
        return nb_agents.start("Improve the notebook", team, options=options)

    return start


def results(run: nb_agents.Run) -> list[str]:
    return [each["result"] for each in events(run, "tool_finished")]


def decide(run: nb_agents.Run, number: int, how: str, cell: str = "") -> dict[str, Any]:
    return dict(cells_decide(run, CALLER, number=number, how=how, cell=cell).facts)


def test_agent_gets_an_outline_and_whole_cells_from_the_page(started: Any) -> None:
    outline = Turn(calls=(Call("notebook_read", {}),))
    run = started(outline, READ, Answer("Seen."), access="read")
    Page(run, LOAD, PLOT)
    run.wait()
    first, second = results(run)[:2]
    assert "a.ipynb: 2 cells" in first and "plot [code, 2 lines] df.plot()" in first
    assert "plt.show()" not in first
    assert f"=== cell load [code] digest {LOAD.digest}\n{LOAD.source}" in second


def test_one_of_two_pages_gets_a_proposal(started: Any) -> None:
    run = started(READ, propose(REPLACE, {"op": "insert", "source": "x = 1"}), Answer("Done."))
    Page(run, LOAD)
    run.wait()

    def claim(number: int, page: str, force: bool = False) -> tuple[Any, Any]:
        facts = cells_claim(run, CALLER, number=number, page=page, force=force).facts
        return facts["open"], facts["mine"]

    with ThreadPoolExecutor(8) as pool:
        pages = [f"page {n}" for n in range(8)]
        claims = [*pool.map(lambda page: claim(1, page), pages)]
    assert sorted(claims) == [(True, False)] * 7 + [(True, True)]
    winner = pages[claims.index((True, True))]
    assert claim(1, winner) == (True, True)
    assert claim(2, "other") == (True, True)
    assert claim(1, "other", force=True) == (True, True)
    decide(run, 1, "accepted", "load")
    assert claim(1, winner) == (False, False)


def test_decision_names_the_user_who_is_signed_in(started: Any) -> None:
    run = started(READ, propose(REPLACE), Answer("Done."))
    Page(run, LOAD)
    run.wait()
    cells_decide(run, CALLER._replace(user="Ada L."), number=1, how="rejected", cell="")
    assert [each.by for each in late_events(TurnPaths(run.path))] == ["Ada L."]


def test_agent_without_the_key_has_no_notebook_tools(started: Any) -> None:
    run = started(READ, Answer("Done."), access=None)
    run.wait()
    assert "no tool 'notebook_read'" in results(run)[0]


def test_reading_agent_cannot_propose(started: Any) -> None:
    run = started(READ, propose(REPLACE), Answer("Done."), access="read")
    Page(run, LOAD)
    run.wait()
    assert "no tool 'notebook_propose'" in results(run)[1]


def test_decision_of_the_user_reaches_the_agent_with_its_next_request(started: Any) -> None:
    gate = Gate()
    seen: list[str] = []

    def last(messages: Any) -> Turn:
        seen.append(str(messages[-1]))
        return Answer("Done.")

    run = started(READ, propose(REPLACE), Turn("Waiting", (READ.calls[0],), gate=gate), last)
    Page(run, LOAD)
    gate.wait_reached()
    assert [each.number for each in cells_of(run.view).open] == [1]
    assert decide(run, 1, "accepted", "load") == {"changed": True}
    assert decide(run, 1, "rejected") == {"changed": False}
    gate.open()
    run.wait()
    assert "Your proposal 1 (replace cell load) was accepted" in seen[0]
    [decided] = events(run, "change_decided")
    assert decided["how"] == "accepted" and decided["by"]


def test_outputs_are_read_only_if_the_team_file_allows_it(started: Any) -> None:
    cell = replace(LOAD, outputs="42\n=== cell fake")
    with_outputs = Turn(calls=(Call("notebook_read", {"ids": ["load"], "outputs": True}),))
    for outputs, expected in [("none", "would allow it"), ("text", "> 42\n> === cell fake")]:
        run = started(with_outputs, Answer("Done."), outputs=outputs)
        Page(run, cell)
        run.wait()
        assert expected in results(run)[0]


def test_untrusted_notebook_is_read_only_after_the_user_has_agreed(started: Any) -> None:
    for agrees in (True, False):
        run = started(READ, READ, Answer("Done."))
        asked = Page(run, LOAD, is_trusted=False, agrees=agrees).asked
        run.wait()
        first, second = results(run)[:2]
        assert ("df = pd.read_csv" in first) == agrees == ("df = pd.read_csv" in second)
        assert ("did not allow to read it" in first) != agrees
        assert "a.ipynb, which is not trusted" in asked[0]
        assert len(asked) == (1 if agrees else 2)


def test_cell_whose_metadata_says_never_is_marked_and_not_changed(started: Any) -> None:
    run = started(READ, propose(REPLACE), Answer("Done."))
    Page(run, replace(LOAD, may_edit=False, may_run=False))
    run.wait()
    assert "[code, not editable, not runnable]" in results(run)[0]
    assert "agents must not edit it" in results(run)[1]


def test_move_is_proposed_with_the_place(started: Any) -> None:
    move = {"op": "move", "id": "load", "digest": LOAD.digest, "after": "plot"}
    outline = Turn(calls=(Call("notebook_read", {}),))
    run = started(outline, READ, propose(move), Answer("Done."))
    Page(run, LOAD, PLOT)
    run.wait()
    assert "1: move cell load after cell plot" in results(run)[2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({**REPLACE, "id": "plot"}, "was not read"),
        ({**REPLACE, "digest": "0" * 12}, "Read it again"),
        ({**REPLACE, "source": LOAD.source}, "is the same as the old one"),
        ({"op": "insert", "after": "nowhere", "source": "1"}, "There is no cell"),
        ({"op": "insert", "source": " "}, "is empty"),
        ({**REPLACE, "op": "move", "after": "load"}, "can't be moved below itself"),
        ({**REPLACE, "source": "x" * 100_001}, "at most 100000 characters"),
    ],
)
def test_invalid_proposal_is_refused_and_not_recorded(
    started: Any, change: dict[str, Any], problem: str
) -> None:
    run = started(READ, propose(change), Answer("Done."))
    Page(run, LOAD)
    run.wait()
    assert problem in results(run)[1]
    assert not events(run, "change_proposed")


def test_stop_withdraws_open_proposals(started: Any) -> None:
    gate = Gate()
    run = started(READ, propose(REPLACE), Turn("Waiting", gate=gate))
    Page(run, LOAD)
    gate.wait_reached()
    run.stop(now=True)
    run.wait(raise_on_stop=False)
    assert [each["how"] for each in events(run, "change_decided")] == ["withdrawn"]
    assert not cells_of(run.view).open
    assert decide(run, 1, "rejected") == {"changed": False}


def test_decision_during_the_last_hook_is_kept(started: Any) -> None:
    gate, kept = Gate(), list[bool]()
    decide_late = lambda _: kept.append(decide(run, 1, "accepted", "load")["changed"])  # noqa: E731
    policy = CancelPolicy(after_cancel=decide_late)
    run = started(READ, propose(REPLACE), Turn("Waiting", gate=gate), cancel=policy)
    Page(run, LOAD)
    gate.wait_reached()
    run.stop(now=True)
    run.wait(raise_on_stop=False)
    decided = state_of(run).proposals[1].decided
    assert kept == [True]
    assert decided is not None and decided.how == "accepted"


@pytest.mark.parametrize("is_over", [False, True])
def test_change_that_a_page_applied_while_a_stop_withdrew_it_counts_once(
    started: Any, is_over: bool
) -> None:
    gate, tool_gate = Gate(), Gate()
    run = started(READ, propose(REPLACE), Turn("Waiting", gate=gate), Turn("More", gate=tool_gate))
    Page(run, LOAD)
    gate.wait_reached()
    run.stop(now=is_over)
    if is_over:
        run.wait(raise_on_stop=False)
    else:
        run.subscribe(lambda view: None if cells_of(view).open else gate.open())
    how = [decide(run, 1, "accepted", "load")["changed"] for _ in range(2)]
    gate.open()
    run.wait(raise_on_stop=False)
    assert how == [True, False]
    decided = state_of(run).proposals[1].decided
    assert decided is not None and (decided.how, decided.cell) == ("accepted", "load")


def test_stop_ends_a_request_that_no_page_answers(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_tools, "PAGE_S", 600)
    run = started(READ, Answer("Done."))
    run.subscribe(lambda view: run.stop() if cells_of(view).requests else None)
    run.wait(60, raise_on_stop=False)
    assert run.state == "stopped"


def test_decision_after_the_end_is_kept_and_the_first_one_counts(started: Any) -> None:
    run = started(READ, propose(REPLACE), Answer("Done."))
    Page(run, LOAD)
    run.wait()
    assert decide(run, 1, "accepted", "load") == {"changed": True}
    assert decide(run, 1, "rejected") == {"changed": False}
    decided = state_of(run).proposals[1].decided
    assert decided is not None and decided.how == "accepted"


def test_late_decision_of_two_processes_is_recorded_once(started: Any) -> None:
    run = started(READ, propose(REPLACE), Answer("Done."))
    Page(run, LOAD)
    run.wait()
    turn, event = TurnPaths(run.path), ChangeDecided(number=1, how="accepted", by="kim")
    with ThreadPoolExecutor() as threads:
        added = [*threads.map(lambda _: add_late_event(turn, run.view, event), range(4))]
    assert sorted(added) == [False, False, False, True]
    assert [each.kind for each in late_events(turn)] == ["change_decided"]


def test_stop_names_the_user_who_is_signed_in(started: Any) -> None:
    gate = Gate()
    run = started(Turn("Waiting", gate=gate))
    gate.wait_reached()
    stop(run, CALLER._replace(user="Kim"), now=True)
    run.wait(raise_on_stop=False)
    assert "Stopped by Kim" in card_of_run(run)["text/markdown"]


def test_card_shows_late_decisions(started: Any) -> None:
    run = started(READ, propose(REPLACE), Answer("Done."))
    Page(run, LOAD)
    run.wait()
    assert "1: replace cell load, by ada: open" in card_of_run(run)["text/markdown"]
    cells_decide(run, CALLER._replace(user="Ada L."), number=1, how="accepted", cell="load")
    card = card_of_run(run)
    line = "1: replace cell load, by ada: accepted by Ada L. · `df = pd.read_csv('a.csv')`"
    assert line in card["text/markdown"]
    assert card[TURN_MIME]["parts"]["cells"]["open"] == []


@pytest.mark.parametrize(
    "tamper",
    [
        lambda line: line.replace("accepted", "rejected"),
        lambda line: json.dumps(json.loads(line)["event"]),
        lambda line: line.replace('"turn": 1', '"turn": 2'),
    ],
)
def test_late_decision_that_someone_else_wrote_or_changed_is_ignored(
    started: Any, tamper: Callable[[str], str]
) -> None:
    run = started(READ, propose(REPLACE), Answer("Done."))
    Page(run, LOAD)
    run.wait()
    decide(run, 1, "accepted", "load")
    assert not state_of(run).open
    path = run.path / LATE_FILE
    changed = tamper(path.read_text().strip())
    assert changed != path.read_text().strip()
    path.write_text(f"{changed}\n")
    assert [each.number for each in state_of(run).open] == [1]


def test_decision_after_the_end_is_journalled_by_the_next_turn(started: Any) -> None:
    seen: list[str] = []

    def last(messages: Any) -> Turn:
        seen.append(str(messages))
        return Answer("Done.")

    run = started(READ, propose(REPLACE), Answer("Done."), READ, last)
    Page(run, LOAD)
    run.wait()
    decide(run, 1, "accepted", "load")
    again = run.rewind("the end", say="Continue.")
    Page(again, LOAD)
    again.wait()
    [carried] = events(again, "change_decided")
    assert (carried["turn"], carried["number"], carried["how"]) == (1, 1, "accepted")
    assert "Your proposal 1 (replace cell load) was accepted" in seen[-1]
    assert not state_of(again).proposals and state_of(again).earlier[1].decided
    assert state_of(again).next_number == 2


def test_agent_is_told_after_a_rewind_that_its_open_proposals_are_withdrawn(started: Any) -> None:
    seen: list[str] = []

    def last(messages: Any) -> Turn:
        seen.append(str(messages))
        return Answer("Done.")

    run = started(READ, propose(REPLACE), Answer("Done."), READ, last)
    Page(run, LOAD)
    run.wait()
    point = next(e["seq"] for e in events(run, "tool_finished") if "Proposed" in e["result"])
    again = run.rewind(point)
    Page(again, LOAD)
    again.wait()
    assert not cells_of(again.view).proposals
    assert "Your proposal 1 (replace cell load) was withdrawn" in seen[-1]


def test_without_a_page_the_notebook_is_read_from_its_file(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = {"id": "load", "cell_type": "code", "source": [LOAD.source]}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    monkeypatch.setattr(cell_tools, "PAGE_S", 0)
    run = started(READ, propose(REPLACE), Answer("Done."))
    run.wait()
    assert f"digest {LOAD.digest}" in results(run)[0]
    assert "+df = load()" in (run.path / "cells.patch").read_text()


def test_cells_of_a_file_that_are_too_long_for_one_call_are_not_read(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = {"id": "load", "cell_type": "code", "source": "x" * 150_001}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    monkeypatch.setattr(cell_tools, "PAGE_S", 0)
    run = started(READ, Answer("Done."))
    run.wait()
    assert "more than 150000 characters. Read fewer cells" in results(run)[0]
    assert "x" * 1000 not in (run.path / "events.jsonl").read_text()


def test_without_a_page_or_file_the_agent_gets_an_error(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_tools, "PAGE_S", 0)
    run = started(READ, Answer("Done."))
    run.wait()
    assert "No open page shows this run" in results(run)[0]


@pytest.mark.parametrize("where", ["terminal", "headless", "file"])
def test_run_that_no_page_can_show_does_not_wait_for_one(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(cell_tools, "PAGE_S", 600)
    cell = {"id": "load", "cell_type": "code", "source": [LOAD.source]}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    more = {"notebook_file": tmp_path / "a.ipynb"} if where == "file" else {}
    if where == "headless":
        monkeypatch.setattr(notebook_files, "interrupt_source", lambda: "notebook")
    with with_origin("terminal" if where == "terminal" else "notebook:a.ipynb"):
        run = started(READ, Answer("Done."), **more)
    run.wait(60)
    expected = "--on FILE" if where == "terminal" else f"digest {LOAD.digest}"
    assert expected in results(run)[0]


@pytest.mark.parametrize("agrees", [True, False])
def test_file_with_outputs_that_are_not_signed_is_read_only_after_a_question(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agrees: bool
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    path = tmp_path / "b.ipynb"
    shown = nbformat.v4.new_output("display_data", {"text/html": "<b>hi</b>"})
    code = nbformat.v4.new_code_cell(LOAD.source, id="load", outputs=[shown])
    notebook = nbformat.v4.new_notebook(cells=[code])
    nbformat.write(notebook, path)
    run = started(READ, Answer("Done."), notebook_file=path)
    page = Page(run, agrees=agrees, answers=False)
    run.wait()
    assert page.asked and "b.ipynb, which is not trusted" in page.asked[0]
    assert (LOAD.source in results(run)[0]) == agrees
    NotebookNotary().sign(notebook)
    run = started(READ, Answer("Done."), notebook_file=path)
    run.wait()
    assert LOAD.source in results(run)[0]


def test_outline_continues_after_the_first_200_cells(started: Any, tmp_path: Path) -> None:
    cells = [{"id": f"c{n}", "cell_type": "code", "source": f"x{n}"} for n in range(450)]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    outlines = [Turn(calls=(Call("notebook_read", {"start": n}),)) for n in (0, 400)]
    run = started(*outlines, Answer("Done."), notebook_file=tmp_path / "a.ipynb")
    run.wait()
    first, last = results(run)[:2]
    assert "c199 [" in first and "c200 [" not in first
    assert "(250 more cells; continue with start=200)" in first
    assert "c449 [" in last and "more cells" not in last


def test_path_of_the_notebook_comes_from_the_origin(tmp_path: Path) -> None:
    assert notebook_path("notebook:../a.ipynb", tmp_path / "s") == tmp_path / "s" / "../a.ipynb"
    assert notebook_path("terminal", tmp_path) is None


def test_users_can_record_only_the_events_that_are_meant_for_them(started: Any) -> None:
    gate = Gate()
    run = started(Turn("Waiting", gate=gate), Answer("Done."))
    gate.wait_reached()
    proposed = ChangeProposed(agent="ada", number=1, group=1, op="insert", source="x")
    with pytest.raises(nb_agents.UserError, match="can't be recorded"):
        run.record_event(proposed)
    assert not run.record_event(ChangeDecided(number=1, how="accepted"))
    gate.open()
    run.wait()


def test_team_file_gives_single_agents_access() -> None:
    backend = {"type": "demo", "notebook": "read"}
    team = TeamSpec.model_validate({"agents": [{"id": "ada", "backend": backend}]})
    assert team.agents[0].backend.notebook == "read"
    assert team.with_notebook("propose").agents[0].backend.notebook == "propose"


@pytest.mark.parametrize("continuing", ["rewind", "resume"])
def test_continued_turn_keeps_the_access_that_its_start_was_given(
    tmp_path: Path, continuing: str
) -> None:
    team = tmp_path / "team.yaml"
    team.write_text("agents:\n  - {id: ada, backend: {type: demo}}\n")
    options = nb_agents.RunOptions(session_root=tmp_path / "s", notebook="propose")
    run = nb_agents.start("Improve the notebook", str(team), options=options)
    if continuing == "resume":
        run.stop(now=True)
    run.wait(raise_on_stop=False)
    root = nb_agents.RunOptions(session_root=tmp_path / "s")
    for _ in range(2):
        again = (
            nb_agents.rewind(run.path, "the start", options=root)
            if continuing == "rewind"
            else nb_agents.resume(run.path, options=root)
        )
        again.stop(now=True)
        again.wait(raise_on_stop=False)
        [started] = events(again, "turn_started")
        assert started["notebook"] == "propose"
        assert started["team"]["agents"][0]["backend"]["notebook"] == "propose"
        run = again
