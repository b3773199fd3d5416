"""The commands of the page about CI work on a notebook with the page's cells."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests import processes, warm
from tests.docs.blocks import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "ci.md"

WITH_WARM_KERNELS = """
import runpy, sys
import tests.warm
sys.argv[:] = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module whose kernels are forked from a process that has imported everything."""


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's notebook: a cell with parameters, and a cell with a task."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JUPYTER_PATH", warm.kernel_path(tmp_path / "jupyter"))
    parameters, task = (next(blocks(kind, pages=[PAGE])).text for kind in ("python", "cell"))
    cells = [nbformat.v4.new_code_cell(each) for each in ("%load_ext nb_agents", parameters, task)]
    cells[1].metadata["tags"] = ["parameters"]
    folder = tmp_path / "work"
    folder.mkdir()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    page = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(page, folder / "analysis.ipynb")
    return folder / "analysis.ipynb"


def commands(program: str) -> Iterator[list[str]]:
    """Yield the page's command lines of a program, run with this interpreter."""
    for block in blocks("shell", pages=[PAGE]):
        for line in block.text.splitlines():
            name, *words = shlex.split(line)
            if name == program:
                if name == "jupyter":  # it would replace itself with the program of its first word
                    name, *words = words
                yield [sys.executable, "-c", WITH_WARM_KERNELS, name, *words]


def execute(command: list[str], notebook: Path) -> str:
    done = processes.run(command, cwd=notebook.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def turns(notebook: Path) -> list[Path]:
    return sorted(notebook.parent.glob(".nb_agents/sessions/*/turn_*"))


def output(notebook: Path) -> str:
    """Return the output of the cell with the task."""
    return str(nbformat.read(notebook, 4).cells[-1].outputs)


def test_papermill_inserts_its_parameter_and_a_rerun_starts_no_turn(notebook: Path) -> None:
    [command] = commands("papermill")
    done = notebook.parent / "done.ipynb"
    execute(command, notebook)
    assert "Name three kinds of indexes." in output(done)
    first = turns(notebook)
    execute(command, notebook)
    assert turns(notebook) == first and len(first) == 1
    assert "Name three kinds of indexes." in output(done)


def test_nbconvert_executes_the_notebook_until_its_run_is_over(notebook: Path) -> None:
    [command] = commands("jupyter")
    execute(command, notebook)
    executed = notebook.with_name("analysis.nbconvert.ipynb")
    assert "Name three kinds of caches." in output(executed)
    assert "complete" in output(executed)


def test_nbval_runs_the_notebook_as_a_test(notebook: Path) -> None:
    [command] = commands("pytest")
    assert "3 passed" in execute(command, notebook)


def test_tests_of_the_page_pass(tmp_path: Path) -> None:
    tests = [b.text for b in blocks("python", pages=[PAGE]) if "def test_" in b.text]
    for number, text in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", str(tmp_path)]
    done = processes.run(command, cwd=tmp_path)
    assert f"{len(tests)} passed" in done.stdout, done.stdout + done.stderr
