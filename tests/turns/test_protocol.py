"""The handle is OS Protocol's Execution: a test for each member of `runs/*.ts` (v0.1.0).

Source: https://github.com/synerops/osprotocol, packages/schema/runs
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic_ai import exceptions as px

import nb_agents
from nb_agents import RunCancelled, RunFailed, RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError, UserError
from nb_agents.options import ApprovalConfig, CancelPolicy, Retry, Timeout
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.cells import VERBS
from tests.kit.models import retry_delay_s
from tests.kit.runs import Run, TurnSpec
from tests.kit.sessions import TurnPaths, new_mark, read_journal
from tests.kit.verbs import run_options
from tests.kit.views import GateView, RunStatus
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, events, finish, metadata, outcome

DOWN = px.ModelUnavailableError("m", "down")


@pytest.fixture
def gate() -> Gate:
    return Gate()


def start(root: Path, *turns: Any, tools: Any = (), **options: Any) -> Run:
    """Start one agent that plays these turns, with these options."""
    team = scripted_team(None, a=ScriptedModel(*turns))
    return nb_agents.start(
        "the task", team, tools=tools, options=RunOptions(**options, session_root=root)
    )


def at_work(gate: Gate) -> Turn:
    """A model call that stays open until the gate is, and decides nothing."""
    return Turn(calls=(Call("write_file", {"path": "x", "content": "y"}),), gate=gate)


def wait_gate(run: Run) -> GateView:
    wait_until(lambda: run.view.gates, what="a question")
    return next(iter(run.view.gates.values()))


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a blocking function in a thread. Return a future for its result."""
    box: list[Any] = []

    def call() -> None:
        try:
            box.append(function(*args))
        except Exception as exc:
            box.append(exc)

    thread = threading.Thread(target=call)
    thread.start()

    def result() -> Any:
        thread.join(WAIT_S)
        return box[0]

    return result


# RunStatus, RunOptions ---------------------------------------------------------------------------


def test_run_status_has_exactly_the_protocols_values() -> None:
    known = ("pending", "in-progress", "awaiting", "completed", "failed", "cancelled")
    assert get_args(RunStatus) == known


def test_on_status_change_is_called_once_per_status_in_order(tmp_path: Path, gate: Gate) -> None:
    told: list[str] = []
    run = start(tmp_path, Answer("A's", gate=gate), on_status_change=told.append)
    gate.wait_reached()
    run.pause()
    run.resume()
    gate.open()
    finish(run)
    assert told == ["in-progress", "awaiting", "in-progress", "completed"]


def test_on_complete_receives_the_result_before_waiters(tmp_path: Path) -> None:
    told: list[Any] = []
    run = start(tmp_path, Answer("A's"), on_complete=told.append, on_failed=told.append)
    assert run.wait(WAIT_S) == "A's"
    assert told == ["A's"]


def test_on_failed_receives_the_error(tmp_path: Path) -> None:
    told: list[Any] = []
    run = start(
        tmp_path,
        Turn(error=px.ModelHTTPError(401, "m")),
        on_complete=told.append,
        on_failed=told.append,
    )
    raised = outcome(run)
    assert isinstance(raised, RunFailed)
    assert [str(each) for each in told] == [str(raised)]


def test_no_end_callback_is_called_for_a_cancelled_run(tmp_path: Path, gate: Gate) -> None:
    told: list[Any] = []
    run = start(tmp_path, Answer("A's", gate=gate), on_complete=told.append, on_failed=told.append)
    gate.wait_reached()
    run.stop(now=True)
    assert isinstance(outcome(run), RunCancelled)
    assert told == []


def test_failing_callback_is_reported_and_has_no_other_effect(tmp_path: Path) -> None:
    def careless(status: str) -> None:
        raise LookupError(f"no {status}")

    run = finish(start(tmp_path, Answer("A's"), on_status_change=careless))
    assert run.result == "A's"
    assert "The hook careless failed: LookupError: no in-progress" in run.view.notices


