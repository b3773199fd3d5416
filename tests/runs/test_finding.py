"""A command reaches its own run and looks at no other; a root tells two of one name apart."""

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
from nb_agents.jupyter.kernel import do_as_asked
from nb_agents.options import RunOptions
from nb_agents.runs import finding, reader
from nb_agents.runs.finding import attach, find_known, find_run, runs_elsewhere_of_here
from nb_agents.runs.live_turns import LiveTurn, announce, live_turns
from nb_agents.runs.run import Run
from nb_agents.server.handlers import _ask
from nb_agents.server.places import Places
from nb_agents.session.layout import TurnPaths
from nb_agents.session.lookup import acting_for
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from nb_agents.verbs.requests import BODIES
from tests.model_server import wait_until
from tests.runs.test_elsewhere import WRITER
from tests.team_kit import WAIT_S, read_line, script

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
    paths.journal.touch()
    lock = paths.lock()
    lock.acquire()
    withdraw = announce(LiveTurn(str(paths.path), "r1", os.getpid(), "host", "other.ipynb"))

    def end() -> None:
        withdraw()
        lock.release()

    return paths, end


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Path]:
    """The root of live turns that are none of the command's."""
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
def elsewhere(tmp_path: Path) -> Iterator[TurnPaths]:
    """A turn that a process of its own runs."""
    with script(WRITER, tmp_path) as process:
        yield TurnPaths(Path(read_line(process).strip()))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have begun no run yet."""
    monkeypatch.setattr(finding, "begun_runs", tuple)


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


def test_a_command_to_a_run_of_this_process_opens_no_file_of_any_other(
    own: Run, others: Path
) -> None:
    for name in (own.id, own.session, f"{own.session}/1", str(own.path)):
        for verb, do in VERBS.items():
            with opened() as paths:
                if verb == "stop":
                    do_as_asked("stop", {"run": name})
                elif verb == "stop at once" and name == str(own.path):
                    do_as_asked("stop", {"run": name, "immediate": True})
                elif verb in ("pause", "unpause", "say") and own.view.stop is None:
                    do(find_run(name))
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


def test_a_command_to_a_run_of_another_process_reads_no_journal_and_looks_at_no_other(
    elsewhere: TurnPaths, others: Path, read: list[str]
) -> None:
    for root in (elsewhere.root, None):
        for name in (elsewhere.session, f"{elsewhere.session}/1"):
            with opened() as paths:
                find_run(name, root)
            assert of_others(paths, others) == []
    for verb, do in VERBS.items():
        with opened() as paths:
            do(find_run(elsewhere.session, elsewhere.root))
        assert of_others(paths, others) == [], verb
    assert read == ["Pause", "Continue", "Say", "StopRequest", "StopRequest", "StopRequest"]


SENT = {
    "pause": "Pause",
    "resume": "Continue",
    "say": "Say",
    "approve": "Decide",
    "deny": "Decide",
    "answer": "Decide",
    "stop": "StopRequest",
}


def test_a_request_to_the_server_sends_its_command_before_it_reads_a_journal(
    elsewhere: TurnPaths, others: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SENT.keys() == BODIES.keys() - {"rewind"}  # which begins a turn from what it reads
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(elsewhere.root))
    places = Places(elsewhere.root.parent)
    for action, kind in SENT.items():
        body = BODIES[action](**({"text": "mind"} if action in ("say", "answer") else {}))
        read.clear()
        with opened() as paths:
            path = places.run(f"sessions/{elsewhere.session}/turn_1")
            _ask(path, action, body)
        assert read[0] == kind
        assert of_others(paths, others) == [], action
    assert read == ["StopRequest"]  # nothing of it is read at all


def test_a_free_lock_says_that_a_run_is_gone_without_its_journal(
    tmp_path: Path, read: list[str]
) -> None:
    paths, end = live_turn(tmp_path, "gone")
    end()
    assert attach(paths.path).stop().status == "finished"
    assert not paths.commands.exists() and read == []


@pytest.mark.usefixtures("fresh")
def test_a_run_of_one_name_in_two_roots_is_found_by_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    turns = [live_turn(root, "same") for root in roots]
    try:
        for root, (paths, _) in zip(roots, turns, strict=True):
            assert find_run("same", root).path == find_run("same/1", root).path == paths.path
            assert find_run("", root).path == paths.path
            assert [run.path for run in nb_agents.runs(root)] == [paths.path]
            monkeypatch.setenv("NB_AGENTS_SESSIONS", str(root))  # the root of here wins
            assert find_run("same").path == paths.path
            run = find_run("same", root)
            assert run.address == str(paths.path)  # what a page's buttons name
            assert find_run(run.address) is run
        monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path / "c"))
        with pytest.raises(UserError, match=r"several runs: same/1 in .*/a, same/1 in .*/b\. Add"):
            find_run("same")
        with pytest.raises(UnknownRunError):
            find_run("same", tmp_path / "c")
        with pytest.raises(UnknownRunError):
            find_run()  # neither is of here
    finally:
        for _, end in turns:
            end()


def test_own_runs_of_one_name_are_told_apart_by_their_root(tmp_path: Path, gate: Gate) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    mine = [held(root, gate) for root in roots]
    with pytest.raises(UserError, match=rf"{mine[0].id} in .*/a, {mine[1].id} in .*/b"):
        find_run("mine")
    for root, run in zip(roots, mine, strict=True):
        assert find_run("mine", root) is find_run("", root) is find_run(run.id, root) is run
    with pytest.raises(UnknownRunError):
        find_run(mine[0].id, roots[1])
    gate.open()
    for run in mine:
        run.wait(WAIT_S)
    assert find_known("mine", roots[0]) is mine[0]


@pytest.mark.usefixtures("fresh")
def test_a_terminal_means_what_lives_in_its_directory_and_a_notebook_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path))
    paths, end = live_turn(tmp_path, "talk")
    paths.metadata.write_text('{"origin": "notebook:a.ipynb"}')
    try:
        assert [run.path for run in runs_elsewhere_of_here()] == [paths.path]
        with acting_for("notebook:a.ipynb"):
            assert find_run().path == paths.path
        with acting_for("notebook:b.ipynb"):
            with pytest.raises(UnknownRunError):
                find_run()
            assert find_run("talk").path == find_run("", tmp_path).path == paths.path
    finally:
        end()


def test_a_root_that_is_a_link_is_the_root_that_it_leads_to(tmp_path: Path) -> None:
    paths, end = live_turn(tmp_path / "real", "talk")
    (tmp_path / "link").symlink_to("real")
    try:
        assert find_run("", tmp_path / "link").path == paths.path
        assert find_run("talk", tmp_path / "link").session == "talk"
    finally:
        end()


def test_who_looks_while_a_run_ends_is_told_of_its_end(elsewhere: TurnPaths) -> None:
    run = find_run(elsewhere.session, elsewhere.root)
    run.stop(True)
    wait_until(lambda: run.is_over)
    assert run.status == "cancelled"
    assert find_known(elsewhere.session, elsewhere.root).status == "cancelled"
