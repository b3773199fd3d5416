"""The command line, called in this process or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner

from nb_agents.cli import app
from nb_agents.cli.application import COMPLETE
from tests.model_server import Reply, ToolCall

CLI = (sys.executable, "-m", "nb_agents.cli")


def call(*words: str, code: int = COMPLETE) -> str:
    """Run a command in a process of its own; return all that it prints."""
    done = subprocess.run(
        [*CLI, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def told(*words: str) -> Any:
    """Run a command in a process of its own; return what its JSON holds."""
    return json.loads(call(*words, "--json"))


def call_here(*words: str, code: int = COMPLETE, typed: str = "") -> str:
    """Run a command in this process, where its runs are; return all that it prints."""
    done = CliRunner().invoke(app, words, input=typed)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def told_here(*words: str, code: int = COMPLETE) -> Any:
    """Run a command in this process; return what its JSON holds."""
    return json.loads(call_here(*words, "--json", code=code))


def answer(text: str) -> Reply:
    return Reply(tool_calls=(ToolCall("new_answer", {"content": text}),))
