"""A session with an external agent, which takes prompts and returns a stream of updates.

The stream of a prompt ends with `PromptEnded`. The agent has its own access to files and terminals,
so the session offers neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
from pydantic import ValidationError

from nb_agents.cancel import AgentStopped
from nb_agents.config.mcp_servers import TEAM
from nb_agents.errors import ModelCallError
from nb_agents.extensions.external_agents.acp.acp_errors import call_error
from nb_agents.extensions.external_agents.acp.acp_link import AcpLink, connect
from nb_agents.extensions.external_agents.acp.acp_updates import (
    OwnCall,
    PromptEnded,
    Update,
    read_call_update,
    read_ends,
    read_update,
    read_usage,
)
from nb_agents.extensions.external_agents.tool_server import ToolAddress
from nb_agents.models.retry import AgentRefusedError
from nb_agents.process.command import OpenCommand

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

START_S = 120.0
"""Time limit of an agent's answer to each request before the first prompt, in seconds."""
SILENT_S = (10.0, 30.0, 60.0)
"""Seconds after a request at which the user is notified that the answer is still missing."""
ANSWER_S = 1.0
"""Time limit of a cancelled prompt's answer, and of closing a session, in seconds."""
TEAM_ANSWER_S = 5.0
"""The same time limit for an nb_agents team, which first has to end its processes and save."""

_BUFFER = 256
_MAX_SESSION_ID = 500
_ONCE_FIRST = {True: ("allow_once", "allow_always"), False: ("reject_once", "reject_always")}

T = TypeVar("T")
Permit = Callable[[OwnCall], Awaitable[bool]]
"""Decides whether the agent may make a call of its own tools."""
Tell = Callable[[str], object]
"""Called with a sentence for the user."""