def test_callbacks_may_call_the_run_and_may_be_async(tmp_path: Path) -> None:
    seen: list[Any] = []
    runs: list[Run] = []
    known = threading.Event()

    async def look(result: object) -> None:
        await asyncio.to_thread(known.wait, WAIT_S)
        seen.append((runs[0].status, result))

    run = start(tmp_path, Answer("A's"), on_complete=look)
    runs.append(run)
    known.set()
    finish(run)
    assert seen == [("completed", "A's")]


GIVEN_TWICE: dict[str, tuple[str, Any]] = {
    "--session-root": ("session_root", "here"),
    "--orchestrator-timeout": ("timeout", 5.0),
    "--from": ("from_turn", 1),
    "--skip-unsupported": ("skip_unsupported", True),
    "--debug": ("debug", True),
}


@pytest.mark.parametrize("flag", GIVEN_TWICE)
def test_flags_extend_options_but_must_not_repeat_them(
    flag: str,
) -> None:
    name, value = GIVEN_TWICE[flag]
    args = {"options": "mine", "debug": False, name: value}
    policy = CancelPolicy()
    made = run_options(args, {"mine": RunOptions(cancel=policy)})
    assert made == replace(RunOptions(cancel=policy), **{name: value})
    with pytest.raises(UserError, match=f"--options mine already sets {flag}"):
        run_options(args, {"mine": made})


def test_timeout_of_zero_is_rejected(tmp_path: Path) -> None:
    options = run_options({"timeout": 0.0, "session_root": tmp_path}, {})
    with pytest.raises(ConfigError, match="must be a positive number"):
        nb_agents.start("t", options=options)


def test_resume_cannot_start_at_another_turn(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="from_turn can only be used with start"):
        nb_agents.resume(options=RunOptions(session_root=tmp_path, from_turn=1))


# Execution ---------------------------------------------------------------------------------------


def test_run_has_id_status_and_result(tmp_path: Path) -> None:
    run = start(tmp_path, Answer("A's"))
    assert isinstance(run.id, str)
    assert asyncio.run(_awaited(run)) == "A's"
    assert (run.status, run.result) == ("completed", "A's")


async def _awaited(run: Run) -> str:
    return await run


def test_progress_has_current_total_and_message(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, Answer("A's", gate=gate))
    gate.wait_reached()
    seen = run.progress
    assert (seen.current, seen.total, seen.message) == (1, 0, "round 1")
    gate.open()
    finish(run)
    assert run.progress.message == "complete"


