"""Functions of another process as tools: what a run that outlives its notebook knows of them.

A call goes to the offer's directory and waits for the answer. A stop is passed on; when nobody is
there to answer, the model is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from anyio import to_thread

from nb_agents.cancel import CancellationStatus, StopRequest, checkpoint, current_token
from nb_agents.tools.base import Tool, ToolContext, ToolError, current_call
from nb_agents.tools.functions import CLEANUP_S, function_tool
from nb_agents.tools.offer import CallAnswered, CallAsked, Offer

__all__ = ["OfferedFunction", "tool_of"]

POLL_S = 0.05
"""How often a call looks for its answer."""

ALIVE_S = 0.5
"""How often it looks whether somebody is there to give one."""

HEARING_S = 0.5
"""What a stop at once takes to reach the other process, besides the function's own clean-up."""


@dataclass
class OfferedFunction:
    """A function of another process.

    Attributes:
        name: Its name.
        description: What a model is told of it.
        schema: The JSON schema of its arguments.
        offer: Where its calls go; another process may take its place.
    """

    name: str
    description: str | None
    schema: dict[str, Any]
    offer: Offer

    @property
    def gone(self) -> str:
        """What is said when nobody is there to answer."""
        return f"the notebook that offers `{self.name}` is not running"

    def tool(self, context: ToolContext) -> Tool:
        """Make a tool of it.

        Args:
            context: Whose tool it is.
        """
        from pydantic_ai.tools import ToolDefinition

        definition = ToolDefinition(
            name=self.name, description=self.description, parameters_json_schema=self.schema
        )

        async def call(args: dict[str, Any]) -> str:
            return await self._call(context, args)

        return Tool.from_definition(definition, call)

    async def _call(self, context: ToolContext, args: dict[str, Any]) -> str:
        call = current_call()
        asked = CallAsked(
            tool=self.name,
            args=context.mask.value(args),
            agent=call.agent or context.agent,
            is_repeated=call.is_repeated,
            workspace=context.workspace,
            readable=tuple(context.readable),
            session=context.session,
            kept=context.kept,
        )
        offer = self.offer
        try:
            name = await to_thread.run_sync(offer.ask, asked)
        except OSError:
            raise ToolError(self.gone) from None
        try:
            answer = await self._answer_to(offer, name)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(CLEANUP_S + HEARING_S, shield=True):
                now = StopRequest(CancellationStatus.IMMEDIATE, "parent")
                await self._answer_to(offer, name, now)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(offer.forget, name)
        if answer is None:
            raise ToolError(self.gone)
        return _result(answer)

    async def _answer_to(
        self, offer: Offer, name: str, stop: StopRequest | None = None
    ) -> CallAnswered | None:
        """Wait for what becomes of a call; None when nobody is there to tell."""
        token, told, looked_at = current_token(), CancellationStatus.NONE, -math.inf
        while True:
            request = stop or (token.last_request if token else None)
            if request is not None and request.level > told:
                told = request.level
                await to_thread.run_sync(offer.stop, name, request)
            lives = True
            if anyio.current_time() - looked_at >= ALIVE_S:
                looked_at = anyio.current_time()
                lives = await to_thread.run_sync(offer.is_live)
            # In this order: an answer may be the last that its process gave.
            answer = await to_thread.run_sync(offer.answer_to, name)
            if answer is not None or not lives:
                return answer
            await anyio.sleep(POLL_S)


def tool_of(function: Callable[..., Any] | OfferedFunction, context: ToolContext) -> Tool:
    """Make a tool of a function, of this process or of another.

    Args:
        function: The function.
        context: Whose tool it is.

    Raises:
        UserError: It can't be described to a model.
    """
    if isinstance(function, OfferedFunction):
        return function.tool(context)
    return function_tool(function, context)


def _result(answer: CallAnswered) -> str:
    if answer.was_stopped:
        checkpoint()
        raise ToolError("the function was stopped")
    if answer.is_error:
        raise ToolError(answer.text.removeprefix("Error: "))
    return answer.text
