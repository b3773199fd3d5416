"""The time of a recipe that a step calls: whose it is, what its end cuts, what a resume does."""

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
from nb_agents.agents.stop_scope import PauseGate, RunPolicy, bind_policy
from nb_agents.cancel import CancellationStatus, CancelToken
from nb_agents.config.team import TeamSpec
from nb_agents.errors import RunFailed
from nb_agents.launch.resume import preview
from nb_agents.options import ApprovalConfig
from nb_agents.recipes.plan import plan
from nb_agents.recipes.progress import Progress, fold
from nb_agents.recipes.rate_limiter import SubRecipeTimeouts
from nb_agents.recipes.tasks import Failed, GateWork, Limit
from nb_agents.runs.run import Run
from nb_agents.testing import Call, Gate, ScriptedModel, Turn
from tests.canaries import KEY
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
    """A recipe that calls another one, and then asks an agent."""
    text = recipe(MAIN.format(more=more))
    return Play(text, recipes={"sub.yaml": recipe(sub, "sub")}, **options)


def outcomes(progress: Progress) -> dict[str, str]:
    """How the units stand, by address."""
    return {address: unit.outcome for address, unit in progress.units.items()}


@pytest.mark.parametrize("more", ["on_error: fail", "timeout: null"])
def test_a_called_recipe_has_no_limit_unless_the_file_says_it(more: str) -> None:
    assert calling(more).run().limits == []


@pytest.mark.parametrize("written", ["2.5", "'{{t}}'"])
def test_a_limit_is_a_number_or_a_template(written: str) -> None:
    play = calling(f"timeout: {written}", context={"t": 2.5}).run()

    assert play.limits == [Limit("s", 2.5)]


def test_a_limit_that_is_no_number_fails_the_step() -> None:
    play = calling("timeout: '{{t}}'", context={"t": "soon"}).run()

    said = "'soon' is not a number of seconds above 0."
    assert play.ended == Failed(("s",), f"/recipes/main.yaml:6:3: {said}")
    assert play.addresses == []


def test_each_iteration_of_a_loop_has_the_limit_for_itself() -> None:
    more = "timeout: '{{item}}', foreach: '{{xs}}', parallel: true"
    play = calling(more, context={"xs": [5, 7]}).run()

    assert play.limits == [Limit("s[0]", 5), Limit("s[1]", 7)]


def test_the_limits_of_outer_recipes_are_told_before_those_of_inner_ones() -> None:
    deep = "steps: [{id: deep, type: recipe, recipe: deep.yaml, timeout: 1}]"
    play = calling("timeout: 5", deep)
    play.recipes = {**play.recipes, "deep.yaml": recipe(SUB, "deep")}
    play.run(cut=8)

    assert plan(play.progress).limits == (Limit("s", 5), Limit("s/deep", 1))


def test_when_the_time_is_over_the_step_fails_and_nothing_in_it_begins() -> None:
    play = calling(late=late({"s": "s/b"})).run()

    assert play.ended == Failed(("s",), LATE)
    assert play.addresses == ["s/a", "s/b"]
    assert outcomes(play.progress) == {"s": "failed", "s/a": "ok", "s/b": "failed"}
    assert play.progress.units["s/b"].why == LATE


@pytest.mark.parametrize(
    "on_error, asked", [("continue", ["s/a", "s/b", "end"]), ("skip_remaining", ["s/a", "s/b"])]
)
def test_then_the_steps_own_on_error_applies(on_error: str, asked: list[str]) -> None:
    play = calling(f"timeout: 5, on_error: {on_error}", late=late({"s": "s/b"})).run()

    assert play.addresses == asked
    assert play.outputs["s"] is None


def test_the_time_of_one_iteration_ends_no_other() -> None:
    more = "timeout: 5, foreach: '{{xs}}', parallel: true, on_error: continue, collect: all"
    play = calling(more, context={"xs": [1, 2]}, late=late({"s[0]": "s[0]/a"})).run()

    assert [given and list(given) for given in play.outputs["all"]] == [None, ["a", "b", "c"]]
    assert play.progress.units["s[0]/a"].outcome == "failed"


def test_a_step_fails_once_all_that_it_had_in_hand_has_ended() -> None:
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


def test_a_gate_that_waits_is_taken_back_and_asked_again_after_a_resume() -> None:
    def while_it_waits(progress: Progress, limits: Any) -> str:
        return "s" if "s/x" in progress.gates else ""

    play = calling(sub=GATED, late=while_it_waits).run()

    assert play.ended == Failed(("s",), LATE)
    (given,) = [e for e in play.journal if isinstance(e, ev.ApprovalGiven)]
    assert (given.step, given.approved, given.message, given.by) == ("s/x", False, LATE, "timeout")

    again = calling(sub=GATED, journal=play.journal).run()
    assert again.addresses == ["s/x", "s/y/b", "end"]
    assert [work.address for work in again.done if isinstance(work, GateWork)] == ["s/x"]


def test_a_resume_begins_what_was_cut_and_keeps_what_had_finished() -> None:
    play = calling(late=late({"s": "s/b"})).run()

    again = calling(journal=play.journal).run()

    assert again.addresses == ["s/b", "s/c", "end"]  # though s/b may fail: it had not
    assert again.outputs["s"] == {"a": "<s/a>", "b": "<s/b>", "c": "<s/c>"}


