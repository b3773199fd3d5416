"""Records random turns and replays them: ``python -m tests.replays.plays [turns] [first]``."""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.cli.calls import call_here
from tests.kit.replays import DEFAULT_RULES, start_replay
from tests.kit.runs import Run
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.team_kit import events

FORMATS = ("openai", "responses", "claude", "gemini")
_TREE = (
    ev.RoundStarted,
    ev.ModelStarted,
    ev.ModelFinished,
    ev.ToolStarted,
    ev.ToolFinished,
    ev.NoteSent,
    ev.AnswerGiven,
    ev.VoteCast,
    ev.VoteIgnored,
    ev.AgentFailed,
    ev.FinalAnswerGiven,
)


def tree_of(run: Run) -> list[Any]:
    """Return what each agent did and received, without times, in the order of each agent."""
    found = []
    for event in events(run, *_TREE):
        fields = ev.EVENT.dump_python(event, mode="json")
        timeless = {k: v for k, v in fields.items() if k not in ("at", "seq", "seconds", "thread")}
        text = str(timeless)
        for rule in DEFAULT_RULES:
            text = re.sub(rule.pattern, rule.replacement, text)
        found.append((timeless["agent"], text))
    return sorted(found, key=lambda each: each[0])


class RandomModel:
    """Replies at random: tool calls, answers, votes, and calls of a sub-agent.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, request: Request) -> Reply:
        """Return the reply to a request. It becomes more likely to decide with each request."""
        chance, tools = self._random.random(), request.tool_names
        calls = [*self._calls(tools, chance, len(request.messages))]
        return Reply(
            f"Step {self._random.randrange(1000)}.",
            tuple(calls),
            first_token_delay_s=self._random.random() * 0.03,
            words_per_second=self._random.choice([None, 50, 200]),
        )

    def _calls(self, tools: list[str], chance: float, length: int) -> list[ToolCall]:
        number = self._random.randrange(1000)
        if "vote" in tools and chance < 0.35:
            agent = f"agent{self._random.randrange(1, 4)}"
            return [ToolCall("vote", {"agent_id": agent, "reason": f"reason {number}"})]
        if "new_answer" in tools and (chance < 0.6 or length > 9):
            return [ToolCall("new_answer", {"content": f"Answer {number}"})]
        if length > 9:
            return []
        kinds = [
            ToolCall("write_file", {"path": f"note{number % 3}.md", "content": f"text {number}"}),
            ToolCall("read_file", {"path": "note1.md"}),
            ToolCall("price", {"item": f"tea {number}"}),
            ToolCall("call_agent", {"agent": "helper", "prompt": f"Find {number}"}),
        ]
        some = self._random.sample(kinds, self._random.randrange(1, 3))
        return [each for each in some if each.name in tools]


def price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Its name.
    """
    return f"{item} costs {random.random():.4f} EUR"


def play(server: ModelServer, root: Path, seed: int) -> dict[str, Any]:
    """Record a turn, replay it, and return the figures."""
    chosen = random.Random(seed)
    kind = FORMATS[seed % len(FORMATS)]
    server.default = RandomModel(seed)
    backend = server.backend(kind, model="m1")
    agents = [
        {"id": f"a{n}", "backend": backend, "subagents": ["helper"]}
        for n in range(chosen.randrange(1, 5))
    ]
    team = TeamSpec.model_validate(
        {
            "agents": agents,
            "callable_agents": [{"id": "helper", "backend": backend}],
            "orchestrator": {"defer_voting_until_all_answered": chosen.random() < 0.5},
        }
    )
    began = time.monotonic()
    options = RunOptions(session_root=root / "recorded")
    run = nb_agents.start(f"Task {seed}", team, tools=[price], options=options)
    run.wait(raise_on_stop=False)
    took = time.monotonic() - began
    if run.status != "completed":
        return {"seed": seed, "skipped": run.state}
    path = root / f"{seed}.nbar"
    call_here("record", str(run.path), "-o", str(path))
    count, began = server.count(), time.monotonic()
    replayed = start_replay(path, options=RunOptions(session_root=root / "replays"))
    replayed.run.wait(raise_on_stop=False)
    trees = tree_of(run), tree_of(replayed.run)
    return {
        "seed": seed,
        "first": next(((a, b) for a, b in zip(*trees, strict=False) if a != b), None),
        "kind": kind,
        "agents": len(agents),
        "equal": tree_of(replayed.run) == tree_of(run),
        "difference": replayed.difference[:400],
        "requests": server.count() - count,
        "recorded": replayed.requests,
        "size": path.stat().st_size,
        "ratio": (time.monotonic() - began) / took,
    }


def main(turns: int = 20, first: int = 0) -> int:
    """Play the turns and print the figures. Return how many differ."""
    faults = 0
    with ModelServer() as server, tempfile.TemporaryDirectory() as root:
        for seed in range(first, first + turns):
            figures = play(server, Path(root), seed)
            print(figures, flush=True)
            faults += not figures.get("equal", True) or bool(figures.get("requests"))
    print(f"{turns} turns, {faults} differ")
    return faults


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
