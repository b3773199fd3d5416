"""Tests of agents that call agents: rows, costs, workspaces and stops of the tree."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import ConfigError, UserError
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn
from tests.kit.agents import SubAgents, subagents
from tests.kit.cards import agent_row
from tests.kit.models import Backend
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.kit.teams import TeamSpec
from tests.kit.tools import ToolError
from tests.model_server import wait_until
from tests.recipes.live import write
from tests.team_kit import WAIT_S, events, finish, outcomes, prompt

ASK = Turn(calls=(Call("call_agent", {"name": "critic", "input": "what is wrong?"}),))
DONE = Turn(text="A's")
HELD_WORDS = "so far "


@pytest.fixture
def gate() -> Gate:
    return Gate()


def asking(name: str) -> Turn:
    return Turn(calls=(Call("call_agent", {"name": name, "input": f"dear {name}"}),))


def team(
    members: dict[str, Backend], callable_: dict[str, Backend], can_call: Any = "*"
) -> TeamSpec:
    def agents(models: dict[str, Backend]) -> list[dict[str, Any]]:
        return [
            {"id": k, "backend": {"type": "python", "instance": m, "can_call": can_call}}
            for k, m in models.items()
        ]

    given = {"agents": agents(members), "callable_agents": agents(callable_)}
    return TeamSpec.model_validate(given)


def begin(
    root: Path,
    members: dict[str, Backend],
    callable_: dict[str, Backend],
    can_call: Any = "*",
    tools: Any = (),
) -> Run:
    spec = team(members, callable_, can_call)
    options = RunOptions(session_root=root)
    return nb_agents.start("the task", spec, "s", tools=tools, options=options)


def told(run: Run, agent: str = "a") -> list[str]:
    """Return the results of the agent's tool calls that its model got."""
    return [e.result for e in events(run, ev.ToolFinished) if e.agent == agent]


# What a call gives --------------------------------------------------------------------------


def test_caller_gets_the_sub_agents_last_message(tmp_path: Path) -> None:
    a = ScriptedModel(ASK, DONE)
    critic = ScriptedModel(Turn(text="it is too long"))
    run = finish(begin(tmp_path, {"a": a}, {"critic": critic}))
    assert (run.status, run.result) == ("completed", "A's")
    assert told(run) == ["it is too long"]
    assert "it is too long" in prompt(a, 1)
    assert "what is wrong?" in prompt(critic, 0) and "the task" not in prompt(critic, 0)


def test_sub_agent_has_its_own_row_workspace_and_cost(tmp_path: Path) -> None:
    write = Call("write_file", {"path": "n.md", "content": "kept"})
    critic = ScriptedModel(Turn(calls=(write,)), Turn(text="see n.md"))
    run = finish(begin(tmp_path, {"a": ScriptedModel(ASK, DONE)}, {"critic": critic}))
    assert list(run.view.agents) == ["a", "a/critic#1"]
    child = run.view.agents["a/critic#1"]
    assert (child.caller, child.returned, child.calls) == ("a", "see n.md", 2)
    assert child.tokens > 0 and run.receipt.tokens == child.tokens + run.view.agents["a"].tokens
    assert run.view.workspaces == ("a", "a+critic-1")
    assert (run.path / "workspaces/a+critic-1/n.md").read_text() == "kept"
    assert [(f.agent, f.path) for f in run.view.files] == [("a+critic-1", "n.md")]
    assert outcomes(run) == {"a": "finished", "a/critic#1": "finished"}
    assert ("a/critic#1: write_file", "finished") in run.receipt.tools
    assert run.timeline.agents == ("a", "a/critic#1")
    assert load_session(run.path.parent).turns[-1].view.agents == run.view.agents


def test_sub_agents_answer_is_not_an_answer_of_the_team(tmp_path: Path) -> None:
    critic = ScriptedModel(Turn(text="a very long text, longer than any answer"))
    gate = Gate()
    a = ScriptedModel(ASK, Answer("A's"), Turn(text="x", gate=gate))
    run = begin(tmp_path, {"a": a, "b": ScriptedModel(Turn(hang=True))}, {"critic": critic})
    wait_until(lambda: bool(run.view.agents["a"].answers))
    run.stop(now=True)
    finish(run)
    assert run.view.best_agent == "a"
    assert (run.path / "answer.txt").read_text().endswith("A's")


