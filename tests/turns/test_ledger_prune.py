"""The ledgers of tasks whose sessions are gone, and of old days, are removed."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, ScriptedModel, scripted_team
from tests.kit.cards import text
from tests.kit.runs import DayLedger
from tests.kit.sessions import turns_of
from tests.kit.sweeps import PruneSpec, prune
from tests.team_kit import WAIT_S

MONTH_S = 30 * 86_400
SPEC = PruneSpec(time.time() - MONTH_S)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def age(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (time.time() - 2 * MONTH_S,) * 2)


def complete(root: Path, name: str) -> Path:
    """Complete a run with a budget two months ago, and return the ledger of its task."""
    known = set(ledgers(root))
    team = scripted_team(a=ScriptedModel(Answer("Done.")))
    options = RunOptions(session_root=root, max_tokens=100_000)
    nb_agents.start(f"Task of {name}", team, name, options=options).wait(WAIT_S)
    [path] = set(ledgers(root)) - known
    age(path, *(file for turn in turns_of(root / name) for file in (turn.journal, turn.metadata)))
    return path


def ledgers(root: Path) -> list[Path]:
    return sorted((root / ".budgets").glob("*.json"))


def test_ledgers_are_removed_with_the_sessions_of_their_tasks(tmp_path: Path) -> None:
    root = tmp_path / "root"
    old, renamed, new = (complete(root, name) for name in ("old", "renamed", "new"))
    (root / "renamed").rename(root / "other")
    os.utime(turns_of(root / "new")[-1].journal)
    os.utime(turns_of(root / "other")[-1].journal)
    planned = prune(root, PruneSpec(SPEC.before, is_dry_run=True))
    assert (planned.sessions, planned.ledgers) == (1, 1)
    assert ledgers(root) == sorted([old, renamed, new])
    done = prune(root, SPEC)
    assert (done.sessions, done.ledgers, done.unread) == (1, 1, [])
    assert (done.files, done.size_bytes) == (planned.files, planned.size_bytes)
    assert ledgers(root) == sorted([renamed, new])
    assert "and 1 budget ledger that is no longer needed" in text.prune_summary(done, SPEC)


def test_ledgers_that_may_be_needed_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "root"
    ledger = complete(root, "stripped")
    prune(root, PruneSpec(SPEC.before, keep_answers=True))
    assert ledgers(root) == [ledger]  # its session is still there
    damaged = root / ".budgets" / f"{'0' * 16}.tokens.json"
    damaged.write_text("{")
    age(damaged)
    recent = root / ".budgets" / f"{'1' * 16}.tokens.json"
    recent.write_text("{}")
    assert prune(root, SPEC).ledgers == 0
    assert ledgers(root) == sorted([damaged, recent, ledger])


def test_no_ledger_is_removed_while_a_session_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    ledger = complete(root, "gone")
    (root / "gone").rename(tmp_path / "elsewhere")
    (root / "broken").mkdir()
    scan = os.scandir

    def scan_or_fail(path: Any) -> Any:
        if path == root / "broken":
            raise OSError(errno.EIO, "Input/output error")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_or_fail)
    done = prune(root, SPEC)
    assert (done.ledgers, ledgers(root)) == (0, [ledger])
    assert any(".budgets was not cleaned up" in why for why in done.unread)


def test_link_instead_of_the_ledgers_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.json").write_text("{}")
    age(outside / "a.json")
    root = tmp_path / "root"
    root.mkdir()
    (root / ".budgets").symlink_to(outside)
    assert prune(root, SPEC).unread
    assert (outside / "a.json").exists()


def test_ledgers_of_old_days_are_removed_but_the_last_two(tmp_path: Path) -> None:
    folder = DayLedger().folder
    folder.mkdir(parents=True)
    days = [folder / f"2026-0{month}-01.json" for month in (1, 2, 3, 4)]
    for day in days:
        day.write_text("{}")
        age(day)
    os.utime(days[1])
    assert prune(tmp_path / "root", SPEC).ledgers == 1
    assert sorted(folder.glob("*.json")) == days[1:]
