"""Ctrl+C while the command line is still loading its modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence

import pytest

from nb_agents_main import INTERRUPTED
from tests.processes import ROOT

SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["nb-agents"]
_MODULE, _, _FUNCTION = SCRIPT.partition(":")
_LOAD = f"from {_MODULE} import {_FUNCTION} as main; main()"


@pytest.mark.parametrize(
    "loaded", ["nb_agents.errors", "nb_agents.config.team", "nb_agents.launch.api"]
)
def test_interrupt_during_imports_exits_without_output(loaded: str) -> None:
    code, said = interrupted([sys.executable, "-X", "importtime", "-c", _LOAD, "runs"], loaded)
    assert code == INTERRUPTED
    assert not said


def interrupted(command: Sequence[str], loaded: str) -> tuple[int, list[str]]:
    """Interrupt a command once it has loaded a module. Return its exit code and output lines."""
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process, process.stderr as lines:
        for line in lines:
            if line.split()[-1:] == [loaded]:
                os.kill(process.pid, signal.SIGINT)
                break
        said = [line for line in lines if not line.startswith("import time:")]
    return process.returncode, said