def test_sub_agents_row_follows_its_caller(tmp_path: Path) -> None:
    b = ScriptedModel(Turn(hang=True))
    run = begin(
        tmp_path,
        {"a": ScriptedModel(asking("mid"), Turn(hang=True)), "b": b},
        {"mid": ScriptedModel(asking("low"), Turn(text="m")), "low": ScriptedModel(Turn(text="l"))},
    )
    wait_until(lambda: run.view.agents["a"].calls == 2)
    rows = [agent_row(agent, run.view, run.view.last_at) for agent in run.view.agents.values()]
    run.stop(now=True)
    finish(run)
    assert [(r["id"], r["name"], r["depth"]) for r in rows] == [
        ("a", "a", 0),
        ("a/mid#1", "mid#1", 1),
        ("a/mid#1/low#1", "low#1", 2),
        ("b", "b", 0),
    ]
    assert [r["says"] for r in rows[1:3]] == ["m", "l"]


def test_called_member_starts_a_new_conversation(tmp_path: Path) -> None:
    b = ScriptedModel(Answer("B's"))
    a = ScriptedModel(asking("b"), Turn(hang=True))
    run = begin(tmp_path, {"a": a, "b": b}, {})
    wait_until(lambda: "a/b#1" in run.view.agents)
    run.stop(now=True)
    finish(run)
    assert run.view.agents["a/b#1"].caller == "a"
    assert run.view.agents["b"].caller == ""


def test_sub_agents_text_streams(tmp_path: Path, gate: Gate) -> None:
    critic = ScriptedModel(Turn(text=HELD_WORDS, gate=gate))
    run = begin(tmp_path, {"a": ScriptedModel(ASK, DONE)}, {"critic": critic})

    def words() -> list[str]:
        return [agent.partial for agent in run.view.agents.values() if agent.id == "a/critic#1"]

    wait_until(lambda: words() == [HELD_WORDS])
    gate.open()
    assert finish(run).status == "completed"


# Who may call whom ---------------------------------------------------------------------------


def test_agent_without_callable_agents_has_no_call_tool(tmp_path: Path) -> None:
    a = ScriptedModel(ASK, DONE)
    run = finish(begin(tmp_path, {"a": a}, {"critic": ScriptedModel()}, can_call=()))
    assert told(run)[0].startswith("Error: no tool 'call_agent'.")


def test_only_listed_agents_can_be_called(tmp_path: Path) -> None:
    a = ScriptedModel(asking("other"), DONE)
    given = {"critic": ScriptedModel(), "other": ScriptedModel()}
    run = finish(begin(tmp_path, {"a": a}, given, can_call="critic"))
    assert told(run) == ["Error: there is no agent 'other' to call. Call one of: critic."]


def test_unknown_callable_agent_is_refused_with_the_team_file() -> None:
    with pytest.raises(ValueError, match="'a' can_call 'nobody', which is not an agent: a"):
        team({"a": ScriptedModel()}, {}, "nobody")


def test_a_callable_agent_is_checked_before_the_start(tmp_path: Path) -> None:
    data = {
        "agents": [{"id": "a", "backend": {"type": "demo"}}],
        "callable_agents": [{"id": "c", "backend": {"type": "openai", "api_key": "k"}}],
    }
    with pytest.raises(ConfigError, match="'c' has no model"):
        nb_agents.start(
            "t", TeamSpec.model_validate(data), options=RunOptions(session_root=tmp_path)
        )


def test_agent_that_waits_for_a_call_cannot_be_called_in_it(tmp_path: Path) -> None:
    given = {
        "mid": ScriptedModel(asking("low"), Turn(text="m")),
        "low": ScriptedModel(asking("mid"), asking("a"), Turn(text="l")),
    }
    run = finish(begin(tmp_path, {"a": ScriptedModel(asking("mid"), DONE)}, given))
    assert told(run, "a/mid#1/low#1") == [
        "Error: mid can't be called because it waits for this call (a → mid → low → mid).",
        "Error: a can't be called because it waits for this call (a → mid → low → a).",
    ]
    assert list(run.view.agents) == ["a", "a/mid#1", "a/mid#1/low#1"]


def test_calls_are_limited_to_three_levels(tmp_path: Path) -> None:
    names = ["c1", "c2", "c3", "c4"]
    given: dict[str, Backend] = {
        name: ScriptedModel(asking(below), Turn(text=name))
        for name, below in zip(names, [*names[1:], "none"], strict=True)
    }
    run = finish(begin(tmp_path, {"a": ScriptedModel(asking("c1"), DONE)}, given))
    assert list(run.view.agents)[-1] == "a/c1#1/c2#1/c3#1"
    assert "at most 3 levels deep" in told(run, "a/c1#1/c2#1/c3#1")[0]
    assert run.status == "completed"


