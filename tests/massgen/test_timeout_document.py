"""Tests of MassGen's document on timeouts, with one row per statement.

Its statements about flags and the screen apply to cells here; those rows are in tests/kernel.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunCancelled, RunOptions
from nb_agents import events as ev
from nb_agents.errors import ConfigError
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.canaries import KEY
from tests.kit.cards import card_text, panel_state, text
from tests.kit.runs import Run
from tests.kit.teams import TeamSpec, report_on
from tests.kit.views import AgentView, RunView
from tests.massgen.rows import HALF, TASK, Row, Table, partial_answers, writes
from tests.model_server import ModelServer, Reply, wait_until
from tests.team_kit import (
    events,
    finish,
    give_tools,
    metadata,
    outcome,
    outcomes,
    prompt,
    start_by_rules,
)

TABLE = Table()
says = TABLE.says

# Longer than a busy machine needs to begin the calls that it is to end.
LIMIT_S = 1.5
PRESENTED = Turn("presented")


@TABLE.parametrize()
def test_timeout_configuration(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row.hold(tmp_path, monkeypatch)


def team_file(root: Path, timeouts: str = "", agents: str = "", more: str = "") -> Path:
    """Write a team file, by default with one demo agent."""
    path = root / "team.yaml"
    agents = agents or "  - {id: agent1, backend: {type: demo}}"
    limits = f"timeout_settings:\n  {timeouts}" if timeouts else ""
    path.write_text(f"agents:\n{agents}\n{limits}\n{more}\n")
    return path


def limit_of(path: Path) -> float:
    return TeamSpec.from_file(path).timeout_settings.orchestrator_timeout_seconds


def timed_out(
    root: Path, models: dict[str, Any], gate: Gate | None = None, **policy: float | None
) -> Run:
    """Play a run that times out, and open the gate afterwards."""
    limits = {"orchestrator_timeout_seconds": LIMIT_S}
    run = start_by_rules(root, models, limits, CancelPolicy(**policy))  # type: ignore[arg-type]
    wait_until(lambda: run.view.stop)
    if gate is not None:
        gate.open()
    return finish(run)


# Quick reference, and the one kind of timeout -----------------------------------------------


@says("Without a word about it the limit of a run is 1800 seconds.")
def the_default_is_half_an_hour(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    run = start_by_rules(root, {"a": ScriptedModel(Answer("A's", gate=gate))}, debug=True)
    assert run.progress.timeout_s == 1800
    gate.open()
    finish(run)
    assert "Orchestrator timeout configured: 1800 seconds" in (run.path / "debug.log").read_text()


@says("Timeouts end what would run for ever: a model that never stops talking.")
def runaways_are_ended(root: Path, patch: pytest.MonkeyPatch) -> None:
    with ModelServer(Reply(text="word", endless=True, words_per_second=200)) as server:
        backend = {"type": "openai", "model": "m", "base_url": server.url, "api_key": KEY}
        team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        policy = CancelPolicy(grace_timeout_s=0.05)
        run = nb_agents.start(
            TASK, team, options=RunOptions(session_root=root, timeout=LIMIT_S, cancel=policy)
        )
        finish(run)
        assert (run.status, run.receipt.source) == ("cancelled", "timeout")
        assert server.endings() == ["client"]


@says("The key in the file is orchestrator_timeout_seconds, below timeout_settings.")
def the_file_has_a_key_for_it(root: Path, patch: pytest.MonkeyPatch) -> None:
    assert limit_of(team_file(root, "orchestrator_timeout_seconds: 600")) == 600
    with pytest.raises(ConfigError, match="orchestrator_timeout_seconds"):
        TeamSpec.from_file(team_file(root, "orchestrator_timeout_second: 600"))


@says("The limit is that of the whole turn: of all rounds of answers and votes together.")
def all_rounds_share_one_limit(root: Path, patch: pytest.MonkeyPatch) -> None:
    # Each answer of one sends the other into another round, for as long as they are let.
    models = {
        n: ScriptedModel(
            *(Answer(f"{n} {i}", delay_s=LIMIT_S / 20) for i in range(99)),
        )
        for n in "ab"
    }
    run = timed_out(root, models, grace_timeout_s=0.05)
    (begun,), stop = events(run, ev.TurnStarted), events(run, ev.StopRequested)[0]
    rounds = [e.at for e in events(run, ev.RoundStarted)]
    assert len(rounds) > 3
    # Counted from the beginning, and not from where the last round began.
    assert stop.at - begun.at >= LIMIT_S > stop.at - max(rounds)


@says("The final presentation is within the limit, too.")
def the_presentation_is_within_the_limit(root: Path, patch: pytest.MonkeyPatch) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1"), Turn("The final ", hang=True))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    run = timed_out(root, {"a": a, "b": b}, grace_timeout_s=0.05)
    known = metadata(run)
    assert (known["phase"], known["winning_agent"]) == ("presenting", "a")
    assert known["reason"] == "timeout"


@says("Over the limit, coordination ends gracefully.")
def over_the_limit_it_ends_gracefully(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    run = timed_out(root, {"a": ScriptedModel(Answer("A's", gate=gate))} | _other(gate), gate)
    (stop,) = events(run, ev.StopRequested)
    assert (stop.level, stop.source) == ("requested", "timeout")
    assert outcomes(run)["b"] == "stopped"


def _other(gate: Gate) -> dict[str, ScriptedModel]:
    """Return an agent that works until the gate opens, and then continues."""
    return {"b": ScriptedModel(Turn("b ", gate=gate, calls=(Call("list_files"),)))}


@says("Over the limit, what there is by then is saved.")
def over_the_limit_the_state_is_saved(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    a = ScriptedModel(writes("a.md"), Answer("A's"), Turn("on ", gate=gate))
    run = timed_out(root, {"a": a} | _other(gate), gate)
    assert partial_answers(run.path)["a"]["answer"] == "A's"
    assert (run.path / "workspaces/a/a.md").read_text() == "kept"
    assert (run.path / "answer.txt").read_text().endswith("\n\nA's")


# How it is set ------------------------------------------------------------------------------


@says("What is said for one run wins over the file, downwards and upwards.")
def one_runs_limit_wins_over_the_file(root: Path, patch: pytest.MonkeyPatch) -> None:
    path = team_file(root, "orchestrator_timeout_seconds: 600")
    for limit_s in (300, 3600):
        run = nb_agents.start(TASK, path, options=RunOptions(session_root=root, timeout=limit_s))
        assert run.progress.timeout_s == limit_s
        run.stop(now=True)
        finish(run)


@says("A file's limit stands beside its agents and its ui section, which means nothing here.")
def a_file_with_a_limit_and_a_display(root: Path, patch: pytest.MonkeyPatch) -> None:
    more = "ui:\n  display_type: rich_terminal"
    path = team_file(root, "orchestrator_timeout_seconds: 900", more=more)
    run = nb_agents.start(TASK, path, options=RunOptions(session_root=root))
    assert run.progress.timeout_s == 900
    assert run.view.notices[0] == "Ignored keys: ui"
    run.stop(now=True)
    finish(run)


@says("A file that says nothing of it has the default.")
def a_file_without_a_limit(root: Path, patch: pytest.MonkeyPatch) -> None:
    run = nb_agents.start(TASK, team_file(root), options=RunOptions(session_root=root))
    assert run.progress.timeout_s == 1800
    run.stop(now=True)
    finish(run)


# What happens -------------------------------------------------------------------------------


@says(
    "What is going on is finished first, not broken off. A whole round may take as long as the "
    "limit itself: here the calls in flight finish, their answers count, and none begins."
)
def calls_in_flight_finish(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    a = ScriptedModel(Answer("A's", gate=gate))
    run = timed_out(root, {"a": a} | _other(gate), gate)
    assert (run.view.agents["a"].answer, len(a.requests)) == ("A's", 1)
    assert events(run, ev.ModelCut) == []


@says("Partial results are saved, as those of a turn that did not come to its end.")
def timed_out_turns_are_incomplete(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    run = timed_out(root, {"a": ScriptedModel(Answer("A's", gate=gate))} | _other(gate), gate)
    known = metadata(run)
    assert (known["status"], known["reason"]) == ("incomplete", "timeout")
    summary = (run.path.parent / "SESSION_SUMMARY.txt").read_text()
    assert "TURN 1 [INCOMPLETE - TIMEOUT]" in summary
    assert "A's" in (run.path / "answer.txt").read_text()


@says("It is said that the limit was reached, that the state is saved, and how it came out.")
def the_timeout_is_said(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    run = timed_out(root, _other(gate), gate)
    card = card_text(run.view, str(run.path))
    assert f"Timed out (time limit of {LIMIT_S} s reached) after " in card
    assert "was saved" in card and "[timed out]" in card


@says("Agents clean up: no stream is left open, and the session is free again.")
def agents_clean_up(root: Path, patch: pytest.MonkeyPatch) -> None:
    models = {n: ScriptedModel(Turn(HALF, hang=True)) for n in "ab"}
    run = timed_out(root, models, grace_timeout_s=0.05)
    assert [m.open_streams for m in models.values()] == [0, 0]
    team = scripted_team(None, a=ScriptedModel(Answer("next")))
    again = nb_agents.start(TASK, team, run.session, options=RunOptions(session_root=root))
    assert finish(again).result == "next"


@says("An operation in progress may still complete: a tool that runs comes to its end.")
def a_running_tool_completes(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    async def work() -> str:
        """Take its time."""
        await gate.wait()
        return "worked"

    give_tools(patch, work)
    a = ScriptedModel(Turn(calls=(Call("work"),)), Answer("never asked for"))
    run = timed_out(root, {"a": a}, gate)
    assert gate.reached == 1
    assert [(e.outcome, e.result) for e in events(run, ev.ToolFinished)] == [("ok", "worked")]
    assert len(a.requests) == 1


@says("A run that ends in time says nothing of a timeout, only how long it took of its limit.")
def a_run_in_time(root: Path, patch: pytest.MonkeyPatch) -> None:
    run = finish(start_by_rules(root, {"a": ScriptedModel(Answer("A's"))}))
    assert (run.status, run.view.notices, run.view.stop) == ("completed", (), None)
    assert re.fullmatch(r"Elapsed: \d+s / 1800s \(\d+%\)", text.elapsed(run.view, 0)[0])
    assert 0 < metadata(run)["duration_seconds"] < 60


# Choosing one -------------------------------------------------------------------------------


@says("Limits from five minutes to two hours, and more, are all taken as they stand.")
def every_recommended_limit_is_taken(root: Path, patch: pytest.MonkeyPatch) -> None:
    for limit_s in (300, 600, 900, 1200, 1800, 2400, 3600, 7200, 86_400):
        path = team_file(root, f"orchestrator_timeout_seconds: {limit_s}")
        assert limit_of(path) == limit_s
        assert f"turn {limit_s:g} s" in report_on(TeamSpec.from_file(path)).lines[0]


@says("No limit, or one of nothing, is a mistake and is told as one.")
def a_limit_must_be_one(root: Path, patch: pytest.MonkeyPatch) -> None:
    for wrong in ("0", "-5", "soon", "true"):
        with pytest.raises(ConfigError, match="orchestrator_timeout_seconds"):
            TeamSpec.from_file(team_file(root, f"orchestrator_timeout_seconds: {wrong}"))


@says("Long runs can become expensive; here a budget ends them before the clock does.")
def a_budget_ends_what_gets_expensive(root: Path, patch: pytest.MonkeyPatch) -> None:
    a = ScriptedModel(*(writes(f"{n}.md") for n in range(50)), Answer("never"))
    limits = {"orchestrator_timeout_seconds": 7200}
    run = finish(start_by_rules(root, {"a": a}, limits, max_tokens=200))
    assert (run.status, run.receipt.source) == ("cancelled", "budget")
    assert 200 <= run.receipt.tokens < 2000


# Its examples -------------------------------------------------------------------------------

KEYS = {"GEMINI_API_KEY": "k", "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}


def verdict(path: Path, patch: pytest.MonkeyPatch, keys: Mapping[str, str] = KEYS) -> str:
    """Return whether a team file could start if all keys were set."""
    for name, value in keys.items():
        patch.setenv(name, value)
    return report_on(TeamSpec.from_file(path)).verdict


@says("A quick question to a single agent, with five minutes.")
def example_of_a_quick_question(root: Path, patch: pytest.MonkeyPatch) -> None:
    run = nb_agents.start(
        TASK,
        config=TeamSpec.from_model("demo:quick"),
        options=RunOptions(session_root=root, timeout=300),
    )
    (agent,) = run.view.agents.values()
    assert run.view.timeout_s == 300
    wait_until(lambda: run.view.agents[agent.id].partial)
    run.stop(now=True)
    assert finish(run).view.agents[agent.id].partial


@says("Three researchers of three providers, with twenty minutes.")
def example_of_three_researchers(root: Path, patch: pytest.MonkeyPatch) -> None:
    agents = """
  - id: "researcher1"
    backend: {type: "gemini", model: "gemini-2.5-flash"}
  - id: "researcher2"
    backend: {type: "openai", model: "gpt-4o"}
  - id: "researcher3"
    backend: {type: "claude", model: "claude-sonnet-4"}"""
    path = team_file(root, "orchestrator_timeout_seconds: 1200  # 20 minutes", agents)
    assert (limit_of(path), verdict(path, patch)) == (1200, "Can start.")


@says(
    "An architect and a reviewer that plan first. The architect's backend drives a program of "
    "somebody else's: how to install it is told before anything starts."
)
def example_of_code_generation(root: Path, patch: pytest.MonkeyPatch) -> None:
    agents = """
  - id: "architect"
    backend: {type: "claude_code", cwd: "workspace"}
  - id: "reviewer"
    backend: {type: "gemini", model: "gemini-2.5-flash"}"""
    more = "orchestrator:\n  coordination:\n    enable_planning_mode: true"
    path = team_file(root, "orchestrator_timeout_seconds: 1800", agents, more)
    patch.setenv("PATH", str(root))
    told = "Agent 'architect': 'claude-agent-acp' is not installed. Install it: npm install -g "
    assert told in verdict(path, patch)
    assert TeamSpec.from_file(path).unsupported == ()
    assert TeamSpec.from_file(path).orchestrator.coordination.enable_planning_mode


@says("An agent with MCP servers and forty minutes; a team gets its servers.")
def example_of_tool_servers(root: Path, patch: pytest.MonkeyPatch) -> None:
    agents = """
  - id: "agent1"
    backend:
      type: "openai"
      model: "gpt-5-nano"
      mcp_servers:
        - {name: "weather", type: "stdio", command: "weather-server"}"""
    path = team_file(root, "orchestrator_timeout_seconds: 2400", agents)
    assert verdict(path, patch) == "Can start."
    team = TeamSpec.from_file(path)
    assert team.timeout_settings.orchestrator_timeout_seconds == 2400
    assert team.ignored == ()
    assert [each.name for each in team.agents[0].backend.mcp_servers] == ["weather"]


# Troubleshooting ----------------------------------------------------------------------------


@says(
    "Too little time: give more, or work with checkpoints. Here every finished call is one: the "
    "turn itself goes on with more time, and nothing is asked twice."
)
def remedy_more_time(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    model = ScriptedModel(Turn("b ", gate=gate, calls=writes("a.md").calls), Answer("A's"))
    run = timed_out(root, {"a": model}, gate)
    again = run.resume(options=RunOptions(timeout=3600))
    again.wait(200, raise_on_stop=False)
    assert (again.result, again.view.timeout_s, len(model.requests)) == ("A's", 3600, 2)


@says("Fewer agents are quicker: one alone needs neither votes nor a presentation.")
def remedy_fewer_agents(root: Path, patch: pytest.MonkeyPatch) -> None:
    alone = ScriptedModel(Answer("A's"))
    finish(start_by_rules(root, {"a": alone}))
    a = ScriptedModel(Answer("A's"), Vote("agent1"), PRESENTED)
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    finish(start_by_rules(root, {"a": a, "b": b}))
    assert len(alone.requests) == 1 < len(a.requests) + len(b.requests)


@says("Smaller tasks: each turn of a session has the whole limit for itself.")
def remedy_smaller_tasks(root: Path, patch: pytest.MonkeyPatch) -> None:
    team = scripted_team(600, a=ScriptedModel(Answer("A's")))
    runs = [
        finish(nb_agents.start(t, team, "s", options=RunOptions(session_root=root)))
        for t in ("one", "two")
    ]
    assert [run.view.timeout_s for run in runs] == [600, 600]
    assert runs[1].view.started_at >= (runs[0].view.ended_at or 0)
    assert metadata(runs[1])["duration_seconds"] < runs[1].view.last_at - runs[0].view.started_at


@says("Faster models: a turn that ran out of time goes on with others under the same names.")
def remedy_faster_models(root: Path, patch: pytest.MonkeyPatch) -> None:
    slow = ScriptedModel(Turn("on and on ", hang=True))
    run = timed_out(root, {"a": slow}, grace_timeout_s=0.05)
    fast = ScriptedModel(Answer("quick"))
    again = run.resume(config=scripted_team(600, a=fast))
    again.wait(200, raise_on_stop=False)
    assert (again.result, len(slow.requests), len(fast.requests)) == ("quick", 1, 1)


@says("Planning mode off: agents act at once instead of planning first.")
def remedy_no_planning(root: Path, patch: pytest.MonkeyPatch) -> None:
    for plans in (True, False):
        a = ScriptedModel(writes("a.md"), Answer("A's"), Vote("agent1"), PRESENTED)
        b = ScriptedModel(Answer("B's"), Vote("agent1"))
        coordination = {"enable_planning_mode": plans}
        run = finish(start_by_rules(root, {"a": a, "b": b}, coordination=coordination))
        assert (run.path / "workspaces/a/a.md").exists() is not plans
        assert ("planning phase" in prompt(a, 0)) is plans


@says("Stuck agents are found: which calls are open is told while the run goes on.")
def remedy_find_stuck_agents(root: Path, patch: pytest.MonkeyPatch) -> None:
    stuck = ScriptedModel(Turn("hm ", hang=True))
    b = ScriptedModel(Answer("B's"), Vote("agent2"))
    run = start_by_rules(root, {"a": stuck, "b": b})
    wait_until(lambda: run.view.agents["b"].vote and run.view.agents["a"].partial)
    assert run.progress.in_flight == ("a",)
    assert panel_state(run.view, run.id, 0)["in_flight"] == "1 call in flight: a"
    run.stop(agent="a", now=True)
    assert finish(run).status == "completed"


@says("Ending in seconds, with votes at once, is no fault: it completes like any other run.")
def quick_ends_are_fine(root: Path, patch: pytest.MonkeyPatch) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1"), PRESENTED)
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    run = finish(start_by_rules(root, {"a": a, "b": b}))
    assert (run.status, run.result, run.view.winner) == ("completed", "presented", "a")
    assert "status" not in metadata(run)


@says("More discussion is had through what agents are told; voting can be made more demanding.")
def more_discussion_by_system_messages(root: Path, patch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(Answer("A's"))
    backend = {"type": "python", "instance": model}
    others = {"type": "python", "instance": ScriptedModel(Answer("B's"), Vote("agent1"))}
    agents = [
        {"id": "a", "backend": backend, "system_message": "Weigh three ways before you answer."},
        {"id": "b", "backend": others},
    ]
    orchestrator = {"voting_sensitivity": "strict"}
    team = TeamSpec.model_validate({"agents": agents, "orchestrator": orchestrator})
    run = nb_agents.start(TASK, team, options=RunOptions(session_root=root))
    wait_until(lambda: model.requests)
    assert prompt(model, 0).startswith("Weigh three ways before you answer.")
    assert "Grade the best answer from 0 to 3" in prompt(model, 0)
    run.stop(now=True)
    finish(run)


@says("With debugging on, a log tells of the timeout; here also without, on the card.")
def a_timeout_is_in_the_debug_log(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    limits = {"orchestrator_timeout_seconds": LIMIT_S}
    run = start_by_rules(root, _other(gate), limits, debug=True)
    wait_until(lambda: run.view.stop)
    gate.open()
    finish(run)
    log = (run.path / "debug.log").read_text()
    assert f"[INFO] time limit of {LIMIT_S} s reached\n" in log


# Best practices, costs ----------------------------------------------------------------------


@says("The real times of runs can be looked up afterwards, to learn what limit is enough.")
def real_times_are_kept(root: Path, patch: pytest.MonkeyPatch) -> None:
    run = finish(start_by_rules(root, {"a": ScriptedModel(Answer("A's", delay_s=0.01))}))
    (begun,), (ended,) = events(run, ev.TurnStarted), events(run, ev.TurnEnded)
    assert metadata(run)["duration_seconds"] == round(ended.at - begun.at, 3) > 0.01


@says("Each environment may have its own limit: the same session runs with either file.")
def limits_by_environment(root: Path, patch: pytest.MonkeyPatch) -> None:
    limits = {}
    for name, limit_s in (("development", 600), ("production", 3600)):
        path = team_file(root, f"orchestrator_timeout_seconds: {limit_s}")
        run = nb_agents.start(
            TASK, path.rename(root / f"{name}.yaml"), "s", options=RunOptions(session_root=root)
        )
        limits[run.turn] = run.progress.timeout_s
        run.stop(now=True)
        finish(run)
    assert limits == {1: 600, 2: 3600}


@says("A comment beside the limit may say why it is what it is.")
def limits_may_be_commented(root: Path, patch: pytest.MonkeyPatch) -> None:
    why = "# 40 minutes: five agents, and slow tools\n  "
    assert limit_of(team_file(root, f"{why}orchestrator_timeout_seconds: 2400  # enough")) == 2400


@says(
    "Costs depend on models, rounds and lengths. The document has a table of guesses; here what a "
    "run costs is counted."
)
def what_is_used_is_counted(root: Path, patch: pytest.MonkeyPatch) -> None:
    reply = Reply(text="An answer.", input_tokens=1000, output_tokens=100)
    with ModelServer(reply) as server:
        backend = {"type": "openai", "model": "gpt-4o-mini", "base_url": server.url}
        agents = [{"id": "a", "backend": {**backend, "api_key": "k"}}]
        team = TeamSpec.model_validate({"agents": agents})
        run = finish(nb_agents.start(TASK, team, options=RunOptions(session_root=root)))
        calls = server.count()
    assert run.receipt.tokens == 1100 * calls > 0
    assert run.receipt.cost == pytest.approx((1000 * 0.15 + 100 * 0.6) * calls / 1e6)
    assert metadata(run)["receipt"]["cost"] == run.receipt.cost


@says("What a timeout has cost is counted, too, for each agent.")
def what_a_timeout_cost_is_counted(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    a = ScriptedModel(Answer("A's"), Turn("more ", gate=gate))
    run = timed_out(root, {"a": a} | _other(gate), gate)
    spent = metadata(run)["receipt"]["agents"]
    assert spent["a"]["tokens"] > spent["b"]["tokens"] > 0


# Watching it --------------------------------------------------------------------------------


@says("The debug log has the limit, the start, and each round with the time used of the limit.")
def the_debug_log_tells_of_rounds(root: Path, patch: pytest.MonkeyPatch) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1"), PRESENTED)
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    limits = {"orchestrator_timeout_seconds": 600}
    run = finish(start_by_rules(root, {"a": a, "b": b}, limits, debug=True))
    lines = re.findall(r"\[INFO\] (.*)", (run.path / "debug.log").read_text())
    assert lines[:2] == [
        "Orchestrator timeout configured: 600 seconds",
        "Starting coordination...",
    ]
    told = [re.fullmatch(r"Round (\d+) complete \(elapsed: \d+s / 600s\)", n) for n in lines[2:]]
    numbers = [int(match[1]) for match in told if match]
    assert numbers == list(range(1, run.view.round + 1))


@says("While it runs, the screen shows round, time used of the limit, and the state.")
def progress_is_shown(root: Path, patch: pytest.MonkeyPatch) -> None:
    agents = {"a": AgentView("a", round=3, phase="writing", in_flight=True)}
    view = RunView(status="in-progress", agents=agents, started_at=1000.0, timeout_s=1800.0)
    shown = panel_state(view, "r1", 1234.0)
    assert (shown["round"], shown["elapsed"], shown["chip"]) == (
        "Round: 3/∞",
        "Elapsed: 234s / 1800s (13%)",
        "running",
    )
    assert shown["fraction"] == 0.13


@says("Waiters are told of a timeout as of any stop, with all that was kept.")
def waiters_are_told(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    a = ScriptedModel(Answer("A's"), Turn("more ", gate=gate))
    error = outcome(timed_out(root, {"a": a} | _other(gate), gate))
    assert isinstance(error, RunCancelled)
    assert error.partial_answers["a"] == "A's"
    assert json.loads((error.path / "metadata.json").read_text())["reason"] == "timeout"


def test_rows_have_unique_names() -> None:
    said = [row.says for row in TABLE.rows]
    assert len(set(said)) == len(said) > 35
