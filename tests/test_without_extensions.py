"""The core works without each of the extensions: tests of it pass when their directory is gone."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from nb_agents.extend import extensions
from tests.lean_copy import copy_without
from tests.test_kit import ROOT, TESTS, imported

FAST = (
    "tests/agents/test_team_driver.py",
    "tests/config/test_backends.py",
    "tests/test_folds.py",
    "tests/turns/test_status.py",
    "tests/view/test_points.py",
)
"""Tests of the core that take seconds. Those that need the extension are left out."""

EXTENSIONS = sorted(path.parent.name for path in ROOT.glob("nb_agents/extensions/*/__init__.py"))


def needs(test: str, extension: str) -> bool:
    """Tell whether a test module needs an extension: by an import, its names or its types."""
    package = f"nb_agents.extensions.{extension}"
    (declared,) = (each for each in extensions() if each.name == extension)
    types = {*declared.backend_types, *declared.commands, *declared.verbs}
    return any(
        any(f"{module}.".startswith(f"{package}.") for module, _ in imported(name))
        or _uses(TESTS[name], {*declared.public_names}, types)
        for name in _with_imports(test)
    )


@cache
def _with_imports(test: str) -> frozenset[str]:
    """Return a test module and all test modules that it imports."""
    found, todo = set[str](), [test]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [module for module, _ in imported(name) if module in TESTS]
    return frozenset(found)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _uses(path: Path, names: set[str], types: set[str]) -> bool:
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.Attribute(value=ast.Name("nb_agents"), attr=name) if name in names:
                return True
            case ast.ImportFrom(module="nb_agents") if names & {each.name for each in node.names}:
                return True
            case ast.Constant(value=str(text)) if text in types:
                return True
    return False


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def without(extension: str, folder: Path) -> Path:
    """Copy what the core's tests need into a folder, without an extension's directory."""
    copy_without(extension, folder, "tests", "docs", "bench")
    for path in (ROOT / "pyproject.toml", *ROOT.glob("*.md")):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_core_works_without_an_extension(tmp_path: Path, extension: str) -> None:
    folder = without(extension, tmp_path)
    paths = [path for path in FAST if not needs(_module(path), extension)]
    assert len(paths) > len(FAST) / 2
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
