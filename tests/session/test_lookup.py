"""Without a name one's own last session is meant, and never that of another notebook."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UserError
from nb_agents.session.history import load_turn
from nb_agents.session.layout import SessionList, TurnPaths, turns_of
from nb_agents.session.lookup import (
    TERMINAL_ORIGIN,
    acting_for,
    find_session,
    find_turn,
    known_turn,
    origin_here,
    origin_of,
)
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.team_kit import WAIT_S, finish

NOTEBOOKS = ("notebook:../../a.ipynb", "notebook:../../b.ipynb", "kernel:0123")


def session(root: Path, name: str, origin: str | None, used_at: int, task: str = "t") -> Path:
    """Make a session whose last turn was begun there."""
    turn = root / name / "turn_1"
    turn.mkdir(parents=True)
    told = {"task": task} if origin is None else {"task": task, "origin": origin}
    (turn / "metadata.json").write_text(json.dumps(told))
    (turn / "events.jsonl").touch()
    os.utime(turn / "events.jsonl", (used_at, used_at))
    return root / name


@given(
    st.lists(st.sampled_from([None, TERMINAL_ORIGIN, *NOTEBOOKS]), min_size=1, max_size=8),
    st.sampled_from([TERMINAL_ORIGIN, *NOTEBOOKS]),
)
def test_the_last_session_of_here_is_meant_else_a_terminals_and_never_anothers(
    tmp_path_factory: pytest.TempPathFactory, origins: list[str | None], here: str
) -> None:
    root = tmp_path_factory.mktemp("root")
    paths = [session(root, f"s{n}", origin, n + 1) for n, origin in enumerate(origins)]
    by_origin = dict(zip(origins, paths, strict=True))  # the latest of each
    meant = by_origin.get(here) or by_origin.get(TERMINAL_ORIGIN)
    with acting_for(here):
        if meant is not None:
            assert find_session(root) == meant == find_turn(root).path.parent
        else:
            with pytest.raises(UserError, match="Name the one that you mean: s"):
                find_session(root)


def test_who_must_choose_is_shown_the_sessions_with_their_tasks(tmp_path: Path) -> None:
    for number in range(7):
        session(tmp_path, f"s{number}", NOTEBOOKS[0], number + 1, f"task {number}")
    with acting_for(NOTEBOOKS[1]), pytest.raises(UserError) as refused:
        find_session(tmp_path)
    said = str(refused.value)
    assert "was last used in this notebook" in said
    assert "s6 (“task 6”), s5 (“task 5”)" in said and said.endswith("and 2 more.")


def test_a_notebook_is_known_by_its_path_from_the_session_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / ".nb_agents" / "sessions"
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "a.ipynb"))
    assert origin_here(root) == "notebook:../../a.ipynb"
    monkeypatch.delenv("JPY_SESSION_NAME")
    monkeypatch.setattr(sys, "argv", ["launcher", "-f", str(tmp_path / "kernel-12.json")])
    kernel = origin_here(root)
    assert kernel.startswith("kernel:") and str(tmp_path) not in kernel
    monkeypatch.setattr(sys, "argv", ["launcher", f"--f={tmp_path / 'kernel-13.json'}"])
    assert origin_here(root) not in (kernel, TERMINAL_ORIGIN)
    main = ModuleType("__main__")
    main.__vsc_ipynb_file__ = str(tmp_path / "b.ipynb")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert origin_here(root) == "notebook:../../b.ipynb"


def test_a_kernels_children_are_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "a.ipynb"))
    assert origin_here(tmp_path) == TERMINAL_ORIGIN


def begin(root: Path, task: str, gate: Gate | None = None, **more: object) -> nb_agents.Run:
    team = scripted_team(a=ScriptedModel(Answer("A's", gate=gate)))
    options = RunOptions(session_root=root)
    return nb_agents.start(task, team, options=options, **more)  # type: ignore[arg-type]


def test_a_notebook_goes_on_with_its_own_session_beside_a_later_one_of_another(
    tmp_path: Path,
) -> None:
    with acting_for(NOTEBOOKS[0]):
        first = finish(begin(tmp_path, "secret of a"))
    with acting_for(NOTEBOOKS[1]):
        with pytest.raises(UserError, match="“secret of a”"):
            begin(tmp_path, "go on", continue_=True)
        finish(begin(tmp_path, "of b"))
        second = finish(begin(tmp_path, "go on", continue_=True))
        with pytest.raises(UserError, match="complete: there is nothing to resume"):
            nb_agents.resume(options=RunOptions(session_root=tmp_path))
    assert second.session != first.session
    told = " ".join(second.view.notices)
    assert f"Session: {second.session} (“of b”)" in told and "secret" not in told
    with acting_for(NOTEBOOKS[0]):
        assert finish(begin(tmp_path, "go on", continue_=True)).session == first.session


def test_a_resume_goes_on_with_this_notebooks_run_and_says_which(tmp_path: Path) -> None:
    for origin in NOTEBOOKS[:2]:
        with acting_for(origin):
            gate = Gate()  # stays closed, so that the stop comes before the answer
            run = begin(tmp_path, f"task of {origin[-7:]}", gate, session=f"of-{origin[-7]}")
            run.stop(True)
            run.wait(WAIT_S, raise_on_stop=False)
    team = scripted_team(a=ScriptedModel(Answer("A's")))
    with acting_for(NOTEBOOKS[0]):
        run = finish(nb_agents.resume(config=team, options=RunOptions(session_root=tmp_path)))
    assert run.session == "of-a"
    assert "Session: of-a (“task of a.ipynb”)" in " ".join(run.view.notices)


def test_where_a_turn_was_begun_is_kept_when_its_files_are_made_anew(tmp_path: Path) -> None:
    with acting_for(NOTEBOOKS[0]):
        run = finish(begin(tmp_path, "t"))
    paths = TurnPaths(run.path)
    assert origin_of(paths) == NOTEBOOKS[0]
    paths.metadata.unlink()
    load_turn(paths)
    assert origin_of(paths) == NOTEBOOKS[0]


def test_a_turn_is_looked_up_without_a_look_at_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(tmp_path, "talk", None, 1)
    monkeypatch.setattr("nb_agents.session.lookup.sessions_in", lambda root: SessionList([], []))
    [turn] = turns_of(tmp_path / "talk")
    for name in ("talk", "talk/1", "talk/turn_1", str(turn.path)):
        assert known_turn(tmp_path, name) == find_turn(tmp_path, name) == turn
    for name in ("", "no", "talk/2", "../talk", "/", str(tmp_path)):
        assert known_turn(tmp_path, name) is None
