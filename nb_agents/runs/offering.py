"""Functions of this process for a run of another: its calls are taken, carried out and answered.

That goes on until the run is over, here as in any run: a stop of it reaches the functions. See
`nb_agents.tools.offer` for the way that calls take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio import CapacityLimiter, to_thread

from nb_agents.agents.stop_scope import StopScope
from nb_agents.cancel import AgentStopped, CancellationStatus, CancelToken, StopRequest
from nb_agents.config.secrets import secrets_of_environment, secrets_of_team
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.events import TurnStarted
from nb_agents.masking import Mask
from nb_agents.runs.approvals import bind_asker
from nb_agents.runs.hiding import mask_logs
from nb_agents.runs.live_turns import watched
from nb_agents.runs.loop import submit
from nb_agents.runs.turn_spec import checked_functions
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.base import ToolCall, ToolContext, ToolResult, calling
from nb_agents.tools.functions import function_tool
from nb_agents.tools.offer import CallAnswered, CallAsked, Offer, OfferedFunction

__all__ = ["Offering"]

ALIVE_S = 1.0
"""How often is looked whether the run is over."""

RETRY_S = 0.5
"""How often an answer that the disk refused is written again, until its caller is stopped."""


class _News(NamedTuple):
    """What has come: calls, and stops that they or earlier ones are to feel, by their names."""

    calls: list[tuple[str, CallAsked]]
    stops: list[tuple[str, StopRequest]]


class Offering:
    """Functions that this process offers to one run.

    From here on calls are waited for; `serve` answers them.

    Args:
        functions: Sync or async.
        root: Where the run's session is.
        team: The run's, when it is at hand: its keys are hidden in what is answered.

    Attributes:
        id: Of the offer.
        functions: What the run is told of the functions.

    Raises:
        UserError: One can't be described to a model, or its name is taken.
        StorageError: The session root can't be written.
    """

    def __init__(
        self, functions: Sequence[Callable[..., Any]], root: Path, team: TeamSpec | None = None
    ) -> None:
        known = [(function, function_tool(function)) for function in checked_functions(functions)]
        self._functions = {tool.name: function for function, tool in known}
        self._team = team
        self._mask = Mask()
        self._offer = Offer.make(root)
        self._tokens: dict[str, CancelToken] = {}
        self.id = self._offer.id
        offer = Offer(self.id, root)
        self.functions = tuple(
            OfferedFunction(
                tool.name,
                tool.definition.description,
                tool.definition.parameters_json_schema,
                offer,
            )
            for _, tool in known
        )

    def withdraw(self) -> None:
        """Take the offer back that is not served."""
        self._offer.withdraw()

    def serve(self, turn: Path) -> None:
        """Answer calls until a turn is over.

        Args:
            turn: Its directory.
        """
        submit(self._serve, TurnPaths(turn))

    async def _serve(self, turn: TurnPaths) -> None:
        try:
            self._mask = await to_thread.run_sync(_mask_for, turn, self._team)
            with mask_logs(self._mask):
                has_news = asyncio.Event()
                tell = partial(asyncio.get_running_loop().call_soon_threadsafe, has_news.set)
                async with anyio.create_task_group() as group:
                    with watched(self._offer.is_asked, tell):
                        while (news := await self._next_news(turn, has_news)) is not None:
                            for name, asked in news.calls:
                                token = self._tokens[name] = CancelToken(asked.tool)
                                group.start_soon(self._answer, name, asked, token)
                            for name, request in news.stops:
                                self._stop(name, request)
                    for name in self._tokens:  # of a run whose process has died
                        self._stop(name, StopRequest(CancellationStatus.IMMEDIATE, "parent"))
        finally:
            self._offer.withdraw()

    async def _next_news(self, turn: TurnPaths, has_news: asyncio.Event) -> _News | None:
        """Wait for calls and stops, for so long as may pass until it is looked if the run is over.

        Returns:
            None when it is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                await has_news.wait()
        has_news.clear()
        # The functions may occupy all other threads.
        return await to_thread.run_sync(self._take, turn, limiter=CapacityLimiter(1))

    def _take(self, turn: TurnPaths) -> _News | None:
        is_over = not turn.is_live(0)  # before the last look
        # Stops first: each comes behind its call, which is taken by then, or is taken now.
        stops = self._offer.take_stops()
        calls = self._offer.take_calls()
        return None if is_over and not (calls or stops) else _News(calls, stops)

    def _stop(self, name: str, request: StopRequest) -> None:
        if (token := self._tokens.get(name)) is not None:
            token.request(request.level, request.source, request.reason)

    async def _answer(self, name: str, asked: CallAsked, token: CancelToken) -> None:
        try:
            answered = CallAnswered(was_stopped=True)
            with suppress(AgentStopped), StopScope(token):
                result = await self._call(asked)
                self._mask.add(secrets_of_environment())
                answered = CallAnswered(self._mask.text(result), result.is_error)
            # What the function did is done: on a full disk its caller would wait for ever.
            while not await to_thread.run_sync(self._offer.answer, name, answered):
                if token.is_stopping:
                    break
                await anyio.sleep(RETRY_S)
        finally:
            del self._tokens[name]

    async def _call(self, asked: CallAsked) -> ToolResult:
        function = self._functions.get(asked.tool)
        if function is None:
            return ToolResult(f"Error: no tool {asked.tool!r} is offered here.", is_error=True)
        context = ToolContext(
            agent=asked.agent,
            workspace=asked.workspace,
            readable=asked.readable,
            session=asked.session,
            kept=asked.kept,
            secrets=[secret.value for secret in secrets_of_environment()],
            tell=lambda text: None,  # what is told while a call runs has no way to its panel
            mask=self._mask,
        )
        with calling(ToolCall(asked.agent, asked.is_repeated)), bind_asker(_refuse_to_ask):
            return await function_tool(function, context).call(asked.args)


def _refuse_to_ask(prompt: str) -> str:
    raise UserError("A detached run asks nobody for its notebook's functions.")


def _mask_for(turn: TurnPaths, team: TeamSpec | None) -> Mask:
    """Make what hides this process's secrets, and as far as they are to be had the team's."""
    mask = Mask(secrets_of_environment())
    with suppress(OSError, UserError):
        if team is None:
            events = JournalReader(turn.journal).read()
            config = next((each.config for each in events if isinstance(each, TurnStarted)), "")
            team = TeamSpec.from_file(config) if config else None
        mask.add(secrets_of_team(team) if team else ())
    return mask
