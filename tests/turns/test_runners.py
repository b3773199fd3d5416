"""An agent with a custom runner, wherever agents are used."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.agents.echo_runner import EchoRunner
from tests.kit.runs import Run
from tests.kit.sessions import read_journal
from tests.team_kit import finish

SAID = "one two three"


async def say(asked: str, before: str) -> AsyncIterator[str]:
    for word in SAID.removeprefix(before).split(" "):
        yield word if word == "three" else f"{word} "
        await anyio.lowlevel.checkpoint()


class Held:
    """Says "one ", and the rest when it is let go."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def __call__(self, asked: str, before: str) -> AsyncIterator[str]:
        yield "one "
        await self.gate.wait()
        async for word in say(asked, "one "):
            yield word


def agent(id: str, instance: Any) -> dict[str, Any]:
    return {"id": id, "backend": {"type": "python", "instance": instance}}


def echo(id: str, words: Callable[[str, str], AsyncIterator[str]] = say) -> dict[str, Any]:
    return agent(id, EchoRunner(words))


def team(*agents: dict[str, Any], callable_: tuple[dict[str, Any], ...] = ()) -> TeamSpec:
    return TeamSpec.model_validate({"agents": agents, "callable_agents": callable_})


def start(root: Path, spec: TeamSpec, **given: Any) -> Run:
    return nb_agents.start("t", spec, options=RunOptions(session_root=root), **given)


def events(run: Run, kind: type[Any]) -> list[Any]:
    return [e for e in read_journal(run.path / "events.jsonl").events if isinstance(e, kind)]


RECIPE = """
name: r
description: d
version: 1.0.0
steps: [{id: one, agent: echo, prompt: Say it., output: said}]
"""


def recipe(root: Path) -> Path:
    path = root / "r.yaml"
    path.write_text(RECIPE)
    return path


def caller(callable_: dict[str, Any]) -> TeamSpec:
    call = Call("call_agent", {"name": "echo", "input": "Say it."})
    model = agent("ada", ScriptedModel(Turn(calls=(call,)), Answer("done")))
    model["backend"]["can_call"] = ["echo"]
    return team(model, callable_=(callable_,))


PLACES = {
    "team": lambda root, agent: start(root, team(agent)),
    "step": lambda root, agent: nb_agents.start(
        config=team(agent), recipe=recipe(root), options=RunOptions(session_root=root)
    ),
    "sub-agent": lambda root, agent: start(root, caller(agent)),
}


def test_it_answers_votes_and_presents_in_a_team(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("A model's"), Vote("agent1"), Vote("agent1"), Answer("The end"))
    run = finish(start(tmp_path, team(echo("echo"), agent("ada", model))))
    assert run.status == "completed"
    assert run.view.agents["echo"].answers[0] == SAID
    votes = {e.agent: e.target for e in events(run, ev.VoteCast)}
    assert votes["echo"] in ("echo", "ada")
    assert run.result in (SAID, "The end")


def test_team_of_one_such_agent_answers(tmp_path: Path) -> None:
    run = finish(start(tmp_path, team(echo("echo"))))
    assert (run.status, run.result) == ("completed", SAID)
    streamed = "".join(e.text for e in events(run, ev.TextStreamed))
    assert streamed == SAID


def test_agent_runs_a_recipe_step(tmp_path: Path) -> None:
    options = RunOptions(session_root=tmp_path)
    run = finish(
        nb_agents.start(config=team(echo("echo")), recipe=recipe(tmp_path), options=options)
    )
    assert run.result == {"said": SAID}


def test_other_agents_call_it(tmp_path: Path) -> None:
    run = finish(start(tmp_path, caller(echo("echo"))))
    assert run.result == "done"
    [called] = events(run, ev.AgentCalled)
    assert SAID in [e for e in events(run, ev.ToolFinished) if e.tool == "call_agent"][0].result
    assert run.view.agents[called.agent].outcome == "finished"


@pytest.mark.parametrize("place", PLACES)
def test_immediate_stop_saves_its_text_and_a_resume_continues(tmp_path: Path, place: str) -> None:
    held = Held()
    run = PLACES[place](tmp_path, echo("echo", held))
    held.gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    assert "".join(e.text for e in events(run, ev.TextStreamed) if e.channel == "text") == "one "
    assert len(events(run, ev.ModelCut)) == 1
    assert "Continued from a summary, so calls may be repeated: " in str(run.preview)
    again = finish(nb_agents.resume(run.session, resuming(run, place), options=options_of(run)))
    assert again.status == "completed"
    assert SAID in str(said(again, place))


@pytest.mark.parametrize("place", PLACES)
def test_graceful_stop_lets_the_agent_finish_its_text(tmp_path: Path, place: str) -> None:
    held = Held()
    run = PLACES[place](tmp_path, echo("echo", held))
    held.gate.wait_reached()
    run.stop()
    held.gate.open()
    finish(run)
    assert events(run, ev.ModelCut) == []
    assert [e.response for e in events(run, ev.ModelFinished) if e.form] == [{"text": SAID}]


def options_of(run: Run) -> RunOptions:
    return RunOptions(session_root=run.path.parents[1])


def resuming(run: Run, place: str) -> TeamSpec:
    return caller(echo("echo")) if place == "sub-agent" else team(echo("echo"))


def said(run: Run, place: str) -> Any:
    if place != "sub-agent":
        return run.result
    return [e.result for e in events(run, ev.ToolFinished) if e.tool == "call_agent"]
