"""A Python client of the Jupyter server extension, for runs and sessions on another machine.

Request paths and methods come from the server's table of routes. The module is imported on first
use, because it needs httpx2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx2
from pydantic import ValidationError

from nb_agents.cancel import StopResult
from nb_agents.errors import ServerError, UnknownRunError, UserError, error_message
from nb_agents.events import Event
from nb_agents.models.network import check_network, proxy_of
from nb_agents.routes import BY_NAME
from nb_agents.session.event_lines import read_event
from nb_agents.signatures import takes_keywords
from nb_agents.verbs.parameters import HTTP_RESUME, HTTP_REWIND, HTTP_START

__all__ = ["Client"]

TIMEOUT_S = 30.0
"""Time limit of a request, in seconds."""

START_S = 150.0
"""Time limit of a start, in seconds. On a busy machine, imports in the new process are slow."""

MAX_REPLY_BYTES = 32 * 2**20
"""Maximum size of a reply or an event, in bytes."""

MAX_MESSAGE_CHARS = 20_000
"""Maximum length of a server's message in an error, in characters."""

_NO_ADDRESS = "{!r} is not the address of a server{}. Write, for example, http://localhost:8888."


class Client:
    """Client of the nb_agents extension of a Jupyter server. Use it as a context manager.

    Methods identify a run by the ``id`` that `runs` and `start` return, or by "session/turn_1".

    Args:
        url: The server's address with its base path, as `jupyter server list` shows it.
        token: The server's token. Defaults to the token in the address.

    Raises:
        UserError: The address is invalid, or the environment configures an unsupported proxy.

    Example:
        with nb_agents.Client("http://127.0.0.1:8888", token) as client:
            for run in client.runs():
                client.stop(run["id"], reason="wrong path")
    """

    def __init__(self, url: str, token: str = "") -> None:
        try:
            address = httpx2.URL(url)
        except (httpx2.InvalidURL, UnicodeError) as exc:
            raise UserError(_NO_ADDRESS.format(url, f" ({exc})")) from None
        if address.scheme not in ("http", "https"):
            raise UserError(_NO_ADDRESS.format(url, ""))
        token = token or address.params.get("token", "")
        # Shown in messages, so it must not contain the token or a password.
        self._url = str(address.copy_with(query=None, fragment=None, userinfo=b"")).rstrip("/")
        check_network()
        headers = {"Authorization": f"token {token}"} if token else {}
        self._http = httpx2.Client(
            base_url=f"{self._url}/nb-agents/", headers=headers, timeout=TIMEOUT_S
        )

    def __repr__(self) -> str:
        return f"Client({self._url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Runs keep running."""
        self._http.close()

    # Reading ---------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """List the live runs of the server's user: id, task, status, tokens, cost and more.

        A live sweep is listed as one item, with the counts of its ``rows``.

        Raises:
            ServerError: The server can't be reached or rejects the token.
        """
        return self._get("list_runs")  # type: ignore[no-any-return]

    def run(self, run: str) -> dict[str, Any]:
        """Return the state of a live or finished run, with its receipt.

        Args:
            run: The run's id.

        Raises:
            UnknownRunError: There is no such run.
            ServerError: See `runs`.
        """
        return self._get("get_run", run)  # type: ignore[no-any-return]

    def sessions(self, folder: str = "") -> list[dict[str, Any]]:
        """List the sessions on the server's disk, with their turns.

        Args:
            folder: A notebook's directory, whose sessions are listed as well.

        Raises:
            ServerError: See `runs`.
        """
        return self._get("list_sessions", folder=folder)  # type: ignore[no-any-return]

    def events(self, run: str, after: int = 0) -> Iterator[Event]:
        """Yield the events of a run so far, then each new event until the run ends.

        Ending the iteration does not stop the run.

        Args:
            run: The run's id.
            after: Yield only events with a greater ``seq``.

        Raises:
            UnknownRunError: There is no such run.
            ServerError: See `runs`. Also raised if the connection is lost.
        """
        headers = {"Last-Event-ID": str(after)}
        timeout = httpx2.Timeout(TIMEOUT_S, read=None)  # agents may be silent for a long time
        with self._send("stream_events", run, headers=headers, timeout=timeout) as response:
            for line in _lines(response):
                if line.startswith(b"data: "):
                    try:
                        yield read_event(line.removeprefix(b"data: "))
                    except ValidationError:  # an event of a kind added by a newer server
                        continue

    # Asking ----------------------------------------------------------------------------------

    @takes_keywords(HTTP_START)
    def start(self, task: str = "", *, folder: str = "", **fields: Any) -> dict[str, Any]:
        """Start a run on the server's machine, in a separate process.

        Args:
            task: The task. Empty for a recipe.
            folder: The working directory on the server. Files and sessions are relative to it.

        Returns:
            The run's id, session, turn and status.

        Raises:
            UserError: The run can't be started.
            ServerError: See `runs`.
        """
        body = {"task": task, "folder": folder, **_given(fields)}
        return self._post("start_run", body, timeout=START_S)

    def stop(
        self, run: str, *, now: bool = False, agent: str | None = None, reason: str = ""
    ) -> StopResult:
        """Stop a run, one of its agents, or a whole sweep. Idempotent.

        Args:
            run: The run's id.
            now: Whether to interrupt calls in flight instead of letting them finish.
            agent: Id of the only agent to stop. None stops the whole run.
            reason: A reason to record.

        Returns:
            Whether the request had an effect, and the run's status.

        Raises:
            UnknownRunError: There is no such run.
            UserError: There is no agent with that id.
            ServerError: See `runs`.
        """
        body: dict[str, object] = {"immediate": now, "agent": agent, "reason": reason}
        try:
            answer = self.ask(run, "stop", **body)
        except _ConflictError:
            return StopResult(False, "finished")
        return StopResult(bool(answer.get("changed")), answer.get("status", "asked"))

    def fold(self, run: str, agent: str, say: str = "") -> None:
        """Fold an agent's conversation before its next model request; see `Run.fold`."""
        self.ask(run, "fold", agent=agent, say=say)

    def approve(self, run: str, message: str = "", gate: str = "") -> None:
        """Approve the oldest pending approval, or that of a gate.

        Args:
            run: The run's id.
            message: A message to the agent or step that asked.
            gate: The gate's address.

        Raises:
            UnknownRunError: There is no such run.
            UserError: No approval is pending.
            ServerError: See `runs`.
        """
        self.ask(run, "approve", message=message, gate=gate)

    def deny(self, run: str, message: str = "", gate: str = "") -> None:
        """Deny the oldest pending approval, or that of a gate.

        Raises the same errors as `approve`.
        """
        self.ask(run, "deny", message=message, gate=gate)

    def answer(self, run: str, text: str) -> None:
        """Answer the oldest open question. Raises the same errors as `approve`."""
        self.ask(run, "answer", text=text)

    def say(self, run: str, text: str) -> None:
        """Send a message to the working agents. Raises the same errors as `approve`."""
        self.ask(run, "say", text=text)

    def pause(self, run: str) -> None:
        """Pause a run at its next boundary. Raises the same errors as `approve`."""
        self.ask(run, "pause")

    def unpause(self, run: str) -> None:
        """Unpause a paused run or sweep. Raises the same errors as `approve`."""
        self.ask(run, "unpause")

    @takes_keywords(HTTP_RESUME)
    def resume(self, run: str, **fields: Any) -> dict[str, Any]:
        """Resume an incomplete turn as the next turn of its session.

        Raises the same errors as `approve`.

        Args:
            run: The run's id.

        Returns:
            The new run's id, session, turn and status.
        """
        return self._post("resume_run", _given(fields), run, timeout=START_S)

    @takes_keywords(HTTP_REWIND)
    def rewind(self, run: str, to: str | int, **fields: Any) -> dict[str, Any]:
        """Go back to a checkpoint of a turn and continue from there in a new turn.

        Raises the same errors as `approve`.

        Args:
            run: The run's id.
            to: The checkpoint; see `nb_agents.rewind`.

        Returns:
            The new run's id, session, turn and status.
        """
        body = {"to": str(to), **_given(fields)}
        return self._post("ask", body, run, verb="rewind", timeout=START_S)

    def ask(self, run: str, verb: str, **body: object) -> dict[str, Any]:
        """Send a command to a run or sweep.

        Args:
            run: The run's id.
            verb: The command, such as "say": the last part of a path in the server's
                ``openapi.json``.
            body: The fields of the request, such as ``text``.

        Returns:
            The reply, with a `message` for the user.

        Raises:
            UnknownRunError: There is no such run.
            UserError: The run does not support the command, or the server has no such command.
            ServerError: See `runs`.
        """
        return self._post("ask", body, run, verb=verb)

    # The wire --------------------------------------------------------------------------------

    def _get(self, route: str, run: str = "", **query: str) -> Any:
        with self._send(route, run, params=query) as response:
            return self._decoded(response)

    def _post(
        self,
        route: str,
        body: Mapping[str, Any],
        run: str = "",
        *,
        verb: str = "",
        timeout: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        with self._send(route, run, verb, json=dict(body), timeout=timeout) as response:
            answer: dict[str, Any] = self._decoded(response)
            return answer

    def _decoded(self, response: httpx2.Response) -> Any:
        try:
            return json.loads(_whole(response))
        except ValueError:
            raise ServerError(self._url, "the reply is not from nb_agents") from None

    @contextmanager
    def _send(
        self, route: str, run: str, verb: str = "", **options: Any
    ) -> Iterator[httpx2.Response]:
        """Send a request to a route. Raises an nb_agents error for an error status."""
        method, path = BY_NAME[route].method, BY_NAME[route].address(id=run, verb=verb)
        try:
            with self._http.stream(method, path, **options) as response:
                if not response.is_success:
                    self._refuse(response, run)
                yield response
        except httpx2.HTTPError as exc:
            late = isinstance(exc, httpx2.TimeoutException)
            why = (
                "it did not reply in time"
                if late
                else f"the connection failed ({error_message(exc)})"
            )
            proxy = proxy_of(self._url)
            raise ServerError(self._url, f"{why}, through the {proxy}" if proxy else why) from None

    def _refuse(self, response: httpx2.Response, run: str) -> None:
        code, message = response.status_code, _message(_whole(response))
        if code in (401, 403):
            raise ServerError(self._url, "the token does not allow this request")
        if code == 404 and not message:
            raise ServerError(
                self._url, "nb_agents is not installed on it. Install it alongside Jupyter"
            )
        if code == 404 and run:
            raise UnknownRunError(run, tuple(str(each.get("id")) for each in self.runs()))
        if code == 409:
            raise _ConflictError(message)
        if code < 400 or code >= 500:
            raise ServerError(self._url, f"it replied with HTTP status {code}")
        raise UserError(message or f"The server replied with HTTP status {code}.")


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None.

    Raises:
        UserError: A number is infinite or not a number, which JSON doesn't have.
    """
    for name, each in fields.items():
        if isinstance(each, float) and not math.isfinite(each):
            raise UserError(f"{name} is {each!r}. Use a finite number.")
    return {name: each for name, each in fields.items() if each is not None}


class _ConflictError(UserError):
    """The run is over, or its current state does not allow the request."""


def _message(body: bytes) -> str:
    """Return the message of an error reply of nb_agents, or "" for any other reply."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    message = answer.get("message") if isinstance(answer, dict) else None
    return message[:MAX_MESSAGE_CHARS] if isinstance(message, str) else ""


def _whole(response: httpx2.Response) -> bytes:
    body = b""
    for piece in response.iter_bytes():
        body += piece
        if len(body) > MAX_REPLY_BYTES:
            raise ServerError(str(response.url.host), f"its reply exceeds {MAX_REPLY_BYTES} bytes")
    return body


def _lines(response: httpx2.Response) -> Iterator[bytes]:
    """Yield the lines of a stream, limited in length. ``iter_lines`` has no limit."""
    rest = b""
    for piece in response.iter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
        if len(rest) > MAX_REPLY_BYTES:
            raise ServerError(str(response.url.host), f"an event exceeds {MAX_REPLY_BYTES} bytes")
