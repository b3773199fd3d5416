"""Lookup of runs: a command reads no files of other runs, and roots distinguish equal names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.errors import UnknownRunError, UserError
from nb_agents.launch import finding
from nb_agents.launch.finding import attach, default_runs_elsewhere, find_live, find_run
from nb_agents.options import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.kit.cells import handle_page_request
from tests.kit.runs import LiveTurn, Run, announce, live_turns, reader
from tests.kit.servers import NameResolver
from tests.kit.servers import ask as _ask
from tests.kit.sessions import TurnPaths, with_origin
from tests.kit.verbs import BODIES
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, read_line, script
from tests.turns.test_elsewhere import WRITER

OTHERS = 5

_opened: list[list[str]] = []


def _record(event: str, args: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and _opened:
        _opened[-1].append(os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else "")


sys.addaudithook(_record)


@contextmanager
def opened() -> Iterator[list[str]]:
    """Record which files and directories this process opens within the block."""
    paths: list[str] = []
    _opened.append(paths)
    try:
        yield paths
    finally:
        _opened.remove(paths)


def live_turn(root: Path, session: str) -> tuple[TurnPaths, Callable[[], None]]:
    """Make a turn that some process seems to run, with a journal that nobody should read."""
    paths = TurnPaths(root / session / "turn_1")
    paths.path.mkdir(parents=True)
    paths.journal.write_text("?")
    lock = paths.lock()
    lock.acquire()
    withdraw = announce(LiveTurn(str(paths.path), "r1", os.getpid(), "host", "other.ipynb"))

    def end() -> None:
        withdraw()
        lock.release()

    return paths, end


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Path]:
    """A session root with live turns that the command does not refer to."""
    root = tmp_path / "of-others"
    ends = [live_turn(root, f"session_{number}")[1] for number in range(OTHERS)]
    assert len(live_turns(root=root)) == OTHERS
    yield root
    for end in ends:
        end()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def held(root: Path, gate: Gate, session: str = "mine") -> Run:
    team = scripted_team(a=ScriptedModel(Answer("A's", gate=gate)))
    run = nb_agents.start("the task", team, session, options=RunOptions(session_root=root))
    gate.wait_reached()
    return run


@pytest.fixture
def own(tmp_path: Path, gate: Gate) -> Iterator[Run]:
    run = held(tmp_path / "sessions", gate)
    yield run
    run.stop(True)
    run.wait(WAIT_S, raise_on_stop=False)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have begun no run yet."""
    monkeypatch.setattr(finding, "started_runs", tuple)


@pytest.fixture
def elsewhere(tmp_path: Path, fresh: None) -> Iterator[TurnPaths]:
    """A turn that a separate process runs."""
    with script(WRITER, tmp_path) as process:
        yield TurnPaths(Path(read_line(process).strip()))


VERBS: dict[str, Callable[[Run], object]] = {
    "pause": lambda run: run.pause(),
    "unpause": lambda run: run.unpause(),
    "say": lambda run: run.say("mind the tables"),
    "stop of one agent": lambda run: run.stop(agent="a"),
    "stop": lambda run: run.stop(reason="wrong path"),
    "stop at once": lambda run: run.stop(True),
}
"""In an order in which each has an effect."""


def of_others(paths: list[str], others: Path) -> list[str]:
    return [path for path in paths if path.startswith(str(others))]


