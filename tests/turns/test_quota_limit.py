"""`wait_for_quota` limits the time from a call's first refusal, even if the call is resumed."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.options import Retry
from tests.kit.agents import PastWait, replay
from tests.kit.runs import live_turns
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import events, finish, kill_writers

LIMIT_S = 4.0


def _refusal(seconds: float) -> Reply:
    return Reply(status=429, headers={"Retry-After": str(seconds)}, error="Out of quota.")


def _waiting_run(root: Path, server: ModelServer) -> nb_agents.Run:
    team = nb_agents.TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": server.backend("openai", model="m")}]}
    )
    options = RunOptions(session_root=root, retry=Retry(0), wait_for_quota=LIMIT_S, detach=True)
    run = nb_agents.start("t", team, "limited", options=options)
    wait_until(lambda: run.view.wait)
    return run


def _kill(run: nb_agents.Run) -> None:
    kill_writers(run.path.parent.parent)
    wait_until(lambda: not live_turns(root=run.path.parent.parent))


def _stop(run: nb_agents.Run) -> None:
    run.stop()
    finish(run)


def _resumed_later(
    end: Callable[[nb_agents.Run], None], root: Path, server: ModelServer
) -> nb_agents.Run:
    """Resume a call that waits, after its limit would be over. It is refused again."""
    done = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
    server.script("m", _refusal(3), _refusal(0.5), done)
    run = _waiting_run(root, server)
    [failed] = events(run, ev.ModelFailed)
    end(run)
    wait_until(lambda: time.time() > failed.at + LIMIT_S)
    options = RunOptions(session_root=root, retry=Retry(0), wait_for_quota=LIMIT_S)
    return finish(nb_agents.resume("limited", options=options))


def test_limit_counts_from_the_first_refusal_over_a_restart(
    tmp_path: Path, server: ModelServer
) -> None:
    resumed = _resumed_later(_kill, tmp_path, server)
    assert (resumed.status, server.count()) == ("failed", 2)
    assert "Out of quota" in str(resumed.view.agents["a"].error)


def test_time_between_a_stop_and_a_resume_does_not_count(
    tmp_path: Path, server: ModelServer
) -> None:
    resumed = _resumed_later(_stop, tmp_path, server)
    assert (resumed.status, server.count()) == ("completed", 3)


def _failed(at: float, waited_s: float | None) -> ev.ModelFailed:
    wait = {"waits_for": "quota", "retry_at": at + 100, "wait_limit_s": 1000.0}
    return ev.ModelFailed(agent="a", call=1, error="e", waited_s=waited_s, at=at, **wait)


BEGUN: list[ev.Event] = [
    ev.RoundStarted(agent="a", number=1, seen={}),
    ev.ModelStarted(agent="a", call=1),
    _failed(10.0, 0.0),
    ev.ModelStarted(agent="a", call=1, attempt=2),
    _failed(40.0, 30.0),
]
FINISHED = ev.ModelFinished(agent="a", call=1, response={}, usage=ev.Usage())


@pytest.mark.parametrize(
    ("later", "wait"),
    [
        ([], PastWait(30.0, 40.0)),
        ([ev.Paused(at=50.0)], PastWait(40.0)),
        ([ev.Paused(at=50.0), ev.Continued(at=70.0)], PastWait(40.0, 70.0)),
        ([ev.StopRequested(level="requested", source="api", at=50.0)], PastWait(40.0)),
        ([ev.StopRequested(level="immediate", source="parent", at=50.0)], PastWait(30.0, 40.0)),
        ([FINISHED], None),
    ],
)
def test_wait_of_an_interrupted_call(later: list[ev.Event], wait: PastWait | None) -> None:
    assert replay(["a"], [*BEGUN, *later]).rounds["a"].wait == wait


def test_wait_of_an_older_journal_begins_with_its_last_failure() -> None:
    wait = replay(["a"], [*BEGUN[:-1], _failed(40.0, None)]).rounds["a"].wait
    assert wait is not None and wait.seconds_at(41.5) == 1.5
    assert wait.seconds_at(39.0) == 0.0  # the clock was set back
