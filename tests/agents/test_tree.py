"""Tests that a stop of any node in any tree of agents ends that node's subtree and nothing else.

The agents really call one another, with all branches in parallel: each inner agent uses a function
that calls its children, and each leaf waits until the test releases it.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Call, Gate, ScriptedModel, Turn
from tests.canaries import KEY
from tests.kit.agents import SubAgents, subagents
from tests.kit.runs import Recorder, Run, call
from tests.kit.teams import TeamSpec
from tests.kit.tools import ToolError
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.recipes.live import commands_alive, hold
from tests.team_kit import events, finish, outcomes

WAIT_S = 200.0
ROOT = "a"
MAX_LEVELS = 8
LEAF = "leaf"
NOTE = Call("write_file", {"path": "note.md", "content": "begun"})
LATE = Call("write_file", {"path": "late.md", "content": "went on"})
BEGINNINGS = (ev.ModelStarted, ev.ToolStarted, ev.RoundStarted)


# The tree ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """Nodes are numbers, 0 is the root; ``parents[n]`` is the parent of ``n + 1``, a lower one."""

    parents: tuple[int, ...]

    @property
    def nodes(self) -> range:
        return range(len(self.parents) + 1)

    @property
    def leaves(self) -> list[int]:
        return [node for node in self.nodes if not self.below(node)]

    def below(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents, 1) if parent == node]

    def under(self, node: int) -> set[int]:
        """Return a node and all its descendants."""
        found = {node}
        for child, parent in enumerate(self.parents, 1):
            if parent in found:
                found.add(child)
        return found

    def level(self, node: int) -> int:
        return self.level(self.parents[node - 1]) + 1 if node else 0

    def name(self, node: int) -> str:
        """Return the agent to call for a node: no agent may call itself indirectly."""
        inner = f"d{self.level(node)}" if node else ROOT
        return inner if self.below(node) or not node else LEAF


def grown(size: int, seed: int) -> Tree:
    """Make a random tree with a number of nodes, from flat to deep."""
    random = Random(seed)
    nearest = random.choice([1, 3, size])
    parents: list[int] = []
    levels = [0]
    for node in range(1, size):
        parent = random.randrange(max(0, node - nearest), node)
        while levels[parent] >= MAX_LEVELS:
            parent = parents[parent - 1]
        parents.append(parent)
        levels.append(levels[parent] + 1)
    return Tree(tuple(parents))


def even(fan: int, size: int) -> Tree:
    """Make a tree in which each node has the given number of children, up to a total."""
    return Tree(tuple((node - 1) // fan for node in range(1, size)))


# The models ----------------------------------------------------------------------------------


class Forest:
    """The model of all agents of a tree. Counts each node's requests."""

    name = "forest"
    server = ""
    calls_tools = True

    def __init__(self, tree: Tree, leaf: Callable[[int], Turn] | None = None) -> None:
        self.tree = tree
        self.gates = {node: Gate() for node in tree.leaves}
        self.began = Gate()
        self.asked: list[int] = []
        self.open: Counter[int] = Counter()
        self._leaf = leaf or (lambda node: Turn("so far ", calls=(LATE,), gate=self.gates[node]))
        self._model = ScriptedModel(self._turn)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Any], tools: Sequence[Any]) -> AsyncIterator[Any]:
        node = node_of(messages)
        self.asked.append(node)
        self.open[node] += 1
        try:
            async with self._model.stream(messages, tools) as stream:
                yield stream
        finally:
            self.open[node] -= 1

    def let_go(self, nodes: set[int]) -> None:
        for node in nodes & self.gates.keys():
            self.gates[node].open()

    def _turn(self, messages: list[Any]) -> Turn:
        node = node_of(messages)
        step = sum(message.kind == "response" for message in messages)
        if step == 0:
            share = (Call("share", {"node": node}),) if self.tree.below(node) else ()
            return Turn(calls=(NOTE, *share), gate=None if node else self.began)
        if step == 1 and not self.tree.below(node):
            return self._leaf(node)
        return Turn(text=f"result {node}")


def node_of(messages: Sequence[Any]) -> int:
    """Return the node of a request, which is named in the task and each input."""
    parts = (str(getattr(part, "content", "")) for part in messages[0].parts)
    return node_in("\n".join(parts))


