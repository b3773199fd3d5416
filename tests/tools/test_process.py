"""Commands: all processes of one end with it, with a stop, and with the starting process."""

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import create_task_group, to_thread

from tests.kit.processes import Finished, command, fork_server, run_bash, run_command
from tests.kit.runs import submit
from tests.model_server import wait_until
from tests.processes import environment_of, fork_servers, line, output, python

PLAIN = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
ON_LINUX = sys.platform == "linux"
LIMIT_S = 2
"""Longer than a command takes to start on a busy machine."""


class Family:
    """The processes of a command, which keep a FIFO open; end of file means that all have ended.

    Unlike process ids, this is not confused by reused ids or by zombie processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fifo = folder / "alive"
        os.mkfifo(self.fifo)
        self._end = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.heard = ""

    def script(self, body: str) -> str:
        return f'exec 9>"{self.fifo}"\n{body}'

    def hear(self, text: str) -> None:
        self.heard += text

    async def run(self, body: str, **options: Any) -> Finished:
        options = {"cwd": self.folder, "env": PLAIN, "on_output": self.hear} | options
        return await run_bash(self.script(body), **options)

    async def wait_heard(self, text: str = "ready\n", start: int = 0) -> None:
        await to_thread.run_sync(wait_until, lambda: text in self.heard[start:])

    def is_gone(self) -> bool:
        try:
            return os.read(self._end, 1) == b""
        except BlockingIOError:
            return False

    def wait_gone(self) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        poll.poll(200_000)
        assert self.is_gone()

    async def stopped(self, body: str, **options: Any) -> float:
        """Start a script and stop it immediately when it is ready. Return the seconds this took."""
        start = len(self.heard)
        async with create_task_group() as tasks:
            tasks.start_soon(partial(self.run, body, **options))
            await self.wait_heard(start=start)
            assert not self.is_gone()
            began = time.monotonic()
            tasks.cancel_scope.cancel()
        return time.monotonic() - began

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path)
    yield made
    made.close()


def test_a_command_has_an_exit_code_and_two_streams(tmp_path: Path) -> None:
    async def main() -> Finished:
        argv = ["sh", "-c", 'cat; echo "$X" >&2; pwd; exit 3']
        return await run_command(argv, cwd=tmp_path, env=PLAIN | {"X": "é"}, stdin=b"in\n")

    done = anyio.run(main)
    assert (done.exit_code, done.outcome) == (3, "finished")
    assert (done.output, done.errors) == (f"in\n{tmp_path.resolve()}\n", "é\n")


def test_command_gets_only_the_given_environment(tmp_path: Path) -> None:
    done = anyio.run(partial(run_command, ["env"], cwd=tmp_path, env=PLAIN | {"A": "1"}))
    assert dict(row.split("=", 1) for row in done.output.splitlines()) == PLAIN | {"A": "1"}


@pytest.mark.parametrize(
    "name, code", [("no-such-program", 127), ("./plain-file", 126), ("./no/such", 127)]
)
async def test_a_program_that_cannot_be_run_ends_as_in_a_shell(
    tmp_path: Path, name: str, code: int
) -> None:
    (tmp_path / "plain-file").write_text("x")
    done = await run_command([name], cwd=tmp_path, env=PLAIN)
    assert done.exit_code == code
    assert done.errors.startswith(f"{name}: ") and done.errors.count("\n") == 1


async def test_command_that_cannot_start_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run_command(["true"], cwd=tmp_path / "missing", env=PLAIN)
    with pytest.raises(NotADirectoryError):
        (tmp_path / "file").touch()
        await run_command(["true"], cwd=tmp_path / "file", env=PLAIN)
    for script in ("echo a\0b", "echo \ud800", "\0" + "x" * 1_000_000):
        with pytest.raises(ValueError):
            await run_bash(script, cwd=tmp_path, env=PLAIN)


async def test_relative_directory_starts_at_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    for place in (tmp_path, tmp_path / "inner"):
        monkeypatch.chdir(place)
        done = await run_command(["pwd"], cwd=Path("."), env=PLAIN)
        assert done.output == f"{place.resolve()}\n"


# Output


async def test_output_arrives_while_the_command_runs(family: Family) -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(family.run, "echo one; until [ -e go ]; do sleep 0.01; done; echo two")
        await family.wait_heard("one\n")
        assert "two" not in family.heard
        (family.folder / "go").touch()
    assert family.heard == "one\ntwo\n"


async def test_split_characters_are_joined_and_invalid_bytes_replaced(family: Family) -> None:
    done: list[Finished] = []

    async def run() -> None:
        wait = "until [ -e go ]; do sleep 0.01; done"
        script = rf"printf 'a\xe2\x82'; {wait}; printf '\xac\xff'; printf '\xe2' >&2"
        done.append(await family.run(script))

    async with create_task_group() as tasks:
        tasks.start_soon(run)
        await family.wait_heard("a")
        (family.folder / "go").touch()
    assert (done[0].output, done[0].errors) == ("a€\ufffd", "\ufffd")
    assert sorted(family.heard) == sorted("a€\ufffd\ufffd")


async def test_output_over_the_limit_is_counted_and_dropped(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MAX_CAPTURED_BYTES", 1000)
    done = await family.run("yes | head -c 5000000; yes no | head -c 1001 >&2; printf é")
    assert done.exit_code == 0
    assert (
        done.output
        == "y\n" * 500 + "\n[truncated: 5000002 bytes in total; only the first 1000 are shown]\n"
    )
    assert done.errors.endswith(
        "\n[truncated: 1001 bytes in total; only the first 1000 are shown]\n"
    )
    assert sorted(family.heard) == sorted(done.output + done.errors)


async def test_endless_output_neither_fills_memory_nor_blocks_the_loop_or_a_stop(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MAX_CAPTURED_BYTES", 100_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await family.stopped("echo ready; yes & yes >&2")
    assert family.is_gone()
    assert len(family.heard) <= 200_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50_000 * (1 if ON_LINUX else 1024)


# The end of a command


BACKGROUND = {
    "a job": "sleep 1000 &",
    "a job with closed streams": "sleep 1000 >/dev/null 2>&1 </dev/null &",
    "a grandchild": "bash -c 'sleep 1000 & sleep 1000' &",
    "a job that was stopped": "sleep 1000 & kill -STOP $!",
    "a writer": "yes > /dev/null &",
}
if ON_LINUX:
    BACKGROUND |= {
        "a job in a group of its own": "set -m; sleep 1000 & set +m",
        "timeout": "timeout 1000 sleep 1000 &",
        "a session": "setsid sleep 1000 &",
        "a daemon": "(setsid bash -c 'sleep 1000 & sleep 1000 & touch up' &); "
        "until [ -e up ]; do sleep 0.01; done",
    }


@pytest.mark.parametrize("background", BACKGROUND.values(), ids=BACKGROUND)
async def test_child_processes_end_with_the_command(family: Family, background: str) -> None:
    done = await family.run(f"{background}\necho ready; exit 4")
    assert family.is_gone()
    assert (done.exit_code, done.output, done.outcome) == (4, "ready\n", "finished")


@pytest.mark.parametrize("background", BACKGROUND.values(), ids=BACKGROUND)
async def test_stop_ends_all_processes_of_a_command(family: Family, background: str) -> None:
    await family.stopped(f"{background}\necho ready; sleep 1000")
    assert family.is_gone()


async def test_stopped_command_can_clean_up_and_write_output(family: Family) -> None:
    await family.stopped("trap 'echo bye; exit' TERM; echo ready; sleep 1000 & wait")
    assert family.is_gone()
    assert family.heard == "ready\nbye\n"


async def test_a_command_that_ignores_term_is_killed(family: Family) -> None:
    took = await family.stopped("trap '' TERM; (sleep 1000 & sleep 1000) & echo ready; sleep 1000")
    assert family.is_gone()
    assert took > 1.9  # it had its grace time


async def test_suspended_shell_is_ended(family: Family) -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(family.run, "echo ready; kill -STOP $$")
        await family.wait_heard()
        tasks.cancel_scope.cancel()
    assert family.is_gone()


async def test_timeout_ends_all_processes_and_keeps_the_output(family: Family) -> None:
    done = await family.run("sleep 1000 & echo ready; sleep 1000", timeout_s=LIMIT_S)
    assert family.is_gone()
    assert (done.exit_code, done.output, done.outcome) == (None, "ready\n", "timed out")


async def test_timeout_before_the_command_starts(family: Family) -> None:
    done = await family.run("sleep 1000", timeout_s=0)
    assert family.is_gone()
    assert (done.exit_code, done.outcome) == (None, "timed out")


async def test_a_stop_before_the_start_starts_nothing(family: Family) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await family.run("touch ran")
    assert family.is_gone() and not (family.folder / "ran").exists()


async def test_asyncio_cancellation_ends_all_processes(family: Family) -> None:
    task = asyncio.create_task(family.run("sleep 1000 & echo ready; sleep 1000"))
    await family.wait_heard()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert family.is_gone()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_a_command_does_not_outlive_its_supervisor(family: Family, number: int) -> None:
    done = await family.run(f"sleep 1000 & kill -{int(number)} $PPID; sleep 1000; echo no")
    assert family.is_gone()
    assert done.exit_code == (-number if number == signal.SIGKILL else -signal.SIGTERM)
    assert done.output == ""


async def test_hanging_supervisor_does_not_delay_a_stop(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TERM_GRACE_S", 0.1)
    monkeypatch.setattr(command, "KILL_WAIT_S", 0)
    monkeypatch.setattr(command, "_MARGIN_S", 0.1)
    await family.stopped("sleep 1000 & kill -STOP $PPID; echo ready; sleep 1000")
    family.wait_gone()


async def test_parallel_commands_are_independent(family: Family) -> None:
    done: dict[int, str] = {}

    async def run(number: int) -> None:
        wait = "until [ -e go ]; do sleep 0.05; done"
        script = f"echo ready{number}.; {wait}; echo {number}; sleep 1000 &"
        result = await run_bash(script, cwd=family.folder, env=PLAIN, on_output=family.hear)
        done[number] = result.output

    async with create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(run, number)
        await family.stopped("echo ready; sleep 1000")
        for number in range(8):
            await family.wait_heard(f"ready{number}.\n")
        (family.folder / "go").touch()
    assert done == {number: f"ready{number}.\n{number}\n" for number in range(8)}


async def test_no_file_or_process_is_left_open(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wait for idle supervisors of other tests to end, so that the count is one before and after.
    monkeypatch.setattr(fork_server, "_MAX_IDLE", 1)
    for _ in range(10):
        await family.run("true")
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        await family.run("cat; sleep 1000 &", stdin=b"x" * 200_000)
        await family.run("true", stdin=b"x" * 5_000_000)  # which reads none of it
        await family.run("#" * 1_000_000)
        await family.stopped("echo ready; sleep 1000")
        with pytest.raises(FileNotFoundError):
            await run_command(["true"], cwd=family.folder / "missing", env=PLAIN, stdin=b"")
        await family.run("true")
    assert len(os.listdir("/dev/fd")) == before


async def test_the_supervisor_of_a_command_that_is_stopped_is_reaped(family: Family) -> None:
    await family.stopped("echo $PPID; echo ready; sleep 1000")
    with pytest.raises(ProcessLookupError):
        os.kill(int(family.heard.split()[-2]), 0)


@pytest.mark.skipif(not ON_LINUX, reason="/proc")
async def test_supervisor_is_reused_by_the_next_command(family: Family) -> None:
    script = 'echo "$PPID $$ $(ps -o sid= $$) $(ps -o cls= $$)"; pwd; sleep 1000 &'
    first, second = [await family.run(script) for _ in range(2)]
    (parent, pid, *rest), (same, other, *_) = first.output.split(), second.output.split()
    assert parent == same and pid != other
    assert rest == [pid, "TS", str(family.folder.resolve())]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_supervisor_killed_between_commands_is_replaced(family: Family, number: int) -> None:
    waiting = []

    async def run() -> None:
        script = "echo $PPID; until [ -e go ]; do sleep 0.01; done"
        waiting.append(int((await family.run(script)).output))

    async with create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(run)
        await to_thread.run_sync(wait_until, lambda: family.heard.count("\n") == 3)
        (family.folder / "go").touch()
    for supervisor in waiting:
        os.kill(supervisor, number)
    assert (await family.run("exit 4")).exit_code == 4


@pytest.mark.skipif(not ON_LINUX, reason="/proc")
async def test_idle_supervisors_keep_no_files_or_directory_open(family: Family) -> None:
    done = await family.run("cat; echo $PPID", stdin=b"")
    place = Path("/proc", done.output.strip())
    assert os.readlink(place / "cwd") == "/" and not (place / "environ").read_bytes()
    files = [os.readlink(file) for file in (place / "fd").iterdir()]
    kinds = sorted(name.partition(":")[0] for name in files)
    assert kinds == ["/dev/null"] * 3 + ["anon_inode"] + ["pipe"] * 2 + ["socket"]


# The fork server


def the_fork_server() -> int:
    """Wait until only one remains, because that of earlier tests may be ending."""
    (server,) = wait_until(lambda: len(found := fork_servers(os.getpid())) == 1 and found)
    return int(server)


async def test_commands_share_a_fork_server_that_ends_soon_after_the_last(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await family.run("true")).exit_code == 0
    assert fork_servers(os.getpid())
    monkeypatch.setattr(fork_server, "LINGER_S", 0.05)
    for _ in range(3):
        assert (await family.run("true")).exit_code == 0
    await to_thread.run_sync(wait_until, lambda: not fork_servers(os.getpid()))
    assert (await family.run("exit 2")).exit_code == 2


@pytest.mark.skipif(not ON_LINUX, reason="/proc")
async def test_fork_server_has_no_data_of_this_process_or_commands(family: Family) -> None:
    secret = {"A_SECRET": "sk-of-the-command"}
    async with create_task_group() as tasks:
        held = "echo ready; until [ -e go ]; do sleep 0.01; done"
        tasks.start_soon(partial(family.run, held, env=PLAIN | secret, stdin=b"x"))
        await family.wait_heard()
        server = the_fork_server()

        def at_rest() -> list[str]:
            """Return its open files after it has closed those of the forked supervisor."""
            with suppress(FileNotFoundError):
                files = [os.readlink(file) for file in Path(f"/proc/{server}/fd").iterdir()]
                if sum(name.startswith("socket:") for name in files) == 1:
                    return files
            return []

        files = await to_thread.run_sync(wait_until, at_rest)
        environment = environment_of(server)
        (family.folder / "go").touch()
    assert environment == b""
    kinds = sorted(name.partition(":")[0] for name in files)
    assert kinds.count("/dev/null") == 3 and kinds.count("pipe") == 2
    assert not [name for name in files if "deleted" in name]  # the orders


async def test_command_sees_the_end_of_its_input_while_others_run(
    family: Family,
) -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(family.run, "echo ready; until [ -e go ]; do sleep 0.01; done")
        await family.wait_heard()
        done = await run_bash("cat; ls /dev/fd | wc -l", cwd=family.folder, env=PLAIN, stdin=b"in ")
        (family.folder / "go").touch()
    alone = await run_bash("cat; ls /dev/fd | wc -l", cwd=family.folder, env=PLAIN, stdin=b"in ")
    assert done.output == alone.output and done.output.startswith("in ")


async def test_killed_fork_server_is_replaced(
    family: Family,
) -> None:
    done: list[Finished] = []

    async def run() -> None:
        done.append(await family.run("echo ready; until [ -e go ]; do sleep 0.01; done; exit 3"))

    async with create_task_group() as tasks:
        tasks.start_soon(run)
        await family.wait_heard()
        server = the_fork_server()
        os.kill(server, signal.SIGKILL)
        await to_thread.run_sync(wait_until, lambda: not fork_servers(os.getpid()))
        again = await run_bash("exit 4", cwd=family.folder, env=PLAIN)
        (family.folder / "go").touch()
    assert again.exit_code == 4
    assert done[0].exit_code == (3 if hasattr(os, "pidfd_open") else -signal.SIGTERM)
    family.wait_gone()


FORKED = """
import os, sys, anyio
from pathlib import Path
from nb_agents.process.command import run_bash
def run(code):
    done = anyio.run(lambda: run_bash(f"exit {code}", cwd=Path("/"), env=dict(os.environ)))
    return done.exit_code
