"""`nb-agents apply` and `%agents apply`: proposals are applied to the file of a closed notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.extensions.notebook_cells import apply_verb
from nb_agents.extensions.notebook_cells.apply_verb import apply, notebook_text
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.kit.cards import card_text
from tests.kit.notebook_cells import (
    CELL,
    TERMINAL,
    Caller,
    blame,
    cells_revert,
    cells_reverted,
    digest,
    state_of,
)

CALLER = Caller("cli", TERMINAL)
CHANGES = [
    {"op": "replace", "id": "a", "digest": digest("code", "x = 1"), "source": "x = 2"},
    {"op": "replace", "id": "b", "digest": digest("code", "y = 1"), "source": "y = 2\nz = 3"},
    {"op": "insert", "after": "a", "source": "assert x == 2"},
]


def write(path: Path, **sources: str) -> Path:
    cells = [{"cell_type": "code", "id": name, "source": text} for name, text in sources.items()]
    path.write_text(notebook_text({"cells": cells, "nbformat": 4, "nbformat_minor": 5}))
    return path


def sources(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    return write(tmp_path / "a.ipynb", a="x = 1", b="y = 1")


@pytest.fixture
def run(notebook: Path) -> nb_agents.Run:
    """A complete turn that worked on the notebook's file, because no page was open."""
    read = Turn(calls=(Call("notebook_read", {"ids": ["a", "b"]}),))
    propose = Turn(calls=(Call("notebook_propose", {"changes": CHANGES}),))
    done = Answer("Done.")
    team = scripted_team(ada=ScriptedModel(read, propose, done, done))
    options = nb_agents.RunOptions(
        session_root=notebook.parent / "s", notebook="propose", notebook_file=notebook
    )
    run = nb_agents.start("Improve it", team, options=options)
    run.wait()
    return run


def decisions(run: nb_agents.Run) -> list[str]:
    return [each.decided.how if each.decided else "" for each in state_of(run).proposals.values()]


def test_open_proposals_are_applied_once(run: nb_agents.Run, notebook: Path) -> None:
    assert "nb-agents apply" in card_text(run.view, "")
    assert apply(run, CALLER, notebook=str(notebook)).facts["applied"] == [1, 2, 3]
    assert sources(notebook) == ["x = 2", "assert x == 2", "y = 2\nz = 3"]
    assert decisions(run) == ["accepted"] * 3
    before = notebook.read_text()
    assert apply(run, CALLER, notebook=str(notebook)).facts["applied"] == []
    assert notebook.read_text() == before


def test_cell_that_has_changed_stays_and_is_listed(run: nb_agents.Run, notebook: Path) -> None:
    write(notebook, a="x = 1  # mine", b="y = 1")
    reply = apply(run, CALLER, notebook=str(notebook))
    assert "the cell has changed: replace cell a" in reply.text
    assert sources(notebook) == ["x = 1  # mine", "assert x == 2", "y = 2\nz = 3"]
    assert decisions(run) == ["stale", "accepted", "accepted"]


def test_copy_leaves_the_notebook_and_the_proposals(run: nb_agents.Run, notebook: Path) -> None:
    copy = notebook.with_name("copy.ipynb")
    apply(run, CALLER, notebook=str(notebook), out=str(copy))
    assert sources(notebook) == ["x = 1", "y = 1"]
    assert sources(copy)[0] == "x = 2"
    assert decisions(run) == [""] * 3
    assert {path.name for path in notebook.parent.glob("*.ipynb*")} == {"a.ipynb", "copy.ipynb"}


def test_cell_does_not_write_its_own_notebook(
    run: nb_agents.Run, notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_verb, "notebook_path", lambda *_: notebook)
    with pytest.raises(nb_agents.UserError, match="is the notebook that runs this cell"):
        apply(run, Caller("magic", CELL), notebook=str(notebook))
    assert sources(notebook) == ["x = 1", "y = 1"]


@pytest.mark.parametrize("text", ["", "[]", '{"cells": [{"source": ""}]}'])
def test_file_that_is_no_notebook_with_ids_is_refused(
    run: nb_agents.Run, notebook: Path, text: str
) -> None:
    notebook.write_text(text)
    with pytest.raises(nb_agents.UserError, match="is not a notebook|no ids"):
        apply(run, CALLER, notebook=str(notebook))
    assert notebook.read_text() == text


