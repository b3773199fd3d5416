"""Locks in other users' directories never touch the targets of links."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import nb_agents
from nb_agents.errors import NbAgentsError
from nb_agents.testing import Answer, ScriptedModel
from tests.kit.processes import environment
from tests.kit.sessions import (
    CLAIM_LOCK,
    TurnPaths,
    claim_turn,
    load_session,
    prevent_turns,
    store_workspaces_if_dead,
)
from tests.kit.sweeps import owner_lock
from tests.team_kit import finish, start

WORDS = "precious"


def idle(folder: Path) -> None:
    with prevent_turns(folder):
        pass


def store(folder: Path) -> None:
    turn = TurnPaths(folder / "turn_1")
    (folder / "task_1" / "workspaces").mkdir(parents=True, exist_ok=True)
    store_workspaces_if_dead(turn)


def leftovers(folder: Path) -> None:
    environment.remove_leftovers()


USERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a turn": ("turn_1/owner.lock", lambda folder: TurnPaths(folder / "turn_1").lock().acquire()),
    "a start": (CLAIM_LOCK, claim_turn),
    "a deletion": (CLAIM_LOCK, idle),
    "a reader of a dead turn": (CLAIM_LOCK, store),
    "a sweep": ("owner.lock", lambda folder: owner_lock(folder).acquire()),
    "leftovers": ("nb_agents_x/owner.lock", leftovers),
}


def as_link(lock: Path, precious: Path) -> None:
    lock.symlink_to(precious)


def as_dangling_link(lock: Path, precious: Path) -> None:
    lock.symlink_to(precious.with_name("new"))


def as_pipe(lock: Path, precious: Path) -> None:
    os.mkfifo(lock)


def as_directory(lock: Path, precious: Path) -> None:
    lock.mkdir()


@pytest.mark.parametrize("make", [as_link, as_dangling_link, as_pipe, as_directory])
@pytest.mark.parametrize("who", USERS)
def test_lock_that_is_not_a_file_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    make: Callable[[Path, Path], None],
) -> None:
    place, use = USERS[who]
    monkeypatch.setattr(environment, "PLACE", str(tmp_path / "session"))
    lock = tmp_path / "session" / place
    lock.parent.mkdir(parents=True)
    (tmp_path / "session" / "turn_1").mkdir(exist_ok=True)
    precious = tmp_path / "precious.txt"
    precious.write_text(WORDS)
    make(lock, precious)
    try:
        use(tmp_path / "session")
    except (OSError, NbAgentsError) as exc:
        assert "not a file" in str(exc) or "directory" in str(exc)
    assert precious.read_text() == WORDS
    assert not precious.with_name("new").exists()


def test_showing_a_strangers_session_does_not_touch_a_linked_lock(tmp_path: Path) -> None:
    run = finish(start(tmp_path / "sessions", a=ScriptedModel(Answer("done"))))
    session = run.path.parent
    precious = tmp_path / "precious.txt"
    precious.write_text(WORDS)
    (session / CLAIM_LOCK).unlink()
    (session / CLAIM_LOCK).symlink_to(precious)
    (run.path / "metadata.json").unlink()
    shown = load_session(session)
    assert precious.read_text() == WORDS
    assert any("not a file" in warning for turn in shown.turns for warning in turn.warnings)


def test_every_lock_is_a_file_lock_that_follows_no_link() -> None:
    root = Path(nb_agents.__file__).parent
    users = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and node.module == "filelock"
        and {each.name for each in node.names} != {"Timeout"}
        or isinstance(node, ast.Import)
        and "filelock" in {each.name for each in node.names}
    ]
    assert users == ["disk/lock.py"]
