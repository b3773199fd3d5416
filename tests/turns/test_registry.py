"""Starting, finding and stopping runs; one session, one run."""

import errno
import json
import logging
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import (
    ConfigError,
    SessionBusyError,
    StorageError,
    TaskError,
    UnknownRunError,
    UnknownSessionError,
    UserError,
)
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from nb_agents.turns import registry
from tests.kit.runs import (
    LiveTurn,
    StopResult,
    StopSource,
    call,
    find_live,
    finding,
    here,
    live_runs,
    live_turns,
    start,
)
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, finish, metadata, prompt, read_line, script, sessions
from tests.team_kit import start as start_team

logger = logging.getLogger("nb_agents")


@pytest.fixture
def gate() -> Gate:
    return Gate()


def _hold(root: Path, gate: Gate, session: str | None = None) -> nb_agents.Run:
    team = scripted_team(a=ScriptedModel(Answer("A's", gate=gate)))
    return start("the task", team, session, options=RunOptions(session_root=root))


def test_runs_are_listed_oldest_first_and_found_by_any_of_their_names(
    tmp_path: Path, gate: Gate
) -> None:
    first, second = _hold(tmp_path, gate), _hold(tmp_path, gate, "mine")
    assert nb_agents.runs()[-2:] == (first, second)
    assert live_runs()[-2:] == (first, second)
    for run, names in ((first, (first.id, first.session)), (second, ("mine", "mine/1"))):
        assert [find_live(name) for name in names] == [run] * 2
    assert find_live() is second
    gate.open()
    finish(first), finish(second)
    assert first not in live_runs()
    assert find_live() is nb_agents.runs()[-1]


def test_concurrent_listings_share_one_handle_per_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [LiveTurn(str(tmp_path / f"s{n}" / "turn_1"), "r1", 1, "host", "a") for n in range(30)]
    for turn in turns:
        turn.paths.path.mkdir(parents=True)
        turn.paths.journal.touch()
    monkeypatch.setattr(finding, "_handles_elsewhere", {})
    monkeypatch.setattr(finding, "live_turns", lambda root: random.sample(turns, 20))
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for listed in [pool.submit(nb_agents.runs) for _ in range(400)]:
                assert len(listed.result()) >= 20
            monkeypatch.setattr(finding, "live_turns", lambda root: turns)
            lists = [pool.submit(nb_agents.runs).result() for _ in range(4)]
    finally:
        sys.setswitchinterval(switch_s)
    assert all(lists[0] == each for each in lists)


def test_unknown_run_error_names_the_known_runs(tmp_path: Path, gate: Gate) -> None:
    run = _hold(tmp_path, gate)
    with pytest.raises(UnknownRunError, match=rf"No run named 'nope'\. Known runs: .*{run.id}"):
        find_live("nope")
    gate.open()
    finish(run)
    assert find_live(run.id).stop().status == "finished"


def test_stop_records_its_entry_point(tmp_path: Path, gate: Gate) -> None:
    run = _hold(tmp_path, gate)
    gate.wait_reached()
    stopped = find_live(run.session).stop(True, reason="from afar", source="rest")
    assert stopped.status == "stopping-now"
    finish(run)
    assert (run.receipt.source, run.receipt.reason) == ("rest", "from afar")


def test_concurrent_runs_are_independent(tmp_path: Path, gate: Gate) -> None:
    runs = [_hold(tmp_path, gate) for _ in range(4)]
    gate.wait_reached(4)
    runs[1].stop(now=True)
    finish(runs[1])
    assert [run.status for run in runs] == [
        "in-progress",
        "cancelled",
        "in-progress",
        "in-progress",
    ]
    gate.open()
    assert [finish(run).result for run in (runs[0], *runs[2:])] == ["A's"] * 3
    assert len({run.path for run in runs}) == 4


