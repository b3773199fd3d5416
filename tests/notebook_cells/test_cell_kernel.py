"""Agents run cells of a notebook's file in a kernel that belongs to the run."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.kit.notebook_cells import digest, notebook_files, waiting_for, with_origin
from tests.notebook_cells.journals import events

SOURCES = {
    "pid": "import os\nx = 41\nprint(os.getpid())",
    "long": "print('a' * 10_000)\nx + 1",
    "error": "1 / 0",
    "dies": "import os; os._exit(1)",
    "waits": "import time\nprint('started', flush=True)\ntime.sleep(600)",
}


def turns(*names: str) -> list[Turn]:
    """Return the turns of an agent that reads all cells and runs these."""
    read = Turn(calls=(Call("notebook_read", {"ids": [*SOURCES]}),))
    runs = [{"id": name, "digest": digest("code", SOURCES[name])} for name in names]
    return [read, *(Turn(calls=(Call("notebook_run", each),)) for each in runs), Answer("Done.")]


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "book.ipynb"
    cells = [{"id": n, "cell_type": "code", "source": s} for n, s in SOURCES.items()]
    path.write_text(json.dumps({"cells": cells, "metadata": {}}))
    return path


@pytest.fixture
def start(tmp_path: Path, notebook: Path) -> Callable[..., nb_agents.Run]:
    def started(*names: str, approves: Callable[[], bool] = lambda: True) -> nb_agents.Run:
        team = scripted_team(ada=ScriptedModel(*turns(*names)))
        options = nb_agents.RunOptions(
            session_root=tmp_path / "s", notebook="run", notebook_file=notebook
        )
        with with_origin("terminal"):
            run = nb_agents.start("Run the cells", team, options=options)
        asked = set[str]()

        def on_view(view: Any) -> None:
            for address in {*view.gates} - asked:
                asked.add(address)
                run.decide(approves(), "", gate=address)

        run.subscribe(on_view)
        on_view(run.view)
        return run

    return started


def is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def results(run: nb_agents.Run) -> list[str]:
    found = [e for e in events(run, "tool_finished") if e["tool"] == "notebook_run"]
    return [str(each["result"]) for each in found]


def test_approved_cells_run_in_one_kernel_which_ends_with_the_run(start: Any) -> None:
    run = start("pid", "long", "error")
    run.wait()
    first, second, third = results(run)
    pid = re.search(r"> (\d+)", first)
    assert pid and not is_running(pid[1])
    assert second.endswith("> 42") and "characters left out" in second and len(second) < 5_000
    assert third.startswith("Error: the cell raised an error.") and "ZeroDivisionError" in third
    assert [each["how"] for each in events(run, "cell_run_ended")] == ["ok", "ok", "error"]


def test_kernel_that_dies_is_reported_and_the_next_cell_gets_a_new_one(start: Any) -> None:
    run = start("dies", "pid")
    run.wait()
    lost, then = results(run)
    assert "the kernel went away" in lost.replace("the page or ", "") and "Cell pid ran." in then


def test_immediate_stop_interrupts_the_cell_and_ends_the_kernel(start: Any) -> None:
    run = start("pid", "waits")
    started = threading.Event()

    def on_view(view: Any) -> None:
        if len(events(run, "cell_run_started")) == 2:
            started.set()

    run.subscribe(on_view)
    assert started.wait(60)
    run.stop(now=True)
    run.wait(60, raise_on_stop=False)
    assert [each["how"] for each in events(run, "cell_run_ended")] == ["ok", "cut"]
    pid = re.search(r"> (\d+)", results(run)[0])
    assert pid and not is_running(pid[1])


def test_cell_that_changes_while_the_user_is_asked_does_not_run(start: Any, notebook: Path) -> None:
    def change() -> bool:
        notebook.write_text(notebook.read_text().replace("x = 41", "x = 42"))
        return True

    run = start("pid", approves=change)
    run.wait()
    assert "has changed since you read it" in results(run)[0]
    assert not events(run, "cell_run_started")


def test_in_a_notebook_that_is_executed_without_a_user_no_cell_runs(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_files, "interrupt_source", lambda: "notebook")
    team = scripted_team(ada=ScriptedModel(*turns("pid")))
    options = nb_agents.RunOptions(session_root=notebook.parent, notebook="run")
    with with_origin("notebook:book.ipynb"):
        run = nb_agents.start("Run the cells", team, options=options)
    with waiting_for(run.path):
        run.wait(raise_on_stop=False)
    assert "waits for this run" in results(run)[0]
    assert [e for e in events(run, "noticed") if "--on NOTEBOOK" in e["text"]]


def test_unknown_notebook_is_an_error_and_missing_access_a_notice(tmp_path: Path) -> None:
    team = scripted_team(ada=ScriptedModel(Answer("Done.")))
    start = partial(nb_agents.start, "Run the cells", team)
    options = nb_agents.RunOptions(session_root=tmp_path, notebook_file=tmp_path / "no.ipynb")
    with pytest.raises(nb_agents.UserError, match="There is no notebook"):
        start(options=options)
    (tmp_path / "no.ipynb").write_text("{}")
    run = start(options=options)
    run.wait()
    assert any("No agent may read no.ipynb" in each for each in run.view.notices)
