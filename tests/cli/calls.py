"""Helpers that call the command line in this process or in a subprocess."""

from __future__ import annotations

import json
import sys
from io import BytesIO, TextIOWrapper
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests import processes
from tests.kit.terminal import COMPLETE, app, main
from tests.model_server import Reply, ToolCall

CLI = (sys.executable, "-m", "nb_agents.cli")


def call(*words: str, code: int = COMPLETE) -> str:
    """Run a command in a subprocess, and return its output."""
    done = _run(*words, code=code)
    return done.stdout + done.stderr


def told(*words: str) -> Any:
    """Run a command in a subprocess, and return its parsed JSON output."""
    return json.loads(_run(*words, "--json", code=COMPLETE).stdout)


def call_here(*words: str, code: int = COMPLETE, typed: str = "") -> str:
    """Run a command in this process, and return its output."""
    return _run_here(*words, code=code, typed=typed).output


def told_here(*words: str, code: int = COMPLETE) -> Any:
    """Run a command in this process, and return its parsed JSON output."""
    return json.loads(_run_here(*words, "--json", code=code).stdout)


def call_in(encoding: str, *words: str, code: int = COMPLETE, typed: str = "") -> str:
    """Run a command in this process with streams of an encoding, and return its output."""
    streams = [TextIOWrapper(BytesIO(each), encoding) for each in (typed.encode(), b"", b"")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nb-agents", *words])
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as ended:
            main()
    out = b"".join(stream.detach().getvalue() for stream in streams[1:]).decode(encoding)
    assert (ended.value.code or COMPLETE) == code, out
    return out


def _run(*words: str, code: int) -> CompletedProcess[str]:
    done = processes.run([*CLI, *words])
    assert done.returncode == code, done.stdout + done.stderr
    return done


def _run_here(*words: str, code: int, typed: str = "") -> Result:
    done = CliRunner().invoke(app, words, input=typed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def answer(text: str) -> Reply:
    return Reply(tool_calls=(ToolCall("new_answer", {"content": text}),))
