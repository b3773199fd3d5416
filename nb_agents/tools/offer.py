"""Lets a run call functions of another process. Calls and answers are files in a directory.

An offer of functions exists before the turn that uses it, and several processes may offer functions
with the same names. So each offer has its own directory in the session root, and its owner locks
the file next to the directory while it answers calls. Each file is written under a temporary name
and renamed, has a size limit, and is removed after the call. The owner removes the directory at the
end. If the owner died, the next process that creates an offer removes it.

The run has a tool for each function, which writes a call and waits for the answer. Stops are passed
on. If the owner has ended, the model gets an error.
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
from pydantic import TypeAdapter

from nb_agents.cancel import CancellationStatus, StopRequest, checkpoint, current_token
from nb_agents.disk.directory import consume_file, read_file
from nb_agents.disk.lock import FileLock, is_held
from nb_agents.disk.private import make_folder, private_lock, write_private
from nb_agents.errors import as_storage_error
from nb_agents.service_loops import ServiceLoop
from nb_agents.tools.base import Tool, ToolContext, ToolDefinition, ToolError, current_call
from nb_agents.tools.functions import CLEANUP_S, function_tool

MAX_BYTES = 1_000_000
"""Size limit of a file: `MAX_RESULT_CHARS` characters of at most 6 bytes each as JSON."""

MAX_CALLS_PER_READ = 100
"""Maximum number of calls that are read in one go."""

STALE_S = 60.0
"""Age in seconds at which an offer that nobody locks is removed, because its process has died."""

_ID = re.compile(r"[0-9a-f]{32}")
_CALL, _STOP, _ANSWER = ".call", ".stop", ".answer"

T = TypeVar("T")


@dataclass(frozen=True)
class CallRequest:
    """A request to call a function.

    Attributes:
        tool: The function's name.
        args: The model's arguments.
        agent: The calling agent's id, or the address of its step.
        is_repeated: Whether a resume repeats an interrupted call, which may have taken effect.
        workspace: The agent's directory.
        readable: Other files and directories that the agent may read.
        session: The session's directory.
        kept: Directory for outputs that are too long for a model.
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
class CallResult:
    """The outcome of a call.

    Attributes:
        text: The result for the model.
        is_error: Whether the call failed.
        was_stopped: Whether a stop ended the call.
    """

    text: str = ""
    is_error: bool = False
    was_stopped: bool = False


_ASKED = TypeAdapter(CallRequest)
_ANSWERED = TypeAdapter(CallResult)
_STOPPED = TypeAdapter(StopRequest)


@dataclass(frozen=True)
class CallInbox:
    """The directory of an offer, with its calls and answers. All methods block.

    Attributes:
        id: The unique id of the offer.
        root: The session root.
    """

    id: str
    root: Path
    _lock: FileLock | None = field(default=None, repr=False, compare=False)

    @classmethod
    def make(cls, root: Path) -> Self:
        """Create an offer of this process. It exists until `withdraw` is called.

        Args:
            root: The session root.

        Raises:
            StorageError: The directory can't be written.
        """
        offer = cls(uuid4().hex, root)
        lock = offer._file_lock()
        with as_storage_error(offer._folder):
            make_folder(offer._folder)
            offer._remove_stale()
            lock.acquire()
            make_folder(offer._path, exist_ok=False)
        return cls(offer.id, root, lock)

    def _remove_stale(self) -> None:
        """Remove the offers of processes that died."""
        for path in self._folder.glob("*.lock"):
            with suppress(OSError):
                # The owner of a newer lock file may not hold it yet.
                if time.time() - path.stat().st_mtime > STALE_S and not is_held(private_lock(path)):
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink()

    @staticmethod
    def is_id(text: str) -> bool:
        """Return whether a string is a well-formed id, and therefore safe as part of a path."""
        return _ID.fullmatch(text) is not None

    @property
    def _folder(self) -> Path:
        return self.root / ".offers"

    @cached_property  # it is used several times per second
    def _path(self) -> Path:
        return self._folder / self.id

    def _file_lock(self) -> FileLock:
        return private_lock(self._folder / f"{self.id}.lock")

    def is_live(self) -> bool:
        """Return whether the process that made the offer is alive."""
        return is_held(self._file_lock())

    def withdraw(self) -> None:
        """Remove the offer. Only its owner may do this. Waiting calls then fail."""
        assert self._lock is not None
        shutil.rmtree(self._path, ignore_errors=True)
        self._lock.release()
        with suppress(OSError):
            Path(self._lock.lock_file).unlink()

    # For the caller ------------------------------------------------------------------------------

    def ask(self, call: CallRequest) -> str:
        """Write a call and return its name.

        Raises:
            ToolError: The arguments are too long.
            OSError: The owner has ended.
        """
        name = f"{time.time_ns():020d}-{uuid4().hex[:8]}"
        data = _ASKED.dump_json(call)
        if len(data) > MAX_BYTES:
            raise ToolError(f"the arguments have {len(data)} bytes; the limit is {MAX_BYTES}.")
        self._write(name + _CALL, data)
        return name

    def stop(self, name: str, request: StopRequest) -> None:
        """Pass a stop on to a call. A later stop may raise the level."""
        with suppress(OSError):  # the offer was removed, and the call with it
            self._write(name + _STOP, _STOPPED.dump_json(request))

    def answer_to(self, name: str) -> CallResult | None:
        """Return the outcome of a call, or None until it is answered."""
        with suppress(OSError, ValueError):
            return _ANSWERED.validate_json(read_file(self._path / (name + _ANSWER), MAX_BYTES))
        return None

    def forget(self, name: str) -> None:
        """Remove the files of a call."""
        for kind in (_CALL, _STOP, _ANSWER):
            with suppress(OSError):
                (self._path / (name + kind)).unlink()

    # For the owner -------------------------------------------------------------------------------

    def is_asked(self) -> bool:
        """Return whether calls or stops are waiting to be read."""
        return bool(self._waiting(_CALL, _STOP))

    def take_calls(self) -> list[tuple[str, CallRequest]]:
        """Read and remove the waiting calls, oldest first. Invalid files are skipped."""
        return self._collect(_CALL, _ASKED)

    def take_stops(self) -> list[tuple[str, StopRequest]]:
        """Read and remove the waiting stops."""
        return self._collect(_STOP, _STOPPED)

    def answer(self, name: str, answered: CallResult) -> bool:
        """Write the answer to a call. Returns False if that failed and must be retried."""
        data = _ANSWERED.dump_json(answered)
        if len(data) > MAX_BYTES:
            data = _ANSWERED.dump_json(CallResult("Error: the result is too long.", True))
        try:
            self._write(name + _ANSWER, data)
        except FileNotFoundError:
            return True  # the offer was withdrawn, so no caller waits
        except OSError:
            return False
        return True

    def _collect(self, kind: str, form: TypeAdapter[T]) -> list[tuple[str, T]]:
        contents = []
        for path in self._waiting(kind)[:MAX_CALLS_PER_READ]:
            with ServiceLoop.OFFERS.item(), suppress(OSError, ValueError):
                contents.append((path.stem, form.validate_json(consume_file(path, MAX_BYTES))))
        return contents

    def _waiting(self, *kinds: str) -> list[Path]:
        try:
            names = os.listdir(self._path)
        except OSError:
            return []
        # Files that are being written have names with a dot at the start.
        return [
            self._path / each for each in sorted(names) if each[0] != "." and each.endswith(kinds)
        ]

    def _write(self, name: str, data: bytes) -> None:
        temporary = self._path / f".{name}"
        write_private(temporary, data)
        temporary.replace(self._path / name)


