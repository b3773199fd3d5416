"""How far streams exceed a token budget, by what the server has sent.

25 agents stream at the same time until the budget stops the run. A chunk of the server is a
token. Prompts count as in the receipt, because many providers report them only at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nb_agents
from bench.server import BenchServer
from bench.table import print_table, spread
from nb_agents import RunOptions
from tests.kit.teams import TeamSpec

STREAMS = 25
BUDGET = 30_000
PACE = 20.0
"""Tokens per second of each stream."""

REPEATS = 1
PROMPT_TOKENS = 600
FORMATS = {"openai": "chat", "responses": "responses", "claude": "anthropic", "gemini": "google"}


def main(server: BenchServer) -> None:
    """Print the overspending of each wire format."""
    server.set_endless(PACE, PROMPT_TOKENS)
    rows = []
    for kind, name in FORMATS.items():
        played = [_play(server, kind) for _ in range(REPEATS)]
        sent, counted = ([100 * (each[n] - BUDGET) / BUDGET for each in played] for n in (0, 1))
        rows.append([name, spread(sent, 2), spread(counted, 2)])
    title = f"{STREAMS} streams and a budget of {BUDGET:,} tokens: exceeded by, in %"
    print_table(title, ("wire format", "sent by the server", "in the receipt"), rows)


def _play(server: BenchServer, kind: str) -> tuple[int, int]:
    """Return the tokens that the server has sent, with prompts, and those in the receipt."""
    before = server.chunks_sent()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        options = RunOptions(session_root=Path(root), max_tokens=BUDGET)
        run = nb_agents.start("Write at length.", config=_team(server, kind), options=options)
        run.wait(raise_on_stop=False)
        assert run.receipt.source == "budget", run.receipt
        prompts = sum(each.input_tokens for each in run.view.agents.values())
        server.last_close()
        sent = server.chunks_sent() - before
        return prompts + sent, run.view.tokens


def _team(server: BenchServer, kind: str) -> TeamSpec:
    backend: dict[str, Any] = {"type": kind, "model": "bench", "base_url": server.url}
    if kind == "responses":
        backend |= {"type": "openai", "api": "responses"}
    if kind in ("claude", "gemini"):
        backend["base_url"] = server.url.removesuffix("/v1")
    backend["api_key"] = "k"
    agents = [{"id": f"a{n:02}", "backend": backend} for n in range(STREAMS)]
    return TeamSpec.model_validate({"agents": agents, "cancel": {"grace_timeout": 5}})
