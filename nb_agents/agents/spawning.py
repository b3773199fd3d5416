"""Spawning sub-agents: new agents of the caller's own kind that work on parts of its task.

They work in parallel, while the caller waits, or in the background while it continues. Like the
sub-agents of `nb_agents.agents.subagents` they have a row, a workspace and costs of their own, and
stop with the caller. The result of one in the background is added once to the caller's next request
after a tool call, even if that is after a resume. A resume keeps the results of finished ones, and
interrupted ones continue at once.

Source: MassGen 0.1.97, `mcp_tools/subagent` (names of the tools and their arguments), its hook
`SubagentCompleteHook` (when results are passed on), and its section ``orchestrator.coordination``
(limits).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from nb_agents.agents.capabilities import Capability, Results
from nb_agents.agents.replay import CANCELLED, Past, PastChild
from nb_agents.agents.subagents import Child, SubAgents
from nb_agents.cancel import (
    AgentStopped,
    CancellationStatus,
    CancelToken,
    checkpoint,
    current_token,
)
from nb_agents.config.orchestrator import CoordinationSpec
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, ToolResult, current_call, declare

SPAWNING_TOOLS = declare(
    BuiltInTool("spawn_subagents"),
    BuiltInTool("list_subagents"),
    BuiltInTool("wait_for_subagents"),
    BuiltInTool("cancel_subagent"),
)
MAX_INPUT_CHARS = 50_000
_GUIDE = """Parts of the work that do not need one another can be done by sub-agents, at most
{most} at once: spawn_subagents gives each a task, which must hold all that it has to know, and you
get what it writes last. Small things you do yourself, as each costs as much as you do."""

_BACKGROUND = """With `background: true` you go on meanwhile, and are told what each came to with
the results of your next calls: list_subagents says how they stand, cancel_subagent ends one. Wait
for those that you need, by wait_for_subagents, before you submit."""
_RESULTS = "Sub-agents of yours have ended."
_LABEL = re.compile(r"[^\w.-]+")


class SubTask(BaseModel):
    """A part of the work.

    Attributes:
        task: The task, with everything that the sub-agent needs to know.
        subagent_id: What the sub-agent is called; left out, it gets a name.
    """

    task: str = Field(max_length=MAX_INPUT_CHARS)
    subagent_id: str = ""

    @property
    def label(self) -> str:
        """Its name as a part of a directory's."""
        return _LABEL.sub("_", self.subagent_id)[:40].strip("._") or "sub"


@dataclass
class _Spawned:
    """A sub-agent that was spawned.

    Attributes:
        id: The id that the caller uses.
        label: The name that the caller gave.
        task: The input.
        text: The result, once it has finished.
        error: Why it failed, or "".
        past: Its events in the turn that this one resumes.
        child: The running sub-agent.
        is_told: Whether the caller has got the result.
        work: The asyncio task, which returns (text, error).
    """

    id: str
    label: str
    task: str
    text: str | None = None
    error: str = ""
    is_told: bool = False
    past: PastChild | None = None
    child: Child | None = None
    work: asyncio.Task[tuple[str, str]] | None = field(default=None, repr=False)

    @property
    def status(self) -> str:
        if self.text is not None:
            return "completed"
        if self.error:
            return "error"
        return "running" if self.work else "cut"

    def report(self) -> dict[str, Any]:
        known = {"subagent_id": self.id, "status": self.status}
        if self.text is not None:
            known["answer"] = self.text
        return known | ({"error": self.error} if self.error else {})


