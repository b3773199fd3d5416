"""One agent's round: ask the model and run its tools until it answers, votes or fails.

The loop is our own because a stop, and later an exact resume, must be possible between any two
calls. Boundaries: before every model request, before every tool call, before every retry and during
its wait; a paused run waits at the first three. An answer or vote in a response is kept even when a
stop arrives at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.decisions import Decision, Offer, decision_tools
from nb_agents.agents.message_json import Opening, dump_messages, load_messages
from nb_agents.agents.replay import Exchange, PastRound
from nb_agents.agents.replies import (
    MAX_PAUSES,
    Replies,
    has_refused_answer,
    is_paused,
    joined,
    with_images_kept,
)
from nb_agents.agents.runner import Promise, Round
from nb_agents.agents.stop_scope import current_policy
from nb_agents.agents.stream_buffer import Cut, StreamBuffer, cut_message
from nb_agents.cancel import AgentStopped
from nb_agents.errors import ModelCallError
from nb_agents.models.backend import Backend, BrokenReplyError, ending_of, usage_of
from nb_agents.models.failures import describe, is_throttled
from nb_agents.models.retry import pace_of
from nb_agents.models.streamed_calls import with_own_ids
from nb_agents.tools.base import ToolCall, ToolDefinition, ToolResult, calling
from nb_agents.unicode import well_formed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.tools import ToolDefinition as RequestedTool

logger = logging.getLogger("nb_agents")

MAX_MODEL_CALLS = 100
"""Limit of model requests in one round, for models that only call tools."""

MAX_NATIVE_RESULT = 10_000
"""Limit of a provider's own tool's result in its event, characters; the reply holds all of it."""

LEFT_IN_THREAD = (
    "{agent}: {tool} was still running in its thread when it was cut. Nothing can end a plain "
    "function: what it returns is dropped, and it is not called again here before its end."
)
CANCELLED_RETURN = "Cancelled: the run was stopped before this call began."


def requested(tools: Iterable[ToolDefinition]) -> list[RequestedTool]:
    """Return tools as a model request has them; backends recognise by its kind what ends a round.

    Args:
        tools: The tools.
    """
    from pydantic_ai.tools import ToolDefinition as RequestedTool

    return [
        RequestedTool(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters_json_schema,
            kind="output" if tool.ends_round else "function",
        )
        for tool in tools
    ]


class ModelRunner:
    """Plays an agent's rounds by requests to a model.

    Args:
        backend: The model.
    """

    resumes: Promise = "exactly"

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self._backend = backend

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round; see `AgentRunner.play`."""
        opening = past.opening if past else round.opening
        loop = ModelRound(self._backend, round)
        round.flush = loop.flush
        return await loop.run(opening_messages(opening), past and load_round(past))

    async def close(self) -> None:
        """Do nothing: each request is closed when it ends."""


