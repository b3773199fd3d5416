"""Two notebooks in one directory do not resume or stop each other's runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.driver import Kernel

MAKE = """
%load_ext nb_agents
import nb_agents
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
gate = Gate()
team = lambda: scripted_team(a=ScriptedModel(Answer("done", text="words ", gate=gate)))
"""
HOLD = 'run = nb_agents.start("secret of a", config=team(), session="of-a"); gate.wait_reached()'
CONTINUE = "%%agents --continue --wait\nGo on."
VERBS = ("stop", "pause", "unpause", "wait")

Opens = Callable[[str], Kernel]


@pytest.fixture(params=["told", "not told"])
def open_notebook(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opens]:
    """Open notebooks in one directory, with or without a front end that sends their paths."""
    with ExitStack() as stack:

        def open_one(name: str) -> Kernel:
            path = str(tmp_path / name) if request.param == "told" else ""
            kernel = stack.enter_context(Kernel(tmp_path, env={"JPY_SESSION_NAME": path}))
            assert kernel.run(MAKE).status == "ok"
            return kernel

        yield open_one


def refused(kernel: Kernel, cell: str) -> str:
    result = kernel.run(cell)
    assert result.status == "error", result
    return str(result.stderr)


def journal(root: Path, turn: str) -> list[dict[str, Any]]:
    path = root / ".nb_agents" / "sessions" / turn / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_notebook_does_not_affect_runs_of_another(open_notebook: Opens, tmp_path: Path) -> None:
    a, b = open_notebook("a.ipynb"), open_notebook("b.ipynb")
    assert a.run(HOLD).status == "ok"
    for verb in VERBS:
        assert "No run is live" in refused(b, f"%agents {verb}")
    for cell in ("%agents resume", CONTINUE):
        assert "of-a (“secret of a”)" in refused(b, cell)
    assert a.run("%agents stop --now").status == "ok"
    assert a.run("run.wait(200, raise_on_stop=False)").status == "ok"
    for cell in ("%agents resume", "%agents resume --preview", CONTINUE, "%agents show"):
        assert "of-a (“secret of a”)" in refused(b, cell)
    stops = [e for e in journal(tmp_path, "of-a/turn_1") if e["kind"] == "stop_requested"]
    assert len(stops) == 1
    assert a.run("gate.open()\nnb_agents.resume(config=team()).wait(200)").status == "ok"
    [started, *_] = journal(tmp_path, "of-a/turn_2")
    assert "Session: of-a (“secret of a”)" in started["notices"]
