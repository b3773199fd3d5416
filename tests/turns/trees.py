"""Trees of agents that call agents with deterministic replies, for tests of exact resumes.

A node is one piece of work that an agent is given. What its model says is told by its input and by
how often it has spoken; what models and functions are asked is counted where it is asked.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Call, ScriptedModel, Turn
from tests.kit.runs import Preview, Run
from tests.kit.sessions import read_journal

__all__ = ["Node", "Script", "cut_copy", "random_tree"]

How = Literal["look", "call", "function", "plain function", "spawn", "background"]
LEVELS = ("top", "mid", "low")
MOST = 12
"""Nodes of a tree that call others."""
_DONE = re.compile(r"done\([^)]*\)")


@dataclass(frozen=True)
class Node:
    """What an agent does: steps one after the other, each a reply with calls; then its result.

    Attributes:
        name: Stands in its input.
        depth: How many calls deep it is.
        steps: How others are called, and for what.
    """

    name: str
    depth: int
    steps: tuple[tuple[How, tuple[Node, ...]], ...] = ()

    def all(self) -> Iterator[Node]:
        """Yield this node and all below it."""
        yield self
        for _, below in self.steps:
            for each in below:
                yield from each.all()

    def replies(self) -> list[tuple[Call, ...]]:
        """Return the calls in each reply of its model."""
        replies: list[tuple[Call, ...]] = []
        for how, below in self.steps:
            look = Call("look", {"at": f"{self.name} {len(replies)}"})
            inputs = [f"{each.name} is yours" for each in below]
            asked = {"name": LEVELS[min(self.depth, len(LEVELS) - 1)]}
            tasks = [{"task": each} for each in inputs]
            match how:
                case "look":
                    replies.append((look,))
                case "call":
                    calls = [Call("call_agent", asked | {"input": each}) for each in inputs]
                    replies.append((look, *calls))
                case "function":
                    replies.append((Call("review", asked | {"inputs": inputs}), look))
                case "plain function":
                    replies.append((Call("review_plainly", asked | {"inputs": inputs}),))
                case "spawn":
                    replies.append((Call("spawn_subagents", {"tasks": tasks}),))
                case "background":
                    spawn = Call("spawn_subagents", {"tasks": tasks, "background": True})
                    replies += [(spawn, look), (Call("wait_for_subagents"),)]
        return replies


def random_tree(seed: int) -> Node:
    """Make a tree that is three calls deep, of every kind of call."""
    rng, numbers = random.Random(seed), count()

    def node(depth: int) -> Node:
        name = f"node {(number := next(numbers))}."
        if depth == len(LEVELS) or number >= MOST:
            return Node(name, depth, (("look", ()),))
        kinds: list[How] = ["call", "function", "plain function"]
        kinds += ["spawn", "background"] * (depth == 0)
        steps: list[tuple[How, tuple[Node, ...]]] = [("look", ())] * rng.randint(0, 1)
        for _ in range(1 + rng.randint(0, depth == 0)):
            below = tuple(node(depth + 1) for _ in range(rng.randint(1, 2)))
            steps.append((rng.choice(kinds), below))
        return Node(name, depth, tuple(steps))

    return node(0)


@dataclass
class Script:
    """The models and functions of a tree.

    Attributes:
        tree: The whole tree.
        asked: The requests to the models: a node, and how many replies it had sent.
        looked: Number of the function's calls, by node.
    """

    tree: Node
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)
    looked: Counter[str] = field(default_factory=Counter)

    def start(self, root: Path) -> Run:
        """Start it in the session "s"."""
        options, task = RunOptions(session_root=root), f"{self.tree.name} is yours"
        return nb_agents.start(task, self.team(), "s", tools=self.tools(), options=options)

    def resume(self, root: Path) -> Run:
        """Resume it."""
        options = RunOptions(session_root=root)
        return nb_agents.resume("s", self.team(), tools=self.tools(), options=options)

    def team(self) -> TeamSpec:
        """Return the team: one member, and an agent for each level below it."""
        backend = {"type": "python", "instance": ScriptedModel(self._reply), "can_call": "*"}
        spawning = {"enable_subagents": True, "subagent_max_concurrent": 10}
        return TeamSpec.model_validate(
            {
                "agents": [{"id": "root", "backend": backend}],
                "callable_agents": [{"id": name, "backend": backend} for name in LEVELS],
                "orchestrator": {"coordination": spawning},
            }
        )

    def _reply(self, messages: list[Any]) -> Turn:
        parts = [str(getattr(p, "content", "")) for m in messages for p in m.parts]
        node = next(n for n in self.tree.all() if f"{n.name} is yours" in "".join(parts[:2]))
        spoken = sum(m.kind == "response" for m in messages)
        self.asked[node.name, spoken] += 1
        if spoken < len(replies := node.replies()):
            return Turn(text="Well. ", calls=replies[spoken])
        heard = sorted({done for part in parts for done in _DONE.findall(part)})
        return Turn(text=f"done({node.name}) {' '.join(heard)}")

    def tools(self) -> list[Callable[..., Any]]:
        """Return the functions that its agents may call."""

        @nb_agents.tool(repeatable=True)
        def look(at: str) -> str:
            self.looked[at] += 1
            return f"done({at})"

        @nb_agents.tool(repeatable=True)
        async def review(name: str, inputs: list[str]) -> str:
            return "".join(await asyncio.gather(*(nb_agents.call(name, i) for i in inputs)))

        @nb_agents.tool(repeatable=True)
        def review_plainly(name: str, inputs: list[str]) -> str:
            return "".join(asyncio.run(nb_agents.call(name, i)) for i in inputs)

        return [look, review, review_plainly]

    def finished(self, events: list[Any]) -> tuple[Counter[tuple[str, int]], Counter[str]]:
        """Return its finished model replies and calls, according to a journal."""
        nodes: dict[str, str] = {}
        spoken: Counter[str] = Counter()
        replies: Counter[tuple[str, int]] = Counter()
        looks: dict[tuple[str, str], str] = {}
        ended: Counter[str] = Counter()
        for event in events:
            match event:
                case ev.RoundStarted(agent=agent, asks=asks):
                    nodes[agent] = next(n.name for n in self.tree.all() if n.name in str(asks))
                case ev.ModelFinished(agent=agent):
                    replies[nodes[agent], spoken[agent]] += 1
                    spoken[agent] += 1
                case ev.ToolStarted(agent=agent, call_id=call_id, tool="look", args=args):
                    looks[agent, call_id] = re.findall(r"node [^\"']*", str(args))[0]
                case ev.ToolFinished(agent=agent, call_id=call_id, tool="look", outcome="ok"):
                    ended[looks[agent, call_id]] += 1
        return replies, ended

    def assert_truthful(self, told: Preview, old: list[Any], new: list[Any]) -> None:
        """Check that a resumption does what its preview said."""
        made = {e.agent: (e.agent, e.call) for e in old if isinstance(e, ev.ModelStarted)}
        asked = {(e.agent, e.call) for e in new if isinstance(e, ev.ModelStarted)}
        ended = {(e.agent, e.call) for e in old if isinstance(e, ev.ModelFinished)}
        assert not asked & ended
        assert set(told.asked_again) == {a for a, last in made.items() if last not in ended}
        assert set(told.asked_again) <= {a for a, _ in asked}
        tools = [
            f"{e.agent}: {e.tool}"
            for e in new
            if isinstance(e, ev.ToolStarted)
            and (e.agent, int(e.call_id.partition(".")[0])) in ended
        ]
        expected = sorted(tool for tool in tools if "call_agent" not in tool)
        assert sorted(t for t in told.tools_again if "call_agent" not in t) == expected
        assert {t for t in told.tools_again if "call_agent" in t} <= set(tools)


def cut_copy(root: Path, to: Path, after: int, session: str = "s") -> list[Any]:
    """Copy a session of one turn as a kill after that many events leaves it. Return the events."""
    shutil.copytree(root, to, symlinks=True)
    turn = to / session / "turn_1"
    for name in ("metadata.json", "answer.txt", "partial_answers.json"):
        (turn / name).unlink(missing_ok=True)
    journal = turn / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:after]))
    events = list(read_journal(journal).events)
    known = {e.workspace for e in events if isinstance(e, ev.AgentCalled)}
    for folder in (to / session).glob("*/workspaces/*+*"):
        if folder.name not in known:
            shutil.rmtree(folder)
    return events
