"""Journals the calls of a user's program by place, and answers those that had finished before.

A place is a path: each run of an agent takes a number where it begins, a call of a model is counted
within its run, and what a tool calls is below that tool. So calls that are made side by side, or
with the same ids, are never taken for one another.

A stop takes effect before a call: the calls in hand finish first, as they are paid for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio

from nb_agents import events as ev
from nb_agents.agents import prompts
from nb_agents.agents.placed_calls import PlacedCall, fate_of
from nb_agents.agents.replay import PastRound
from nb_agents.agents.runner import Round, WordStream
from nb_agents.cancel import AgentStopped
from nb_agents.context import within
from nb_agents.errors import said_by
from nb_agents.tools.base import ToolCall, ToolResult, calling
from nb_agents.unicode import well_formed

_path: ContextVar[str] = ContextVar("nb_agents_program_path", default="")

CHANGED = (
    "{agent}: the program has changed since its call {place} was recorded, so that the call is "
    "made anew."
)


class Decided(BaseException):
    """The agent has decided its round: its program ends here, also within `except Exception`."""


def digest_of(value: Any) -> str:
    """Return a short digest of JSON-like data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CallLog:
    """The calls of a program in one round.

    Args:
        round: The round.
        past: The journalled part of an interrupted round, or None.
    """

    def __init__(self, round: Round, past: PastRound | None) -> None:
        self.round = round
        self._past = dict(past.placed) if past else {}
        self._counts: dict[str, int] = {}
        self._in_hand: set[str] = set()
        self._waiting: list[str] = []
        self._changed = anyio.Event()
        self._has_told = False

    # Places -----------------------------------------------------------------------------------

    def next_place(self, kind: str) -> str:
        """Return the next place of a kind, such as "m", where the program is now."""
        base = f"{_path.get()}/{kind}"
        self._counts[base] = number = self.count(kind) + 1
        return f"{base}{number}"

    def count(self, kind: str) -> int:
        """Return how many places of a kind there are where the program is now."""
        return self._counts.get(f"{_path.get()}/{kind}", 0)

    def place(self, name: str) -> str:
        """Return the place of a name where the program is now."""
        return f"{_path.get()}/{name}"

    def run(self) -> AbstractContextManager[None]:
        """Number the run of an agent that the block is."""
        return within(_path, self.next_place("r"))

    # Boundaries -------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Wait while the run is paused.

        Raises:
            AgentStopped: A stop was asked for; the calls in hand have finished.
        """
        try:
            await self.round.scope.wait_if_paused()
        except AgentStopped:
            await self.settled()
            raise

    async def settled(self) -> None:
        """Wait until no call is in hand but those that wait here themselves, or are around one."""
        self._waiting.append(_path.get())
        self._notify()
        while not all(map(self._is_waiting, self._in_hand)):
            await self._changed.wait()

    def _is_waiting(self, place: str) -> bool:
        return any(f"{path}/".startswith(f"{place}/") for path in self._waiting)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    @contextmanager
    def _holding(self, place: str) -> Iterator[None]:
        self._in_hand.add(place)
        try:
            yield
        finally:
            self._in_hand.discard(place)
            self._notify()

    # Calls ------------------------------------------------------------------------------------

    def finished(self, place: str, *, tool: str = "", digest: str = "") -> PlacedCall | None:
        """Return the finished call of a place, or None when it is to be made.

        Args:
            place: The place.
            tool: The tool that the program calls there; "" for a model.
            digest: Of what it sends there.
        """
        past = self._past.get(place)
        if past is None or (past.tool, past.digest) == (tool, digest):
            return past if past and past.is_finished else None
        del self._past[place]
        if not self._has_told:
            self._has_told = True
            told = CHANGED.format(agent=self.round.agent, place=place)
            self.round.emit(ev.Noticed(text=told))
        return None

    def save(self, place: str, form: str, data: str) -> None:
        """Journal a part of a program's state."""
        agent = self.round.agent
        self.round.emit(ev.ProgramSaved(agent=agent, place=place, form=form, data=data))

    def saved(self, place: str) -> list[tuple[str, str]]:
        """Return the journalled parts of a program's state, in order, as (form, data)."""
        past = self._past.get(place)
        return [*past.value] if past else []

    @asynccontextmanager
    async def model(
        self, place: str, digest: str = "", name: str = ""
    ) -> AsyncIterator[WordStream]:
        """Make a call of a model within the block, which writes what arrives.

        Args:
            place: Its place.
            digest: Of the conversation that is sent.
            name: The model's name.
        """
        await self.checkpoint()
        with self._holding(place):
            try:
                async with self.round.call(place, digest, name) as call:
                    yield call
            except Exception:
                self._take_back(place)
                raise

    def _take_back(self, place: str) -> None:
        """Let the next attempt have the place of a call that failed."""
        base = place.rstrip("0123456789")
        if place == f"{base}{self._counts.get(base, 0)}":
            self._counts[base] -= 1

    async def tool(
        self,
        place: str,
        name: str,
        args: Any,
        run: Callable[[], Awaitable[Any]],
        *,
        is_repeatable: bool = False,
    ) -> Any:
        """Make a call of a tool or step, unless it has finished before.

        Args:
            place: Its place.
            name: The tool's name.
            args: Its arguments.
            run: Makes the call, and returns JSON-like data, or a `ToolResult` for a model.
            is_repeatable: Whether a call that was cut may be made again.

        Returns:
            What it returned, now or before. A call that was cut and must not be made again returns
            a text for the model, that it may have happened.
        """
        digest = digest_of(args)
        past = self.finished(place, tool=name, digest=digest)
        if past is not None:
            return _value(past)
        if place in self._past and fate_of(self._past, place) == "told":
            told = ToolResult(prompts.MAY_HAVE_HAPPENED.format(tool=name), is_error=True)
            self.round.end_tool(place, name, "cut", told)
            return told
        await self.checkpoint()
        made = ToolCall(self.round.agent, place, is_repeated=place in self._past)
        with self._holding(place), within(_path, place), calling(made):
            self.round.begin_tool(place, name, args, is_repeatable=is_repeatable, digest=digest)
            return await self._run(made, name, run)

    async def _run(self, made: ToolCall, name: str, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a tool that has begun, and emit its end."""
        end, began = partial(self.round.end_tool, made.id, name), anyio.current_time()
        try:
            value = await run()
        except Exception as exc:
            end("error", well_formed(said_by(exc)), began, form="raised")
            raise
        except BaseException:
            end(made.cut_outcome, "", began, thread=made.thread)
            raise
        is_text = isinstance(value, ToolResult)
        said = well_formed(str(value) if is_text else json.dumps(value))
        outcome = "error" if is_text and value.is_error else "ok"
        end(outcome, said, began, form="" if is_text else "json", subagents=made.subagents)
        return value


def _value(past: PlacedCall) -> Any:
    if past.form == "json":
        return json.loads(past.value)
    return ToolResult(str(past.value), is_error=past.is_error)
