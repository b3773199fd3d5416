"""Runs pydantic-ai agents with a capability that records their calls.

The agent itself is not changed. Each attempt at a request uses the capability's wrapper model, for
any model, and all tools go through its `wrap_tool_execute`, including those of MCP servers and
toolsets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
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
from nb_agents.agents.runner import TextStream
from nb_agents.extensions.external_agents.frameworks.call_log import CallLog, digest_of
from nb_agents.extensions.external_agents.frameworks.program_runner import Conversation, Framework
from nb_agents.json_text import json_text
from nb_agents.models.usage import StreamMeter, sent_chars, usage_of
from nb_agents.tools.base import Tool, ToolResult
from nb_agents.unicode import well_formed

_DECIDING_PARTS = ("part_kind", "tool_name", "content", "args")
"""The keys of a message that identify a conversation, without times and ids."""


def framework(agent: Any) -> Framework:
    """Return the `Framework` for an agent."""
    return Framework(converse)


async def converse(agent: Any, talk: Conversation, /, **more: Any) -> str:
    """Run an agent until it returns its output. See `program_runner.Converse`."""
    instructions = {"instructions": talk.system} if talk.system else {}
    result = await agent.run(
        talk.prompt,
        message_history=talk.history,
        capabilities=[Journaled(talk)],
        toolsets=[FunctionToolset([*map(_tool, talk.tools)])],
        **instructions,
        **more,
    )
    talk.history = result.all_messages()
    output = result.output
    if isinstance(output, str):
        return output
    return json_text(tool_return_ta.dump_python(output, mode="json"), is_compact=True)


def _tool(tool: Tool) -> PydanticTool[Any]:
    async def call(**args: Any) -> str:
        return await tool.call(args)

    definition = tool.definition
    return PydanticTool.from_schema(
        call, definition.name, definition.description, definition.parameters_json_schema
    )


class Journaled(AbstractCapability[Any]):
    """Records the calls of a run, and replays finished calls.

    Args:
        talk: The conversation, with the call log and nb_agents's tools.
    """

    def __init__(self, talk: Conversation) -> None:
        super().__init__()
        self._log = talk.log
        self._team_tools = {tool.name: tool for tool in talk.tools}

    def get_wrapper_model(self, model: Model) -> Model:
        """Return a wrapper that records the requests to a model."""
        return _JournaledModel(model, self._log)

    async def wrap_tool_execute(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: dict[str, Any], handler: Any
    ) -> Any:
        """Call a tool and record the call, or return its recorded result."""
        team_tool = self._team_tools.get(call.tool_name)
        if team_tool and team_tool.definition.ends_round:
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

        address = self._log.place(f"t{self._log.count('m')}.{_position(ctx.messages, call)}")
        again = team_tool is not None and team_tool.is_repeatable
        result = await self._log.tool(address, call.tool_name, call.args, run, is_repeatable=again)
        if live or isinstance(result, ToolResult):
            return live[0] if live else str(result)
        if "retry" in result:
            raise ModelRetry(result["retry"])
        return result["value"]


def _position(messages: Sequence[ModelMessage], call: ToolCallPart) -> int:
    """Return a call's position in its response, because servers may repeat ids."""
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
        """Stream the response, so that a stop saves the text and closes the connection."""
        return await self._ask(messages, model_settings, params)

    @asynccontextmanager
    async def request_stream(
        self, messages: Any, model_settings: Any, params: Any, run_context: Any = None
    ) -> AsyncIterator[StreamedResponse]:
        response = await self._ask(messages, model_settings, params, run_context)
        # The complete reply is in the journal before the agent uses it.
        yield CompletedStreamedResponse(
            response, model_request_parameters=params, replay_events=True
        )

    async def _ask(
        self, messages: list[ModelMessage], settings: Any, params: Any, context: Any = None
    ) -> ModelResponse:
        def opened() -> tuple[str, Any]:
            stream = partial(self.wrapped.request_stream, messages, settings, params, context)
            return self.wrapped.model_name, stream

        return await ask(self._log, digest_of_messages(messages), messages, opened)


async def ask(
    log: CallLog,
    digest: str,
    messages: Sequence[ModelMessage],
    opened: Callable[[], tuple[str, Callable[[], Any]]],
    *,
    retries: bool = False,
) -> ModelResponse:
    """Make a model request, or return its recorded response.

    Args:
        digest: The digest of the conversation.
        messages: The conversation.
        opened: Returns the model's name and a function that returns a context manager for the
            stream of the response.
        retries: As for `CallLog.request`.
    """
    address = log.next_place("m")
    past = log.finished(address, digest=digest)
    if past is not None:
        [response] = load_messages([past.value])
        assert isinstance(response, ModelResponse)
        return response
    name, stream = opened()

    async def send(call: TextStream) -> ModelResponse:
        return await _receive(call, messages, stream)

    return await log.request(address, digest, send, name=name, retries=retries)


async def _receive(
    call: TextStream, messages: Sequence[ModelMessage], stream: Callable[[], Any]
) -> ModelResponse:
    async with stream() as events:
        meter = call.meter = StreamMeter(events, lambda: sent_chars(messages), lambda: call.chars)
        async for event in events:
            _write(call, event)
            meter.update()
        reply: ModelResponse = well_formed(events.get())
    call.response, call.form = dump_messages([reply])[0], ""
    call.usage = usage_of(reply)
    return reply


def _write(call: TextStream, event: Any) -> None:
    """Write the text of a stream event."""
    part = getattr(event, "part", None) if event.event_kind == "part_start" else None
    delta = getattr(event, "delta", None)
    kind = getattr(part, "part_kind", None) or getattr(delta, "part_delta_kind", None)
    text = getattr(part, "content", None) or getattr(delta, "content_delta", None)
    if isinstance(text, str) and kind in ("text", "thinking"):
        call.write(text, "thinking" if kind == "thinking" else "text")
    elif isinstance(args := getattr(part, "args", None) or getattr(delta, "args_delta", None), str):
        call.chars += len(args)


def digest_of_messages(messages: Sequence[ModelMessage]) -> str:
    """Return a digest of a conversation without its instructions, times and ids."""
    parts = [part for message in dump_messages(messages) for part in message["parts"]]
    return digest_of([[part.get(key) for key in _DECIDING_PARTS] for part in parts])