def test_number_of_sub_agents_in_a_run_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subagents, "MAX_CHILDREN", 2)
    run = finish(
        begin(
            tmp_path,
            {"a": ScriptedModel(ASK, ASK, ASK, DONE)},
            {"critic": ScriptedModel(Turn(text="fine"))},
        )
    )
    assert told(run)[:2] == ["fine", "fine"]
    assert "this run has reached its limit of 2 called agents" in told(run)[2]
    assert list(run.view.agents) == ["a", "a/critic#1", "a/critic#2"]


def test_caller_gets_the_error_of_a_failed_sub_agent(tmp_path: Path) -> None:
    critic = ScriptedModel(Turn(error=ValueError("broken")))
    run = finish(begin(tmp_path, {"a": ScriptedModel(ASK, DONE)}, {"critic": critic}))
    assert run.status == "completed"
    assert told(run) == ["Error: critic failed: scripted: The call failed with ValueError."]
    assert outcomes(run)["a/critic#1"] == "failed"


# Stops ---------------------------------------------------------------------------------------


def test_stopping_a_caller_stops_only_its_sub_agents(tmp_path: Path, gate: Gate) -> None:
    held = Gate()
    given = {
        "mid": ScriptedModel(asking("low"), Turn(text="m")),
        "low": ScriptedModel(Turn(text=HELD_WORDS, gate=held)),
    }
    b = ScriptedModel(Turn(calls=(Call("new_answer", {"content": "B's"}),), gate=gate))
    run = begin(tmp_path, {"a": ScriptedModel(asking("mid"), DONE), "b": b}, given)
    held.wait_reached()
    gate.wait_reached()
    run.stop(now=True, agent="a")
    wait_until(lambda: run.view.agents["a"].outcome is not None)
    assert outcomes(run) | {"b": "goes on"} == {
        "a": "killed",
        "a/mid#1": "killed",
        "a/mid#1/low#1": "killed",
        "b": "goes on",
    }
    assert b.open_streams == 1 and run.view.agents["b"].outcome is None
    assert run.view.agents["a/mid#1/low#1"].partial == HELD_WORDS
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)
    assert [e.outcome for e in events(run, ev.ToolFinished) if e.agent == "a"] == ["cut"]
    assert (run.status, run.view.winner) == ("completed", "b")


def test_a_graceful_stop_of_the_run_lets_the_call_in_flight_finish(
    tmp_path: Path, gate: Gate
) -> None:
    critic = ScriptedModel(Turn(text="fine", gate=gate))
    a = ScriptedModel(ASK, DONE)
    run = begin(tmp_path, {"a": a}, {"critic": critic})
    gate.wait_reached()
    run.stop()
    gate.open()
    finish(run)
    assert run.status == "cancelled"
    assert told(run) == ["fine"]
    assert outcomes(run) == {"a": "stopped", "a/critic#1": "finished"}
    assert len(a.requests) == 1


def test_graceful_stop_starts_nothing_new_in_a_sub_agent(tmp_path: Path, gate: Gate) -> None:
    listing = Turn(calls=(Call("list_files"),), gate=gate)
    critic = ScriptedModel(listing, Turn(text="fine"))
    run = begin(tmp_path, {"a": ScriptedModel(ASK, DONE)}, {"critic": critic})
    gate.wait_reached()
    run.stop()
    gate.open()
    finish(run)
    assert outcomes(run) == {"a": "stopped", "a/critic#1": "stopped"}
    assert [(e.agent, e.outcome) for e in events(run, ev.ToolFinished)] == [
        ("a/critic#1", "cancelled"),
        ("a", "cut"),
    ]
    assert len(critic.requests) == 1


def test_sub_agent_can_be_stopped_alone(tmp_path: Path, gate: Gate) -> None:
    critic = ScriptedModel(Turn(text=HELD_WORDS, gate=gate))
    run = begin(tmp_path, {"a": ScriptedModel(ASK, DONE)}, {"critic": critic})
    gate.wait_reached()
    run.stop(now=True, agent="a/critic#1")
    finish(run)
    assert (run.status, run.result) == ("completed", "A's")
    assert told(run) == ["Error: the user stopped critic."]
    assert outcomes(run) == {"a": "finished", "a/critic#1": "killed"}


