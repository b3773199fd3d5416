"""Following a turn yields past and new events, regardless of who writes them."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import nb_agents
from nb_agents import UserError
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn
from tests.kit.sessions import TurnPaths
from tests.kit.views import fold
from tests.processes import BOUND_BY_PERMISSIONS, line, python
from tests.team_kit import events, finish, start
from tests.warm import WarmProcess

LOOK = Turn(calls=(Call("list_files", {}),))

WRITER = """
import sys, nb_agents
from nb_agents.testing import *
model = ScriptedModel(Turn(text="so far ", hang=True))
options = nb_agents.RunOptions(session_root=sys.argv[1])
run = nb_agents.start("t", scripted_team(a=model), "s", options=options)
while not run.view.agents["a"].partial: pass
print("streams", flush=True)
run.wait(raise_on_stop=False)
"""


READER = """
import asyncio, sys, nb_agents
from pathlib import Path
from nb_agents.launch.finding import attach
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
place = sys.argv[1]
print(load_turn(TurnPaths(Path(place))).state, attach(place).status, flush=True)
async def follow():
    async for event in nb_agents.follow(place):
        last = event.kind
        if last == "model_started":
            print(last, flush=True)
    print(last, attach(place).status, flush=True)
asyncio.run(follow())
"""


async def all_of(stream: AsyncIterator[ev.Event]) -> list[ev.Event]:
    return [event async for event in stream]


def test_follow_yields_all_events_of_a_finished_turn(tmp_path: Path) -> None:
    run = finish(start(tmp_path, a=ScriptedModel(Answer("A's"))))
    followed = asyncio.run(all_of(run.events()))
    assert followed == events(run)
    assert (followed[0].kind, followed[-1].kind) == ("turn_started", "files_listed")


def test_late_follower_gets_past_and_new_events(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(LOOK, Answer("A's", gate=gate)))
    gate.wait_reached()

    async def follow() -> list[ev.Event]:
        heard = []
        async for event in run.events():
            heard.append(event)
            if isinstance(event, ev.ModelStarted) and event.call == 2:
                gate.open()  # so that the rest is written while it is followed
        return heard

    heard = asyncio.run(asyncio.wait_for(follow(), 200))
    assert heard == events(run)
    assert fold(heard).answer == "A's"


def test_reader_without_write_permission_follows_a_live_turn(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    gate.wait_reached()
    for path in run.path.iterdir():
        if path.is_file():
            path.chmod(0o444)
    with python(READER, run.path, before=BOUND_BY_PERMISSIONS) as reader:
        assert line(reader) == "running in-progress"
        assert line(reader) == "model_started"
        gate.open()
        run.wait()
        assert line(reader) == "files_listed completed"


def test_two_followers_get_the_same_events(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))

    async def follow() -> list[list[ev.Event]]:
        both = asyncio.gather(all_of(run.events()), all_of(nb_agents.follow(run.path)))
        gate.open()
        return await asyncio.wait_for(both, 200)

    one, other = asyncio.run(follow())
    assert one == other == events(run)


def test_turn_of_another_process_is_followed_until_it_dies(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WRITER, str(tmp_path)]
    with WarmProcess(argv, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"streams\n"

        async def follow() -> list[ev.Event]:
            heard = []
            async for event in nb_agents.follow(tmp_path / "s" / "turn_1"):
                heard.append(event)
                if isinstance(event, ev.TextStreamed) and event.text.endswith("far "):
                    os.kill(writer.pid, signal.SIGKILL)
            return heard

        heard = asyncio.run(asyncio.wait_for(follow(), 200))
    assert fold(heard).agents["a"].partial == "so far "
    assert not TurnPaths(tmp_path / "s" / "turn_1").is_live()


def test_follow_waits_for_a_complete_line_and_skips_invalid_ones(tmp_path: Path) -> None:
    run = finish(start(tmp_path, a=ScriptedModel(Answer("A's"))))
    journal = run.path / "events.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:200] + b"\n" + whole + whole[:50])
    assert asyncio.run(all_of(run.events())) == events(run)


def test_following_something_else_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a turn"):
        asyncio.run(all_of(nb_agents.follow(tmp_path)))


def test_following_a_deleted_turn_fails_and_does_not_recreate_it(tmp_path: Path) -> None:
    turn = finish(start(tmp_path, a=ScriptedModel(Answer("A's")))).path

    async def follow() -> None:
        async for _ in nb_agents.follow(turn):
            if turn.exists():
                shutil.rmtree(turn.parent)

    with TurnPaths(turn).lock(), pytest.raises(UserError, match="deleted or renamed"):
        asyncio.run(asyncio.wait_for(follow(), 200))
    assert not TurnPaths(turn).is_live()
    assert not turn.parent.exists()
