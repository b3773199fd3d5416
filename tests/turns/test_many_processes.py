"""Fifty runs in ten processes: all are listed, and a stop reaches each."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nb_agents
from tests.model_server import wait_until
from tests.processes import line, python

PROCESSES, RUNS = 10, 5

# Forks the processes from one that has imported all, before it has a thread.
WRITERS = f"""
import os, sys
import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.models import providers
from nb_agents.testing import Answer, Gate, ScriptedModel

def write(number):
    gates, runs = [], []
    for _ in range({RUNS}):
        gate = Gate()
        model = ScriptedModel(Answer("x", text="so far ", gate=gate))
        backend = {{"type": "python", "instance": model}}
        team = TeamSpec.model_validate({{"agents": [{{"id": "a", "backend": backend}}]}})
        options = RunOptions(session_root=f"{{sys.argv[1]}}/{{number}}")
        runs.append(nb_agents.start("t", team, options=options))
        gates.append(gate)
    for gate in gates:
        gate.wait_reached()
    os.write(1, b"ready\\n")  # in one piece: all write to one pipe
    for run in runs:
        run.wait(raise_on_stop=False)

providers.load(())
for number in range({PROCESSES}):
    if not os.fork():
        write(number)
        os._exit(0)
for _ in range({PROCESSES}):
    os.wait()
print("over", flush=True)
"""


@contextmanager
def all_held(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Keep all of them at work; gives the process that ends when they are over."""
    with python(WRITERS, place) as writers:
        assert [line(writers) for _ in range(PROCESSES)] == ["ready"] * PROCESSES
        yield writers


def test_fifty_runs_of_ten_processes_are_listed_and_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def there() -> list[nb_agents.Run]:
        return [run for run in nb_agents.runs() if run.path.is_relative_to(tmp_path)]

    with all_held(tmp_path) as writers:
        began = time.perf_counter()
        found = there()
        first_s, again = time.perf_counter() - began, time.perf_counter()
        there()
        again_s = time.perf_counter() - again
        assert len(found) == PROCESSES * RUNS
        assert {run.status for run in found} == {"in-progress"}
        for run in found:
            assert run.stop(now=True).changed
        assert line(writers) == "over"
    wait_until(lambda: not there(), what="the end of all", seen=there)
    assert {run.view.stop.source for run in found if run.view.stop} == {"api"}
    assert all("so far" in run.view.agents["a"].unsubmitted for run in found)
    with capsys.disabled():
        print(f"\nlisted {len(found)} runs in {first_s:.3f} s, again in {again_s:.3f} s")
