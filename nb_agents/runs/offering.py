"""Offering functions of this process to a run in another one, and answering its calls.

Calls are answered until the run is over, and a stop of the run reaches the functions. See
`nb_agents.tools.offer` for how calls are transmitted.
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
from nb_agents.loop import submit
from nb_agents.masking import Mask
from nb_agents.runs.approvals import bind_asker
from nb_agents.runs.hiding import mask_logs
from nb_agents.runs.live_turns import watched
from nb_agents.runs.turn_spec import checked_functions
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.base import ToolCall, ToolContext, ToolResult, calling
from nb_agents.tools.functions import function_tool
from nb_agents.tools.offer import CallAnswered, CallAsked, CallInbox, OfferedFunction

ALIVE_S = 1.0
"""Interval for checking whether the run is over."""

RETRY_S = 0.5
"""Interval for retrying to write an answer, until its caller is stopped."""


class _News(NamedTuple):
    """New calls, and stops of new or earlier calls, each with the call's name."""

    calls: list[tuple[str, CallAsked]]
    stops: list[tuple[str, StopRequest]]


class Offering:
    """Functions that this process offers to one run.

    Calls are accepted once it is created, and answered by `serve`.

    Args:
        functions: Sync or async functions.
        root: The session root.
        team: The run's team, if known: its keys are masked in answers.

    Attributes:
        id: The offer's id.
        functions: The descriptions of the functions for the run.

    Raises:
        UserError: A function can't be described to a model, or its name is taken.
        StorageError: The session root can't be written.
    """

    def __init__(
        self, functions: Sequence[Callable[..., Any]], root: Path, team: TeamSpec | None = None
    ) -> None:
        known = [(function, function_tool(function)) for function in checked_functions(functions)]
        self._functions = {tool.name: function for function, tool in known}
        self._team = team
        self._mask = Mask()
        self._offer = CallInbox.make(root)
        self._tokens: dict[str, CancelToken] = {}
        self.id = self._offer.id
        offer = CallInbox(self.id, root)
        self.functions = tuple(
            OfferedFunction(
                tool.name,
                tool.definition.description,
                tool.definition.parameters_json_schema,
                offer,
                tool.is_repeatable,
            )
            for _, tool in known
        )

    def withdraw(self) -> None:
        """Withdraw an offer that is not served."""
        self._offer.withdraw()

    def serve(self, turn: Path) -> None:
        """Start answering calls, until the turn in a directory is over."""
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
                                with ServiceLoop.OFFERS.item():
                                    self._stop(name, request)
                    for name in self._tokens:  # left when the run's process has died
                        self._stop(name, StopRequest(CancellationStatus.IMMEDIATE, "parent"))
        finally:
            self._offer.withdraw()

    async def _next_news(self, turn: TurnPaths, has_news: asyncio.Event) -> _News | None:
        """Wait for calls and stops, at most for `ALIVE_S`; return None when the run is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                await has_news.wait()
        has_news.clear()
        with ServiceLoop.OFFERS.item():
            # A limiter of its own, as the functions may occupy all other threads.
            return await to_thread.run_sync(self._take, turn, limiter=CapacityLimiter(1))
        return _News([], [])

    def _take(self, turn: TurnPaths) -> _News | None:
        is_over = not turn.is_live()  # checked first, so that the last calls are still taken
        # Stops first: a stop is written after its call, which is then taken before or now.
        stops = self._offer.take_stops()
        calls = self._offer.take_calls()
        return None if is_over and not (calls or stops) else _News(calls, stops)

    def _stop(self, name: str, request: StopRequest) -> None:
        if (token := self._tokens.get(name)) is not None:
            token.request(request.level, request.source, request.reason)

    async def _answer(self, name: str, asked: CallAsked, token: CancelToken) -> None:
        answered = CallAnswered("Error: a bug in nb_agents prevented the call.", True)
        with ServiceLoop.OFFERS.item():
            answered = await self._called(asked, token)
        try:
            with ServiceLoop.OFFERS.item():
                # On a full disk, the caller of a function that has returned would wait for ever.
                while not await to_thread.run_sync(self._offer.answer, name, answered):
                    if token.is_stopping:
                        break
                    await anyio.sleep(RETRY_S)
        finally:
            del self._tokens[name]

    async def _called(self, asked: CallAsked, token: CancelToken) -> CallAnswered:
        with suppress(AgentStopped), StopScope(token):
            result = await self._call(asked)
            self._mask.add(secrets_of_environment())
            return CallAnswered(self._mask.text(result), result.is_error)
        return CallAnswered(was_stopped=True)

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
            tell=lambda text: None,  # progress is not transmitted to the run
            mask=self._mask,
        )
        with (
            calling(ToolCall(asked.agent, is_repeated=asked.is_repeated)),
            bind_asker(_refuse_to_ask),
        ):
            return await function_tool(function, context).call(asked.args)


def _refuse_to_ask(prompt: str) -> str:
    raise UserError("A detached run asks nobody for its notebook's functions.")


def _mask_for(turn: TurnPaths, team: TeamSpec | None) -> Mask:
    """Return the mask of this process's secrets and, if its team can be read, the run's."""
    mask = Mask(secrets_of_environment())
    with suppress(OSError, UserError):
        if team is None:
            events = JournalReader(turn.journal).read()
            config = next((each.config for each in events if isinstance(each, TurnStarted)), "")
            team = TeamSpec.from_file(config) if config else None
        mask.add(secrets_of_team(team) if team else ())
    return mask
