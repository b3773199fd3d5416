"""Files that no mark authenticates can't influence decisions."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import NotYoursError
from nb_agents.testing import Answer, ScriptedModel, Turn, scripted_team
from tests.kit.processes import Repository, WritablePath
from tests.kit.sessions import PROGRAMS, find_session, load_session, strip_session, with_origin
from tests.kit.snapshots import Index, SnapshotStore
from tests.kit.sweeps import prune
from tests.sweeps.test_prune import MONTH, complete, stopped

JOURNALED = ("events.jsonl", "mark.json")


def claims(turn: Path) -> list[Path]:
    """Return the files of a turn, except the journal."""
    return [path for path in turn.iterdir() if path.is_file() and path.name not in JOURNALED]


def swap_claims(one: Path, other: Path) -> None:
    """Replace the files of a session's last turn by another's, except the journal."""
    for path in claims(one / "turn_1"):
        path.unlink()
    for path in claims(other / "turn_1"):
        shutil.copy2(path, one / "turn_1")
    known = json.loads((one / "turn_1/metadata.json").read_text())
    seq = load_session(one).turns[0].view.seq  # as in a current file
    (one / "turn_1/metadata.json").write_text(json.dumps({**known, "journal_seq": seq}))


def test_the_last_session_of_a_notebook_is_found_by_the_journal(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with with_origin(f"notebook:{name}.ipynb"):
            complete(tmp_path, name, is_old=False)
    swap_claims(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        with with_origin(f"notebook:{name}.ipynb"):
            assert find_session(tmp_path).name == name


def test_turn_complete_only_in_metadata_is_not_pruned(tmp_path: Path) -> None:
    cut, done = stopped(tmp_path, "cut"), complete(tmp_path, "done")
    swap_claims(cut, done)
    os.utime(cut / "turn_1/events.jsonl", (1, 1))
    assert prune(tmp_path, replace(MONTH, is_dry_run=True)).incomplete == 1
    assert prune(tmp_path, MONTH).sessions == 1
    assert cut.exists() and not done.exists()


def test_stripped_session_keeps_the_answers_of_its_journal(tmp_path: Path) -> None:
    one, other = (complete(tmp_path, name) for name in ("one", "other"))
    before = load_session(one).turns[0].view
    swap_claims(one, other)
    strip_session(one)
    [turn] = load_session(one).turns
    assert (turn.view.answer, turn.view.task) == (before.answer, before.task)
    assert "The answer of one." in turn.view.answer


def test_git_settings_of_a_session_run_no_programs(tmp_path: Path) -> None:
    site, ran = tmp_path / "site", tmp_path / "ran"
    site.mkdir()
    (site / "a.txt").write_text("x\n")
    path, place = tmp_path / "worktrees.git", WritablePath(site)
    anyio.run(Repository(path).snapshot, place)
    for key in ("filter.x.clean", "filter.x.smudge", "filter.x.process", "core.fsmonitor"):
        subprocess.run(["git", "-C", path, "config", key, f"touch {ran}; cat"], check=True)
    (path / "info" / "attributes").write_text("* filter=x\n")
    (site / "a.txt").write_text("y\n")
    assert anyio.run(Repository(path).snapshot, place)
    assert not ran.exists()


def test_large_file_is_copied_only_from_the_workspace(tmp_path: Path) -> None:
    work, outside, store = tmp_path / "work", tmp_path / "outside", SnapshotStore(tmp_path, 1000)
    for folder in (work, outside):
        (folder / "in").mkdir(parents=True)
        (folder / "in/big").write_bytes(b"x" * 2000)
        os.utime(folder / "in/big", ns=(10**18, 10**18))
    tree = store.snapshot(work, Index()).new_index.tree_id
    shutil.rmtree(work / "in")
    (work / "in").symlink_to(outside / "in")
    assert store.checkout(tree, tmp_path / "laid", work) == ("in/big (too large: 0 MB)",)
    assert not (tmp_path / "laid/in/big").exists()


def test_strangers_session_reports_home_directories_of_external_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = stopped(tmp_path, "s")
    (session / PROGRAMS / "ada").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home of another"))
    team = scripted_team(a=ScriptedModel(Turn("x"), Answer("y")))
    with pytest.raises(NotYoursError) as refused:
        nb_agents.resume("s", team, options=RunOptions(session_root=tmp_path))
    assert any("of the agent ada" in line for line in refused.value.would_run)
