"""One agent's turn: ask the model, run its tools, until it answers, votes or fails.

The loop is ours and short because a stop, and later an exact resume, must fall between any two
calls. Boundaries: before every model request, before every tool call, before every retry and
during its wait. An answer or vote that a call carried is kept even when a stop came meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.boundary import Boundary
from nb_agents.agents.coordination import MAX_REJECTED_TURNS, STALE
from nb_agents.agents.draft import Draft, ReplyTooLongError, read_arguments
from nb_agents.agents.replay import Exchange, OpenRound, dump_messages
from nb_agents.cancel import AgentStopped
from nb_agents.errors import ModelCallError
from nb_agents.models.backend import Backend, usage_of
from nb_agents.models.retry import describe, retry_delay_s
from nb_agents.tools.base import Toolbox, ToolResult, repeating, summarize

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.tools import ToolDefinition

__all__ = ["AgentTurn", "Answered", "Decision", "Stale", "Voted"]

logger = logging.getLogger("nb_agents")

MAX_MODEL_CALLS = 100
"""Model requests in one round: a model that only ever calls tools must end somewhere."""

CANCELLED_RETURN = "Cancelled: the run was stopped before this call began."


@dataclass(frozen=True)
class Answered:
    """The turn ended in an answer."""

    answer: str


@dataclass(frozen=True)
class Voted:
    """The turn ended in a vote that counts when it is still fresh."""

    target: str
    reason: str


@dataclass(frozen=True)
class Stale:
    """The turn ended in a vote over answers that have since been outdone."""

    target: str


Decision = Answered | Voted | Stale


class AgentTurn:
    """Runs one agent through one round.

    Args:
        agent: The agent's id.
        backend: Its model.
        toolbox: Its tools, besides answering and voting.
        emit: Takes what happens.
        judge: Judges a vote's label: (agent id or "", "" or why not).
        boundary: Where a stop is felt.
        voters: Names that can be voted for; none leaves only answering.
        accept_text: Whether plain text is an answer (presenting, or a team of one).
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
        judge: Callable[[str], tuple[str, str]],
        boundary: Boundary,
        voters: Sequence[str] = (),
        *,
        accept_text: bool = False,
        calls: int = 0,
    ) -> None:
        self._agent = agent
        self._backend = backend
        self._toolbox = toolbox
        self._emit = emit
        self._judge = judge
        self._boundary = boundary
        self._accept_text = accept_text
        self._calls = calls
        self.decision: Decision | None = None
        self._rejected = 0
        self._draft: Draft | None = None
        self._tools = [*toolbox.definitions, *_decision_tools(voters)]
        self._names = " or ".join(["new_answer"] + (["vote"] if voters else []))

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
        for exchange in exchanges:
            self._recall(messages, exchange)
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
        messages.append(_request(self._replies(response, results, exchange.complaint)))

    async def _settle(self, messages: list[ModelMessage], exchange: Exchange) -> bool:
        """Do what a response asks for, as far as it is not done: whether it decided the turn."""
        response = exchange.response
        messages.append(response)
        self.decision, complaint = self._decide(response)
        results = await self._run_tools(exchange)
        if self.decision is not None:
            return True
        if complaint:
            self._reject(complaint, is_known=bool(exchange.complaint))
        messages.append(_request(self._replies(response, results, complaint)))
        return False

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
            self._boundary.checkpoint()
            self._emit(ev.ModelStarted(agent=self._agent, call=self._calls, attempt=attempt))
            try:
                return await self._stream(messages)
            except Exception as exc:
                logger.debug("%s: model call failed", self._agent, exc_info=True)
                delay_s = retry_delay_s(exc, attempt)
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
        try:
            async with self._backend.stream(messages, self._tools) as stream:
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

    def _decide(self, response: ModelResponse) -> tuple[Decision | None, str]:
        """Read the answer or vote out of a response: (decision, or why there is none)."""
        answers = [c for c in response.tool_calls if c.tool_name == "new_answer"]
        votes = [c for c in response.tool_calls if c.tool_name == "vote"]
        if answers and votes:
            return None, prompts.BOTH
        if answers:
            return self._read_answer(answers[-1])
        if votes:
            return self._read_vote(votes[-1])
        if response.tool_calls:
            return None, ""
        text = (response.text or "").strip()
        if self._accept_text and text:
            return Answered(text), ""
        return None, prompts.REMINDER.format(tools=self._names)

    def _read_answer(self, call: ToolCallPart) -> tuple[Decision | None, str]:
        args = read_arguments(call.args)
        if args is None:
            return None, prompts.UNREADABLE
        content = str(args.get("content") or "").strip()
        return (Answered(content), "") if content else (None, prompts.EMPTY)

    def _read_vote(self, call: ToolCallPart) -> tuple[Decision | None, str]:
        args = read_arguments(call.args)
        if args is None:
            return None, prompts.UNREADABLE
        target, refusal = self._judge(str(args.get("agent_id") or ""))
        if refusal == STALE:
            return Stale(target), ""
        if refusal:
            return None, refusal
        return Voted(target, str(args.get("reason") or "")), ""

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
                self._boundary.checkpoint()
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
        args = call.args
        self._emit(
            ev.ToolStarted(
                agent=self._agent,
                call_id=call_id,
                tool=call.tool_name,
                args=args,
                summary=summarize(call.tool_name, args),
            )
        )
        try:
            result = await self._toolbox.call(call.tool_name, args)
        except (anyio.get_cancelled_exc_class(), AgentStopped):
            self._finish_tool(call, call_id, "cut", "")
            raise
        except (SystemExit, KeyboardInterrupt) as exc:
            # Out of a task, these would end the loop of all runs.
            result = ToolResult(f"Error: the tool raised {type(exc).__name__}.", is_error=True)
        self._finish_tool(call, call_id, "error" if result.is_error else "ok", result)
        return result

    def _finish_tool(self, call: ToolCallPart, call_id: str, outcome: Any, result: str) -> None:
        self._emit(
            ev.ToolFinished(
                agent=self._agent,
                call_id=call_id,
                tool=call.tool_name,
                outcome=outcome,
                result=str(result),
            )
        )

    def _replies(
        self, response: ModelResponse, results: dict[int, ToolResult], complaint: str
    ) -> list[Any]:
        """Answer every tool call of a response, or plain text with the reminder."""
        from pydantic_ai.messages import ToolReturnPart, UserPromptPart

        if not response.tool_calls:
            return [UserPromptPart(content=complaint)]
        return [
            ToolReturnPart(
                tool_name=call.tool_name,
                content=str(results.get(number, f"Error: {complaint}")),
                tool_call_id=call.tool_call_id,
            )
            for number, call in enumerate(response.tool_calls)
        ]


def _results(exchange: Exchange) -> dict[int, ToolResult]:
    return {
        number: ToolResult(text, is_error=is_error)
        for number, (text, is_error) in exchange.results.items()
    }


def _request(parts: list[Any]) -> ModelMessage:
    from pydantic_ai.messages import ModelRequest

    return ModelRequest(parts=parts)


def _decision_tools(voters: Sequence[str]) -> list[ToolDefinition]:
    from pydantic_ai.tools import ToolDefinition

    text = {"type": "string"}
    answer = ToolDefinition(
        name="new_answer",
        description="Submit your complete answer to the task.",
        parameters_json_schema=_schema({"content": text}),
    )
    vote = ToolDefinition(
        name="vote",
        description="Vote for the best of the current answers.",
        parameters_json_schema=_schema(
            {"agent_id": {"type": "string", "enum": list(voters)}, "reason": text}
        ),
    )
    return [answer, vote] if voters else [answer]


def _schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
