"""Timeouts of called recipes: what they apply to, what they cancel, and what a resume does."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import RunFailed
from nb_agents.options import ApprovalConfig
from nb_agents.testing import Call, Gate, ScriptedModel, Turn
from tests.canaries import KEY
from tests.kit.agents import PauseGate, RunPolicy, bind_policy
from tests.kit.recipes import Failed, GateWork, Limit, Progress, SubRecipeTimeouts, fold, plan
from tests.kit.runs import CancellationStatus, CancelToken, Run, preview
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, wait_until
from tests.recipes.live import (
    answering,
    begin,
    commands_alive,
    ran,
    resume,
    wait_for_gate,
    write,
)
from tests.recipes.play import LATE, Fail, Play, late, recipe
from tests.team_kit import WAIT_S, events, finish

# The plan ----------------------------------------------------------------------------------------

MAIN = """
steps:
- {{id: s, type: recipe, recipe: sub.yaml, output: s, {more}}}
- {{id: end, agent: x, prompt: do, output: end}}
"""
SUB = """
steps:
- {id: a, agent: x, prompt: do, output: a}
- {id: b, type: bash, command: do, on_error: continue, output: b}
- {id: c, agent: x, prompt: do, output: c}
"""
GATED = """
stages:
- name: x
  steps: [{id: a, agent: x, prompt: do}]
  approval: {required: true, prompt: "go?"}
- {name: y, steps: [{id: b, agent: x, prompt: do}]}
"""
BESIDE = """
context: {kinds: [agent, bash]}
steps:
- id: each
  foreach: "{{kinds}}"
  parallel: true
  steps:
  - {id: a, agent: x, prompt: do, condition: "{{item}} == 'agent'"}
  - {id: b, type: bash, command: do, condition: "{{item}} == 'bash'"}