def test_command_to_a_run_of_this_process_opens_no_other_files(own: Run, others: Path) -> None:
    for name in (own.id, own.session, f"{own.session}/1", str(own.path)):
        for verb, do in VERBS.items():
            with opened() as paths:
                if verb == "stop":
                    handle_page_request("stop", {"run": name})
                elif verb == "stop at once" and name == str(own.path):
                    handle_page_request("stop", {"run": name, "immediate": True})
                elif verb in ("pause", "unpause", "say") and own.view.stop is None:
                    do(find_live(name))
            assert of_others(paths, others) == [], verb
            assert not any(path.endswith("owner.lock") for path in paths)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of a turn in another process was read, in order, and which commands were sent."""
    seen: list[str] = []

    def recorded(name: str) -> Callable[..., Any]:
        function = getattr(reader, name)

        def record(*args: Any) -> Any:
            seen.append(type(args[1]).__name__ if name == "ask" else name)
            return function(*args)

        return record

    for name in ("ask", "fold", "load_turn"):
        monkeypatch.setattr(reader, name, recorded(name))
    return seen


def test_command_to_a_run_in_another_process_reads_no_journal(
    elsewhere: TurnPaths, others: Path, read: list[str]
) -> None:
    for root in (elsewhere.root, None):
        for name in (elsewhere.session, f"{elsewhere.session}/1"):
            with opened() as paths:
                find_live(name, root)
            assert of_others(paths, others) == []
    for verb, do in VERBS.items():
        with opened() as paths:
            do(find_live(elsewhere.session, elsewhere.root))
        assert of_others(paths, others) == [], verb
    assert read == ["Pause", "Continue", "Say", "StopRequest", "StopRequest", "StopRequest"]


READING = {
    "rewind",
    "cells",
    "cells_read",
    "cells_claim",
    "cells_decide",
    "cells_revert",
    "cells_reverted",
    "cells_run",
    "steer",
}
"""The requests that need to know what the turn did before."""

SENT = {
    "pause": "Pause",
    "unpause": "Continue",
    "say": "Say",
    "fold": "FoldContext",
    "approve": "Decide",
    "deny": "Decide",
    "answer": "Decide",
    "stop": "StopRequest",
}


def test_a_request_to_the_server_sends_its_command_before_it_reads_a_journal(
    elsewhere: TurnPaths, others: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SENT.keys() == BODIES.keys() - READING
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(elsewhere.root))
    places = NameResolver(elsewhere.root.parent)
    for action, kind in SENT.items():
        given = {"say": {"text": "mind"}, "answer": {"text": "mind"}, "fold": {"agent": "a"}}
        body = BODIES[action](**given.get(action, {}))
        read.clear()
        with opened() as paths:
            path = places.run(f"sessions/{elsewhere.session}/turn_1")
            _ask(path, action, body)
        assert read[0] == kind
        assert of_others(paths, others) == [], action
    assert read == ["StopRequest"]  # nothing of it is read at all


def test_free_lock_means_ended_without_reading_the_journal(tmp_path: Path, read: list[str]) -> None:
    paths, end = live_turn(tmp_path, "gone")
    end()
    assert attach(paths.path).stop().status == "finished"
    assert not paths.commands.exists() and read == []


@pytest.mark.usefixtures("fresh")
def test_runs_of_the_same_name_are_distinguished_by_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    turns = [live_turn(root, "same") for root in roots]
    try:
        for root, (paths, _) in zip(roots, turns, strict=True):
            assert find_live("same", root).path == find_live("same/1", root).path == paths.path
            assert find_live("", root).path == paths.path
            assert [run.path for run in nb_agents.runs(root)] == [paths.path]
            monkeypatch.setenv("NB_AGENTS_SESSIONS", str(root))  # the default root is preferred
            assert find_live("same").path == paths.path
            run = find_live("same", root)
            assert run.address == str(paths.path)  # what a page's buttons name
            assert find_live(run.address) is run
        monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path / "c"))
        with pytest.raises(UserError, match=r"several runs: same/1 in .*/a, same/1 in .*/b\. Add"):
            find_live("same")
        with pytest.raises(UnknownRunError):
            find_live("same", tmp_path / "c")
        with pytest.raises(UnknownRunError):
            find_live()  # neither is in the default root
    finally:
        for _, end in turns:
            end()


def test_runs_of_the_same_name_in_several_roots(tmp_path: Path, gate: Gate) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    mine = [held(root, gate) for root in roots]
    with pytest.raises(UserError, match=rf"{mine[0].id} in .*/a, {mine[1].id} in .*/b"):
        find_live("mine")
    for root, run in zip(roots, mine, strict=True):
        assert find_live("mine", root) is find_live("", root) is find_live(run.id, root) is run
    with pytest.raises(UnknownRunError):
        find_live(mine[0].id, roots[1])
    gate.open()
    for run in mine:
        run.wait(WAIT_S)
    assert find_run("mine", roots[0]) is mine[0]


@pytest.mark.usefixtures("fresh")
def test_default_runs_of_a_terminal_and_of_a_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path))
    paths, end = live_turn(tmp_path, "talk")
    paths.metadata.write_text('{"origin": "notebook:a.ipynb"}')
    try:
        assert [run.path for run in default_runs_elsewhere()] == [paths.path]
        with with_origin("notebook:a.ipynb"):
            assert find_live().path == paths.path
        with with_origin("notebook:b.ipynb"):
            with pytest.raises(UnknownRunError):
                find_live()
            assert find_live("talk").path == find_live("", tmp_path).path == paths.path
    finally:
        end()


def test_linked_root_equals_its_target(tmp_path: Path) -> None:
    paths, end = live_turn(tmp_path / "real", "talk")
    (tmp_path / "link").symlink_to("real")
    try:
        assert find_live("", tmp_path / "link").path == paths.path
        assert find_live("talk", tmp_path / "link").session == "talk"
    finally:
        end()


def test_lookup_during_the_end_of_a_run_reports_the_end(elsewhere: TurnPaths) -> None:
    run = find_live(elsewhere.session, elsewhere.root)
    run.stop(True)
    wait_until(lambda: run.is_over)
    assert run.status == "cancelled"
    assert find_run(elsewhere.session, elsewhere.root).status == "cancelled"
