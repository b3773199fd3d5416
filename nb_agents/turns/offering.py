"""Offers functions of this process to a run in another process.

Calls are answered until the run ends, and a stop of the run also stops the functions.
`nb_agents.tools.offer` describes how calls are transmitted.
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
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.base import ToolCall, ToolContext, ToolResult, use_call
from nb_agents.tools.functions import function_tool
from nb_agents.tools.offer import CallInbox, CallRequest, CallResult, OfferedFunction
from nb_agents.turns.approvals import bind_asker
from nb_agents.turns.hiding import mask_logs
from nb_agents.turns.live_turns import polling
from nb_agents.turns.turn_spec import checked_functions

ALIVE_S = 1.0
"""Interval for checking whether the run is over, in seconds."""

RETRY_S = 0.5
"""Interval for retrying to write an answer, in seconds. Retries end when the call is stopped."""


class _News(NamedTuple):
    """New calls, and stops of new or earlier calls, by the name of the call."""

    calls: list[tuple[str, CallRequest]]
    stops: list[tuple[str, StopRequest]]


class Offering:
    """Functions that this process offers to one run.

    Calls are accepted as soon as it is created, and answered by `serve`.

    Args:
        functions: Sync or async functions.
        root: The session root.
        team: The run's team, if known. Its API keys are masked in answers.

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
        pairs = [(function, function_tool(function)) for function in checked_functions(functions)]
        self._functions = {tool.name: function for function, tool in pairs}
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
            for _, tool in pairs
        )

    def withdraw(self) -> None:
        """Withdraw the offer without having served it."""
        self._offer.withdraw()

    def serve(self, turn: Path) -> None:
        """Answer calls in the background until the turn in a directory has ended."""
        submit(self._serve, TurnPaths(turn))

    async def _serve(self, turn: TurnPaths) -> None:
        try:
            self._mask = await to_thread.run_sync(_mask_for, turn, self._team)
            with mask_logs(self._mask):
                has_news = asyncio.Event()
                tell = partial(asyncio.get_running_loop().call_soon_threadsafe, has_news.set)
                async with anyio.create_task_group() as group:
                    with polling(self._offer.is_asked, tell):
                        while (news := await self._next_news(turn, has_news)) is not None:
                            for name, call_request in news.calls:
                                token = self._tokens[name] = CancelToken(call_request.tool)
                                group.start_soon(self._answer, name, call_request, token)
                            for name, request in news.stops:
                                with ServiceLoop.OFFERS.item():
                                    self._stop(name, request)
                    for name in self._tokens:  # calls that are still open if the process has died
                        self._stop(name, StopRequest(CancellationStatus.IMMEDIATE, "parent"))
        finally:
            self._offer.withdraw()

    async def _next_news(self, turn: TurnPaths, has_news: asyncio.Event) -> _News | None:
        """Wait for calls and stops, at most for `ALIVE_S`. Returns None when the run is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                await has_news.wait()
        has_news.clear()
        with ServiceLoop.OFFERS.item():
            # A separate limiter, because the functions may use up all other threads.
            return await to_thread.run_sync(self._read_news, turn, limiter=CapacityLimiter(1))
        return _News([], [])

    def _read_news(self, turn: TurnPaths) -> _News | None:
        is_over = not turn.is_live()  # checked first, so that the last calls are still taken
        # Stops first. A call is written before its stop, so it was read earlier or is read now.
        stops = self._offer.take_stops()
        calls = self._offer.take_calls()
        return None if is_over and not (calls or stops) else _News(calls, stops)

    def _stop(self, name: str, request: StopRequest) -> None:
        if (token := self._tokens.get(name)) is not None:
            token.request(request.level, request.source, request.reason)

    async def _answer(self, name: str, request: CallRequest, token: CancelToken) -> None:
        answered = CallResult("Error: a bug in nb_agents prevented the call.", True)
        with ServiceLoop.OFFERS.item():
            answered = await self._answer_call(request, token)
        try:
            with ServiceLoop.OFFERS.item():
                # Without a retry, the caller would wait forever if the disk is full.
                while not await to_thread.run_sync(self._offer.answer, name, answered):
                    if token.is_stopping:
                        break
                    await anyio.sleep(RETRY_S)
        finally:
            del self._tokens[name]

    async def _answer_call(self, request: CallRequest, token: CancelToken) -> CallResult:
        with suppress(AgentStopped), StopScope(token):
            result = await self._call(request)
            self._mask.add(secrets_of_environment())
            return CallResult(self._mask.text(result), result.is_error)
        return CallResult(was_stopped=True)

    async def _call(self, request: CallRequest) -> ToolResult:
        function = self._functions.get(request.tool)
        if function is None:
            return ToolResult(f"Error: no tool {request.tool!r} is offered here.", is_error=True)
        context = ToolContext(
            agent=request.agent,
            workspace=request.workspace,
            readable=request.readable,
            session=request.session,
            kept=request.kept,
            secrets=[secret.value for secret in secrets_of_environment()],
            tell=lambda text: None,  # progress is not transmitted to the run
            mask=self._mask,
        )
        with (
            use_call(ToolCall(request.agent, is_repeated=request.is_repeated)),
            bind_asker(_refuse_to_ask),
        ):
            return await function_tool(function, context).call(request.args)


def _refuse_to_ask(prompt: str) -> str:
    raise UserError("A notebook function can't ask the user when a detached run calls it.")


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