"""


def calling(more: str = "timeout: 5", sub: str = SUB, **options: Any) -> Play:
    """Return a recipe that calls another one, then asks an agent."""
    text = recipe(MAIN.format(more=more))
    return Play(text, recipes={"sub.yaml": recipe(sub, "sub")}, **options)


def outcomes(progress: Progress) -> dict[str, str]:
    """Return the outcomes of units by address."""
    return {address: unit.outcome for address, unit in progress.units.items()}


@pytest.mark.parametrize("more", ["on_error: fail", "timeout: null"])
def test_called_recipe_has_no_default_limit(more: str) -> None:
    assert calling(more).run().limits == []


@pytest.mark.parametrize("written", ["2.5", "'{{t}}'"])
def test_limit_is_a_number_or_a_template(written: str) -> None:
    play = calling(f"timeout: {written}", context={"t": 2.5}).run()

    assert play.limits == [Limit("s", 2.5)]


def test_invalid_limit_fails_the_step() -> None:
    play = calling("timeout: '{{t}}'", context={"t": "soon"}).run()

    said = "'soon' is not a number of seconds above 0."
    assert play.ended == Failed(("s",), f"/recipes/main.yaml:6:3: {said}")
    assert play.addresses == []


def test_limit_applies_to_each_iteration() -> None:
    more = "timeout: '{{item}}', foreach: '{{xs}}', parallel: true"
    play = calling(more, context={"xs": [5, 7]}).run()

    assert play.limits == [Limit("s[0]", 5), Limit("s[1]", 7)]


def test_limits_of_outer_recipes_come_first() -> None:
    deep = "steps: [{id: deep, type: recipe, recipe: deep.yaml, timeout: 1}]"
    play = calling("timeout: 5", deep)
    play.recipes = {**play.recipes, "deep.yaml": recipe(SUB, "deep")}
    play.run(cut=8)

    assert plan(play.progress).limits == (Limit("s", 5), Limit("s/deep", 1))


def test_timeout_fails_the_step_and_starts_nothing_inside() -> None:
    play = calling(late=late({"s": "s/b"})).run()

    assert play.ended == Failed(("s",), LATE)
    assert play.addresses == ["s/a", "s/b"]
    assert outcomes(play.progress) == {"s": "failed", "s/a": "ok", "s/b": "failed"}
    assert play.progress.units["s/b"].why == LATE


@pytest.mark.parametrize(
    "on_error, asked", [("continue", ["s/a", "s/b", "end"]), ("skip_remaining", ["s/a", "s/b"])]
)
def test_on_error_of_the_step_applies_to_a_timeout(on_error: str, asked: list[str]) -> None:
    play = calling(f"timeout: 5, on_error: {on_error}", late=late({"s": "s/b"})).run()

    assert play.addresses == asked
    assert play.outputs["s"] is None


def test_timeout_of_one_iteration_does_not_affect_others() -> None:
    more = "timeout: 5, foreach: '{{xs}}', parallel: true, on_error: continue, collect: all"
    play = calling(more, context={"xs": [1, 2]}, late=late({"s[0]": "s[0]/a"})).run()

    assert [given and list(given) for given in play.outputs["all"]] == [None, ["a", "b", "c"]]
    assert play.progress.units["s[0]/a"].outcome == "failed"


def test_step_fails_after_all_its_running_work_has_ended() -> None:
    play = calling(sub=BESIDE).run(cut=12)
    over = fold([ev.StepFailed(step="s", attempt=1, error=LATE)], play.progress)

    now = plan(over, frozenset({"s/each[1]/b"}))
    assert (now.work, now.limits, now.ended) == ((), (), None)
    assert [(e.step, e.outcome) for e in now.events if isinstance(e, ev.StepFinished)] == [
        ("s", "failed")
    ]
    then = plan(fold(now.events, over))
    assert then.ended == Failed(("s",), LATE)
    assert {e.step for e in then.events if isinstance(e, ev.StepFinished)} == {
        address for address, outcome in outcomes(play.progress).items() if not outcome
    } - {"s"}


def test_open_gate_is_withdrawn_and_asks_again_after_a_resume() -> None:
    def while_it_waits(progress: Progress, limits: Any) -> str:
        return "s" if "s/x" in progress.gates else ""

    play = calling(sub=GATED, late=while_it_waits).run()

    assert play.ended == Failed(("s",), LATE)
    (given,) = [e for e in play.journal if isinstance(e, ev.ApprovalGiven)]
    assert (given.step, given.approved, given.message, given.by) == ("s/x", False, LATE, "timeout")

    again = calling(sub=GATED, journal=play.journal).run()
    assert again.addresses == ["s/x", "s/y/b", "end"]
    assert [work.address for work in again.done if isinstance(work, GateWork)] == ["s/x"]


def test_resume_starts_interrupted_work_and_keeps_finished_work() -> None:
    play = calling(late=late({"s": "s/b"})).run()

    again = calling(journal=play.journal).run()

    assert again.addresses == ["s/b", "s/c", "end"]  # s/b would fail, but had not yet
    assert again.outputs["s"] == {"a": "<s/a>", "b": "<s/b>", "c": "<s/c>"}


def test_tolerated_failure_inside_is_kept() -> None:
    play = calling(late=late({"s": "s/c"}))
    play.outcomes = {"s/b": Fail()}
    play.run()
    assert play.ended == Failed(("s",), LATE)

    again = calling(journal=play.journal).run()

    assert again.addresses == ["s/c", "end"]


def test_resume_restarts_the_clock() -> None:
    play = calling(late=late({"s": "s/b"})).run()
    again = calling(journal=play.journal, late=late({"s": "s/c"})).run()
    assert again.ended == Failed(("s",), LATE)

    last = calling(journal=again.journal).run()

    assert (again.addresses, last.addresses) == (["s/b", "s/c"], ["s/c", "end"])


def test_tolerated_timeout_is_kept_after_a_resume() -> None:
    more = "timeout: 5, on_error: continue"
    play = calling(more, late=late({"s": "s/b"}))
    play.outcomes = {"end": Fail()}
    play.run()

    again = calling(more, journal=play.journal).run()

    assert again.addresses == ["end"]
    assert again.outputs["s"] is None


@pytest.mark.parametrize(
    "on_error, told, asked",
    [
        ("fail", 1, ["s/b", "s/c", "end"]),
        ("fail", 2, ["s/b", "s/c", "end"]),
        ("continue", 1, ["s/b", "s/c", "end"]),
        ("continue", 2, ["end"]),  # the step has failed, and the recipe continues
    ],
)
def test_kernel_can_die_during_the_cancellation(on_error: str, told: int, asked: list[str]) -> None:
    more = f"timeout: 5, on_error: {on_error}"
    play = calling(more, late=late({"s": "s/b"})).run()
    noted = next(i for i, e in enumerate(play.journal) if isinstance(e, ev.StepFailed))

    again = calling(more, journal=play.journal[: noted + told]).run()

    assert again.addresses == asked
    assert "" not in outcomes(again.progress).values()


def test_resume_retries_earlier_failures_too() -> None:
    def when_a_failed(progress: Progress, limits: Any) -> str:
        failed = progress.units.get("s/each[0]")
        return "s" if failed and failed.outcome == "failed" else ""

    play = calling(sub=BESIDE, late=when_a_failed)
    play.outcomes = {"s/each[0]/a": Fail()}
    play.order = lambda addresses: addresses[0]
    play.run()
    assert play.ended == Failed(("s",), LATE)

    again = calling(sub=BESIDE, journal=play.journal).run()

    assert sorted(again.addresses) == ["end", "s/each[0]/a", "s/each[1]/b"]


def test_timeout_of_an_outer_recipe_ends_inner_ones() -> None:
    deep = "steps: [{id: deep, type: recipe, recipe: deep.yaml, timeout: 1, on_error: continue}]"

    def made(**options: Any) -> Play:
        play = calling("timeout: 5", deep, **options)
        play.recipes = {**play.recipes, "deep.yaml": recipe(SUB, "deep")}
        return play

    play = made(late=late({"s": "s/deep/b"})).run()
    assert outcomes(play.progress)["s/deep"] == "failed"

    again = made(journal=play.journal).run()

    assert again.limits == [Limit("s", 5), Limit("s/deep", 1)]
    assert again.addresses == ["s/deep/b", "s/deep/c", "end"]


# The executor ------------------------------------------------------------------------------------

# Longer than a busy machine needs to start the work that is then cancelled.
LIMIT_S = 3

CALL = """
steps:
- {{id: sub, type: recipe, recipe: sub.yaml, output: sub, timeout: {timeout}{more}}}
- {{id: after, type: bash, command: "echo after {{{{sub}}}}", output: after}}
"""
ALL_AT_ONCE = """
context: {kinds: [talk, work, deep, ask]}
steps:
- id: both
  foreach: "{{kinds}}"
  parallel: true
  steps:
  - {id: talk, agent: worker, condition: "{{item}} == 'talk'", prompt: talk}
  - {id: work, type: bash, condition: "{{item}} == 'work'",
     command: "touch ../begun; sleep 999 & sleep 999"}
  - {id: deep, type: recipe, recipe: deep.yaml, condition: "{{item}} == 'deep'"}
  - {id: ask, type: recipe, recipe: ask.yaml, condition: "{{item}} == 'ask'"}
