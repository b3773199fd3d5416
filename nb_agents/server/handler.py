"""The base class of all request handlers, and the registry of handler functions by route name.

Requests that read need the authorizer's permission to "read" the resource "nb_agents". All others
need the permission to "execute" it. A Jupyter server imports this module when it starts, so it
imports little. Most of nb_agents is imported on the first request.
"""

from __future__ import annotations

import time
from asyncio import to_thread  # anyio's threads would outlive the server
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.iostream import StreamClosedError

from nb_agents import errors
from nb_agents.routes import ROUTES, Route
from nb_agents.unicode import json_text

if TYPE_CHECKING:
    from pydantic import BaseModel

    from nb_agents.launch.run import Run
    from nb_agents.server.feeds import Feeds
    from nb_agents.server.places import NameResolver
    from nb_agents.session.layout import TurnPaths

    _Body = TypeVar("_Body", bound=BaseModel)

MAX_BODY = 1_000_000
"""Maximum size of a request's body in bytes: cells of a notebook with their images, escaped."""
FILE_CHUNK = 1_000_000
"""Size of the chunks in which a file is sent, in bytes."""
KEEP_ALIVE_S = 15.0
"""Interval of comments in an idle stream, in seconds, because proxies close idle connections."""

_MODULES = (
    "run_handlers",
    "session_handlers",
    "streams",
    "turn_files",
    "new_files",
    "file_authors",
)
"""The modules that register request handlers."""

_Answer = TypeVar("_Answer", bound=Callable[..., Awaitable[None]])


class Shared:
    """State that all requests share.

    Args:
        root: The server's root directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def places(self) -> NameResolver:
        """The resolver of names in requests."""
        from nb_agents.server.places import NameResolver

        return NameResolver(self._root)

    @cached_property
    def feeds(self) -> Feeds:
        """The feeds of turns and groups."""
        from nb_agents.server.feeds import Feeds

        return Feeds()


@web.stream_request_body
class Handler(APIHandler):
    """Base of all request handlers: body limits, lookup of turns, replies, streams and errors."""

    auth_resource = "nb_agents"
    _is_gone = False

    def initialize(self, shared: Shared) -> None:
        """Set the state that all requests share."""
        self._shared = shared
        self._body = b""

    @property
    def user_name(self) -> str:
        """The name with which the user has signed in, or "" for one that Jupyter made up."""
        name = str(getattr(self.current_user, "name", ""))
        return "" if name.startswith("Anonymous ") else name[:200]

    @property
    def places(self) -> NameResolver:
        """The resolver of names in requests."""
        return self._shared.places

    @property
    def feeds(self) -> Feeds:
        """The feeds of turns and groups."""
        return self._shared.feeds

    async def prepare(self) -> None:  # type: ignore[override]  # as its base
        """Reject a body that is too large before it is read."""
        length = self.request.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise web.HTTPError(413, f"The request body exceeds {MAX_BODY} bytes.")
        # Limits a body without a length too. Tornado's types lack this method.
        connection: Any = self.request.connection
        connection.set_max_body_size(MAX_BODY)
        await super().prepare()

    def data_received(self, chunk: bytes) -> None:
        """Collect the chunks of the request's body."""
        self._body += chunk

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Reply with the message of a user error. Other errors are left to Jupyter."""
        exc = kwargs.get("exc_info", (None, None))[1]
        if (code := _code_of(exc)) is None:
            super().write_error(status_code, **kwargs)
            return
        self.set_status(code)
        self.finish(json_text({"message": str(exc), "reason": None}))

    def log_exception(self, *exc_info: Any) -> None:
        """Log all errors except user errors, which the reply explains."""
        if _code_of(exc_info[1]) is None:
            super().log_exception(*exc_info)

    def on_connection_close(self) -> None:
        """Note that the client has disconnected, which ends its streams."""
        self._is_gone = True
        super().on_connection_close()

    # Requests ---------------------------------------------------------------------------------

    def turn(self, name: str, number: str | None = None) -> TurnPaths:
        """Return the turn that a request refers to. Blocks.

        Args:
            name: The turn's name, or the session's name if ``number`` is given.
            number: The turn's number.
        """
        return self.places.turn(name if number is None else f"{name}/turn_{number}")

    def body(self, kind: type[_Body]) -> _Body:
        """Return the request's body, parsed and validated."""
        from nb_agents.verbs.requests import read

        return read(kind, self._body or b"{}")

    # Replies ----------------------------------------------------------------------------------

    def reply(self, data: Any) -> None:
        """Reply with JSON."""
        self.finish(json_text(data))

    def reply_begun(self, run: Run) -> None:
        """Reply that a run has started."""
        self.set_status(202)
        name = self.places.name(run.path)
        self.reply(
            {"id": name, "session": run.session, "turn": run.turn, "status": run.view.standing}
        )

    async def send(self, file: BinaryIO) -> None:
        """Reply with the content of a file, in chunks."""
        with suppress(StreamClosedError):  # the client has disconnected
            while part := await to_thread(file.read, FILE_CHUNK):
                self.write(part)
                await self.flush()

    async def stream(self, messages: AsyncGenerator[str]) -> None:
        """Send server-sent events until they end or the client disconnects.

        Args:
            messages: Yields events, and "" from time to time while there is nothing to send.
        """
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")  # nginx would buffer the stream
        sent_at = time.monotonic()
        try:
            await self.flush()
            async with aclosing(messages):
                async for message in messages:
                    if self._is_gone:
                        return
                    if not message and time.monotonic() - sent_at < KEEP_ALIVE_S:
                        continue
                    self.write(message or ": keep-alive\n\n")
                    await self.flush()
                    sent_at = time.monotonic()
            self.finish(set_content_type="text/event-stream")
        except StreamClosedError:
            pass


