"""Runs agents of ag2 1.x with a middleware that records their model and tool calls.

A response is stored field by field, with its text, calls and usage, because ag2's own loader is
unsafe: it creates objects of any class that the data names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ag2 import Middleware, tool
from ag2.events import (
    ModelMessage,
    ModelMessageChunk,
    ModelResponse,
    ToolCallEvent,
    ToolCallsEvent,
    ToolResultEvent,
)
from ag2.events.types import Usage
from ag2.middleware import BaseMiddleware

from nb_agents import events as ev
from nb_agents.agents.runner import TextStream
from nb_agents.extensions.external_agents.frameworks.call_log import CallLog, digest_of
from nb_agents.extensions.external_agents.frameworks.program_runner import Conversation, Framework
from nb_agents.json_text import json_text
from nb_agents.models.usage import UsageMeter
from nb_agents.tools.base import Tool, ToolResult

FORM = "ag2 response"
"""The format of a model's response in the journal: text, calls and usage as JSON."""


def framework(agent: Any) -> Framework:
    """Return the `Framework` for an agent."""
    return Framework(converse)


async def converse(agent: Any, talk: Conversation, /, **more: Any) -> str:
    """Run an agent until it replies. See `program_runner.Converse`."""
    journaled = Middleware(_Journaled, log=talk.log, team_tools={t.name: t for t in talk.tools})
    arguments = {"middleware": [journaled], "tools": [*map(_offered, talk.tools)], **more}
    partner = agent if talk.history is None else talk.history
    prompt = f"{talk.system}\n\n{talk.prompt}" if talk.history is None else talk.prompt
    talk.history = reply = await partner.ask(prompt.strip(), **arguments)
    content = await reply.content()
    return content if isinstance(content, str) else json_text(content)


def _offered(team_tool: Tool) -> Any:
    async def handled_by_the_middleware(**args: Any) -> str:
        return ""

    definition = team_tool.definition
    return tool(
        handled_by_the_middleware,
        name=definition.name,
        description=definition.description or definition.name,
        schema=definition.parameters_json_schema,
    )


class _Journaled(BaseMiddleware):
    def __init__(
        self, event: Any, context: Any, log: CallLog, team_tools: Mapping[str, Tool]
    ) -> None:
        super().__init__(event, context)
        self._log = log
        self._team_tools = team_tools
        self._ids: list[str] = []

    async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> ModelResponse:
        address = self._log.next_place("m")
        digest = digest_of([_contents(each) for each in events])
        past = self._log.finished(address, digest=digest)
        response = (
            _loaded(past.value)
            if past
            else await self._ask(call_next, events, context, address, digest)
        )
        self._ids = [call.id for call in response.tool_calls.calls]
        return response

    async def _ask(
        self, call_next: Any, events: Any, context: Any, address: str, digest: str
    ) -> ModelResponse:
        async def send(call: TextStream) -> ModelResponse:
            meter = UsageMeter(
                lambda: sum(len(str(_contents(each))) for each in events), lambda: call.chars
            )

            async def write(chunk: ModelMessageChunk) -> None:
                call.meter = meter  # the reply has begun
                call.write(chunk.content)

            with context.stream.where(ModelMessageChunk).sub_scope(write):
                response: ModelResponse = await call_next(events, context)
            if not call.text and response.message:
                call.write(response.message.content)
            call.response, call.form = _dumped(response), FORM
            call.usage = ev.Usage(
                input_tokens=int(response.usage.prompt_tokens or 0),
                output_tokens=int(response.usage.completion_tokens or 0),
            )
            return response

        return await self._log.request(address, digest, send)

    async def on_tool_execution(self, call_next: Any, event: Any, context: Any) -> Any:
        team_tool, live = self._team_tools.get(event.name), list[Any]()
        if team_tool and team_tool.definition.ends_round:
            return ToolResultEvent.from_call(event, str(await team_tool.call(event.arguments)))

        async def run() -> Any:
            if team_tool:
                return await team_tool.call(event.arguments)
            live.append(await call_next(event, context))
            error = getattr(live[0], "error", None)
            if error is not None:
                return ToolResult(f"{type(error).__name__}: {error}", is_error=True)
            return ToolResult("\n".join(_text(part) for part in live[0].result.parts))

        number = self._ids.index(event.id) if event.id in self._ids else 0
        address = self._log.place(f"t{self._log.count('m')}.{number}")
        again = team_tool is not None and team_tool.is_repeatable
        result = await self._log.tool(
            address, event.name, event.arguments, run, is_repeatable=again
        )
        return live[0] if live else ToolResultEvent.from_call(event, str(result))


def _dumped(response: ModelResponse) -> dict[str, Any]:
    calls = response.tool_calls.calls
    return {
        "text": response.message.content if response.message else None,
        "calls": [[each.id, each.name, each.arguments, each.vendor_metadata] for each in calls],
        "tokens": [response.usage.prompt_tokens, response.usage.completion_tokens],
        "model": response.model,
        "finish_reason": response.finish_reason,
    }


def _loaded(data: Mapping[str, Any]) -> ModelResponse:
    calls = [
        ToolCallEvent(id=id, name=name, arguments=arguments, vendor_metadata=meta)
        for id, name, arguments, meta in data["calls"]
    ]
    sent, received = data["tokens"]
    return ModelResponse(
        message=None if data["text"] is None else ModelMessage(data["text"]),
        tool_calls=ToolCallsEvent(calls),
        usage=Usage(prompt_tokens=sent, completion_tokens=received),
        model=data["model"],
        finish_reason=data["finish_reason"],
    )


def _contents(event: Any) -> Any:
    """Return the parts of an event that identify a conversation, without times and ids."""
    if isinstance(event, ModelResponse):
        calls = [[each.name, each.arguments] for each in event.tool_calls.calls]
        return [event.message.content if event.message else None, calls]
    results = getattr(event, "results", None)
    if results is not None:
        return [[each.name, [_text(part) for part in each.result.parts]] for each in results]
    return [type(event).__name__, [_text(part) for part in getattr(event, "parts", ())]]


def _text(part: Any) -> str:
    return str(getattr(part, "content", None) or getattr(part, "data", ""))
