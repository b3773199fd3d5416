"""``nb-agents wait-for-quota --install-timer`` writes a timer for systemd's user manager."""

import configparser
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.calls import call_here, call_in, told_here
from tests.kit.terminal import USAGE, quota_timer

INSTALL = ("wait-for-quota", "--install-timer")
REMOVE = ("wait-for-quota", "--remove-timer")


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine with systemd, and return the directory of the user's units."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text("#!/bin/sh\n")
    (programs / "systemctl").chmod(0o755)
    project = tmp_path / 'a 100% "project"'
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setattr(quota_timer, "SYSTEMD", tmp_path)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "systemd" / "user"


def _read(file: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(file)
    return parser


def _path(value: str) -> str:
    return value.replace("%%", "%")


def test_timer_runs_the_command_for_the_session_root(units: Path) -> None:
    Path(".env").write_text("OPENAI_API_KEY=k\n")
    printed = call_here(*INSTALL)
    service, timer = sorted(units.iterdir())
    assert f"Wrote {service}" in printed
    assert f"Wrote {timer}" in printed
    assert f"systemctl --user enable --now {timer.name}" in printed
    assert _read(timer)["Timer"]["OnUnitActiveSec"] == "5min"
    entries = _read(service)["Service"]
    assert entries["KillMode"] == "process"  # the resumed turns outlive the command
    assert _path(entries["WorkingDirectory"]) == str(Path.cwd())
    assert _path(entries["EnvironmentFile"]) == str(Path.cwd() / ".env")
    command = shlex.split(_path(entries["ExecStart"]).replace("$$", "$"))
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=200)
    assert (done.stdout.strip(), done.returncode) == ("No turn waits for a provider.", 0)


def test_keys_are_only_read_from_an_existing_file(units: Path) -> None:
    call_here(*INSTALL)
    service = next(units.glob("*.service"))
    assert "EnvironmentFile" not in service.read_text()


def test_each_session_root_has_its_own_timer(units: Path, tmp_path: Path) -> None:
    roots = [("--session-root", str(tmp_path / name)) for name in ("one", "two")]
    for root in roots:
        told = told_here(*INSTALL, *root)
        assert all(Path(file).is_file() for file in told["files"])
    assert len([*units.iterdir()]) == 4
    told = told_here(*REMOVE, *roots[0])
    assert not any(Path(file).exists() for file in told["files"])
    assert told["commands"][0].startswith("systemctl --user stop ")
    assert len([*units.iterdir()]) == 2


def test_removal_deletes_the_link_of_an_enabled_timer(units: Path) -> None:
    call_here(*INSTALL)
    timer = next(units.glob("*.timer"))
    link = units / "timers.target.wants" / timer.name
    link.parent.mkdir()
    link.symlink_to(timer)
    assert f"Deleted {timer}" in call_here(*REMOVE)
    assert not link.is_symlink()
    assert "There is no timer" in call_in("utf-8", *REMOVE, code=USAGE)


def test_machine_without_systemd_is_told_the_alternatives(
    units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_timer, "SYSTEMD", tmp_path / "missing")
    printed = " ".join(call_in("utf-8", *INSTALL, code=USAGE).split())
    assert quota_timer.NO_SYSTEMD in printed
    assert "c.NbAgents.wait_for_quota = True" in printed
    assert not units.exists()


def test_only_one_of_both_options_is_accepted(units: Path) -> None:
    assert "either" in call_in("utf-8", *INSTALL, "--remove-timer", code=USAGE)


def test_path_with_a_line_break_is_refused(units: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "a\nExecStart=evil")
    assert "line break" in call_in("utf-8", *INSTALL, "--session-root", root, code=USAGE)
