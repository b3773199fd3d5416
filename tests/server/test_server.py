"""The server extension can be found, enabled and loaded by its names."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_server.extension.manager import ExtensionPackage

import nb_agents
from nb_agents import server

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["nb_agents", "nb_agents.server"])
def test_package_is_a_valid_server_extension(name: str) -> None:
    package = ExtensionPackage(name=name, enabled=True)
    assert package.validate()
    assert list(package.extension_points) == ["nb_agents.server"]


def test_extension_that_is_enabled_under_both_names_adds_its_handlers_once(tmp_path: Path) -> None:
    added: list[Any] = []
    web_app = SimpleNamespace(
        settings={"base_url": "/"}, add_handlers=lambda host, rules: added.append(rules)
    )
    app = SimpleNamespace(root_dir=str(tmp_path), web_app=web_app, config={})
    server._load_jupyter_server_extension(app)
    server._load_jupyter_server_extension(app)
    assert len(added) == 1


def test_labextension_path_is_where_it_is_built() -> None:
    [path] = nb_agents._jupyter_labextension_paths()
    package = json.loads((ROOT / "js/package.json").read_text())
    built = (ROOT / "js" / package["jupyterlab"]["outputDir"]).resolve()
    assert built == ROOT / "nb_agents" / path["src"] and path["dest"] == package["name"]


def test_all_files_have_the_version_of_the_package() -> None:
    package = json.loads((ROOT / "js/package.json").read_text())
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert citation is not None
    assert {package["version"], citation[1]} == {nb_agents.__version__}
