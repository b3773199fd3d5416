"""Tools in a live kernel: notebook functions, stops, and calls that wait for approval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import canaries
from tests.kernel.notebook import Notebook, Turn
from tests.kernel.test_notebook import wait_frozen
from tests.kit.cards import TURN_MIME
from tests.model_server import Reply, Request, ToolCall, wait_until


def use_team(notebook: Notebook, **keys: object) -> None:
    """Make the notebook's cells start one agent with these keys."""
    backend = {
        "type": "chatcompletion",
        "base_url": notebook.server.url,
        "api_key": canaries.KEY,
        "model": "m",
        **keys,
    }
    notebook.team = notebook.place / "one.yaml"
    notebook.team.write_text(json.dumps({"agents": [{"id": "ada", "backend": backend}]}))


def calling(notebook: Notebook, tool: str, /, **args: object) -> None:
    """Let the model call a tool and then answer with the result."""

    def reply(request: Request) -> Reply:
        if "THE RESULT" in request.prompt or "Error:" in request.prompt:
            return Reply(tool_calls=(ToolCall("new_answer", {"content": "I have read it."}),))
        return Reply(tool_calls=(ToolCall(tool, dict(args)),))

    notebook.server.default = reply


def tool_results(turn: Turn) -> list[str]:
    return [event["result"] for event in turn.events("tool_finished")]


def test_a_notebook_function_reads_the_notebooks_variables(notebook: Notebook) -> None:
    use_team(notebook)
    calling(notebook, "look_up", name="x")
    made = notebook.kernel.run(
        "import nb_agents\n"
        "prices = {'x': 41}\n"
        "@nb_agents.tool\n"
        "def look_up(name: str) -> str:\n"
        "    '''Look a price up.'''\n"
        "    return f'THE RESULT is {prices[name]}'"
    )
    assert made.status == "ok", made
    notebook.kernel.run("prices['x'] += 1")
    turn = notebook.start("--tools look_up")
    turn.wait_over()
    assert tool_results(turn) == ["THE RESULT is 42"]
    assert turn.metadata["run_status"] == "completed"
    [first, *_] = notebook.server.requests
    assert "look_up" in first.tool_names


def test_missing_function_is_reported_before_the_start(notebook: Notebook) -> None:
    use_team(notebook)
    result = notebook.kernel.run(notebook.magic("--tools lok_up"))
    assert "No function 'lok_up'" in notebook.text(result) + str(result.error)
    assert notebook.server.requests == []


def test_stop_reaches_a_function_at_its_checkpoint(notebook: Notebook) -> None:
    use_team(notebook)
    calling(notebook, "crunch")
    mark = notebook.place / "mark"
    notebook.kernel.run(
        "import nb_agents, pathlib\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        "def crunch() -> str:\n"
        "    '''Crunch.'''\n"
        "    try:\n"
        "        while True:\n"
        "            mark.write_text('crunching')\n"
        "            nb_agents.checkpoint()\n"
        "    finally:\n"
        "        mark.write_text('tidied up')"
    )
    turn = notebook.start("--tools crunch")
    wait_until(lambda: says(mark) == "crunching", 60, "the function", lambda: says(mark))
    notebook.press(turn)
    turn.wait_over()
    wait_until(lambda: says(mark) == "tidied up", 60, "its end", lambda: says(mark))
    assert turn.metadata["run_status"] == "cancelled"
    assert [event["outcome"] for event in turn.events("tool_finished")] == ["cut"]


def says(mark: Path) -> str:
    return mark.read_text() if mark.exists() else ""


def test_magic_approves_a_waiting_call(notebook: Notebook) -> None:
    policy = [{"match": "run_command", "action": "ask"}]
    use_team(notebook, enable_mcp_command_line=True, tool_policy=policy)
    calling(notebook, "run_command", command="echo THE RESULT; touch made")
    turn = notebook.start()
    wait_until(lambda: turn.events("approval_asked"), 60, "the question")
    made = turn.path / "workspaces" / "ada" / "made"
    assert not made.exists()
    notebook.kernel.wait_until(
        lambda: notebook.panel(turn).state["state"]["gates"], what="the gate on the panel"
    )
    [gate] = notebook.panel(turn).state["state"]["gates"]
    assert "ada wants to call run_command: echo THE RESULT" in gate["prompt"]
    said = notebook.kernel.run(f"%agents approve {turn.run}")
    assert said.status == "ok", said
    turn.wait_over()
    assert made.exists()
    assert "THE RESULT" in tool_results(turn)[0]


def test_agents_button_stops_only_that_agent(notebook: Notebook) -> None:
    turn = notebook.start_held()
    content = {"run": turn.run, "agent": "Ben", "immediate": True}
    notebook.kernel.send_custom(notebook.panel(turn).comm_id, {"type": "stop", **content})
    turn.wait_stop("immediate", "Ben")
    reply = notebook.kernel.control("nb_agents_stop_request", content)
    # Its agent may have ended meanwhile.
    told = reply["facts"]
    assert not told["changed"] and told["status"] in ("stopping-now", "finished")
    notebook.server.release()
    turn.wait_over()
    assert turn.metadata["run_status"] == "completed"
    assert [e["agent"] for e in turn.events("agent_ended")] == ["Ben"]


@pytest.mark.parametrize("end", ["complete", "stopped"])
def test_turn_with_a_called_agent_shows_its_card(notebook: Notebook, end: str) -> None:
    use_team(notebook, can_call="critic")
    team = json.loads(notebook.team.read_text())
    critic = team["agents"][0]["backend"] | {"model": "c", "can_call": []}
    team["callable_agents"] = [{"id": "critic", "backend": critic}]
    notebook.team.write_text(json.dumps(team))
    hangs = 2 if end == "stopped" else None
    notebook.server.script("c", Reply(text="THE RESULT is too long.", hang_after=hangs))
    calling(notebook, "call_agent", name="critic", input="What is wrong?")
    turn = notebook.start()
    if end == "stopped":
        wait_until(lambda: turn.streamed().get("ada/critic#1"), 60, "words of the critic")
        notebook.press(turn, now=True)
    card = wait_frozen(notebook, turn)
    assert card.data[TURN_MIME]["state"] == end
    assert "ada/critic#1" in card.data["text/html"]
