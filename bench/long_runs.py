"""Runs of ten times the context window, at a stub that checks each request.

    python -m bench.long_runs [runs] [first] [window]

Teams, sub-agents and recipes in all four wire formats. The stub checks the window, the order of
messages, signed thoughts, the system message and the task. A shorter run of each kind is also
rewound to before each of its folds.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

from bench.table import print_machine, print_table
from tests.long_runs import FORMATS, SHAPES, TIMES, WINDOW, play, rewind_faults
from tests.model_server import ModelServer

RUNS = 300
AT_A_TIME = 3
REWOUND_TIMES = 3
"""How many windows long the rewound runs are."""


class Result(NamedTuple):
    """The result of one run."""

    shape: str
    kind: str
    folds: int
    summaries: int
    requests: int
    reads: int
    refused: int
    rewinds: int
    tokens: Counter[str]
    faults: list[str]


def main(runs: int = RUNS, first: int = 0, window: int = WINDOW) -> int:
    """Play the runs, print the figures, and return how many runs had a fault.

    Args:
        runs: The number of runs.
        first: The number of the first one, to share the work among processes.
        window: The number of tokens that the models accept.
    """
    print_machine()
    kinds = list(product(SHAPES, FORMATS))
    todo = [(*kinds[n % len(kinds)], n // len(kinds)) for n in range(first, first + runs)]
    results: list[Result] = []
    with ModelServer() as server, ThreadPoolExecutor(AT_A_TIME) as pool:
        played = pool.map(lambda work: _result(server, window, *work), todo)
        for number, result in enumerate(played, 1):
            results.append(result)
            for fault in result.faults[:5]:
                print(f"{result.shape} {result.kind}: {fault}", flush=True)
            if number % len(kinds) == 0:
                _print(results, window)
    if len(results) % len(kinds):
        _print(results, window)
    return sum(bool(result.faults) for result in results)


def _result(server: ModelServer, window: int, shape: str, kind: str, seed: int) -> Result:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        played = play(server, Path(root), shape, kind, seed, window=window)
        model, folds = played.model, played.folds
        faults = played.faults
        rewinds = 0
        if not seed and window == WINDOW:
            rewound = play(server, Path(root), shape, kind, 10_000, REWOUND_TIMES)
            faults += rewind_faults(server, rewound)
            rewinds = len(rewound.folds) + 1
        reads = sum(
            event.kind == "tool_started" and event.tool == "read_back" for event in played.events
        )
        counts = len(folds), len(model.summaries), len(model.requests), reads, len(model.refused)
        return Result(shape, kind, *counts, rewinds, model.tokens, faults)


def _print(results: list[Result], window: int) -> None:
    rows = [[*_row(f"{shape}, {FORMATS[kind]}", each)] for shape, kind, each in _by_kind(results)]
    head = ("runs", "number", "faults", "requests", "folds", "summaries", "read_back", "refused")
    title = f"long runs: {TIMES} times a window of {window:,} tokens"
    head = (*head, "rewinds", "of summaries", "of refusals", "overhead")
    print_table(title, head, [*rows, [*_row("all", results)]])


def _by_kind(results: list[Result]) -> Iterator[tuple[str, str, list[Result]]]:
    for shape, kind in product(SHAPES, FORMATS):
        if some := [each for each in results if (each.shape, each.kind) == (shape, kind)]:
            yield shape, kind, some


def _row(name: str, results: list[Result]) -> Iterator[str]:
    yield name
    yield str(len(results))
    yield str(sum(bool(each.faults) for each in results))
    for field in ("requests", "folds", "summaries", "reads", "refused", "rewinds"):
        yield str(sum(getattr(each, field) for each in results))
    tokens = sum((each.tokens for each in results), Counter[str]())
    for kinds in (("summaries",), ("refused",), ("summaries", "refused")):
        yield f"{100 * sum(tokens[each] for each in kinds) / tokens.total():.1f} %"


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
