"""Without a name, the default session is this notebook's last one, never another's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UserError
from nb_agents.session import lookup
from nb_agents.session.lookup import (
    TERMINAL_ORIGIN,
    current_origin,
    existing_turn,
    find_session,
    find_turn,
    origin_of,
    with_origin,
)
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.kit.cards import TERMINAL
from tests.kit.runs import find_live, find_run
from tests.kit.sessions import SessionList, TurnPaths, load_turn, turns_of
from tests.kit.verbs import Caller, find_work
from tests.team_kit import WAIT_S, finish

NO_NAMES = ["a\0b", "\0", "a/\0", "/a\0/turn_1", "\ud800", "x" * 300, "/x\ud800/1", "..", "../.."]
LOOKUPS: list[Callable[[str, Path], object]] = [
    lambda name, root: find_session(root, name),
    lambda name, root: find_turn(root, name),
    find_live,
    find_run,
    lambda name, root: find_work(name, Caller("api", TERMINAL, root)),
    lambda name, root: nb_agents.resume(name, None, options=RunOptions(session_root=root)),
]


@pytest.mark.parametrize("find", LOOKUPS)
@pytest.mark.parametrize("name", NO_NAMES)
def test_invalid_name_is_an_unknown_session(
    tmp_path: Path, name: str, find: Callable[[str, Path], object]
) -> None:
    with pytest.raises(UserError):
        find(name, tmp_path)
    assert existing_turn(tmp_path, name) is None


NOTEBOOKS = ("notebook:../../a.ipynb", "notebook:../../b.ipynb", "kernel:0123")


def session(root: Path, name: str, origin: str | None, used_at: int, task: str = "t") -> Path:
    """Create a session with a last turn of the given origin."""
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
def test_default_is_the_last_session_of_this_notebook_else_of_a_terminal(
    tmp_path_factory: pytest.TempPathFactory, origins: list[str | None], here: str
) -> None:
    root = tmp_path_factory.mktemp("root")
    paths = [session(root, f"s{n}", origin, n + 1) for n, origin in enumerate(origins)]
    by_origin = dict(zip(origins, paths, strict=True))  # the last session of each origin
    meant = by_origin.get(here) or by_origin.get(TERMINAL_ORIGIN)
    with with_origin(here):
        if meant is not None:
            assert find_session(root) == meant == find_turn(root).path.parent
        else:
            with pytest.raises(UserError, match="Give the name of a session: s"):
                find_session(root)


def test_error_lists_sessions_with_their_tasks(tmp_path: Path) -> None:
    for number in range(7):
        session(tmp_path, f"s{number}", NOTEBOOKS[0], number + 1, f"task {number}")
    with with_origin(NOTEBOOKS[1]), pytest.raises(UserError) as refused:
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
    assert current_origin(root) == "notebook:../../a.ipynb"
    monkeypatch.delenv("JPY_SESSION_NAME")
    monkeypatch.setattr(sys, "argv", ["launcher", "-f", str(tmp_path / "kernel-12.json")])
    kernel = current_origin(root)
    assert kernel.startswith("kernel:") and str(tmp_path) not in kernel
    monkeypatch.setattr(sys, "argv", ["launcher", f"--f={tmp_path / 'kernel-13.json'}"])
    assert current_origin(root) not in (kernel, TERMINAL_ORIGIN)
    main = ModuleType("__main__")
    main.__vsc_ipynb_file__ = str(tmp_path / "b.ipynb")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert current_origin(root) == "notebook:../../b.ipynb"


def test_child_process_of_a_kernel_counts_as_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "a.ipynb"))
    assert current_origin(tmp_path) == TERMINAL_ORIGIN


def begin(root: Path, task: str, gate: Gate | None = None, **more: object) -> nb_agents.Run:
    team = scripted_team(a=ScriptedModel(Answer("A's", gate=gate)))
    options = RunOptions(session_root=root)
    return nb_agents.start(task, team, options=options, **more)  # type: ignore[arg-type]


def test_notebook_continues_its_session_despite_a_later_one_of_another(
    tmp_path: Path,
) -> None:
    with with_origin(NOTEBOOKS[0]):
        first = finish(begin(tmp_path, "secret of a"))
    with with_origin(NOTEBOOKS[1]):
        with pytest.raises(UserError, match="“secret of a”"):
            begin(tmp_path, "go on", continue_=True)
        finish(begin(tmp_path, "of b"))
        second = finish(begin(tmp_path, "go on", continue_=True))
        with pytest.raises(UserError, match="complete, so there is nothing to resume"):
            nb_agents.resume(options=RunOptions(session_root=tmp_path))
    assert second.session != first.session
    told = " ".join(second.view.notices)
    assert f"Session: {second.session} (“of b”)" in told and "secret" not in told
    with with_origin(NOTEBOOKS[0]):
        assert finish(begin(tmp_path, "go on", continue_=True)).session == first.session


def test_resume_selects_this_notebooks_run_and_names_it(tmp_path: Path) -> None:
    for origin in NOTEBOOKS[:2]:
        with with_origin(origin):
            gate = Gate()  # stays closed, so that the stop comes before the answer
            run = begin(tmp_path, f"task of {origin[-7:]}", gate, session=f"of-{origin[-7]}")
            run.stop(True)
            run.wait(WAIT_S, raise_on_stop=False)
    team = scripted_team(a=ScriptedModel(Answer("A's")))
    with with_origin(NOTEBOOKS[0]):
        run = finish(nb_agents.resume(config=team, options=RunOptions(session_root=tmp_path)))
    assert run.session == "of-a"
    assert "Session: of-a (“task of a.ipynb”)" in " ".join(run.view.notices)


def test_origin_of_a_turn_survives_a_repair_of_its_files(tmp_path: Path) -> None:
    with with_origin(NOTEBOOKS[0]):
        run = finish(begin(tmp_path, "t"))
    paths = TurnPaths(run.path)
    assert origin_of(paths) == NOTEBOOKS[0]
    paths.metadata.unlink()
    load_turn(paths)
    assert origin_of(paths) == NOTEBOOKS[0]


def test_turn_is_found_without_reading_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(tmp_path, "talk", None, 1)
    monkeypatch.setattr(lookup, "sessions_in", lambda root: SessionList([], []))
    [turn] = turns_of(tmp_path / "talk")
    for name in ("talk", "talk/1", "talk/turn_1", str(turn.path)):
        assert existing_turn(tmp_path, name) == find_turn(tmp_path, name) == turn
    for name in ("", "no", "talk/2", "../talk", "/", str(tmp_path)):
        assert existing_turn(tmp_path, name) is None
