"""Functions that one process offers to a run of another: calls and answers as files in a directory.

An offer exists before the turn that calls it, and several processes may offer functions of the same
name. So each offer has its own directory in the session root, and its owner holds the lock beside
it while it answers. Each file is written to a temporary name and renamed, has a size limit, and is
removed after the call. The offer's own files are removed by its owner, or, if that died, when the
next offer is created.

The run's side makes tools of them, which write a call and wait for its answer. A stop is passed on;
if the owner is gone, the model gets an error.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

import anyio
from anyio import to_thread
from filelock import FileLock
from pydantic import TypeAdapter

from nb_agents.cancel import CancellationStatus, StopRequest, checkpoint, current_token
from nb_agents.disk.directory import consume_file, read_file
from nb_agents.disk.lock import is_held
from nb_agents.errors import as_storage_error
from nb_agents.service_loops import ServiceLoop
from nb_agents.tools.base import Tool, ToolContext, ToolDefinition, ToolError, current_call
from nb_agents.tools.functions import CLEANUP_S, function_tool

MAX_BYTES = 1_000_000
"""Of a file: a result has at most `MAX_RESULT_CHARS`, each at most 6 bytes as JSON."""

MAX_AT_ONCE = 100
"""Limit of calls that are read at once."""

LEFT_S = 60.0
"""Age from which on the lock of an offer that nobody holds counts as a dead process's."""

_ID = re.compile(r"[0-9a-f]{32}")
_CALL, _STOP, _ANSWER = ".call", ".stop", ".answer"

T = TypeVar("T")


@dataclass(frozen=True)
class CallAsked:
    """A call that is asked for.

    Attributes:
        tool: The function's name.
        args: The model's arguments.
        agent: The calling agent's id, or the address of its step.
        is_repeated: Whether it may have happened before.
        workspace: The agent's directory.
        readable: Files and directories that it may read besides.
        session: The session's directory.
        kept: Directory for what is too long for a model.
    """

    tool: str
    args: dict[str, Any]
    agent: str
    is_repeated: bool
    workspace: Path
    readable: tuple[Path, ...]
    session: Path
    kept: Path


@dataclass(frozen=True)
class CallAnswered:
    """The outcome of a call.

    Attributes:
        text: The result for the model.
        is_error: Whether it failed.
        was_stopped: Whether a stop ended it.
    """

    text: str = ""
    is_error: bool = False
    was_stopped: bool = False


_ASKED = TypeAdapter(CallAsked)
_ANSWERED = TypeAdapter(CallAnswered)
_STOPPED = TypeAdapter(StopRequest)


