"""Sub-agents: agents that other agents call, a new one for each call, with an input of its own.

A sub-agent's cancel token is a child of its caller's: a stop of the caller reaches it, even while
it is being created; a stop of the sub-agent ends only itself, and the caller gets an error. It has
a row, a workspace and costs of its own. On resume, an interrupted call is made again, and the
sub-agent continues where it was; a finished one returns its result again.
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
    STOPPED_ALONE,
    PastChild,
)
from nb_agents.agents.runner import Round, Runners
from nb_agents.agents.solo import SoloContext, solo_toolbox
from nb_agents.agents.stop_scope import StopScope
from nb_agents.cancel import AgentStopped, CancellationStatus, CancelToken, current_token
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.context import within
from nb_agents.errors import ModelCallError, UserError, said_by
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
"""Levels of nested calls: a task loses detail each time it is passed on, and users can't follow a
deeper tree."""

MAX_CHILDREN = 20
"""Limit of sub-agents in one run: it ends runs whose models only delegate."""

CLOSE_S = 2.0
"""Time for sub-agents that are still working at the end of the run to end themselves."""

_SYSTEM = """Another agent calls you with a question or a piece of work. Your last message, as plain
text, is all that it gets: write the result alone, without asking back. You have a workspace of
files of your own, reached by the tools list_files, read_file, write_file, edit_file and delete_file
with relative paths. Its directory, which you may give to your caller, is {workspace}"""


@dataclass(frozen=True)
class SubAgentDeps:
    """What the sub-agents of a run depend on.

    Attributes:
        team: The team, whose agents can be called.
        runners: The runners of the turn's agents.
        tools: Returns a sub-agent's tools other than those for its workspace, given its id, its
            workspace, its configuration and further tools.
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
        name: The name that it was called by.
        spec: The spec of the agent that was called.
        workspace: The sub-agent's workspace.
        token: The sub-agent's cancel token.
        past: Its events in the turn that this one resumes.
        has_asked: Whether it has made a model request.
        limit_s: Time limit in seconds; None means no limit.
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
        deps: What they depend on.
        past: Those of the turn that this one resumes, by their ids.
    """

    def __init__(self, deps: SubAgentDeps, past: Mapping[str, PastChild]) -> None:
        self._deps = deps
        self._past = {agent: each for agent, each in past.items() if not each.is_told}
        self._known = {agent.id: agent for agent in deps.team.everyone}
        # Separates the worker threads in which workspaces are created.
        self._placing = Lock()
        self._folders = {_folder(agent) for agent in past}
        self._names: dict[str, tuple[str, ...]] = {}
        self._count = len(past)
        self._at_work: dict[str, Child] = {}
        self._changed = anyio.Event()
        self._is_over = False

    def tools(self, agent: str, keys: ToolKeys) -> list[Tool]:
        """Return an agent's tool for calling others; empty when it may call none.

        Args:
            agent: The agent's id in the team.
            keys: The agent's configuration.
        """
        names = [k for k in self._known if k != agent and ({k, "*"} & set(keys.can_call))]
        return [self._tool(agent, names)] if names else []

    def _tool(self, agent: str, names: Sequence[str]) -> Tool:
        async def ask(args: dict[str, Any]) -> str:
            name, asked = args.get("name"), args.get("input")
            if name not in names:
                raise ToolError(f"there is no agent {name!r} to call. Call one of: {known}.")
            return await self.run(str(name), str(asked or ""), current_call(), agent)

        known = ", ".join(names)
        described = (
            "Call another agent: it works on your input alone, without knowing what you know, and "
            "you get its result."
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
        """Make `call` use these sub-agents within the block."""
        return within(_children, self)

    async def close(self) -> None:
        """Stop sub-agents that are still working when the run ends, and record no more events."""
        with anyio.move_on_after(CLOSE_S, shield=True):
            for child in tuple(self._at_work.values()):
                child.token.request(CancellationStatus.IMMEDIATE, "parent", "the run ended")
            while self._at_work:
                self._changed = anyio.Event()
                await self._changed.wait()
        self._is_over = True

    async def run(
        self,
        name: str,
        asked: str,
        call: ToolCall,
        caller_name: str = "",
        token: CancelToken | None = None,
    ) -> str:
        """Run a sub-agent on an input, or one that an interrupted call had begun to its end.

        Args:
            name: The called agent's id in the team.
            asked: The input.
            call: The tool call in which it is called.
            caller_name: The caller's id in the team, where that differs; "" if unknown.
            token: The caller's token; by default the one that is bound here.

        Returns:
            The sub-agent's last message.

        Raises:
            ToolError: The agent can't be called, failed, or was stopped alone.
            AgentStopped: The caller was stopped.
        """
        above = token or current_token() or CancelToken()
        names = self._names.get(call.agent) or (caller_name or call.agent,)
        self._check(name, asked, names)
        # The call may come from a function in a thread that outlives its agent.
        await _raise_if_stopped(above)
        past = self._take_past(call, name, asked)
        if past is None:
            self._count_one()
        if past is not None and not past.is_open:
            text, refusal = past.text or "", past.refusal
        else:
            with self.bound():
                spec = self._known[name]
                child = await self._make(spec, name, call.agent, names, above, past)
                self._tell(child, call, asked)
                text, refusal = await self.work(child, asked)
        if refusal:
            await _raise_if_stopped(above)
            raise ToolError(refusal)
        return text

    def _take_past(self, call: ToolCall, name: str, asked: str) -> PastChild | None:
        """Take the sub-agent that an interrupted call had begun; its own call's comes first."""
        wanted = (call.agent, name, asked, "")
        found = [
            agent
            for agent, each in self._past.items()
            if (each.called.caller, each.called.name, each.called.input, each.called.spawned)
            == wanted
        ]
        found.sort(key=lambda agent: self._past[agent].called.call_id != call.id)
        return self._past.pop(found[0]) if found else None

    async def begin(
        self,
        name: str,
        label: str,
        asked: str,
        token: CancelToken,
        *,
        limit_s: float | None = None,
        past: PastChild | None = None,
    ) -> Child:
        """Create a sub-agent of a team member's kind, to be run by `work`.

        Args:
            name: The member's id in the team, who calls it.
            label: The sub-agent's name.
            asked: The input.
            token: The caller's token.
            limit_s: Time limit in seconds; None means no limit.
            past: The sub-agent of the resumed turn that continues.

        Raises:
            ToolError: It can't be created.
            AgentStopped: The caller was stopped.
        """
        self._check_input(asked)
        await _raise_if_stopped(token)
        if past is None:
            self._count_one()
        child = await self._make(self._known[name], label, name, (name,), token, past)
        child.limit_s = limit_s
        spawned = past.called.spawned if past else child.id
        self._tell(child, replace(current_call(), agent=name), asked, spawned)
        return child

    def _tell(self, child: Child, call: ToolCall, asked: str, spawned: str = "") -> None:
        self._deps.emit(
            ev.AgentCalled(
                agent=child.id,
                caller=call.agent,
                name=child.name,
                model=child.spec.backend.model or child.spec.backend.type,
                workspace=child.workspace.name,
                input=asked,
                spawned=spawned,
                call_id=call.id,
            )
        )

    def _check(self, name: str, asked: str, names: Sequence[str]) -> None:
        self._check_input(asked)
        if name not in self._known:
            known = ", ".join(self._known)
            raise ToolError(f"there is no agent {name!r} to call. There are: {known}.")
        if name in names:
            chain = " → ".join([*names, name])
            raise ToolError(f"{name} can't be called: it waits for this very call ({chain}).")
        if len(names) > MAX_DEPTH:
            raise ToolError(
                f"agents may call one another {MAX_DEPTH} deep, and this would be deeper. "
                "Do the work yourself."
            )

    def _check_input(self, asked: str) -> None:
        if self._is_over:
            raise ToolError("the run is over, so no agent can be called.")
        if not asked.strip():
            raise ToolError("the input is empty. Write all that the other agent has to know.")

    def _count_one(self) -> None:
        if self._count >= MAX_CHILDREN:
            raise ToolError(
                f"{MAX_CHILDREN} agents have been called in this run, which is the most. "
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
        child_id, workspace = await to_thread.run_sync(self._place, name, caller, past)
        # The caller may have been stopped in the meantime: then nothing may start.
        await _raise_if_stopped(above)
        # From here on, a stop of the caller reaches the child token.
        child = Child(child_id, name, spec, workspace, above.child(child_id), past)
        child.has_asked = past is not None and past.calls > 0
        self._names[child_id] = (*names, name)
        self._deps.admit(child_id, child.token)
        return child

    def _place(self, name: str, caller: str, past: PastChild | None) -> tuple[str, Path]:
        """Create a workspace with the first number that is free on disk, or open a past one.

        The numbers of a resumed turn, which has the old workspaces, therefore continue. An empty
        workspace without a sub-agent was left by a process that died before it recorded its
        sub-agent.
        """
        if past is not None:
            path = self._deps.workspaces / _folder(past.called.agent)
            path.mkdir(parents=True, exist_ok=True)
            return past.called.agent, path
        for number in range(1, 10_000):
            child_id = f"{caller}/{name}#{number}"
            path = self._deps.workspaces / _folder(child_id)
            with self._placing:
                if path.name not in self._folders and _is_empty(path):
                    self._folders.add(path.name)
                    path.mkdir(parents=True, exist_ok=True)
                    return child_id, path
        raise ToolError(f"{name} was called too often.")

    async def work(self, child: Child, asked: str) -> tuple[str, str]:
        """Run a sub-agent to its end. Callable from any asyncio task, once per sub-agent.

        Returns:
            The text and "", or "" and the reason why there is no text.
        """
        self._at_work[child.id] = child
        text, error, outcome = "", "", "killed"
        try:
            with StopScope(child.token) as boundary, boundary.limit(child.limit_s) as clock:
                try:
                    boundary.checkpoint()
                    text = await self._answer(child, asked, boundary)
                    outcome = "finished"
                except AgentStopped:
                    outcome = "stopped"
                except Exception as exc:
                    outcome, error = "failed", _why(child, exc)
            if clock.cancelled_caught:
                outcome, error = "failed", f"its {child.limit_s:g} s were over."
        finally:
            self._end(child, outcome, text, error)
        if outcome == "finished":
            return text, ""
        if error:
            return "", f"{child.name} failed: {error}"
        return "", STOPPED_ALONE.format(name=child.name)

    def _end(self, child: Child, outcome: Any, text: str, error: str) -> None:
        if error:
            self._emit(ev.AgentFailed(agent=child.id, error=error))
        else:
            is_unborn = not child.has_asked and outcome != "finished"
            outcome = "never started" if is_unborn else outcome
            self._emit(ev.AgentEnded(agent=child.id, outcome=outcome, text=text))
        del self._at_work[child.id]
        self._changed.set()

    async def _answer(self, child: Child, asked: str, boundary: StopScope) -> str:
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
            _opening(spec.system_message, asked, child.workspace),
            solo_toolbox(child.workspace, deps.context, tools),
            SoloContext(child.id, (), 0, emit),
            emit,
            boundary,
            child.workspace,
            asked,
            calls=child.past.calls if child.past else 0,
        )
        past = child.past.round if child.past else None
        decision = await deps.runners.play(spec, round, past)
        if not isinstance(decision, Answered):
            raise ModelCallError(runner.name, "The call ended without a text.")
        return decision.answer

    def _emit(self, event: ev.Event) -> None:
        if not self._is_over:
            self._deps.emit(event)