- {id: never, type: bash, command: "touch ../never"}
"""
DEEP = """
steps:
- {id: one, type: bash, command: "echo one"}
- {id: two, type: bash, command: "touch ../deep; trap '' TERM; while true; do sleep 1; done"}
"""
ASK = """
stages:
- name: ask
  steps: [{id: none, type: bash, command: "true"}]
  approval: {required: true, prompt: "Now?"}
- {name: then, steps: [{id: never, type: bash, command: "touch ../never"}]}
"""


def calling_for_real(root: Path, sub: str, timeout: float, more: str = "", **options: Any) -> Run:
    """Run a recipe that calls another one."""
    write(root, sub, "sub")
    text = CALL.format(timeout=timeout, more=f", {more}" if more else "")
    return begin(write(root, text), **options)


def test_timeout_cancels_all_running_work_of_a_recipe(tmp_path: Path) -> None:
    write(tmp_path, DEEP, "deep")
    write(tmp_path, ASK, "ask")
    write(tmp_path, ALL_AT_ONCE, "sub")
    path = write(tmp_path, CALL.format(timeout=8, more=", on_error: continue"))
    with ModelServer() as server:
        server.script("m", Reply(text="so far", hang_after=2))
        backend = {"type": "chatcompletion", "base_url": server.url, "api_key": KEY, "model": "m"}
        team = TeamSpec.model_validate({"agents": [{"id": "worker", "backend": backend}]})
        run = nb_agents.start(
            recipe=path, config=team, options=RunOptions(session_root=tmp_path / "sessions")
        )
        workspaces = run.path / "workspaces"
        for name in ("begun", "deep"):
            wait_until(lambda name=name: (workspaces / name).exists(), WAIT_S, name)
        assert wait_for_gate(run) == ["sub/both[3]/ask/ask"]
        wait_until(lambda: "sub/both[0]/talk" in run.view.agents, WAIT_S, "the agent")
        wait_until(lambda: run.view.agents["sub/both[0]/talk"].partial, WAIT_S, "its words")
        assert commands_alive(tmp_path) != []

        finish(run)

        assert commands_alive(tmp_path) == []
        wait_until(lambda: server.requests[0].closed_by, WAIT_S, "the stream's end")
        assert server.requests[0].closed_by == "client"
    assert (run.status, run.result) == ("completed", {"sub": None, "after": "after"})
    assert not (workspaces / "never").exists()
    said = "The recipe took longer than 8 s."
    steps = run.view.steps
    assert (steps["sub"].status, steps["sub"].why) == ("failed", said)
    assert {a: s.status for a, s in steps.items() if s.unit in ("agent", "bash")} == {
        "sub/both[0]/talk": "failed",
        "sub/both[1]/work": "failed",
        "sub/both[2]/deep/one": "ok",
        "sub/both[2]/deep/two": "failed",
        "sub/both[3]/ask/ask/none": "ok",
        "after": "ok",
    }
    assert run.view.agents["sub/both[0]/talk"].partial == "so far"
    assert [(a.address, a.approved, a.by, a.message) for a in run.view.approvals] == [
        ("sub/both[3]/ask/ask", False, "timeout", said)
    ]
    assert [step for step in steps.values() if not step.is_over] == []
    assert run.view.stop is None


WAITS = """
steps:
- {id: one, type: bash, command: "echo one", output: one}
- {id: two, type: bash, output: two,
   command: "if [ -e go ]; then echo two; else touch begun; sleep 999 & sleep 999; fi"}