def node_in(text: str) -> int:
    found = re.search(r"node (\d+)", text)
    assert found is not None
    return int(found[1])


def sharing(tree: Tree) -> Callable[..., Any]:
    """Return the function with which an agent calls all its children in parallel."""

    async def ask(node: int) -> str:
        try:
            return await nb_agents.call(tree.name(node), f"node {node}")
        except ToolError as exc:
            return str(exc)

    async def share(node: int) -> str:
        """Share a node's work."""
        # All are waited for: one that is left behind would be cut as the run ends.
        told = await asyncio.gather(*map(ask, tree.below(node)), return_exceptions=True)
        for each in told:
            if isinstance(each, BaseException):
                raise each
        return "; ".join(map(str, told))

    return share


# A stop --------------------------------------------------------------------------------------


class Watch:
    """Watches events as they are recorded, and stops a node after one of them.

    Args:
        moment: The number of the event after which it stops. 0 means when the test calls it.
        pick: The index of the node among those called by then.
        now: Whether the stop is immediate.
    """

    def __init__(self, moment: int, pick: int, now: bool) -> None:
        self.born = {0: ROOT}
        self._places = {0: ROOT}
        self.target: int | None = None
        self.stopped_at = 0
        self.now = now
        self._moment, self._pick = moment, pick
        self._seen = 0
        self.run: Run | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        emit = Recorder.emit

        def watched(recorder: Recorder, event: ev.Event) -> None:
            emit(recorder, event)
            self._see(event)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Recorder, "emit", watched)
            patch.setattr(subagents, "MAX_DEPTH", MAX_LEVELS)
            patch.setattr(subagents, "MAX_CHILDREN", 200)
            yield

    def _see(self, event: ev.Event) -> None:
        if isinstance(event, ev.AgentCalled):
            self.born[node_in(event.input)] = event.agent
            self._places[node_in(event.input)] = event.workspace
        # The first are the start of the run, which the test does not hold yet.
        self._seen += self.run is not None
        if self._seen and self._seen == self._moment:
            self.strike()

    def place(self, node: int) -> Path:
        """Return the workspace of a called node."""
        assert self.run is not None
        return self.run.path / "workspaces" / self._places[node]

    def strike(self) -> None:
        """Stop the node on the loop, so that nothing happens before the stop."""
        if self.target is None and self.run is not None:
            self.target = list(self.born)[self._pick % len(self.born)]
            self.stopped_at = self.run.view.seq
            self.run.stop(self.now, agent=self.born[self.target])


def begin(root: Path, tree: Tree, backend: dict[str, Any], **models: str) -> Run:
    """Start a run of a tree. ``models`` are the models of names that do not use the forest."""
    names = sorted({tree.name(node) for node in tree.nodes} | {"none"})
    agents = [
        {"id": name, "backend": backend | ({"model": models[name]} if name in models else {})}
        for name in names
    ]
    mine = [agent for agent in agents if agent["id"] == ROOT]
    others = [agent for agent in agents if agent["id"] != ROOT]
    team = TeamSpec.model_validate({"agents": mine, "callable_agents": others})
    return nb_agents.start(
        "node 0", team, "s", options=RunOptions(session_root=root), tools=[sharing(tree)]
    )


def wait_stopped(run: Run, tree: Tree, watch: Watch, are_held: Callable[[], bool]) -> set[int]:
    """Wait until a node is stopped, at the latest when all leaves hold: all under it."""
    wait_until(lambda: watch.target is not None or are_held(), WAIT_S, "the tree")
    call(watch.strike)
    assert watch.target is not None
    return tree.under(watch.target)


def wait_ended(run: Run, watch: Watch, under: set[int]) -> None:
    def are_over() -> bool:
        mine = [run.view.agents[watch.born[n]] for n in sorted(under) if n in watch.born]
        return all(agent.outcome is not None for agent in mine)

    wait_until(are_over, WAIT_S, "the end of all under the node", lambda: run.view.agents)


def files(watch: Watch, nodes: set[int]) -> dict[Path, int]:
    """Return when each file of these agents was last written."""
    places = [watch.place(node) for node in nodes & set(watch.born)]

    def look() -> dict[Path, int]:
        files = [path for place in places for path in place.rglob("*")]
        return {path: path.stat().st_mtime_ns for path in files}

    def found() -> tuple[dict[Path, int]] | None:
        try:
            when = look()
            # Twice alike: a walk of what is being moved may miss some without an error.
            holds_still = all(place.is_dir() for place in places) and look() == when
        except FileNotFoundError:
            return None
        return (when,) if holds_still else None

    # Where the whole run was stopped, its end moves the workspaces at this very moment.
    when: dict[Path, int] = wait_until(found, WAIT_S, "files that hold still")[0]
    return when


