"""All output goes through `display`, which removes control sequences and raw HTML."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.kit.cards import sanitize

JUPYTER = Path(__file__).parents[2] / "nb_agents/jupyter"


def imported_names(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {
        f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_bundle_is_sanitized_by_mime_type() -> None:
    bundle = {
        "text/plain": "a <b> \x1b[2Jc",
        "text/markdown": "a <b> \x1b[2Jc",
        "text/html": "<b>c</b>",
        "application/x": {"any": 1},
    }
    assert sanitize(bundle) == {
        "text/plain": "a <b> c",
        "text/markdown": "a &lt;b> c",
        "text/html": "<b>c</b>",
        "application/x": {"any": 1},
    }


def test_only_display_shows_output() -> None:
    using = [
        p.name for p in JUPYTER.rglob("*.py") if "IPython.display.display" in imported_names(p)
    ]
    assert using == ["ipython.py"]
    prints = [p.name for p in JUPYTER.rglob("*.py") if "print(" in p.read_text("utf-8")]
    assert prints == []


def test_displayed_output_contains_no_secret_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "tk-1f9Qz7LmX02p"
    monkeypatch.setenv("MY_TOKEN", key)
    bundle = {"text/plain": key, "text/html": f"<b>{key}</b>", "application/x+json": {"a": [key]}}
    assert sanitize(bundle) == {
        "text/plain": "[key]",
        "text/html": "<b>[key]</b>",
        "application/x+json": {"a": ["[key]"]},
    }