def test_progress_counts_the_steps_of_a_recipe(tmp_path: Path, gate: Gate) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\nsteps:\n"
        "  - {id: one, type: bash, command: 'true'}\n"
        "  - {id: two, agent: a, prompt: p}\n"
    )
    team = scripted_team(None, a=ScriptedModel(Turn("words ", gate=gate)))
    run = nb_agents.start(recipe=recipe, config=team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    seen = run.progress
    assert (seen.current, seen.total, seen.message) == (1, 2, "two")
    gate.open()
    finish(run)
    assert (run.progress.current, run.progress.total) == (2, 2)


def test_logs_contains_the_events(tmp_path: Path) -> None:
    run = finish(start(tmp_path, Answer("A's")))
    assert all(isinstance(line, str) for line in run.logs)
    assert "turn started" in run.logs[0]
    assert any("answer given" in line and "A's" in line for line in run.logs)


def test_pause_lets_calls_in_flight_finish_and_starts_none(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, at_work(gate), Answer("A's"))
    gate.wait_reached()
    run.pause()
    assert (run.status, run.progress.message) == ("awaiting", "paused")
    gate.open()
    wait_until(lambda: events(run, ev.ModelFinished))
    run.pause()  # again: that changes nothing
    assert events(run, ev.ToolStarted) == []
    assert run.resume() is run
    assert run.wait(WAIT_S) == "A's"
    assert [type(e) for e in events(run, ev.Paused, ev.Continued)] == [ev.Paused, ev.Continued]
    before = [e.kind for e in events(run)]
    assert before.index("continued") < before.index("tool_started")


@pytest.mark.parametrize("now", [False, True])
def test_a_stop_ends_a_paused_run(tmp_path: Path, gate: Gate, now: bool) -> None:
    run = start(tmp_path, at_work(gate), Answer("A's"))
    gate.wait_reached()
    run.pause()
    gate.open()
    wait_until(lambda: events(run, ev.ModelFinished))
    run.stop(now)
    assert isinstance(outcome(run), RunCancelled)
    assert not finish(run).view.is_paused
    with pytest.raises(UserError, match="can't be paused: it is over"):
        run.pause()
    assert run.resume().wait(WAIT_S) == "A's"


def test_paused_recipe_starts_no_step(tmp_path: Path, gate: Gate) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\nsteps:\n"
        "  - {id: one, agent: a, prompt: p}\n"
        "  - {id: two, type: bash, command: 'true'}\n"
    )
    team = scripted_team(None, a=ScriptedModel(Turn("words ", gate=gate)))
    run = nb_agents.start(recipe=recipe, config=team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    run.pause()
    gate.open()
    wait_until(lambda: run.view.steps["one"].is_over)
    assert "two" not in run.view.steps
    run.resume()
    run.wait(WAIT_S)
    kinds = [(e.kind, getattr(e, "step", "")) for e in events(run)]
    assert kinds.index(("continued", "")) < kinds.index(("step_started", "two"))


def test_time_of_a_pause_does_not_count(tmp_path: Path, gate: Gate) -> None:
    timeout = Timeout(ms=1500)
    run = start(tmp_path, at_work(gate), Answer("A's"), timeout=timeout)
    gate.wait_reached()
    run.pause()
    paused_at = time.monotonic()
    gate.open()
    wait_until(lambda: time.monotonic() - paused_at > 1.6)
    run.resume()
    assert run.wait(WAIT_S) == "A's"


def test_cancel_resolves_when_the_run_is_stopped_and_saved(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, Answer("A's", gate=gate))
    gate.wait_reached()
    gate.open()
    asyncio.run(run.cancel("enough"))
    assert run.is_over
    assert metadata(run)["run_status"] == run.status


def test_wait_for_approval_with_a_message_opens_a_separate_gate(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, Answer("A's", gate=gate))
    gate.wait_reached()
    given = in_thread(run.wait_for_approval, "Publish it?")
    assert wait_gate(run).prompt == "Publish it?"
    assert run.status == "awaiting"
    run.approve("with a title", by="ann")
    approval = given()
    assert (approval.approved, approval.message, approval.by) == (True, "with a title", "ann")
    assert run.status == "in-progress"
    gate.open()
    finish(run)


def test_wait_for_input_returns_the_users_text(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, Answer("A's", gate=gate))
    gate.wait_reached()
    given = in_thread(run.wait_for_input, "Which city?")
    asked = wait_gate(run)
    assert (asked.prompt, asked.wants) == ("Which city?", "input")
    with pytest.raises(UserError, match=r"is waiting for text. Answer with run\.answer\(text\)"):
        run.approve()
    run.answer("Lyon")
    assert given() == "Lyon"
    assert run.view.approvals == ()
    gate.open()
    finish(run)
    with pytest.raises(UserError, match="has no open question"):
        run.answer("Paris")


def test_question_is_withdrawn_when_its_caller_stops_waiting(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, Answer("A's", gate=gate))
    gate.wait_reached()
    with pytest.raises(TimeoutError):
        run.wait_for_input("Which city?", timeout=0.01)
    wait_until(lambda: run.status == "in-progress" and not run.view.gates)
    gate.open()
    finish(run)


@pytest.mark.parametrize("end", ["completes", "stops"])
def test_question_is_withdrawn_when_the_run_ends(tmp_path: Path, gate: Gate, end: str) -> None:
    run = start(tmp_path, Answer("A's", gate=gate))
    gate.wait_reached()
    given = in_thread(run.wait_for_input, "Which city?")
    wait_gate(run)
    if end == "completes":
        gate.open()
    else:
        run.stop(now=True)
    assert isinstance(given(), UserError)
    finish(run)


def test_tool_can_ask_the_user(tmp_path: Path) -> None:
    def city() -> str:
        """Ask for the city."""
        return nb_agents.ask("Which city?").upper()

    run = start(tmp_path, Turn(calls=(Call("city", {}),)), Answer("A's"), tools=[city])
    assert wait_gate(run).prompt == "Which city?"
    run.answer("Lyon")
    finish(run)
    assert [e.result for e in events(run, ev.ToolFinished)] == ["LYON"]


def test_tool_gets_an_error_if_the_user_refuses_to_answer(tmp_path: Path) -> None:
    def city() -> str:
        """Ask for the city."""
        return nb_agents.ask("Which city?")

    run = start(tmp_path, Turn(calls=(Call("city", {}),)), Answer("A's"), tools=[city])
    wait_gate(run)
    run.deny("none of your business")
    finish(run)
    [told] = events(run, ev.ToolFinished)
    assert told.outcome == "error" and "none of your business" in told.result


def test_a_stop_ends_a_tool_that_asks(tmp_path: Path) -> None:
    def city() -> str:
        """Ask for the city."""
        return nb_agents.ask("Which city?")

    run = start(tmp_path, Turn(calls=(Call("city", {}),)), Answer("A's"), tools=[city])
    wait_gate(run)
    run.stop()
    assert isinstance(outcome(run), RunCancelled)
    finish(run)


def test_stop_of_one_agent_withdraws_the_question_of_its_tool(tmp_path: Path, gate: Gate) -> None:
    def city() -> str:
        """Ask for the city."""
        return nb_agents.ask("Which city?")

    asking = ScriptedModel(Turn(calls=(Call("city", {}),)), Answer("A's"))
    team = scripted_team(None, a=asking, b=ScriptedModel(Answer("B's", gate=gate)))
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path), tools=[city])
    wait_gate(run)
    run.stop(now=True, agent="a")
    wait_until(lambda: not run.view.gates and run.status == "in-progress")
    gate.open()
    finish(run)


