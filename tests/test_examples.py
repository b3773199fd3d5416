"""The examples in docstrings run unchanged."""

import doctest
from importlib import import_module
from pathlib import Path

import nb_agents
from tests.test_kit import FOR_OTHERS

ROOT = Path(nb_agents.__file__).parent


def test_docstring_examples_of_all_modules() -> None:
    files = [file for file in sorted(ROOT.rglob("*.py")) if ">>> " in file.read_text("utf-8")]
    parts = [file.relative_to(ROOT.parent).with_suffix("").parts for file in files]
    names = {".".join(each).removesuffix(".__init__") for each in parts}
    tried = {name: doctest.testmod(import_module(name)) for name in sorted(names - FOR_OTHERS)}
    assert [name for name, result in tried.items() if result.failed] == []
    assert sum(result.attempted for result in tried.values()) >= 10
