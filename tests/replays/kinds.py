"""Kinds of turns that are recorded and replayed, each with random content."""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nb_agents
from nb_agents import Recipe, RunOptions, Sweep, TeamSpec
from nb_agents.options import Retry
from tests.agents.programs.frameworks import pydantic_agent
from tests.kit.runs import Run, find_run
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until

__all__ = ["KINDS", "Arena"]

TESTS = Path(__file__).parents[1]
AGENT, MCP_SERVER = TESTS / "acp" / "agent.py", TESTS / "tools" / "mcp_server.py"
KEY = "sk-proj-7Qd92hXbLm41TzRw"
"""A key that tools, commands and functions return. No recording may contain it."""
FORMATS = ("openai", "responses", "claude", "gemini")
LONG = "The price list says that tea costs three euros and coffee costs four. " * 30

RECIPE = """\
name: shop
description: d
version: 1.0.0
context: {items: [tea, milk, rum]}
stages:
- name: look
  steps:
  - {id: see, type: bash, command: "echo blue $RANDOM sk-proj-7Qd92hXbLm41TzRw", output: seen}
  - {id: fails, type: bash, command: "echo no >&2; exit 3", on_error: continue}
  - id: each
    foreach: "{{items}}"
    parallel: 2
    collect: prices
    steps:
    - {id: think, agent: a0, prompt: "Think of {{item}} and {{seen}}.", output: thought}
    - {id: note, type: bash, command: "echo {{item}} $RANDOM", output: noted}
  approval: {required: true, prompt: "Buy it?"}
- name: tell
  steps:
  - {id: say, type: bash, command: "echo {{_approval_message}}", output: said}
  - {id: end, agent: a1, prompt: "End with {{said}} and {{prices}}.", output: ended}
"""


def price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Its name.
    """
    return f"{item} costs {random.random():.4f} EUR. Key: {KEY}"


SHARED = """\
name: shared
description: d
version: 1.0.0
steps:
- {id: see, type: bash, command: "echo {{topic}} $RANDOM", output: seen}
- {id: think, agent: a0, prompt: "In {{session.project}}, think of {{seen}}.", output: thought}
"""
CALLER = """\
name: caller
description: d
version: 1.0.0
context: {items: [tea, milk], file: shared}
steps:
- {id: first, type: recipe, recipe: "lib/shared.yaml", context: {topic: coffee}, output: one}
- id: each
  foreach: "{{items}}"
  parallel: 2
  steps:
  - {id: call, type: recipe, recipe: "lib/{{file}}.yaml", context: {topic: "{{item}}"}}
