"""`nb-agents doctor` finds what is wrong with an environment and shows no secret of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nb_agents import __version__
from tests.cli.calls import call_here, told_here
from tests.kit.terminal import COMPLETE, FAILED

KEY = "sk-proj-1f9Qz7LmX02p"
PASSWORD = "hunter2-Zq81xW"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Jupyter installation with both extensions, and no proxies, keys or certificates."""
    for name in ("HTTPS_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "no")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    config = {"ServerApp": {"jpserver_extensions": {"nb_agents": True}}}
    write(tmp_path / "config/jupyter_server_config.d/nb_agents.json", config)
    write(tmp_path / "data/labextensions/nb-agents/package.json", {"version": __version__})
    return tmp_path


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def problems() -> dict[str, str]:
    checks = told_here("doctor", code=FAILED)["checks"]
    return {each["name"]: each["text"] for each in checks if each["state"] == "problem"}


def test_report_of_a_working_environment_has_no_problem() -> None:
    report = told_here("doctor", code=COMPLETE)
    assert report["is_ok"]
    names = {each["name"] for each in report["checks"]}
    assert names >= {
        *("nb_agents", "packages", "network", "keys", "kernels", "server", "lab extension")
    }
    assert call_here("doctor").endswith("no problem found.\n")


def test_report_names_keys_and_proxies_but_contains_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", f"{KEY}\n")
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:{PASSWORD}@proxy.example:8080")
    text = call_here("doctor", code=FAILED)
    assert "OPENAI_API_KEY" in text and "proxy.example:8080 (HTTPS_PROXY)" in text
    assert not [secret for secret in (KEY, PASSWORD, "ada:") if secret in text]
    assert problems().keys() == {"keys"}
    assert problems()["keys"].startswith("ANTHROPIC_API_KEY contains")


def test_unusable_proxy_and_missing_certificates_are_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"ftp://ada:{PASSWORD}@proxy.example")
    assert "HTTPS_PROXY" in problems()["network"]
    assert PASSWORD not in problems()["network"]


@pytest.mark.parametrize(
    ("file", "value", "check", "text"),
    [
        (
            "config/jupyter_server_config.json",
            {"ServerApp": {"jpserver_extensions": {"nb_agents": False}}},
            "server",
            "disabled",
        ),
        (
            "config/labconfig/page_config.json",
            {"disabledExtensions": {"nb-agents": True}},
            "lab extension",
            "disabled",
        ),
        ("data/labextensions/nb-agents/package.json", {"version": "0.0.9"}, "lab extension", "0.9"),
    ],
)
def test_disabled_or_outdated_extension_is_a_problem(
    place: Path, file: str, value: Any, check: str, text: str
) -> None:
    write(place / file, value)
    assert problems().keys() == {check}
    assert text in problems()[check]


def test_kernels_of_other_environments_are_named(place: Path) -> None:
    kernels = place / "data" / "kernels"
    for name, python in {"python3": "/opt/other/bin/python", "own": sys.executable}.items():
        spec = {"argv": [python, "-m", "ipykernel"], "display_name": name, "language": "python"}
        write(kernels / name / "kernel.json", spec)
    found = check("kernels")
    assert found["state"] == "ok"
    assert "own (this environment), python3 (/opt/other/bin/python)" in found["text"]
    write(kernels / "own" / "kernel.json", spec | {"argv": ["/opt/third/bin/python3"]})
    found = check("kernels")
    assert found["state"] == "note" and "No kernel runs in this environment" in found["text"]


def check(name: str) -> dict[str, str]:
    """Return the check with a name."""
    checks: list[dict[str, str]] = told_here("doctor")["checks"]
    return next(each for each in checks if each["name"] == name)


def test_damaged_jupyter_configuration_does_not_end_the_report(place: Path) -> None:
    write(place / "config/labconfig/page_config.json", {"disabledExtensions": 7})
    assert "A check failed" in problems()["doctor"]
    assert "sessions" in {each["name"] for each in told_here("doctor", code=FAILED)["checks"]}


def test_report_is_bounded_and_printable(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    root = place / ("\x1b[31m" + "d" * 200) / ("e" * 200) / ("f" * 200) / ("g" * 200)
    text = call_here("doctor", "--session-root", str(root))
    assert "\x1b" not in text and max(map(len, text.splitlines())) < 700
