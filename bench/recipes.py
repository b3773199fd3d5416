"""The overhead of a recipe's steps, and the time until a stopped loop is on disk."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nb_agents
from bench.server import BenchServer
from bench.table import paired_ratio, print_table, spread
from nb_agents import RunOptions
from nb_agents.testing import ScriptedModel, Turn, scripted_team
from tests.kit.recipes import Recipe

REPEATS = 5
STEPS = (100, 1_000)
ITEMS = 100
WIDTH = 10
CALL_S = 0.05
POLL_S = 0.0005

_LOOP = """
name: bench
description: One agent step for each item.
version: 1.0.0
recursion: {{max_total_steps: {count}}}
steps:
- id: each
  foreach: "{{{{items}}}}"
  max_iterations: {count}
  parallel: {parallel}
  collect: results
  agent: a
  prompt: Look at {{{{item}}}}.
"""

COMMANDS = 50
COMMAND = "echo {{item}}"
_COMMANDS = f"""
name: bench
description: One bash step for each item.
version: 1.0.0
steps:
- id: each
  foreach: "{{{{items}}}}"
  collect: results
  type: bash
  command: {COMMAND}
"""


def main(server: BenchServer) -> None:
    _print_steps()
    _print_parallel()
    _print_commands()
    _print_stop()


def _print_steps() -> None:
    print_table(
        "recipes: agent steps of an instant model, one after the other, "
        f"median of {REPEATS} (least-greatest)",
        ("steps", "seconds", "steps per second"),
        [_steps_row(count) for count in STEPS],
    )


def _steps_row(count: int) -> list[str]:
    taken = [_loop_s(count) for _ in range(REPEATS)]
    return [str(count), spread(taken), spread([count / seconds for seconds in taken], 0)]


def _print_parallel() -> None:
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(REPEATS):
        bare.append(asyncio.run(_bare_s()))
        ours.append(_loop_s(ITEMS, parallel=WIDTH, call_s=CALL_S))
    print_table(
        f"recipes: seconds for {ITEMS} agent steps, {WIDTH} at a time, each model call {CALL_S} s, "
        f"median of {REPEATS} (least-greatest)",
        ("foreach", "plain asyncio", "ratio"),
        [[spread(ours), spread(bare), f"{paired_ratio(ours, bare):.2f}"]],
    )


async def _bare_s() -> float:
    """Seconds for the same waits with nothing around them."""
    free = asyncio.Semaphore(WIDTH)

    async def step() -> None:
        async with free:
            await asyncio.sleep(CALL_S)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(ITEMS):
            group.create_task(step())
    return time.perf_counter() - began


def _print_commands() -> None:
    """Print the cost of a bash step and of the bare command, which every recipe engine pays."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(REPEATS):
        bare.append(asyncio.run(_bare_commands_s()))
        ours.append(_commands_s())
    print_table(
        f"recipes: milliseconds a bash step (`{COMMAND}`), {COMMANDS} one after the other, "
        f"median of {REPEATS} (least-greatest)",
        ("with journal and confinement", "plain asyncio", "ratio"),
        [[_each_ms(ours), _each_ms(bare), f"{paired_ratio(ours, bare):.2f}"]],
    )


def _each_ms(seconds: list[float]) -> str:
    return spread([1000 * each / COMMANDS for each in seconds], 1)


async def _bare_commands_s() -> float:
    """Seconds for the same commands with nothing around them."""
    began = time.perf_counter()
    for number in range(COMMANDS):
        process = await asyncio.create_subprocess_shell(
            COMMAND.replace("{{item}}", str(number)),
            executable="/bin/bash",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert output == f"{number}\n".encode()
    return time.perf_counter() - began


def _commands_s() -> float:
    """Seconds from the start of a loop of bash steps to its end on disk."""
    with TemporaryDirectory() as root:
        began = time.perf_counter()
        run = nb_agents.start(
            recipe=Recipe.from_text(_COMMANDS, "bench.yaml"),
            context={"items": list(range(COMMANDS))},
            options=RunOptions(session_root=Path(root)),
        )
        run.wait()
        taken = time.perf_counter() - began
    assert run.result == {"results": list(range(COMMANDS))}, run.result
    return taken


def _print_stop() -> None:
    done, on_disk = zip(*(_stop() for _ in range(REPEATS)), strict=True)
    print_table(
        f"recipes: an immediate stop in the middle of that foreach, median of {REPEATS} "
        "(least-greatest)",
        ("steps done", "seconds until the turn is on disk"),
        [[spread(done, 0), spread(on_disk)]],
    )


def _stop() -> tuple[int, float]:
    """Stop when half of the steps are done: how many were, and seconds until it is on disk."""
    with TemporaryDirectory() as root:
        run = _start(root, ITEMS, WIDTH, CALL_S)
        while _steps_done(run) < ITEMS // 2:
            time.sleep(POLL_S)
        began = time.perf_counter()
        run.stop(now=True)
        while _status_on_disk(run) != "cancelled":
            time.sleep(POLL_S)
        on_disk = time.perf_counter() - began
        run.wait(raise_on_stop=False)
        return _steps_done(run), on_disk


def _steps_done(run: nb_agents.Run) -> int:
    return sum(step.unit == "agent" and step.status == "ok" for step in run.view.steps.values())


def _status_on_disk(run: nb_agents.Run) -> str:
    """Read the turn's status from the file that is written after the journal's last line."""
    status: str = json.loads((run.path / "metadata.json").read_bytes())["run_status"]
    return status


def _loop_s(count: int, parallel: int | None = None, call_s: float = 0.0) -> float:
    """Seconds from the start of a loop to its end on disk."""
    with TemporaryDirectory() as root:
        began = time.perf_counter()
        run = _start(root, count, parallel, call_s)
        run.wait()
        taken = time.perf_counter() - began
        done = _steps_done(run)
        assert done == count, f"{done} of {count} steps were done"
        return taken


def _start(root: str, count: int, parallel: int | None, call_s: float) -> nb_agents.Run:
    text = _LOOP.format(count=count, parallel=parallel or "false")
    return nb_agents.start(
        recipe=Recipe.from_text(text, "bench.yaml"),
        context={"items": list(range(count))},
        config=scripted_team(a=ScriptedModel(Turn(text="done", delay_s=call_s))),
        options=RunOptions(session_root=Path(root)),
    )
