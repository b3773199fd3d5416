"""The examples of README and docs work as written: each cell, command line, YAML and Python block.

What would run a cell or a command line parses it, and the examples of each page run in the order of
the page in one kernel, with the demo model instead of providers' models.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.docs.reader import Reader
from tests.kit.cells import VERBS, AgentsMagics, parse_line, parse_message
from tests.kit.recipes import Recipe
from tests.kit.teams import TeamSpec
from tests.kit.terminal import app
from tests.kit.verbs import VERBS as TABLE

RUN = [page for page in PAGES if any(blocks("cell", "python", pages=[page]))]
"""Pages with examples for a notebook."""

OTHER_PROGRAMS = {"curl", "dask", "export", "jupyter", "papermill", "pytest"}
"""Programs that the pages use besides nb_agents."""

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
TARGETS = set(re.findall(r"^([\w.%/-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def each(*kinds: Any) -> Any:
    return pytest.mark.parametrize("block", list(blocks(*kinds)), ids=str)


@each("cell")
def test_documented_cells_are_accepted_by_the_magics(block: Block) -> None:
    for line in [line for line in block.text.splitlines() if line.startswith("%")]:
        magic, _, rest = line.partition(" ")
        if magic.endswith("?") or magic in ("%load_ext", "%%writefile"):
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
def test_documented_command_lines_are_accepted_by_their_programs(block: Block) -> None:
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
            assert program in OTHER_PROGRAMS or line.startswith(".venv/bin/"), line


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
def test_each_yaml_block_is_a_team_or_a_recipe(block: Block, tmp_path: Path) -> None:
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
def test_python_block_compiles_and_imports_existing_names(block: Block) -> None:
    tree = compile(
        block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), str(block), "exec"), {})
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "nb_agents":
            assert hasattr(sys.modules["nb_agents"], node.attr), node.attr


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_in_the_order_of_the_page(page: Path, tmp_path: Path) -> None:
    with Reader(tmp_path, page) as reader:
        reader.try_page()
        assert reader.failed == []
