"""What is displayed leaves by one door, which lets through no control sequence and no raw HTML."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nb_agents.presentation.markdown import harmless

JUPYTER = Path(__file__).parents[2] / "nb_agents/jupyter"


def imported_names(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_a_bundle_is_made_harmless_by_its_mime_types() -> None:
    bundle = {
        "text/plain": "a <b> \x1b[2Jc",
        "text/markdown": "a <b> \x1b[2Jc",
        "text/html": "<b>c</b>",
        "application/x": {"any": 1},
    }
    assert harmless(bundle) == {
        "text/plain": "a <b> c",
        "text/markdown": "a &lt;b> c",
        "text/html": "<b>c</b>",
        "application/x": {"any": 1},
    }


def test_there_is_no_other_door() -> None:
    using = [
        p.name for p in JUPYTER.rglob("*.py") if "IPython.display.display" in imported_names(p)
    ]
    assert using == ["ipython.py"]
    prints = [p.name for p in JUPYTER.rglob("*.py") if "print(" in p.read_text("utf-8")]
    assert prints == []


def test_nothing_that_is_displayed_shows_a_secret_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "tk-1f9Qz7LmX02p"
    monkeypatch.setenv("MY_TOKEN", key)
    bundle = {"text/plain": key, "text/html": f"<b>{key}</b>", "application/x+json": {"a": [key]}}
    assert harmless(bundle) == {
        "text/plain": "[key]",
        "text/html": "<b>[key]</b>",
        "application/x+json": {"a": ["[key]"]},
    }