def test_ask_outside_a_run_is_an_error() -> None:
    with pytest.raises(UserError, match="works only in a run"):
        nb_agents.ask("Which city?")


def test_line_magic_has_the_same_verbs() -> None:
    assert {"stop", "pause", "unpause", "approve", "deny", "answer", "log"} <= VERBS.keys()


def test_resumed_run_keeps_options_that_are_not_replaced(tmp_path: Path, gate: Gate) -> None:
    told: list[Any] = []
    timeout = Timeout(seconds=50)
    run = start(tmp_path, at_work(gate), Answer("A's"), timeout=timeout, on_complete=told.append)
    gate.wait_reached()
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    again = run.resume(options=replace(run.options, timeout=60.0))
    again.wait(WAIT_S)
    assert (again.view.timeout_s, told) == (60.0, ["A's"])


# Cancel ------------------------------------------------------------------------------------------


def test_cancel_uses_reason_and_level_of_the_policy(tmp_path: Path, gate: Gate) -> None:
    policy = CancelPolicy(graceful=False, reason="the policy's")
    run = start(tmp_path, Answer("A's", gate=gate), cancel=policy)
    gate.wait_reached()
    asyncio.run(run.cancel())
    assert run.view.stop is not None
    assert (run.view.stop.level, run.view.stop.reason) == ("immediate", "the policy's")


def test_before_cancel_vetoes_and_after_cancel_runs_once(tmp_path: Path, gate: Gate) -> None:
    after: list[Any] = []
    policy = CancelPolicy(before_cancel=lambda request: False, after_cancel=after.append)
    run = start(tmp_path, Answer("A's", gate=gate), cancel=policy)
    gate.wait_reached()
    assert run.stop().status == "vetoed"
    run.stop(now=True)
    finish(run)
    assert [receipt.path for receipt in after] == [str(run.path)]


def test_graceful_stop_becomes_immediate_after_its_grace_time(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, Answer("A's", gate=gate), cancel=CancelPolicy(grace_timeout_s=0.01))
    gate.wait_reached()
    run.stop()
    assert isinstance(outcome(run), RunCancelled)
    assert run.view.stop is not None and run.view.stop.level == "immediate"


# Timeout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "status"), [("fail", "failed"), ("cancel", "cancelled"), ("continue", "completed")]
)
def test_each_on_timeout_value_has_its_effect(
    tmp_path: Path, gate: Gate, action: Any, status: str
) -> None:
    asked: list[Any] = []
    timeout = Timeout(ms=10, on_timeout=action, callback=asked.append)
    run = start(tmp_path, at_work(gate), Answer("A's"), timeout=timeout)
    wait_until(lambda: asked)
    if action == "continue":
        wait_until(
            lambda: any("The run continues (on_timeout: continue)" in n for n in run.view.notices)
        )
    else:
        wait_until(lambda: run.view.stop)
    gate.open()
    assert finish(run).status == status
    assert [request.source for request in asked] == ["timeout"]


