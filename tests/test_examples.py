"""The examples in docstrings run as they stand."""

import doctest
import importlib
import pkgutil

import nb_agents


def test_the_examples_of_all_modules_give_what_they_say() -> None:
    infos = pkgutil.walk_packages(nb_agents.__path__, prefix="nb_agents.")
    tried = {info.name: doctest.testmod(importlib.import_module(info.name)) for info in infos}
    assert [name for name, result in tried.items() if result.failed] == []
    assert sum(result.attempted for result in tried.values()) >= 10
