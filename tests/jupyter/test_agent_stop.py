"""The Stop button of an agent's row: when it is shown, and the effect of its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nb_agents import events as ev
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, Vote
from tests.jupyter.test_panel import view_of
from tests.kit.cards import panel_state
from tests.kit.cells import handle_page_request
from tests.kit.runs import Run
from tests.kit.views import RunView, fold
from tests.model_server import wait_until
from tests.team_kit import finish, outcomes, start


def buttons(view: RunView) -> list[Any]:
    return [row["stop"] for row in panel_state(view, "r1", 1000.0)["agents"]]


def stop(level: Any, agent: str = "ada") -> ev.StopRequested:
    return ev.StopRequested(level=level, source="widget", agent=agent, at=1010.0)


OFFERED: dict[str, tuple[list[ev.Event], Any]] = {
    "at first": ([], {"now": False}),
    "once it is asked to stop": ([stop("requested")], {"now": True}),
    "once it is cut": ([stop("requested"), stop("immediate")], None),
    "when notes come the wrong way round": ([stop("immediate"), stop("requested")], None),
    "once all are stopping": ([stop("requested", "")], None),
    "when it has voted": ([ev.VoteCast(agent="ada", target="ben", reason="r")], None),
    "when it is out": ([ev.AgentFailed(agent="ada", error="e")], None),
    "when it has ended": ([ev.AgentEnded(agent="ada", outcome="stopped")], None),
    "at the end": ([ev.TurnEnded(status="completed", phase="coordinating", at=1020.0)], None),
}


@pytest.mark.parametrize("when", OFFERED)
def test_row_has_a_stop_button_for_its_agent(when: str) -> None:
    events, button = OFFERED[when]
    assert buttons(view_of(*events))[0] == button


def test_called_agent_has_a_stop_button_until_it_answers() -> None:
    fields = {"caller": "ada", "name": "critic", "model": "m", "workspace": "w", "input": "i"}
    called = ev.AgentCalled(agent="ada/critic#1", **fields)
    ended = ev.AgentEnded(agent="ada/critic#1", outcome="finished")
    assert buttons(view_of(called))[1] == {"now": False}
    assert buttons(view_of(called, ended))[1] is None


def test_team_of_one_has_only_the_run_stop_button() -> None:
    agents = (ev.AgentInfo(id="ada", model="m"),)
    started = ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=1, at=1000.0)
    assert buttons(fold([started])) == [None]


def ask(run: Run, now: bool) -> tuple[bool, str]:
    content = {"run": run.id, "agent": "ada", "immediate": now}
    facts = handle_page_request("stop", content).facts
    return facts["changed"], facts["status"]


def test_agent_stop_is_graceful_first_and_immediate_second(tmp_path: Path) -> None:
    gate = Gate()
    ada = ScriptedModel(Turn(text="some words ", hang=True))
    ben = ScriptedModel(Answer("B's", gate=gate), Vote("agent2"), Turn(text="fin"))
    run = start(tmp_path, ada=ada, ben=ben)
    wait_until(lambda: run.view.agents["ada"].partial == "some words ")
    assert ask(run, False) == (True, "stopping")
    assert ask(run, False) == (False, "stopping")  # the same message, through the other channel
    wait_until(lambda: buttons(run.view)[0] == {"now": True})
    assert ask(run, True) == (True, "stopping-now")
    wait_until(lambda: run.view.agents["ada"].outcome == "killed")
    gate.open()
    finish(run)
    assert (run.status, run.view.stop) == ("completed", None)
    assert outcomes(run) == {"ada": "killed", "ben": "finished"}


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"run": "", "immediate": True},
        {"run": 3, "immediate": True},
        {"run": "RUN", "agent": "nobody", "immediate": True},
        {"run": "RUN", "agent": 3, "immediate": True},
        {"run": "RUN", "agent": "", "immediate": True},
        {"run": "r-unknown", "agent": "a", "immediate": True},
    ],
)
def test_invalid_message_does_not_stop_the_run(tmp_path: Path, content: Any) -> None:
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    if isinstance(content, dict) and content.get("run") == "RUN":
        content = {**content, "run": run.id}
    assert handle_page_request("stop", content).refusal
    gate.open()
    assert finish(run).result == "A's"
