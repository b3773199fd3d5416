"""Turns of recipes, and sweeps, that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_ai.exceptions import ModelHTTPError

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.golden.players import over, player
from tests.kit.models import Backend
from tests.kit.runs import Run
from tests.kit.sweeps import Sweep
from tests.model_server import wait_until
from tests.team_kit import WAIT_S

HEAD = "name: {name}\ndescription: d\nversion: 1.0.0\n"
RICH = """
context: {topics: [wind, water]}
stages:
- name: gather
  steps:
  - {id: draft, agent: worker, prompt: "Draft {{topics}}.", output: draft}
  - {id: each, foreach: "{{topics}}", as: topic, collect: looked, parallel: true,
     agent: worker, prompt: "Look at {{topic}}."}
  - {id: count, type: bash, command: "echo $(( 1 + 2 )); echo three > three.txt", output: counted}
  - {id: never, type: bash, command: "echo never", condition: "{{counted}} == 4"}
  approval: {required: true, prompt: "Publish {{counted}} looks?"}
- name: publish
  steps:
  - id: loop
    while_condition: "{{_loop_index}} < 2"
    steps: [{id: think, agent: worker, prompt: "Think {{_loop_index}}.", output: thought}]
  - {id: nested, type: recipe, recipe: inner.yaml, context: {text: "{{draft}}"}, output: nested}
  - {id: flaky, type: bash, retry: {max_attempts: 2, initial_delay: 0},
     command: "if [ -e mark ]; then echo fine; else touch mark; echo no >&2; exit 1; fi"}
"""
INNER = """
steps:
- {id: sum, agent: worker, prompt: "Sum {{text}}.", output: sum}
"""
STEPS = """
steps:
- {id: first, type: bash, command: "echo first", output: first}
- {id: second, agent: worker, prompt: "Work on {{first}}.", output: second}
- {id: third, agent: worker, prompt: "End {{second}}.", output: third}
"""


def _recipe(root: Path, session: str, body: str, model: Backend, **more: Any) -> Run:
    place = root / "recipes"
    place.mkdir(exist_ok=True)
    for name, text in (("main", body), ("inner", INNER)):
        (place / f"{name}.yaml").write_text(HEAD.format(name=name) + text)
    team, options = scripted_team(None, worker=model), RunOptions(session_root=root, **more)
    return nb_agents.start("", team, session, recipe=place / "main.yaml", options=options)


def _speaks() -> ScriptedModel:
    def reply(messages: list[Any]) -> Turn:
        return Turn(f"Said to: {messages[0].parts[-1].content}")

    return ScriptedModel(reply)


@player
def recipe_complete(root: Path, session: str) -> None:
    """Stages, a foreach, a while, a gate, a nested recipe, a retry."""
    run = _recipe(root, session, RICH, _speaks())
    wait_until(lambda: run.view.gates)
    run.approve("the matt one", by="ann")
    over(run)


@player
def recipe_denied(root: Path, session: str) -> None:
    """The user denies a gate; the turn is resumed and the gate approved."""
    run = _recipe(root, session, RICH, _speaks())
    wait_until(lambda: run.view.gates)
    run.deny("not yet", by="ann")
    over(run)
    team = scripted_team(None, worker=_speaks())
    again = nb_agents.resume(session, team, options=RunOptions(session_root=root))
    wait_until(lambda: again.view.gates)
    again.approve(by="bob")
    over(again)


@player
def recipe_stopped(root: Path, session: str) -> None:
    """Stopped gracefully while an agent works."""
    gate = Gate()
    run = _recipe(root, session, STEPS, ScriptedModel(Turn("Half done. ", gate=gate)))
    gate.wait_reached()
    run.stop(reason="lunch")
    gate.open()
    over(run)


@player
def recipe_cut(root: Path, session: str) -> None:
    """Stopped immediately while a command and an agent work side by side."""
    body = """
context: {numbers: [1, 2]}
steps:
- {id: each, foreach: "{{numbers}}", parallel: true, type: bash, collect: all,
   command: "echo {{item}}; sleep 60"}
"""
    run = _recipe(root, session, body, _speaks())
    wait_until(lambda: len([s for s in run.view.steps.values() if s.tail]) == 2)
    run.stop(now=True)
    over(run)


@player
def recipe_failed(root: Path, session: str) -> None:
    """A step fails for good, another one is tried again first."""
    body = """
steps:
- {id: gone-without, type: bash, command: "echo no >&2; exit 5", on_error: continue, output: a}
- {id: tried, type: bash, retry: {max_attempts: 2, initial_delay: 0}, command: "exit 6"}
- {id: never, agent: worker, prompt: "Never."}
"""
    over(_recipe(root, session, body, _speaks()))


@player
def recipe_timed_out(root: Path, session: str) -> None:
    """A step takes longer than it may."""
    body = """
steps:
- {id: slow, type: bash, command: "echo begun; sleep 60", timeout: 1}
"""
    over(_recipe(root, session, body, _speaks()))


@player
def recipe_gate_timed_out(root: Path, session: str) -> None:
    """Nobody decides, so that the gate's default does."""
    body = """
stages:
- name: one
  steps: [{id: a, type: bash, command: "echo 1", output: a}]
  approval: {required: true, prompt: "First?", timeout: 1, default: deny}
"""
    over(_recipe(root, session, body, _speaks()))


# Sweeps --------------------------------------------------------------------------------------


def _sweep(root: Path, session: str, team: TeamSpec, **more: Any) -> Sweep:
    rows = [{"id": number, "q": f"what is {number}?"} for number in range(3)]
    options = RunOptions(session_root=root)
    return nb_agents.map(rows, "Answer: {{q}}", team, name=session, options=options, **more)


@player
def sweep_complete(root: Path, session: str) -> None:
    """Three rows with scores, one of them failed."""

    def reply(messages: list[Any]) -> Turn:
        if "what is 1?" in str(messages):
            return Turn(error=ModelHTTPError(401, "m", {"message": "bad key"}))
        return Answer("It is **forty-two**.")

    team = scripted_team(ada=ScriptedModel(reply))
    _sweep(root, session, team, limit=1, score=lambda task, answer: float(len(task))).wait(WAIT_S)


@player
def sweep_stopped(root: Path, session: str) -> None:
    """One row is complete, one was interrupted, and one was not started."""
    gate = Gate()

    def reply(messages: list[Any]) -> Turn:
        if "what is 1?" in str(messages):
            return Turn("Some words ", gate=gate)
        return Answer("So.")

    sweep = _sweep(root, session, scripted_team(ada=ScriptedModel(reply)), limit=1)
    gate.wait_reached()
    sweep.stop(True, reason="wrong path")
    sweep.wait(WAIT_S)
