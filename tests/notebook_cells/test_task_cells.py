"""A task mentions cells of the notebook, and the prompt contains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.notebook_cells import (
    Cell,
    CellsRead,
    TeamSpec,
    cell_mentions,
    cells_of,
    find_cells,
    task_cells_text,
)
from tests.notebook_cells.journals import events

LOAD = Cell(id="load", type="code", source="df = load()", lines=1)
PLOT = Cell(id="plot", type="code", source="df.plot()\nplt.show()", lines=2)
RUN = Cell(id="run", type="code", source="%%agents", lines=1, shows_run=True)


def start(root: Path, task: str, model: ScriptedModel, access: Any = "read") -> nb_agents.Run:
    options = nb_agents.RunOptions(session_root=root, notebook=access)
    return nb_agents.start(task, scripted_team(ada=model), options=options)


def answer_reads(run: nb_agents.Run, *cells: Cell) -> list[tuple[str, ...]]:
    """Answer requests to read cells as a page does. Returns the list of requested ids."""
    asked, by_id = dict[int, tuple[str, ...]](), {each.id: each for each in cells}
    listed: list[tuple[str, ...]] = []

    def on_view(view: Any) -> None:
        for number, request in cells_of(view).requests.items():
            if number not in asked:
                asked[number] = request.ids
                listed.append(request.ids)
                found = tuple(by_id[i] for i in request.ids or by_id)
                run.record_event(
                    CellsRead(number=number, notebook="a.ipynb", cells=found, count=len(by_id))
                )

    run.subscribe(on_view)
    on_view(run.view)
    return listed


@pytest.mark.parametrize(
    "task, names",
    [
        ("Fix @cell:3, then @cell:ab-12.", ("3", "ab-12")),
        ("Look at @cells", ("",)),
        (r"Not \@cell:3, @cells/x.py, me@cell:1 or @cellsize", ()),
    ],
)
def test_mentions_of_cells(task: str, names: tuple[str, ...]) -> None:
    assert cell_mentions(task) == names


def test_cells_are_found_by_position_and_id_and_the_sum_is_bounded() -> None:
    found = find_cells("@cell:2 @cell:load @cell:9", [LOAD, PLOT, RUN])
    assert found.ids == ("plot", "load")
    assert found.lines[-1] == "@cell:9 is not in the notebook."
    assert find_cells("@cells", [LOAD, PLOT, RUN]).ids == ("load", "plot")
    long = [Cell(id=f"c{n}", type="code", source="x" * 9_000) for n in range(60)]
    text = task_cells_text("a.ipynb", long, find_cells("@cells", long))
    assert "truncated at 8000 of 9000" in text and len(text) < 30_000


def test_prompt_contains_the_mentioned_cells_and_a_resume_keeps_them(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(Turn("I look. ", gate=gate), Answer("Done."))
    run = start(tmp_path, "Speed up @cell:2", model)
    asked = answer_reads(run, LOAD, PLOT, RUN)
    gate.wait_reached()
    assert asked == [(), ("plot",)]
    run.stop(now=True)
    run.wait(raise_on_stop=False)
    gate.open()
    again = run.resume()
    asked_again = answer_reads(again, LOAD)
    again.wait()
    assert asked_again == [] and again.state == "complete"
    for messages in (model.requests[0], model.requests[-1]):
        prompt = str(messages)
        assert "@cell:2 is cell plot." in prompt and "plt.show()" in prompt
        assert "df = load()" not in prompt


def test_escaped_mention_is_text(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("Done."))
    run = start(tmp_path, r"Explain \@cell:2 and \@cells to ada\@example.org", model)
    asked = answer_reads(run, LOAD, PLOT)
    run.wait()
    assert asked == []
    assert "Explain @cell:2 and @cells to ada@example.org" in str(model.requests[0])


def test_cells_after_the_first_200_are_found_by_position_and_id(tmp_path: Path) -> None:
    cells = [{"id": f"c{n}", "cell_type": "code", "source": f"x = {n}"} for n in range(1, 1001)]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    model = ScriptedModel(Answer("Done."))
    options = nb_agents.RunOptions(session_root=tmp_path, notebook="read", notebook_file=path)
    task = "Compare @cell:300 with @cell:c450"
    run = nb_agents.start(task, scripted_team(ada=model), options=options)
    run.wait()
    prompt = str(model.requests[0])
    assert "@cell:300 is cell c300." in prompt and "x = 300" in prompt and "x = 450" in prompt
    assert len(events(run, "cells_requested")) == 3 + 1


def test_agent_without_access_does_not_get_the_mentioned_cells(tmp_path: Path) -> None:
    models = [ScriptedModel(Answer("Done.")), ScriptedModel(Answer("Done."))]
    names = [("ada", {"notebook": "read"}), ("ben", {})]
    agents = [
        {"id": name, "backend": {"type": "python", "instance": model, **keys}}
        for (name, keys), model in zip(names, models, strict=True)
    ]
    team = TeamSpec.model_validate({"agents": agents})
    options = nb_agents.RunOptions(session_root=tmp_path)
    run = nb_agents.start("Speed up @cell:load", team, options=options)
    answer_reads(run, LOAD)
    run.wait()
    assert ["df = load()" in str(each.requests[0]) for each in models] == [True, False]


def test_mention_without_access_to_the_notebook_is_reported(tmp_path: Path) -> None:
    run = start(tmp_path, "Speed up @cell:2", ScriptedModel(Answer("Done.")), access=None)
    run.wait()
    assert any("Add --notebook read" in each for each in run.view.notices)
