"""Tests of hostile external agents: their effect is limited, and reported in one sentence."""

import logging
import sys
from pathlib import Path

import pytest

from nb_agents import events as ev
from nb_agents.errors import RunFailed
from tests.acp.test_acp_runner import agent, events, start, team, words
from tests.kit.processes import lines
from tests.kit.programs import acp_runner
from tests.kit.runs import Run
from tests.model_server import wait_until
from tests.team_kit import finish, outcome
from tests.tools.sandboxes import needs_sandbox
from tests.turns.test_any_payload import strictly

PROGRAM = Path(__file__).parent / "hostile.py"


def run_of(root: Path, *way: str, **keys: object) -> Run:
    command = [sys.executable, str(PROGRAM), *way]
    backend = {"type": "acp", "command": command, **keys}
    return start(root, team({"id": "ada", "backend": backend}))


FAULTS = {
    "dies": "Its process ended unexpectedly (exit code 139). Its last output: ",
    "no reason": "Its answer is not valid in the protocol.",
    "error": 'It reported: Internal error ({"x": 1})',
    "old": "It uses version 0 of the Agent Client Protocol. nb_agents supports only version 1.",
    "malformed": "Its answer is not valid in the protocol.",
    "login": "It requires a login (Authentication required). Set a key for it, or write "
    "`use_my_settings: true` in its backend so that it uses your login.",
    "long session": "The agent returned a session id that is empty or too long.",
    "closes": "It closed its output or sent a line that is too long.",
    "endless line": "It closed its output or sent a line that is too long.",
    "endless words": "It wrote more than 200,000 characters.",
}


@pytest.mark.parametrize("way", FAULTS)
def test_protocol_violation_gives_a_one_sentence_error(
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
def test_unrelated_messages_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    run = finish(run_of(tmp_path, way))
    assert run.result == ("done" if way == "greets" else "mine")
    assert "stolen" not in words(run)
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


@pytest.mark.parametrize(("way", "calls"), [("deep", 14), ("numbers", 5)])
def test_any_json_from_an_agent_can_be_journalled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str, calls: int
) -> None:
    run = finish(run_of(tmp_path, way))
    assert (run.status, run.result) == ("completed", "mine")
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []
    assert len(events(run, ev.ToolFinished)) == calls
    for file in run.path.rglob("*.json*"):
        for line in (
            file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        ):
            strictly(line)


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


def test_flood_of_permission_requests_is_limited(tmp_path: Path) -> None:
    rules = [{"match": "run_command", "action": "ask"}]
    run = run_of(tmp_path, "permissions", tool_policy=rules)
    wait_until(lambda: events(run, ev.ApprovalAsked))
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    assert len(events(run, ev.ApprovalAsked)) <= 20


def test_agent_that_never_answers_a_cancel_is_ended(tmp_path: Path) -> None:
    run = run_of(tmp_path, "deaf")
    wait_until(lambda: words(run))
    run.stop(now=True)
    finish(run)
    assert (run.status, words(run)) == ("cancelled", "one ")


SWAPS = {"link": "ln -s {outside}", "pipe": "mkfifo"}


@pytest.mark.parametrize("swap", SWAPS)
def test_an_agent_that_replaced_its_settings_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    outside = tmp_path / "bashrc"
    outside.write_text("mine")
    settings = ".codex/config.toml"
    put = SWAPS[swap].format(outside=outside)
    plant = f"run cd $HOME/.codex && rm config.toml && {put} config.toml"
    spec = team(agent("ada", plant, "say done", type="codex"))
    first = finish(start(tmp_path, spec))
    assert first.status == "completed"
    again = start(tmp_path, spec, session=first.session)
    failed = outcome(again)
    finish(again)
    assert isinstance(failed, RunFailed)
    [error] = [e.error for e in events(again, ev.AgentFailed)]
    kind = {"link": "a symlink", "pipe": "a pipe"}[swap]
    path = first.path.parent / "programs" / "ada" / settings
    assert error == (
        f"codex: It can't be started: {str(path)!r} is {kind}, not a file. The agent may have "
        "created it. Remove it."
    )
    assert outside.read_text() == "mine"


@needs_sandbox
def test_a_program_writes_its_workspace_and_nothing_else(tmp_path: Path) -> None:
    run = finish(run_of(tmp_path, "writes outside", str(tmp_path)))
    assert (run.path / "workspaces" / "ada" / "inside").exists()
    assert not (tmp_path / "outside").exists()
