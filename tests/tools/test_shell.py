"""The shell tool: the result reports how a command ended, and all output is saved."""

import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest
from anyio import create_task_group, to_thread

from nb_agents.tools.shell import MAX_SHOWN_CHARS, Shell
from tests.kit.runs import AgentStopped, CancellationStatus, CancelToken, bind
from tests.kit.secrets import Mask, Secret
from tests.model_server import wait_until
from tests.processes import children, line, python, supervisors
from tests.tools.sandboxes import Place, both, place
from tests.tools.test_process import LIMIT_S, Family

__all__ = ["place"]


@pytest.fixture
def family(place: Place) -> Iterator[Family]:
    made = Family(place.workspace)
    yield made
    made.close()


async def run(place: Place, command: str, **options: float) -> str:
    return await Shell(place.sandbox(), **options).run_command(command)


async def wait_heard(place: Place, text: str = "ready\n") -> None:
    await to_thread.run_sync(wait_until, lambda: text in place.heard)


@both
async def test_command_runs_in_the_workspace_and_reports_its_exit_code(place: Place) -> None:
    assert bool(place.sandbox().confinement.program) is place.is_sandboxed
    assert await run(place, "pwd; exit 3") == f"{place.workspace}\n[exit code 3]"
    assert await run(place, "printf x > made; cat made") == "x\n[exit code 0]"
    assert await run(place, "kill -9 $$") == "[exit code 137]"
    assert await run(place, "true") == "[exit code 0]"
    assert await run(place, "yes | true; echo ${PIPESTATUS[0]}") == "141\n[exit code 0]"