class ModelRound:
    """The loop of one round.

    Args:
        backend: The model.
        round: The round; its decision is known before the response's other tools have run.
    """

    def __init__(self, backend: Backend, round: Round) -> None:
        self._round = round
        self._agent = round.agent
        self._backend = backend
        self._toolbox = round.toolbox
        self._emit = round.emit
        self._context = round.context
        self._boundary = round.scope
        self._offer = Offer()
        self._calls = round.calls
        self._pauses = 0
        self._pace = pace_of(backend)
        self._replies = Replies(round, backend.name, calls_tools=backend.calls_tools)
        self._buffer: StreamBuffer | None = None
        self._streamed = 0

    def flush(self) -> None:
        """Emit the words that arrived since the last time."""
        if self._buffer is not None:
            for event in self._buffer.take():
                self._emit(event)

    async def run(self, messages: list[ModelMessage], past: PastRound | None = None) -> Decision:
        """Work until the round is decided.

        Args:
            messages: The opening of the round; replies and results are appended.
            past: The finished part of an interrupted round; none of it is repeated.

        Returns:
            The decision of the round.

        Raises:
            AgentStopped: At a boundary, when a stop was asked for.
            ModelCallError: The model can't be reached, or made no decision.
        """
        exchanges = list(past.exchanges) if past else []
        last = exchanges.pop() if past and exchanges and not past.was_asking else None
        for note in past.notes if past else ():
            _add_note(messages, note)
        for exchange in exchanges:
            self._recall(messages, exchange)
        if last is not None:
            # The offer is not stored; whether plain text counts never changes within a round.
            self._offer = self._context.offer()
        for _ in range(MAX_MODEL_CALLS):
            exchange = last or Exchange(self._calls + 1, await self._ask(messages))
            last = None
            if await self._settle(messages, exchange):
                assert self._round.decision is not None
                return self._round.decision
        raise ModelCallError(
            self._backend.name, f"No answer or vote within {MAX_MODEL_CALLS} model calls."
        )

    def _recall(self, messages: list[ModelMessage], exchange: Exchange) -> None:
        """Append a finished exchange of an interrupted round to the conversation."""
        exchange = self._joined(messages, exchange)
        if is_paused(messages[-1]):
            return
        self._replies.recall(exchange)
        self._reply(messages, exchange, _results(exchange), exchange.complaint)

    async def _settle(self, messages: list[ModelMessage], exchange: Exchange) -> bool:
        """Do what is left to do for a response; return whether it decided the round."""
        exchange = self._joined(messages, exchange)
        if is_paused(messages[-1]):
            return False
        response, read = exchange.response, self._replies.read
        self._replies.refuse(response)
        reading = read(exchange, self._offer)
        self._round.decision = reading.decision
        results = await self._run_tools(exchange, reading.cut)
        # Read again: others may have answered while its tools ran.
        reading = read(exchange, self._offer)
        self._round.decision, complaint = reading.decision, reading.complaint
        self._replies.settle(exchange, reading, self._offer)
        if self._round.decision is not None:
            return True
        # A stop comes first: a resumed round gets a new note on the time left.
        self._boundary.checkpoint()
        was_cut = reading.cut is not None or exchange.kept is not None
        was_refused = has_refused_answer(response, complaint) and not was_cut
        if not exchange.notes:
            note = self._context.note(was_refused=was_refused)
            exchange = replace(exchange, notes=(note.text,), in_result=note.in_result)
        self._reply(messages, exchange, results, complaint)
        return False

    def _joined(self, messages: list[ModelMessage], exchange: Exchange) -> Exchange:
        """Join a response to the paused one before it; one that pauses itself becomes a message."""
        response = joined(messages, exchange.response)
        self._pauses = self._pauses + 1 if is_paused(response) else 0
        if self._pauses > MAX_PAUSES:
            raise ModelCallError(
                self._backend.name, f"It paused {self._pauses} times in one reply."
            )
        if self._pauses:
            messages.append(response)
        return replace(exchange, response=response)

    async def _ask(self, messages: list[ModelMessage]) -> ModelResponse:
        """Make one model request, retried as `retry` says."""
        self._calls += 1
        for attempt in count(1):
            await self._boundary.wait_if_paused()
            if wait_s := self._pace.wait_s(anyio.current_time()):
                await self._boundary.sleep(wait_s)
            if not is_paused(messages[-1]) and (note := self._context.hear()):
                _add_note(messages, note)
            self._emit(ev.ModelStarted(agent=self._agent, call=self._calls, attempt=attempt))
            try:
                response = await self._stream(messages)
                self._pace.succeeded()
                return response
            except Exception as exc:
                logger.debug("%s: model call failed", self._agent, exc_info=True)
                delay_s = await current_policy().retry_delay_s(exc, attempt)
                error = describe(exc, self._streamed)
                if is_throttled(exc) and delay_s is not None:
                    self._pace.throttled(anyio.current_time(), delay_s)
                self._emit(
                    ev.ModelFailed(
                        agent=self._agent,
                        call=self._calls,
                        error=error,
                        retry_in_s=delay_s,
                        is_throttled=is_throttled(exc),
                    )
                )
                if delay_s is None:
                    raise ModelCallError(self._backend.name, error) from exc
                await self._boundary.sleep(delay_s)
        raise AssertionError("unreachable")

    async def _stream(self, messages: list[ModelMessage]) -> ModelResponse:
        buffer = self._buffer = StreamBuffer(self._agent, self._calls)
        add, wake = buffer.add, current_policy().wake
        self._offer = offer = self._context.offer()
        others = [] if offer.must_decide else self._toolbox.definitions
        tools = [*(t for t in others if t.name not in offer.decisions), *decision_tools(offer)]
        response = None
        try:
            async with self._backend.stream(messages, requested(tools)) as stream:
                async for event in stream:
                    add(event)
                    wake()
                # Before the connection is closed: the reply is paid for.
                response = await self._finish(with_own_ids(well_formed(stream.get()), messages))
        except anyio.get_cancelled_exc_class():
            # First all agents' streams close, then the cuts are recorded.
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self.flush()
            if response is None:
                self._emit(ev.ModelCut(agent=self._agent, call=self._calls))
            raise
        except Exception:
            if response is None:
                raise
            logger.debug("%s: closing a model's stream failed", self._agent, exc_info=True)
        finally:
            self.flush()
            self._streamed, self._buffer = buffer.words, None
        assert response is not None
        return response

    async def _finish(self, response: ModelResponse) -> ModelResponse:
        """Record a complete reply; raise if it broke off or is empty."""
        end = ending_of(response)
        if end.kind == "broken":
            raise BrokenReplyError(f"The reply broke off ({end.reason}).")
        if not response.parts and end.kind == "whole":
            raise BrokenReplyError("The reply was empty.")
        response = await with_images_kept(response, self._calls, self._toolbox.keep)
        self.flush()
        self._emit(
            ev.ModelFinished(
                agent=self._agent,
                call=self._calls,
                response=dump_messages([response])[0],
                usage=usage_of(response),
            )
        )
        self._tell_native_calls(response)
        return response

    def _tell_native_calls(self, response: ModelResponse) -> None:
        """Emit the tool calls that the provider ran itself."""
        for number, (call, result) in enumerate(response.native_tool_calls):
            call_id, tool = f"{self._calls}.native{number}", call.tool_name
            said = result.model_response_str()
            self._round.begin_tool(call_id, tool, call.args)
            self._round.end_tool(call_id, tool, "ok", said[:MAX_NATIVE_RESULT], size=len(said))

    async def _run_tools(self, exchange: Exchange, cut: Cut | None) -> dict[int, ToolResult]:
        """Run the response's other tool calls in order, those not yet done: results by position.

        A truncated call is answered with an error. A call that a stop or a crash interrupted is not
        run again unless it is repeatable.

        After a stop the remaining calls are answered as cancelled, because providers require a
        result for each call; a graceful stop is re-raised unless the response has decided the
        round.
        """
        results = _results(exchange)
        calls = [
            (number, call)
            for number, call in enumerate(exchange.response.tool_calls)
            if call.tool_name not in self._offer.decisions and number not in results
        ]
        if cut is not None and cut.call >= 0 and cut.call not in results:
            number, call = calls.pop()
            result = results[number] = ToolResult(cut_message(cut, "", ""), is_error=True)
            self._round.end_tool(f"{exchange.call}.{number}", call.tool_name, "error", result)
        try:
            while calls:
                await self._boundary.wait_if_paused()
                number, call = calls.pop(0)
                results[number] = await self._settle_call(exchange, number, call)
        except AgentStopped:
            if self._round.decision is None:
                raise
        finally:
            for number, call in calls:
                is_new = exchange.fate(number) == "made"
                outcome, said = ("cancelled", CANCELLED_RETURN) if is_new else ("cut", "")
                self._round.end_tool(f"{exchange.call}.{number}", call.tool_name, outcome, said)
        return results

    async def _settle_call(self, exchange: Exchange, number: int, call: ToolCallPart) -> ToolResult:
        call_id, fate = f"{exchange.call}.{number}", exchange.fate(number)
        if fate == "told":
            said = prompts.MAY_HAVE_HAPPENED.format(tool=call.tool_name)
            self._round.end_tool(call_id, call.tool_name, "cut", said)
            return ToolResult(said, is_error=True)
        made = ToolCall(self._agent, call_id, is_repeated=fate == "made again")
        with calling(made):
            return await self._run_tool(call, made)

    async def _run_tool(self, call: ToolCallPart, made: ToolCall) -> ToolResult:
        tool, began = call.tool_name, anyio.current_time()
        end = partial(self._round.end_tool, made.id, tool)
        is_repeatable = self._toolbox.is_repeatable(tool)
        self._round.begin_tool(made.id, tool, call.args, is_repeatable=is_repeatable)
        try:
            result = await self._call(call)
        except (anyio.get_cancelled_exc_class(), AgentStopped):
            end(made.cut_outcome, "", began, thread=made.thread)
            if made.thread:
                text = LEFT_IN_THREAD.format(agent=self._agent, tool=tool)
                self._emit(ev.Noticed(text=text))
            raise
        except (SystemExit, KeyboardInterrupt) as exc:
            # Out of a task, these would end the loop of all runs.
            result = ToolResult(f"Error: the tool raised {type(exc).__name__}.", is_error=True)
        end("error" if result.is_error else "ok", result, began, subagents=made.subagents)
        return result

    async def _call(self, call: ToolCallPart) -> ToolResult:
        if self._offer.must_decide:
            return ToolResult(prompts.NO_TOOLS.format(tools=self._offer.names), is_error=True)
        return await self._toolbox.call(call.tool_name, call.args)

    def _reply(
        self,
        messages: list[ModelMessage],
        exchange: Exchange,
        results: dict[int, ToolResult],
        complaint: str,
    ) -> None:
        """Append a response and the replies to it to the conversation.

        Every tool call gets its result, and plain text the reminder; notes follow.
        """
        from pydantic_ai.messages import ToolReturnPart, UserPromptPart

        response, within = exchange.response, exchange.in_result
        replies: list[Any] = [
            ToolReturnPart(
                tool_name=call.tool_name,
                content=str(results.get(number, f"Error: {complaint}")),
                tool_call_id=call.tool_call_id,
            )
            for number, call in enumerate(response.tool_calls)
        ]
        if replies and within:
            last = replies.pop()
            replies.append(replace(last, content=f"{last.content}\n\n{within}"))
        notes = [*([] if replies else [complaint, within]), *exchange.notes]
        replies += [UserPromptPart(content=note) for note in notes if note]
        if response.parts:
            messages += [response, _request(replies)]
        else:  # no provider takes an empty one
            messages[-1] = _request([*messages[-1].parts, *replies])


def _results(exchange: Exchange) -> dict[int, ToolResult]:
    return {
        number: ToolResult(text, is_error=is_error)
        for number, (text, is_error) in exchange.results.items()
    }


def _add_note(messages: list[ModelMessage], note: str) -> None:
    """Add a note to the next request."""
    from pydantic_ai.messages import UserPromptPart

    messages[-1] = _request([*messages[-1].parts, UserPromptPart(content=note)])


def _request(parts: list[Any]) -> ModelMessage:
    from pydantic_ai.messages import ModelRequest

    return ModelRequest(parts=parts)


def opening_messages(opening: Opening) -> list[ModelMessage]:
    """Return the messages that open a round."""
    from pydantic_ai.messages import SystemPromptPart, UserPromptPart

    return [_request([SystemPromptPart(opening.system), *map(UserPromptPart, opening.asks)])]


def load_round(past: PastRound) -> PastRound:
    """Return a past round with its responses as messages.

    Raises:
        ValueError: A response can't be read as a message.
    """
    responses = load_messages(e.response for e in past.exchanges)
    pairs = zip(past.exchanges, responses, strict=True)
    return replace(past, exchanges=tuple(replace(e, response=r) for e, r in pairs))
