"""A session with a program that speaks the protocol: prompts in, a stream of updates out.

The stream of a prompt ends in `PromptEnded`. Neither files nor terminals are offered to the
program: it has its own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
from pydantic import ValidationError

from nb_agents.agents.acp.acp_link import AcpLink, connect
from nb_agents.agents.acp.acp_updates import (
    OwnCall,
    PromptEnded,
    Update,
    read_call_update,
    read_ends,
    read_update,
    read_usage,
)
from nb_agents.cancel import AgentStopped
from nb_agents.config.programs import TEAM
from nb_agents.errors import ModelCallError
from nb_agents.process.command import OpenCommand
from nb_agents.tools.tool_server import ToolAddress

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

START_S = 120.0
"""Limit of a program's start, and of opening a session, seconds."""
ANSWER_S = 1.0
"""How long a cancelled prompt's answer, and the close of a session, are waited for, seconds."""
TEAM_ANSWER_S = 5.0
"""The same for the answer of a team of ours, which first waits for its own programs, and saves."""

_BUFFER = 256
_MAX_SESSION_ID = 500
_LOGIN_NEEDED = -32000
_ONCE_FIRST = {True: ("allow_once", "allow_always"), False: ("reject_once", "reject_always")}

T = TypeVar("T")
Permit = Callable[[OwnCall], Awaitable[bool]]
"""Decides whether a call of the program's own tools may be made."""


