"""A command with a run on a full disk waits at its end, and retries or saves elsewhere."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from nb_agents.cli import saving
from nb_agents.testing import Answer, Gate, ScriptedModel
from tests.cli.calls import CLI, answer
from tests.kit.runs import Run
from tests.kit.sessions import find_session, journal, load_session
from tests.kit.terminal import COMPLETE, FAILED, run_end
from tests.model_server import ModelServer, wait_until
from tests.team_kit import WAIT_S, start
from tests.warm import WarmProcess

ANSWER = "forty-two " * 5_000


def limit_files(pid: int, size: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_command_in_a_terminal_waits_for_a_full_disk_and_retries(
    place: Path, server: ModelServer
) -> None:
    server.script("m", answer(ANSWER))
    server.hold()
    person, terminal = os.openpty()
    command = [*CLI, "run", "-c", "team.yaml", "-s", "full", "What?"]
    with WarmProcess(
        command, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, text=True
    ) as process:
        limit_files(process.pid, 20_000)
        server.release()
        os.close(terminal)
        told = b""

        def asks(count: int) -> bool:
            nonlocal told
            told += os.read(person, 10_000)
            return told.count(b"q: give up") == count

        wait_until(lambda: asks(1), WAIT_S, "the question")
        os.write(person, b"r\n")
        wait_until(lambda: asks(2), WAIT_S, "the question again")
        limit_files(process.pid, resource.RLIM_INFINITY)
        os.write(person, b"\n")
        out, _ = process.communicate()
    os.close(person)
    assert process.returncode == COMPLETE and "forty-two" in out
    (turn,) = load_session(find_session(place / ".nb_agents/sessions", "full")).turns
    assert (turn.is_complete, turn.warnings, turn.view.answer) == (True, (), ANSWER.strip())


@pytest.fixture
def full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Run, pytest.MonkeyPatch]]:
    """A finished run whose disk is full until the patch is undone."""
    gate = Gate()
    run = start(tmp_path / "sessions", a=ScriptedModel(Answer(ANSWER, gate=gate)))
    gate.wait_reached()
    real, path = os.write, run.path / "events.jsonl"

    def write(fd: int, data: Any) -> int:
        if os.fstat(fd).st_ino == path.stat().st_ino:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", write)
        gate.open()
        run.wait(WAIT_S)
        assert run.is_unsaved
        yield run, patch
    run.save()


def waits(run: Run, patch: pytest.MonkeyPatch, typed: str | None) -> int:
    """Let a command wait for the end of a run, and return its exit code."""
    stdin = StringIO(typed or "")
    patch.setattr(stdin, "isatty", lambda: typed is not None)
    patch.setattr(run_end.sys, "stdin", stdin)
    patch.setattr(run_end.sys.stderr, "isatty", lambda: typed is not None, raising=False)
    with pytest.raises(SystemExit) as ended:
        run_end.wait_for_end(run, as_json=False)
    return int(str(ended.value.code or 0))


def test_user_names_a_directory_to_save_the_session_in(
    full: tuple[Run, pytest.MonkeyPatch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, patch = full
    taken = tmp_path / "taken"
    (taken / run.session).mkdir(parents=True)
    there = tmp_path / "there"
    assert waits(run, patch, f"{taken}\n{there}\n") == COMPLETE
    told = capsys.readouterr()
    assert "File exists" in told.err
    assert f"Saved in {there / run.session}. To continue it, add --session-root {there}" in told.err
    (turn,) = load_session(there / run.session).turns
    assert (turn.is_complete, turn.warnings, turn.view.answer) == (True, (), ANSWER.strip())
    assert (there / run.session / "turn_1" / "answer.txt").read_text() == ANSWER.strip()
    assert (there / run.session / "turn_1" / "workspaces" / "a").is_dir()


@pytest.mark.parametrize("typed", ["q\n", "", None])
def test_unsaved_run_is_printed_and_exits_with_failure(
    full: tuple[Run, pytest.MonkeyPatch], capsys: pytest.CaptureFixture[str], typed: str | None
) -> None:
    run, patch = full
    patch.setattr(saving, "PATIENCE_S", 0.05)
    assert waits(run, patch, typed) == FAILED
    told = capsys.readouterr()
    assert ANSWER.strip() in told.out.replace("\n", " ")
    assert "run.save()" not in told.out + told.err
    if typed is None:
        assert "not saved; this output is the only copy" in told.err


def test_command_without_a_terminal_retries_saving(place: Path, server: ModelServer) -> None:
    server.script("m", answer(ANSWER))
    server.hold()
    command = [*CLI, "run", "-c", "team.yaml", "-s", "full", "What?"]
    pipe = subprocess.PIPE
    with WarmProcess(
        command, stdin=subprocess.DEVNULL, stderr=pipe, stdout=pipe, text=True
    ) as process:
        limit_files(process.pid, 20_000)
        server.release()
        assert process.stderr is not None
        assert any("Trying again for 60 s" in line for line in process.stderr)
        limit_files(process.pid, resource.RLIM_INFINITY)
        _, errors = process.communicate()
    assert process.returncode == COMPLETE and "everything is saved" in errors


def test_detached_run_waits_for_a_full_disk(place: Path, server: ModelServer) -> None:
    server.script("m", answer(ANSWER))
    command = [*CLI, "run", "--detach", "-c", "team.yaml", "-s", "full", "What?"]
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1)); "
    limited = [sys.executable, "-c", f"{limit}os.execv(sys.argv[1], sys.argv[1:])", *command]
    subprocess.run(limited, check=True, capture_output=True)
    session = find_session(place / ".nb_agents/sessions", "full")
    metadata = json.loads((session / "turn_1" / "metadata.json").read_text())
    pid = int(metadata["owner"].split()[1])
    limit_files(pid, resource.RLIM_INFINITY)
    wait_until(lambda: load_session(session).turns[0].is_complete, WAIT_S, "the whole turn")