@both
async def test_stdout_and_stderr_are_in_order_and_reach_the_panel(place: Place) -> None:
    said = await run(place, "for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    assert said == "o1\ne1\no2\ne2\no3\ne3\n[exit code 0]"
    assert place.heard == "o1\ne1\no2\ne2\no3\ne3\n"


async def test_output_reaches_the_panel_while_the_command_runs(place: Place) -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(run, place, "echo ready; until [ -e go ]; do sleep 0.01; done; echo end")
        await wait_heard(place)
        assert "end" not in place.heard
        (place.workspace / "go").touch()
    assert place.heard == "ready\nend\n"


async def test_saved_output_contains_no_key(place: Place) -> None:
    mask = Mask([Secret("sk-1f9Qz7LmX02p", ("api_key",)), Secret("x", ("api_key",))])
    shell = Shell(place.sandbox(replace(place.context, mask=mask)))
    said = await shell.run_command("echo its sk-1f9Qz7LmX02p, and xx")
    assert said.startswith("its sk-1f9Qz7LmX02p, and xx")  # only in the file
    (kept,) = place.kept()
    assert kept.read_text() == "its [key], and xx\n"


@both
async def test_long_output_is_saved_whole_and_the_model_gets_start_and_end(place: Place) -> None:
    shell = Shell(place.sandbox())
    said = await shell.run_command("seq 100000; exit 4")
    (kept,) = place.kept()
    whole = kept.read_text()
    assert whole == "".join(f"{number}\n" for number in range(1, 100_001))
    assert len(said) < MAX_SHOWN_CHARS + 500
    assert said.startswith("1\n2\n") and said.endswith("\n99999\n100000\n[exit code 4]")
    # The shown end starts with a whole line.
    [left_out] = re.findall(
        rf"\[… (\d+) characters omitted; the full output is in {kept}\]\n", said
    )
    assert 0 <= int(left_out) - (len(whole) - MAX_SHOWN_CHARS) < 10
    # The model can read the file at the reported path.
    assert (await shell.run_command(f"sed -n 50000p {kept}")).startswith("50000\n")


async def test_each_output_has_its_own_file_with_a_safe_name(place: Place) -> None:
    async with create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(run, place, f"echo {number}")
    await run(place, "true")
    names = [path.relative_to(place.context.kept).as_posix() for path in place.kept()]
    assert names == [f"a_b_0_/command_{number}.txt" for number in range(1, 6)]
    assert sorted(path.read_text() for path in place.kept()) == [f"{n}\n" for n in range(5)]


async def test_output_that_cannot_be_saved_is_still_shown(place: Place) -> None:
    place.context.kept.write_text("in the way")
    assert await run(place, "echo x") == "x\n[exit code 0]"
    assert "the full output could not be saved: Not a directory" in await run(place, "seq 100000")


@both
async def test_hostile_output_becomes_limited_text(place: Place) -> None:
    binary = await run(place, r"printf 'a\0\xff\x1b[31mred\x1b[0m\n'")
    assert binary == "a\0\ufffdred\n[exit code 0]"
    for endless in ("yes", "tr '\\0' x </dev/zero", "cat /dev/urandom"):
        said = await run(place, endless, timeout_s=0.3)
        assert len(said) < MAX_SHOWN_CHARS + 500
        assert said.splitlines()[-1] == "[timed out after 0.3 s; all its processes were ended]"


@both
async def test_timeout_is_reported_with_the_output(place: Place, family: Family) -> None:
    said = await run(
        place, family.script("echo so far; sleep 1000 & sleep 1000"), timeout_s=LIMIT_S
    )
    assert said == "so far\n[timed out after 2 s; all its processes were ended]"
    assert family.is_gone()


async def test_model_can_only_shorten_the_time_limit(place: Place) -> None:
    shell = Shell(place.sandbox(), timeout_s=0.4)
    assert "timed out after 0.2 s" in await shell.run_command("sleep 1000", timeout_s=0.2)
    assert "timed out after 0.4 s" in await shell.run_command("sleep 1000", timeout_s=1000)
    assert "timed out after 0.4 s" in await shell.run_command("sleep 1000", timeout_s=float("inf"))


@both
async def test_immediate_stop_terminates_all_processes_and_saves_the_output(
    place: Place, family: Family
) -> None:
    tidy = "trap 'sleep 0.3; echo bye; exit' TERM; echo ready; sleep 1000 & wait"
    async with create_task_group() as tasks:
        tasks.start_soon(run, place, family.script(f"(setsid sleep 1000 &)\n{tidy}"))
        await wait_heard(place)
        assert not family.is_gone()
        tasks.cancel_scope.cancel()
    assert family.is_gone()
    assert place.heard == "ready\nbye\n"
    assert [path.read_text() for path in place.kept()] == ["ready\nbye\n"]


@both
async def test_a_command_that_ignores_a_stop_is_killed(place: Place, family: Family) -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(run, place, family.script("trap '' TERM; echo ready; sleep 1000"))
        await wait_heard(place)
        tasks.cancel_scope.cancel()
    assert family.is_gone()


@both
async def test_child_processes_end_with_the_command(place: Place, family: Family) -> None:
    said = await run(place, family.script("sleep 1000 & (setsid sleep 1000 &); echo done"))
    assert said == "done\n[exit code 0]"
    assert family.is_gone()


@both
async def test_no_process_survives_its_supervisor(place: Place, family: Family) -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(run, place, family.script("sleep 1000 & echo ready; sleep 1000"))
        await wait_heard(place)
        (supervisor,) = filter(children, supervisors())
        os.kill(supervisor, signal.SIGKILL)
    family.wait_gone()


STARTER = """
import sys, anyio
from pathlib import Path
from nb_agents.config.tools import ToolKeys
from nb_agents.tools.base import ToolContext
from nb_agents.tools.sandbox import Sandbox
from nb_agents.tools.shell import Shell
folder, mode, command = sys.argv[1:]
root = Path(folder)
tell = lambda text: print(text, end="", flush=True)
context = ToolContext("a", root, [], root, root / "kept", [], tell)
box = Sandbox(context, ToolKeys(sandbox=mode == "True"))
anyio.run(Shell(box).run_command, command)
"""


@both
def test_command_ends_with_the_kernel(place: Place, family: Family) -> None:
    command = family.script("trap '' TERM; (setsid sleep 1000 &); echo ready; sleep 1000")
    with python(STARTER, place.workspace, place.is_sandboxed, command) as starter:
        assert line(starter) == "ready"
        assert not family.is_gone()
        starter.kill()
        family.wait_gone()


@both
async def test_secrets_are_not_in_its_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    monkeypatch.setenv("INNOCENT", "sk-1")
    assert "sk-" not in await run(place, "env; cat /proc/self/environ; cat /proc/1/environ")


@both
async def test_exceeded_limit_is_reported_and_the_next_command_runs(place: Place) -> None:
    shell = Shell(place.sandbox(limits={"processes": 20, "file_size_mb": 1}))
    many = "echo begun; for n in {1..60}; do sleep 1000 & done; wait"
    assert await shell.run_command(many) == (
        "begun\n[stopped because it had more than 20 processes and threads (its limit "
        "`processes`); all its processes were ended]"
    )
    assert await shell.run_command("exec head -c 2000000 /dev/zero >large") == (
        "[exit code 153: more than 1 MB in one file (its limit `file_size_mb`)]"
    )
    assert await shell.run_command("echo fine") == "fine\n[exit code 0]"


@pytest.mark.parametrize(
    "command, options, complaint",
    [
        ("echo \0", {}, "the command contains a NUL character"),
        ("echo \ud800", {}, "the command contains a lone surrogate"),
        ("#" * 100_001, {}, "the command has 100001 bytes; the limit is 100000"),
        ("true", {"timeout_s": 0}, "timeout_s is 0. It must be greater than 0"),
        ("true", {"timeout_s": float("nan")}, "timeout_s is nan"),
    ],
)
async def test_invalid_command_is_reported_to_the_model(
    place: Place, command: str, options: dict[str, float], complaint: str
) -> None:
    (tool,) = Shell(place.sandbox()).tools()
    result = await tool.call({"command": command} | options)
    assert result.is_error and complaint in result


async def test_run_command_has_its_schema(place: Place) -> None:
    (tool,) = Shell(place.sandbox()).tools()
    assert tool.name == "run_command"
    assert tool.definition.parameters_json_schema["required"] == ["command"]
    assert (await tool.call('{"command": "echo é"}')) == "é\n[exit code 0]"


async def test_a_stop_before_the_call_starts_nothing(place: Place) -> None:
    token = CancelToken("test")
    token.request(CancellationStatus.REQUESTED, "api")
    (tool,) = Shell(place.sandbox()).tools()
    with bind(token), pytest.raises(AgentStopped):
        await tool.call({"command": "touch made"})
    assert not (place.workspace / "made").exists()


async def test_commands_run_concurrently(place: Place) -> None:
    shell = Shell(place.sandbox())
    first = "touch one; until [ -e two ]; do sleep 0.01; done"
    second = "touch two; until [ -e one ]; do sleep 0.01; done"
    async with create_task_group() as tasks:
        for command in (first, second):
            tasks.start_soon(partial(shell.run_command, command))


async def test_lack_of_file_descriptors_is_reported(place: Place) -> None:
    [tool] = Shell(place.sandbox()).tools()
    said = [str(await tool.call({"command": "echo so"}))]  # load lazy imports before the limit
    for left in range(16):
        with descriptors_left(left):
            said.append(str(await tool.call({"command": "echo so"})))
    assert said[0] == said[-1] == "so\n[exit code 0]"
    failed = {each for each in said if not each.startswith("so")}

    assert failed and all("Too many open files" in each for each in failed), failed


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Limit the number of files that this process can open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    taken = list[int]()
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
