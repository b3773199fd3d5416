"""The site shows the notebooks with their outputs, and executes only those that changed."""

from pathlib import Path

import nbformat
import pytest

from docs import notebook_pages
from tests import warm


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_PATH", warm.kernel_path(tmp_path / "jupyter"))
    folder = tmp_path / "sources"
    (folder / "images").mkdir(parents=True)
    show = "import os\nfrom IPython.display import HTML, display\n"
    show += "display(HTML('<b>a card</b>'))\nprint(os.getcwd())"
    cells = [nbformat.v4.new_code_cell(show)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "quickstart.ipynb")
    return folder


def write(sources: Path) -> Path:
    pages = sources.parent / "pages"
    pages.mkdir(exist_ok=True)
    notebook_pages.write(sources, sources, sources.parent / "kept", pages)
    return pages


def test_pages_show_outputs_without_naming_the_machines_directories(sources: Path) -> None:
    pages = write(sources)
    card, folder = nbformat.read(pages / "quickstart.ipynb", 4).cells[0].outputs
    assert card.data["text/html"] == "<b>a card</b>"
    assert folder.text == "/home/ann/notebooks\n"
    assert "<b>a card</b>" in (pages / "card.html").read_text()


def test_only_changed_notebooks_are_executed_again(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed, real = [], notebook_pages.executed
    monkeypatch.setattr(
        notebook_pages, "executed", lambda path: executed.append(path.stem) or real(path)
    )
    write(sources)
    write(sources)
    assert executed == ["quickstart"]
    (sources / "used.py").write_text("changed = True")
    write(sources)
    assert executed == ["quickstart", "quickstart"]
    assert len(list((sources.parent / "kept").iterdir())) == 1