@dataclass(frozen=True)
class CallInbox:
    """The calls of a process's offer; all methods block.

    Attributes:
        id: Names it among all.
        root: The session root.
    """

    id: str
    root: Path
    _lock: FileLock | None = field(default=None, repr=False, compare=False)

    @classmethod
    def make(cls, root: Path) -> Self:
        """Create an offer of this process, which lives until it is withdrawn.

        Args:
            root: The session root.

        Raises:
            StorageError: It can't be written.
        """
        offer = cls(uuid4().hex, root)
        lock = offer._file_lock()
        with as_storage_error(offer._folder):
            offer._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            offer._remove_left()
            lock.acquire()
            offer._path.mkdir(mode=0o700)
        return cls(offer.id, root, lock)

    def _remove_left(self) -> None:
        """Remove the offers of processes that died."""
        for path in self._folder.glob("*.lock"):
            with suppress(OSError):
                # A younger one may be about to be held.
                if time.time() - path.stat().st_mtime > LEFT_S and not is_held(
                    FileLock(path, thread_local=False)
                ):
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink()

    @staticmethod
    def is_id(text: str) -> bool:
        """Return whether a text has the form of an offer's id, so that it is no other path."""
        return _ID.fullmatch(text) is not None

    @property
    def _folder(self) -> Path:
        return self.root / ".offers"

    @cached_property  # it is asked for several times a second
    def _path(self) -> Path:
        return self._folder / self.id

    def _file_lock(self) -> FileLock:
        return FileLock(self._folder / f"{self.id}.lock", thread_local=False)

    def is_live(self) -> bool:
        """Return whether the process that makes the offer is alive."""
        return is_held(self._file_lock())

    def withdraw(self) -> None:
        """Withdraw the offer, as its owner. Waiting calls learn that nobody answers."""
        assert self._lock is not None
        shutil.rmtree(self._path, ignore_errors=True)
        self._lock.release()
        with suppress(OSError):
            Path(self._lock.lock_file).unlink()

    # Who calls ---------------------------------------------------------------------------------

    def ask(self, asked: CallAsked) -> str:
        """Write a call; return its name.

        Returns:
            Its name.

        Raises:
            ToolError: Its arguments are too long.
            OSError: The offer's owner is gone.
        """
        name = f"{time.time_ns():020d}-{uuid4().hex[:8]}"
        data = _ASKED.dump_json(asked)
        if len(data) > MAX_BYTES:
            raise ToolError(
                f"the arguments have {len(data)} bytes; at most {MAX_BYTES} are possible."
            )
        self._write(name + _CALL, data)
        return name

    def stop(self, name: str, request: StopRequest) -> None:
        """Pass a stop on to a call; a later one raises the level."""
        with suppress(OSError):  # the offer is gone, and the call with it
            self._write(name + _STOP, _STOPPED.dump_json(request))

    def answer_to(self, name: str) -> CallAnswered | None:
        """Read the outcome of a call; None while it is open."""
        with suppress(OSError, ValueError):
            return _ANSWERED.validate_json(read_file(self._path / (name + _ANSWER), MAX_BYTES))
        return None

    def forget(self, name: str) -> None:
        """Remove the files of a call."""
        for kind in (_CALL, _STOP, _ANSWER):
            with suppress(OSError):
                (self._path / (name + kind)).unlink()

    # Who answers -------------------------------------------------------------------------------

    def is_asked(self) -> bool:
        """Return whether calls, or stops of calls, are waiting."""
        return bool(self._waiting(_CALL, _STOP))

    def take_calls(self) -> list[tuple[str, CallAsked]]:
        """Take the waiting calls, oldest first; invalid files are skipped."""
        return self._take(_CALL, _ASKED)

    def take_stops(self) -> list[tuple[str, StopRequest]]:
        """Take the waiting stops of calls."""
        return self._take(_STOP, _STOPPED)

    def answer(self, name: str, answered: CallAnswered) -> bool:
        """Write the answer of a call.

        Returns:
            False when the write failed and must be repeated.
        """
        data = _ANSWERED.dump_json(answered)
        if len(data) > MAX_BYTES:
            data = _ANSWERED.dump_json(CallAnswered("Error: the result is too long.", True))
        try:
            self._write(name + _ANSWER, data)
        except FileNotFoundError:
            return True  # the offer is withdrawn: nobody waits for it
        except OSError:
            return False
        return True

    def _take(self, kind: str, form: TypeAdapter[T]) -> list[tuple[str, T]]:
        taken = []
        for path in self._waiting(kind)[:MAX_AT_ONCE]:
            with ServiceLoop.OFFERS.item(), suppress(OSError, ValueError):
                taken.append((path.stem, form.validate_json(consume_file(path, MAX_BYTES))))
        return taken

    def _waiting(self, *kinds: str) -> list[Path]:
        try:
            names = os.listdir(self._path)
        except OSError:
            return []
        # What is written aside begins with a dot.
        return [
            self._path / each for each in sorted(names) if each[0] != "." and each.endswith(kinds)
        ]

    def _write(self, name: str, data: bytes) -> None:
        aside = self._path / f".{name}"
        aside.write_bytes(data)
        aside.replace(self._path / name)


POLL_S = 0.05
"""Poll interval of a call's answer, seconds."""

ALIVE_S = 0.5
"""Poll interval of the owner's lock, seconds."""

HEARING_S = 0.5
"""Seconds for an immediate stop to reach the other process, without the function's clean-up."""


@dataclass
class OfferedFunction:
    """A function of another process.

    Attributes:
        name: Its name.
        description: Its description for models.
        schema: The JSON schema of its arguments.
        offer: Id of its offer; another process may replace it.
        is_repeatable: Whether a call that was cut may be made again.
    """

    name: str
    description: str | None
    schema: dict[str, Any]
    offer: CallInbox
    is_repeatable: bool = False

    @property
    def gone(self) -> str:
        """The message when the owner is gone."""
        return f"the notebook that offers `{self.name}` is not running"

    def tool(self, context: ToolContext) -> Tool:
        """Return a tool that calls the function in its process.

        Args:
            context: Whose tool it is.
        """
        definition = ToolDefinition(self.name, self.description, self.schema)

        async def call(args: dict[str, Any]) -> str:
            return await self._call(context, args)

        return Tool.from_definition(definition, call, is_repeatable=self.is_repeatable)

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
            answer = None
            with anyio.move_on_after(CLEANUP_S + HEARING_S, shield=True):
                now = StopRequest(CancellationStatus.IMMEDIATE, "parent")
                answer = await self._answer_to(offer, name, now)
            if answer is None or answer.was_stopped:
                raise
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(offer.forget, name)
        if answer is None:
            raise ToolError(self.gone)
        return _result(answer)

    async def _answer_to(
        self, offer: CallInbox, name: str, stop: StopRequest | None = None
    ) -> CallAnswered | None:
        """Wait for the outcome of a call; None when the owner is gone."""
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
    """Return a tool for a function of this process or of another.

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
