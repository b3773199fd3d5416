"""Commands work with closed standard streams."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.cli.calls import CLI, answer
from tests.kit.sessions import read_json, session_root, sessions_in, turns_of
from tests.kit.terminal import COMPLETE, FAILED, INCOMPLETE, USAGE, main
from tests.model_server import ModelServer, Reply

STREAMS = ("stdin", "stdout", "stderr")
TEAM = ("-c", "team.yaml", "-s", "lab")
BROKEN = Reply(status=400, text="broken")


def closed_file() -> IO[str]:
    file = io.StringIO()
    file.close()
    return file


def code_without(streams: tuple[str, ...], stands: IO[str] | None, *words: str) -> object:
    """Run a command in this process with some streams closed, and return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nb-agents", *words])
        for name in STREAMS:
            patch.setattr(sys, name, stands if name in streams else io.StringIO())
        try:
            main()
        except SystemExit as ended:
            return ended.code or COMPLETE
        finally:
            for name in streams:
                getattr(sys, name).close()
    return COMPLETE


def status() -> object:
    [session] = sessions_in(session_root()).by_use
    return read_json(turns_of(session)[-1].metadata)["run_status"]


@pytest.mark.parametrize(
    "closed, stands",
    [*(((each,), None) for each in STREAMS), (STREAMS, None), (STREAMS, closed_file())],
    ids=["stdin", "stdout", "stderr", "all", "all that are closed files"],
)
def test_run_starts_and_resumes_with_closed_streams(
    place: Path, server: ModelServer, closed: tuple[str, ...], stands: IO[str] | None
) -> None:
    server.script("m", BROKEN, answer("Done."))
    assert code_without(closed, stands, "run", *TEAM, "What?") == FAILED
    assert code_without(closed, stands, "resume", "lab") == COMPLETE
    assert status() == "completed"


@pytest.mark.parametrize(
    "words, code",
    [
        (("demo",), COMPLETE),
        (("run", "-"), USAGE),
        (("chat",), COMPLETE),
        (("runs",), COMPLETE),
        (("runs", "--json"), COMPLETE),
        (("sessions",), COMPLETE),
        (("sweeps",), COMPLETE),
        (("show", "nope"), USAGE),
        (("delete", "nope"), USAGE),
        (("check", "team.yaml"), COMPLETE),
        (("schema",), COMPLETE),
        (("init", "new.yaml"), COMPLETE),
        (("no-such-command",), USAGE),
        (("--help",), COMPLETE),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else None,
)
def test_commands_work_with_closed_streams(place: Path, words: tuple[str, ...], code: int) -> None:
    assert code_without(STREAMS, None, *words) == code


def test_run_with_a_question_and_closed_stdin_ends_incomplete(place: Path) -> None:
    text = "name: r\ndescription: d\nversion: 1.0.0\nstages:\n- name: s\n  approval: "
    text += "{required: true, prompt: go}\n  steps: [{id: a, type: bash, command: 'true'}]\n"
    Path("r.yaml").write_text(text)
    assert code_without(("stdin",), None, "run", "-r", "r.yaml") == INCOMPLETE


def test_process_with_closed_streams_does_not_reuse_their_descriptors(
    place: Path,
) -> None:
    command = " ".join((*CLI, "run", "-s", "lab", "What?", "0<&-", "1>&-", "2>&-"))
    command = command.replace("What?", "'What?'")
    done = subprocess.run(["/bin/sh", "-c", command], cwd=place, check=False)
    assert done.returncode == COMPLETE
    [session] = sessions_in(place / ".nb_agents/sessions").by_use
    assert turns_of(session)[-1].answer.read_text()
