"""The examples in docstrings run as they stand."""

import doctest
import importlib
import pkgutil

import pytest

import nb_agents

MODULES = sorted(
    info.name for info in pkgutil.walk_packages(nb_agents.__path__, prefix="nb_agents.")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_say(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    tried = [doctest.testmod(importlib.import_module(name)).attempted for name in MODULES]
    assert sum(tried) >= 10