def test_timeout_is_in_seconds_or_milliseconds() -> None:
    assert Timeout(ms=1500).total_s == Timeout(seconds=1.5).total_s == 1.5
    for wrong in ({}, {"ms": 1, "seconds": 1}, {"ms": 0}, {"seconds": float("nan")}):
        with pytest.raises(UserError):
            Timeout(**wrong)
    with pytest.raises(UserError, match="on_timeout is 'explode'"):
        Timeout(ms=1, on_timeout="explode")  # type: ignore[arg-type]


# Retry -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("none", [2, 2, 2, 2]), ("linear", [2, 4, 6, 7]), ("exponential", [2, 4, 7, 7])],
)
def test_delays_match_the_protocols_table(backoff: Any, delays: list[float]) -> None:
    retry = Retry(attempts=4, delay=2, backoff=backoff, max_delay=7)
    assert [retry_delay_s(DOWN, attempt, retry) for attempt in range(1, 6)] == [*delays, None]


def test_retry_limits_attempts_and_calls_on_retry(tmp_path: Path) -> None:
    told: list[Any] = []
    retry = Retry(attempts=2, delay=0, on_retry=lambda error, n: told.append((str(error), n)))
    run = finish(start(tmp_path, Turn(error=DOWN), retry=retry))
    assert run.status == "failed"
    assert [e.attempt for e in events(run, ev.ModelStarted)] == [1, 2, 3]
    assert told == [(str(DOWN), 1), (str(DOWN), 2)]


@pytest.mark.parametrize(("error", "wanted"), [(DOWN, False), (ValueError("odd"), True)])
def test_should_retry_decides(tmp_path: Path, error: Exception, wanted: bool) -> None:
    asked: list[Exception] = []

    def should_retry(each: Exception) -> bool:
        asked.append(each)
        return wanted

    retry = Retry(attempts=1, delay=0, should_retry=should_retry)
    run = finish(start(tmp_path, Turn(error=error), Answer("A's"), retry=retry))
    assert run.status == ("completed" if wanted else "failed")
    assert asked == [error]


def test_stop_ends_the_wait_before_a_retry_immediately(tmp_path: Path) -> None:
    run = start(tmp_path, Turn(error=DOWN), retry=Retry(delay=50.0))
    wait_until(lambda: events(run, ev.ModelFailed))
    assert events(run, ev.ModelFailed)[0].retry_in_s == 50.0
    run.stop()
    assert isinstance(outcome(run), RunCancelled)


def test_team_file_can_set_the_retries(tmp_path: Path) -> None:
    model = ScriptedModel(Turn(error=DOWN))
    agent = {"id": "a", "backend": {"type": "python", "instance": model}}
    retry = {"attempts": 1, "delay": 0.0, "backoff": "linear"}
    team = TeamSpec.model_validate({"agents": [agent], "retry": retry})
    finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert len(model.requests) == 2
    with pytest.raises(ValueError, match="backoff"):
        TeamSpec.model_validate({"agents": [agent], "retry": {"backoff": "cubic"}})


