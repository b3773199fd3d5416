"""What README and docs show works as it is written: each cell, command line, YAML and Python block.

Cells and command lines are parsed by what would run them; the pages of *Start* run in a kernel,
from top to bottom, with the demo model in the place of others.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from typer.testing import CliRunner

from nb_agents.cli import app
from nb_agents.config.recipe import Recipe
from nb_agents.config.team import TeamSpec
from nb_agents.jupyter.ipython import parse_line, parse_message
from nb_agents.jupyter.magic import AgentsMagics
from nb_agents.jupyter.verbs import VERBS
from nb_agents.verbs.table import VERBS as TABLE
from tests import warm
from tests.docs.blocks import ROOT, Block, blocks
from tests.run_demo import without_ports

STARTS = sorted((ROOT / "docs" / "start").glob("*.md"))
OTHERS_PROGRAMS = {"export", "papermill", "jupyter", "dask"}
"""Programs of others, and of the shell, that the pages name."""

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
TARGETS = set(re.findall(r"^([\w.%/-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def each(*kinds: Any) -> Any:
    return pytest.mark.parametrize("block", list(blocks(*kinds)), ids=str)


@each("cell")
def test_a_cell_is_one_that_the_magics_take(block: Block) -> None:
    for line in [line for line in block.text.splitlines() if line.startswith("%")]:
        magic, _, rest = line.partition(" ")
        if magic.endswith("?") or magic in ("%load_ext", "%env"):
            continue
        if magic == "%%agents" or rest.startswith("--"):
            parse_line(AgentsMagics.agents, rest)
            continue
        assert magic == "%agents", line
        verb, _, words = rest.partition(" ")
        # What stands for any run or any text, as the reference writes it, is a word like others.
        plain = re.sub(r"[][|]", "", words)
        has_message = verb in TABLE and TABLE[verb].ends_in_text
        (parse_message if has_message else parse_line)(VERBS[verb], plain)


@each("shell")
def test_a_command_line_is_one_that_its_program_takes(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        program, *rest = words
        if program == "nb-agents":
            result = CliRunner().invoke(app, [*_known(rest), "--help"])
            assert result.exit_code == 0, f"{line}\n{result.output}"
        elif program == "pip":
            assert rest[0] == "install"
            assert set(re.findall(r"\[(\w+)\]", " ".join(rest))) <= EXTRAS.keys(), line
        elif program == "make":
            assert {word for word in rest if "=" not in word} <= TARGETS | {".venv/.test"}, line
        else:
            assert program in OTHERS_PROGRAMS or line.startswith(".venv/bin/"), line


def _known(words: list[str]) -> list[str]:
    """Check the options of a command line, and return its command alone."""
    if words[0].startswith("-"):
        return []
    help_ = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"}).output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", help_)
    for option in (word for word in words[1:] if re.match(r"--?[a-z]", word)):
        assert option in plain, f"nb-agents {words[0]} has no {option}"
    return words[:1]


@each("yaml")
def test_a_yaml_block_is_a_team_or_a_recipe(block: Block, tmp_path: Path) -> None:
    data = yaml.safe_load(block.text)
    if "steps" in data or "stages" in data:
        assert Recipe.from_text(block.text, str(block)).warnings == ()
        return
    file = tmp_path / "team.yaml"
    file.write_text(block.text)
    (tmp_path / ".env").write_text("OPENAI_API_KEY=none\n")  # where a block says so
    team = TeamSpec.from_file(file)
    assert (team.ignored, team.unsupported) == ((), ())


@each("python")
def test_a_python_block_can_be_compiled_and_imports_what_there_is(block: Block) -> None:
    tree = compile(
        block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), str(block), "exec"), {})
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "nb_agents":
            assert hasattr(sys.modules["nb_agents"], node.attr), node.attr


@pytest.mark.parametrize("page", STARTS, ids=lambda page: page.stem)
def test_a_page_of_start_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = []
    for block in blocks("cell", "python", "yaml", pages=[page]):
        text = _offline(block.text)
        if block.kind == "yaml":
            (tmp_path / "data").mkdir()
            (tmp_path / "team.yaml").write_text(text)
            continue
        cells.append(nbformat.v4.new_code_cell(text))
    if cells and "%load_ext" not in cells[0].source:
        cells.insert(0, nbformat.v4.new_code_cell("%load_ext nb_agents"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    where = {"metadata": {"path": str(tmp_path)}}
    monkeypatch.setenv("JUPYTER_PATH", warm.kernel_path(tmp_path / "jupyter"))
    NotebookClient(
        notebook, config=without_ports(tmp_path), timeout=120, resources=where, allow_errors=False
    ).execute()
    # A time limit of a page ends its run on purpose; all else is complete or stopped by the page.
    said = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    assert "UsageError" not in said


def _offline(text: str) -> str:
    """Return a block with the demo model in the place of the providers'."""
    text = re.sub(r"type: \w+, model: [\w.-]+", "type: demo, words_per_second: 200", text)
    return text.replace("openai:gpt-5-mini", "demo:demo")