def check(run: Run, tree: Tree, watch: Watch, under: set[int], silent_from: int) -> None:
    """Check the journal of a complete run for its stop."""
    mine = {watch.born[node] for node in under if node in watch.born}
    told = [e for e in events(run) if getattr(e, "agent", "") in mine]
    begun = [e for e in told if isinstance(e, BEGINNINGS) and e.seq > watch.stopped_at]
    assert begun == [], "something began after the stop"
    # What a command said before its end, and the stop itself, are recorded a moment later.
    behind = (ev.StopRequested, ev.ToolNotice)
    late = [e for e in told if e.seq > silent_from and not isinstance(e, behind)]
    assert late == [], "something happened after the end"

    others = set(tree.nodes) - under
    ended = outcomes(run)
    assert ended.keys() == set(watch.born.values())
    assert {ended[watch.born[node]] for node in others} <= {"finished"}
    possible = {"finished", "stopped", "never started"} | ({"killed"} if watch.now else set())
    assert {ended[agent] for agent in mine} <= possible
    assert ended[watch.born[watch.target or 0]] != "finished"
    assert run.status == ("completed" if others else "cancelled")
    if watch.target:
        parent = watch.born[tree.parents[watch.target - 1]]
        results = [e.result for e in events(run, ev.ToolFinished) if e.agent == parent]
        assert f"the user stopped {tree.name(watch.target)}" in "\n".join(results)


def stop_somewhere(root: Path, tree: Tree, moment: int, pick: int, now: bool) -> Run:
    """Run a tree, stop a node after some event, and check all invariants."""
    forest, watch = Forest(tree), Watch(moment, pick, now)
    with watch.watching():
        run = begin(root, tree, {"type": "python", "instance": forest, "can_call": "*"})
        forest.began.wait_reached()
        watch.run = run
        forest.began.open()
        under = wait_stopped(
            run, tree, watch, lambda: all(gate.reached for gate in forest.gates.values())
        )
        if not now:
            forest.let_go(under)
        wait_ended(run, watch, under)

        assert not any(forest.open[node] for node in under)
        silent_from = run.view.seq
        asked, written = Counter(forest.asked), files(watch, under)
        forest.let_go(set(tree.nodes))
        finish(run)
    assert files(watch, under) == written
    assert not [path for path in written if path.name == "late.md"]
    assert [n for n in under if Counter(forest.asked)[n] != asked[n]] == []
    check(run, tree, watch, under, silent_from)
    return run


@pytest.mark.parametrize(
    ("pick", "now"), [(0, True), (1, False)], ids=["the root at once", "a branch gracefully"]
)
def test_stop_in_a_tree_of_200_agents_ends_all_descendants(
    tmp_path: Path, pick: int, now: bool
) -> None:
    tree = even(3, 200)
    run = stop_somewhere(tmp_path, tree, 0, pick, now)
    assert len(run.view.agents) == 200


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    size=st.integers(2, 40),
    seed=st.integers(0, 1000),
    moment=st.integers(0, 1000),
    pick=st.integers(0, 200),
    now=st.booleans(),
)
def test_stop_of_any_node_ends_exactly_its_descendants(
    size: int, seed: int, moment: int, pick: int, now: bool
) -> None:
    # About seven events are recorded for each node before all leaves hold.
    moment %= 7 * size
    with TemporaryDirectory() as root:
        stop_somewhere(Path(root), grown(size, seed), moment, pick, now)


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
def test_ended_agent_calls_no_sub_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    async def ask() -> str:
        """Ask."""
        return await nb_agents.call("c", "node 1")

    def ask_plainly() -> str:
        """Ask."""
        return asyncio.run(ask())

    place, placed = SubAgents._open_workspace, Event()

    def placed_late(self: SubAgents, *given: Any) -> tuple[str, Path]:
        made = place(self, *given)
        run.stop(now=True, agent="a")
        wait_until(lambda: run.view.agents["a"].outcome, WAIT_S, "the caller's end")
        placed.set()
        return made

    monkeypatch.setattr(SubAgents, "_open_workspace", placed_late)
    function = ask_plainly if is_plain else ask
    began, held = Gate(), Gate()
    a = ScriptedModel(Turn(calls=(Call(function.__name__, {}),), gate=began))
    models = {"a": a, "b": ScriptedModel(Turn(text="so far ", gate=held)), "c": ScriptedModel()}
    agents = [
        {"id": k, "backend": {"type": "python", "instance": model}} for k, model in models.items()
    ]
    team = TeamSpec.model_validate({"agents": agents[:2], "callable_agents": agents[2:]})
    run = nb_agents.start(
        "the task", team, "s", options=RunOptions(session_root=tmp_path), tools=[function]
    )
    held.wait_reached()
    began.open()
    assert placed.wait(WAIT_S)
    run.stop()
    held.open()
    finish(run)
    assert outcomes(run) == {"a": "killed", "b": "stopped"}
    assert events(run, ev.AgentCalled) == []


