"""Plays a round with a model: requests responses and runs tool calls until the agent decides.

nb_agents has its own loop because a stop and an exact resume must be possible between any two
calls. Boundaries are before each model request, tool call and retry, and while waiting for a retry.
A paused run waits at the first three. An answer or vote in a response is recorded even if a stop
arrives at the same time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.context_folding import READ_BACK, Folding, Summary
from nb_agents.agents.decisions import Decision, Offer, decision_tools
from nb_agents.agents.folded_history import History
from nb_agents.agents.message_json import Opening, dump_messages, load_messages
from nb_agents.agents.replay import Exchange, PastRound
from nb_agents.agents.replies import (
    MAX_PAUSES,
    Replies,
    has_refused_answer,
    is_paused,
    joined,
    save_images,
)
from nb_agents.agents.runner import Promise, Round, wait_fields
from nb_agents.agents.stop_scope import StreamOverBudget, clocks_stopped, current_policy
from nb_agents.agents.stream_buffer import Cut, StreamBuffer, cut_message
from nb_agents.cancel import AgentStopped
from nb_agents.errors import ModelCallError
from nb_agents.models import tool_images
from nb_agents.models.backend import (
    Backend,
    BrokenReplyError,
    PydanticBackend,
    ending_of,
    open_request,
)
from nb_agents.models.batching import BatchTicket, request_in_batch
from nb_agents.models.failures import QuotaLimit, describe, is_throttled, is_too_long
from nb_agents.models.message_order import TEAM_MESSAGES_NOTE
from nb_agents.models.retry import Wait, pace_of
from nb_agents.models.streamed_calls import with_unique_ids
from nb_agents.models.tool_rules import ANY_MODEL, ToolRules
from nb_agents.models.usage import StreamMeter, sent_chars, usage_of
from nb_agents.tools.base import Tool, ToolCall, ToolDefinition, ToolResult, use_call
from nb_agents.unicode import well_formed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.tools import ToolDefinition as RequestedTool

logger = logging.getLogger("nb_agents")

MAX_MODEL_CALLS = 100
"""Maximum number of model requests in a round, for models that only call tools."""

MAX_NATIVE_RESULT = 10_000
"""Maximum length of a built-in tool's result in its event, in characters.