def _code_of(exc: object) -> int | None:
    """Return the HTTP status of a user error, or None for any other error."""
    from nb_agents.server.places import UnknownNameError

    if not isinstance(exc, errors.UserError):
        return None
    codes: dict[type[errors.UserError], int] = {
        UnknownNameError: 404,
        errors.SessionBusyError: 409,
        errors.SessionChangedError: 409,
        errors.NotYoursError: 428,
    }
    return codes.get(type(exc), 400)


_answers: dict[str, Callable[..., Awaitable[None]]] = {}


def handles_route(name: str) -> Callable[[_Answer], _Answer]:
    """Register a function as the handler of a route.

    Args:
        name: The route's name. The function gets the `Handler` and the parameters of the path.
    """

    def register(answer: _Answer) -> _Answer:
        _answers[name] = answer
        return answer

    return register


def handlers() -> Iterator[tuple[str, type[Handler]]]:
    """Yield the regular expression and handler class of each path, in the order of the table."""
    by_pattern: dict[str, list[Route]] = {}
    for route in ROUTES:
        by_pattern.setdefault(route.pattern, []).append(route)
    for pattern, routes in by_pattern.items():
        methods = {route.method.lower(): _method(route) for route in routes}
        yield pattern, type(routes[0].name, (Handler,), methods)


def handler_function(name: str) -> Callable[..., Awaitable[None]]:
    """Return the handler function of a route.

    The first call is slow, because it imports all modules.
    """
    for module in _MODULES:
        import_module(f"nb_agents.server.{module}")
    return _answers[name]


def _method(route: Route) -> Any:
    """Return a handler method for a route, which authenticates and authorizes requests."""

    async def method(self: Handler, *args: str, **parameters: str) -> None:
        answer = _answers.get(route.name)
        if answer is None:
            answer = await to_thread(handler_function, route.name)
        await answer(self, *args, **parameters)

    guarded: Any = authorized(action=route.permission)(method)
    return web.authenticated(guarded)