@pytest.mark.parametrize("who", ["a/critic#1", "a"])
def test_graceful_stop_ends_the_waits_of_a_sub_agent(tmp_path: Path, who: str) -> None:
    critic = ScriptedModel(Turn(calls=(Call("write_code", {}),)))
    spec = team({"a": ScriptedModel(ASK, DONE)}, {})
    backend = {"type": "python", "instance": critic}
    backend["tool_policy"] = [{"match": "write_code", "action": "ask"}]
    given = {"id": "critic", "backend": backend}
    spec = TeamSpec.model_validate({"agents": list(spec.agents), "callable_agents": [given]})
    run = nb_agents.start(
        "the task", spec, "s", options=RunOptions(session_root=tmp_path), tools=[write_code]
    )
    wait_until(lambda: run.view.gates, WAIT_S, "the question")
    run.stop(agent=who)
    finish(run)
    assert len(critic.requests) == 1
    assert outcomes(run)["a/critic#1"] == "stopped"


def write_code() -> str:
    """Write code."""
    return "written"


@pytest.mark.parametrize("now", [False, True], ids=["graceful", "immediate"])
@pytest.mark.parametrize("who", ["a", None], ids=["of the caller", "of the run"])
def test_stop_during_creation_reaches_the_sub_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool, who: str | None
) -> None:
    place = SubAgents._open_workspace

    def stopped_in_between(self: SubAgents, *args: Any) -> tuple[str, Path]:
        made = place(self, *args)
        run.stop(now=now, agent=who)  # in a worker thread, as its token is not made yet
        return made

    monkeypatch.setattr(SubAgents, "_open_workspace", stopped_in_between)
    critic, other = ScriptedModel(Turn(text="fine")), Gate()
    b = ScriptedModel(Answer("B's", gate=other), Turn(text="B's"))
    began = Gate()
    a = ScriptedModel(Turn(calls=ASK.calls, gate=began))
    run = begin(tmp_path, {"a": a, "b": b}, {"critic": critic})
    began.wait_reached()
    other.wait_reached()
    began.open()
    wait_until(lambda: run.view.agents["a"].outcome is not None)
    other.open()
    finish(run)
    assert critic.requests == []
    assert outcomes(run)["a"] in ("stopped", "killed")
    assert outcomes(run).get("a/critic#1", "never started") == "never started"
    assert run.status == ("completed" if who else "cancelled")


def test_receipt_of_a_stopped_run_lists_sub_agents(tmp_path: Path, gate: Gate) -> None:
    given = {"critic": ScriptedModel(Turn(text="fine"), Turn(text=HELD_WORDS, gate=gate))}
    run = begin(tmp_path, {"a": ScriptedModel(ASK, ASK, DONE)}, given)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert outcomes(run) == {"a": "killed", "a/critic#1": "finished", "a/critic#2": "killed"}
    saved = json.loads((run.path / "metadata.json").read_text())["receipt"]["agents"]
    assert {k: v["outcome"] for k, v in saved.items()} == outcomes(run)


# From a function -----------------------------------------------------------------------------


async def review(text: str) -> str:
    """Have a text reviewed."""
    return "reviewed: " + await nb_agents.call("critic", text)


def review_plainly(text: str) -> str:
    """Have a text reviewed."""
    return "reviewed: " + asyncio.run(nb_agents.call("critic", text))


FUNCTIONS: list[Callable[..., Any]] = [review, review_plainly]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_calls_an_agent(tmp_path: Path, function: Callable[..., Any]) -> None:
    use = Turn(calls=(Call(function.__name__, {"text": "my text"}),))
    critic = ScriptedModel(Turn(text="fine"))
    run = finish(
        begin(tmp_path, {"a": ScriptedModel(use, DONE)}, {"critic": critic}, (), tools=[function])
    )
    assert told(run) == ["reviewed: fine"]
    assert run.view.agents["a/critic#1"].caller == "a"
    assert "my text" in prompt(critic, 0)