The stored response has the full result.
"""

FOLD = "fold"
"""The purpose of a request for a summary, in its events."""

LEFT_IN_THREAD = (
    "{agent}: {tool} was interrupted, but still runs in its thread, because a synchronous function "
    "can't be ended. Its result is discarded, and it is not called again here before it ends."
)
STOPPED_IN_BATCH = (
    "{agent}: a request is still in a batch at its provider, which runs it and charges for it. A "
    "resume uses the result and does not send the request again."
)
CANCELLED_RETURN = "Cancelled: the run was stopped before this call began."


def requested(tools: Iterable[ToolDefinition]) -> list[RequestedTool]:
    """Convert tools for a model request. Decision tools get the kind "output"."""
    from pydantic_ai.tools import ToolDefinition as RequestedTool

    return [
        RequestedTool(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters_json_schema,
            strict=tool.strict,
            kind="output" if tool.ends_round else "function",
        )
        for tool in tools
    ]


class ModelRunner:
    """Plays an agent's rounds by sending requests to a model.

    Args:
        backend: The model.
        folding: How its conversations are folded to fit the context window.
    """

    resumes: Promise = "exactly"

    def __init__(self, backend: Backend, folding: Folding | None = None) -> None:
        self.name = backend.name
        self.tool_rules: ToolRules = getattr(backend, "tool_rules", ANY_MODEL)
        self._backend = backend
        self._folding = folding or Folding.of(backend)

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        """Play a round; see `AgentRunner.play`."""
        opening = past.opening if past else round.opening
        loop = ModelRound(self._backend, round, self._folding)
        round.flush = loop.flush
        round.can_fold = True
        return await loop.run(opening_messages(opening), past and load_round(past))

    async def close(self) -> None:
        """Do nothing, because each request is closed when it ends."""


class ModelRound:
    """The loop of one round.

    Args:
        backend: The model.
        round: The round. Its decision is set before other tool calls in the same response have run.
        folding: How the conversation is folded to fit the context window.
    """

    def __init__(self, backend: Backend, round: Round, folding: Folding | None = None) -> None:
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
        self._meter: StreamMeter | None = None
        self._streamed = 0
        self._used: ev.Usage | None = None
        self._waited_s = 0.0
        self._ticket: BatchTicket | None = None
        self._history = History(())
        self._folder = (folding or Folding.of(backend)).folder(round, self._request_summary)

    def flush(self) -> None:
        """Emit the text received since the last flush."""
        if self._buffer is not None:
            for event in self._buffer.take():
                self._emit(event)
        step = current_policy().spending.step
        if self._meter is not None and (usage := self._meter.growth(step)) is not None:
            self._emit(ev.UsageUpdated(agent=self._agent, call=self._calls, usage=usage))

    async def run(self, messages: list[ModelMessage], past: PastRound | None = None) -> Decision:
        """Call the model and its tools until the agent has made its decision for the round.

        Args:
            messages: The first messages of the round. Replies and results are appended.
            past: The recorded part of an interrupted round, which is not repeated.

        Returns:
            The decision of the round.

        Raises:
            AgentStopped: A stop was requested.
            ModelCallError: The model can't be reached, or made no decision.
        """
        history = self._history = History(messages, past.folds if past else ())
        exchanges = list(past.exchanges) if past else []
        if past is not None and past.wait is not None:
            self._waited_s = past.wait.seconds_at(time.time())
        last = exchanges.pop() if past and exchanges and not past.was_asking else None
        if past is not None and past.was_asking:
            self._ticket = self._ticket_of(past)
        for note in past.notes if past else ():
            history.add_note(note)
        for exchange in exchanges:
            self._recall(history, exchange)
        if past is not None:
            self._folder.recall(history, past, last.response if last else None)
        if last is not None:
            # The offer is not stored, but whether plain text counts never changes within a round.
            self._offer = self._context.offer()
        for _ in range(MAX_MODEL_CALLS):
            exchange = last or await self._ask(history)
            last = None
            if await self._settle(history, exchange):
                assert self._round.decision is not None
                return self._round.decision
        raise ModelCallError(
            self._backend.name, f"No answer or vote within {MAX_MODEL_CALLS} model calls."
        )

    def _recall(self, history: History, exchange: Exchange) -> None:
        """Append a recorded exchange to the conversation."""
        exchange = self._joined(history, exchange)
        if history.paused is not None:
            return
        self._replies.recall(exchange)
        _add_exchange(history, exchange, _results(exchange), exchange.complaint)

    async def _settle(self, history: History, exchange: Exchange) -> bool:
        """Run the tool calls of a response, and return whether it decided the round."""
        exchange = self._joined(history, exchange)
        if history.paused is not None:
            return False
        response, read = exchange.response, self._replies.read
        self._replies.refuse(response)
        reading = read(exchange, self._offer)
        self._round.decision = reading.decision
        results = await self._run_tools(exchange, reading.cut)
        # Read the response again, because other agents may have answered while its tools ran.
        reading = read(exchange, self._offer)
        self._round.decision, complaint = reading.decision, reading.complaint
        self._replies.settle(exchange, reading, self._offer)
        if self._round.decision is not None:
            return True
        # Stop before the note is written, because a resumed round needs a new one.
        self._boundary.checkpoint()
        was_cut = reading.cut is not None or exchange.kept is not None
        was_refused = has_refused_answer(response, complaint) and not was_cut
        if not exchange.notes:
            note = self._context.note(was_refused=was_refused)
            exchange = replace(exchange, notes=(note.text,), in_result=note.in_result)
        _add_exchange(history, exchange, results, complaint)
        return False

    def _joined(self, history: History, exchange: Exchange) -> Exchange:
        """Append a response to the paused one that it continues. Keep it if it is paused too."""
        response = joined(history.paused, exchange.response)
        history.paused = None
        self._pauses = self._pauses + 1 if is_paused(response) else 0
        if self._pauses > MAX_PAUSES:
            raise ModelCallError(
                self._backend.name, f"It paused {self._pauses} times in one reply."
            )
        if self._pauses:
            history.paused = response
        return replace(exchange, response=response)

    async def _ask(self, history: History) -> Exchange:
        """Make one model request, with retries."""
        call = 0
        clock, failed_at = current_policy().hold.clock, None
        earlier_s, self._waited_s = self._waited_s, 0.0
        for attempt in count(1):
            await self._boundary.wait_if_paused()
            if wait_s := self._pace.wait_s(anyio.current_time()):
                await self._boundary.delay(wait_s)
            # A request in a batch is not sent again, so it stays as it was.
            if history.paused is None and self._ticket is None:
                await self._folder.fold_if_needed(history)
                if note := self._context.take_messages():
                    history.add_note(note)
            if not call or call != self._calls:  # a summary has used the next number
                self._calls += 1
                call = self._calls
            messages = history.shown()
            self._emit(ev.ModelStarted(agent=self._agent, call=call, attempt=attempt))
            self._used = None
            try:
                self._folder.check(messages)
                send = self._request_in_batch if self._is_batched else self._stream
                response = await send(messages, self._backend)
                self._pace.succeeded()
                return Exchange(call, response)
            except StreamOverBudget:
                continue
            except Exception as exc:
                logger.debug("%s: model call failed", self._agent, exc_info=True)
                known = self._folder.window
                why = self._folder.learn(history, exc)
                is_new = self._folder.window != known
                failed_at = clock() if failed_at is None else failed_at
                waited_s = earlier_s + clock() - failed_at
                policy = current_policy()
                wait = Wait(0.0) if why else await policy.retry_after(exc, attempt, waited_s)
                limit = QuotaLimit(policy.quota_wait_s, waited_s, is_final=wait is None)
                error = describe(exc, self._streamed, limit)
                if is_throttled(exc) and wait is not None:
                    self._pace.throttled(anyio.current_time(), 0.0 if wait.reason else wait.delay_s)
                self._emit(
                    ev.ModelFailed(
                        agent=self._agent,
                        call=self._calls,
                        error=error,
                        is_throttled=is_throttled(exc),
                        usage=self._used,
                        is_too_long=why is not None or is_too_long(exc),
                        window=self._folder.window if is_new else 0,
                        model=self._backend.name if is_new else "",
                        **wait_fields(wait),
                    )
                )
                if why and await self._folder.fold_after(history, why):
                    continue
                if why or wait is None:
                    reason = self._folder.explain(history, exc)
                    raise ModelCallError(self._backend.name, f"{error} {reason}".strip()) from exc
                await self._boundary.sleep_for(wait)
        raise AssertionError("unreachable")

    async def _request_summary(
        self, other: Backend | None, messages: list[ModelMessage]
    ) -> Summary:
        """Request a summary of the conversation. It is empty if the request fails."""
        self._calls += 1
        self._emit(ev.ModelStarted(agent=self._agent, call=self._calls, purpose=FOLD))
        self._used = None
        try:
            response = await self._stream(messages, other or self._backend, FOLD)
        except StreamOverBudget:
            await self._boundary.wait_if_paused()
            return await self._request_summary(other, messages)
        except Exception as exc:
            logger.debug("%s: the summary failed", self._agent, exc_info=True)
            error = describe(exc, self._streamed)
            self._emit(
                ev.ModelFailed(
                    agent=self._agent,
                    call=self._calls,
                    error=error,
                    retry_in_s=0.0,
                    usage=self._used,
                )
            )
            return Summary()
        usage = usage_of(response, is_free=getattr(other or self._backend, "is_free", False))
        return Summary((response.text or "").strip(), usage)

    @property
    def _is_batched(self) -> bool:
        """Whether requests are sent in batches."""
        return getattr(self._backend, "is_batched", False)

    async def _request_in_batch(
        self, messages: list[ModelMessage], backend: Backend
    ) -> ModelResponse:
        """Send a request in a batch, or wait for one that was sent before, and record the reply.

        Any stop ends the wait. A resume continues to wait for the same batch.
        """
        from pydantic_ai.messages import PartStartEvent

        assert isinstance(backend, PydanticBackend)
        self._streamed = 0
        tools = requested(self._offered_tools())
        request = partial(
            request_in_batch,
            backend.model,
            backend.batch_request(await self._with_images(messages), tools),
            self._ticket,
            self._record_ticket,
        )
        self._record_ticket(self._ticket)
        try:
            with clocks_stopped():
                response = await self._boundary.call_or_stop(request)
        except (anyio.get_cancelled_exc_class(), AgentStopped):
            if self._ticket is not None:
                self._emit(ev.Noticed(text=STOPPED_IN_BATCH.format(agent=self._agent)))
            self._emit(ev.ModelCut(agent=self._agent, call=self._calls))
            raise
        await self._folder.count(messages, response)
        reply = with_unique_ids(well_formed(response), messages)
        buffer = self._buffer = StreamBuffer(self._agent, self._calls)
        try:
            for index, part in enumerate(reply.parts):
                buffer.add(PartStartEvent(index=index, part=part))
            response = await self._finish(reply)
        except Exception:  # the batch would return the same unusable reply again
            self._record_ticket(None)
            raise
        else:
            self._ticket = None  # the next request is another one
            return response
        finally:
            self.flush()
            self._streamed, self._buffer = buffer.words, None

    def _record_ticket(self, ticket: BatchTicket | None) -> None:
        self._ticket = ticket
        fields: dict[str, Any] = {}
        if ticket is not None:
            fields = {"custom_id": ticket.custom_id, "batch": ticket.batch, "sent_at": ticket.at}
        event = ev.ModelBatched(
            agent=self._agent, call=self._calls, model=self._backend.name, **fields
        )
        self._emit(event)

    def _ticket_of(self, past: PastRound) -> BatchTicket | None:
        """Return the ticket of an open request in a batch of the same model."""
        e = past.batched
        if e is None or not self._is_batched or e.model != self._backend.name:
            return None
        return BatchTicket(e.custom_id, e.batch, e.sent_at or 0.0)

    async def _stream(
        self, messages: list[ModelMessage], backend: Backend, purpose: str = ""
    ) -> ModelResponse:
        buffer = StreamBuffer(self._agent, self._calls)
        if not purpose:  # a summary is not shown while it streams
            self._buffer = buffer
        policy = current_policy()
        add, wake, spending = buffer.add, policy.wake, policy.spending
        tools = self._offered_tools() if backend is self._backend else []
        response = None
        try:
            sent = messages if purpose else await self._with_images(messages)
            async with open_request(backend, sent, requested(tools)) as stream:
                meter = self._meter = self._metered(stream, buffer, messages, tools)
                update_usage = meter.update
                async for event in stream:
                    add(event)
                    update_usage()
                    wake()
                    # The rest of a complete reply costs nothing, and closing would lose the reply.
                    if spending.is_over and stream.finish_reason is None:
                        self._boundary.checkpoint()
                        raise StreamOverBudget
                if not purpose:
                    await self._folder.count(messages, stream.get())
                # Record the reply before closing the connection, because it has been paid for.
                reply = with_unique_ids(well_formed(stream.get()), messages)
                response = await self._finish(reply, purpose)
        except (anyio.get_cancelled_exc_class(), AgentStopped, StreamOverBudget):
            # Let all agents close their streams before the truncated replies are recorded.
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self._end_meter()
            self.flush()
            if response is None:
                cut = ev.ModelCut(agent=self._agent, call=self._calls, usage=self._used)
                self._emit(cut)
            raise
        except Exception:
            if response is None:
                raise
            logger.debug("%s: closing a model's stream failed", self._agent, exc_info=True)
        finally:
            self._end_meter()
            self.flush()
            self._streamed, self._buffer = buffer.words, None
        assert response is not None
        return response

    async def _with_images(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Return the messages of a request with the images of tool results."""
        if not tool_images.has_images(messages):
            return messages
        environment = self._toolbox.place
        return await to_thread.run_sync(
            partial(
                tool_images.with_images,
                messages,
                environment.context.session if environment else None,
                takes_images=getattr(self._backend, "takes_images", False),
            )
        )

    def _offered_tools(self) -> list[ToolDefinition]:
        """Return the tools that the model may call with the next request."""
        self._offer = offer = self._context.offer()
        others = [] if offer.must_decide else self._toolbox.definitions
        if self._read_back is not None and not offer.must_decide:
            others = [*others, self._read_back.definition]
        return [*(t for t in others if t.name not in offer.decisions), *decision_tools(offer)]

    @property
    def _read_back(self) -> Tool | None:
        """The tool that reads folded text. None while nothing is folded."""
        return self._folder.tool(self._history) if self._history.is_folded else None

    def _end_meter(self) -> None:
        """Save the call's usage so far.

        The event that ends the call replaces earlier entries in the journal.
        """
        if self._meter is not None:
            self._used, self._meter = self._meter.usage(), None

    def _metered(
        self,
        stream: StreamedResponse,
        buffer: StreamBuffer,
        messages: list[ModelMessage],
        tools: list[ToolDefinition],
    ) -> StreamMeter:
        files = getattr(self._backend, "file_chars", 0)
        return StreamMeter(
            stream,
            lambda: files + sent_chars(messages, requested(tools)),
            lambda: buffer.chars,
            is_free=getattr(self._backend, "is_free", False),
        )

    async def _finish(self, response: ModelResponse, purpose: str = "") -> ModelResponse:
        """Record a complete reply. Raise if it is incomplete or empty."""
        end = ending_of(response)
        if end.kind == "broken":
            raise BrokenReplyError(f"The reply was incomplete ({end.reason}).")
        if not response.parts and end.kind == "whole":
            raise BrokenReplyError("The reply was empty.")
        response = await save_images(response, self._calls, self._toolbox.keep)
        self._end_meter()
        self.flush()
        self._emit(
            ev.ModelFinished(
                agent=self._agent,
                call=self._calls,
                response=dump_messages([response])[0],
                usage=usage_of(response, is_free=getattr(self._backend, "is_free", False)),
                purpose=purpose,
            )
        )
        if not purpose:
            self._emit_native_calls(response)
        return response

    def _emit_native_calls(self, response: ModelResponse) -> None:
        """Emit the calls to the provider's built-in tools."""
        for number, (call, result) in enumerate(response.native_tool_calls):
            call_id, tool = f"{self._calls}.native{number}", call.tool_name
            text = result.model_response_str()
            self._round.begin_tool(call_id, tool, call.args)
            self._round.end_tool(call_id, tool, "ok", text[:MAX_NATIVE_RESULT], size=len(text))

    async def _run_tools(self, exchange: Exchange, cut: Cut | None) -> dict[int, ToolResult]:
        """Run the response's unfinished tool calls in order, and return all results by position.

        Decision tools are not run. A truncated call gets an error as its result. An interrupted
        call is run again only if it is repeatable.

        After a stop, the remaining calls get the result "cancelled", because providers require a
        result for each call. A graceful stop is raised again unless the response has decided the
        round.
        """
        results, requests = _results(exchange), exchange.response.tool_calls
        if cut is not None and cut.call >= 0 and cut.call not in results:
            name, result = requests[cut.call].tool_name, cut_message(cut, "", "")
            results[cut.call] = ToolResult(result, is_error=True)
            self._round.end_tool(f"{exchange.call}.{cut.call}", name, "error", result)
        calls = [
            (number, call)
            for number, call in enumerate(requests)
            if call.tool_name not in self._offer.decisions and number not in results
        ]
        try:
            while calls:
                await self._boundary.wait_if_paused()
                number, call = calls.pop(0)
                results[number] = await self._run_or_skip(exchange, number, call)
        except AgentStopped:
            if self._round.decision is None:
                raise
        finally:
            for number, call in calls:
                is_new = exchange.action_for_unfinished_call(number) == "made"
                outcome, result = ("cancelled", CANCELLED_RETURN) if is_new else ("cut", "")
                self._round.end_tool(f"{exchange.call}.{number}", call.tool_name, outcome, result)
        return results

    async def _run_or_skip(self, exchange: Exchange, number: int, call: ToolCallPart) -> ToolResult:
        call_id, action = f"{exchange.call}.{number}", exchange.action_for_unfinished_call(number)
        if action == "told":
            result = prompts.MAY_HAVE_HAPPENED.format(tool=call.tool_name)
            self._round.end_tool(call_id, call.tool_name, "cut", result)
            return ToolResult(result, is_error=True)
        call_context = ToolCall(self._agent, call_id, is_repeated=action == "made again")
        with use_call(call_context):
            return await self._run_tool(call, call_context)

    async def _run_tool(self, call: ToolCallPart, call_context: ToolCall) -> ToolResult:
        tool, began = call.tool_name, anyio.current_time()
        end = partial(self._round.end_tool, call_context.id, tool)
        is_repeatable = self._toolbox.is_repeatable(tool)
        self._round.begin_tool(call_context.id, tool, call.args, is_repeatable=is_repeatable)
        try:
            result = await self._call(call)
        except (anyio.get_cancelled_exc_class(), AgentStopped):
            end(call_context.cut_outcome, "", began, thread=call_context.thread)
            if call_context.thread:
                text = LEFT_IN_THREAD.format(agent=self._agent, tool=tool)
                self._emit(ev.Noticed(text=text))
            raise
        except (SystemExit, KeyboardInterrupt) as exc:
            # Raised from a task, these would end the shared loop of all runs.
            result = ToolResult(f"Error: the tool raised {type(exc).__name__}.", is_error=True)
        outcome = "error" if result.is_error else "ok"
        end(outcome, result, began, subagents=call_context.subagents, images=result.images)
        return result

    async def _call(self, call: ToolCallPart) -> ToolResult:
        if self._offer.must_decide:
            return ToolResult(prompts.NO_TOOLS.format(tools=self._offer.names), is_error=True)
        if call.tool_name == READ_BACK and (tool := self._read_back) is not None:
            return await tool.call(call.args)
        return await self._toolbox.call(call.tool_name, call.args)