class AcpSession:
    """A session with a program; an async context manager, which closes the session.

    Args:
        program: The program, which was just started.
        name: What people call it.
        permit: Decides about its calls.

    Attributes:
        id: The session's id, once it is open.
        is_team: Whether the program is a team of ours: it answers in words, and a second cancel
            stops it at once.
    """

    def __init__(self, program: OpenCommand, name: str, permit: Permit) -> None:
        self.id = ""
        self.is_team = False
        self._program = program
        self._name = name
        self._permit = permit
        self._link = AcpLink(program, self._take)
        self._tasks = anyio.create_task_group()
        self._lives: list[anyio.CancelScope] = []
        self._asked: set[anyio.CancelScope] = set()
        self._is_cancelled = False
        self._updates: MemoryObjectSendStream[Update] | None = None
        self._can_close = False
        self._resuming: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        # First: what fails in here leaves no group open.
        self._connection = connect(self, self._link)
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._outlive, self._link.overhear)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_cancelled = True
        with anyio.CancelScope(shield=True), anyio.move_on_after(ANSWER_S), suppress(Exception):
            if self._can_close and self.id and not self._link.ended.is_set():
                await self._connection.close_session(session_id=self.id)
        with anyio.CancelScope(shield=True), anyio.move_on_after(ANSWER_S), suppress(Exception):
            await self._connection.close()
        for scope in self._lives:
            scope.cancel()
        # The block's exception is kept from the group, which would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def _outlive(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Do something that a stop does not cut, until the session is left."""
        with anyio.CancelScope(shield=True) as scope:
            self._lives.append(scope)
            await work(*args)

    async def start(self) -> None:
        """Agree with the program on the protocol.

        Raises:
            ModelCallError: It does not start, or speaks another version.
        """
        from acp.schema import ClientCapabilities, Implementation

        found = await self._called(
            self._connection.initialize(
                protocol_version=1,
                client_capabilities=ClientCapabilities(),
                client_info=Implementation(name=TEAM, version=version("nb_agents")),
            )
        )
        if found.protocol_version != 1:
            raise ModelCallError(
                self._name, f"It speaks version {found.protocol_version} of the protocol, not 1."
            )
        self.is_team = bool(found.agent_info and found.agent_info.name == TEAM)
        able = found.agent_capabilities
        sessions = able.session_capabilities if able else None
        self._can_close = bool(sessions and sessions.close is not None)
        can_resume = bool(sessions and sessions.resume is not None)
        can_load = bool(able and able.load_session)
        self._resuming = ("resume_session",) * can_resume + ("load_session",) * can_load

    async def open(self, cwd: Path, tools: ToolAddress, past: str = "") -> bool:
        """Open a session, that of before if the program still has it.

        Args:
            cwd: Its working directory.
            tools: Our tools.
            past: The id of the session to go on with; "" for none.

        Returns:
            Whether it is the session of before.

        Raises:
            ModelCallError: None can be opened.
        """
        given: dict[str, Any] = {"cwd": str(cwd), "mcp_servers": [_server(tools)]}
        for how in self._resuming if past else ():
            with suppress(ModelCallError):
                await self._called(getattr(self._connection, how)(session_id=past, **given))
                self.id = past
                return True
        opened = await self._called(self._connection.new_session(**given))
        self.id = opened.session_id
        if not 0 < len(self.id) <= _MAX_SESSION_ID:
            raise ModelCallError(self._name, "The id of its session is empty, or too long.")
        return False

    async def set_mode(self, mode: str) -> None:
        """Set the session's mode, if the program has it."""
        with suppress(ModelCallError):
            await self._called(self._connection.set_session_mode(session_id=self.id, mode_id=mode))

    def prompt(self, text: str, *, goes_on: bool) -> MemoryObjectReceiveStream[Update]:
        """Send a prompt; return the stream of its updates, which ends in `PromptEnded`.

        Args:
            text: The prompt.
            goes_on: Whether a team of ours is to go on with the turn that was stopped.
        """
        self._is_cancelled = False
        updates, stream = anyio.create_memory_object_stream[Update](_BUFFER)
        self._updates = updates
        self._tasks.start_soon(self._outlive, self._ask, text, goes_on, updates)
        return stream

    async def _ask(self, text: str, goes_on: bool, updates: MemoryObjectSendStream[Update]) -> None:
        from acp import text_block

        more = {TEAM: {"goes_on": True}} if goes_on and self.is_team else {}
        with updates, suppress(anyio.BrokenResourceError):
            try:
                answer = await self._called(
                    self._connection.prompt(session_id=self.id, prompt=[text_block(text)], **more),
                    None,
                )
                raw = answer.model_dump(mode="json", by_alias=True)
                ends = read_ends(raw.get("_meta"))
                ended = PromptEnded(answer.stop_reason, read_usage(raw), ends=ends)
            except ModelCallError as exc:
                ended = PromptEnded("failed", error=exc.message)
            self._updates = None
            await updates.send(ended)

    async def cancel(self) -> None:
        """Ask the program to end its prompt, and answer its open requests for permission."""
        self._is_cancelled = True
        for scope in tuple(self._asked):
            scope.cancel()
        for _ in range(2 if self.is_team else 1):
            await self.send_cancel()

    async def send_cancel(self) -> None:
        """Send a cancel alone; to a team of ours it is a graceful stop, and at once the second."""
        with suppress(ConnectionError):
            await self._connection.cancel(session_id=self.id)

    async def _take(self, params: dict[str, Any]) -> None:
        """Pass on an update; those of other sessions, and of a past that is loaded, are dropped."""
        update = read_update(params.get("update"))
        if self._updates is None or update is None or params.get("sessionId") != self.id:
            return
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._updates.send(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> Any:
        """Answer the program, as the library's client: of its requests only these get here."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        verdict = await self._decide(session_id, tool_call)
        by_kind = {each.kind: each.option_id for each in reversed(options)}
        wanted = _ONCE_FIRST[verdict] if verdict is not None else ()
        chosen = next((by_kind[kind] for kind in wanted if kind in by_kind), None)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen)
        )

    async def _decide(self, session: str, call: Any) -> bool | None:
        """Decide about a call; None when the prompt is cancelled."""
        about = read_call_update(call.model_dump(mode="json", by_alias=True, exclude_none=True))
        if self._is_cancelled or session != self.id or about is None:
            return None
        with anyio.CancelScope() as scope:
            self._asked.add(scope)
            try:
                return await self._permit(about)
            except AgentStopped:  # a graceful stop ended the wait for a person
                return None
            finally:
                self._asked.discard(scope)
        return None

    async def _called(self, request: Awaitable[T], limit_s: float | None = START_S) -> T:
        """Wait for the answer to a request.

        Raises:
            ModelCallError: There is none, or it says that something failed.
        """
        from acp import RequestError

        try:
            with anyio.fail_after(limit_s):
                return await request
        except TimeoutError:
            raise ModelCallError(self._name, f"It did not start within {limit_s:g} s.") from None
        except ConnectionError:
            raise ModelCallError(self._name, await self._why_ended()) from None
        except RequestError as exc:
            raise ModelCallError(self._name, _said_by(exc)) from None
        except ValidationError:
            why = "Its answer is not in the form of the protocol."
            raise ModelCallError(self._name, why) from None

    async def _why_ended(self) -> str:
        with anyio.move_on_after(ANSWER_S):  # its exit code and last words are on their way
            await self._program.wait()
        last = f" Its last words: {said}" if (said := str(self._link.words)) else ""
        if "exit" in self._program.reported:
            return (
                f"It ended in the middle of its work (exit code {self._program.exit_code}).{last}"
            )
        return f"It closed its output, or sent a line that is too long.{last}"


def _server(tools: ToolAddress) -> Any:
    from acp.schema import HttpHeader, HttpMcpServer

    headers = [HttpHeader(name=name, value=value) for name, value in tools.headers.items()]
    return HttpMcpServer(type="http", name="team", url=tools.url, headers=headers)


def _said_by(exc: Any) -> str:
    """Return what an error that the program answered with says."""
    if exc.code == _LOGIN_NEEDED:
        return (
            f"It wants a login ({str(exc)[:200]}). Give it a key, or write "
            "`use_my_settings: true` in its backend to let it use yours."
        )
    details = exc.data.get("details", exc.data) if isinstance(exc.data, dict) else exc.data
    more = details if isinstance(details, str) else json.dumps(details) if details else ""
    return f"It said: {str(exc)[:500]}{f' ({more[:500]})' if more else ''}"
