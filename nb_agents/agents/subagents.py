"""Sub-agents: agents that other agents call. Each call creates a new one with its own input.

A sub-agent's cancel token is a child of its caller's: a stop of the caller reaches it, even while
it is being created. A stop of the sub-agent ends only the sub-agent, and its caller gets an error.
Each sub-agent has its own row, workspace and cost. On resume, an interrupted call is made again,
and its sub-agent continues. A finished sub-agent returns its stored result.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled

from nb_agents import events as ev
from nb_agents.agents.decisions import Answered
from nb_agents.agents.message_json import Opening
from nb_agents.agents.replay import (
    STOPPED_BY_USER,
    PastChild,
)
from nb_agents.agents.runner import Round, Runners
from nb_agents.agents.solo import SoloContext, solo_toolbox
from nb_agents.agents.stop_scope import StopScope
from nb_agents.cancel import AgentStopped, CancellationStatus, CancelToken, current_token
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.context import within
from nb_agents.disk.directory import Directory
from nb_agents.errors import ModelCallError, UserError, error_message
from nb_agents.loop import submit
from nb_agents.tools.base import (
    BuiltInTool,
    Tool,
    ToolCall,
    ToolDefinition,
    ToolError,
    current_call,
    declare,
)
from nb_agents.tools.policy import AgentTools

logger = logging.getLogger("nb_agents")

(CALL_AGENT,) = declare(BuiltInTool("call_agent"))
MAX_DEPTH = 3
"""Maximum depth of nested calls.