"""


def test_resume_continues_work_that_a_timeout_interrupted(tmp_path: Path) -> None:
    run = finish(calling_for_real(tmp_path, WAITS, LIMIT_S))
    assert run.status == "failed"
    with pytest.raises(RunFailed, match=f"The recipe took longer than {LIMIT_S} s."):
        run.wait(0)
    assert commands_alive(tmp_path) == []
    assert (
        run.view.notices[-1]
        == f"The recipe failed at sub: The recipe took longer than {LIMIT_S} s."
    )
    assert str(preview("s", session_root=tmp_path / "sessions")) == (
        "Resumes turn 1: 1 finished step and 0 finished model calls are kept. "
        "Runs again: the command of sub/two (it failed)."
    )
    (run.path / "workspaces/main/go").touch()

    again = finish(resume(run))

    assert again.result["sub"] == {"one": "one", "two": "two"}
    assert ran(again) == ["sub/two", "after"]


def test_finished_calls_of_an_interrupted_agent_are_kept(tmp_path: Path) -> None:
    gate = Gate()
    note = Call("write_file", {"path": "note.md", "content": "noted"})
    model = ScriptedModel(Turn(calls=(note,)), Turn(text="never", gate=gate))
    sub = "steps: [{id: draft, agent: worker, prompt: Draft it, output: draft}]"
    run = calling_for_real(tmp_path, sub, LIMIT_S, model=model)
    gate.wait_reached()
    finish(run)
    gate.open()
    assert (run.status, len(model.requests)) == ("failed", 2)
    assert run.view.agents["sub/draft"].outcome == "failed"

    again = finish(resume(run, answering("drafted")))

    assert again.result["sub"] == {"draft": "drafted"}
    assert len(events(again, ev.ModelStarted)) == 1
    assert events(again, ev.ToolStarted) == []


def test_time_waiting_only_for_the_user_does_not_count(tmp_path: Path) -> None:
    """The gate decides by timeout after the recipe's limit would have passed."""
    ask = ASK.replace('"Now?"', '"Now?", timeout: 3.5, default: approve').replace("touch", "echo")
    run = finish(calling_for_real(tmp_path, ask, LIMIT_S))
    assert (run.status, run.view.approvals[0].by) == ("completed", "timeout")
    assert run.view.approvals[0].approved


