"""A task works at one path through all of its turns; a crash at any moment loses nothing of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from nb_agents.session.copying import copy_workspaces
from nb_agents.session.layout import (
    TurnPaths,
    claim_turn,
    discard_turn,
    find_task,
    restore_workspaces,
    store_workspaces,
    store_workspaces_if_dead,
)


class KilledError(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(step: int, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """End the process instead of the disk's change of that number, from 1; list those made."""
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
    """A first turn that is over, with these files of agent "a"."""
    paths, lock = claim_turn(session)
    assert paths.task is not None
    (paths.live_workspaces / "a").mkdir()
    write(paths, **files)
    store_workspaces(paths, paths.task)
    lock.release()
    return paths


def go_on(session: Path, last: TurnPaths, **files: str) -> TurnPaths:
    """The next turn of the task, which writes these files, and is over."""
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


def test_each_turn_of_a_task_works_at_the_same_path_and_keeps_what_it_left(tmp_path: Path) -> None:
    first = begin(tmp_path / "s", x="1")
    second = go_on(tmp_path / "s", first, x="2", y="2")
    third = go_on(tmp_path / "s", second, y="3")
    assert {p.live_workspaces for p in (first, second, third)} == {
        tmp_path / "s" / "task_1" / "workspaces"
    }
    kept = [{"x": "1"}, {"x": "2", "y": "2"}, {"x": "2", "y": "3"}]
    assert [files_of(p) for p in (first, second, third)] == kept
    # What agents were told of leads to what the last turn has left.
    assert (third.live_workspaces / "a" / "y").read_text() == "3"
    assert not any(p.workspaces.is_symlink() for p in (first, second, third))


def test_another_task_works_elsewhere(tmp_path: Path) -> None:
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


def test_a_turn_that_can_t_begin_leaves_nothing_and_an_earlier_one_s_task_as_it_was(
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


def test_where_there_are_no_links_a_turn_works_in_its_own_directory(
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
def test_a_link_in_the_place_of_a_task_leads_nobody_elsewhere(tmp_path: Path, where: str) -> None:
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


def test_a_turn_that_another_has_gone_on_with_is_not_settled_by_who_merely_looks(
    tmp_path: Path,
) -> None:
    first = begin(tmp_path / "s", x="1")
    task = find_task(tmp_path / "s", [1])
    assert task is not None
    second, lock = claim_turn(tmp_path / "s", task=task)
    restore_workspaces(task, first, partial(copy_workspaces, first.workspaces))
    store_workspaces_if_dead(second)  # it lives
    assert second.workspaces.is_symlink()
    lock.release()
    store_workspaces_if_dead(second)
    assert not second.workspaces.is_symlink()
    assert files_of(second) == {"x": "1"}