@pytest.mark.parametrize("now", [False, True], ids=["graceful", "immediate"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_stop_reaches_the_agent_that_a_function_called(
    tmp_path: Path, gate: Gate, function: Callable[..., Any], now: bool
) -> None:
    use = Turn(calls=(Call(function.__name__, {"text": "my text"}),))
    critic = ScriptedModel(Turn(calls=(Call("list_files"),), gate=gate))
    run = begin(tmp_path, {"a": ScriptedModel(use, DONE)}, {"critic": critic}, tools=[function])
    gate.wait_reached()
    run.stop(now=now)
    if not now:
        gate.open()
    finish(run)
    assert run.status == "cancelled"
    assert outcomes(run)["a/critic#1"] == ("killed" if now else "stopped")
    assert [e.outcome for e in events(run, ev.ToolFinished) if e.agent == "a"] == ["cut"]
    assert critic.open_streams == 0


def test_circular_call_from_a_function_is_refused(tmp_path: Path) -> None:
    use = Turn(calls=(Call("review", {"text": "my text"}),))
    critic = ScriptedModel(use, Turn(text="fine"))
    run = finish(
        begin(tmp_path, {"a": ScriptedModel(use, DONE)}, {"critic": critic}, tools=[review])
    )
    assert "it waits for this call (a → critic → critic)" in told(run, "a/critic#1")[0]
    assert told(run) == ["reviewed: fine"]


def test_function_can_handle_a_failed_sub_agent(tmp_path: Path) -> None:
    async def careful(text: str) -> str:
        try:
            return await nb_agents.call("nobody", text)
        except ToolError as exc:
            return f"done without: {exc}"

    use = Turn(calls=(Call("careful", {"text": "t"}),))
    run = finish(begin(tmp_path, {"a": ScriptedModel(use, DONE)}, {}, (), tools=[careful]))
    assert told(run) == ["done without: there is no agent 'nobody' to call. Call one of: a."]


def test_call_outside_a_run_raises_a_helpful_error() -> None:
    with pytest.raises(UserError, match="in a function that an agent calls as its tool"):
        asyncio.run(nb_agents.call("critic", "x"))


# Resume --------------------------------------------------------------------------------------


def test_resume_continues_interrupted_sub_agents_and_keeps_finished_results(
    tmp_path: Path, gate: Gate
) -> None:
    critic = ScriptedModel(
        Turn(text="first"), Turn(text=HELD_WORDS, gate=gate), Turn(text="second")
    )
    a = ScriptedModel(Turn(calls=(*ASK.calls, *ASK.calls)), DONE)
    run = begin(tmp_path, {"a": a}, {"critic": critic})
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    again = run.resume()
    again.wait(WAIT_S, raise_on_stop=False)
    assert (again.status, again.result) == ("completed", "A's")
    assert len(critic.requests) == 3 and len(a.requests) == 2
    assert told(again) == ["second"]
    assert list(again.view.agents) == ["a", "a/critic#2"]
    assert "first" in prompt(a, 1) and "second" in prompt(a, 1)
    expected = "Runs again: 1 model call interrupted or failed (a/critic#2)."
    assert again.view.notices[0].endswith(expected)


def test_steps_of_a_recipe_call_agents(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: [{id: draft, agent: a, prompt: write it, output: text}]\n")
    critic = ScriptedModel(Turn(text="fine"))
    spec = team({"a": ScriptedModel(ASK, DONE)}, {"critic": critic})
    run = nb_agents.start(
        recipe=path, config=spec, options=RunOptions(session_root=tmp_path / "sessions")
    )
    finish(run)
    assert (run.status, run.view.answer) == ("completed", "A's")
    assert run.view.agents["draft/critic#1"].caller == "draft"
    assert run.view.workspaces == ("main", "draft+critic-1")


@pytest.mark.parametrize("now", [False, True], ids=["graceful", "immediate"])
def test_sub_agent_of_a_step_reacts_to_a_stop_like_the_step(
    tmp_path: Path, gate: Gate, now: bool
) -> None:
    path = write(tmp_path, "steps: [{id: draft, agent: a, prompt: write it}]\n")
    listing = Turn(calls=(Call("list_files"),), gate=gate)
    critic = ScriptedModel(listing, Turn(text="fine"))
    a = ScriptedModel(ASK, DONE)
    spec = team({"a": a}, {"critic": critic})
    run = nb_agents.start(
        recipe=path, config=spec, options=RunOptions(session_root=tmp_path / "sessions")
    )
    gate.wait_reached()
    run.stop(now=now)
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)
    # A graceful stop lets a step in hand come to its end, with all that it calls.
    assert outcomes(run)["draft/critic#1"] == ("killed" if now else "finished")
    assert run.status == ("cancelled" if now else "completed")
    if now:
        again = run.resume()
        again.wait(WAIT_S, raise_on_stop=False)
        assert (again.status, again.view.answer) == ("completed", "A's")
        assert len(a.requests) == 2  # the one that called, and the one that was told


def test_team_in_the_journal_includes_callable_agents(tmp_path: Path) -> None:
    data = {
        "agents": [{"id": "a", "backend": {"type": "demo", "can_call": "c"}}],
        "callable_agents": [{"id": "c", "backend": {"type": "demo"}, "system_message": "Hm."}],
    }
    spec = TeamSpec.model_validate(data)
    run = finish(nb_agents.start("t", spec, options=RunOptions(session_root=tmp_path)))
    kept = TeamSpec.model_validate(events(run, ev.TurnStarted)[0].team)
    assert kept.everyone == spec.everyone
    assert spec.ignored == ()