@pytest.mark.parametrize("place", ["step", "recipe"])
def test_time_asking_about_a_tool_does_not_count(tmp_path: Path, place: str) -> None:
    """The question times out after the limits of the step and the recipe would have passed."""
    model = ScriptedModel(Turn(calls=(Call("list_data"),)), Turn(text="listed"))
    backend = {
        "type": "python",
        "instance": model,
        "tool_policy": [{"match": "list_data", "action": "ask"}],
    }
    team = TeamSpec.model_validate({"agents": [{"id": "worker", "backend": backend}]})

    def list_data() -> str:
        """List it."""
        return "data"

    limits = (f"timeout: {LIMIT_S}", "") if place == "step" else ("", f"timeout: {LIMIT_S}, ")
    write(
        tmp_path,
        f"steps: [{{id: talk, agent: worker, prompt: List, output: said, {limits[0]}}}]",
        "sub",
    )
    body = f"steps: [{{id: sub, type: recipe, recipe: sub.yaml, {limits[1]}output: sub}}]"
    approval = ApprovalConfig(timeout=3.5, auto_approve_on_timeout=True)
    run = finish(
        nb_agents.start(
            recipe=write(tmp_path, body),
            config=team,
            tools=[list_data],
            options=RunOptions(session_root=tmp_path / "sessions", approval=approval),
        )
    )
    assert run.status == "completed", run.view.notices
    assert run.result == {"sub": {"said": "listed"}}
    assert [a.by for a in run.view.approvals] == ["timeout"]


def test_stopping_recipe_gets_no_extra_time(tmp_path: Path) -> None:
    run = calling_for_real(tmp_path, WAITS, LIMIT_S)
    wait_until((run.path / "workspaces/main/begun").exists, WAIT_S, "the command")
    run.stop()
    finish(run)
    assert (run.status, run.receipt.source) == ("cancelled", "api")
    assert commands_alive(tmp_path) == []
    assert "sub" in [e.step for e in events(run, ev.StepFailed)]
    (run.path / "workspaces/main/go").touch()
    again = finish(resume(run))
    assert (again.status, ran(again)) == ("completed", ["sub/two", "after"])


@pytest.mark.parametrize("end", ["stop", "deny"])
def test_stopped_run_does_not_wait_for_a_clock(tmp_path: Path, end: str) -> None:
    run = calling_for_real(tmp_path, ASK, 600)
    wait_for_gate(run)
    run.stop() if end == "stop" else run.deny()
    assert finish(run).status == "cancelled"
    again = resume(run)
    wait_for_gate(again)
    again.approve()
    assert finish(again).status == "completed"


