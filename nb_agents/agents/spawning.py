"""Spawns sub-agents: copies of the caller that work on parts of its task.

They work in parallel while the caller waits, or in the background while it continues. Like the
sub-agents of `nb_agents.agents.subagents`, each has its own row, workspace and cost, and stops with
its caller. The result of a background sub-agent is added once to the caller's next request after a
tool call, even after a resume. A resume keeps the results of finished sub-agents and immediately
continues interrupted ones.

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
_GUIDE = """Use spawn_subagents to give independent parts of the work to sub-agents, at most {most}
at a time. Put everything that a sub-agent needs to know into its task. You get its last message as
the result. Do small things yourself, because each sub-agent costs as much as you do."""

_BACKGROUND = """With `background: true` you continue while sub-agents work, and their results come
with your next tool results. list_subagents shows their status. cancel_subagent ends one. Before you
submit, call wait_for_subagents for the results that you need."""
_RESULTS = "Some of your sub-agents have ended."
_LABEL = re.compile(r"[^\w.-]+")


class SubTask(BaseModel):
    """A part of the work.

    Attributes:
        task: The task, with everything that the sub-agent needs to know.
        subagent_id: A name for the sub-agent. By default, it gets one.
    """

    task: str = Field(max_length=MAX_INPUT_CHARS)
    subagent_id: str = ""

    @property
    def label(self) -> str:
        """The name, reduced to characters that are safe in a file name."""
        return _LABEL.sub("_", self.subagent_id)[:40].strip("._") or "sub"


@dataclass
class _Spawned:
    """A spawned sub-agent and its state.

    Attributes:
        id: The id that the caller uses.
        label: The name that the caller chose.
        task: The input.
        text: The result, or None if it has not finished.
        error: Why it failed, or "".
        is_told: Whether the caller has received the result.
        past: Its state at the end of the turn that this turn resumes.
        child: The running sub-agent.
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
        fields = {"subagent_id": self.id, "status": self.status}
        if self.text is not None:
            fields["answer"] = self.text
        return fields | ({"error": self.error} if self.error else {})


class Spawner:
    """Spawns the sub-agents of one agent.

    Args:
        agent: The agent's id.
        children: The run's sub-agents.
        coordination: The team file's limits.
        past: All sub-agents of the turn that this turn resumes.
    """

    def __init__(
        self,
        agent: str,
        children: SubAgents,
        coordination: CoordinationSpec,
        past: Iterable[PastChild],
    ) -> None:
        self._agent = agent
        self._children = children
        self._spec = coordination
        self._spawned_agents = {
            call.spawned: _Spawned(
                call.spawned,
                call.name,
                call.input,
                each.text,
                each.refusal,
                each.is_told,
                each,
            )
            for each in past
            if (call := each.called).caller == agent and call.spawned
        }

    def tools(self) -> list[Tool]:
        """Return the agent's tools for spawning."""
        return [Tool(getattr(self, name), is_repeatable=True) for name in SPAWNING_TOOLS]

    async def resume_work(self, token: CancelToken) -> None:
        """Continue the sub-agents that a stop or a crash interrupted.

        Args:
            token: The agent's cancel token.
        """
        with suppress(AgentStopped):
            for each in tuple(self._spawned_agents.values()):
                if each.status == "cut":
                    await self._start(each, token)

    def take_results(self) -> Results:
        """Return the results that the agent has not received, and mark them as received."""
        for each in self._spawned_agents.values():
            _settle(each)
        finished = [
            s for s in self._spawned_agents.values() if s.status != "running" and not s.is_told
        ]
        if not finished:
            return Results()
        for each in finished:
            each.is_told = True
        text = ToolResult(f"{_RESULTS}\n{_dumped(finished)}")
        in_result = self._spec.background_subagents.injection_strategy == "tool_result"
        return Results(text, tuple(each.id for each in finished), in_result)

    async def spawn_subagents(self, tasks: list[SubTask], background: bool = False) -> str:
        """Start sub-agents that work on parts of your task in parallel.

        They don't see your conversation.

        Args:
            tasks: The parts. They must not depend on each other's results.
            background: Whether to continue without waiting for the results.
        """
        if background and not self._spec.background_subagents.enabled:
            raise ToolError("sub-agents can't work in the background here. Leave out `background`.")
        past = self._already_spawned(tasks) if current_call().is_repeated else {}
        self._check_room(len(tasks) - len(past))
        spawned = [past.get(n) or await self._begin(task) for n, task in enumerate(tasks)]
        if not background:
            await self._wait(spawned)
        return _report(spawned)

    async def list_subagents(self) -> str:
        """List your sub-agents with their status."""
        return _report(self._spawned_agents.values())

    async def wait_for_subagents(self, subagent_ids: list[str] | None = None) -> str:
        """Wait for sub-agents to end and get their results.

        Args:
            subagent_ids: The ids of the sub-agents. By default, all that are running.
        """
        awaited = [self._get(each) for each in subagent_ids or ()]
        awaited = awaited or [s for s in self._spawned_agents.values() if s.status == "running"]
        await self._wait(awaited)
        return _report(awaited)

    async def cancel_subagent(self, subagent_id: str) -> str:
        """End a running sub-agent.

        Args:
            subagent_id: The id of the sub-agent.
        """
        spawned = self._get(subagent_id)
        if spawned.child is not None and spawned.status == "running":
            why = "cancelled by its caller"
            spawned.child.token.request(CancellationStatus.IMMEDIATE, "parent", why)
            await self._wait([spawned])
            spawned.error = CANCELLED
        return _report([spawned])

    async def _begin(self, task: SubTask) -> _Spawned:
        spawned = _Spawned("", task.label, task.task)
        await self._start(spawned, current_token() or CancelToken())
        return spawned

    async def _start(self, spawned: _Spawned, token: CancelToken) -> None:
        child = await self._children.begin(
            self._agent,
            spawned.label,
            spawned.task,
            token,
            limit_s=self._spec.subagent_timeout_s,
            past=spawned.past,
        )
        spawned.id, spawned.child = spawned.id or child.id, child
        spawned.is_told = False
        self._spawned_agents[spawned.id] = spawned
        # A separate task, because it may outlive the call. It ends with the run at the latest.
        work = self._children.work(child, spawned.task)
        spawned.work = asyncio.get_running_loop().create_task(work, name=f"agent {child.id}")

    async def _wait(self, awaited: Sequence[_Spawned]) -> None:
        for each in awaited:
            if each.work is not None and each.text is None and not each.error:
                await asyncio.wait([each.work])
        # A stop of the caller stops the sub-agents too.
        checkpoint()
        for each in self._spawned_agents.values():
            _settle(each)

    def _already_spawned(self, tasks: Sequence[SubTask]) -> dict[int, _Spawned]:
        """Return the sub-agents that an interrupted call had already spawned, by position."""
        rest = list(self._spawned_agents.values())
        matches = {}
        for number, task in enumerate(tasks):
            for each in rest:
                if (each.task, each.label) == (task.task, task.label):
                    matches[number] = each
                    rest.remove(each)
                    break
        return matches

    def _check_room(self, more: int) -> None:
        most = self._spec.subagent_max_concurrent
        for each in self._spawned_agents.values():
            _settle(each)
        running = sum(each.status == "running" for each in self._spawned_agents.values())
        if running + more > most:
            raise ToolError(
                f"at most {most} sub-agents can work at a time; {running} are running, and this "
                f"call would add {more}. Spawn fewer, or wait for running ones."
            )

    def _get(self, subagent_id: str) -> _Spawned:
        for spawned in self._spawned_agents.values():
            _settle(spawned)
        if subagent_id not in self._spawned_agents:
            ids = ", ".join(self._spawned_agents) or "none"
            raise ToolError(f"you have no sub-agent {subagent_id!r}. Your sub-agents: {ids}")
        return self._spawned_agents[subagent_id]


