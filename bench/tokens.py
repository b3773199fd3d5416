"""Tokens per second through a team, and their cost, compared with bare streams."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, ToolCallPart, ToolCallPartDelta

from bench.clients import bare_streams, live_team
from bench.server import TOKEN_CHARS, BenchServer
from bench.table import paired_ratio, print_table, spread, verdict
from tests.kit.agents import StreamBuffer
from tests.kit.runs import Recorder
from tests.kit.sessions import Journal
from tests.kit.teams import ANSWER
from tests.kit.views import RunView

SIZES = (1, 10, 25)
REPEATS = 5
WARM_S, WINDOW_S = 1.0, 2.5
AIM = 0.7
BATCHES = (5, 40)
"""Tokens between two ticks of a run: of 50 words/s, and of a server at full speed."""
OWN_TICKS = 500
OWN_US = 10.0


class Sample(NamedTuple):
    """What a client had received by a moment."""

    at: float
    cpu_s: float
    tokens: int


class Rate(NamedTuple):
    """How a window of time went."""

    per_second: float
    cpu_s_per_1000: float


def main(server: BenchServer) -> None:
    rows = [_row(server, size) for size in SIZES]
    print_table(
        f"tokens: through the client, server at full speed, windows of {WINDOW_S} s in turn, "
        f"median of {REPEATS} (least-greatest)",
        ("agents", "tokens/s", "bare", "ratio", "aim", "", "CPU s/1000", "bare"),
        rows,
    )
    print_table(
        "tokens: our own share, from the SDK's event to the journal, "
        f"median of {REPEATS} (least-greatest)",
        ("tokens between two ticks", "CPU us/token", "aim", ""),
        [_own_row(batch) for batch in BATCHES],
    )


def _own_row(batch: int) -> list[str]:
    taken = [own_us(batch) for _ in range(REPEATS)]
    return [str(batch), spread(taken, 1), f"<= {OWN_US}", verdict(median(taken) <= OWN_US)]


def own_us(batch: int) -> float:
    """Measure what a token costs behind the SDK: buffered, masked, journalled and folded."""
    buffer = StreamBuffer("a", 1)
    buffer.add(PartStartEvent(index=0, part=ToolCallPart(ANSWER.name, '{"content": "')))
    tokens = [
        PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta=f"word{number} "))
        for number in range(batch)
    ]
    with TemporaryDirectory() as directory:
        recorder = Recorder(Journal(Path(directory) / "events.jsonl"))
        began = time.process_time()
        for _ in range(OWN_TICKS):
            for token in tokens:
                buffer.add(token)
            for event in buffer.take():
                recorder.emit(event)
        spent = time.process_time() - began
        recorder.close()
    return spent / (OWN_TICKS * batch) * 1e6


def _row(server: BenchServer, size: int) -> list[str]:
    bare: list[Rate] = []
    teams: list[Rate] = []
    for _ in range(REPEATS):
        bare.append(asyncio.run(_measure_bare(server, size)))
        teams.append(_measure_team(server, size))
    ratio = paired_ratio([t.per_second for t in teams], [b.per_second for b in bare])
    return [
        str(size),
        *(spread([rate.per_second for rate in kind], 0) for kind in (teams, bare)),
        *(f"{ratio:.2f}", f">= {AIM}", verdict(ratio >= AIM)),
        *(spread([rate.cpu_s_per_1000 for rate in kind]) for kind in (teams, bare)),
    ]


async def _measure_bare(server: BenchServer, size: int) -> Rate:
    count = 0

    def on_token() -> None:
        nonlocal count
        count += 1

    async with bare_streams(server.url, size, on_token):
        await asyncio.to_thread(server.wait_streaming, size)
        await asyncio.sleep(WARM_S)
        first = Sample(time.monotonic(), time.process_time(), count)
        await asyncio.sleep(WINDOW_S)
        return _rate(first, Sample(time.monotonic(), time.process_time(), count))


def _measure_team(server: BenchServer, size: int) -> Rate:
    samples: list[Sample] = []

    def note(view: RunView) -> None:
        tokens = sum(len(a.partial) for a in view.agents.values()) // TOKEN_CHARS
        samples.append(Sample(time.monotonic(), time.process_time(), tokens))

    with live_team(server.url, size) as run:
        server.wait_streaming(size)
        time.sleep(WARM_S)
        run.subscribe(note)
        time.sleep(WINDOW_S)
        return _rate(samples[0], samples[-1])


def _rate(first: Sample, last: Sample) -> Rate:
    tokens = last.tokens - first.tokens
    return Rate(tokens / (last.at - first.at), (last.cpu_s - first.cpu_s) / tokens * 1000)
