"""The command line, called in this process or in one of its own."""

from __future__ import annotations

import json
import sys
from io import BytesIO, TextIOWrapper
from subprocess import CompletedProcess
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nb_agents.cli import app
from nb_agents.cli.application import COMPLETE, main
from tests import processes
from tests.model_server import Reply, ToolCall

CLI = (sys.executable, "-m", "nb_agents.cli")


def call(*words: str, code: int = COMPLETE) -> str:
    """Run a command in a process of its own; return all that it prints."""
    done = _run(*words, code=code)
    return done.stdout + done.stderr


def told(*words: str) -> Any:
    """Run a command in a process of its own; return what its JSON holds."""
    return json.loads(_run(*words, "--json", code=COMPLETE).stdout)


def call_here(*words: str, code: int = COMPLETE, typed: str = "") -> str:
    """Run a command in this process, where its runs are; return all that it prints."""
    return _run_here(*words, code=code, typed=typed).output


def told_here(*words: str, code: int = COMPLETE) -> Any:
    """Run a command in this process; return what its JSON holds."""
    return json.loads(_run_here(*words, "--json", code=code).stdout)


def call_in(encoding: str, *words: str, code: int = COMPLETE, typed: str = "") -> str:
    """Run a command in this process, with streams of an encoding; return all that it prints."""
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