POLL_S = 0.05
"""Interval for checking for the answer to a call, in seconds."""

ALIVE_POLL_S = 0.5
"""Interval for checking the owner's lock, in seconds."""

DELIVERY_S = 0.5
"""Seconds for an immediate stop to reach the other process, in addition to its clean-up time."""


@dataclass
class OfferedFunction:
    """A function of another process.

    Attributes:
        name: The function's name.
        description: The description for models.
        schema: The JSON schema of the arguments.
        offer: The current offer of the function. Another process may replace it.
        is_repeatable: Whether a resume may repeat an interrupted call.
    """

    name: str
    description: str | None
    schema: dict[str, Any]
    offer: CallInbox
    is_repeatable: bool = False

    @property
    def gone(self) -> str:
        """The error message for the model if the owner has ended."""
        return f"the notebook that offers `{self.name}` is not running"

    def tool(self, context: ToolContext) -> Tool:
        """Return a tool that calls the function in its process.

        Args:
            context: The tool context of the calling agent.
        """
        definition = ToolDefinition(self.name, self.description, self.schema)

        async def call(args: dict[str, Any]) -> str:
            return await self._call(context, args)

        return Tool.from_definition(definition, call, is_repeatable=self.is_repeatable)

    async def _call(self, context: ToolContext, args: dict[str, Any]) -> str:
        call = current_call()
        call_request = CallRequest(
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
            name = await to_thread.run_sync(offer.ask, call_request)
        except OSError:
            raise ToolError(self.gone) from None
        try:
            answer = await self._answer_to(offer, name)
        except anyio.get_cancelled_exc_class():
            answer = None
            with anyio.move_on_after(CLEANUP_S + DELIVERY_S, shield=True):
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
    ) -> CallResult | None:
        """Wait for the answer to a call and pass on stops. Returns None if the owner has ended."""
        token, sent_level, checked_at = current_token(), CancellationStatus.NONE, -math.inf
        while True:
            request = stop or (token.last_request if token else None)
            if request is not None and request.level > sent_level:
                sent_level = request.level
                await to_thread.run_sync(offer.stop, name, request)
            lives = True
            if anyio.current_time() - checked_at >= ALIVE_POLL_S:
                checked_at = anyio.current_time()
                lives = await to_thread.run_sync(offer.is_live)
            # Read the answer after checking the lock, because the owner may have ended after
            # answering.
            answer = await to_thread.run_sync(offer.answer_to, name)
            if answer is not None or not lives:
                return answer
            await anyio.sleep(POLL_S)


def tool_for_function(function: Callable[..., Any] | OfferedFunction, context: ToolContext) -> Tool:
    """Return a tool for a function of this or another process.

    Args:
        context: The tool context of the calling agent.

    Raises:
        UserError: The function can't be described to a model.
    """
    if isinstance(function, OfferedFunction):
        return function.tool(context)
    return function_tool(function, context)


def _result(answer: CallResult) -> str:
    if answer.was_stopped:
        checkpoint()
        raise ToolError("the function was stopped")
    if answer.is_error:
        raise ToolError(answer.text.removeprefix("Error: "))
    return answer.text
