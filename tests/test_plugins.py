"""Extensions are found and registered; what they add is imported on first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nb_agents
from nb_agents import UserError, plugins
from nb_agents.plugins import Extension, ExtensionPoint, register
from tests.kit.programs import ACP_TYPES, EXTENSION


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plugins.extensions()
    monkeypatch.setattr(plugins, "_registered", dict(plugins._registered))
    yield


def installed(folder: Path, code: str) -> Path:
    """Put a distribution with an extension into a folder, as pip would."""
    (folder / "acme.py").write_text(code)
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nb_agents]\nacme = acme:EXTENSION\n")
    return folder


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_reference_is_imported_on_first_use() -> None:
    register(Extension(name="acme", tools={"half": "fractions:Fraction"}))
    tools = ExtensionPoint[type]("tools")
    assert "half" in tools and tools["half"](1, 2) == 0.5
    assert "third" not in tools and tools.get("third") is None
    with pytest.raises(KeyError):
        tools["third"]


def test_extension_adds_to_the_core_without_replacing_anything() -> None:
    register(Extension(name="acme", tools={"half": "fractions:Fraction", "own": "decimal:Decimal"}))
    tools = ExtensionPoint[type]("tools", {"own": int})
    assert [*tools][:1] == ["own"] and len(tools) == len(set(tools))
    assert tools["own"] is int and tools.all()["own"] is int
    assert {"half", "own"} <= tools.all().keys()


def test_a_reference_that_fails_names_its_extension() -> None:
    register(Extension(name="acme", tools={"half": "fractions:Missing", "whole": "acme_missing:X"}))
    point = ExtensionPoint[type]("tools")
    with pytest.raises(UserError, match="'half' of the extension 'acme'.*'fractions:Missing'"):
        point["half"]
    with pytest.raises(UserError, match="No module named 'acme_missing'"):
        point["whole"]
    assert not {"half", "whole"} & point.all().keys()


def test_two_extensions_cannot_add_the_same_name() -> None:
    acme = Extension(name="acme", tools={"half": "fractions:Fraction"})
    register(acme)
    register(acme)
    with pytest.raises(UserError, match="'acme' and 'other' both add 'half' to tools"):
        register(Extension(name="other", tools={"half": "decimal:Decimal"}))
    with pytest.raises(UserError, match="There are two extensions named 'acme'"):
        register(Extension(name="acme"))


def test_an_installed_extension_is_found_by_its_entry_point(tmp_path: Path) -> None:
    code = (
        "from nb_agents.plugins import Extension\n"
        "EXTENSION = Extension(name='acme', tools={'half': 'fractions:Fraction'})"
    )
    show = "from nb_agents.plugins import ExtensionPoint\n"
    show += "print(ExtensionPoint('tools')['half'](1, 2))"
    done = python(show, installed(tmp_path, code))
    assert done.stdout.strip() == "1/2"


PUBLIC = "from nb_agents.plugins import Extension\nX = {'f': 'os'}\n"
PUBLIC += "EXTENSION = Extension(name='acme', public_names=X)"


@pytest.mark.parametrize("code", ["import acme_missing", "EXTENSION = 'acme'", "X = 1", PUBLIC])
def test_an_installed_extension_that_fails_is_left_out(tmp_path: Path, code: str) -> None:
    show = "import logging; logging.basicConfig()\nfrom nb_agents import plugins\n"
    show += "print('acme' in [each.name for each in plugins.extensions()])"
    done = python(show, installed(tmp_path, code))
    assert done.stdout.strip() == "False"
    assert "Extension 'acme' is not available." in done.stderr


def test_importing_the_package_reads_no_entry_points(tmp_path: Path) -> None:
    folder = installed(tmp_path, "raise SystemExit('acme was imported')")
    done = python("import nb_agents, nb_agents.server; nb_agents.start; print('kept')", folder)
    assert done.stdout.strip() == "kept"


def test_a_public_name_of_an_extension_is_imported_from_the_package() -> None:
    register(Extension(name="acme", public_names={"half_of_acme": "fractions:Fraction"}))
    assert nb_agents.half_of_acme(1, 2) == 0.5
    with pytest.raises(AttributeError, match="third_of_acme"):
        nb_agents.third_of_acme  # noqa: B018


def test_an_unknown_field_of_extensions_is_refused() -> None:
    with pytest.raises(ValueError, match="'toolz'"):
        ExtensionPoint[type]("toolz")


def test_external_agents_list_all_their_backend_types() -> None:
    assert EXTENSION.backend_types.keys() == EXTENSION.runner_types.keys() == ACP_TYPES