print(run(5), flush=True)
child = os.fork()
if child == 0:
    print(run(6), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(run(7), flush=True)
"""


def test_forked_process_has_its_own_fork_server() -> None:
    assert output(FORKED).split() == ["5", "6", "7"]


# The starter


STARTER = """
import os, signal, sys, anyio
from pathlib import Path
from nb_agents.process.command import run_bash
script, folder, mode = sys.argv[1:]
folder = Path(folder)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # like an idle kernel
os.setpgrp()
def hear(text):
    if mode == "forks" and os.fork() == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    print(text, end="", flush=True)
    if mode == "interrupts":
        os.killpg(0, signal.SIGINT)
        (folder / "go").touch()
done = anyio.run(lambda: run_bash(script, cwd=folder, env=dict(os.environ), on_output=hear))
print(done.exit_code, flush=True)
"""


@pytest.mark.parametrize("mode", ["alone", "forks"])
@pytest.mark.parametrize(
    "background",
    ["\n".join(BACKGROUND.values()), "trap '' TERM; sleep 1000 &"],
    ids=["of every kind", "that ignore TERM"],
)
def test_no_process_survives_sigkill_of_its_starter(
    family: Family, background: str, mode: str
) -> None:
    # bash may print a message about the stopped job.
    script = family.script(f"exec 2>/dev/null\n{background}\necho ready; sleep 1000")
    with python(STARTER, script, family.folder, mode) as starter:
        assert line(starter) == "ready"
        assert not family.is_gone()
        starter.kill()
        family.wait_gone()


def test_interrupt_of_the_process_group_does_not_reach_a_command(family: Family) -> None:
    body = "trap 'echo hit' INT; echo ready; until [ -e go ]; do sleep 0.01; done; exit 5"
    with python(STARTER, family.script(body), family.folder, "interrupts") as starter:
        assert [line(starter), line(starter)] == ["ready", "5"]


def test_command_can_be_interrupted_if_its_starter_ignores_interrupts(
    family: Family,
) -> None:
    with python(STARTER, family.script("kill -INT $$; echo no"), family.folder, "") as starter:
        assert line(starter) == str(-signal.SIGINT)


def test_commands_run_and_stop_on_the_background_loop(family: Family) -> None:
    assert submit(family.run, "exit 6").result().exit_code == 6
    running = submit(family.run, "sleep 1000 & echo ready; sleep 1000")
    wait_until(lambda: "ready\n" in family.heard)
    running.cancel()
    family.wait_gone()


async def test_a_starter_with_a_thousand_open_files_can_run_commands(family: Family) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    copies = [os.dup(0) for _ in range(1100)]
    try:
        assert (await family.run("cat", stdin=b"in")).output == "in"
        assert (await family.run("#" * 1_000_000 + "\ncat", stdin=b"in")).output == "in"
    finally:
        for copy in copies:
            os.close(copy)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Scripts


SCRIPTS = [
    'echo "$0 $# $LINENO"',
    "exit 7",
    "cat; echo read",
    "set -e\nfalse\necho no",
    "set -euo pipefail; false | true; echo no",
    "set -u; echo $unset; echo no",
    "kill -9 $$",
    "no_such_command; echo on",
    "no_such_command",
    "echo one\nif then",
    "f() { return 4; }; f",
    "trap 'echo out' EXIT; exit 5",
    "trap 'echo err $LINENO' ERR\nfalse\ntrue",
    "cat <<'X'\na $b\nX\n",
    "ls /dev/fd | wc -l",
    "exec sh -c 'echo $0'",
    "echo 'é' \"${BASH_SOURCE[0]:-none}\"; return 3",
    "",
]


@pytest.mark.parametrize("filler", ["", "#" * 1_000_000], ids=["short", "a megabyte"])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_script_of_any_length_behaves_as_with_bash_c(
    tmp_path: Path, script: str, filler: str
) -> None:
    lines = "\n" if filler else ""
    plain = await to_thread.run_sync(
        lambda: subprocess.run(
            ["bash", "-c", lines + script],
            cwd=tmp_path,
            env=PLAIN,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    )
    done = await run_bash(filler + lines + script, cwd=tmp_path, env=PLAIN)
    assert (done.exit_code, done.output) == (plain.returncode, plain.stdout)
    assert bool(done.errors) == bool(plain.stderr)


async def test_a_long_script_reads_its_own_stdin(tmp_path: Path) -> None:
    script = "#" * 1_000_000 + "\nread -r a; cat; echo $a"
    done = await run_bash(script, cwd=tmp_path, env=PLAIN, stdin=b"1\n2\n")
    assert done.output == "2\n1\n"
