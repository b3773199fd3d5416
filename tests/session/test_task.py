"""A task has the same path in all its turns, and a crash at any time loses no files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.kit.sessions import (
    TurnPaths,
    claim_turn,
    copy_workspaces,
    discard_turn,
    find_task,
    restore_workspaces,
    store_workspaces,
    store_workspaces_if_dead,
)


class KilledError(BaseException):
    """Raised to simulate the end of the process."""


@contextmanager
def killed_at(step: int, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Simulate a kill at the change with a number, starting at 1; list the earlier changes."""
    made: list[str] = []

    def counting(name: str) -> None:
        original = getattr(os, name)

        def call(*args: object, **options: object) -> object:
            made.append(name)
            if len(made) >= step:
                raise KilledError
            return original(*args, **options)

        patch.setattr(os, name, call)

    with patch.context():
        for name in ("rename", "unlink", "symlink", "mkdir", "rmdir"):
            counting(name)
        try:
            yield made
        except KilledError:
            pass
    patch.undo()


def begin(session: Path, **files: str) -> TurnPaths:
    """Create a finished first turn, with files of agent "a"."""
    paths, lock = claim_turn(session)
    assert paths.task is not None
    (paths.live_workspaces / "a").mkdir()
    write(paths, **files)
    store_workspaces(paths, paths.task)
    lock.release()
    return paths


def go_on(session: Path, last: TurnPaths, **files: str) -> TurnPaths:
    """Run the next turn of the task, which writes files and ends."""
    task = find_task(session, range(1, last.number + 1))
    paths, lock = claim_turn(session, task=task)
    try:
        assert task is not None and paths.task == task
        restore_workspaces(task, last, partial(copy_workspaces, last.workspaces))
        paths.journal.touch()  # its first line
        write(paths, **files)
        store_workspaces(paths, task)
    finally:
        lock.release()
    return paths


def write(paths: TurnPaths, **files: str) -> None:
    for name, text in files.items():
        (paths.live_workspaces / "a" / name).write_text(text)


def files_of(paths: TurnPaths) -> dict[str, str]:
    return {p.name: p.read_text() for p in (paths.workspaces / "a").iterdir()}


def test_turns_of_a_task_use_the_same_path_and_keep_their_files(tmp_path: Path) -> None:
    first = begin(tmp_path / "s", x="1")
    second = go_on(tmp_path / "s", first, x="2", y="2")
    third = go_on(tmp_path / "s", second, y="3")
    assert {p.live_workspaces for p in (first, second, third)} == {
        tmp_path / "s" / "task_1" / "workspaces"
    }
    kept = [{"x": "1"}, {"x": "2", "y": "2"}, {"x": "2", "y": "3"}]
    assert [files_of(p) for p in (first, second, third)] == kept
    # The path that agents know leads to the files of the last turn.
    assert (third.live_workspaces / "a" / "y").read_text() == "3"
    assert not any(p.workspaces.is_symlink() for p in (first, second, third))


def test_another_task_has_another_directory(tmp_path: Path) -> None:
    first = begin(tmp_path / "s", x="1")
    other = begin(tmp_path / "s", x="other")
    assert (other.task, files_of(first)) == (tmp_path / "s" / "task_2", {"x": "1"})


def test_a_process_that_dies_at_any_step_of_a_resume_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, made = 0, list[str]()
    while len(made) >= step:
        step += 1
        session = tmp_path / str(step) / "s"
        first = begin(session, x="1")
        with killed_at(step, monkeypatch) as made:
            go_on(session, first, x="2")
        second = TurnPaths(session / "turn_2")
        last = second if second.journal.exists() else first
        store_workspaces_if_dead(second if second.path.exists() else first)
        assert files_of(first) == {"x": "1"}, step
        left = files_of(last)["x"]
        third = go_on(session, last, y="3")
        assert files_of(first) == {"x": "1"}, step
        assert files_of(third) == {"x": left, "y": "3"}, step
    assert step > 12


def test_turn_that_cannot_start_leaves_no_files_and_no_changes(
    tmp_path: Path,
) -> None:
    session = tmp_path / "s"
    paths, lock = claim_turn(session)
    lock.release()
    discard_turn(paths)
    assert [p.name for p in session.iterdir() if not p.name.startswith(".")] == []
    first = begin(session, x="1")
    paths, lock = claim_turn(session, task=first.task)
    lock.release()
    discard_turn(paths)
    assert {p.name for p in session.iterdir() if p.name[0] != "."} == {"task_1", "turn_1"}
    assert files_of(first) == {"x": "1"}


def test_without_links_a_turn_works_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    paths, lock = claim_turn(tmp_path / "s")
    lock.release()
    assert paths.task is None
    assert paths.live_workspaces == paths.workspaces
    assert paths.workspaces.is_dir() and not paths.workspaces.is_symlink()


@pytest.mark.parametrize("where", ["task_1", "task_1/workspaces"])
def test_task_directory_that_is_a_link_is_not_followed(tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside" / "workspaces" / "a"
    outside.mkdir(parents=True)
    (outside / "x").write_text("theirs")
    session = tmp_path / "s"
    first = begin(session, x="1")
    place = session / where
    (place / "workspaces").unlink(missing_ok=True) if where == "task_1" else place.unlink()
    if where == "task_1":
        place.rmdir()
    place.symlink_to(tmp_path / "outside" if where == "task_1" else outside.parent)
    task = find_task(session, [1])
    if task is not None:
        restore_workspaces(task, first, partial(copy_workspaces, first.workspaces))
        (task / "workspaces" / "a" / "x").write_text("2")
    assert (task is None) is (where == "task_1")
    assert (outside / "x").read_text() == "theirs"


def test_reader_does_not_move_workspaces_of_a_resumed_turn(
    tmp_path: Path,
) -> None:
    first = begin(tmp_path / "s", x="1")
    task = find_task(tmp_path / "s", [1])
    assert task is not None
    second, lock = claim_turn(tmp_path / "s", task=task)
    restore_workspaces(task, first, partial(copy_workspaces, first.workspaces))
    store_workspaces_if_dead(second)  # the turn is live
    assert second.workspaces.is_symlink()
    lock.release()
    store_workspaces_if_dead(second)
    assert not second.workspaces.is_symlink()
    assert files_of(second) == {"x": "1"}