class Spawner:
    """Spawns the sub-agents of one agent.

    Args:
        agent: The agent's id.
        children: The run's sub-agents.
        wanted: The team file's limits.
        past: The sub-agents of the turn that this one resumes.
    """

    def __init__(
        self,
        agent: str,
        children: SubAgents,
        wanted: CoordinationSpec,
        past: Iterable[PastChild],
    ) -> None:
        self._agent = agent
        self._children = children
        self._wanted = wanted
        self._known = {
            called.spawned: _Spawned(
                called.spawned,
                called.name,
                called.input,
                each.text,
                each.refusal,
                each.is_told,
                each,
            )
            for each in past
            if (called := each.called).caller == agent and called.spawned
        }

    def tools(self) -> list[Tool]:
        """Return the agent's tools for spawning."""
        return [Tool(getattr(self, name), is_repeatable=True) for name in SPAWNING_TOOLS]

    async def go_on(self, token: CancelToken) -> None:
        """Continue the sub-agents that a stop or a crash interrupted.

        Args:
            token: The agent's.
        """
        with suppress(AgentStopped):
            for each in tuple(self._known.values()):
                if each.status == "cut":
                    await self._let_work(each, token)

    def take_results(self) -> Results:
        """Return the results that the agent has not got yet, and mark them as passed on."""
        for each in self._known.values():
            _settle(each)
        ended = [s for s in self._known.values() if s.status != "running" and not s.is_told]
        if not ended:
            return Results()
        for each in ended:
            each.is_told = True
        text = ToolResult(f"{_RESULTS}\n{_dumped(ended)}")
        in_result = self._wanted.background_subagents.injection_strategy == "tool_result"
        return Results(text, tuple(each.id for each in ended), in_result)

    async def spawn_subagents(self, tasks: list[SubTask], background: bool = False) -> str:
        """Let sub-agents work on parts of your work in parallel; they don't see your conversation.

        Args:
            tasks: Parts that do not need each other's results.
            background: Whether you continue without waiting for the results.
        """
        if background and not self._wanted.background_subagents.enabled:
            raise ToolError("sub-agents may not work in the background here: leave that out.")
        known = self._known_already(tasks) if current_call().is_repeated else {}
        self._check_room(len(tasks) - len(known))
        made = [known.get(n) or await self._begin(task) for n, task in enumerate(tasks)]
        if not background:
            await self._wait(made)
        return _told(made)

    async def list_subagents(self) -> str:
        """List the sub-agents that you have spawned, with their status."""
        return _told(self._known.values())

    async def wait_for_subagents(self, subagent_ids: list[str] | None = None) -> str:
        """Wait for sub-agents, and get their results.

        Args:
            subagent_ids: Which ones; by default all that have not ended.
        """
        wanted = [self._found(each) for each in subagent_ids or ()]
        wanted = wanted or [s for s in self._known.values() if s.status == "running"]
        await self._wait(wanted)
        return _told(wanted)

    async def cancel_subagent(self, subagent_id: str) -> str:
        """End a sub-agent that is at work.

        Args:
            subagent_id: Which one.
        """
        spawned = self._found(subagent_id)
        if spawned.child is not None and spawned.status == "running":
            why = "cancelled by its caller"
            spawned.child.token.request(CancellationStatus.IMMEDIATE, "parent", why)
            await self._wait([spawned])
            spawned.error = CANCELLED
        return _told([spawned])

    async def _begin(self, task: SubTask) -> _Spawned:
        spawned = _Spawned("", task.label, task.task)
        await self._let_work(spawned, current_token() or CancelToken())
        return spawned

    async def _let_work(self, spawned: _Spawned, token: CancelToken) -> None:
        child = await self._children.begin(
            self._agent,
            spawned.label,
            spawned.task,
            token,
            limit_s=self._wanted.subagent_timeout_s,
            past=spawned.past,
        )
        spawned.id, spawned.child = spawned.id or child.id, child
        spawned.is_told = False
        self._known[spawned.id] = spawned
        # A task of its own: it outlives the call, and ends with the run at the latest.
        work = self._children.work(child, spawned.task)
        spawned.work = asyncio.get_running_loop().create_task(work, name=f"agent {child.id}")

    async def _wait(self, wanted: Sequence[_Spawned]) -> None:
        for each in wanted:
            if each.work is not None and each.text is None and not each.error:
                await asyncio.wait([each.work])
        # A stop of the caller stops the sub-agents too.
        checkpoint()
        for each in self._known.values():
            _settle(each)

    def _known_already(self, tasks: Sequence[SubTask]) -> dict[int, _Spawned]:
        """Return the sub-agents that an interrupted call had already spawned, by position."""
        rest = list(self._known.values())
        found = {}
        for number, task in enumerate(tasks):
            for each in rest:
                if (each.task, each.label) == (task.task, task.label):
                    found[number] = each
                    rest.remove(each)
                    break
        return found

    def _check_room(self, more: int) -> None:
        most = self._wanted.subagent_max_concurrent
        for each in self._known.values():
            _settle(each)
        running = sum(each.status == "running" for each in self._known.values())
        if running + more > most:
            raise ToolError(
                f"{most} sub-agents may work at once, {running} do, and these would be {more} "
                "more: spawn fewer, or wait for others."
            )

    def _found(self, subagent_id: str) -> _Spawned:
        for spawned in self._known.values():
            _settle(spawned)
        if subagent_id not in self._known:
            known = ", ".join(self._known) or "none"
            raise ToolError(f"you have no sub-agent {subagent_id!r}; there are: {known}")
        return self._known[subagent_id]


class Spawning(Capability):
    """The sub-agents that a team's agents spawn.

    Args:
        children: The run's sub-agents.
        wanted: The team file's limits.
        past: Where the turn that this one resumes had come to.
    """

    def __init__(self, children: SubAgents, wanted: CoordinationSpec, past: Past | None) -> None:
        self._children = children
        self._wanted = wanted
        self._past = past
        self._spawners: dict[str, Spawner] = {}

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Return an agent's tools for spawning."""
        past = self._past.children.values() if self._past else ()
        self._spawners[agent] = Spawner(agent, self._children, self._wanted, past)
        return self._spawners[agent].tools()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return when an agent spawns others."""
        if "spawn_subagents" not in tools:
            return ""
        background = f"\n\n{_BACKGROUND}" if self._wanted.background_subagents.enabled else ""
        return _GUIDE.format(most=self._wanted.subagent_max_concurrent) + background

    def note(self, agent: str) -> Results:
        """Return the results that an agent has not got yet."""
        return self._spawners[agent].take_results()

    async def go_on(self, tokens: Mapping[str, CancelToken]) -> None:
        """Let those go on that a stop or a crash has interrupted."""
        for agent, spawner in self._spawners.items():
            if self._past is not None and agent in self._past.state.live:
                await spawner.go_on(tokens[agent])


def _settle(spawned: _Spawned) -> None:
    """Copy the result of a finished sub-agent from its asyncio task."""
    if spawned.work is None or not spawned.work.done() or spawned.error:
        return
    text, error = spawned.work.result()
    spawned.text, spawned.error = (None, error) if error else (text, "")


def _told(spawned: Iterable[_Spawned]) -> str:
    """Return the current tool call's result: the state of some sub-agents, marked as passed on."""
    reported = list(spawned)
    for each in reported:
        _settle(each)
        each.is_told |= each.status != "running"
    current_call().subagents = tuple(each.id for each in reported if each.is_told)
    return _dumped(reported)


def _dumped(reported: Iterable[_Spawned]) -> str:
    return json.dumps({"subagents": [each.report() for each in reported]}, ensure_ascii=False)
