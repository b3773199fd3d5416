"""pydantic-ai's agents: one capability journals their calls; nothing of the agent is changed.

The capability's wrapper model is asked for at each attempt at a request, whatever model serves it,
and all tools pass its `wrap_tool_execute`, those of MCP servers and toolsets included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import ModelRetry
from pydantic_ai import Tool as PydanticTool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolRetryError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, tool_return_ta
from pydantic_ai.models import CompletedStreamedResponse, Model, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import FunctionToolset

from nb_agents.agents.message_json import dump_messages, load_messages
from nb_agents.agents.programs.call_log import CallLog, digest_of
from nb_agents.agents.programs.program_runner import Conversation, Framework
from nb_agents.agents.runner import WordStream
from nb_agents.models.backend import usage_of
from nb_agents.tools.base import Tool, ToolResult
from nb_agents.unicode import well_formed

_DECIDING_PARTS = ("part_kind", "tool_name", "content", "args")
"""What of a message tells one conversation from another: neither times nor ids."""


def framework(agent: Any) -> Framework:
    """Return how an agent is run."""
    return Framework(converse)


async def converse(agent: Any, talk: Conversation, /, **more: Any) -> str:
    """Run an agent until its output; see `program_runner.Converse`."""
    given = {"instructions": talk.system} if talk.system else {}
    result = await agent.run(
        talk.prompt,
        message_history=talk.history,
        capabilities=[Journaled(talk)],
        toolsets=[FunctionToolset([*map(_tool, talk.tools)])],
        **given,
        **more,
    )
    talk.history = result.all_messages()
    output = result.output
    return output if isinstance(output, str) else tool_return_ta.dump_json(output).decode()


def _tool(tool: Tool) -> PydanticTool[Any]:
    async def call(**args: Any) -> str:
        return await tool.call(args)

    made = tool.definition
    return PydanticTool.from_schema(call, made.name, made.description, made.parameters_json_schema)


class Journaled(AbstractCapability[Any]):
    """Journals the calls of a run, and replays those that had finished.

    Args:
        talk: Has the journal, and our tools among the agent's.
    """

    def __init__(self, talk: Conversation) -> None:
        super().__init__()
        self._log = talk.log
        self._ours = {tool.name: tool for tool in talk.tools}

    def get_wrapper_model(self, model: Model) -> Model:
        """Wrap the model of one attempt at a request."""
        return _JournaledModel(model, self._log)

    async def wrap_tool_execute(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: dict[str, Any], handler: Any
    ) -> Any:
        """Journal a call of a tool."""
        ours = self._ours.get(call.tool_name)
        if ours and ours.definition.ends_round:
            return await handler(args)
        live: list[Any] = []

        async def run() -> Any:
            try:
                value = await handler(args)
            except ToolRetryError as exc:
                return {"retry": str(exc.tool_retry.content)}
            if isinstance(value, ToolResult):
                return value
            live.append(value)
            return {"value": tool_return_ta.dump_python(value, mode="json")}

        place = self._log.place(f"t{self._log.count('m')}.{_position(ctx.messages, call)}")
        again = ours is not None and ours.is_repeatable
        said = await self._log.tool(place, call.tool_name, call.args, run, is_repeatable=again)
        if live or isinstance(said, ToolResult):
            return live[0] if live else str(said)
        if "retry" in said:
            raise ModelRetry(said["retry"])
        return said["value"]


def _position(messages: Sequence[ModelMessage], call: ToolCallPart) -> int:
    """Return a call's position in its response; servers may repeat ids."""
    response = next(m for m in reversed(messages) if isinstance(m, ModelResponse))
    calls = response.tool_calls
    same = (n for n, each in enumerate(calls) if each is call)
    alike = (n for n, each in enumerate(calls) if each.tool_call_id == call.tool_call_id)
    return next(same, next(alike, 0))


class _JournaledModel(WrapperModel):
    def __init__(self, wrapped: Model, log: CallLog) -> None:
        super().__init__(wrapped)
        self._log = log

    async def request(self, messages: Any, model_settings: Any, params: Any) -> ModelResponse:
        """Stream, so that words are kept and a stop closes the connection."""
        return await self._ask(messages, model_settings, params)

    @asynccontextmanager
    async def request_stream(
        self, messages: Any, model_settings: Any, params: Any, run_context: Any = None
    ) -> AsyncIterator[StreamedResponse]:
        response = await self._ask(messages, model_settings, params, run_context)
        # The whole reply is journalled before the agent acts on any of it.
        yield CompletedStreamedResponse(
            response, model_request_parameters=params, replay_events=True
        )

    async def _ask(
        self, messages: list[ModelMessage], settings: Any, params: Any, context: Any = None
    ) -> ModelResponse:
        def opened() -> tuple[str, Any]:
            stream = self.wrapped.request_stream(messages, settings, params, context)
            return self.wrapped.model_name, stream

        return await ask(self._log, digest_of_messages(messages), opened)


async def ask(log: CallLog, digest: str, opened: Callable[[], tuple[str, Any]]) -> ModelResponse:
    """Make a request, unless it has finished before.

    Args:
        log: The journal.
        digest: Of the conversation.
        opened: Returns the model's name and the stream of its answer, a context manager.
    """
    place = log.next_place("m")
    past = log.finished(place, digest=digest)
    if past is not None:
        [response] = load_messages([past.value])
        assert isinstance(response, ModelResponse)
        return response
    name, stream = opened()
    async with log.model(place, digest, name) as call:
        async with stream as events:
            async for event in events:
                _write(call, event)
            reply: ModelResponse = well_formed(events.get())
        call.response, call.form = dump_messages([reply])[0], ""
        call.usage = usage_of(reply)
    return reply


def _write(call: WordStream, event: Any) -> None:
    """Write the words of an event of the stream."""
    part = getattr(event, "part", None) if event.event_kind == "part_start" else None
    delta = getattr(event, "delta", None)
    kind = getattr(part, "part_kind", None) or getattr(delta, "part_delta_kind", None)
    text = getattr(part, "content", None) or getattr(delta, "content_delta", None)
    if isinstance(text, str) and kind in ("text", "thinking"):
        call.write(text, "thinking" if kind == "thinking" else "text")


def digest_of_messages(messages: Sequence[ModelMessage]) -> str:
    """Return a digest of a conversation without its instructions, times and ids."""
    parts = [part for message in dump_messages(messages) for part in message["parts"]]
    return digest_of([[part.get(key) for key in _DECIDING_PARTS] for part in parts])