- {id: never, type: recipe, recipe: "lib/shared.yaml", condition: "{{file}} == 'other'"}
- {id: end, agent: a1, prompt: "End with {{one}}."}
"""
"""A recipe that calls another one: by its name, by a template, and not at all."""


class RandomModel:
    """Replies at random: tool calls, answers, votes, failures, and calls of a sub-agent.

    Args:
        seed: The seed.
        failures: The share of requests that fail.
        is_long: Whether the texts are long.
    """

    def __init__(self, seed: int, failures: float = 0.0, *, is_long: bool = False) -> None:
        self._random = random.Random(seed)
        self._failures = failures
        self._is_long = is_long

    def __call__(self, request: Request) -> Reply:
        """Return the reply to a request. It becomes more likely to decide with each request."""
        chance, tools = self._random.random(), request.tool_names
        if self._random.random() < self._failures:
            if self._random.random() < 0.5:
                return Reply(status=503, error="Overloaded.")
            return Reply("A cut reply.", drop_after=1)
        calls = self._calls(tools, chance, len(request.messages))
        return Reply(
            f"Step {self._random.randrange(1000)}. {LONG if self._is_long else ''}",
            tuple(calls),
            first_token_delay_s=self._random.random() * 0.03,
            words_per_second=None if self._is_long else self._random.choice([None, 50, 200]),
        )

    def _calls(self, tools: list[str], chance: float, length: int) -> list[ToolCall]:
        number = self._random.randrange(1000)
        most = 30 if self._is_long else 9
        if "vote" in tools and chance < 0.35:
            agent = f"agent{self._random.randrange(1, 4)}"
            return [ToolCall("vote", {"agent_id": agent, "reason": f"reason {number}"})]
        if "new_answer" in tools and ((chance < 0.6 and not self._is_long) or length > most):
            return [ToolCall("new_answer", {"content": f"Answer {number}"})]
        if length > most:
            return []
        kinds = [
            ToolCall("write_file", {"path": f"note{number % 3}.md", "content": f"text {number}"}),
            ToolCall("read_file", {"path": "note1.md"}),
            ToolCall("price", {"item": f"tea {number}"}),
            ToolCall("call_agent", {"agent": "helper", "prompt": f"Find {number}"}),
            ToolCall("mcp__tests__add", {"a": number, "b": 1}),
            ToolCall("run_command", {"command": f"echo {number} $RANDOM"}),
        ]
        known = [each for each in kinds if each.name in tools]
        return self._random.sample(known, min(self._random.randrange(1, 4), len(known)))


@dataclass
class Arena:
    """What a kind plays with.

    Attributes:
        server: The model server.
        root: The session root.
        seed: The seed.
        files: A directory for recipe files. It is removed before the replay.
    """

    server: ModelServer
    root: Path
    seed: int

    def __post_init__(self) -> None:
        """Start with a model without failures."""
        self.random, self.files = random.Random(self.seed), self.root / f"files-{self.seed}"
        self.server.default = RandomModel(self.seed)
        self.options = RunOptions(session_root=self.root, retry=Retry(delay=0.01))

    def team(self, most: int = 3, **backend: Any) -> TeamSpec:
        """Return a team of up to ``most`` agents."""
        kind = FORMATS[self.seed % len(FORMATS)]
        backend = {**self.server.backend(kind, model="m1"), **backend}
        agents = [
            {"id": f"a{n}", "backend": {**backend, "subagents": ["helper"]}}
            for n in range(self.random.randrange(1, most + 1))
        ]
        return TeamSpec.model_validate(
            {
                "agents": agents,
                "callable_agents": [{"id": "helper", "backend": backend}],
                "orchestrator": {"defer_voting_until_all_answered": self.random.random() < 0.5},
            }
        )

    def start(self, team: TeamSpec, **more: Any) -> Run:
        """Start a turn."""
        return nb_agents.start(
            f"Task {self.seed}", team, tools=[price], options=self.options, **more
        )

    def after_some_events(self, run: Run, most: int = 60) -> None:
        """Wait until a random number of events was journalled, or the run has ended."""
        count = self.random.randrange(2, most)
        wait_until(lambda: run.view.is_over or run.view.seq >= count)


def complete(arena: Arena) -> Run:
    """A team's turn."""
    return arena.start(arena.team(4))


def stopped(arena: Arena) -> Run:
    """A turn that is stopped gracefully."""
    run = arena.start(arena.team())
    arena.after_some_events(run)
    run.stop(reason="enough")
    return run


def stopped_now(arena: Arena) -> Run:
    """A turn that is stopped immediately."""
    run = arena.start(arena.team())
    arena.after_some_events(run)
    run.stop(now=True)
    return run


def one_stopped(arena: Arena) -> Run:
    """A turn in which one agent is stopped."""
    run = arena.start(arena.team())
    arena.after_some_events(run)
    run.stop(agent="a0", now=arena.random.random() < 0.5)
    return run


def resumed(arena: Arena) -> Run:
    """A turn that resumes a stopped one."""
    run = stopped(arena) if arena.random.random() < 0.5 else stopped_now(arena)
    run.wait(raise_on_stop=False)
    return run if run.status == "completed" else run.resume()


