"""Compares the time of replays with that of runs whose models reply at a real pace.

``python -m tests.replays.pace [TURNS]`` records turns of one to four agents. Their models take half
a second to the first token and stream 60 tokens a second, 20 to 200 in a reply.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from nb_agents import RunOptions
from tests.cli.calls import call_here
from tests.kit.replays import start_replay
from tests.model_server import ModelServer, Reply, Request
from tests.replays.kinds import Arena, RandomModel, complete

FIRST_TOKEN_S, TOKENS_PER_S = 0.5, 60


class PacedModel(RandomModel):
    """Replies like `RandomModel`, at the pace of a real model."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._lengths = random.Random(seed)

    def __call__(self, request: Request) -> Reply:
        """Return the reply to a request."""
        text = " ".join(["word"] * self._lengths.randrange(20, 200))
        return replace(
            super().__call__(request),
            text=text,
            first_token_delay_s=FIRST_TOKEN_S,
            words_per_second=TOKENS_PER_S,
        )


def measure(server: ModelServer, root: Path, seed: int) -> tuple[float, float, int]:
    """Return the seconds of a run and of its replay, and the number of requests."""
    arena = Arena(server, root / "recorded", seed)
    server.default = PacedModel(seed)
    began = time.monotonic()
    run = complete(arena)
    run.wait(raise_on_stop=False)
    first_s, path = time.monotonic() - began, root / f"{seed}.nbar"
    call_here("record", str(run.path), "-o", str(path))
    began = time.monotonic()
    replayed = start_replay(path, options=RunOptions(session_root=root / "replays"))
    replayed.run.wait(raise_on_stop=False)
    assert not replayed.difference
    return first_s, time.monotonic() - began, replayed.requests


def main(turns: int = 10) -> None:
    """Measure turns and print the times."""
    shares = []
    with ModelServer() as server, tempfile.TemporaryDirectory() as root:
        for seed in range(turns):
            first_s, replay_s, requests = measure(server, Path(root), seed)
            shares.append(replay_s / first_s)
            print(
                f"{requests:3} requests, {first_s:6.2f} s, replay {replay_s:.3f} s, "
                f"{shares[-1]:.1%}",
                flush=True,
            )
    print(
        f"{turns} turns: median {statistics.median(shares):.1%}, at most {max(shares):.1%} "
        "of the first run's time"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
