"""Tests import internal names from `tests.kit`, or from the module that they are named after."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nb_agents
from docs.reference_pages import PUBLIC

ROOT = Path(__file__).parent.parent
KIT = "tests.kit"
FOR_ALL = {*PUBLIC, "nb_agents.events", "nb_agents.extend"}
ALONE = {"tests.conftest", "tests.run_demo", "tests.notebooks", "tests.compat"}
"""Modules that are run by path, or loaded before other modules can be."""


def _modules(folder: str) -> dict[str, Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, found, strict=True)}


OURS = _modules("nb_agents")
FOR_OTHERS = {"nb_agents.extensions.external_agents.jupyter_ai_persona"}
"""Modules that import a program's library, and that only this program imports."""
TESTS = {**_modules("tests"), **_modules("bench")}


@cache
def imported(module: str) -> frozenset[tuple[str, str]]:
    """Return the imports of a test module as (module, name); the name of a module is ""."""
    tree = ast.parse(TESTS[module].read_text("utf-8"))
    return frozenset(_imported(tree))


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full in OURS or full in TESTS
                is_listed = node.module == "nb_agents" and alias.name in nb_agents.__all__
                yield (full, "") if is_module and not is_listed else (node.module, alias.name)


@cache
def parts_of_the_kit() -> frozenset[str]:
    """Return the modules of the kit and all test modules that they import."""
    todo, seen = [name for name in TESTS if name.startswith(KIT)], set[str]()
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += [name for name, _ in imported(module) if name in TESTS]
    return frozenset(seen)


def _others() -> Iterator[str]:
    yield from (name for name in TESTS if name not in ALONE and name not in parts_of_the_kit())


def _tests_it(test: str, module: str) -> bool:
    return test.rpartition(".")[2] == f"test_{module.rpartition('.')[2]}"


def test_internal_names_are_imported_from_the_kit_or_the_tested_module() -> None:
    deep = [
        f"{test} imports {module}"
        for test in _others()
        for module, _ in sorted(imported(test))
        if module in OURS and module not in FOR_ALL and not _tests_it(test, module)
    ]
    assert deep == [], "add the name to a module of tests/kit, and import it from there"


def test_each_name_of_the_kit_is_used() -> None:
    used = {each for test in TESTS for each in imported(test) if each[0].startswith(KIT)}
    listed = {
        (module, name)
        for module, path in TESTS.items()
        if module.startswith(f"{KIT}.")
        for name in _listed(path)
    }
    assert listed - used == set()


def _listed(path: Path) -> list[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def test_no_test_patches_a_module_by_its_dotted_name() -> None:
    """Such a name is not updated when a module moves."""
    pattern = re.compile(r'setattr\(\s*"nb_agents\.')
    found = [name for name, path in TESTS.items() if pattern.search(path.read_text("utf-8"))]
    assert set(found) - {"tests.test_kit"} == set()
