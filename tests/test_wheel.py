"""What an install of the wheel puts where, and what building it needs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
EXTENSION = "share/jupyter/labextensions/nb-agents"


def test_the_wheel_has_panel_plugin_and_server_and_needs_no_node_once_they_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    package = {name for name in names if name.startswith("nb_agents/")}
    [data] = {name.partition("/")[0] for name in names if ".data/" in name}
    placed = {name.removeprefix(f"{data}/data/") for name in names if name.startswith(data)}
    assert {"nb_agents/jupyter/static/panel.js", "nb_agents/jupyter/static/panel.css"} <= package
    assert placed == {
        "etc/jupyter/jupyter_server_config.d/nb_agents.json",
        f"{EXTENSION}/install.json",
        *built(ROOT / "nb_agents" / "labextension"),
    }
    assert f"{EXTENSION}/package.json" in placed
    # Each thing is there once: not as a part of the package, too.
    assert not [name for name in package if "labextension" in name or "config.d" in name]
    files = [file for end in ("py", "j2") for file in ROOT.glob(f"nb_agents/**/*.{end}")]
    assert {file.relative_to(ROOT).as_posix() for file in files} <= package


def built(folder: Path) -> set[str]:
    """Where each file of the plugin is to be."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {f"{EXTENSION}/{file.relative_to(folder).as_posix()}" for file in files}
