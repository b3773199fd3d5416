"""External agents whose provider refuses calls wait for it, and continue in their session."""

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import RunFailed
from tests.acp.test_acp_runner import agent, asked, events, start, team
from tests.kit.programs import call_error
from tests.kit.runs import find_run, live_turns, resume_due_turns
from tests.model_server import wait_until
from tests.team_kit import finish, kill_writers

HOUR = {"code": 429, "message": "Quota exceeded. Please try again in 1h."}
SOON = {"code": -32603, "message": "Usage limit reached, try again in 1s."}


def quota(error: dict[str, Any], times: int = 1) -> str:
    return f"quota {times} {json.dumps(error)}"


def waiting_team(*steps: str, limit_s: float = 4000) -> TeamSpec:
    """Return a team whose agent works, is refused once, and has other steps afterwards."""
    work = ("say part one", "tool read notes.txt", "open edit b.py")
    return team(agent("ada", *work, *steps), wait_for_quota=limit_s)


def test_agent_waits_until_the_time_in_the_error_and_continues_its_session(tmp_path: Path) -> None:
    steps = (quota(SOON), "AGAIN", "say done")
    run = finish(start(tmp_path, waiting_team(*steps)))
    assert (run.status, run.result) == ("completed", "done")
    [failed] = events(run, ev.ModelFailed)
    assert (failed.waits_for, failed.wait_limit_s) == ("quota", 4000)
    assert "try again in 1s" in failed.error
    begun = [e.at for e in events(run, ev.ModelStarted)]
    assert begun[1] >= failed.retry_at >= begun[0] + 1
    assert len(asked(run, "ada", "session")) == 1
    [opening, second] = asked(run, "ada", "prompt")
    assert "You were interrupted" not in opening
    assert "You still have the conversation so far" in second and "the task" in second
    assert "You were interrupted while you wrote:\npart one" in second
    assert "may have run in part. Check first before you repeat them:\n- edit b.py" in second
    assert "notes.txt" not in second


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_the_wait_and_a_resume_sends_the_same_prompt(tmp_path: Path, now: bool) -> None:
    living = finish(start(tmp_path / "a", waiting_team(quota(SOON), "AGAIN", "say done")))
    run = start(tmp_path / "b", waiting_team(quota(HOUR), "RESUMED", "say done"))
    wait_until(lambda: run.view.wait)
    assert run.view.wait is not None and run.view.wait.reason == "quota"
    run.stop(now=now)
    finish(run)
    assert (run.status, events(run, ev.AgentFailed)) == ("cancelled", [])
    again = finish(
        nb_agents.resume(run.session, options=RunOptions(session_root=run.path.parents[1]))
    )
    assert (again.status, again.result) == ("completed", "done")
    assert len(set(asked(again, "ada", "session"))) == 1
    prompts = [asked(each, "ada", "prompt") for each in (living, again)]
    assert prompts[0] == prompts[1]