def _results(exchange: Exchange) -> dict[int, ToolResult]:
    return {
        number: ToolResult(text, is_error=is_error, images=exchange.images.get(number, ()))
        for number, (text, is_error) in exchange.results.items()
    }


def _metadata(result: ToolResult | None) -> dict[str, Any] | None:
    return {tool_images.KEY: result.images} if result is not None and result.images else None


def _add_exchange(
    history: History, exchange: Exchange, results: Mapping[int, ToolResult], complaint: str
) -> None:
    """Append a response and the answers to it to the conversation.

    The answers are tool results, the error message if the response was rejected, and notes.
    `open_request` later puts them in the order that providers require.
    """
    from pydantic_ai.messages import ToolReturnPart

    response, within = exchange.response, exchange.in_result
    replies: list[Any] = [
        ToolReturnPart(
            tool_name=call.tool_name,
            content=str(results.get(number, f"Error: {complaint or prompts.NOT_COUNTED}")),
            tool_call_id=call.tool_call_id,
            metadata=_metadata(results.get(number)),
        )
        for number, call in enumerate(response.tool_calls)
    ]
    if replies and within:
        last = replies.pop()
        replies.append(replace(last, content=f"{last.content}\n\n{within}"))
    notes = [*([] if replies else [complaint, within]), *exchange.notes]
    history.add([response, _request(replies)], notes)


