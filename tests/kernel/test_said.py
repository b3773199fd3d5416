"""A message from the panel reaches the agents over both channels, even if the kernel is busy."""

from __future__ import annotations

from tests.kernel.notebook import Notebook, Turn
from tests.kernel.test_stops import SLEEP
from tests.model_server import wait_until

SAY_REQUEST = "nb_agents_say_request"
TEXT = "And in British English, please."


def say(notebook: Notebook, turn: Turn, number: int = 1) -> None:
    """Send a text from the panel's box, only by the widget's comm."""
    content = {"type": "say", "run": turn.run, "id": f"{turn.run}-{number}", "text": TEXT}
    notebook.kernel.send_custom(notebook.panel(turn).comm_id, content)


def say_on_control(notebook: Notebook, turn: Turn, number: int = 1) -> dict[str, object]:
    content = {"run": turn.run, "id": f"{turn.run}-{number}", "text": TEXT}
    return notebook.kernel.control(SAY_REQUEST, content)


def assert_heard(notebook: Notebook, turn: Turn, times: int = 1) -> None:
    """Release the held models; assert that every agent then reads the text."""
    assert len(turn.events("said")) == times
    notebook.server.release()
    turn.wait_over()
    requests = notebook.server.requests
    assert [r.prompt.count(TEXT) for r in requests[:3]] == [0] * 3
    later = {r.model: r.prompt.count(TEXT) for r in requests[3:]}
    assert later == dict.fromkeys(("m1", "m2", "m3"), times)
    assert turn.metadata["said"] == [TEXT] * times
    assert turn.metadata["run_status"] == "completed"


def test_control_channel_while_a_cell_blocks(notebook: Notebook) -> None:
    turn = notebook.start_held()
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    assert say_on_control(notebook, turn)["refusal"] == ""
    assert notebook.kernel.outputs_of(blocked).is_busy
    assert_heard(notebook, turn)
    assert notebook.kernel.interrupt_cell(blocked)


def test_widget_message_while_a_cell_blocks(notebook: Notebook) -> None:
    turn = notebook.start_held()
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    say(notebook, turn)
    wait_until(lambda: turn.events("said"), 60, "the text on disk")
    assert notebook.kernel.outputs_of(blocked).is_busy
    assert_heard(notebook, turn)
    assert notebook.kernel.interrupt_cell(blocked)


def test_duplicate_messages_count_as_one_text(notebook: Notebook) -> None:
    turn = notebook.start_held()
    for number in (1, 2):
        say(notebook, turn, number)
        said = lambda: len(turn.events("said"))  # noqa: E731
        wait_until(lambda: said() == number, 60, "the text on disk", said)  # noqa: B023
        assert say_on_control(notebook, turn, number)["refusal"] == ""
    assert_heard(notebook, turn, times=2)


def test_invalid_text_is_refused_with_a_reason(notebook: Notebook) -> None:
    ask = lambda content: notebook.kernel.control(SAY_REQUEST, content)["refusal"]  # noqa: E731
    assert "No run named 'nobody'" in ask({"run": "nobody", "id": "1", "text": TEXT})
    assert ask({"run": "", "id": "1", "text": TEXT}) == "The message does not specify a run."
    turn = notebook.start_held()
    assert "text: Field required" in ask({"run": turn.run, "id": "1"})
    assert "is empty" in ask({"run": turn.run, "id": "2", "text": " "})
    assert turn.events("said") == []


def test_run_handle_in_a_cell(notebook: Notebook) -> None:
    turn = notebook.start_held("--out run")
    assert notebook.kernel.run(f"run.say({TEXT!r})").status == "ok"
    assert_heard(notebook, turn)
    late = notebook.kernel.run("run.say('x')")
    assert late.error is not None and "is over" in late.error.evalue


def test_line_magic_in_a_cell(notebook: Notebook) -> None:
    turn = notebook.start_held("--out run")
    said = notebook.kernel.run(f"%agents say {turn.run} {TEXT}")
    assert "The agents receive it with their next request" in notebook.text(said)
    assert_heard(notebook, turn)
    late = notebook.kernel.run(f"%agents say {turn.run} x")
    assert "is over" in notebook.text(late)