def test_what_had_failed_in_it_and_was_allowed_to_stays_so() -> None:
    play = calling(late=late({"s": "s/c"}))
    play.outcomes = {"s/b": Fail()}
    play.run()
    assert play.ended == Failed(("s",), LATE)

    again = calling(journal=play.journal).run()

    assert again.addresses == ["s/c", "end"]


def test_a_resume_counts_the_time_anew() -> None:
    play = calling(late=late({"s": "s/b"})).run()
    again = calling(journal=play.journal, late=late({"s": "s/c"})).run()
    assert again.ended == Failed(("s",), LATE)

    last = calling(journal=again.journal).run()

    assert (again.addresses, last.addresses) == (["s/b", "s/c"], ["s/c", "end"])


def test_a_call_whose_lateness_was_allowed_stays_so_after_a_resume() -> None:
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
        ("continue", 2, ["end"]),  # the step has failed, and the recipe went on
    ],
)
def test_a_kernel_may_die_while_all_is_cut(on_error: str, told: int, asked: list[str]) -> None:
    more = f"timeout: 5, on_error: {on_error}"
    play = calling(more, late=late({"s": "s/b"})).run()
    noted = next(i for i, e in enumerate(play.journal) if isinstance(e, ev.StepFailed))

    again = calling(more, journal=play.journal[: noted + told]).run()

    assert again.addresses == asked
    assert "" not in outcomes(again.progress).values()


def test_a_resume_tries_also_what_had_failed_before_the_time_was_over() -> None:
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


def test_the_end_of_an_outer_recipes_time_is_the_end_of_an_inner_ones() -> None:
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

# Longer than a busy machine needs to begin what is to be cut.
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


def test_all_that_a_recipe_has_in_hand_is_cut_when_its_time_is_over(tmp_path: Path) -> None:
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


def test_a_recipe_that_took_too_long_goes_on_with_what_was_cut(tmp_path: Path) -> None:
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


def test_the_finished_calls_of_an_agent_that_was_cut_are_kept(tmp_path: Path) -> None:
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


def test_the_time_in_which_only_a_person_is_waited_for_does_not_count(tmp_path: Path) -> None:
    """The gate decides by itself after the recipe's time, had that counted, was over."""
    ask = ASK.replace('"Now?"', '"Now?", timeout: 3.5, default: approve').replace("touch", "echo")
    run = finish(calling_for_real(tmp_path, ask, LIMIT_S))
    assert (run.status, run.view.approvals[0].by) == ("completed", "timeout")
    assert run.view.approvals[0].approved


@pytest.mark.parametrize("place", ["step", "recipe"])
def test_the_time_in_which_a_person_is_asked_about_a_tool_does_not_count(
    tmp_path: Path, place: str
) -> None:
    """Nobody's answer decides by itself after the step's and the recipe's time."""
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


def test_a_recipe_that_is_being_stopped_has_no_more_time_than_before(tmp_path: Path) -> None:
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
def test_a_run_that_is_stopped_waits_for_no_clock(tmp_path: Path, end: str) -> None:
    run = calling_for_real(tmp_path, ASK, 600)
    wait_for_gate(run)
    run.stop() if end == "stop" else run.deny()
    assert finish(run).status == "cancelled"
    again = resume(run)
    wait_for_gate(again)
    again.approve()
    assert finish(again).status == "completed"


def test_a_function_in_a_thread_hears_of_the_end_too(tmp_path: Path) -> None:
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
    """Clocks that go, the token of the run, and where it is told whose time is over."""
    token, over = CancelToken("run"), []
    clocks = SubRecipeTimeouts(
        token, lambda address: False, lambda address, why: over.append(address)
    )
    return clocks, token, over


def test_work_stands_under_the_innermost_recipe_and_hears_all_that_hold_it() -> None:
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
            clocks.keep(group, ())  # else the group would not end

    anyio.run(kept)


def test_the_clock_of_a_recipe_that_is_over_never_strikes() -> None:
    async def kept() -> None:
        clocks, _, over = clocked()
        async with anyio.create_task_group() as group:
            clocks.keep(group, [Limit("a", 0.05), Limit("b", 0.1)])
            clocks.keep(group, [Limit("b", 0.1)])
        assert over == ["b"]

    anyio.run(kept)


class PausedAtFirst(PauseGate):
    """A pause that is on for the first looks at it."""

    looks = 0

    @property
    def is_on(self) -> bool:
        self.looks += 1
        return self.looks <= 3


def test_the_clock_stands_still_during_a_pause() -> None:
    async def kept() -> None:
        clocks, _, over = clocked()
        hold = PausedAtFirst()
        with bind_policy(RunPolicy(hold)):
            async with anyio.create_task_group() as group:
                clocks.keep(group, [Limit("a", 0.01)])
        assert over == ["a"]
        assert hold.looks > 3

    anyio.run(kept)


def test_the_clock_stands_still_while_only_a_person_is_waited_for() -> None:
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


async def test_a_recipe_that_ends_as_its_time_does_has_not_taken_too_long() -> None:
    over: list[str] = []
    async with anyio.create_task_group() as group:

        def ends(address: str) -> bool:
            clocks.keep(group, ())
            return False

        clocks = SubRecipeTimeouts(CancelToken("run"), ends, lambda address, why: over.append(why))
        clocks.keep(group, [Limit("a", 0.01)])
    assert over == []