async def call(name: str, input: str) -> str:
    r"""Call another agent of the team on an input, from within a tool.

    The sub-agent has a row, a workspace and costs of its own, and is stopped with the agent that
    called the tool. In a synchronous function, write ``asyncio.run(nb_agents.call(...))``.

    Args:
        name: The agent's id, from the team's ``agents`` or ``callable_agents``.
        input: The input, with everything that the agent needs to know.

    Returns:
        The agent's last message.

    Raises:
        UserError: The caller is not in a tool call of an agent.
        ToolError: The agent can't be called, failed, or was stopped alone; if it is not caught, the
            calling model gets it as the tool's result.
        AgentStopped: The agent that called the tool was stopped. Do not catch it.

    Example::

        @nb_agents.tool
        async def review(text: str) -> str:
            return await nb_agents.call("critic", f"What is wrong with this?\n\n{text}")
    """
    children, made, token = _children.get(), current_call(), current_token()
    if children is None or not made.agent or token is None:
        raise UserError(
            "nb_agents.call works in a function that an agent calls as its tool; "
            "elsewhere use nb_agents.start(task)."
        )
    # Run on the loop of all runs, whatever this one is; cancelling the future cancels the task.
    pending = submit(_outcome, children, name, input, made, token)
    outcome = await asyncio.wrap_future(pending)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _outcome(
    children: SubAgents, name: str, asked: str, made: ToolCall, token: CancelToken
) -> str | BaseException:
    """Run a sub-agent and return its exception: `AgentStopped` would end the loop of all runs."""
    try:
        return await children.run(name, asked, made, token=token)
    except (AgentStopped, Exception) as exc:
        return exc


