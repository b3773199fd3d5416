"""The files of an installed wheel, and the requirements of its build."""

from __future__ import annotations

import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    assert "nb_agents_main.py" in names  # of the command
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


def build_hook(checkout: Path) -> Any:
    """The hook of a build in a directory."""
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["Checkout"]
    return hook(str(checkout), {}, None, SimpleNamespace(), str(checkout), "wheel")


@pytest.mark.parametrize(
    ("version", "had_packages", "keeps"),
    [("standard", False, False), ("standard", True, True), ("editable", False, True)],
)
def test_build_removes_only_the_packages_that_it_installed(
    tmp_path: Path, version: str, had_packages: bool, keeps: bool
) -> None:
    packages = tmp_path / "js" / "node_modules"
    if had_packages:
        packages.mkdir(parents=True)
    hook = build_hook(tmp_path)
    hook.initialize(version, {})
    packages.mkdir(parents=True, exist_ok=True)
    hook.finalize(version, {}, "")
    assert packages.exists() == keeps


def test_windows_is_refused_at_install_and_at_import_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; sys.platform = 'win32'; import nb_agents"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: nb_agents does not work on Windows. Install and start it in WSL" in (
        done.stderr
    )
    hook = build_hook(tmp_path)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match="does not work on Windows. Install it in WSL"):
        hook.initialize("standard", {})