def _request(parts: list[Any]) -> ModelMessage:
    from pydantic_ai.messages import ModelRequest

    return ModelRequest(parts=parts)


def opening_messages(opening: Opening) -> list[ModelMessage]:
    """Return the messages that open a round."""
    from pydantic_ai.messages import SystemPromptPart, UserPromptPart

    system = "\n\n".join(filter(None, [opening.system, TEAM_MESSAGES_NOTE]))
    return [_request([SystemPromptPart(system), *map(UserPromptPart, opening.asks)])]


def load_round(past: PastRound) -> PastRound:
    """Return a past round with its responses as messages.

    Raises:
        ValueError: A response is not a valid message.
    """
    responses = load_messages(e.response for e in past.exchanges)
    pairs = zip(past.exchanges, responses, strict=True)
    return replace(past, exchanges=tuple(replace(e, response=r) for e, r in pairs))


def past_request(past: PastRound) -> list[ModelMessage]:
    """Return the messages of the request that was open when a round was interrupted.

    Args:
        past: The round, whose exchanges are complete.

    Raises:
        ValueError: A response is not a valid message.
    """
    history = History(opening_messages(past.opening), past.folds)
    for note in past.notes:
        history.add_note(note)
    for exchange in load_round(past).exchanges:
        response = joined(history.paused, exchange.response)
        history.paused = response if is_paused(response) else None
        if history.paused is None:
            whole = replace(exchange, response=response)
            _add_exchange(history, whole, _results(exchange), exchange.complaint)
    return history.shown()
