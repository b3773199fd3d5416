"""Cells that are run again: complete turns are shown without calls, others are resumed."""

from __future__ import annotations

from collections.abc import Callable

from tests.kernel.notebook import TURN_MIME, WIDGET_MIME, Notebook, Turn
from tests.model_server import ModelServer

Open = Callable[..., Notebook]


def state_shown(notebook: Notebook, cell: str) -> str:
    """Run a cell that shows a turn from disk, and return its state."""
    result = notebook.kernel.run(cell)
    assert result.status == "ok", result
    [card] = result.displays
    assert WIDGET_MIME not in card.data
    state: str = card.data[TURN_MIME]["state"]
    return state


def test_rerunning_a_notebook_calls_no_model(open_notebook: Open, server: ModelServer) -> None:
    first = open_notebook()
    cells = [
        ("", "topic = 'caches'"),
        ("--once", "Compare three {{topic}}."),
        ("--once --out run", "Count to seven."),
        ("--once --continue", "And to eight."),
    ]

    def run_all(notebook: Notebook) -> list[Turn]:
        notebook.kernel.run(cells[0][1])
        turns = []
        for options, task in cells[1:]:
            turn = notebook.start(options, task)
            turn.wait_over()
            turns.append(turn)
        return turns

    turns = run_all(first)
    asked = len(server.requests)
    assert asked >= 9
    again = open_notebook()
    again.kernel.run(cells[0][1])
    for options, task in cells[1:]:
        assert state_shown(again, again.magic(options, task)) == "complete"
    assert again.kernel.eval("run.result") == "The team's final answer."
    assert len(server.requests) == asked
    assert len([*first.root.glob("*/turn_*")]) == len(turns)


def test_changed_cell_and_fresh_option_start_a_new_turn(
    notebook: Notebook,
) -> None:
    notebook.kernel.run("topic = 'caches'")
    task = "Compare three {{topic}}."
    turns = [notebook.start("--once", task)]
    turns[-1].wait_over()
    notebook.kernel.run("topic = 'queues'")
    turns.append(notebook.start("--once", task))
    turns[-1].wait_over()
    turns.append(notebook.start("--once --fresh", task))
    turns[-1].wait_over()
    assert len({turn.path for turn in turns}) == 3
    said = notebook.text(notebook.kernel.run(notebook.magic("--once", task)))
    assert "Nothing was run or paid for." in said
    assert turns[-1].name in said


def test_rerun_resumes_a_stopped_turn(notebook: Notebook, server: ModelServer) -> None:
    old = notebook.start_held("--once")
    notebook.kernel.run("%agents stop --now")
    old.wait_over()
    server.release()
    turn = notebook.start("--once")
    turn.wait_over()
    assert turn.path == old.path.with_name("turn_2")
    asked = len(server.requests)
    assert state_shown(notebook, notebook.magic("--once")) == "complete"
    assert len(server.requests) == asked


def test_rerun_shows_a_live_turn(notebook: Notebook, server: ModelServer) -> None:
    old = notebook.start_held("--once")
    asked = len(server.requests)
    [shown] = notebook.kernel.run(notebook.magic("--once")).displays
    assert WIDGET_MIME in shown.data
    assert len(server.requests) == asked
    assert len([*notebook.root.glob("*/turn_*")]) == 1
    server.release()
    old.wait_over()


def test_environment_variable_makes_once_the_default(
    notebook: Notebook, server: ModelServer
) -> None:
    notebook.kernel.run("%env NB_AGENTS_ONCE=1")
    try:
        notebook.start().wait_over()
        asked = len(server.requests)
        assert state_shown(notebook, notebook.magic()) == "complete"
        assert len(server.requests) == asked
    finally:
        notebook.kernel.run("import os; del os.environ['NB_AGENTS_ONCE']")


def test_resuming_cell_can_be_run_again(notebook: Notebook, server: ModelServer) -> None:
    old = notebook.start_held("--session lab")
    notebook.kernel.run("%agents stop --now")
    old.wait_over()
    server.release()
    turn = notebook.turn_of(notebook.kernel.send("%agents resume lab"))
    turn.wait_over()
    asked = len(server.requests)
    for _ in range(2):
        assert state_shown(notebook, "%agents resume lab") == "complete"
    assert len(server.requests) == asked
    assert len([*old.path.parent.glob("turn_*")]) == 2


def test_unfinished_result_raises(notebook: Notebook) -> None:
    turn = notebook.start_held("--out run")
    error = notebook.kernel.run("run.result").error
    assert error
    assert error.ename == "RunNotFinished"
    assert f"{turn.run} is still running" in error.evalue
    assert "run.wait()" in error.evalue


def test_run_all_twice_after_a_stop_makes_each_call_once(
    notebook: Notebook, server: ModelServer
) -> None:
    """The first cell of the notebook sets the option."""
    cells = ["%agents once on", notebook.magic("--session lab"), "%agents resume lab"]
    try:
        notebook.kernel.run(cells[0])
        old = notebook.start_held("--session lab")
        notebook.kernel.run("%agents stop --now")
        old.wait_over()
        server.release()
        notebook.turn_of(notebook.kernel.send(cells[2])).wait_over()
        asked = len(server.requests)
        for _ in range(2):
            results = [notebook.kernel.run(cell) for cell in cells]
            assert [result.status for result in results] == ["ok"] * 3
            assert [r.displays[0].data[TURN_MIME]["state"] for r in results[1:]] == ["complete"] * 2
        assert len(server.requests) == asked
        assert len([*old.path.parent.glob("turn_*")]) == 2
    finally:
        notebook.kernel.run("%agents once off")


def test_rerun_during_a_run_starts_another_and_names_the_first(
    notebook: Notebook, server: ModelServer
) -> None:
    server.hold(5)
    of_cell = {"cellId": "the-cell"}
    old = notebook.turn_of(notebook.kernel.send(notebook.magic(), metadata=of_cell))
    sent = notebook.kernel.send(notebook.magic(), metadata=of_cell)
    new = notebook.turn_of(sent)
    assert old.path != new.path
    [shown] = notebook.kernel.result(sent).displays
    assert shown.data[TURN_MIME]["earlier_run"].endswith(f"{old.path.parent.name}/{old.path.name}")
    other = notebook.kernel.send(notebook.magic(), metadata={"cellId": "another-cell"})
    notebook.turn_of(other)
    [shown] = notebook.kernel.result(other).displays
    assert "earlier_run" not in shown.data[TURN_MIME]
    for turn in (old, new):
        notebook.kernel.run(f"%agents stop --now {turn.run}")
    server.release()
