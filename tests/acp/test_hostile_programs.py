"""Programs that break the protocol, or use it against us: bounded, and told in a sentence."""

import logging
import sys
from pathlib import Path

import pytest

from nb_agents import events as ev
from nb_agents.agents.acp import acp_runner
from nb_agents.errors import RunFailed
from nb_agents.process import lines
from nb_agents.runs.run import Run
from tests.acp.test_acp_runner import events, start, team, words
from tests.model_server import wait_until
from tests.team_kit import finish, outcome
from tests.tools.sandboxes import needs_sandbox

PROGRAM = Path(__file__).parent / "hostile.py"


def run_of(root: Path, *way: str, **keys: object) -> Run:
    command = [sys.executable, str(PROGRAM), *way]
    backend = {"type": "acp", "command": command, **keys}
    return start(root, team({"id": "ada", "backend": backend}))


FAULTS = {
    "dies": "It ended in the middle of its work (exit code 139). Its last words: ",
    "no reason": "Its answer is not in the form of the protocol.",
    "error": 'It said: Internal error ({"x": 1})',
    "old": "It speaks version 0 of the protocol, not 1.",
    "malformed": "Its answer is not in the form of the protocol.",
    "login": "It wants a login (Authentication required). Give it a key, or write "
    "`use_my_settings: true` in its backend to let it use yours.",
    "long session": "The id of its session is empty, or too long.",
    "endless line": "It closed its output, or sent a line that is too long.",
    "endless words": "It wrote more than 200,000 characters.",
}


@pytest.mark.parametrize("way", FAULTS)
def test_what_a_program_does_wrong_is_told_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    way: str,
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 3_000_000)
    monkeypatch.setattr(acp_runner, "MAX_CHARS", 200_000)
    run = run_of(tmp_path, way)
    failed = outcome(run)
    finish(run)
    assert isinstance(failed, RunFailed)
    [error] = [e.error for e in events(run, ev.AgentFailed)]
    assert error.startswith(f"acp: {FAULTS[way]}")
    assert "\n" not in error and "\x1b" not in error
    told = [record for record in caplog.records if record.levelno > logging.INFO]
    assert (told, capfd.readouterr()) == ([], ("", ""))
    if way == "dies":
        assert error.endswith(" / Segmentation fault")
        assert words(run) == "one two "


@pytest.mark.parametrize("way", ["greets", "garbage", "forged"])
def test_what_is_not_meant_for_us_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    run = finish(run_of(tmp_path, way))
    assert run.result == ("done" if way == "greets" else "mine")
    assert "stolen" not in words(run)
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


def test_twenty_thousand_updates_come_in_order(tmp_path: Path) -> None:
    run = finish(run_of(tmp_path, "flood"))
    assert words(run).split() == [str(number) for number in range(20_000)]


def test_tool_calls_are_journalled_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp_runner, "MAX_CALLS", 100)
    run = finish(run_of(tmp_path, "calls"))
    assert run.result == "done"
    assert len(events(run, ev.ToolStarted)) == len(events(run, ev.ToolFinished)) == 100


def test_a_flood_of_requests_for_permission_asks_a_person_a_few_times(tmp_path: Path) -> None:
    rules = [{"match": "run_command", "action": "ask"}]
    run = run_of(tmp_path, "permissions", tool_policy=rules)
    wait_until(lambda: events(run, ev.ApprovalAsked))
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    assert len(events(run, ev.ApprovalAsked)) <= 20


def test_a_program_that_answers_no_cancel_is_ended(tmp_path: Path) -> None:
    run = run_of(tmp_path, "deaf")
    wait_until(lambda: words(run))
    run.stop(now=True)
    finish(run)
    assert (run.status, words(run)) == ("cancelled", "one ")


@needs_sandbox
def test_a_program_writes_its_workspace_and_nothing_else(tmp_path: Path) -> None:
    run = finish(run_of(tmp_path, "writes outside", str(tmp_path)))
    assert (run.path / "workspaces" / "ada" / "inside").exists()
    assert not (tmp_path / "outside").exists()
