"""Tests of an external agent that does not answer before its first prompt."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import RunFailed
from tests.acp.test_acp_runner import agent, events, held, processes_with, start, team
from tests.kit.programs import AcpLink, acp_runner, acp_session
from tests.kit.runs import Run
from tests.kit.tools import Confinement
from tests.model_server import wait_until
from tests.team_kit import finish, outcome

PROGRAM = Path(__file__).parent / "hostile.py"
SECRET = "sk-canary-0123456789abcdef"
TEXT = f"x{'y' * 1_990}{SECRET}\n\x1b[31mkey {SECRET}\x1b[0m\nPlease log in."
MARK = f"silent-test-{os.getpid()}"
"""In the command lines of this process's agents only."""
METHODS = ["initialize", "session/new", "session/resume", "session/load", "session/set_mode"]


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a silent agent immediately, and mask the secret."""
    monkeypatch.setattr(acp_session, "SILENT_S", tuple(0.1 * 2**n for n in range(12)))
    monkeypatch.setenv("CANARY_API_KEY", SECRET)


def mute(method: str, **keys: Any) -> TeamSpec:
    command = [sys.executable, str(PROGRAM), "mute", method, TEXT, MARK]
    return team({"id": "ada", "backend": {"type": "acp", "command": command, **keys}})


def begun(root: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Start a run in which the agent does not answer a request."""
    if method == "session/set_mode":
        monkeypatch.setattr(acp_runner, "_CONFINED_MODE", {"acp": "full"})
        monkeypatch.setattr(Confinement, "is_confined", property(lambda self: True))
    if method not in ("session/resume", "session/load"):
        return start(root, mute(method))
    first = start(root, team(agent("ada", "say one", "hold held")))
    held(first)
    first.stop(now=True)
    finish(first)
    options = RunOptions(session_root=root)
    return nb_agents.resume(first.session, mute(method), options=options)


def notices(run: Run, method: str = "initialize") -> list[str]:
    """Return the notices about a request without an answer."""
    about = f"has not answered `{method}`"
    return [each.text for each in events(run, ev.Noticed) if about in each.text]


@pytest.mark.parametrize("method", METHODS)
def test_silent_agent_is_reported_and_a_graceful_stop_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    run = begun(tmp_path, method, monkeypatch)
    wait_until(lambda: [each for each in notices(run, method) if each.endswith("Say yes:")])
    time = r"\d\d:\d\d:\d\d"
    told = notices(run, method)[-1]
    found = re.fullmatch(
        f"ada: acp has not answered `{method}` since {time}\\. It will be ended at {time}\\."
        " It printed: (.*)",
        told,
    )
    assert found is not None
    assert found[1].endswith("Please log in. / Say yes:")
    assert SECRET[-10:] not in told and "\x1b" not in told and len(told) < 2_000
    run.stop()
    finish(run)
    assert run.status == "cancelled"
    stop = run.view.stop
    assert stop is not None and stop.level == "requested"
    assert not processes_with(MARK)
    options = RunOptions(session_root=tmp_path)
    again = finish(nb_agents.resume(run.session, team(agent("ada", "say two")), options=options))
    assert (again.status, again.result) == ("completed", "two")


def test_graceful_stop_ends_a_silent_agent_in_a_step(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\nsteps: [{id: one, agent: ada, prompt: Go.}]\n"
    )
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start(config=mute("initialize"), recipe=path, options=options)
    wait_until(lambda: notices(run))
    run.stop()
    finish(run)
    stop = run.view.stop
    assert run.status == "cancelled"
    assert stop is not None and stop.level == "requested"


def test_agent_that_never_answers_is_ended_and_its_output_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp_session, "START_S", 1.0)
    run = start(tmp_path, mute("initialize"))
    failed = outcome(run)
    finish(run)
    assert isinstance(failed, RunFailed)
    [error] = [e.error for e in events(run, ev.AgentFailed)]
    assert error.startswith("acp: It did not answer `initialize` within 1 s. It printed: ")
    assert error.endswith("Please log in. / Say yes:") and SECRET not in error


def test_silence_is_reported_again_with_new_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp_session, "SILENT_S", (0.1, 0.2, 0.3))
    said = iter(["one", "one", "two"])
    monkeypatch.setattr(AcpLink, "printed", lambda self, mask: next(said, "two"))
    run = start(tmp_path, mute("initialize"))
    wait_until(lambda: len(notices(run)) == 2)
    run.stop()
    finish(run)
    assert [each.rpartition(" ")[2] for each in notices(run)] == ["one", "two"]
