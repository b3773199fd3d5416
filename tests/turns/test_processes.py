"""Runs in separate processes: exit, kill, Ctrl-C, a full disk, developer mode."""

import json
import signal
import sys
import threading
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.kit.runs import loop, redirect_interrupts
from tests.kit.sessions import load_session
from tests.model_server import ModelServer, Reply, wait_until
from tests.team_kit import read_line, script, sessions

HANGING = """
import nb_agents
from nb_agents.testing import *
from tests.model_server import wait_until
gate = Gate()
model = ScriptedModel(Turn(text="words so far ", gate=gate))
run = nb_agents.start("t", scripted_team(a=model, b=model))
gate.wait_reached(2)
print("end", flush=True)
"""


def test_exiting_process_stops_and_saves_its_runs(tmp_path: Path) -> None:
    with script(HANGING, tmp_path, "-X", "dev", "-W", "error") as process:
        assert read_line(process) == "end\n"
        _, errors = process.communicate()
        assert (process.returncode, _without_slowness(errors)) == (0, [])
    (turn,) = load_session(sessions(tmp_path)[0]).turns
    assert turn.state == "stopped"
    assert {a.partial for a in turn.view.agents.values()} == {"words so far "}
    assert turn.view.stop and turn.view.stop.source == "parent"


TOOL_THAT_HANGS = """
import threading, time, anyio, nb_agents
from nb_agents.testing import *
from tests.model_server import wait_until
from nb_agents.tools.base import Tool
from nb_agents.tools.workspace import Workspace
started = threading.Event()
def block():
    started.set()
    time.sleep(1000)
async def hang() -> str:
    "Hang."
    await anyio.to_thread.run_sync(block)
Workspace.tools = lambda self: [Tool(hang)]
run = nb_agents.start("t", scripted_team(a=ScriptedModel(Turn(calls=(Call("hang"),)))))
started.wait()
print("end", flush=True)
"""


def test_hanging_tool_does_not_block_the_exit(tmp_path: Path) -> None:
    with script(TOOL_THAT_HANGS, tmp_path) as process:
        assert read_line(process) == "end\n"
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    assert load_session(sessions(tmp_path)[0]).turns[0].view.stop


LISTING_THAT_HANGS = """
import time, nb_agents
from nb_agents.turns import recorder
from nb_agents.testing import *
def hang(*args):
    print("listing", flush=True)
    time.sleep(1000)
recorder.workspace_files = hang
gate = Gate()
wrote = Turn(calls=(Call("write_file", {"path": "x", "content": "y"}),))
model = ScriptedModel(wrote, Turn(text="words so far ", gate=gate))
run = nb_agents.start("t", scripted_team(a=model))
gate.wait_reached()
if END == "kill":
    run.stop(now=True)
    run.wait(raise_on_stop=False)
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_turn_is_saved_if_the_process_ends_while_listing_files(tmp_path: Path, end: str) -> None:
    with script(f"END = {end!r}\n{LISTING_THAT_HANGS}", tmp_path) as process:
        assert read_line(process) == "listing\n"
        if end == "kill":
            process.kill()
        _, errors = process.communicate()
        assert errors == ""
    path = sessions(tmp_path)[0] / "turn_1"
    before = json.loads((path / "metadata.json").read_bytes())
    assert "files" not in before
    if end == "exit":
        assert before["run_status"] == "cancelled"
    (turn,) = load_session(sessions(tmp_path)[0]).turns
    assert (turn.state, turn.warnings) == ("stopped", ())
    assert turn.view.agents["a"].partial == "words so far "
    assert [(f.agent, f.path) for f in turn.view.files] == [("a", "x")]


STREAMING = """
import nb_agents
from nb_agents.testing import *
from tests.model_server import wait_until
words = " ".join(f"w{n}" for n in range(100_000))
run = nb_agents.start("t", scripted_team(a=ScriptedModel(Turn(text=words, delay_s=0.001))))
run.subscribe(lambda view: print(len(view.agents["a"].partial), flush=True))
run.wait()
"""


def test_killed_process_loses_at_most_a_tenth_of_a_second(tmp_path: Path) -> None:
    with script(STREAMING, tmp_path) as process:
        told = [int(read_line(process)) for _ in range(4)]
        process.kill()
    (turn,) = load_session(sessions(tmp_path)[0]).turns
    assert (turn.state, turn.is_complete) == ("stopped", False)
    assert len(turn.view.agents["a"].partial) >= told[-1] > 0
    assert turn.warnings == ()


STOPPED = """
import threading, nb_agents
from nb_agents.testing import *
from tests.model_server import wait_until
run = nb_agents.start("t", scripted_team(a=ScriptedModel(Turn(text="so far ", hang=True))))
wait_until(lambda: run.view.agents["a"].partial)
before = set(threading.enumerate())
run.stop(now=True)
run.wait(raise_on_stop=False)
print([each.name for each in threading.enumerate() if each not in before], flush=True)
"""


def test_stop_starts_no_thread_that_it_must_wait_for(tmp_path: Path) -> None:
    with script(STOPPED, tmp_path) as process:
        assert read_line(process).strip() == "[]"


FULL_DISK = """
import json, resource, signal, nb_agents
from nb_agents.testing import *
from tests.model_server import wait_until
from nb_agents.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
full, empty = Gate(), Gate()
a = ScriptedModel(
    Answer("first " + "x" * 5000, gate=full), Turn(text="y" * 5000, gate=empty), Answer("last")
)
run = nb_agents.start("t", scripted_team(a=a))
full.wait_reached()
size = (run.path / "events.jsonl").stat().st_size
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
limit(size + 10)
full.open()
if MODE == "before":
    wait_until(lambda: any("Saving failed: File too large" in n for n in run.view.notices))
    try:
        run.save()
    except StorageError as exc:
        print("File too large" in str(exc))
    limit(resource.RLIM_INFINITY)
    run.save()