def test_function_in_a_thread_is_stopped_by_a_timeout(tmp_path: Path) -> None:
    heard = threading.Event()

    def work() -> str:
        """Work until it is stopped."""
        while not nb_agents.should_stop():
            time.sleep(0.01)
        heard.set()
        return "never"

    model = ScriptedModel(Turn(calls=(Call("work"),)), Turn(text="never"))
    sub = "steps: [{id: talk, agent: worker, prompt: Work}]"
    run = calling_for_real(tmp_path, sub, LIMIT_S, "on_error: continue", model=model, tools=[work])
    finish(run)
    assert run.status == "completed"
    assert heard.wait(WAIT_S)


# The clocks --------------------------------------------------------------------------------------


def clocked() -> tuple[SubRecipeTimeouts, CancelToken, list[str]]:
    """Yield running clocks, the run's token, and the list of recipes that timed out."""
    token, over = CancelToken("run"), []
    clocks = SubRecipeTimeouts(
        token, lambda address: False, lambda address, why: over.append(address)
    )
    return clocks, token, over


def test_work_uses_the_innermost_token_and_gets_outer_stops() -> None:
    async def kept() -> None:
        clocks, run, _ = clocked()
        async with anyio.create_task_group() as group:
            clocks.keep(group, [Limit("s", 60), Limit("s/deep", 60)])
            inner, outer = clocks.token("s/deep/x"), clocks.token("s/x")
            assert clocks.token("s2") is run
            assert not inner.is_stopping
            outer.request(CancellationStatus.IMMEDIATE, "timeout")
            assert inner.status is CancellationStatus.IMMEDIATE
            assert not run.is_stopping
            clocks.keep(group, ())  # otherwise the group would not end

    anyio.run(kept)


def test_clock_of_an_ended_recipe_is_cancelled() -> None:
    async def kept() -> None:
        clocks, _, over = clocked()
        async with anyio.create_task_group() as group:
            clocks.keep(group, [Limit("a", 0.05), Limit("b", 0.1)])
            clocks.keep(group, [Limit("b", 0.1)])
        assert over == ["b"]

    anyio.run(kept)


class PausedAtFirst(PauseGate):
    """A pause that ends after the first checks."""

    looks = 0

    @property
    def is_on(self) -> bool:
        self.looks += 1
        return self.looks <= 3


def test_clock_stops_during_a_pause() -> None:
    async def kept() -> None:
        clocks, _, over = clocked()
        hold = PausedAtFirst()
        with bind_policy(RunPolicy(hold)):
            async with anyio.create_task_group() as group:
                clocks.keep(group, [Limit("a", 0.01)])
        assert over == ["a"]
        assert hold.looks > 3

    anyio.run(kept)


def test_clock_stops_while_waiting_only_for_the_user() -> None:
    looks: list[str] = []
    over: list[str] = []

    def only_waits(address: str) -> bool:
        looks.append(address)
        return len(looks) <= 3

    async def kept() -> None:
        clocks = SubRecipeTimeouts(
            CancelToken("run"), only_waits, lambda address, why: over.append(why)
        )
        async with anyio.create_task_group() as group:
            clocks.keep(group, [Limit("a", 0.01)])

    anyio.run(kept)
    assert over == ["The recipe took longer than 0.01 s."]
    assert len(looks) > 3


async def test_recipe_that_ends_at_its_limit_has_not_timed_out() -> None:
    over: list[str] = []
    async with anyio.create_task_group() as group:

        def ends(address: str) -> bool:
            clocks.keep(group, ())
            return False

        clocks = SubRecipeTimeouts(CancelToken("run"), ends, lambda address, why: over.append(why))
        clocks.keep(group, [Limit("a", 0.01)])
    assert over == []