def test_killed_wait_is_resumed_in_the_same_session_when_it_is_over(tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    spec = waiting_team(quota(HOUR), "RESUMED", "say done")
    options = RunOptions(session_root=root, detach=True)
    run = nb_agents.start("the task", spec, "waits", options=options)
    wait_until(lambda: run.view.wait)
    wait = run.view.wait
    assert wait is not None
    kill_writers(root)
    wait_until(lambda: not live_turns(root=root))
    assert [turn.resumed for turn in resume_due_turns(root, wait.until - 1)] == [""]
    assert [turn.resumed for turn in resume_due_turns(root, wait.until)] == ["waits/2"]
    again = find_run("waits/2", root)
    again.wait(200)
    assert (again.status, again.result) == ("completed", "done")
    assert len(set(asked(again, "ada", "session"))) == 1
    [_, second] = asked(again, "ada", "prompt")
    assert "You were interrupted while you wrote:\npart one" in second


def test_agent_that_is_refused_again_waits_again_within_the_limit(tmp_path: Path) -> None:
    run = finish(start(tmp_path, waiting_team(quota(SOON, times=2), "say done", limit_s=3600)))
    assert run.status == "completed"
    waited = [e.waited_s for e in events(run, ev.ModelFailed)]
    assert waited[0] < 1 <= waited[1]
    assert len(asked(run, "ada", "prompt")) == 3


def test_users_message_that_was_refused_is_sent_again(tmp_path: Path) -> None:
    steps = ("say one", "hold held", "AGAIN", quota(SOON), "say two")
    run = start(tmp_path, team(agent("ada", *steps), wait_for_quota=60))
    wait_until((run.path / "workspaces/ada/held").exists)
    run.say("Use metres.")
    finish(run)
    assert run.result == "two"
    [_, refused, repeated] = asked(run, "ada", "prompt")
    assert "Use metres." in refused and repeated.endswith(refused)


@pytest.mark.parametrize(
    ("limit_s", "flags", "error", "message"),
    [
        (0, (), HOUR, "It asks to wait 3,600 s. To allow that, set `wait_for_quota`."),
        (60, (), HOUR, "It asks to wait 3,600 s, but `wait_for_quota` allows only 60 s."),
        (4000, ("--forgetful",), HOUR, "It can't continue its session later"),
        (4000, (), {"code": -32603, "message": "Out of memory."}, "Out of memory."),
    ],
)
def test_prompt_that_is_not_waited_for_fails_immediately(
    tmp_path: Path, limit_s: float, flags: tuple[str, ...], error: dict[str, Any], message: str
) -> None:
    spec = team(agent("ada", *flags, quota(error), "say x"), wait_for_quota=limit_s)
    run = start(tmp_path, spec)
    with pytest.raises(RunFailed) as failure:
        run.wait(200)
    assert message in str(failure.value)
    assert len(asked(run, "ada", "prompt")) == 1


def test_text_about_quotas_is_an_answer(tmp_path: Path) -> None:
    text = "You've hit your usage limit (HTTP 429). Try again in 1h."
    run = finish(start(tmp_path, team(agent("ada", f"say {text}"), wait_for_quota=4000)))
    assert (run.status, run.result) == ("completed", text)
    assert events(run, ev.ModelFailed) == []


def test_answer_before_the_refusal_counts(tmp_path: Path) -> None:
    steps = ("deaf", "answer Mine", quota(HOUR))
    run = finish(start(tmp_path, team(agent("ada", *steps), wait_for_quota=4000)))
    assert (run.status, run.result) == ("completed", "Mine")


LIMIT = {"message": "You've hit your usage limit. Buy more credits."}


@pytest.mark.parametrize(
    ("code", "message", "data", "status"),
    [
        # gemini-cli, qwen-code: the HTTP status is the code
        (429, "Rate limit exceeded. Try again later.", None, 429),
        (503, "The model is overloaded.", None, 503),
        (500, "Unknown stream execution error.", None, None),
        # claude-agent-acp
        (-32603, "You've hit your limit · resets 3am (Europe/Berlin)", None, 429),
        (-32603, "Internal error: Claude AI usage limit reached|1795899600", None, 429),
        (-32603, "Internal error", {"errorKind": "rate_limit"}, 429),
        (-32603, "Internal error", {"errorKind": "overloaded"}, 529),
        (-32603, "Internal error", {"errorKind": "billing_error"}, None),
        (-32603, "API Error: 529 Overloaded", None, 503),
        # codex-acp
        (-32603, "Internal error", {**LIMIT, "codexErrorInfo": "usageLimitExceeded"}, 429),
        (-32603, "Internal error", {**LIMIT, "codexErrorInfo": "contextWindowExceeded"}, None),
        (
            -32603,
            "x",
            {"codexErrorInfo": {"responseTooManyFailedAttempts": {"httpStatusCode": 429}}},
            429,
        ),
        (-32603, "Internal error", {"details": "exceeded retry limit, last status: 429"}, 429),
        # others
        (
            -32603,
            "You exceeded your current quota, check your billing details.",
            None,
            None,
        ),
        (-32603, "Your credit balance is too low. Try again in 2h.", None, None),
        (-32603, "Billing quota exceeded. Try again in 2h.", None, 429),
        (-32603, "Line 429 is invalid.", None, None),
        (-32000, "Login needed (429 Too Many Requests).", None, None),
        (-32603, "Internal error", {"errorKind": ["overload"], "codexErrorInfo": {"x": 429}}, None),
    ],
)
def test_error_is_recognized_by_code_data_and_text(
    code: int, message: str, data: Any, status: int | None
) -> None:
    assert getattr(call_error("ada", code, message, data), "status_code", None) == status
