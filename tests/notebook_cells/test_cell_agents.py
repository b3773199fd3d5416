"""Agents of all kinds get the notebook tools: ACP agents, functions, steps, and called agents."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.notebook_cells import Cell, CellsRead, TeamSpec, cells_of

ACP_AGENT = Path(__file__).parents[1] / "acp" / "agent.py"
LOAD = Cell(id="load", type="code", source="df = load()", lines=1)
INSERT = {"changes": [{"op": "insert", "source": "x = 1"}], "why": "It is new"}
READ = Turn(calls=(Call("notebook_read", {"ids": ["load"]}),))
PROPOSE = Turn(calls=(Call("notebook_propose", INSERT),))


def answer_reads(run: nb_agents.Run) -> nb_agents.Run:
    """Answer requests to read cells, as a page does, until the run ends."""
    answered = set[int]()

    def on_view(view: Any) -> None:
        for number in cells_of(view).requests:
            if number not in answered:
                answered.add(number)
                read = CellsRead(number=number, notebook="a.ipynb", cells=(LOAD,), count=1)
                run.record_event(read)

    run.subscribe(on_view)
    on_view(run.view)
    run.wait()
    return run


def results(run: nb_agents.Run) -> list[tuple[str, str]]:
    """Return the agent and the result of each call of a notebook tool."""
    lines = (run.path / "events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]
    ended = [each for each in found if each["kind"] == "tool_finished"]
    return [(e["agent"], e["result"]) for e in ended if e["tool"].startswith("notebook_")]


Start = Callable[..., nb_agents.Run]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def started(*agents: Any, callable_agents: Any = (), **more: Any) -> nb_agents.Run:
        team = TeamSpec.model_validate({"agents": agents, "callable_agents": callable_agents})
        options = nb_agents.RunOptions(session_root=tmp_path)
        return answer_reads(nb_agents.start(config=team, options=options, **more))

    return started


def scripted(id: str, *turns: Any, **keys: Any) -> dict[str, Any]:
    return {"id": id, "backend": {"type": "python", "instance": ScriptedModel(*turns), **keys}}


def test_acp_agent_reads_and_proposes_with_the_team_tools(start: Start) -> None:
    steps = ['mcp notebook_read {"ids": ["load"]}', f"mcp notebook_propose {json.dumps(INSERT)}"]
    command = [sys.executable, str(ACP_AGENT), *steps, "answer Done"]
    backend = {"type": "acp", "command": command, "notebook": "propose"}
    run = start({"id": "ada", "backend": backend}, task="Improve it")
    lines = (run.path.parent / "programs" / "ada" / "asked.jsonl").read_text().splitlines()
    read, proposed, *_ = [text for kind, text in map(json.loads, lines) if kind == "result"]
    assert "df = load()" in read and proposed.startswith("Proposed.")
    [change] = cells_of(run.view).open
    assert (change.agent, change.source) == ("ada", "x = 1")


def test_function_agent_reads_with_the_team_tools(start: Start) -> None:
    async def member(task: str, ctx: Any) -> str:
        return str(await ctx.call_tool("notebook_read", {"ids": ["load"]}))

    backend = {"type": "python", "instance": member, "notebook": "read"}
    run = start({"id": "ada", "backend": backend}, task="Read it")
    assert "df = load()" in run.view.answer


def test_called_agent_reads_proposes_and_learns_of_decisions(start: Start) -> None:
    asks = Turn(calls=(Call("call_agent", {"name": "critic", "input": "Look"}),))
    critic = scripted("critic", READ, PROPOSE, Turn("Looked."), notebook="propose")
    run = start(
        scripted("ada", asks, Answer("Done."), can_call=["critic"]),
        callable_agents=[critic],
        task="Ask the critic",
    )
    assert [agent for agent, _ in results(run)] == ["ada/critic#1"] * 2
    [change] = cells_of(run.view).open
    assert change.agent == "ada/critic#1"


def test_step_of_a_recipe_reads_and_proposes(start: Start, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\n"
        "steps: [{id: one, agent: ada, prompt: Look., output: said}]\n"
    )
    run = start(scripted("ada", READ, PROPOSE, Turn("Looked."), notebook="propose"), recipe=recipe)
    assert [agent for agent, _ in results(run)] == ["one"] * 2
    assert "df = load()" in results(run)[0][1]
    assert [each.agent for each in cells_of(run.view).open] == ["one"]


def test_agent_without_the_key_has_no_notebook_tools(start: Start) -> None:
    asks = Turn(calls=(Call("call_agent", {"name": "critic", "input": "Look"}),))
    run = start(
        scripted("ada", READ, asks, Answer("Done."), can_call=["critic"], notebook="read"),
        callable_agents=[scripted("critic", READ, Turn("Looked."))],
        task="Ask the critic",
    )
    assert [("no tool 'notebook_read'" in text) for _, text in results(run)] == [False, True]