def test_team_file_sets_stop_behaviour_and_approvers(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    lines = "agents:\n  - backend: {type: demo}\n"
    lines += "cancel: {grace_timeout: never, graceful: false, reason: too dear}\n"
    lines += "approval: {approvers: [ann, ben], required_approvals: 2, timeout: 60}\n"
    path.write_text(lines)
    spec, paths = TeamSpec.from_file(path), TurnPaths(tmp_path / "s" / "turn_1")
    turn_spec = TurnSpec("t", spec, paths, new_mark())
    policy, approval = turn_spec.cancel, turn_spec.approval
    assert (policy.grace_timeout_s, policy.graceful, policy.reason) == (None, False, "too dear")
    assert approval == ApprovalConfig(60, approvers=("ann", "ben"), required_approvals=2)
    own = CancelPolicy(grace_timeout_s=1)
    assert TurnSpec("t", spec, paths, new_mark(), options=RunOptions(cancel=own)).cancel is own
    run = nb_agents.start("t", path, options=RunOptions(session_root=tmp_path / "sessions"))
    assert run.policy == policy
    run.stop(now=True)
    finish(run)
    path.write_text(lines.replace("als: 2", "als: 3"))
    with pytest.raises(ConfigError, match="3 approvals are required, but there are only 2"):
        TeamSpec.from_file(path)


def test_mistake_in_a_team_files_retry_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text("agents:\n  - backend: {type: demo}\nretry:\n  attemps: 2\n")
    with pytest.raises(ConfigError, match="attempts"):
        TeamSpec.from_file(path)


# Approval, ApprovalConfig ------------------------------------------------------------------------


@pytest.mark.parametrize("auto", [True, False])
def test_an_approval_is_decided_by_its_timeout(tmp_path: Path, gate: Gate, auto: bool) -> None:
    config = ApprovalConfig(timeout=0.01, auto_approve_on_timeout=auto)
    run = start(tmp_path, Answer("A's", gate=gate), approval=config)
    gate.wait_reached()
    given = run.wait_for_approval("Publish it?", timeout=WAIT_S)
    assert (given.approved, given.by) == (auto, "timeout")
    [asked] = events(run, ev.ApprovalAsked)
    assert (asked.timeout_s, asked.default) == (0.01, "approve" if auto else "deny")
    gate.open()
    finish(run)


def test_required_number_of_listed_approvers_must_approve_a_call(
    tmp_path: Path, gate: Gate
) -> None:
    config = ApprovalConfig(approvers=("ann", "bob", "cyd"), required_approvals=2)
    run = start(tmp_path, Answer("A's", gate=gate), approval=config)
    gate.wait_reached()
    given = in_thread(run.wait_for_approval, "Publish it?")
    wait_gate(run)
    with pytest.raises(
        UserError, match="'eve' is not an approver of this run. Approvers: ann, bob"
    ):
        run.approve(by="eve")
    run.approve("fine", by="ann")
    run.approve("fine", by="ann")  # again: she counts once
    assert run.view.approvals == ()
    run.approve(by="cyd")
    approval = given()
    assert (approval.approved, approval.message, approval.by) == (True, "fine", "ann, cyd")
    gate.open()
    finish(run)


def test_request_and_answer_are_recorded_with_their_times(tmp_path: Path, gate: Gate) -> None:
    config = ApprovalConfig(timeout=60)
    run = start(tmp_path, Answer("A's", gate=gate), approval=config)
    gate.wait_reached()
    given = in_thread(run.wait_for_approval, "Publish it?")
    wait_gate(run)
    run.deny("not yet", by="bob")
    approval = given()
    gate.open()
    finish(run)
    kept = read_journal(run.path / "events.jsonl").events
    [asked] = [e for e in kept if isinstance(e, ev.ApprovalAsked)]
    [answered] = [e for e in kept if isinstance(e, ev.ApprovalGiven)]
    assert (asked.prompt, asked.timeout_s, asked.step) == ("Publish it?", 60, answered.step)
    assert (answered.approved, answered.message, answered.by) == (False, "not yet", "bob")
    assert approval.at == answered.at >= asked.at > 0


def test_one_denial_is_enough_for_a_call(tmp_path: Path, gate: Gate) -> None:
    config = ApprovalConfig(approvers=("ann", "bob"), required_approvals=2)
    run = start(tmp_path, Answer("A's", gate=gate), approval=config)
    gate.wait_reached()
    given = in_thread(run.wait_for_approval, "Publish it?")
    wait_gate(run)
    run.approve(by="ann")
    run.deny("not yet", by="bob")
    assert (given().approved, given().by) == (False, "bob")
    gate.open()
    finish(run)


def test_impossible_approval_is_rejected() -> None:
    for wrong in (
        {"required_approvals": 0},
        {"approvers": ("ann",), "required_approvals": 2},
        {"approvers": "ann"},
        {"timeout": 0},
    ):
        with pytest.raises(UserError):
            ApprovalConfig(**wrong)  # type: ignore[arg-type]
