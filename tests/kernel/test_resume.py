"""`%agents resume` in live kernels: the same one, a restarted one, and after kill -9."""

from __future__ import annotations

from collections.abc import Callable

from tests.kernel.notebook import AGENTS, HELD, TURN_MIME, WIDGET_MIME, Notebook, Turn
from tests.model_server import ModelServer, Request

Open = Callable[..., Notebook]
AGAIN = "Runs again: 3 model calls interrupted or failed (ada, Ben, cleo"


def bodies(requests: list[Request]) -> list[str]:
    return sorted(f"{r.model}: {r.messages}" for r in requests)


def resume(notebook: Notebook, cell: str = "%agents resume lab") -> Turn:
    """Resume in a cell that returns, and wait for the turn's end.

    The server answers no agent before the calls of all have arrived, so they are the first calls.
    """
    notebook.server.hold(after=0)
    turn = notebook.turn_of(notebook.kernel.send(cell))
    assert notebook.kernel.result(turn.cell).status == "ok"
    notebook.server.wait_open(len(AGENTS))
    notebook.server.release()
    turn.wait_over()
    return turn


def assert_whole(notebook: Notebook, old: Turn, turn: Turn, asked: list[Request]) -> None:
    """Assert that the interrupted calls were sent again unchanged, and that the team finished."""
    assert (old.name, turn.name) == ("lab/1", "lab/2")
    assert turn.metadata["run_status"] == "completed"
    assert turn.answer == "The team's final answer."
    again = notebook.server.requests[len(asked) : len(asked) + 3]
    assert bodies(again) == bodies(asked)
    notice, _ = notebook.panel(turn).state["state"]["notices"]
    assert notice.startswith("Resumes turn 1: 0 answers, 0 votes and 0 finished")
    assert AGAIN in notice
    assert "status" in old.metadata  # the old turn is unchanged


def test_resume_after_a_stop_in_the_same_kernel(open_notebook: Open, server: ModelServer) -> None:
    notebook = open_notebook()
    old = notebook.start_held("--session lab")
    notebook.kernel.run("%agents stop --now")
    old.wait_over()
    server.wait_closed()
    asked = server.requests
    told = notebook.text(notebook.kernel.run("%agents resume lab --preview"))
    assert AGAIN in told
    assert len(server.requests) == len(asked)
    [card] = notebook.kernel.run("%agents show lab").displays
    again = "runs again: 3 model calls interrupted or failed (ada, Ben, cleo)"
    cell = f"# same task, from here; {again}\n%agents resume lab"
    assert cell in card.data["text/html"]
    turn = resume(notebook, cell)
    assert_whole(notebook, old, turn, asked)
    shown = notebook.kernel.result(turn.cell).displays
    assert any(WIDGET_MIME in d.data for d in shown)


def test_resume_after_a_restart(open_notebook: Open, server: ModelServer) -> None:
    notebook = open_notebook()
    old = notebook.start_held("--session lab")
    notebook.kernel.restart()
    server.wait_closed()
    asked = server.requests
    notebook.use(notebook.kernel)
    assert notebook.kernel.run("%load_ext nb_agents").status == "ok"
    assert_whole(notebook, old, resume(notebook), asked)


def test_resume_after_a_kill_in_another_notebook(open_notebook: Open, server: ModelServer) -> None:
    first = open_notebook()
    old = first.start_held("--session lab")
    first.kernel.kill()
    server.wait_closed()
    asked = server.requests
    other = open_notebook()
    [card] = other.kernel.run("%agents show lab").displays
    assert card.data[TURN_MIME]["state"] == "stopped"
    assert HELD in card.data["text/plain"]
    assert (
        "runs again: 3 model calls interrupted or failed (ada, Ben, cleo)"
        in card.data["text/plain"]
    )
    assert_whole(other, old, resume(other), asked)
