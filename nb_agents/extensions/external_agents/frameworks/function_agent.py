"""Runs agents that are functions: ``async def agent(task, ctx)``, or an async generator of text.

Calls that a function makes through its `AgentContext` are recorded, and a resume does not repeat
them. The rest of the function runs again. Calls may be made in any task or thread, and a stop ends
all of them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nb_agents.agents.placed_calls import TEXT_PLACE
from nb_agents.extensions.external_agents.frameworks.call_log import digest_of
from nb_agents.extensions.external_agents.frameworks.program_runner import (
    Conversation,
    Framework,
    own_tools,
)
from nb_agents.json_text import json_text
from nb_agents.models.backend import Backend, PydanticBackend, open_request
from nb_agents.tools.base import ToolError, ToolResult

T = TypeVar("T")


class AgentContext:
    """Lets an agent function make calls that a resume does not repeat.

    Attributes:
        task: The task, or the step's prompt.
        prompt: The complete prompt: the task, the current answers, and instructions.
        system: The agent's role and rules.
        voters: The labels of the answers. A function that returns a label votes for that answer.
        agent: The agent's id, or the address of its step.
        workspace: The agent's directory for files.
    """

    def __init__(self, talk: Conversation, framework_of: Callable[[Any], Framework]) -> None:
        self._log, self._work = talk.log, talk.log.work
        self._framework_of = framework_of
        self.task, self.prompt, self.system = talk.task, talk.prompt, talk.system
        self.voters = talk.voters
        self.agent = talk.log.round.agent
        self.workspace: Path = talk.log.round.workspace

    async def step(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        """Call a function once. After a resume, a finished step returns its recorded result.

        A resume repeats an interrupted step.

        Args:
            name: The step's name. Steps with the same name are numbered.
            fn: The function, async or not. It must return JSON-like data.
            args: Its arguments.

        Raises:
            AgentStopped: A stop was requested.
        """
        return await self._call(self._step, name, fn, args)

    async def call_tool(self, name: str, args: Mapping[str, Any] | None = None) -> str:
        """Call one of the agent's tools: for files, from the notebook, the data store or MCP.

        Args:
            name: The tool's name, as models see it.
            args: The arguments.

        Returns:
            The tool's result as text.

        Raises:
            ToolError: The tool failed.
            AgentStopped: A stop was requested.
        """
        return await self._call(self._call_tool, name, dict(args or {}))

    async def model(self, prompt: str, model: Any, *, system: str = "") -> str:
        """Send a prompt to a model and return its text, which is also streamed to the user.

        A failed request is retried under the run's retry policy.

        Args:
            prompt: The prompt.
            model: A pydantic-ai model, the name of one such as ``"openai:gpt-5-mini"``, or a
                `nb_agents.models.backend.Backend`.
            system: The system prompt.

        Raises:
            AgentStopped: A stop was requested.
        """
        return await self._call(self._model, prompt, model, system)

    async def run(self, agent: Any, prompt: str, **more: Any) -> str:
        """Run an agent of a framework and return its final text. Its calls are also recorded.

        Args:
            agent: A pydantic-ai or OpenAI Agents agent, an ag2 agent or a LangGraph graph.
            prompt: The prompt.
            more: Arguments for the framework's run method, such as ``deps=``.

        Raises:
            AgentStopped: A stop was requested.
        """
        return await self._call(self._run, agent, prompt, more)

    async def checkpoint(self) -> None:
        """Let a stop or a pause take effect here.

        Raises:
            AgentStopped: A stop was requested.
        """
        await self._call(self._log.checkpoint)

    async def _call(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        async def call() -> T:
            await self._log.refuse_if_stopped()
            return await method(*args)

        return await self._work.call(call)

    async def _step(self, name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        async def run() -> Any:
            value = fn(*args)
            value = await value if inspect.isawaitable(value) else value
            return json.loads(json.dumps(value))  # the same as after a resume: tuples become lists

        address = self._log.next_place(f"{_one_line(name)}#")
        return await self._log.tool(address, name, None, run, is_repeatable=True)

    async def _call_tool(self, name: str, args: dict[str, Any]) -> str:
        toolbox = self._log.round.toolbox
        address = self._log.next_place(f"{_one_line(name)}#")
        again = toolbox.is_repeatable(name)
        result = await self._log.tool(
            address, name, args, lambda: toolbox.call(name, args), is_repeatable=again
        )
        if isinstance(result, ToolResult) and result.is_error:
            raise ToolError(str(result).removeprefix("Error: "))
        return str(result)

    async def _model(self, prompt: str, model: Any, system: str) -> str:
        from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

        from nb_agents.extensions.external_agents.frameworks.pydantic_agent import ask

        parts = [SystemPromptPart(system)] * bool(system) + [UserPromptPart(prompt)]
        messages = [ModelRequest(parts=parts)]

        def opened() -> tuple[str, Any]:
            backend = _backend_of(model)
            return backend.name, partial(open_request, backend, messages)

        digest = digest_of([system, prompt])
        response = await ask(self._log, digest, messages, opened, retries=True)
        return response.text or ""

    async def _run(self, agent: Any, prompt: str, more: Mapping[str, Any]) -> str:
        talk = Conversation(self._log, "", prompt, prompt, own_tools(self._log.round.toolbox))
        with self._log.run():
            return await self._framework_of(agent).converse(agent, talk, **more)


def _one_line(name: str) -> str:
    return " ".join(str(name).split()).replace("/", "|")


def _backend_of(model: Any) -> Backend:
    if hasattr(model, "stream"):
        backend: Backend = model
        return backend
    from pydantic_ai.models import infer_model

    return PydanticBackend(infer_model(model))


async def _converse(
    framework_of: Callable[[Any], Framework],
    function: Callable[..., Any],
    talk: Conversation,
    /,
    **more: Any,
) -> str:
    """Run a function until it returns. See `program_runner.Converse`."""
    await talk.log.checkpoint()
    context = AgentContext(talk, framework_of)
    arguments = (talk.task, context) if _takes_context(function) else (talk.task,)
    async with talk.log.round.call(TEXT_PLACE) as call:
        result = function(*arguments, **more)
        if not hasattr(result, "__aiter__"):
            call.write(await _text_of(result))
            return call.text
        try:
            async for piece in result:
                call.write(str(piece))
        finally:
            await result.aclose()
    return call.text


async def _text_of(result: Awaitable[Any]) -> str:
    value = await result
    return value if isinstance(value, str) else json_text(value)


def _takes_context(function: Callable[..., Any]) -> bool:
    return len(inspect.signature(function).parameters) > 1


def function_framework(
    function: Callable[..., Any], framework_of: Callable[[Any], Framework]
) -> Framework:
    """Return the `Framework` for a function. A function without a context argument never votes.

    Args:
        function: The function.
        framework_of: Returns the framework of an agent that the function runs.
    """
    return Framework(
        partial(_converse, framework_of),
        resumes="in steps",
        calls_tools=False,
        sees_rounds=_takes_context(function),
    )
