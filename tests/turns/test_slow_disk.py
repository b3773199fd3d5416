"""A disk on which each access takes 20 ms, with wrong times in steps of two seconds.

So are network drives. The functions of `os` are slowed in each process that works there, before it
does anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread

import pytest

from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import WAIT_S
from tests.warm import WarmProcess

SLOW = """
import os, time
SECONDS, COARSE = 0.02, 2

def slowed(function):
    def call(path, *args, **more):
        if isinstance(path, int) or PLACE not in os.path.abspath(os.fspath(path)):
            return function(path, *args, **more)
        time.sleep(SECONDS)
        found = function(path, *args, **more)
        return coarse(found) if isinstance(found, os.stat_result) else found
    return call

def coarse(found):
    # Those that have no place in the tuple.
    names = {name for name in dir(found) if name.startswith("st_")} - {*found.__match_args__}
    told = {name: getattr(found, name) for name in names}
    for name in ("st_atime", "st_mtime", "st_ctime"):
        at = int(told[name]) // COARSE * COARSE - 3600  # the server's clock is an hour behind
        told |= {name: float(at), name + "_ns": at * 10**9}
    return os.stat_result(tuple(found)[:7] + (int(told["st_mtime"]),) * 3, told)

for name in ("stat", "lstat", "rename", "replace"):
    setattr(os, name, slowed(getattr(os, name)))
"""

WORK = """
import sys, nb_agents
verb, url, place = sys.argv[1:]
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": {
    "type": "chatcompletion", "model": "m", "base_url": url, "api_key": "k"}}]})
options = nb_agents.RunOptions(session_root=place)
run = (nb_agents.start("Why?", team, "s", options=options) if verb == "start"
       else nb_agents.resume("s", team, options=options))
run.wait(raise_on_stop=False)
print(run.status, run.result, flush=True)
"""

SWEEP = """
import sys, nb_agents
url, place, count = sys.argv[1:]
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": {
    "type": "chatcompletion", "model": "m", "base_url": url, "api_key": "k"}}]})
rows = [{"q": f"row-{number}-row"} for number in range(int(count))]
sweep = nb_agents.map(rows, "{{q}}", team, name="asked", limit=2,
                      options=nb_agents.RunOptions(session_root=place))
view = sweep.wait()
print(view.status, view.completed, view.failed, flush=True)
"""

WATCH = """
import sys
from nb_agents.launch.finding import find_run
run = find_run("s/1", sys.argv[1])
run.subscribe(lambda view: print(view.status, view.agents["a"].partial, flush=True))
run.wait(raise_on_stop=False)
"""

CLI = """
import sys
from nb_agents.cli import main
sys.exit(main())
"""


class Slow:
    """Starts processes for which the disk is slow.

    Args:
        place: Where it is slow.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._slowed = SLOW.replace("PLACE", repr(str(place)))

    @contextmanager
    def process(self, code: str, *argv: str) -> Iterator[Popen[str]]:
        """Start Python with this code and these arguments; it doesn't outlive the block."""
        command = [sys.executable, "-c", self._slowed + code, *argv]
        with WarmProcess(command, stdout=PIPE, text=True, cwd=self.place) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def lines(self, code: str, *argv: str) -> Iterator[list[str]]:
        """Start a process; give the lines that it prints, as they come."""
        told = list[str]()
        with self.process(code, *argv) as process:
            assert process.stdout is not None
            reader = Thread(target=told.extend, args=[process.stdout], daemon=True)
            reader.start()
            yield told
            process.kill()
            reader.join(WAIT_S)

    def work(self, verb: str, url: str) -> list[str]:
        """Return the arguments that start or resume a run there."""
        return [WORK, verb, url, str(self.place)]

    def cli(self, *words: str) -> list[str]:
        """Return the arguments of the command line."""
        return [CLI, *words, "--session-root", str(self.place)]


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    place = tmp_path / "drive"
    place.mkdir()
    return Slow(place)


def test_run_on_a_slow_disk_with_wrong_times_is_followed_stopped_and_resumed(
    slow: Slow,
) -> None:
    answer = ToolCall("new_answer", {"content": "Forty-two, as ever."})
    with ModelServer(default=Reply(text="Some words first.", tool_calls=(answer,))) as server:
        server.hold(after=1)
        with (
            slow.process(*slow.work("start", server.url)) as writer,
            slow.process(
                "import os, pathlib, sys; p = sys.argv[1];print(os.stat(p).st_mtime % 2)",
                str(slow.place),
            ) as look,
        ):
            assert look.communicate(timeout=WAIT_S)[0].strip() == "0.0", "it is slowed"
            server.wait_chunks(1)
            with (
                slow.lines(*slow.cli("follow", "s/1", "--json")) as followed,
                slow.lines(WATCH, str(slow.place)) as watched,
            ):
                wait_until(lambda: any("turn_started" in line for line in followed), WAIT_S)
                wait_until(lambda: any("Some" in line for line in watched), WAIT_S)
                server.hold(after=3)
                wait_until(lambda: any("Some words" in line for line in watched), WAIT_S)
                with slow.process(*slow.cli("stop", "s", "--now")) as stop:
                    assert "stopping now" in stop.communicate(timeout=WAIT_S)[0]
                assert writer.communicate(timeout=WAIT_S)[0].split()[0] == "cancelled"
                wait_until(lambda: any("turn_ended" in line for line in followed), WAIT_S)
                wait_until(lambda: any("cancelled" in line for line in watched), WAIT_S)
        server.release()
        with slow.process(*slow.work("resume", server.url)) as again:
            said = again.communicate(timeout=WAIT_S)[0]
        assert said.strip() == "completed Forty-two, as ever."
        with slow.process(*slow.cli("show", "s")) as shown:
            assert "Forty-two" in shown.communicate(timeout=WAIT_S)[0]


def test_sweep_on_a_slow_disk_is_stopped_and_continued(slow: Slow) -> None:
    with ModelServer(default=Reply(text="So it is.")) as server:
        server.hold(after=1)
        sweep = [SWEEP, server.url, str(slow.place), "3"]
        with slow.process(*sweep) as writer:
            server.wait_open(2)
            with slow.process(*slow.cli("stop", "asked", "--now")) as stop:
                assert "will stop as soon as" in stop.communicate(timeout=WAIT_S)[0]
            assert writer.communicate(timeout=WAIT_S)[0].split() == ["cancelled", "0", "0"]
        server.release()
        with slow.process(*sweep) as again:
            assert again.communicate(timeout=WAIT_S)[0].split() == ["completed", "3", "0"]
        assert len(server.requests) == 5