def test_concurrently_started_runs_get_unique_ids_and_sessions(tmp_path: Path, gate: Gate) -> None:
    found: list[nb_agents.Run] = []
    threads = [
        threading.Thread(target=lambda: found.append(_hold(tmp_path, gate))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gate.open()
    for run in found:
        finish(run)
    assert len({run.id for run in found}) == len({run.session for run in found}) == 8


def test_busy_error_names_the_run_of_this_process(tmp_path: Path, gate: Gate) -> None:
    run = _hold(tmp_path, gate, "mine")
    with pytest.raises(SessionBusyError, match=f"run {run.id} in this kernel"):
        _hold(tmp_path, gate, "mine")
    with pytest.raises(SessionBusyError):
        start(
            "more",
            scripted_team(a=ScriptedModel()),
            continue_=True,
            options=RunOptions(session_root=tmp_path),
        )
    assert len(list((tmp_path / "mine").glob("turn_*"))) == 1
    gate.open()
    finish(run)
    assert _hold(tmp_path, gate, "mine").wait(WAIT_S) == "A's"


def test_a_session_that_another_process_runs_is_busy(tmp_path: Path) -> None:
    source = """
import nb_agents
from nb_agents.testing import *
run = nb_agents.start("t", scripted_team(a=ScriptedModel(Turn(hang=True))), "mine")
print("ready", flush=True)
run.wait()
"""
    with script(source, tmp_path) as process:
        assert read_line(process) == "ready\n"
        with pytest.raises(SessionBusyError, match="another process"):
            _hold(tmp_path / "sessions", Gate(), "mine")
    assert [path.name for path in sessions(tmp_path)] == ["mine"]
    # Its death frees the session; what it left is an incomplete turn.
    done = Gate()
    done.open()
    run = _hold(tmp_path / "sessions", done, "mine")
    assert (run.wait(WAIT_S), run.turn) == ("A's", 2)


def test_continued_session_includes_the_conversation_and_workspaces(
    tmp_path: Path, gate: Gate
) -> None:
    wrote = Turn(calls=(Call("write_file", {"path": "n.md", "content": "a's note"}),))
    a = ScriptedModel(wrote, Answer("A's draft"), Turn(text="later ", gate=gate))
    first = start_team(tmp_path, a=a, b=ScriptedModel(Turn(text="half a thought ", gate=gate)))
    gate.wait_reached(2)
    first.stop(now=True)
    finish(first)

    def look(messages: object) -> Turn:
        note = first.path / "workspaces" / "a" / "n.md"
        return Turn(calls=(Call("read_file", {"path": str(note)}),))

    model = ScriptedModel(look, Answer("done"))
    team = scripted_team(a=model)
    second = start("go on", team, continue_=True, options=RunOptions(session_root=tmp_path))
    finish(second)
    assert (second.session, second.turn, second.result) == (first.session, 2, "done")
    said = prompt(model, 0)
    for text in ("the task", "[INCOMPLETE TURN", "A's draft", "half a thought", "go on"):
        assert text in said
    assert "a's note" in prompt(model, 1)
    assert any(n.endswith(": this is turn 2.") for n in second.view.notices)

    third = ScriptedModel(Answer("ok"))
    finish(
        start(
            "and on",
            scripted_team(a=third),
            first.session,
            options=RunOptions(session_root=tmp_path),
        )
    )
    assert "Assistant: done" in prompt(third, 0)


def test_continue_without_a_session_is_an_error(tmp_path: Path) -> None:
    team = scripted_team(a=ScriptedModel())
    with pytest.raises(UnknownSessionError, match="No session to continue"):
        start("t", team, continue_=True, options=RunOptions(session_root=tmp_path))
    with pytest.raises(UnknownSessionError, match="No session 'x'"):
        start("t", team, "x", continue_=True, options=RunOptions(session_root=tmp_path))


@pytest.mark.parametrize("task", ["", " \n\t"])
def test_an_empty_task_is_refused(tmp_path: Path, task: str) -> None:
    with pytest.raises(TaskError):
        start(task, scripted_team(a=ScriptedModel()), options=RunOptions(session_root=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given, says",
    [
        ({"context": {"depth": 2}}, "can only be used with a recipe. Add --recipe"),
        ({"config": {"agents": []}}, "config is of type 'dict'. Use the path of a team file"),
        ({"options": {"timeout": 3}}, "options is of type 'dict'. Use RunOptions"),
        ({"task": 3}, "The task is of type 'int'. Use a string."),
    ],
)
def test_arguments_of_wrong_types_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        start(**{"task": "Count.", **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: RunOptions(timeout="soon"), "The timeout is 'soon'. Use a number of seconds"),  # type: ignore[arg-type]
        (lambda: RunOptions(cancel=CancelPolicy(grace_timeout_s=-1)), "grace_timeout_s is -1."),
    ],
)
def test_invalid_options_are_rejected(make: Callable[[], RunOptions], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_invalid_timeout_is_rejected(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(ConfigError, match="The orchestrator timeout is .* positive number"):
        start(
            "t",
            scripted_team(a=ScriptedModel()),
            options=RunOptions(session_root=tmp_path, timeout=timeout),
        )


def test_timeout_of_the_call_overrides_the_teams(tmp_path: Path, gate: Gate) -> None:
    gate.open()
    team = scripted_team(timeout_s=77, a=ScriptedModel(Answer("A's")))
    assert start("t", team, options=RunOptions(session_root=tmp_path)).progress.timeout_s == 77
    run = start("t", team, options=RunOptions(session_root=tmp_path, timeout=5))
    assert run.progress.timeout_s == 5
    finish(run)


def test_a_session_name_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="out is not in the session root"):
        start(
            "t",
            scripted_team(a=ScriptedModel()),
            "../out",
            options=RunOptions(session_root=tmp_path),
        )


def test_a_root_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        start(
            "t",
            scripted_team(a=ScriptedModel()),
            options=RunOptions(session_root=tmp_path / "file" / "below"),
        )


def test_debug_log_contains_the_events_and_closes_with_the_run(tmp_path: Path) -> None:
    team = scripted_team(a=ScriptedModel(Answer("A's")))
    run = start("t", team, options=RunOptions(session_root=tmp_path, debug=True))
    finish(run)
    log = (run.path / "debug.log").read_text()
    assert "AnswerGiven" in log and "TurnEnded" in log


@pytest.mark.parametrize("first", [0, 1])
def test_debug_log_of_each_run_contains_only_that_run(tmp_path: Path, first: int) -> None:
    level, handlers = logger.level, list(logger.handlers)
    gates = [Gate(), Gate()]
    runs = []
    for name, gate in zip("ab", gates, strict=True):
        team = scripted_team(**{f"agent_{name}": ScriptedModel(Answer(f"{name}'s", gate=gate))})
        options = RunOptions(session_root=tmp_path, debug=True)
        runs.append(start(f"the task of {name}", team, options=options))
        gate.wait_reached()
    runs[1 - first].say(f"for {'ab'[1 - first]}")
    for each in (first, 1 - first):
        gates[each].open()
        finish(runs[each])
    logs = [(run.path / "debug.log").read_text() for run in runs]
    for log, name, other in zip(logs, "ab", "ba", strict=True):
        assert f"agent_{name}" in log and f"agent_{other}" not in log
        assert "TurnEnded" in log
    assert f"for {'ab'[1 - first]}" in logs[1 - first]
    assert (logger.level, logger.handlers) == (level, handlers)


def _open_files() -> list[str]:
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if link.is_symlink()]


@pytest.mark.parametrize("fails", ["announce_here", "submit", "TurnWriter"])
def test_failed_start_leaves_no_open_file_and_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    handlers = list(logger.handlers)

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many files")

    monkeypatch.setattr(here, fails, fail)
    team = scripted_team(a=ScriptedModel(Answer("A's")))
    options = RunOptions(session_root=tmp_path, debug=True)
    with pytest.raises(StorageError, match="too many files"):
        start("the task", team, "mine", options=options)
    assert [each for each in _open_files() if each.startswith(str(tmp_path))] == []
    assert not [turn for turn in live_turns() if str(tmp_path) in turn.path]
    assert not list((tmp_path / "mine").glob("turn_*"))
    assert logger.handlers == handlers
    monkeypatch.undo()
    assert finish(start("the task", team, "mine", options=options)).turn == 1


def test_without_a_team_three_demo_agents_start(tmp_path: Path) -> None:
    run = start("t", options=RunOptions(session_root=tmp_path))
    assert tuple(run.view.agents) == ("ada", "ben", "cleo")
    assert "no key" in run.view.notices[0] or "without an API key" in run.view.notices[0]
    run.stop(now=True)
    finish(run)
    assert json.dumps(metadata(run)["models"]) == '{"ada": "demo", "ben": "demo", "cleo": "demo"}'


def test_votes_of_one_session_do_not_reach_the_next(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1"), Turn(text="fin"))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    first = finish(start_team(tmp_path, a=a, b=b))
    again = ScriptedModel(Answer("new"), Vote("agent2"), Turn(text="fin 2"))
    team = scripted_team(a=again, b=again)
    second = finish(start("t", team, first.session, options=RunOptions(session_root=tmp_path)))
    assert all("CURRENT_ANSWERS>\n(no answers yet)" in prompt(again, n) for n in (0,))
    assert second.status == "completed"


class _Pair:
    """A group of one run whose interrupt returns only after the run has received it."""

    def __init__(self, path: Path, run: nb_agents.Run) -> None:
        self.path, self.name, self.began_at, self.run = path, path.name, 0.0, run

    def stop(self, now: bool, *, reason: str, source: StopSource) -> StopResult:
        return self.run.stop(now, reason=reason, source=source)

    def press(self) -> None:
        self.stop(False, reason="interrupted", source="interrupt")
        wait_until(lambda: self.run.view.stop)

    def hold(self, is_paused: bool) -> None:
        raise NotImplementedError


def test_interrupt_of_a_group_counts_once_for_its_runs(tmp_path: Path, gate: Gate) -> None:
    inside, alone = _hold(tmp_path / "group", gate), _hold(tmp_path, gate)
    leave = registry.join(_Pair(tmp_path / "group", inside))
    try:
        gate.wait_reached(2)
        assert registry.press()
        call(lambda: None)  # behind what was posted
        assert [run.stop().status for run in (inside, alone)] == ["stopping", "stopping"]
        gate.open()
        finish(inside), finish(alone)
    finally:
        leave()
    assert not registry.press()


def test_turn_is_announced_when_its_journal_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, writer = list[str](), here.TurnWriter

    def make(*args: Any) -> Any:
        made = writer(*args)
        found.extend(turn.path for turn in live_turns(root=tmp_path))
        return made

    monkeypatch.setattr(here, "TurnWriter", make)
    team = scripted_team(a=ScriptedModel(Answer("A's")))
    run = finish(start("the task", team, "mine", options=RunOptions(session_root=tmp_path)))
    assert found == [str(run.path)]
