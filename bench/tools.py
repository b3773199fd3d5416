"""The cost of a tool call, from the model's reply to the journal, and of the shared data store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nb_agents
from bench.server import BenchServer
from bench.table import paired_ratio, print_table, spread
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.sessions import read_journal
from tests.kit.teams import TeamSpec
from tests.kit.tools import DataStore

REPEATS = 5
CALLS = (100, 1_000)
CALLS_EACH = 100
"""Of one reply, which has a limit."""
WRITERS = 20
WRITES = 1_000
_WRITES_EACH = WRITES // WRITERS


@nb_agents.tool
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def main(server: BenchServer) -> None:
    _print_calls()
    _print_writes()


def _print_calls() -> None:
    print_table(
        f"tools: calls per second of a plain function, {CALLS_EACH} asked for by each reply, "
        f"median of {REPEATS} (least-greatest)",
        ("calls", "through checkpoint and journal", "ms per call", "bare"),
        [_calls_row(count) for count in CALLS],
    )


def _calls_row(count: int) -> list[str]:
    ours = [_calls_s(count) for _ in range(REPEATS)]
    bare = [_bare_calls_s(count) for _ in range(REPEATS)]
    return [
        str(count),
        spread([count / seconds for seconds in ours], 0),
        spread([seconds / count * 1000 for seconds in ours], 2),
        spread([count / seconds for seconds in bare], 0),
    ]


def _calls_s(count: int) -> float:
    """Seconds in which one agent's calls ran, without the model's time."""
    calls = [Call("add", {"left": n, "right": 1}) for n in range(count)]
    replies = [tuple(calls[at : at + CALLS_EACH]) for at in range(0, count, CALLS_EACH)]
    with TemporaryDirectory() as root:
        model = ScriptedModel(*(Turn(calls=each) for each in replies), Answer("added"))
        run = nb_agents.start(
            "Add.", _team([model]), options=RunOptions(session_root=root), tools=[add]
        )
        run.wait()
        return _span_s(run, count, CALLS_EACH)


def _bare_calls_s(count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        add(number, 1)
    return time.perf_counter() - began


def _print_writes() -> None:
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(REPEATS):
        bare.append(_bare_writes_s())
        ours.append(_writes_s())
    print_table(
        f"tools: seconds for {WRITES} writes of the data store, {WRITERS} at a time, "
        f"median of {REPEATS} (least-greatest)",
        ("agents calling data_set", "threads with a DataStore", "ratio"),
        [[spread(ours), spread(bare), f"{paired_ratio(ours, bare):.2f}"]],
    )


def _writes_s() -> float:
    """Seconds in which so many agents wrote, without their models' time."""
    with TemporaryDirectory() as root:
        models = [ScriptedModel(_writing(number), Answer("set")) for number in range(WRITERS)]
        run = nb_agents.start(
            "Write.", _team(models, data_store=True), options=RunOptions(session_root=root)
        )
        run.wait()
        return _span_s(run, WRITES, WRITES)


def _writing(writer: int) -> Turn:
    keys = [f"{writer}/{number}" for number in range(_WRITES_EACH)]
    return Turn(calls=tuple(Call("data_set", {"key": key, "value": key}) for key in keys))


def _bare_writes_s() -> float:
    with TemporaryDirectory() as root, ThreadPoolExecutor(WRITERS) as threads:
        store = DataStore(Path(root, "data.sqlite"))

        def write(writer: int) -> None:
            for number in range(_WRITES_EACH):
                store.set(f"{writer}/{number}", f"{writer}/{number}")

        began = time.perf_counter()
        list(threads.map(write, range(WRITERS)))
        return time.perf_counter() - began


def _team(models: Sequence[ScriptedModel], **keys: Any) -> TeamSpec:
    """Make a team that is done as soon as all have answered."""
    agents = [
        {"id": f"a{number}", "backend": {"type": "python", "instance": model, **keys}}
        for number, model in enumerate(models)
    ]
    rules = {"skip_voting": True, "skip_final_presentation": True}
    return TeamSpec.model_validate({"agents": agents, "orchestrator": rules})


def _span_s(run: nb_agents.Run, count: int, each: int) -> float:
    """Seconds in which calls ran, as journalled.

    Args:
        run: It is over.
        count: The calls that there were.
        each: How many of them began together; the next ones begin when these have ended.
    """
    found = read_journal(run.path / "events.jsonl").events
    began = [event.at for event in found if isinstance(event, ev.ToolStarted)]
    ended = [event.at for event in found if isinstance(event, ev.ToolFinished)]
    is_ok = all(e.outcome == "ok" for e in found if isinstance(e, ev.ToolFinished))
    assert is_ok and len(ended) == count, f"{len(ended)} of {count} calls ended, all ok: {is_ok}"
    batches = [slice(at, at + each) for at in range(0, count, each)]
    return sum(max(ended[batch]) - min(began[batch]) for batch in batches)
