"""Output of models, tools and commands wakes the run, which otherwise only polls the clock."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.kit.runs import Run, TurnReader, reader, turn
from tests.kit.sessions import TurnPaths
from tests.kit.teams import TeamSpec
from tests.kit.tools import ToolContext
from tests.kit.views import RunView
from tests.model_server import ModelServer, Reply, wait_until
from tests.recipes.live import begin, over, write
from tests.team_kit import WAIT_S, events, finish


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "CLOCK_S", 3600)
    monkeypatch.setattr(reader, "ALIVE_S", 3600)


def wait_quiet(run: Run) -> None:
    """Wait until nothing but the clock would wake a run."""
    assert isinstance(run._turn, turn.TurnWriter)
    has_news = run._turn._has_news
    wait_until(lambda: not has_news.is_set(), WAIT_S, "a run without news")


def test_streamed_text_is_journalled_and_visible_to_other_processes(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("m", Reply(text="one two three"))
    server.hold(1)
    backend = {"type": "openai", "model": "m", "base_url": server.url, "api_key": "k"}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
    wait_until(lambda: "one" in run.view.agents["a"].partial, WAIT_S, "a word")
    seen: list[RunView] = []
    TurnReader(TurnPaths(run.path)).subscribers.add(seen.append)
    wait_until(lambda: seen, WAIT_S, "who follows the journal")
    wait_quiet(run)
    server.hold(2)
    wait_until(lambda: "two" in run.view.agents["a"].partial, WAIT_S, "two words")
    wait_until(lambda: "two" in seen[-1].agents["a"].partial, WAIT_S, "two words elsewhere")
    run.stop(now=True)
    finish(run)


def test_notices_of_a_tool_thread_are_journalled_while_it_runs(tmp_path: Path) -> None:
    may_speak, may_end = Event(), Event()

    def speak(context: ToolContext) -> str:
        """Speak."""
        context.tell("one ")
        assert may_speak.wait(WAIT_S)
        context.tell("two")
        assert may_end.wait(WAIT_S)
        return "there"

    team = scripted_team(a=ScriptedModel(Turn(calls=(Call("speak"),)), Answer("done")))
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("t", team, tools=[speak], options=options)
    for may_go_on, told in ((may_speak, "one "), (may_end, "one two")):
        wait_until(lambda told=told: run.view.agents["a"].tool_tail == told, WAIT_S, told)
        wait_quiet(run)
        may_go_on.set()
    assert finish(run).result == "done"


def test_output_of_a_command_is_journalled_while_it_runs(tmp_path: Path) -> None:
    until = "until [ -e {0} ]; do sleep 0.02; done"
    lines = ["echo one", until.format("two"), "echo two", until.format("end")]
    run = begin(write(tmp_path, f'steps: [{{id: a, type: bash, command: "{"; ".join(lines)}"}}]'))
    for name, count in (("two", 1), ("end", 2)):
        wait_until(
            lambda n=count: len(events(run, ev.OutputStreamed)) == n, WAIT_S, f"before {name}"
        )
        wait_quiet(run)
        [workspace] = (run.path / "workspaces").iterdir()
        (workspace / name).touch()
    assert over(run).status == "completed"