class AcpSession:
    """A session with an external agent. Use it as an async context manager, which closes it.

    Args:
        program: The agent's process, just started.
        name: The agent's display name.
        permit: Decides on its permission requests.
        tell: Called with a notice if the agent does not answer.
        mask: Hides secrets in the agent's output.

    Attributes:
        id: The session's id, or "" before it is open.
        is_team: Whether the agent is an nb_agents team. A team answers with text, and a second
            cancel stops it immediately.
        can_continue: Whether the agent can continue the session in another process.
    """

    def __init__(
        self,
        program: OpenCommand,
        name: str,
        permit: Permit,
        tell: Tell = lambda text: None,
        mask: Callable[[str], str] = str,
    ) -> None:
        self.id = ""
        self.is_team = self.can_continue = False
        self._program = program
        self._name = name
        self._permit = permit
        self._emit_notice = tell
        self._mask = mask
        self._link = AcpLink(program, self._take)
        self._tasks = anyio.create_task_group()
        self._lives: list[anyio.CancelScope] = []
        self._open_questions: set[anyio.CancelScope] = set()
        self._is_cancelled = False
        self._updates: MemoryObjectSendStream[Update] | None = None
        self._can_close = False
        self._resuming: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        # First, because a failure here must not leave an open task group.
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
        # Do not pass the block's exception to the task group, which would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def _outlive(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a task that a stop does not cancel, until the session is closed."""
        with anyio.CancelScope(shield=True) as scope:
            self._lives.append(scope)
            await work(*args)

    async def start(self) -> None:
        """Initialize the protocol.

        Raises:
            ModelCallError: The agent does not start, or speaks another version.
        """
        from acp.schema import ClientCapabilities, Implementation

        answer = await self._await_start(
            "initialize",
            self._connection.initialize(
                protocol_version=1,
                client_capabilities=ClientCapabilities(),
                client_info=Implementation(name=TEAM, version=version("nb_agents")),
            ),
        )
        if answer.protocol_version != 1:
            raise ModelCallError(
                self._name,
                f"It uses version {answer.protocol_version} of the Agent Client Protocol. "
                "nb_agents supports only version 1.",
            )
        self.is_team = bool(answer.agent_info and answer.agent_info.name == TEAM)
        able = answer.agent_capabilities
        sessions = able.session_capabilities if able else None
        self._can_close = bool(sessions and sessions.close is not None)
        can_resume = bool(sessions and sessions.resume is not None)
        can_load = bool(able and able.load_session)
        self._resuming = ("resume_session",) * can_resume + ("load_session",) * can_load
        self.can_continue = can_resume or can_load

    async def open(self, cwd: Path, tools: ToolAddress, past: str = "") -> bool:
        """Open a session. Continue the past one if the agent still has it.

        Args:
            cwd: Its working directory.
            tools: The address of nb_agents's tools.
            past: The id of the session to continue, or "".

        Returns:
            Whether the past session continues.

        Raises:
            ModelCallError: No session can be opened.
        """
        arguments: dict[str, Any] = {"cwd": str(cwd), "mcp_servers": [_server(tools)]}
        for how in self._resuming if past else ():
            with suppress(ModelCallError):
                ask = getattr(self._connection, how)
                name = f"session/{how.removesuffix('_session')}"
                await self._await_start(name, ask(session_id=past, **arguments))
                self.id = past
                return True
        opened = await self._await_start("session/new", self._connection.new_session(**arguments))
        self.id = opened.session_id
        if not 0 < len(self.id) <= _MAX_SESSION_ID:
            raise ModelCallError(
                self._name, "The agent returned a session id that is empty or too long."
            )
        return False

    async def set_mode(self, mode: str) -> None:
        """Set the session's mode, if the agent has this mode."""
        with suppress(ModelCallError):
            request = self._connection.set_session_mode(session_id=self.id, mode_id=mode)
            await self._await_start("session/set_mode", request)

    def prompt(self, text: str, *, resumes_turn: bool) -> MemoryObjectReceiveStream[Update]:
        """Send a prompt, and return the stream of its updates, which ends with `PromptEnded`.

        Args:
            text: The prompt.
            goes_on: Whether an nb_agents team should resume its stopped turn.
        """
        self._is_cancelled = False
        updates, stream = anyio.create_memory_object_stream[Update](_BUFFER)
        self._updates = updates
        self._tasks.start_soon(self._outlive, self._ask, text, resumes_turn, updates)
        return stream

    async def _ask(
        self, text: str, resumes_turn: bool, updates: MemoryObjectSendStream[Update]
    ) -> None:
        from acp import text_block

        more = {TEAM: {"goes_on": True}} if resumes_turn and self.is_team else {}
        with updates, suppress(anyio.BrokenResourceError):
            try:
                answer = await self._await_response(
                    self._connection.prompt(session_id=self.id, prompt=[text_block(text)], **more)
                )
                raw = answer.model_dump(mode="json", by_alias=True)
                ends = read_ends(raw.get("_meta"))
                prompt_end = PromptEnded(answer.stop_reason, read_usage(raw), ends=ends)
            except ModelCallError as exc:
                refusal = exc if isinstance(exc, AgentRefusedError) else None
                prompt_end = PromptEnded("failed", error=exc.message, refusal=refusal)
            self._updates = None
            await updates.send(prompt_end)

    async def cancel(self) -> None:
        """Cancel the prompt and the open permission requests."""
        self._is_cancelled = True
        for scope in tuple(self._open_questions):
            scope.cancel()
        for _ in range(2 if self.is_team else 1):
            await self.send_cancel()

    async def send_cancel(self) -> None:
        """Send a cancel. For an nb_agents team the first one is graceful, the second immediate."""
        with suppress(ConnectionError):
            await self._connection.cancel(session_id=self.id)

    async def _take(self, params: dict[str, Any]) -> None:
        """Forward an update, unless it belongs to another session or to history being loaded."""
        update = read_update(params.get("update"))
        if self._updates is None or update is None or params.get("sessionId") != self.id:
            return
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._updates.send(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> Any:
        """Answer a permission request, the only request that the library forwards."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        verdict = await self._decide(session_id, tool_call)
        by_kind = {each.kind: each.option_id for each in reversed(options)}
        kinds = _ONCE_FIRST[verdict] if verdict is not None else ()
        chosen = next((by_kind[kind] for kind in kinds if kind in by_kind), None)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen)
        )

    async def _decide(self, session: str, call: Any) -> bool | None:
        """Decide on a call. Returns None if the prompt is cancelled."""
        about = read_call_update(call.model_dump(mode="json", by_alias=True, exclude_none=True))
        if self._is_cancelled or session != self.id or about is None:
            return None
        with anyio.CancelScope() as scope:
            self._open_questions.add(scope)
            try:
                return await self._permit(about)
            except AgentStopped:  # a graceful stop ended the wait for the user
                return None
            finally:
                self._open_questions.discard(scope)
        return None

    async def _await_start(self, name: str, request: Awaitable[T]) -> T:
        """Await the answer to a request before the first prompt, with notices if it is late.

        Args:
            name: The request's name in the protocol.

        Raises:
            ModelCallError: As for `_await_response`, or the answer does not arrive in time.
        """
        watching = anyio.CancelScope()
        self._tasks.start_soon(self._report_silence, name, datetime.now(), watching)
        try:
            with anyio.fail_after(START_S):
                return await self._await_response(request)
        except TimeoutError:
            why = f"It did not answer `{name}` within {START_S:g} s.{self._printed()}"
            raise ModelCallError(self._name, why) from None
        finally:
            watching.cancel()

    async def _report_silence(
        self, name: str, since: datetime, watching: anyio.CancelScope
    ) -> None:
        start, last = anyio.current_time(), ""
        with watching:
            for delay_s in SILENT_S:
                await anyio.sleep_until(start + delay_s)
                if last != (last := self._printed() or " It printed nothing."):
                    end = since + timedelta(seconds=START_S)
                    self._emit_notice(
                        f"{self._name} has not answered `{name}` since {since:%H:%M:%S}. It will "
                        f"be ended at {end:%H:%M:%S}.{last}"
                    )

    def _printed(self) -> str:
        printed = self._link.printed(self._mask)
        return f" It printed: {printed}" if printed else ""

    async def _await_response(self, request: Awaitable[T]) -> T:
        """Await the answer to a request.

        Raises:
            ModelCallError: There is no answer, or it is an error.
        """
        from acp import RequestError

        try:
            return await request
        except ConnectionError:
            raise ModelCallError(self._name, await self._why_ended()) from None
        except RequestError as exc:
            raise call_error(self._name, exc.code, str(exc), exc.data) from None
        except ValidationError:
            why = "Its answer is not valid in the protocol."
            raise ModelCallError(self._name, why) from None

    async def _why_ended(self) -> str:
        with anyio.move_on_after(ANSWER_S):  # its exit code and last output may still arrive
            await self._program.wait()
        output = self._link.printed(self._mask)
        last = f" Its last output: {output}" if output else ""
        if "exit" in self._program.reported:
            return f"Its process ended unexpectedly (exit code {self._program.exit_code}).{last}"
        return f"It closed its output or sent a line that is too long.{last}"


def _server(tools: ToolAddress) -> Any:
    from acp.schema import HttpHeader, HttpMcpServer

    headers = [HttpHeader(name=name, value=value) for name, value in tools.headers.items()]
    return HttpMcpServer(type="http", name="team", url=tools.url, headers=headers)
