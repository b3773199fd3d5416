"""What folding a conversation costs, and that it costs nothing per token."""

from __future__ import annotations

import time
from statistics import median

import anyio
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from bench.server import BenchServer
from bench.table import print_table, spread, verdict
from bench.tokens import OWN_US, own_us
from tests.kit.agents import ContextFolder, Folding, History, Summary
from tests.kit.teams import ContextSpec

SIZE = 1_000_000
REPLIES = 100
REPEATS = 9
AIM_MS = 50.0
BATCH = 40


class _Toolbox:
    definitions = ()


class _Round:
    agent = "a"
    toolbox = _Toolbox()

    def __init__(self, fold_request: str | None) -> None:
        self.fold_request = fold_request

    def emit(self, event: object) -> None:
        """Ignore the event."""


def main(server: BenchServer) -> None:
    rows = [_row(kind) for kind in ("results", "summary")]
    rows.append(_asking())
    print_table(
        f"context: a conversation of {SIZE / 1e6:g} MB with {REPLIES} tool calls, "
        f"median of {REPEATS} (least-greatest)",
        ("work", "CPU ms", "aim", ""),
        rows,
    )
    taken = [own_us(BATCH) for _ in range(5)]
    print_table(
        "context: each token, which no fold affects",
        ("tokens between two ticks", "CPU us/token", "aim", ""),
        [[str(BATCH), spread(taken, 1), f"<= {OWN_US}", verdict(median(taken) <= OWN_US)]],
    )


def _row(kind: str) -> list[str]:
    taken = [_measure(kind) for _ in range(REPEATS)]
    return [f"fold: {kind}", spread(taken, 1), f"<= {AIM_MS:g}", verdict(median(taken) <= AIM_MS)]


def _asking() -> list[str]:
    """Measure what the check before each request costs while nothing is folded."""
    taken = [_measure("none") for _ in range(REPEATS)]
    return ["no fold is needed", spread(taken, 1), "", ""]


def _measure(kind: str) -> float:
    history = _history()
    window = 10 * SIZE if kind == "none" else SIZE // 4
    spec = ContextSpec(fold="results" if kind == "results" else "summary", fold_at=0.8)
    round = _Round("" if kind == "summary" else None)
    folder = ContextFolder(Folding(spec, window), round, _summarize)  # type: ignore[arg-type]
    began = time.process_time()
    anyio.run(folder.fold_if_needed, history)
    history.shown()
    spent = time.process_time() - began
    assert history.is_folded == (kind != "none")
    return 1000 * (spent - _empty())


def _empty() -> float:
    """Return the time that starting a loop takes."""
    began = time.process_time()
    anyio.run(_nothing)
    return time.process_time() - began


async def _nothing() -> None:
    pass


async def _summarize(other: object, messages: object) -> Summary:
    return Summary("A summary.")


def _history() -> History:
    history = History([ModelRequest.user_text_prompt("Read all.")])
    text = "naïve words " * (SIZE // REPLIES // 13)
    for n in range(REPLIES):
        reply = ModelResponse([ToolCallPart("read_file", {"path": f"{n}.md"}, f"c{n}")])
        result = ToolReturnPart("read_file", text, f"c{n}")
        history.add([reply, ModelRequest([result])], [])
    return history
