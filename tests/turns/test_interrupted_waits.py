"""Turns whose process ended while they waited for a provider are resumed when the wait is over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UserError
from tests.cli.calls import call, call_here, told_here
from tests.kit.runs import ResumedTurn, find_run, live_turns, quota_waits, resume_due_turns
from tests.kit.terminal import FAILED, quota_waiting
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import kill_writers

QUOTA = Reply(status=429, headers={"Retry-After": "3600"}, error="Out of quota.")


def _terminate(root: Path) -> None:
    for turn in live_turns():
        if turn.paths.path.is_relative_to(root):
            os.kill(turn.pid, signal.SIGTERM)


def _stop(root: Path) -> None:
    find_run("waits/1", root).stop()


def _wait_then(
    end: Callable[[Path], None],
    tmp_path: Path,
    root: Path,
    server: ModelServer,
    kind: str = "vllm",
    quota: Reply = QUOTA,
) -> float:
    """Start a detached run that waits for an hour, end it, and return when its wait is over."""
    file = tmp_path / "team.yaml"
    agent = {"id": "a", "backend": server.backend(kind, model="m")}
    file.write_text(json.dumps({"agents": [agent], "retry": {"attempts": 0}}))
    write = ToolCall("write_file", {"path": "a.txt", "content": "written once"})
    answer = ToolCall("new_answer", {"content": "done"})
    server.script("m", Reply(tool_calls=(write,)), quota, Reply(tool_calls=(answer,)))
    options = RunOptions(session_root=root, detach=True, wait_for_quota=4000)
    run = nb_agents.start("t", file, "waits", options=options)
    wait_until(lambda: run.view.wait)
    wait = run.view.wait
    assert wait is not None and wait.limit_s == 4000
    end(root)
    wait_until(lambda: not live_turns(root=root))
    return wait.until


@pytest.mark.parametrize("end", [kill_writers, _terminate])
def test_interrupted_turn_is_resumed_after_its_wait(
    end: Callable[[Path], None], tmp_path: Path, root: Path, server: ModelServer
) -> None:
    until = _wait_then(end, tmp_path, root, server)
    assert resume_due_turns(root, until - 1) == [ResumedTurn("waits/1", until)]
    assert resume_due_turns(root, until) == [ResumedTurn("waits/1", until, "waits/2")]
    run = find_run("waits/2", root)
    run.wait(200)
    assert run.status == "completed"
    assert server.count() == 3
    assert "written once" in str(server.requests[2].messages)  # the finished call is not repeated
    assert resume_due_turns(root, until) == []


HOUR = timedelta(hours=1)


def _until(text: str) -> Callable[[datetime], Reply]:
    return lambda now: Reply(status=429, error=f"{now + HOUR:{text}}")


def _headers(name: str, value: str) -> Callable[[datetime], Reply]:
    """Return a refusal with headers about two limits, of which one is used up."""

    def reply(now: datetime) -> Reply:
        reset, remaining = name.format("reset"), name.format("remaining")
        later = {reset.replace("requests", "tokens"): f"{now + 9 * HOUR:{value}}"}
        left = {remaining.replace("requests", "tokens"): "5", remaining: "0"}
        headers = {reset: f"{now + HOUR:{value}}", **left, **later}
        return Reply(status=429, headers=headers, error="Out of quota.")

    return reply


REFUSALS = [
    ("openai", _until("Out of quota until %H:%M UTC.")),
    ("responses", _headers("x-ratelimit-{}-requests", "1h0m0s")),
    ("claude", _headers("anthropic-ratelimit-requests-{}", "%Y-%m-%dT%H:%M:%SZ")),
    ("gemini", _until("Quota exceeded. Please retry in 3600.5s.")),
]


@pytest.mark.parametrize(("kind", "refusal"), REFUSALS, ids=[kind for kind, _ in REFUSALS])
def test_killed_wait_ends_at_the_time_that_the_provider_gave(
    tmp_path: Path,
    root: Path,
    server: ModelServer,
    kind: str,
    refusal: Callable[[datetime], Reply],
) -> None:
    begun = datetime.now(UTC)
    until = _wait_then(kill_writers, tmp_path, root, server, kind, refusal(begun))
    expected = (begun + HOUR).timestamp()
    assert expected - 60 <= until <= expected + (time.time() - begun.timestamp()) + 1
    waiting = ResumedTurn("waits/1", until)
    for now in (begun.timestamp(), until - 0.1):
        assert resume_due_turns(root, now) == [waiting]
    assert not live_turns(root=root)
    assert server.count() == 2  # nothing was sent earlier
    assert resume_due_turns(root, until) == [waiting._replace(resumed="waits/2")]
    run = find_run("waits/2", root)
    run.wait(200)
    assert (run.status, server.count()) == ("completed", 3)
    assert "written once" in str(server.requests[2].body)  # the finished call is not repeated
    assert resume_due_turns(root, until) == []


def test_turn_that_the_user_stopped_is_not_resumed(
    tmp_path: Path, root: Path, server: ModelServer
) -> None:
    until = _wait_then(_stop, tmp_path, root, server)
    assert resume_due_turns(root, until) == []


def test_only_one_of_two_processes_resumes_a_turn(
    tmp_path: Path, root: Path, server: ModelServer
) -> None:
    until = _wait_then(kill_writers, tmp_path, root, server)
    code = (
        "from pathlib import Path; from nb_agents.launch.quota_waits import resume_due_turns; "
        f"input(); print([t.resumed for t in resume_due_turns(Path({str(root)!r}), {until})])"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = "".join(process.communicate(timeout=200)[0] for process in both)
    assert outputs.count("waits/2") == 1
    assert "waits/3" not in outputs
    find_run("waits/2", root).wait(200)
    assert server.count() == 3


def test_command_lists_waiting_turns(tmp_path: Path, root: Path, server: ModelServer) -> None:
    assert "No turn waits" in call("wait-for-quota", "--session-root", str(root))
    until = _wait_then(kill_writers, tmp_path, root, server)
    [listed] = told_here("wait-for-quota", "--session-root", str(root))
    assert listed == {"name": "waits/1", "until": until, "resumed": "", "error": ""}
    assert "waits/1 waits until" in call("wait-for-quota", "--session-root", str(root))


def test_turn_that_cannot_be_resumed_is_reported(
    tmp_path: Path, root: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = _wait_then(kill_writers, tmp_path, root, server)
    fail = Mock(side_effect=UserError("The key is missing."))
    monkeypatch.setattr(quota_waits, "resume", fail)
    turn = ResumedTurn("waits/1", until, error="The key is missing.")
    assert resume_due_turns(root, until) == [turn]
    monkeypatch.setattr(quota_waiting, "resume_due_turns", lambda root, now: [turn])
    assert "waits/1 can't be resumed: The key" in call_here("wait-for-quota", code=FAILED)
