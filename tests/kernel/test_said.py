"""A text from the panel reaches the agents of a live kernel on both ways, also a busy one."""

from __future__ import annotations

from tests.kernel.notebook import Notebook, Turn
from tests.kernel.test_stops import SLEEP
from tests.model_server import wait_until

SAY_REQUEST = "nb_agents_say_request"
TEXT = "And in British English, please."


def say(notebook: Notebook, turn: Turn, number: int = 1) -> None:
    """Send a text from the panel's box; the message goes by the widget's comm alone."""
    content = {"type": "say", "run": turn.run, "id": f"{turn.run}-{number}", "text": TEXT}
    notebook.kernel.send_custom(notebook.panel(turn).comm_id, content)


def say_on_control(notebook: Notebook, turn: Turn, number: int = 1) -> dict[str, object]:
    content = {"run": turn.run, "id": f"{turn.run}-{number}", "text": TEXT}
    return notebook.kernel.control(SAY_REQUEST, content)


def assert_heard(notebook: Notebook, turn: Turn, times: int = 1) -> None:
    """Let the held models go on; assert that every agent then reads the text."""
    assert len(turn.events("said")) == times
    notebook.server.release()
    turn.wait_over()
    requests = notebook.server.requests
    assert [r.prompt.count(TEXT) for r in requests[:3]] == [0] * 3
    later = {r.model: r.prompt.count(TEXT) for r in requests[3:]}
    assert later == dict.fromkeys(("m1", "m2", "m3"), times)
    assert turn.metadata["said"] == [TEXT] * times
    assert turn.metadata["run_status"] == "completed"


def test_on_the_control_channel_while_a_cell_blocks(notebook: Notebook) -> None:
    turn = notebook.start_held()
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    assert say_on_control(notebook, turn)["refusal"] == ""
    assert notebook.kernel.outputs_of(blocked).is_busy
    assert_heard(notebook, turn)
    assert notebook.kernel.interrupt_cell(blocked)


def test_by_the_widget_message_while_a_cell_blocks(notebook: Notebook) -> None:
    turn = notebook.start_held()
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    say(notebook, turn)
    wait_until(lambda: turn.events("said"), 60, "the text on disk")
    assert notebook.kernel.outputs_of(blocked).is_busy
    assert_heard(notebook, turn)
    assert notebook.kernel.interrupt_cell(blocked)


def test_both_messages_are_one_text_and_the_next_is_another(notebook: Notebook) -> None:
    turn = notebook.start_held()
    for number in (1, 2):
        say(notebook, turn, number)
        said = lambda: len(turn.events("said"))  # noqa: E731
        wait_until(lambda: said() == number, 60, "the text on disk", said)  # noqa: B023
        assert say_on_control(notebook, turn, number)["refusal"] == ""
    assert_heard(notebook, turn, times=2)


def test_what_can_not_be_said_is_refused_in_words(notebook: Notebook) -> None:
    ask = lambda content: notebook.kernel.control(SAY_REQUEST, content)["refusal"]  # noqa: E731
    assert "No run named 'nobody'" in ask({"run": "nobody", "id": "1", "text": TEXT})
    assert ask({"run": "", "id": "1", "text": TEXT}) == "The message names no run."
    turn = notebook.start_held()
    assert "text: Field required" in ask({"run": turn.run, "id": "1"})
    assert "is empty" in ask({"run": turn.run, "id": "2", "text": " "})
    assert turn.events("said") == []


def test_by_the_handle_in_a_cell(notebook: Notebook) -> None:
    turn = notebook.start_held("--out run")
    assert notebook.kernel.run(f"run.say({TEXT!r})").status == "ok"
    assert_heard(notebook, turn)
    late = notebook.kernel.run("run.say('x')")
    assert late.error is not None and "is over" in late.error.evalue


def test_by_a_line_in_a_cell(notebook: Notebook) -> None:
    turn = notebook.start_held("--out run")
    said = notebook.kernel.run(f"%agents say {turn.run} {TEXT}")
    assert "read it with their next request" in notebook.text(said)
    assert_heard(notebook, turn)
    late = notebook.kernel.run(f"%agents say {turn.run} x")
    assert "is over" in notebook.text(late)