# Over HTTP -----------------------------------------------------------------------------------


def test_the_connections_of_a_stopped_branch_are_closed_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    tree = even(3, 31)
    watch = Watch(0, 1, now=True)

    def reply(request: Request) -> Reply:
        node = node_in(request.prompt)
        is_first = not any(message["role"] == "assistant" for message in request.messages)
        if is_first and tree.below(node):
            return Reply(tool_calls=(ToolCall("share", {"node": node}),))
        return Reply(text=f"result {node} and more")

    with ModelServer(default=reply) as server, watch.watching():
        server.hold(1, LEAF)
        keys = {"type": "openai", "base_url": server.url, "api_key": KEY, "can_call": "*"}
        run = begin(tmp_path, tree, keys | {"model": "inner"}, leaf=LEAF)
        watch.run = run
        leaves = set(tree.leaves)
        server.wait_until(lambda: server.open_count == len(leaves), WAIT_S, "all leaves")
        under = wait_stopped(run, tree, watch, lambda: True)
        wait_ended(run, watch, under)
        server.wait_until(lambda: server.open_count == len(leaves - under), WAIT_S, "the cut")
        assert closed_by(server) == {n: "client" if n in under else None for n in leaves}
        silent_from, asked = run.view.seq, server.count()

        server.release(LEAF)
        finish(run)
        server.wait_closed()
        assert closed_by(server) == {n: "client" if n in under else "server" for n in leaves}
    later = [node_in(request.prompt) for request in server.requests[asked:]]
    assert not under & set(later)
    assert {n for n in tree.nodes if n not in leaves | under} == set(later)
    check(run, tree, watch, under, silent_from)


def closed_by(server: ModelServer) -> dict[int, str | None]:
    """Return what closed the stream of each leaf."""
    return {node_in(r.prompt): r.closed_by for r in server.requests if r.model == LEAF}


# With processes ------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [False, True], ids=["graceful", "immediate"])
def test_the_commands_of_a_stopped_branch_end_and_the_others_do_not(
    tmp_path: Path, now: bool
) -> None:
    tree = even(2, 7)
    watch = Watch(0, 1, now)
    command = Call("run_command", {"command": hold("held")})
    forest = Forest(tree, lambda node: Turn(calls=(command, LATE)))
    backend = {"type": "python", "instance": forest, "can_call": "*"}
    with watch.watching():
        run = begin(tmp_path, tree, backend | {"enable_mcp_command_line": True})
        watch.run = run
        forest.began.open()

        def begun() -> bool:
            return all(
                n in watch.born and (watch.place(n) / "held.begun").exists() for n in tree.leaves
            )

        under = wait_stopped(run, tree, watch, begun)
        mine = under & set(tree.leaves)
        for node in mine if not now else ():
            (watch.place(node) / "held.go").touch()
        wait_ended(run, watch, under)
        wait_until(
            lambda: not any(commands_alive(watch.place(n)) for n in mine), WAIT_S, "their end"
        )
        silent_from, written = run.view.seq, files(watch, under)
        others = set(tree.leaves) - under
        assert all(commands_alive(watch.place(node)) for node in others)
        for node in others:
            (watch.place(node) / "held.go").touch()
        finish(run)
    assert files(watch, under) == written
    check(run, tree, watch, under, silent_from)