async def _raise_if_stopped(caller: CancelToken) -> None:
    """Raise if the caller was stopped: its cancellation after an immediate stop, else the stop."""
    if caller.status >= CancellationStatus.IMMEDIATE:
        await checkpoint_if_cancelled()
    caller.checkpoint()


def _is_empty(path: Path) -> bool:
    """Return whether there is nothing at a path, or a directory without files."""
    if path.is_symlink() or path.is_file():
        return False
    return not path.exists() or not any(path.iterdir())


def _folder(child_id: str) -> str:
    # No agent of a team can have a "+" in its name.
    safe = child_id.replace("#", "-").replace("/", "+")
    safe = re.sub(r"[^\w.+-]", "_", safe)[-120:]
    return safe if "+" in safe else f"+{safe}"


def _opening(own: str, asked: str, workspace: Path) -> Opening:
    system = "\n\n".join(part for part in (own, _SYSTEM.format(workspace=workspace)) if part)
    return Opening(system, (asked,))


def _why(child: Child, exc: Exception) -> str:
    if not isinstance(exc, UserError | ModelCallError | OSError):
        logger.error("agent %s crashed", child.id, exc_info=exc)
    return said_by(exc)


_children: ContextVar[SubAgents | None] = ContextVar("nb_agents_children", default=None)