else:
    print(run.wait(200).startswith("first"))
    print((run.path / "events.jsonl").stat().st_size == size + 10)
    print(json.loads((run.path / "metadata.json").read_text())["run_status"] == "in-progress")
    limit(resource.RLIM_INFINITY)
    run.save()
empty.open()
run.wait(200)
print(run.status == "completed", any("File too large" in n for n in run.view.notices), flush=True)
"""


@pytest.mark.parametrize("mode", ["before", "after"])
def test_full_disk_is_reported_and_events_are_written_later(tmp_path: Path, mode: str) -> None:
    with script(f"MODE = {mode!r}\n{FULL_DISK}", tmp_path) as process:
        output, errors = process.communicate()
        assert (set(output.split()), errors) == ({"True"}, "")
    (turn,) = load_session(sessions(tmp_path)[0]).turns
    assert turn.is_complete and turn.warnings == ()
    assert turn.view.answer == "first " + "x" * 5000
    assert json.loads(turn.paths.metadata.read_text())["run_status"] == "completed"


UNSAVED = """
import resource, signal, nb_agents
from nb_agents.turns import live_runs
from nb_agents.errors import StorageError
from nb_agents.testing import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
live_runs.MAX_OVER = 0
gate = Gate()
model = ScriptedModel(Answer("paid once " + "x" * 5000, gate=gate))
team = scripted_team(a=model)
run = nb_agents.start("t", team, "s")
gate.wait_reached()
size = (run.path / "events.jsonl").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
gate.open()
run.wait(200)
if END == "resume":
    try:
        run.resume()
    except StorageError as exc:
        print("File too large" in str(exc))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        run.resume()
    except nb_agents.UserError as exc:
        print("Turn s/1 is complete" in str(exc))
elif END == "continue":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    nb_agents.start("more", team, "s", continue_=True).wait(60)
    print("paid once" in str(model.requests[-1]))
else:
    del run
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    nb_agents.start("another", team, "other").wait(60)
print(len(model.requests) == (1 if END == "resume" else 2), flush=True)
"""


@pytest.mark.parametrize("end", ["resume", "continue", "exit"])
def test_unsaved_events_are_written_before_new_requests_and_at_exit(
    tmp_path: Path, end: str
) -> None:
    with script(f"END = {end!r}\n{UNSAVED}", tmp_path) as process:
        output, errors = process.communicate()
        assert (set(output.split()), errors) == ({"True"}, "")
    session = next(each for each in sessions(tmp_path) if each.name == "s")
    first, *_ = load_session(session).turns
    assert first.is_complete and first.warnings == ()
    assert first.view.answer == "paid once " + "x" * 5000


INTERRUPTED = """
import asyncio, signal, sys, threading, nb_agents
from nb_agents.testing import *
from tests.model_server import wait_until
from nb_agents import RunCancelled
from nb_agents import loop
gate = Gate()
b = ScriptedModel(Answer("B's", gate=gate))
run = nb_agents.start("t", scripted_team(a=ScriptedModel(Turn(text="aaa ", HOW)), b=b))
gate.wait_reached()
wait_until(lambda: run.view.agents["a"].partial)
def tell():
    wait_until(lambda: len(loop._waits) >= COUNT and loop._handlers)
    print("ready", flush=True)
    wait_until(lambda: run.view.stop)
    level = run.view.stop.level
    if PRESSES == 1:
        print(level, flush=True)
    gate.open()
    wait_until(lambda: run.view.agents["b"].answers)
    if PRESSES == 2:
        print(level, flush=True)
