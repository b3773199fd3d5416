"""Records the calls of a user's agent function by address, and replays finished calls.

An address is a path. Each run of an agent gets a number in its parent, model calls are counted in
their run, and calls made by a tool are below the tool. Calls that run in parallel or have the same
ids therefore never get mixed up.

A call that its provider refuses is repeated within the limit of `wait_for_quota`, in its place.

A stop takes effect before a call. Calls in flight finish first, because they have been paid for.
Calls in flight when the program ends are interrupted with it (`program_work`).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, TypeVar

import anyio

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.placed_calls import TEXT_PLACE, PlacedCall, action_for_unfinished_call
from nb_agents.agents.replay import PastRound
from nb_agents.agents.runner import Round, TextStream
from nb_agents.agents.stop_scope import current_policy
from nb_agents.cancel import AgentStopped
from nb_agents.context import within
from nb_agents.errors import error_message
from nb_agents.extensions.external_agents.frameworks.program_work import ProgramWork, without_exit
from nb_agents.extensions.external_agents.frameworks.refused_calls import refusal_in
from nb_agents.models.retry import Wait
from nb_agents.tools.base import ToolCall, ToolResult, use_call
from nb_agents.unicode import well_formed

T = TypeVar("T")
Opened = Callable[[int, float], AbstractAsyncContextManager[TextStream]]
"""Begins an attempt, given its number and the seconds waited, as for `Round.call`."""

_path: ContextVar[str] = ContextVar("nb_agents_program_path", default="")

CHANGED = (
    "{agent}: the program has changed since its call {place} was recorded, so the call is made "
    "again."
)


def digest_of(value: Any) -> str:
    """Return a short digest of JSON-like data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CallLog:
    """The calls of a program in one round.

    Args:
        past: The journalled part of an interrupted round, or None.

    Attributes:
        work: The tasks of the program's current run.
    """

    def __init__(self, round: Round, past: PastRound | None) -> None:
        self.round = round
        self.work = ProgramWork(round.agent)
        self._past = dict(past.placed) if past else {}
        self._counts: dict[str, int] = {}
        self._in_flight: set[str] = set()
        self._waiting: list[str] = []
        self._changed = anyio.Event()
        self._has_warned = False

    # Places -----------------------------------------------------------------------------------

    def next_place(self, kind: str) -> str:
        """Return the next address of a kind, such as "m", at the current path."""
        base = f"{_path.get()}/{kind}"
        self._counts[base] = number = self.count(kind) + 1
        return f"{base}{number}"

    def count(self, kind: str) -> int:
        """Return the number of addresses of a kind at the current path."""
        return self._counts.get(f"{_path.get()}/{kind}", 0)

    def place(self, name: str) -> str:
        """Return the address that consists of the current path and a name."""
        return f"{_path.get()}/{name}"

    def run(self) -> AbstractContextManager[None]:
        """Return a context manager for a run of an agent, which gets the next number."""
        return within(_path, self.next_place("r"))

    # Boundaries -------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Wait while the run is paused.

        Raises:
            AgentStopped: A stop was requested. The calls in flight have finished.
        """
        await self._wait(self.round.scope.wait_if_paused)

    async def sleep(self, wait: Wait) -> None:
        """Wait before another attempt at a call.

        Raises:
            AgentStopped: A stop was requested. The calls in flight have finished.
        """
        await self._wait(partial(self.round.scope.sleep_for, wait))

    async def _wait(self, wait: Callable[[], Awaitable[object]]) -> None:
        with self.work.holding():
            try:
                await wait()
            except AgentStopped as exc:
                await self.settled()
                self.work.refuse(exc)
                raise

    async def refuse_if_stopped(self) -> None:
        """Refuse a call after a stop, even a call that would only be replayed.

        Raises:
            AgentStopped: A stop was requested. The calls in flight have finished.
        """
        try:
            self.round.scope.checkpoint()
        except AgentStopped:
            await self.checkpoint()

    async def settled(self) -> None:
        """Wait until no call is running except those that wait here and their callers."""
        self._waiting.append(_path.get())
        self._notify()
        while not all(map(self._is_waiting, self._in_flight)):
            await self._changed.wait()

    def _is_waiting(self, address: str) -> bool:
        return any(f"{path}/".startswith(f"{address}/") for path in self._waiting)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    @contextmanager
    def _holding(self, address: str) -> Iterator[None]:
        self._in_flight.add(address)
        try:
            yield
        finally:
            self._in_flight.discard(address)
            self._notify()

    # Calls ------------------------------------------------------------------------------------

    def finished(self, address: str, *, tool: str = "", digest: str = "") -> PlacedCall | None:
        """Return the recorded call at an address, or None if the call must be made.

        Args:
            address: The address.
            tool: The tool that the program calls there, or "" for a model.
            digest: The digest of its arguments or messages.
        """
        past = self._past.get(address)
        if past is None or (past.tool, past.digest) == (tool, digest):
            return past if past and past.is_finished else None
        del self._past[address]
        if not self._has_warned:
            self._has_warned = True
            text = CHANGED.format(agent=self.round.agent, place=address)
            self.round.emit(ev.Noticed(text=text))
        return None

    def waited_s(self, address: str, digest: str) -> float:
        """Return how long an interrupted model call has waited for its provider, in seconds."""
        past = self._past.get(address)
        if past is None or past.wait is None or past.digest != digest:
            return 0.0
        return past.wait.seconds_at(time.time())

    def save(self, address: str, form: str, data: str) -> None:
        """Record a part of a program's state."""
        agent = self.round.agent
        self.round.emit(ev.AgentStateSaved(agent=agent, place=address, form=form, data=data))

    def saved(self, address: str) -> list[tuple[str, str]]:
        """Return the recorded parts of an agent's state as (format, data) pairs, in order."""
        past = self._past.get(address)
        return [*past.value] if past else []

    async def request(
        self,
        address: str,
        digest: str,
        send: Callable[[TextStream], Awaitable[T]],
        *,
        name: str = "",
        retries: bool = False,
    ) -> T:
        """Make and record a model call. Wait and repeat it if its provider refuses calls.

        Args:
            address: The call's address.
            digest: The digest of the messages.
            send: Makes an attempt, and writes its text to the stream.
            name: The model's name.
            retries: Whether the run's retry policy applies. Frameworks have their own rules, so
                that nb_agents only waits as `wait_for_quota` allows.
        """
        opened = partial(self.model, address, digest, name)
        return await self._until_accepted(opened, send, self.waited_s(address, digest), retries)

    async def text(self, send: Callable[[TextStream], Awaitable[T]]) -> T:
        """Record the text of a program whose calls can't be recorded, and wait as `request` does.

        Args:
            send: Runs the program. After a wait, it must continue where the program was
                interrupted.
        """
        opened = partial(self.round.call, TEXT_PLACE, "", "")
        return await self._until_accepted(opened, send, self.waited_s(TEXT_PLACE, ""), False)

    async def _until_accepted(
        self,
        opened: Opened,
        send: Callable[[TextStream], Awaitable[T]],
        earlier_s: float,
        retries: bool,
    ) -> T:
        clock, failed_at = current_policy().hold.clock, math.inf
        for attempt in count(1):
            call: TextStream | None = None
            waited_s = earlier_s + max(0.0, clock() - failed_at)
            try:
                async with opened(attempt if retries else 0, waited_s) as call:
                    try:
                        return await send(call)
                    except Exception as exc:
                        failed_at = min(failed_at, clock())
                        if not retries:
                            waited_s = earlier_s + clock() - failed_at
                            call.wait = await _wait_after(exc, attempt, waited_s)
                        raise
            except Exception:
                if call is None or call.wait is None:
                    raise
            await self.sleep(call.wait)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def model(
        self,
        address: str,
        digest: str = "",
        name: str = "",
        attempt: int = 0,
        waited_s: float = 0.0,
    ) -> AsyncIterator[TextStream]:
        """Record a model call. The block makes it and writes its text to the yielded stream.

        Args:
            address: The call's address.
            digest: The digest of the messages.
            name: The model's name.
            attempt: As for `Round.call`. The address stays in use while another attempt follows.
            waited_s: As for `Round.call`.
        """
        await self.checkpoint()
        with self._holding(address), self.work.holding():
            stream: TextStream | None = None
            try:
                async with self.round.call(address, digest, name, attempt, waited_s) as call:
                    stream = call
                    yield call
            except Exception:
                if stream is None or stream.wait is None:
                    self._take_back(address)
                raise

    def _take_back(self, address: str) -> None:
        """Free the address of a failed call for the next attempt."""
        base = address.rstrip("0123456789")
        if address == f"{base}{self._counts.get(base, 0)}":
            self._counts[base] -= 1

    async def tool(
        self,
        address: str,
        name: str,
        args: Any,
        run: Callable[[], Awaitable[Any]],
        *,
        is_repeatable: bool = False,
    ) -> Any:
        """Call a tool or step, or return its recorded result.

        Args:
            address: The call's address.
            name: The tool's name.
            args: The arguments.
            run: Makes the call, and returns JSON-like data or a `ToolResult` for a model.
            is_repeatable: Whether an interrupted call may be repeated.

        Returns:
            The result. For an interrupted call that must not be repeated, a message to the model
            that the call may have happened.
        """
        digest = digest_of(args)
        past = self.finished(address, tool=name, digest=digest)
        if past is not None:
            return _value(past)
        if address in self._past and action_for_unfinished_call(self._past, address) == "told":
            message = ToolResult(prompts.MAY_HAVE_HAPPENED.format(tool=name), is_error=True)
            self.round.end_tool(address, name, "cut", message)
            return message
        await self.checkpoint()
        tool_call = ToolCall(self.round.agent, address, is_repeated=address in self._past)
        in_flight = self._holding(address)
        with in_flight, self.work.holding(), within(_path, address), use_call(tool_call):
            self.round.begin_tool(address, name, args, is_repeatable=is_repeatable, digest=digest)
            return await self._run(tool_call, name, run)

    async def _run(self, tool_call: ToolCall, name: str, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a tool and emit its end."""
        end, began = partial(self.round.end_tool, tool_call.id, name), anyio.current_time()
        try:
            value = await without_exit(run())
        except Exception as exc:
            end("error", well_formed(error_message(exc)), began, form="raised")
            raise
        except BaseException:
            end(tool_call.cut_outcome, "", began, thread=tool_call.thread)
            raise
        is_text = isinstance(value, ToolResult)
        result = well_formed(str(value) if is_text else json.dumps(value))
        outcome = "error" if is_text and value.is_error else "ok"
        end(outcome, result, began, form="" if is_text else "json", subagents=tool_call.subagents)
        return value


async def _wait_after(error: Exception, attempt: int, waited_s: float) -> Wait | None:
    """Return the wait for a provider after a framework's error, or None."""
    refusal, policy = refusal_in(error), current_policy()
    if refusal is None or not policy.quota_wait_s:
        return None
    return await policy.retry_after(refusal, attempt, waited_s)


def _value(past: PlacedCall) -> Any:
    if past.form == "json":
        return json.loads(past.value)
    return ToolResult(str(past.value), is_error=past.is_error)
