"""One writer: every command is journalled before it takes effect, whatever its source."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, UserError
from nb_agents import events as ev
from nb_agents.events import Command, Continue, Pause, Say
from nb_agents.options import CancelPolicy, Timeout
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.runs import (
    CancellationStatus,
    StopRequest,
    StopResult,
    TurnReader,
    TurnWriter,
    call,
    defer_interrupts,
    ensure_loop,
    here,
    is_clock_stopped,
    loop,
    post,
    redirect_interrupts,
)
from tests.kit.runs import live_runs_module as live_runs
from tests.kit.sessions import journal
from tests.kit.views import fold
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, events, finish, start
from tests.watching import turns_watched

REQUESTED, IMMEDIATE = CancellationStatus.REQUESTED, CancellationStatus.IMMEDIATE


@pytest.fixture
def gate() -> Gate:
    return Gate()


def held(tmp_path: Path, gate: Gate, **options: Any) -> nb_agents.Run:
    """Start a run whose agent streams a word and waits."""
    return start(tmp_path, a=ScriptedModel(Turn(text="word ", gate=gate), Answer("A")), **options)


# Journalled first ----------------------------------------------------------------------------

COMMANDS: list[tuple[Command, str, Callable[[TurnWriter], object]]] = [
    (StopRequest(REQUESTED, "api"), "stop_requested", lambda turn: turn.is_stopping),
    (StopRequest(IMMEDIATE, "api"), "stop_requested", lambda turn: turn.is_stopping),
    (
        StopRequest(IMMEDIATE, "api", agent="a"),
        "stop_requested",
        lambda turn: turn.agents["a"].is_stopping,
    ),
    (Pause(), "paused", lambda turn: turn._pause_gate.is_on),
    (Say("more"), "said", lambda turn: turn._driver and turn._driver._state.said),  # type: ignore[union-attr]
]


IDS = ["graceful", "at once", "of one agent", "pause", "text"]


@pytest.mark.parametrize("command, kind, is_felt", COMMANDS, ids=IDS)
def test_command_is_journalled_before_it_takes_effect(
    tmp_path: Path, gate: Gate, command: Command, kind: str, is_felt: Callable[[TurnWriter], object]
) -> None:
    felt: list[object] = []

    def hear(turn: TurnWriter, event: ev.Event | None) -> None:
        if event is not None and event.kind == kind:
            felt.append(is_felt(turn))

    with turns_watched(hear):
        run = held(tmp_path, gate)
        gate.wait_reached()
        call(run._turn.take, command)  # type: ignore[union-attr]
        assert felt and not felt[0]
        assert is_felt(run._turn)  # type: ignore[arg-type]
        run.stop(now=True)
        gate.open()
        finish(run)


def test_commands_are_taken_in_the_order_in_which_they_were_given(
    tmp_path: Path, gate: Gate
) -> None:
    run = held(tmp_path, gate)
    gate.wait_reached()
    for command in (Pause(), Continue(), Say("one"), Say("two"), StopRequest(REQUESTED, "api")):
        post(run._turn.take, command)  # type: ignore[union-attr]
    gate.open()
    finish(run)
    kinds = ("paused", "continued", "said", "stop_requested")
    assert [e.kind for e in events(run) if e.kind in kinds] == [
        "paused", "continued", "said", "said", "stop_requested",
    ]  # fmt: skip


def test_command_of_an_observer_follows_its_event(tmp_path: Path, gate: Gate) -> None:
    heard: list[str] = []

    def hear(turn: TurnWriter, event: ev.Event | None) -> None:
        if event is not None:
            heard.append(event.kind)
            if isinstance(event, ev.ModelStarted):
                turn.take(StopRequest(IMMEDIATE, "api"))

    with turns_watched(hear):
        run = held(tmp_path, gate)
        finish(run)
    assert heard == [e.kind for e in events(run)][1:]
    assert heard.index("stop_requested") == heard.index("model_started") + 1


# From anywhere --------------------------------------------------------------------------------


def test_stop_from_a_subscriber_does_not_block(tmp_path: Path, gate: Gate) -> None:
    run = held(tmp_path, gate)
    said: list[StopResult] = []

    def stop(view: nb_agents.RunView) -> None:
        if view.agents["a"].partial and not said:
            said.append(run.stop(now=True))

    end = run.subscribe(stop)
    finish(run)
    end()
    assert (said, run.status) == ([StopResult(True, "stopping-now")], "cancelled")


def test_subscriber_can_preview_a_resume_at_the_end(tmp_path: Path, gate: Gate) -> None:
    run = held(tmp_path, gate)
    gate.wait_reached()
    shown: list[str] = []
    run.subscribe(lambda view: shown.append(str(run.preview)) if view.is_over else None)
    run.stop(now=True)
    finish(run)
    assert "1 model call interrupted or failed (a" in shown[-1]


def test_stop_and_start_from_a_tool_do_not_block(tmp_path: Path) -> None:
    found: list[Any] = []

    def tool() -> str:
        """Stop the run and start another."""
        model = ScriptedModel(Answer("other"))
        other = nb_agents.start(
            "t", scripted_team(a=model), options=RunOptions(session_root=tmp_path / "o")
        )
        found.append(other.wait(WAIT_S))
        found.append(run.stop().status)
        return "done"

    model = ScriptedModel(Turn(calls=(Call("tool", {}),)), Answer("never"))
    team = scripted_team(a=model)
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path / "s"), tools=[tool])
    finish(run)
    assert (found, run.status) == (["other", "stopping"], "cancelled")


@pytest.mark.parametrize("is_async", [False, True])
def test_blocking_hook_does_not_affect_other_runs(
    tmp_path: Path, gate: Gate, is_async: bool
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def body(request: object) -> bool:
        entered.set()
        assert run.stop().status == "asked"  # it decides on that very stop
        return leave.wait(WAIT_S)

    async def hook(request: object) -> bool:
        return body(request)

    policy = CancelPolicy(before_cancel=hook if is_async else body, hook_timeout_s=WAIT_S)
    run = held(tmp_path / "one", gate, policy=policy)
    gate.wait_reached()
    stopping = threading.Thread(target=run.stop)
    stopping.start()
    assert entered.wait(WAIT_S)
    assert finish(start(tmp_path / "two", a=ScriptedModel(Answer("B")))).result == "B"
    assert not run.view.stop
    leave.set()
    stopping.join()
    gate.open()
    finish(run)
    assert run.view.stop is not None and run.view.stop.source == "api"


def test_slow_disk_sync_does_not_delay_a_stop(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs, go_on = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        syncs.set()
        go_on.wait(WAIT_S)

    run = held(tmp_path / "one", gate)
    gate.wait_reached()
    monkeypatch.setattr(journal.os, "fsync", slow)
    run.say("more")
    assert syncs.wait(WAIT_S)
    other = start(tmp_path / "two", a=ScriptedModel(Turn(text="x ", hang=True)))
    wait_until(lambda: other.view.agents["a"].partial)
    # With every sync still waiting, both stops are felt and journalled.
    assert other.stop(now=True) == run.stop(now=True) == StopResult(True, "stopping-now")
    wait_until(lambda: any(e.kind == "model_cut" for e in events(other)))
    go_on.set()
    finish(run)
    finish(other)


# The loop ---------------------------------------------------------------------------------------


def test_loop_with_a_dead_thread_is_started_again(tmp_path: Path) -> None:
    background = loop._background
    ensure_loop()
    background = loop._background
    assert background is not None
    post(background.end.set)
    background.thread.join(WAIT_S)
    assert finish(start(tmp_path, a=ScriptedModel(Answer("A")))).result == "A"


def test_loop_that_cannot_start_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(main: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(loop, "_background", None)
    monkeypatch.setattr(loop.anyio, "run", none)
    with pytest.raises(UserError, match=r"can't start: \[Errno 24\] Too many open files"):
        start(tmp_path, a=ScriptedModel(Answer("A")))
    assert not list(tmp_path.rglob("turn_*"))


FORK = """
import os, sys, nb_agents
from nb_agents.testing import *
def team(): return scripted_team(a=ScriptedModel(Answer("A")))
options = nb_agents.RunOptions(session_root=sys.argv[1])
first = nb_agents.start("t", team(), options=options); first.wait(60)
child = os.fork()
if child == 0:
    run = nb_agents.start("t", team(), options=options)
    os._exit(0 if run.wait(200) == "A" and nb_agents.runs() == (run,) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_child_has_its_own_runs(tmp_path: Path) -> None:
    argv = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("0\n", "")


# Ctrl-C -------------------------------------------------------------------------------------------


def test_interrupt_within_start_leaves_no_unreachable_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call that `launch` makes."""
    steps = ["layout.claim_turn", "_start", "_prune", "submit"]
    for number, step in enumerate(steps):
        holder, _, name = step.rpartition(".")
        module = live_runs if step == "_prune" else here
        place: Any = getattr(module, holder) if holder else module
        original = getattr(place, name)

        def pressed(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return original(*args, **kwargs)

        before = live_runs.started_runs()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(place, name, pressed)
            start(tmp_path / str(number), a=ScriptedModel(Answer("A")))
        begun = [each for each in live_runs.started_runs() if each not in before][-1:]
        assert len(begun) == (step != "layout.claim_turn")
        assert len(list((tmp_path / str(number)).glob("*/turn_*"))) == len(begun)
        for run in begun:
            assert finish(run).result == "A"


def test_deferred_interrupts_come_once_at_the_end_of_the_block() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append("handler"))
    try:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert came == []
        assert came == ["handler"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_handler_that_calls_our_handler_reaches_the_original() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append("first"))
    try:
        with redirect_interrupts(lambda: came.append("press")):
            ours: Any = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, lambda number, frame: ours(number, frame))
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # nobody waits: ours passes it on
        with redirect_interrupts(lambda: came.append("again")):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == ["press", "first", "again", "first"]


# Memory -------------------------------------------------------------------------------------------


def test_old_runs_are_released_and_their_handles_still_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "MAX_OVER", 0)
    old = finish(start(tmp_path / "old", a=ScriptedModel(Answer("A's"))))
    before = old.view, old.receipt, old.timeline
    finish(start(tmp_path / "new", a=ScriptedModel(Answer("B's"))))
    assert old not in nb_agents.runs()
    assert isinstance(old._turn, TurnReader)
    assert (old.result, old.wait(), old.status) == ("A's", "A's", "completed")
    assert (old.view.answer, old.receipt) == (before[0].answer, before[1])
    assert old.timeline == before[2]
    assert old.stop() == StopResult(False, "finished")
    assert asyncio.run(_first(old)).kind == "turn_started"
    with pytest.raises(UserError, match="over"):
        old.say("more")


async def _first(run: nb_agents.Run) -> ev.Event:
    return await anext(run.events())


# Limits -------------------------------------------------------------------------------------------


def test_open_approval_stops_only_the_clock_of_the_waiting_agent(
    tmp_path: Path,
) -> None:
    waits = ScriptedModel(Turn(calls=(Call("write_file", {"path": "x", "content": "y"}),)))
    works = ScriptedModel(Turn(text="word ", hang=True))
    rules = [{"match": "write_file", "action": "ask"}]
    team = scripted_team(None, a=waits, b=works)
    agents = [
        agent.model_copy(
            update={"backend": agent.backend.model_copy(update={"tool_policy": _rules(rules)})}
        )
        for agent in team.agents
    ]
    team = team.model_copy(update={"agents": tuple(agents)})
    options = RunOptions(
        session_root=tmp_path,
        timeout=Timeout(seconds=1.5, on_timeout="cancel"),
        cancel=CancelPolicy(grace_timeout_s=0.0),
    )
    run = nb_agents.start("t", team, options=options)
    wait_until(lambda: run.view.gates)
    # Nobody answers: the team's time passes all the same.
    finish(run)
    assert (run.status, run.view.stop and run.view.stop.source) == ("cancelled", "timeout")


@pytest.mark.parametrize(
    "gate, others, still",
    [("s: input #1", 0, True), ("s: drop #1", 0, True), ("s: input #1", 1, False), ("x", 1, False)],
)
def test_recipes_clock_stops_while_it_only_waits_for_the_user(
    gate: str, others: int, still: bool
) -> None:
    begun = [
        ev.StepStarted(step=name, unit="agent", attempt=1) for name in ["s", "t"][: 1 + others]
    ]
    asked = ev.ApprovalAsked(step=gate, prompt="?", timeout_s=0.0, default="deny")
    started = ev.TurnStarted(session="s", turn=1, task="t", agents=(), timeout_s=1, recipe="r")
    assert is_clock_stopped(fold([started, *begun, asked])) is still


def _rules(rules: list[dict[str, str]]) -> Any:
    from tests.kit.tools import ToolKeys

    return ToolKeys.model_validate({"tool_policy": rules}).tool_policy
