"""The time from an immediate stop of a tree of agents until all of it has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import nb_agents
from bench.server import BenchServer
from bench.table import print_table, spread
from nb_agents import RunOptions
from nb_agents.testing import Call, ScriptedModel, Turn
from tests.agents.test_tree import LEAF, ROOT, Tree, even, node_of, sharing
from tests.kit.agents import subagents
from tests.kit.runs import Run
from tests.kit.teams import TeamSpec

AGENTS = 200
FAN = 3
REPEATS = 5
WORDS_PER_SECOND = 20


class Silent(NamedTuple):
    """Seconds from the stop of a tree."""

    to_closed: float
    to_disk: float
    to_over: float


def main(server: BenchServer) -> None:
    server.set_pace(WORDS_PER_SECOND)
    tree = even(FAN, AGENTS)
    silent = [_stop(server, tree) for _ in range(REPEATS)]
    columns = (spread([getattr(s, name) for s in silent]) for name in Silent._fields)
    print_table(
        f"tree: seconds from an immediate stop of the root, {FAN} agents below each, leaves' "
        f"streams of {WORDS_PER_SECOND} words/s, median of {REPEATS} (least-greatest)",
        ("agents", "streams", "all closed", "on disk", "run over"),
        [[str(AGENTS), str(len(tree.leaves)), *columns]],
    )


def _stop(server: BenchServer, tree: Tree) -> Silent:
    with _live_tree(server.url, tree) as run:
        server.wait_streaming(len(tree.leaves))
        asked, asked_ns = time.monotonic(), time.time_ns()
        run.stop(now=True, agent=ROOT)
        run.wait(raise_on_stop=False)
        over = time.monotonic() - asked
        file = run.path / "metadata.json"
        assert json.loads(file.read_text())["run_status"] == "cancelled"
        assert [a.outcome for a in run.view.agents.values()] == ["killed"] * AGENTS
        # A rename changes the ctime: that moment is when readers see the new file.
        on_disk = (file.stat().st_ctime_ns - asked_ns) / 1e9
        return Silent(server.last_close() - asked, on_disk, over)


@contextmanager
def _live_tree(url: str, tree: Tree) -> Iterator[Run]:
    """Give a run in which each leaf streams from the server, and the others wait for theirs."""
    with TemporaryDirectory() as root, patch.multiple(subagents, MAX_CHILDREN=AGENTS, MAX_DEPTH=9):
        spec = TeamSpec.model_validate(_team(url, tree))
        options = RunOptions(session_root=root)
        run = nb_agents.start("node 0", spec, tools=[sharing(tree)], options=options)
        try:
            yield run
        finally:
            run.stop(now=True)
            run.wait(raise_on_stop=False)


def _team(url: str, tree: Tree) -> dict[str, Any]:
    caller = ScriptedModel(lambda said: Turn(calls=(Call("share", {"node": node_of(said)}),)))
    inner = {"type": "python", "instance": caller}
    leaf = {"type": "openai", "model": "bench", "base_url": url, "api_key": "k"}
    names = sorted({tree.name(node) for node in tree.nodes} - {ROOT})
    others = [{"id": name, "backend": leaf if name == LEAF else inner} for name in names]
    return {"agents": [{"id": ROOT, "backend": inner}], "callable_agents": others}
