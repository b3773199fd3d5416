"""Resource limits: a command that exceeds one is refused the resource or ended, for any user."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import anyio
import pytest
from filelock import FileLock

from tests.kit.processes import Finished, run_command
from tests.kit.tools import CommandLimits
from tests.team_kit import WAIT_S
from tests.tools.sandboxes import User, needs_sandbox, user
from tests.tools.test_process import PLAIN

__all__ = ["user"]

# Doubles at most eleven times, in case it is not ended.
BOMB = 'bomb() { [ "$1" -gt 11 ] && sleep 1000; bomb $(($1+1)) & bomb $(($1+1)) & wait; }; bomb 1'
HOLD = "hold() { x=$(head -c $1000000 /dev/zero | tr '\\0' x); echo held; sleep $2; }; "
NAMES = "for number in 1 2 3 4 5 6; do"

ENDED = [
    pytest.param(BOMB, {"processes": 150}, "processes", id="a fork bomb"),
    pytest.param(
        f"{BOMB.replace('bomb 1', '(setsid bash -c true); bomb 1')}",
        {"processes": 150},
        "processes",
        id="a fork bomb after a session of its own",
    ),
    pytest.param(
        f"{HOLD} {NAMES} hold 60 1000 & done; wait", {"memory_mb": 250}, "memory_mb", id="memory"
    ),
    pytest.param(
        f"{NAMES} head -c 4000000 /dev/zero >$number; sleep 0.5; done; sleep 1000",
        {"workspace_mb": 10},
        "workspace_mb",
        id="files in the workspace",
    ),
]
REFUSED = [
    pytest.param(
        "dd if=/dev/zero of=/dev/null bs=200M count=1",
        {"memory_mb": 100},
        "memory exhausted",
        id="memory",
    ),
    pytest.param("ulimit -Sn; ulimit -Hn", {"open_files": 20}, "20\n20", id="open files"),
    pytest.param(
        "head -c 3000000 /dev/zero >x; stat -c %s x", {"file_size_mb": 1}, "1000000", id="a file"
    ),
    pytest.param("ulimit -Sc; ulimit -Hc", {}, "0\n0", id="a dump of its memory"),
]


class Runner:
    """Runs scripts as a user, confined or not."""

    def __init__(self, user: User, confined: bool) -> None:
        self._user = user
        self._command = user.command if confined else user.plain_command

    async def __call__(self, script: str, **limits: int) -> Finished:
        return await run_command(
            self._command(script),
            cwd=self._user.workspace,
            env=PLAIN,
            timeout_s=WAIT_S,
            limits=CommandLimits(**limits),
        )


@pytest.fixture(params=[pytest.param(True, marks=needs_sandbox, id="sandboxed"), False])
def run(user: User, request: pytest.FixtureRequest) -> Runner:
    return Runner(user, request.param)


@pytest.mark.parametrize("script, limits, name", ENDED)
async def test_command_over_a_limit_is_ended_and_the_limit_reported(
    run: Runner, script: str, limits: dict[str, int], name: str
) -> None:
    done = await run(script, **limits)
    assert (done.outcome, done.limit, done.exit_code) == ("over a limit", name, None), done


@pytest.mark.parametrize("script, limits, told", REFUSED)
async def test_single_process_cannot_exceed_a_limit(
    run: Runner, script: str, limits: dict[str, int], told: str
) -> None:
    done = await run(script, **limits)
    assert done.outcome == "finished"
    assert told in done.output + done.errors


# KEYCTL_READ: how many bytes its session keyring holds.
HELD = "perl -e 'print syscall(250, 11, -3, 0, 0)'"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the system call's number is another")
async def test_command_has_its_own_empty_session_keyring(
    user: User,
) -> None:
    key = b"user", b"nb_agents_test", b"a ticket", 8, -3
    number = ctypes.CDLL(None).syscall(248, *key)  # add_key, to this process's session
    try:
        done = await run_command(
            user.plain_command(HELD),
            cwd=user.workspace,
            env=PLAIN,
            timeout_s=WAIT_S,
            limits=CommandLimits(),
        )
    finally:
        ctypes.CDLL(None).syscall(250, 9, number, -3)  # unlink
    assert done.output == "0"


async def test_memory_shared_by_forked_processes_counts_once(run: Runner) -> None:
    fork = "for n in 1 2 3 4 5 6; do (sleep 1; :) & done; wait"
    done = await run(f"{HOLD} hold 60 0; {fork}; echo ${{#x}}", memory_mb=200)
    assert (done.limit, done.output) == ("", "held\n60000000\n"), done


@pytest.fixture
def large(user: User) -> Iterator[None]:
    """Create a file of 300 MB in the workspace; only one test at a time may do so.

    The limit is measured by the disk's free space, which other processes change too.
    """
    place = user.workspace / "large"
    with FileLock(Path(gettempdir()) / "nb-agents-large-file.lock"):
        with open(place, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 300_000_000)
        os.chown(place, user.number, -1)
        yield


@pytest.mark.usefixtures("large")
async def test_files_can_be_deleted_in_a_workspace_over_its_limit(run: Runner) -> None:
    script = "head -c 4000000 /dev/zero >more; sleep 0.6; rm large more; sleep 0.6; echo end"
    done = await run(script, workspace_mb=10)
    assert done.output == "end\n"


async def test_users_own_command_has_no_limits(tmp_path: Path) -> None:
    done = await run_command(["bash", "-c", "ulimit -n"], cwd=tmp_path, env=PLAIN)
    plain = await anyio.run_process(["bash", "-c", "ulimit -n"])
    assert done.output == plain.stdout.decode()
