"""A decision in the panel reaches a gate over both channels, even if the kernel is busy."""

from __future__ import annotations

import getpass

import pytest

from tests.kernel.notebook import Notebook, Turn
from tests.kernel.test_recipes import GATE, said_by_model, start, wait_asked, write
from tests.kernel.test_stops import SLEEP
from tests.model_server import wait_until

APPROVE_REQUEST = "nb_agents_approve_request"
DENY_REQUEST = "nb_agents_deny_request"
SAYS = "Name the store."


def content(turn: Turn) -> dict[str, object]:
    return {"run": turn.run, "gate": "draft", "message": SAYS, "id": f"{turn.run}-decision"}


def on_control(notebook: Notebook, turn: Turn) -> object:
    return notebook.kernel.control(APPROVE_REQUEST, content(turn))["refusal"]


def by_widget(notebook: Notebook, turn: Turn) -> None:
    message = {"type": "approve", **content(turn)}
    notebook.kernel.send_custom(notebook.panel(turn).comm_id, message)


@pytest.fixture
def turn(notebook: Notebook) -> Turn:
    """A recipe that waits at its gate."""
    notebook.server.default = said_by_model
    turn = start(notebook, write(notebook, GATE))
    wait_asked(turn)
    return turn


def assert_approved(notebook: Notebook, turn: Turn) -> None:
    turn.wait_over()
    [given] = turn.events("approval_given")
    assert (given["approved"], given["message"]) == (True, SAYS)
    assert given["by"] == getpass.getuser()
    assert turn.metadata["run_status"] == "completed"


@pytest.mark.parametrize("way", ["control", "widget"])
def test_decision_arrives_while_a_cell_blocks(notebook: Notebook, turn: Turn, way: str) -> None:
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    if way == "control":
        assert on_control(notebook, turn) == ""
    else:
        by_widget(notebook, turn)
    assert_approved(notebook, turn)
    assert notebook.kernel.outputs_of(blocked).is_busy
    assert notebook.kernel.interrupt_cell(blocked)


def test_duplicate_and_later_messages_do_not_change_a_decision(
    notebook: Notebook, turn: Turn
) -> None:
    by_widget(notebook, turn)
    wait_until(lambda: turn.events("approval_given"), 60, "the decision on disk")
    assert on_control(notebook, turn) == ""
    later = {**content(turn), "id": "another"}
    refusal = str(notebook.kernel.control(DENY_REQUEST, later)["refusal"])
    assert f"Run {turn.run} is not waiting" in refusal
    assert_approved(notebook, turn)


@pytest.mark.parametrize(
    "wrong, refusal",
    [
        ({"run": ""}, "The message does not specify a run."),
        ({"gate": 3}, "gate: Input should be a valid string"),
        ({"message": None}, "message: Input should be a valid string"),
        ({"approved": True}, "approved: Extra inputs are not permitted"),
    ],
)
def test_malformed_message_is_refused(
    notebook: Notebook, turn: Turn, wrong: dict[str, object], refusal: str
) -> None:
    reply = notebook.kernel.control(APPROVE_REQUEST, {**content(turn), **wrong})
    assert str(reply["refusal"]).startswith(refusal)
    assert turn.events("approval_given") == []
