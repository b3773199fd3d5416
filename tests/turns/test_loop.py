"""The background loop: one thread for all runs, which user code can't block."""

import asyncio
import threading
import time
from pathlib import Path

import anyio

from nb_agents.loop import THREAD_NAME, ensure_loop, post, submit
from nb_agents.testing import Answer, ScriptedModel
from tests.kit.runs import Recorder
from tests.kit.sessions import Journal
from tests.model_server import wait_until
from tests.team_kit import finish, start


def test_all_runs_share_one_daemon_thread_of_that_name(tmp_path: Path) -> None:
    finish(start(tmp_path, a=ScriptedModel(Answer("x"))))
    finish(start(tmp_path, a=ScriptedModel(Answer("x"))))
    found = [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]
    assert len(found) == 1 and found[0].daemon
    assert ensure_loop() is ensure_loop()


def test_concurrent_first_uses_start_one_thread() -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(ensure_loop())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_post_from_any_thread_runs_on_the_loop() -> None:
    ensure_loop()
    names: list[str] = []
    post(lambda: names.append(threading.current_thread().name))
    wait_until(lambda: names)
    assert names == [THREAD_NAME]


def test_cancelled_wait_cancels_a_task_except_shielded_parts() -> None:
    entered, go_on, told = threading.Event(), asyncio.Event(), list[str]()

    async def work() -> None:
        try:
            with anyio.CancelScope(shield=True):
                entered.set()
                await go_on.wait()
                told.append("tidied up")
            await anyio.sleep_forever()
        finally:
            told.append("ended")

    pending = submit(work)
    assert entered.wait(60)
    assert pending.cancel()
    post(go_on.set)
    wait_until(lambda: told == ["tidied up", "ended"])


def test_agents_continue_while_the_users_loop_is_blocked(tmp_path: Path) -> None:
    async def cell() -> str:
        run = start(tmp_path, a=ScriptedModel(Answer("x")))
        while not run.is_over:
            time.sleep(0.001)  # noqa: ASYNC251 - a busy cell
        return await run

    assert asyncio.run(cell()) == "x"


def test_recorder_numbers_events_in_order(tmp_path: Path) -> None:
    recorder = Recorder(Journal(tmp_path / "events.jsonl"))
    recorder.note("one")
    recorder.note("two")
    assert recorder.view.seq == 2
    assert recorder.view.notices == ("one", "two")
    recorder.close()
    assert (tmp_path / "events.jsonl").read_text().count("\n") == 2