def test_rewind_takes_back_accepted_changes_and_leaves_the_cells_that_the_user_edited(
    run: nb_agents.Run, notebook: Path
) -> None:
    apply(run, CALLER, notebook=str(notebook))
    write(notebook, a="x = 2", new="assert x == 2", b="y = 2\nz = 3  # mine")
    with_ids(notebook, run)
    [read_end, *_] = (e["seq"] for e in journal(run) if e["kind"] == "tool_finished")
    assert "accepted changes of 3 cells of ada" in str(run.preview_rewind(read_end))
    again = run.rewind(read_end)
    again.wait()
    assert state_of(again).is_revert_open and not state_of(again).open
    reply = apply(again, CALLER, notebook=str(notebook))
    assert sources(notebook) == ["x = 1", "y = 2\nz = 3  # mine"]
    assert "Cell b of ada stays as it is, because you have edited it since." in reply.text
    assert "-y = 2" in reply.text and "+y = 1" in reply.text
    assert not state_of(again).is_revert_open
    # What stayed is offered by the next rewind, and what was taken back is not.
    assert "accepted changes of 1 cell of ada" in str(run.preview_rewind(read_end))


def test_rewind_without_a_page_writes_a_patch_with_the_digests(
    run: nb_agents.Run, notebook: Path
) -> None:
    apply(run, CALLER, notebook=str(notebook))
    again = run.rewind(next(e["seq"] for e in journal(run) if e["kind"] == "tool_finished"))
    again.wait()
    patch = (again.path / "cells.patch").read_text()
    head = f"restore cell a (digest {digest('code', 'x = 2')}), changed by ada"
    assert head in patch and "-x = 2\n+x = 1\n" in patch
    assert patch.index("remove cell") < patch.index(head)  # the last change comes first
    assert "3 accepted changes" in card_text(again.view, "")
    apply(again, CALLER, notebook=str(notebook))
    assert sources(notebook) == ["x = 1", "y = 1"]


def test_rewind_to_a_checkpoint_after_the_last_change_takes_nothing_back(
    run: nb_agents.Run, notebook: Path
) -> None:
    apply(run, CALLER, notebook=str(notebook))
    again = run.rewind("the end")
    again.wait()
    assert state_of(again).revert is None


def test_one_page_gets_the_plan_unless_the_user_asks_another(
    run: nb_agents.Run, notebook: Path
) -> None:
    apply(run, CALLER, notebook=str(notebook))
    again = run.rewind(next(e["seq"] for e in journal(run) if e["kind"] == "tool_finished"))
    again.wait()
    cells = json.dumps([{"id": "a", "type": "code", "source": "x = 2"}])
    first = cells_revert(again, CALLER, page="p1", cells=cells).facts
    assert [each["source"] for each in first["steps"]] == ["x = 1"]
    assert cells_revert(again, CALLER, page="p2", cells=cells).facts["mine"] is False
    assert cells_revert(again, CALLER, page="p2", cells=cells, force=True).facts["mine"] is True
    done = " ".join(first["steps"][0]["changes"])
    assert cells_reverted(again, CALLER, changes=done, kept="").facts["changed"] is True
    assert cells_reverted(again, CALLER, changes=done, kept="").facts["changed"] is False
    assert cells_revert(again, CALLER, page="p1", cells=cells).facts["open"] is False


def test_blame_names_the_agent_model_call_and_time_of_each_line(
    run: nb_agents.Run, notebook: Path
) -> None:
    apply(run, CALLER, notebook=str(notebook))
    table = blame(run.path.parents[1], CALLER, file=str(notebook))
    assert [(each["line"], each["text"]) for each in table.items or ()] == [
        (1, "x = 2"),
        (1, "assert x == 2"),
        (1, "y = 2"),
        (2, "z = 3"),
    ]
    [call] = [e for e in journal(run) if e.get("tool") == "notebook_propose" and "args" in e]
    first = (table.items or [{}])[0]
    assert (first["agent"], first["call"]) == ("ada", call["call_id"])
    assert first["turn"] == f"{run.session}/1" and first["model"] and first["at"] > call["at"]
    assert [row[:3] for row in table.rows][:1] == [("1", "1", "ada")]


def test_blame_of_a_notebook_without_changes_says_so(run: nb_agents.Run, notebook: Path) -> None:
    table = blame(run.path.parents[1], CALLER, file=str(notebook))
    assert not table.rows and "No line of" in table.empty


def journal(run: nb_agents.Run) -> list[dict[str, Any]]:
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def with_ids(path: Path, run: nb_agents.Run) -> None:
    """Give the inserted cell the id that the decision names."""
    data = json.loads(path.read_text())
    inserted = state_of(run).proposals[3].decided
    assert inserted is not None
    data["cells"][1]["id"] = inserted.cell
    path.write_text(json.dumps(data))
