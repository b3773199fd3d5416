"""Agents of the OpenAI Agents SDK: clones of them, whose models and tools are journalled.

Each agent that can be handed off to is cloned once, so that circles stay circles. Hosted tools run
at the provider, and are part of the model's call. What an `as_tool` agent does inside is not seen:
its finished result is replayed, and an unfinished one is told as a call that was cut.
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
from nb_agents.agents.programs.call_log import CallLog, digest_of
from nb_agents.agents.programs.program_runner import Conversation, Framework
from nb_agents.models.backend import BrokenReplyError
from nb_agents.tools.base import Tool, ToolResult

FORM = "openai response"
"""The form of a model's response in the journal: `Response` of OpenAI's SDK, as JSON."""

MAX_TURNS = 100
"""Model calls of one run, as of our own loop."""

_IDS = frozenset({"id", "status"})
_ANY: TypeAdapter[Any] = TypeAdapter(object)
_ENDS = frozenset({"response.completed", "response.incomplete"})


def framework(agent: Any) -> Framework:
    """Return how an agent is run."""
    return Framework(converse)


async def converse(agent: Any, talk: Conversation, /, **more: Any) -> str:
    """Run an agent until its final output; see `program_runner.Converse`."""
    asked: Any = [{"role": "user", "content": talk.prompt}]
    system: Any = [{"role": "system", "content": talk.system}] if talk.system else []
    before: Any = talk.history if talk.history is not None else system
    clones = _Clones(talk)
    theirs = more.get("run_config") or RunConfig(tracing_disabled=True)
    asks = ModelSettings(include_usage=True).resolve(theirs.model_settings)
    provider = _JournaledProvider(theirs.model_provider, talk.log)
    config = dataclasses.replace(theirs, model_provider=provider, model_settings=asks)
    given: dict[str, Any] = {"max_turns": MAX_TURNS, **more, "run_config": config}
    result = await Runner.run(await clones.agent(agent), [*before, *asked], **given)
    talk.history = result.to_input_list()
    output = result.final_output
    return output if isinstance(output, str) else _ANY.dump_json(output, fallback=str).decode()


class _Clones:
    def __init__(self, talk: Conversation) -> None:
        self._log = talk.log
        self._ours = talk.tools
        self._made: dict[int, Agent[Any]] = {}
        self._calls: dict[str, int] = {}

    async def agent(self, given: Agent[Any]) -> Agent[Any]:
        """Return the clone of an agent, whose MCP tools are among its own."""
        if id(given) in self._made:
            return self._made[id(given)]
        made = self._made[id(given)] = given.clone(mcp_servers=[])
        own = [*given.tools, *await given.get_mcp_tools(RunContextWrapper(None))]
        made.tools = [*map(self._own, own), *map(self._offered, self._ours)]
        made.handoffs = [
            await self.agent(each) if isinstance(each, Agent) else self._handoff(each)
            for each in given.handoffs
        ]
        if isinstance(given.model, Model):
            made.model = _SdkModel(given.model, self._log)
        return made

    def _handoff(self, given: Handoff[Any, Any]) -> Handoff[Any, Any]:
        inner = given.on_invoke_handoff

        async def go(context: Any, args: str) -> Any:
            return await self.agent(await inner(context, args))

        return dataclasses.replace(given, on_invoke_handoff=go)

    def _own(self, tool: SdkTool) -> SdkTool:
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

        made = tool.definition
        schema = made.parameters_json_schema
        return FunctionTool(
            made.name, made.description or "", schema, invoke, strict_json_schema=False
        )

    async def call(
        self,
        call_id: str,
        name: str,
        args: Any,
        run: Callable[[], Awaitable[Any]],
        is_repeatable: bool = False,
    ) -> Any:
        """Journal a call of a tool; the SDK refuses calls that repeat an id."""
        live: list[Any] = []

        async def made() -> Any:
            value = await run()
            if isinstance(value, ToolResult):
                return value
            live.append(value)
            return _ANY.dump_python(value, mode="json", fallback=str)

        base = self._log.place(f"t{self._log.count('m')}.{name}.{digest_of(call_id)[:8]}")
        self._calls[base] = number = self._calls.get(base, 0) + 1
        place = f"{base}.{number}"
        said = await self._log.tool(place, name, args, made, is_repeatable=is_repeatable)
        return live[0] if live else str(said) if isinstance(said, ToolResult) else said


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
        """Stream, so that words are kept and a stop closes the connection."""
        place, digest = self._log.next_place("m"), _digest_of_input(input)
        past = self._log.finished(place, digest=digest)
        if past is not None:
            return _reply(Response.model_validate(past.value))
        name = str(getattr(self._model, "model", ""))
        async with self._log.model(place, digest, name) as call:
            response: Response | None = None
            stream: Any = self._model.stream_response(system_instructions, input, *args, **more)
            async with aclosing(stream):
                async for event in stream:
                    if event.type in ("response.output_text.delta", "response.refusal.delta"):
                        call.write(event.delta)
                    elif event.type == "response.reasoning_summary_text.delta":
                        call.write(event.delta, "thinking")
                    elif event.type in _ENDS:
                        response = event.response
            if response is None:
                raise BrokenReplyError("The reply broke off.")
            call.response, call.form = response.model_dump(mode="json", exclude_unset=True), FORM
            if response.usage:
                used = response.usage
                call.usage = ev.Usage(
                    input_tokens=used.input_tokens, output_tokens=used.output_tokens
                )
        return _reply(response)

    async def stream_response(self, *args: Any, **more: Any) -> Any:
        """Do nothing: `Runner.run` asks for whole responses."""
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
