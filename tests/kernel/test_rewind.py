"""Rewind in a live kernel: with a message, and several forks as a sweep."""

from __future__ import annotations

from tests.kernel.notebook import AGENTS, Notebook, Turn
from tests.kit.sweeps import fold_notes
from tests.model_server import wait_until

WORD = "Think of the cost, too."


def _played(notebook: Notebook) -> Turn:
    """Run a turn in which each agent answers: the server waits for the calls of all."""
    notebook.server.hold(after=0)
    turn = notebook.start()
    notebook.server.wait_open(len(AGENTS))
    notebook.server.release()
    turn.wait_over()
    return turn


def _line(turn: Turn, options: str) -> str:
    return f'%agents rewind {turn.name} --to "Ben\'s 1st answer" {options}'


def _calls_after(turn: Turn, point: int) -> int:
    return sum(event["seq"] > point for event in turn.events("model_finished"))


def test_rewind_message_reaches_all_later_calls(notebook: Notebook) -> None:
    turn = _played(notebook)
    before = (turn.path / "events.jsonl").read_bytes()
    calls = len(notebook.server.requests)
    again = notebook.turn_of(notebook.kernel.send(_line(turn, f'--say "{WORD}"')))
    again.wait_over()
    assert again.path == turn.path.parent / "turn_2"
    [started] = again.events("turn_started")
    assert started["resumes"] == 1
    assert _calls_after(turn, started["point"]) < calls
    later = notebook.server.requests[calls:]
    assert later
    assert all(WORD in request.prompt for request in later)
    assert again.metadata["run_status"] == "completed"
    assert (turn.path / "events.jsonl").read_bytes() == before


def test_three_forks_are_a_sweep_and_a_rerun_costs_nothing(
    notebook: Notebook,
) -> None:
    turn = _played(notebook)
    calls = len(notebook.server.requests)
    assert notebook.kernel.run(_line(turn, f'--times 3 --say "{WORD}"')).status == "ok"

    def done() -> int:
        return sum(fold_notes(path.parent).completed for path in notebook.root.glob("*/rows.jsonl"))

    wait_until(lambda: done() == 3, 120, "three forks", done)
    rows = sorted(path.name for path in notebook.root.glob(f"{turn.session}_1_at_*/try_*"))
    assert rows == ["try_1", "try_2", "try_3"]
    later = notebook.server.requests[calls:]
    assert all(WORD in request.prompt for request in later)
    calls = len(notebook.server.requests)
    again = notebook.kernel.run(_line(turn, f'--times 3 --say "{WORD}"'))
    assert again.status == "ok"
    assert "3 of 3" in notebook.text(notebook.kernel.run("%agents sweeps"))
    assert len(notebook.server.requests) == calls
