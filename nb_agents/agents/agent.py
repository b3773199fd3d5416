"""One agent's turn: ask the model, run its tools, until it answers, votes or fails.

The loop is ours and short because a stop, and later an exact resume, must fall between any two
calls. Boundaries: before every model request, before every tool call, before every retry and
during its wait; a paused run holds still at the first three. An answer or vote that a call carried
is kept even when a stop came meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.boundary import Boundary
from nb_agents.agents.caller import calling
from nb_agents.agents.coordination import MAX_REJECTED_TURNS
from nb_agents.agents.decisions import (
    Decision,
    Offer,
    Reading,
    Seat,
    decision_tools,
    has_refused_answer,
    read_response,
)
from nb_agents.agents.draft import Draft, ReplyTooLongError
from nb_agents.agents.replay import Exchange, OpenRound, dump_messages
from nb_agents.agents.terms import terms
from nb_agents.cancel import AgentStopped
from nb_agents.errors import ModelCallError
from nb_agents.models.backend import Backend, usage_of
from nb_agents.models.retry import describe
from nb_agents.tools.base import Toolbox, ToolResult, attempting, repeating, summarize

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

__all__ = ["AgentTurn"]

logger = logging.getLogger("nb_agents")

MAX_MODEL_CALLS = 100
"""Model requests in one round: a model that only ever calls tools must end somewhere."""

CANCELLED_RETURN = "Cancelled: the run was stopped before this call began."


class AgentTurn:
    """Runs one agent through one round.

    Args:
        agent: The agent's id.
        backend: Its model.
        toolbox: Its tools, besides answering and voting.
        emit: Takes what happens.
        seat: Its place in the team: what it may do, and what it is told.
        boundary: Where a stop is felt.
        calls: Model requests that the agent made before.

    Attributes:
        decision: What the turn ended in; known before the response's other tools have run, so
            that an immediate stop among those does not lose it.
    """

    def __init__(
        self,
        agent: str,
        backend: Backend,
        toolbox: Toolbox,
        emit: Callable[[ev.Event], None],
        seat: Seat,
        boundary: Boundary,
        *,
        calls: int = 0,
    ) -> None:
        self._agent = agent
        self._backend = backend
        self._toolbox = toolbox
        self._emit = emit
        self._seat = seat
        self._boundary = boundary
        self._offer = Offer()
        self._calls = calls
        self.decision: Decision | None = None
        self._rejected = 0
        self._draft: Draft | None = None

    def flush(self) -> None:
        """Emit the words that arrived since the last time."""
        if self._draft is not None:
            for event in self._draft.take():
                self._emit(event)

    async def run(self, messages: list[ModelMessage], past: OpenRound | None = None) -> Decision:
        """Work until the turn is decided.

        Args:
            messages: How the round opens; grows by what is said and done.
            past: What of the round was done before a stop; none of it is done again.

        Returns:
            What the turn ended in.

        Raises:
            AgentStopped: At a boundary, when a stop was asked for.
            ModelCallError: The model can't be reached, or never ended its turn properly.
        """
        exchanges = list(past.exchanges) if past else []
        last = exchanges.pop() if past and exchanges and not past.was_asking else None
        for note in past.notes if past else ():
            _add_note(messages, note)
        for exchange in exchanges:
            self._recall(messages, exchange)
        if last is not None:
            # What it was offered then is not stored; whether its plain text counts never changes.
            self._offer = self._seat.offer()
        for _ in range(MAX_MODEL_CALLS):
            exchange = last or Exchange(self._calls + 1, await self._ask(messages))
            last = None
            if await self._settle(messages, exchange):
                assert self.decision is not None
                return self.decision
        raise ModelCallError(
            self._backend.name, f"No answer or vote within {MAX_MODEL_CALLS} model calls."
        )

    def _recall(self, messages: list[ModelMessage], exchange: Exchange) -> None:
        """Put a finished exchange of the past into the conversation."""
        response = exchange.response
        results = _results(exchange)
        self._rejected += bool(exchange.complaint)
        messages.append(response)
        replies = self._replies(response, results, exchange.complaint, exchange.notes)
        messages.append(_request(replies))

    async def _settle(self, messages: list[ModelMessage], exchange: Exchange) -> bool:
        """Do what a response asks for, as far as it is not done: whether it decided the turn."""
        response = exchange.response
        messages.append(response)
        self.decision = self._read(exchange).decision
        results = await self._run_tools(exchange)
        # Read again: others may have answered while its tools ran.
        self.decision, complaint = self._read(exchange)
        if self.decision is not None:
            return True
        if complaint:
            self._reject(complaint, is_known=bool(exchange.complaint))
        # A stop is felt first: what time is left is told anew when the round is resumed.
        self._boundary.checkpoint()
        was_refused = has_refused_answer(response, complaint)
        notes = exchange.notes or (self._seat.note(was_refused=was_refused),)
        messages.append(_request(self._replies(response, results, complaint, notes)))
        return False

    def _read(self, exchange: Exchange) -> Reading:
        """Read what a response decides; one that was rejected before stays so."""
        if exchange.complaint:
            return Reading(None, exchange.complaint)
        return read_response(exchange.response, self._seat, self._offer)

    def _reject(self, complaint: str, *, is_known: bool) -> None:
        self._rejected += 1
        if not is_known:
            self._emit(ev.TurnRejected(agent=self._agent, why=complaint, attempt=self._rejected))
        if self._rejected >= MAX_REJECTED_TURNS:
            raise ModelCallError(
                self._backend.name,
                f"{self._rejected} turns ended in neither a valid answer nor a valid vote. "
                f"Last: {complaint}",
            )

    async def _ask(self, messages: list[ModelMessage]) -> ModelResponse:
        """Make one model request, tried again as `retry` says."""
        self._calls += 1
        for attempt in count(1):
            await self._boundary.ready()
            if note := self._seat.hear():
                _add_note(messages, note)
            self._emit(ev.ModelStarted(agent=self._agent, call=self._calls, attempt=attempt))
            try:
                return await self._stream(messages)
            except Exception as exc:
                logger.debug("%s: model call failed", self._agent, exc_info=True)
                delay_s = await terms().retry_delay_s(exc, attempt)
                error = str(exc) if isinstance(exc, ReplyTooLongError) else describe(exc)
                self._emit(
                    ev.ModelFailed(
                        agent=self._agent, call=self._calls, error=error, retry_in_s=delay_s
                    )
                )
                if delay_s is None:
                    raise ModelCallError(self._backend.name, error) from exc
                await self._boundary.sleep(delay_s)
        raise AssertionError("unreachable")

    async def _stream(self, messages: list[ModelMessage]) -> ModelResponse:
        draft = self._draft = Draft(self._agent, self._calls)
        add = draft.add
        self._offer = offer = self._seat.offer()
        others = [] if offer.must_decide else self._toolbox.definitions
        tools = [*others, *decision_tools(offer)]
        try:
            async with self._backend.stream(messages, tools) as stream:
                async for event in stream:
                    add(event)
                response = stream.get()
        except anyio.get_cancelled_exc_class():
            # First all agents' streams close, then the cuts are recorded.
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self.flush()
            self._emit(ev.ModelCut(agent=self._agent, call=self._calls))
            raise
        finally:
            self.flush()
            self._draft = None
        if not response.parts:
            from pydantic_ai.exceptions import UnexpectedModelBehavior

            raise UnexpectedModelBehavior("empty response")
        self._emit(
            ev.ModelFinished(
                agent=self._agent,
                call=self._calls,
                response=dump_messages([response])[0],
                usage=usage_of(response),
            )
        )
        return response

    async def _run_tools(self, exchange: Exchange) -> dict[int, ToolResult]:
        """Run the response's other tool calls in order, those not yet done: results by position.

        Once a stop is felt, the rest is answered as cancelled, so that any provider takes the
        history; a graceful stop itself passes on unless the response has decided the turn.
        """
        results = _results(exchange)
        calls = [
            (number, call)
            for number, call in enumerate(exchange.response.tool_calls)
            if call.tool_name not in ("new_answer", "vote") and number not in results
        ]
        try:
            while calls:
                await self._boundary.ready()
                number, call = calls.pop(0)
                with repeating(number in exchange.begun):
                    results[number] = await self._run_tool(call, f"{exchange.call}.{number}")
        except AgentStopped:
            if self.decision is None:
                raise
        finally:
            for number, call in calls:
                self._finish_tool(call, f"{exchange.call}.{number}", "cancelled", CANCELLED_RETURN)
        return results

    async def _run_tool(self, call: ToolCallPart, call_id: str) -> ToolResult:
        args, began = call.args, anyio.current_time()
        self._emit(
            ev.ToolStarted(
                agent=self._agent,
                call_id=call_id,
                tool=call.tool_name,
                args=args,
                summary=summarize(call.tool_name, args),
            )
        )
        with attempting() as attempt:
            try:
                result = await self._call(call)
            except (anyio.get_cancelled_exc_class(), AgentStopped):
                # One that still waited for a person's leave has not happened in part.
                outcome = "cut" if attempt.began else "cancelled"
                self._finish_tool(call, call_id, outcome, "", began)
                raise
            except (SystemExit, KeyboardInterrupt) as exc:
                # Out of a task, these would end the loop of all runs.
                result = ToolResult(f"Error: the tool raised {type(exc).__name__}.", is_error=True)
        self._finish_tool(call, call_id, "error" if result.is_error else "ok", result, began)
        return result

    async def _call(self, call: ToolCallPart) -> ToolResult:
        if self._offer.must_decide:
            return ToolResult(prompts.NO_TOOLS.format(tools=self._offer.names), is_error=True)
        with calling(self._agent):
            return await self._toolbox.call(call.tool_name, call.args)

    def _finish_tool(
        self,
        call: ToolCallPart,
        call_id: str,
        outcome: Any,
        result: str,
        began: float | None = None,
    ) -> None:
        """Tell that a call is over, which began then, or never."""
        took = 0.0 if began is None else anyio.current_time() - began
        self._emit(
            ev.ToolFinished(
                agent=self._agent,
                call_id=call_id,
                tool=call.tool_name,
                outcome=outcome,
                result=str(result),
                size=len(result),
                seconds=round(took, 3),
            )
        )

    def _replies(
        self,
        response: ModelResponse,
        results: dict[int, ToolResult],
        complaint: str,
        told: Sequence[str],
    ) -> list[Any]:
        """Answer every tool call of a response, or plain text with the reminder; then the notes."""
        from pydantic_ai.messages import ToolReturnPart, UserPromptPart

        notes = [UserPromptPart(content=note) for note in told if note]
        if not response.tool_calls:
            return [UserPromptPart(content=complaint), *notes]
        returns = [
            ToolReturnPart(
                tool_name=call.tool_name,
                content=str(results.get(number, f"Error: {complaint}")),
                tool_call_id=call.tool_call_id,
            )
            for number, call in enumerate(response.tool_calls)
        ]
        return [*returns, *notes]


def _results(exchange: Exchange) -> dict[int, ToolResult]:
    return {
        number: ToolResult(text, is_error=is_error)
        for number, (text, is_error) in exchange.results.items()
    }


def _add_note(messages: list[ModelMessage], note: str) -> None:
    """Add a note to the request that is to be sent."""
    from pydantic_ai.messages import UserPromptPart

    messages[-1] = _request([*messages[-1].parts, UserPromptPart(content=note)])


def _request(parts: list[Any]) -> ModelMessage:
    from pydantic_ai.messages import ModelRequest

    return ModelRequest(parts=parts)