def killed(arena: Arena) -> Run:
    """A turn that resumes one whose process died."""
    run = complete(arena)
    run.wait(raise_on_stop=False)
    lines = (run.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    count = arena.random.randrange(2, max(len(lines) - 3, 3))
    session = arena.root / f"killed-{arena.seed}"
    turn = session / "turn_1"
    turn.mkdir(parents=True)
    (turn / "events.jsonl").write_bytes(b"".join(lines[:count]))
    if (run.path / "workspaces").is_dir():
        shutil.copytree(run.path / "workspaces", turn / "workspaces")
    return nb_agents.resume(session, tools=[price], options=RunOptions())


def continued(arena: Arena) -> Run:
    """A second task in a session."""
    run = complete(arena)
    run.wait(raise_on_stop=False)
    options = RunOptions(session_root=arena.root)
    team = arena.team()
    return nb_agents.start(
        "Then more.", team, session=run.session, continue_=True, tools=[price], options=options
    )


def rewound(arena: Arena) -> Run:
    """A turn that goes back to a random event of another one."""
    run = complete(arena)
    run.wait(raise_on_stop=False)
    last = read_journal(run.path / "events.jsonl").events[-4].seq
    message = arena.random.choice(["", "Think of the cost, too."])
    return run.rewind(arena.random.randrange(2, max(last, 3)), say=message)


def messaged(arena: Arena) -> Run:
    """A turn with messages of the user and a pause."""
    run = arena.start(arena.team())
    for text in ("Write in verse.", "Be brief."):
        arena.after_some_events(run)
        if not run.view.is_over:
            run.say(text)
    if not run.view.is_over:
        run.pause()
        run.resume()
    return run


def retried(arena: Arena) -> Run:
    """A turn with requests that fail."""
    arena.server.default = RandomModel(arena.seed, failures=0.25)
    return arena.start(arena.team())


def folded(arena: Arena) -> Run:
    """A turn whose conversations are folded."""
    arena.server.default = RandomModel(arena.seed, is_long=True)
    return arena.start(arena.team(2, context_window=9000))


def with_tools(arena: Arena) -> Run:
    """A turn with an MCP server and commands."""
    server = {"name": "tests", "type": "stdio", "command": sys.executable}
    alive = str(arena.root / f"alive-{arena.seed}")
    tools = [{**server, "args": [str(MCP_SERVER), alive]}]
    return arena.start(arena.team(2, mcp_servers=tools, enable_mcp_command_line=True))


def recipe(arena: Arena) -> Run:
    """A recipe with a loop, commands and a gate."""
    run = _recipe(arena)
    _decide(run, approved=arena.random.random() < 0.8)
    return run


def recipe_resumed(arena: Arena) -> Run:
    """A recipe that is stopped and resumed."""
    run = _recipe(arena)
    arena.after_some_events(run, 40)
    run.stop(now=arena.random.random() < 0.5)
    run.wait(raise_on_stop=False)
    if run.status != "completed":
        run = run.resume()
        _decide(run, approved=True)
    return run


def recipe_with_recipes(arena: Arena) -> Run:
    """A recipe that calls another one, whose file is missing in the replay."""
    (arena.files / "lib").mkdir(parents=True)
    (arena.files / "lib" / "shared.yaml").write_text(SHARED)
    (arena.files / "caller.yaml").write_text(CALLER)
    run = _recipe(arena, Recipe.from_file(arena.files / "caller.yaml"))
    if arena.random.random() < 0.5:
        return run
    arena.after_some_events(run, 40)
    run.stop(now=arena.random.random() < 0.5)
    run.wait(raise_on_stop=False)
    return run if run.status == "completed" else run.resume()


def _recipe(arena: Arena, recipe: Recipe | None = None) -> Run:
    backend = arena.server.backend(FORMATS[arena.seed % len(FORMATS)], model="m1")
    team = {"agents": [{"id": f"a{n}", "backend": backend} for n in range(2)]}
    return nb_agents.start(
        "",
        TeamSpec.model_validate(team),
        recipe=recipe or Recipe.from_text(RECIPE, "shop.yaml"),
        options=arena.options,
    )


def _decide(run: Run, *, approved: bool) -> None:
    wait_until(lambda: run.view.is_over or run.view.gates)
    if not run.view.is_over:
        run.approve("Gladly.") if approved else run.deny("Too dear.")


def external(arena: Arena) -> Run:
    """A team with external agents, which speak the Agent Client Protocol."""
    steps = ["say", f"A thought {arena.seed}.", "tool", "read", "List files"]
    ends = ["answer", f"Answer {arena.seed}."]
    command = [sys.executable, str(AGENT), *steps, *ends]
    again = [sys.executable, str(AGENT), "say", "Hm.", "vote"]
    backend = arena.server.backend(FORMATS[arena.seed % len(FORMATS)], model="m1")
    if arena.random.random() < 0.3:
        alone = {"id": "x", "backend": {"type": "acp", "command": command[: -len(ends)]}}
        return arena.start(TeamSpec.model_validate({"agents": [alone]}))
    agents = [
        {"id": "x", "backend": {"type": "acp", "command": command}},
        {"id": "y", "backend": {"type": "acp", "command": again}},
        {"id": "a0", "backend": backend},
    ]
    return arena.start(TeamSpec.model_validate({"agents": agents}))


def framework(arena: Arena) -> Run:
    """A team with an agent of pydantic-ai, a function, and a model."""
    server = arena.server

    async def writer(task: str) -> str:
        return f"A function's answer to {re.sub('[^0-9]', '', task)[:5]}: {KEY}."

    backend = server.backend(FORMATS[arena.seed % len(FORMATS)], model="m1")
    agents = [
        {"id": "p", "backend": {"type": "python", "instance": pydantic_agent(server)}},
        {"id": "f", "backend": {"type": "python", "instance": writer}},
        {"id": "a0", "backend": backend},
    ]
    return arena.start(TeamSpec.model_validate({"agents": agents}))


ROWS = [{"x": "tea " * 50}, {"x": "milk"}, {"x": "rum"}]


def row_of_sweep(arena: Arena) -> Run:
    """A row of a sweep."""
    sweep = _sweep(arena)
    sweep.wait()
    turns = sorted(sweep.path.glob("*-*/turn_1"))
    return find_run(str(arena.random.choice(turns)))


def sweep(arena: Arena) -> Sweep:
    """A sweep. It can be stopped, and resumed."""
    score = arena.random.choice([None, lambda task, answer: len(answer), "helper"])
    running = _sweep(arena, score=score)
    if arena.random.random() < 0.5:
        return running
    count = arena.random.randrange(0, 3)
    wait_until(lambda: running.view.is_over or running.view.completed >= count)
    running.stop(now=arena.random.random() < 0.5)
    running.wait()
    has_begun = [*running.path.glob("*-*/turn_1/events.jsonl")]
    return running if has_begun and arena.random.random() < 0.5 else _sweep(arena, score=score)


def _sweep(arena: Arena, **more: Any) -> Sweep:
    arena.random.seed(arena.seed)
    name, options = f"sweep-{arena.seed}", RunOptions(session_root=arena.root)
    team = arena.team(2)
    return nb_agents.map(
        ROWS,
        "Price {{x}}.",
        team,
        name=name,
        limit=arena.random.choice([1, 8]),
        tools=[price],
        options=options,
        **more,
    )


def comparison(arena: Arena) -> Sweep:
    """A comparison of two teams, which stops as soon as it is decided."""
    rows = [{"x": f"tea {n}"} for n in range(30)]
    teams = [arena.team(1), arena.team(1, system_message="Be brief.")]
    by_team = [0.0, 1.0]

    def score(task: str, answer: str) -> float:
        return arena.random.choice(by_team)

    options = RunOptions(session_root=arena.root)
    judge = arena.random.choice([score, "helper"])
    return nb_agents.compare(
        rows[:4] if judge == "helper" else rows,
        "Price {{x}}.",
        *teams,
        score=judge,
        name=f"comparison-{arena.seed}",
        tools=[price],
        options=options,
    )


def forked(arena: Arena) -> Sweep:
    """Forks of a turn."""
    run = complete(arena)
    run.wait(raise_on_stop=False)
    last = read_journal(run.path / "events.jsonl").events[-4].seq
    point, options = arena.random.randrange(2, max(last, 3)), RunOptions(session_root=arena.root)
    return nb_agents.fork(run.path, str(point), times=2, tools=[price], options=options)


KINDS: dict[str, Callable[[Arena], Run | Sweep]] = {
    "complete": complete,
    "stopped": stopped,
    "stopped now": stopped_now,
    "one stopped": one_stopped,
    "resumed": resumed,
    "killed": killed,
    "continued": continued,
    "rewound": rewound,
    "messages and pauses": messaged,
    "retried": retried,
    "folded": folded,
    "MCP and commands": with_tools,
    "recipe": recipe,
    "recipe resumed": recipe_resumed,
    "recipe with recipes": recipe_with_recipes,
    "external agents": external,
    "frameworks": framework,
    "row of a sweep": row_of_sweep,
    "whole sweep": sweep,
    "comparison": comparison,
    "forks": forked,
}
"""The kinds by name."""
