"""Runs agents of the OpenAI Agents SDK as clones that record their model and tool calls.

Each agent in a chain of handoffs is cloned once, so that circular handoffs work. Hosted tools run
at the provider and are part of the model call. The calls inside an `as_tool` agent are not
recorded. Its finished result is replayed, and an unfinished call is treated as interrupted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    Runner,
    Usage,
)
from agents.tool import Tool as SdkTool
from openai.types.responses import Response
from pydantic import TypeAdapter

from nb_agents import events as ev
from nb_agents.agents.runner import TextStream
from nb_agents.extensions.external_agents.frameworks.call_log import CallLog, digest_of
from nb_agents.extensions.external_agents.frameworks.program_runner import Conversation, Framework
from nb_agents.json_text import json_text
from nb_agents.models.backend import BrokenReplyError
from nb_agents.models.usage import UsageMeter
from nb_agents.tools.base import Tool, ToolResult

FORM = "openai response"
"""The format of a model's response in the journal: the OpenAI SDK's `Response` as JSON."""

MAX_TURNS = 100
"""Maximum number of model calls in a run, as in `nb_agents.agents.model_runner`."""

_IDS = frozenset({"id", "status"})
_ANY: TypeAdapter[Any] = TypeAdapter(object)
_ENDS = frozenset({"response.completed", "response.incomplete"})


def framework(agent: Any) -> Framework:
    """Return the `Framework` for an agent."""
    return Framework(converse)


async def converse(agent: Any, talk: Conversation, /, **more: Any) -> str:
    """Run an agent until it returns its final output. See `program_runner.Converse`."""
    messages: Any = [{"role": "user", "content": talk.prompt}]
    system: Any = [{"role": "system", "content": talk.system}] if talk.system else []
    before: Any = talk.history if talk.history is not None else system
    clones = _Clones(talk)
    user_config = more.get("run_config") or RunConfig(tracing_disabled=True)
    settings = ModelSettings(include_usage=True).resolve(user_config.model_settings)
    provider = _JournaledProvider(user_config.model_provider, talk.log)
    config = dataclasses.replace(user_config, model_provider=provider, model_settings=settings)
    arguments: dict[str, Any] = {"max_turns": MAX_TURNS, **more, "run_config": config}
    result = await Runner.run(await clones.agent(agent), [*before, *messages], **arguments)
    talk.history = result.to_input_list()
    output = result.final_output
    if isinstance(output, str):
        return output
    return json_text(_ANY.dump_python(output, mode="json", fallback=str), is_compact=True)


class _Clones:
    def __init__(self, talk: Conversation) -> None:
        self._log = talk.log
        self._team_tools = talk.tools
        self._clones: dict[int, Agent[Any]] = {}
        self._calls: dict[str, int] = {}

    async def agent(self, original: Agent[Any]) -> Agent[Any]:
        """Return the clone of an agent, with the tools of its MCP servers as normal tools."""
        if id(original) in self._clones:
            return self._clones[id(original)]
        clone = self._clones[id(original)] = original.clone(mcp_servers=[])
        own_tools = [*original.tools, *await original.get_mcp_tools(RunContextWrapper(None))]
        clone.tools = [*map(self._wrap, own_tools), *map(self._offered, self._team_tools)]
        clone.handoffs = [
            await self.agent(each) if isinstance(each, Agent) else self._handoff(each)
            for each in original.handoffs
        ]
        if isinstance(original.model, Model):
            clone.model = _SdkModel(original.model, self._log)
        return clone

    def _handoff(self, original: Handoff[Any, Any]) -> Handoff[Any, Any]:
        inner = original.on_invoke_handoff

        async def go(context: Any, args: str) -> Any:
            return await self.agent(await inner(context, args))

        return dataclasses.replace(original, on_invoke_handoff=go)

    def _wrap(self, tool: SdkTool) -> SdkTool:
        if not isinstance(tool, FunctionTool):
            return tool
        inner = tool.on_invoke_tool

        async def invoke(context: Any, args: str) -> Any:
            return await self.call(
                context.tool_call_id, tool.name, args, lambda: inner(context, args)
            )

        return dataclasses.replace(tool, on_invoke_tool=invoke)

    def _offered(self, tool: Tool) -> SdkTool:
        async def invoke(context: Any, args: str) -> Any:
            if tool.definition.ends_round:
                return str(await tool.call(args))
            return await self.call(
                context.tool_call_id,
                tool.name,
                args,
                lambda: tool.call(args),
                is_repeatable=tool.is_repeatable,
            )

        definition = tool.definition
        schema = definition.parameters_json_schema
        return FunctionTool(
            definition.name, definition.description or "", schema, invoke, strict_json_schema=False
        )

    async def call(
        self,
        call_id: str,
        name: str,
        args: Any,
        run: Callable[[], Awaitable[Any]],
        is_repeatable: bool = False,
    ) -> Any:
        """Call a tool and record the call. The SDK rejects calls that repeat an id."""
        live: list[Any] = []

        async def call_tool() -> Any:
            value = await run()
            if isinstance(value, ToolResult):
                return value
            live.append(value)
            return _ANY.dump_python(value, mode="json", fallback=str)

        base = self._log.place(f"t{self._log.count('m')}.{name}.{digest_of(call_id)[:8]}")
        self._calls[base] = number = self._calls.get(base, 0) + 1
        address = f"{base}.{number}"
        result = await self._log.tool(address, name, args, call_tool, is_repeatable=is_repeatable)
        return live[0] if live else str(result) if isinstance(result, ToolResult) else result


class _SdkModel(Model):
    def __init__(self, model: Model, log: CallLog) -> None:
        self._model = model
        self._log = log

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **more: Any
    ) -> ModelResponse:
        """Stream the response, so that a stop saves the text and closes the connection."""
        address, digest = self._log.next_place("m"), _digest_of_input(input)
        past = self._log.finished(address, digest=digest)
        if past is not None:
            return _reply(Response.model_validate(past.value))

        async def send(call: TextStream) -> Response:
            response: Response | None = None
            sent = [system_instructions, input]
            meter = UsageMeter(lambda: len(json_text(sent)), lambda: call.chars)
            stream: Any = self._model.stream_response(system_instructions, input, *args, **more)
            async with aclosing(stream):
                async for event in stream:
                    call.meter = meter  # the reply has begun
                    if event.type in ("response.output_text.delta", "response.refusal.delta"):
                        call.write(event.delta)
                    elif event.type == "response.reasoning_summary_text.delta":
                        call.write(event.delta, "thinking")
                    elif event.type == "response.function_call_arguments.delta":
                        call.chars += len(event.delta)
                    elif event.type in _ENDS:
                        response = event.response
            if response is None:
                raise BrokenReplyError("The reply was incomplete.")
            call.response, call.form = response.model_dump(mode="json", exclude_unset=True), FORM
            if response.usage:
                used = response.usage
                call.usage = ev.Usage(
                    input_tokens=used.input_tokens, output_tokens=used.output_tokens
                )
            return response

        name = str(getattr(self._model, "model", ""))
        return _reply(await self._log.request(address, digest, send, name=name))

    async def stream_response(self, *args: Any, **more: Any) -> Any:
        """Raise: `Runner.run` only requests complete responses."""
        raise NotImplementedError
        yield


def _reply(response: Response) -> ModelResponse:
    used = response.usage
    usage = Usage()
    if used:
        usage = Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
        )
    return ModelResponse(output=response.output, usage=usage, response_id=response.id)


def _digest_of_input(input: Any) -> str:
    if isinstance(input, str):
        return digest_of(input)
    return digest_of([{k: v for k, v in dict(each).items() if k not in _IDS} for each in input])


class _JournaledProvider(ModelProvider):
    def __init__(self, provider: ModelProvider, log: CallLog) -> None:
        self._provider = provider
        self._log = log

    def get_model(self, model_name: str | None) -> Model:
        return _SdkModel(self._provider.get_model(model_name), self._log)

    async def aclose(self) -> None:
        await self._provider.aclose()