class Spawning(Capability):
    """The sub-agents that a team's agents spawn.

    Args:
        children: The run's sub-agents.
        coordination: The team file's limits.
        past: The state of the turn that this turn resumes, or None.
    """

    def __init__(
        self, children: SubAgents, coordination: CoordinationSpec, past: Past | None
    ) -> None:
        self._children = children
        self._spec = coordination
        self._past = past
        self._spawners: dict[str, Spawner] = {}

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Return an agent's tools for spawning."""
        past = self._past.children.values() if self._past else ()
        self._spawners[agent] = Spawner(agent, self._children, self._spec, past)
        return self._spawners[agent].tools()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return the instructions for spawning sub-agents."""
        if "spawn_subagents" not in tools:
            return ""
        background = f"\n\n{_BACKGROUND}" if self._spec.background_subagents.enabled else ""
        return _GUIDE.format(most=self._spec.subagent_max_concurrent) + background

    def note(self, agent: str) -> Results:
        """Return the results that an agent has not received yet."""
        return self._spawners[agent].take_results()

    async def resume_work(self, tokens: Mapping[str, CancelToken]) -> None:
        """Continue the sub-agents that a stop or a crash interrupted."""
        for agent, spawner in self._spawners.items():
            if self._past is not None and agent in self._past.state.live:
                await spawner.resume_work(tokens[agent])


def _settle(spawned: _Spawned) -> None:
    """Copy the result of a finished sub-agent from its asyncio task."""
    if spawned.work is None or not spawned.work.done() or spawned.error:
        return
    text, error = spawned.work.result()
    spawned.text, spawned.error = (None, error) if error else (text, "")


def _report(spawned: Iterable[_Spawned]) -> str:
    """Return the state of sub-agents as the current call's result, and mark results as received."""
    reported = list(spawned)
    for each in reported:
        _settle(each)
        each.is_told |= each.status != "running"
    current_call().subagents = tuple(each.id for each in reported if each.is_told)
    return _dumped(reported)


def _dumped(reported: Iterable[_Spawned]) -> str:
    return json.dumps({"subagents": [each.report() for each in reported]}, ensure_ascii=False)