A task loses detail each time an agent passes it on, and users can't follow a deeper tree.
"""

MAX_CHILDREN = 20
"""Maximum number of sub-agents in a run. It ends runs in which models only delegate."""

CLOSE_S = 2.0
"""Seconds that running sub-agents have to stop when the run ends."""

_SYSTEM = """Another agent calls you with a question or a task. It gets only your last message, as
plain text: write only the result in it, and do not ask questions. You have your own workspace for
files. Use the tools list_files, read_file, write_file, edit_file and delete_file with relative
paths. You can tell your caller the directory of your workspace: {workspace}"""


@dataclass(frozen=True)
class SubAgentDeps:
    """The dependencies of a run's sub-agents.

    Attributes:
        team: The team, whose agents can be called.
        runners: The runners of the turn's agents.
        tools: Returns a sub-agent's tools, except those for its workspace, given its id, workspace,
            configuration and additional tools.
        workspaces: Parent directory of the workspaces.
        context: Read-only files and directories for all agents.
        emit: Called with each event.
        admit: Called with the id and token of each sub-agent, so that the user can stop it.
    """

    team: TeamSpec
    runners: Runners
    tools: Callable[[str, Path, ToolKeys, Sequence[Tool]], Awaitable[AgentTools]]
    workspaces: Path
    context: Sequence[Path]
    emit: Callable[[ev.Event], None]
    admit: Callable[[str, CancelToken], None]


@dataclass
class Child:
    """A sub-agent.

    Attributes:
        id: The id, such as ``ada/critic#1``.
        name: The name that its caller used.
        spec: The configuration of the called agent.
        past: Its state at the end of the turn that this turn resumes, or None.
        has_asked: Whether it has made a model request.
        limit_s: Time limit in seconds. None means no limit.
    """

    id: str
    name: str
    spec: AgentSpec
    workspace: Path
    token: CancelToken
    past: PastChild | None = None
    has_asked: bool = False
    limit_s: float | None = None


class SubAgents:
    """The sub-agents of a run. Runs on the loop thread.

    Args:
        deps: The dependencies of the sub-agents.
        past: The sub-agents of the turn that this turn resumes, by id.
    """

    def __init__(self, deps: SubAgentDeps, past: Mapping[str, PastChild]) -> None:
        self._deps = deps
        self._past = {agent: each for agent, each in past.items() if not each.is_told}
        self._agents = {agent.id: agent for agent in deps.team.everyone}
        # Separates the worker threads in which workspaces are created.
        self._placing = Lock()
        self._folders = {_folder(agent) for agent in past}
        self._names: dict[str, tuple[str, ...]] = {}
        self._count = len(past)
        self._running: dict[str, Child] = {}
        self._changed = anyio.Event()
        self._is_over = False

    def tools(self, agent: str, keys: ToolKeys) -> list[Tool]:
        """Return an agent's tool for calling other agents. Empty if it may not call any.

        Args:
            agent: The agent's id in the team.
            keys: The agent's configuration.
        """
        names = [k for k in self._agents if k != agent and ({k, "*"} & set(keys.can_call))]
        return [self._tool(agent, names)] if names else []

    def _tool(self, agent: str, names: Sequence[str]) -> Tool:
        async def ask(args: dict[str, Any]) -> str:
            name, prompt = args.get("name"), args.get("input")
            if name not in names:
                raise ToolError(f"there is no agent {name!r} to call. Call one of: {choices}.")
            return await self.run(str(name), str(prompt or ""), current_call(), agent)

        choices = ", ".join(names)
        described = (
            "Call another agent and get its result. It sees only your input, not your "
            "conversation. Put everything that it needs to know into the input."
        )
        properties = {"name": {"type": "string", "enum": list(names)}, "input": {"type": "string"}}
        schema = {
            "type": "object",
            "properties": properties,
            "required": ["name", "input"],
            "additionalProperties": False,
        }
        definition = ToolDefinition(CALL_AGENT, described, schema)
        return Tool.from_definition(definition, ask, is_repeatable=True)

    def bound(self) -> AbstractContextManager[None]:
        """Make the public function `call` use these sub-agents in the block."""
        return within(_children, self)

    async def close(self) -> None:
        """Stop the sub-agents that are still running, and record no more events."""
        with anyio.move_on_after(CLOSE_S, shield=True):
            for child in tuple(self._running.values()):
                child.token.request(CancellationStatus.IMMEDIATE, "parent", "the run ended")
            while self._running:
                self._changed = anyio.Event()
                await self._changed.wait()
        self._is_over = True

    async def run(
        self,
        name: str,
        prompt: str,
        call: ToolCall,
        caller_name: str = "",
        token: CancelToken | None = None,
    ) -> str:
        """Run a sub-agent on an input, or continue the sub-agent of an interrupted call.

        Args:
            name: The called agent's id in the team.
            prompt: The input.
            call: The tool call that calls it.
            caller_name: The caller's id in the team if it differs from ``call.agent``, or "".
            token: The caller's token. Default: the current one.

        Returns:
            The sub-agent's last message.

        Raises:
            ToolError: The agent can't be called, it failed, or the user stopped only this agent.
            AgentStopped: The caller was stopped.
        """
        above = token or current_token() or CancelToken()
        names = self._names.get(call.agent) or (caller_name or call.agent,)
        self._check(name, prompt, names)
        # The call may come from a function in a thread that outlives its agent.
        await _raise_if_stopped(above)
        past = self._take_past(call, name, prompt)
        if past is None:
            self._count_one()
        if past is not None and not past.is_open:
            text, refusal = past.text or "", past.refusal
        else:
            with self.bound():
                spec = self._agents[name]
                child = await self._make(spec, name, call.agent, names, above, past)
                self._emit_call(child, call, prompt)
                text, refusal = await self.work(child, prompt)
        if refusal:
            await _raise_if_stopped(above)
            raise ToolError(refusal)
        return text

    def _take_past(self, call: ToolCall, name: str, prompt: str) -> PastChild | None:
        """Remove and return the sub-agent of an interrupted call with this input, or None."""
        key = (call.agent, name, prompt, "")
        matches = [
            agent
            for agent, each in self._past.items()
            if (each.called.caller, each.called.name, each.called.input, each.called.spawned) == key
        ]
        matches.sort(key=lambda agent: self._past[agent].called.call_id != call.id)
        return self._past.pop(matches[0]) if matches else None

    async def begin(
        self,
        name: str,
        label: str,
        prompt: str,
        token: CancelToken,
        *,
        limit_s: float | None = None,
        past: PastChild | None = None,
    ) -> Child:
        """Create a sub-agent with a team member's configuration. Run it with `work`.

        Args:
            name: The id of the team member, who is also the caller.
            label: The sub-agent's name.
            prompt: The input.
            token: The caller's token.
            limit_s: Time limit in seconds. None means no limit.
            past: The interrupted sub-agent to continue, or None for a new one.

        Raises:
            ToolError: It can't be created.
            AgentStopped: The caller was stopped.
        """
        self._check_input(prompt)
        await _raise_if_stopped(token)
        if past is None:
            self._count_one()
        child = await self._make(self._agents[name], label, name, (name,), token, past)
        child.limit_s = limit_s
        spawned = past.called.spawned if past else child.id
        self._emit_call(child, replace(current_call(), agent=name), prompt, spawned)
        return child

    def _emit_call(self, child: Child, call: ToolCall, prompt: str, spawned: str = "") -> None:
        self._deps.emit(
            ev.AgentCalled(
                agent=child.id,
                caller=call.agent,
                name=child.name,
                model=child.spec.backend.model or child.spec.backend.type,
                workspace=child.workspace.name,
                input=prompt,
                spawned=spawned,
                call_id=call.id,
            )
        )

    def _check(self, name: str, prompt: str, names: Sequence[str]) -> None:
        self._check_input(prompt)
        if name not in self._agents:
            choices = ", ".join(self._agents)
            raise ToolError(f"there is no agent {name!r} to call. Call one of: {choices}.")
        if name in names:
            chain = " → ".join([*names, name])
            raise ToolError(f"{name} can't be called because it waits for this call ({chain}).")
        if len(names) > MAX_DEPTH:
            raise ToolError(
                f"nested calls of agents can be at most {MAX_DEPTH} levels deep. "
                "Do the work yourself."
            )

    def _check_input(self, prompt: str) -> None:
        if self._is_over:
            raise ToolError("the run is over, so no agent can be called.")
        if not prompt.strip():
            raise ToolError(
                "the input is empty. Write everything that the other agent needs to know."
            )

    def _count_one(self) -> None:
        if self._count >= MAX_CHILDREN:
            raise ToolError(
                f"this run has reached its limit of {MAX_CHILDREN} called agents. "
                "Do the work yourself."
            )
        self._count += 1

    async def _make(
        self,
        spec: AgentSpec,
        name: str,
        caller: str,
        names: tuple[str, ...],
        above: CancelToken,
        past: PastChild | None,
    ) -> Child:
        child_id, workspace = await to_thread.run_sync(self._open_workspace, name, caller, past)
        # If the caller has been stopped in the meantime, nothing may start.
        await _raise_if_stopped(above)
        # From here on, a stop of the caller reaches the child token.
        child = Child(child_id, name, spec, workspace, above.child(child_id), past)
        child.has_asked = past is not None and past.calls > 0
        self._names[child_id] = (*names, name)
        self._deps.admit(child_id, child.token)
        return child

    def _open_workspace(self, name: str, caller: str, past: PastChild | None) -> tuple[str, Path]:
        """Create a workspace with the first free number, or open that of an interrupted agent.

        Numbers continue in a resumed turn, because it contains the old workspaces. An empty
        workspace counts as free, because its process died before it recorded a sub-agent.
        """
        if past is not None:
            path = self._deps.workspaces / _folder(past.called.agent)
            with Directory.made(path):
                return past.called.agent, path
        for number in range(1, 10_000):
            child_id = f"{caller}/{name}#{number}"
            path = self._deps.workspaces / _folder(child_id)
            with self._placing:
                if path.name not in self._folders and _is_empty(path):
                    self._folders.add(path.name)
                    with Directory.made(path):
                        return child_id, path
        raise ToolError(f"{name} was called too often.")

    async def work(self, child: Child, prompt: str) -> tuple[str, str]:
        """Run a sub-agent until it ends. Can be called from any asyncio task, once per sub-agent.

        Returns:
            (text, ""), or ("", the reason why there is no text).
        """
        self._running[child.id] = child
        text, error, outcome = "", "", "killed"
        try:
            with StopScope(child.token) as boundary, boundary.limit(child.limit_s) as clock:
                try:
                    boundary.checkpoint()
                    text = await self._answer(child, prompt, boundary)
                    outcome = "finished"
                except AgentStopped:
                    outcome = "stopped"
                except Exception as exc:
                    outcome, error = "failed", _failure_reason(child, exc)
            if clock.cancelled_caught:
                outcome, error = "failed", f"it exceeded its time limit of {child.limit_s:g} s."
        finally:
            self._end(child, outcome, text, error)
        if outcome == "finished":
            return text, ""
        if error:
            return "", f"{child.name} failed: {error}"
        return "", STOPPED_BY_USER.format(name=child.name)

    def _end(self, child: Child, outcome: Any, text: str, error: str) -> None:
        if error:
            self._emit(ev.AgentFailed(agent=child.id, error=error))
        else:
            has_not_begun = not child.has_asked and outcome != "finished"
            outcome = "never started" if has_not_begun else outcome
            self._emit(ev.AgentEnded(agent=child.id, outcome=outcome, text=text))
        del self._running[child.id]
        self._changed.set()

    async def _answer(self, child: Child, prompt: str, boundary: StopScope) -> str:
        spec, deps = child.spec, self._deps
        runner = await deps.runners.of(spec)
        tools = await deps.tools(
            child.id, child.workspace, spec.backend, self.tools(spec.id, spec.backend)
        )
        boundary.checkpoint()

        def emit(event: ev.Event) -> None:
            child.has_asked |= isinstance(event, ev.ModelStarted)
            self._emit(event)

        round = Round(
            child.id,
            1,
            _opening(spec.system_message, prompt, child.workspace),
            solo_toolbox(child.workspace, deps.context, tools),
            SoloContext(child.id, (), 0, emit),
            emit,
            boundary,
            child.workspace,
            prompt,
            calls=child.past.calls if child.past else 0,
        )
        past = child.past.round if child.past else None
        decision = await deps.runners.play(spec, round, past)
        if not isinstance(decision, Answered):
            raise ModelCallError(runner.name, "The call ended without any text.")
        return decision.answer

    def _emit(self, event: ev.Event) -> None:
        if not self._is_over:
            self._deps.emit(event)


async def call(name: str, input: str) -> str:
    r"""Call another agent of the team on an input, from within a tool.

    The sub-agent has its own row, workspace and cost. It stops with the agent that called the tool.
    In a synchronous function, write ``asyncio.run(nb_agents.call(...))``.

    Args:
        name: The agent's id, from the team's ``agents`` or ``callable_agents``.
        input: The input, with everything that the agent needs to know.

    Returns:
        The agent's last message.

    Raises:
        UserError: The caller is not in a tool call of an agent.
        ToolError: The agent can't be called, it failed, or the user stopped only this agent. If
            your function does not catch it, the calling model gets it as the tool's result.
        AgentStopped: The agent that called the tool was stopped. Do not catch it.

    Example::

        @nb_agents.tool
        async def review(text: str) -> str:
            return await nb_agents.call("critic", f"What is wrong with this?\n\n{text}")
    """
    children, tool_call, token = _children.get(), current_call(), current_token()
    if children is None or not tool_call.agent or token is None:
        raise UserError(
            "nb_agents.call works in a function that an agent calls as its tool; "
            "elsewhere use nb_agents.start(task)."
        )
    # Run on the shared loop of all runs. Cancelling the future cancels the task.
    pending = submit(_outcome, children, name, input, tool_call, token)
    outcome = await asyncio.wrap_future(pending)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _outcome(
    children: SubAgents, name: str, prompt: str, tool_call: ToolCall, token: CancelToken
) -> str | BaseException:
    """Run a sub-agent and return its exception, because a raised one would end the shared loop."""
    try:
        return await children.run(name, prompt, tool_call, token=token)
    except (AgentStopped, Exception) as exc:
        return exc


async def _raise_if_stopped(caller: CancelToken) -> None:
    """Raise AgentStopped if the caller was stopped, or a cancellation for an immediate stop."""
    if caller.status >= CancellationStatus.IMMEDIATE:
        await checkpoint_if_cancelled()
    caller.checkpoint()


def _is_empty(path: Path) -> bool:
    """Return whether a path is missing or an empty directory."""
    try:
        with Directory.at(path) as directory:
            return not directory.entries()
    except OSError as exc:
        return isinstance(exc, FileNotFoundError)


def _folder(child_id: str) -> str:
    # No agent of a team can have a "+" in its name.
    safe = child_id.replace("#", "-").replace("/", "+")
    safe = re.sub(r"[^\w.+-]", "_", safe)[-120:]
    return safe if "+" in safe else f"+{safe}"


def _opening(own_prompt: str, prompt: str, workspace: Path) -> Opening:
    system = "\n\n".join(part for part in (own_prompt, _SYSTEM.format(workspace=workspace)) if part)
    return Opening(system, (prompt,))


def _failure_reason(child: Child, exc: Exception) -> str:
    if not isinstance(exc, UserError | ModelCallError | OSError):
        logger.error("agent %s crashed", child.id, exc_info=exc)
    return error_message(exc)


_children: ContextVar[SubAgents | None] = ContextVar("nb_agents_children", default=None)
