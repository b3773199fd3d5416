"""Images in outputs of cells reach models and external agents as images, within limits."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.sign import NotebookNotary

import nb_agents
from nb_agents.extensions.notebook_cells import cell_images
from nb_agents.extensions.notebook_cells.cell_images import CellImage, images_in, store_images
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.notebook_cells import (
    CELL,
    Caller,
    TeamSpec,
    cells_of,
    cells_read,
    digest,
    with_origin,
)
from tests.notebook_cells.journals import events

ACP_AGENT = Path(__file__).parents[1] / "acp" / "agent.py"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 100
IMAGE = b64encode(PNG).decode()
PLOT = "plot()"
SHOW = "from IPython.display import Image\nImage(b'\\x89PNG\\r\\n\\x1a\\n' + b'x' * 100)"
READ = {"ids": ["plot"], "outputs": True}


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    outputs = [
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"image/png": IMAGE, "text/plain": "<Fig>"},
        }
    ]
    more = {"cell_type": "code", "metadata": {}, "execution_count": None}
    cells = [
        {"id": "plot", "source": PLOT, "outputs": outputs, **more},
        {"id": "show", "source": SHOW, "outputs": [], **more},
    ]
    path = tmp_path / "book.ipynb"
    text = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(text))
    return path


@pytest.fixture
def start(tmp_path: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    NotebookNotary().sign(nbformat.read(notebook, 4))

    def started(backend: dict[str, Any], outputs: str = "images", **more: Any) -> nb_agents.Run:
        policy = [{"match": "notebook_run", "action": "allow"}]
        keys = {"notebook": "run", "notebook_outputs": outputs, "tool_policy": policy}
        team = TeamSpec.model_validate({"agents": [{"id": "ada", "backend": {**backend, **keys}}]})
        options = nb_agents.RunOptions(
            **{"session_root": tmp_path / "s", "notebook_file": notebook, **more}
        )
        return nb_agents.start("Look at the plot", team, options=options)

    return started


def scripted(*turns: Any) -> tuple[ScriptedModel, dict[str, Any]]:
    model = ScriptedModel(*turns)
    return model, {"type": "python", "instance": model}


def result_of(model: ScriptedModel, request: int = -1) -> list[Any]:
    """Return the text and the files of the last tool result in a request."""
    parts = [p for m in model.requests[request] for p in m.parts if p.part_kind == "tool-return"]
    content = parts[-1].content
    return [*content] if isinstance(content, list) else [content]


def test_model_gets_the_image_of_a_cell_and_the_journal_only_its_name(start: Any) -> None:
    model, backend = scripted(Turn(calls=(Call("notebook_read", READ),)), Answer("Seen."))
    run = start(backend)
    run.wait()
    text, image = result_of(model)
    assert "--- images of cell plot: image/png (108 bytes)" in text
    assert (image.data, image.media_type) == (PNG, "image/png")
    assert IMAGE not in (run.path / "events.jsonl").read_text()
    [finished, *_] = events(run, "tool_finished")
    assert (run.path.parent / finished["images"][0]["file"]).read_bytes() == PNG


def test_image_of_a_cell_that_was_run_reaches_the_model(start: Any) -> None:
    read = Turn(calls=(Call("notebook_read", {"ids": ["show"]}),))
    call = Call("notebook_run", {"id": "show", "digest": digest("code", SHOW)})
    model, backend = scripted(read, Turn(calls=(call,)), Answer("Seen."))
    run = start(backend)
    run.wait()
    text, image = result_of(model)
    assert "Cell show ran." in text and image.data == PNG


@pytest.mark.parametrize("why", ["the key", "the model"])
def test_image_is_left_out_without_the_key_or_for_a_model_that_takes_none(
    start: Any, why: str
) -> None:
    model, backend = scripted(Turn(calls=(Call("notebook_read", READ),)), Answer("Seen."))
    model.takes_images = why != "the model"
    start(backend, "text" if why == "the key" else "images").wait()
    [text] = result_of(model)
    assert "[image/png]" in text
    assert ("Images left out of this request: 1" in text) == (why == "the model")


def test_resume_sends_the_image_of_the_earlier_turn_again(start: Any) -> None:
    def stop(messages: Any) -> Turn:
        runs[0].stop(now=True)
        return Turn("Waiting")

    read = Turn(calls=(Call("notebook_read", READ),))
    model, backend = scripted(read, stop, Answer("Seen."))
    runs = list[nb_agents.Run]()
    runs.append(start(backend))
    runs[0].wait(raise_on_stop=False)
    again = runs[0].resume()
    again.wait()
    assert result_of(model)[1].data == PNG


def test_acp_agent_gets_the_image_as_image_content(start: Any) -> None:
    steps = [f"mcp notebook_read {json.dumps(READ)}", "answer Seen"]
    run = start({"type": "acp", "command": [sys.executable, str(ACP_AGENT), *steps]})
    run.wait()
    lines = (run.path.parent / "programs" / "ada" / "asked.jsonl").read_text()
    assert "image/png" in lines and IMAGE in lines


def test_page_sends_images_which_are_checked_and_stored(start: Any) -> None:
    model, backend = scripted(Turn(calls=(Call("notebook_read", READ),)), Answer("Seen."))
    with with_origin("notebook:a.ipynb"):
        run = start(backend, notebook_file=None)
    images = [
        {"cell": "plot", "media_type": "image/png", "data": IMAGE},
        {"cell": "plot", "media_type": "image/png", "data": b64encode(b"<svg>").decode()},
    ]
    cells = [
        {
            "id": "plot",
            "type": "code",
            "source": PLOT,
            "images": [{"file": "../x", "media_type": "a"}],
        }
    ]
    answered = set[int]()

    def on_view(view: Any) -> None:
        for number, request in cells_of(view).requests.items():
            if number not in answered:
                answered.add(number)
                assert request.images
                cells_read(
                    run,
                    Caller("widget", CELL),
                    request=number,
                    notebook="a.ipynb",
                    count=1,
                    cells=json.dumps(cells),
                    problem="",
                    images=json.dumps(images),
                )

    run.subscribe(on_view)
    on_view(run.view)
    run.wait()
    text, image = result_of(model)
    assert image.data == PNG and "of another format: 1" in text


def test_number_and_size_of_images_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [CellImage(f"c{n}", "image/png", IMAGE) for n in range(6)]
    stored = store_images(tmp_path, found)
    assert [len(each.images) for each in stored.values()] == [1, 1, 1, 1, 0, 0]
    assert [each.left_out for each in stored.values()] == [0, 0, 0, 0, 1, 1]
    monkeypatch.setattr(cell_images, "MAX_SUM", 2 * len(IMAGE))
    assert sum(len(each.images) for each in store_images(tmp_path, found).values()) == 2
    monkeypatch.setattr(cell_images, "MAX_IMAGE", len(IMAGE) - 1)
    assert not any(each.images for each in store_images(tmp_path, found).values())
    svg = {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>"}}
    assert store_images(tmp_path, images_in("a", [svg, "damaged"]))["a"].left_out == 1
