"""Agents that are functions: ``async def agent(task, ctx)``, or an async generator of words.

What a function does by its `AgentContext` is journalled, and not done again by a resume. The rest
of it starts again.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nb_agents.agents.placed_calls import WORDS
from nb_agents.agents.programs.call_log import digest_of
from nb_agents.agents.programs.program_runner import Conversation, Framework, own_tools
from nb_agents.models.backend import Backend
from nb_agents.tools.base import ToolError, ToolResult


class AgentContext:
    """What a function that is an agent can do so that a resume does not do it again.

    Attributes:
        task: The task, or the step's prompt.
        prompt: All that is asked: the task with the answers there are, and what to do with them.
        system: The agent's role and rules.
        voters: The labels that stand for the answers; a function that returns one votes for it.
        agent: The agent's id, or the address of its step.
        workspace: Its directory.
    """

    def __init__(self, talk: Conversation, framework_of: Callable[[Any], Framework]) -> None:
        self._log = talk.log
        self._framework_of = framework_of
        self.task, self.prompt, self.system = talk.task, talk.prompt, talk.system
        self.voters = talk.voters
        self.agent = talk.log.round.agent
        self.workspace: Path = talk.log.round.workspace

    async def step(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        """Do something once and for all: a finished step returns what it returned.

        A step that was cut is done again.

        Args:
            name: Its name; steps of one name are counted.
            fn: The function, async or not; what it returns must be JSON-like data.
            args: Its arguments.

        Raises:
            AgentStopped: A stop was asked for.
        """

        async def run() -> Any:
            value = fn(*args)
            value = await value if inspect.isawaitable(value) else value
            return json.loads(json.dumps(value))  # now as later: a tuple comes back as a list

        place = self._log.next_place(f"{_one_line(name)}#")
        return await self._log.tool(place, name, None, run, is_repeatable=True)

    async def call_tool(self, name: str, args: Mapping[str, Any] | None = None) -> str:
        """Call one of the agent's tools: of its workspace, the notebook, the data store or MCP.

        Args:
            name: The tool's name, as a model would see it.
            args: Its arguments.

        Returns:
            The tool's text.

        Raises:
            ToolError: It failed.
            AgentStopped: A stop was asked for.
        """
        toolbox, given = self._log.round.toolbox, dict(args or {})
        place = self._log.next_place(f"{_one_line(name)}#")
        again = toolbox.is_repeatable(name)
        result = await self._log.tool(
            place, name, given, lambda: toolbox.call(name, given), is_repeatable=again
        )
        if isinstance(result, ToolResult) and result.is_error:
            raise ToolError(str(result).removeprefix("Error: "))
        return str(result)

    async def model(self, prompt: str, model: Any, *, system: str = "") -> str:
        """Ask a model; its words stream.

        Args:
            prompt: What it is asked.
            model: A pydantic-ai model or the name of one, as ``"openai:gpt-5-mini"``, or a
                `nb_agents.models.backend.Backend`.
            system: Its role.

        Returns:
            Its text.

        Raises:
            AgentStopped: A stop was asked for.
        """
        from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

        from nb_agents.agents.programs.pydantic_agent import ask

        asked = [SystemPromptPart(system)] * bool(system) + [UserPromptPart(prompt)]

        def opened() -> tuple[str, Any]:
            backend = _backend_of(model)
            return backend.name, backend.stream([ModelRequest(parts=asked)], [])

        response = await ask(self._log, digest_of([system, prompt]), opened)
        return response.text or ""

    async def run(self, agent: Any, prompt: str, **more: Any) -> str:
        """Run an agent of a framework; its calls are replayed as if it were a member.

        Args:
            agent: A pydantic-ai or OpenAI Agents agent, an ag2 agent or a LangGraph graph.
            prompt: What it is asked.
            more: Arguments for its framework's run, such as ``deps=``.

        Returns:
            The text that it ends in.

        Raises:
            AgentStopped: A stop was asked for.
        """
        talk = Conversation(self._log, "", prompt, prompt, own_tools(self._log.round.toolbox))
        with self._log.run():
            return await self._framework_of(agent).converse(agent, talk, **more)

    async def checkpoint(self) -> None:
        """Let a stop or a pause take effect here.

        Raises:
            AgentStopped: A stop was asked for.
        """
        await self._log.checkpoint()


def _one_line(name: str) -> str:
    return " ".join(str(name).split()).replace("/", "|")


def _backend_of(model: Any) -> Backend:
    if hasattr(model, "stream"):
        backend: Backend = model
        return backend
    from pydantic_ai.models import infer_model

    from nb_agents.models.backend import PydanticBackend

    return PydanticBackend(infer_model(model))


async def _converse(
    framework_of: Callable[[Any], Framework],
    function: Callable[..., Any],
    talk: Conversation,
    /,
    **more: Any,
) -> str:
    """Run a function to its end; see `program_runner.Converse`."""
    await talk.log.checkpoint()
    context = AgentContext(talk, framework_of)
    given = (talk.task, context) if _takes_context(function) else (talk.task,)
    async with talk.log.round.call(WORDS) as call:
        made = function(*given, **more)
        if not hasattr(made, "__aiter__"):
            call.write(await _text_of(made))
            return call.text
        try:
            async for piece in made:
                call.write(str(piece))
        finally:
            await made.aclose()
    return call.text


async def _text_of(made: Awaitable[Any]) -> str:
    value = await made
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _takes_context(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) > 1


def function_framework(
    function: Callable[..., Any], framework_of: Callable[[Any], Framework]
) -> Framework:
    """Return how a function is run; one without a context is not asked to vote.

    Args:
        function: The function.
        framework_of: Returns how the agents that it runs are run.
    """
    return Framework(
        partial(_converse, framework_of),
        resumes="in steps",
        calls_tools=False,
        sees_rounds=_takes_context(function),
    )