threading.Thread(target=tell, daemon=True).start()
async def waits(): return await run
async def together(): return await asyncio.gather(waits(), waits())
try:
    WAIT
except RunCancelled as exc:
    print("cancelled", exc.receipt.source, sorted(exc.partial_answers.items()))
print(loop._waits, signal.getsignal(signal.SIGINT) in loop._handlers, flush=True)
"""


def test_interrupt_that_does_not_wake_the_main_thread_takes_effect(tmp_path: Path) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Answer("So.", gate=gate)))
    run = nb_agents.start("Why?", team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        wait_until(lambda: loop._waits and sys._current_frames()[main].f_code.co_name == "wait")
        # A signal that another thread takes leaves the main thread asleep.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        wait_until(lambda: run.view.stop)
        gate.open()

    presses = threading.Thread(target=press)
    presses.start()
    run.wait(raise_on_stop=False)
    presses.join()
    assert run.view.stop is not None
    assert run.view.stop.source == "interrupt"


def test_original_handler_is_restored_for_any_order_of_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    pressed: list[str] = []
    first = redirect_interrupts(lambda: pressed.append("first"))
    second = redirect_interrupts(lambda: pressed.append("second"))
    first.__enter__()
    second.__enter__()
    signal.raise_signal(signal.SIGINT)
    first.__exit__(None, None, None)
    signal.raise_signal(signal.SIGINT)
    second.__exit__(None, None, None)
    assert pressed == ["first", "second", "second"]
    assert signal.getsignal(signal.SIGINT) is before


def test_handler_that_replaced_ours_is_not_removed() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with redirect_interrupts(lambda: None):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("wait", ["run.wait()", "asyncio.run(waits())", "asyncio.run(together())"])
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_the_awaited_run(tmp_path: Path, wait: str, presses: int) -> None:
    how = "hang=True" if presses == 2 else "gate=gate"
    count = "2" if "together" in wait else "1"
    source = INTERRUPTED.replace("WAIT", wait).replace("HOW", how).replace("COUNT", count)
    with script(f"PRESSES = {presses}\n{source}", tmp_path) as process:
        assert read_line(process) == "ready\n"
        process.send_signal(signal.SIGINT)
        assert read_line(process) == "requested\n"
        if presses == 2:
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        assert output.splitlines() == [
            "cancelled interrupt [('a', 'aaa '), ('b', \"B's\")]",
            "[] False",
        ]
        assert (process.returncode, errors) == (0, "")


def test_nest_asyncio_changes_nothing(tmp_path: Path) -> None:
    source = """
import asyncio, nest_asyncio
asyncio.set_event_loop(asyncio.new_event_loop())
nest_asyncio.apply()
import nb_agents
from nb_agents.testing import *
from tests.model_server import wait_until
async def main():
    gate = Gate()
    a = ScriptedModel(Answer("A's"), Vote("agent1"), Turn(text="presented"))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    print(await nb_agents.start("t", scripted_team(a=a, b=b)))
    model = ScriptedModel(Turn(text="x ", gate=gate))
    run = nb_agents.start("t", scripted_team(a=model, b=model))
    await asyncio.to_thread(gate.wait_reached, 2)
    print((await run.cancel() if False else run.stop(now=True)).status)
    run.wait(raise_on_stop=False)
    print(run.status, model.open_streams)
asyncio.run(main())
"""
    with script(source, tmp_path) as process:
        output, errors = process.communicate()
    assert (output.splitlines(), errors) == (["presented", "stopping-now", "cancelled 0"], "")


def test_stops_leave_no_warning_in_developer_mode(tmp_path: Path) -> None:
    with ModelServer(Reply(text="word ", endless=True, words_per_second=200)) as server:
        source = f"""
import gc, nb_agents
from tests.model_server import wait_until
backend = {{"type": "chatcompletion", "model": "m", "base_url": {server.url!r}}}
spec = {{"agents": [{{"id": f"a{{n}}", "backend": backend}} for n in range(3)]}}
team = nb_agents.TeamSpec.model_validate(spec)
for n in range(3):
    run = nb_agents.start("t", team)
    if n: wait_until(lambda: all(a.partial for a in run.view.agents.values()))
    run.stop(now=True)
    run.wait(raise_on_stop=False)
    gc.collect()
print(run.status)
"""
        with script(source, tmp_path, "-X", "dev", "-W", "error") as process:
            output, errors = process.communicate()
        assert (output, _without_slowness(errors), process.returncode) == ("cancelled\n", [], 0)
        server.wait_closed()


def _without_slowness(errors: str) -> list[str]:
    """asyncio's debug mode tells slow steps; on a loaded machine there are some."""
    return [line for line in errors.splitlines() if not line.startswith("Executing <")]
