"""A client of the Jupyter server's door: runs and sessions elsewhere, from Python alone.

It says what ``openapi.json`` of the server offers. Not imported with the package: it takes httpx2
along.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from nb_agents.cancel import StopResult
from nb_agents.errors import ServerError, UnknownRunError, UserError, said_by
from nb_agents.events import EVENT, Event
from nb_agents.models.network import proxy_of, refuse_network

__all__ = ["Client"]

TIMEOUT_S = 30.0
"""What a reply may take."""

START_S = 150.0
"""A start waits for the run's process, whose cold import takes seconds on a busy machine."""

MAX_REPLY_BYTES = 32 * 2**20
"""One reply, or one event."""

MAX_SAID_CHARS = 20_000
"""Of a server's own words in an error."""

_NO_ADDRESS = "{!r} is not the address of a server{}. Write, for example, http://localhost:8888."


class Client:
    """Client of the nb_agents extension of a Jupyter server; use it as a context manager.

    Each run goes by the ``id`` that `runs` and `start` tell, or by "session/turn_1".

    Args:
        url: The server's address, with the path that it serves from; `jupyter server list` has it.
        token: The server's; by default that of the address.

    Raises:
        UserError: That is no address; or the environment names a proxy that can't be used.

    Example:
        with nb_agents.Client("http://127.0.0.1:8888", token) as client:
            for run in client.runs():
                client.stop(run["id"], reason="wrong path")
    """

    def __init__(self, url: str, token: str = "") -> None:
        try:
            given = httpx2.URL(url)
        except (httpx2.InvalidURL, UnicodeError) as exc:
            raise UserError(_NO_ADDRESS.format(url, f" ({exc})")) from None
        if given.scheme not in ("http", "https"):
            raise UserError(_NO_ADDRESS.format(url, ""))
        token = token or given.params.get("token", "")
        # What may be shown: no secret of the address.
        self._url = str(given.copy_with(query=None, fragment=None, userinfo=b"")).rstrip("/")
        refuse_network()
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
        """Close the connections. Runs go on."""
        self._http.close()

    # Reading ---------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """List the live runs of the server's user: id, task, status, tokens, cost and more.

        A live sweep is one of them, with its ``rows`` in numbers.

        Raises:
            ServerError: The server can't be reached, or lets nobody in with this token.
        """
        return self._get("runs")  # type: ignore[no-any-return]

    def run(self, run: str) -> dict[str, Any]:
        """Return the state of a run, live or over, with its receipt.

        Args:
            run: Its id.

        Raises:
            UnknownRunError: There is none.
            ServerError: As by `runs`.
        """
        return self._get(_path(run), run)  # type: ignore[no-any-return]

    def sessions(self, folder: str = "") -> list[dict[str, Any]]:
        """List the sessions on the server's disk, with their turns.

        Args:
            folder: A notebook's folder, whose sessions are listed too.

        Raises:
            ServerError: As by `runs`.
        """
        return self._get("sessions", folder=folder)  # type: ignore[no-any-return]

    def events(self, run: str, after: int = 0) -> Iterator[Event]:
        """Return the events of a run: those so far, then each that comes, to its end.

        Whoever stops reading stops nothing.

        Args:
            run: Its id.
            after: The ``seq`` of the last event that is known already.

        Raises:
            UnknownRunError: There is no such run.
            ServerError: As by `runs`; or the connection was lost.
        """
        headers = {"Last-Event-ID": str(after)}
        timeout = httpx2.Timeout(TIMEOUT_S, read=None)  # agents may be silent for long
        path = f"{_path(run)}/events"
        with self._asked("GET", path, run, headers=headers, timeout=timeout) as response:
            for line in _lines(response):
                if line.startswith(b"data: "):
                    try:
                        yield EVENT.validate_json(line.removeprefix(b"data: "))
                    except ValidationError:  # of a newer server
                        continue

    # Asking ----------------------------------------------------------------------------------

    def start(
        self,
        task: str = "",
        *,
        config: str | None = None,
        recipe: str | None = None,
        context: Mapping[str, Any] | None = None,
        session: str | None = None,
        folder: str = "",
        trust: bool = False,
    ) -> dict[str, Any]:
        """Start a run beside the server, in a process of its own.

        Args:
            task: What is asked; a recipe asks for itself.
            config: A team file there; by default demo agents.
            recipe: A recipe file there.
            context: The values that the recipe starts with.
            session: The session to go on in, or to begin.
            folder: Where it works: files and sessions are named from there.
            trust: Whether to go on with a session that the server's user has not made there.

        Returns:
            Its id, session, turn and status.

        Raises:
            UserError: It can't start.
            ServerError: As by `runs`.
        """
        given = {"config": config, "recipe": recipe, "context": context, "session": session}
        body: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
        body |= {"task": task, "folder": folder, "trust": trust}
        return self._post("runs", body, timeout=START_S)

    def stop(
        self, run: str, *, now: bool = False, agent: str | None = None, reason: str = ""
    ) -> StopResult:
        """Stop a run, one of its agents, or a whole sweep. Idempotent.

        Args:
            run: Its id.
            now: Cut the work in hand instead of letting it finish.
            agent: Id of the one agent to stop; the others go on.
            reason: Why, for the record.

        Returns:
            Whether this changed anything, and where the run stands.

        Raises:
            UnknownRunError: There is no such run.
            UserError: No agent of that id.
            ServerError: As by `runs`.
        """
        body: dict[str, object] = {"immediate": now, "agent": agent, "reason": reason}
        try:
            answer = self.ask(run, "stop", **body)
        except _ConflictError:
            return StopResult(False, "finished")
        return StopResult(bool(answer.get("changed")), answer.get("status", "asked"))

    def approve(self, run: str, message: str = "", gate: str = "") -> None:
        """Approve what has waited longest, or at a gate.

        Args:
            run: The run's id.
            message: A message to the caller that asked.
            gate: The gate's address.

        Raises:
            UnknownRunError: There is no such run.
            UserError: Nothing waits there.
            ServerError: As by `runs`.
        """
        self.ask(run, "approve", message=message, gate=gate)

    def deny(self, run: str, message: str = "", gate: str = "") -> None:
        """Deny what has waited longest, or at a gate; raises as `approve`."""
        self.ask(run, "deny", message=message, gate=gate)

    def answer(self, run: str, text: str) -> None:
        """Answer the question for a text that has waited longest; raises as `approve`."""
        self.ask(run, "answer", text=text)

    def say(self, run: str, text: str) -> None:
        """Add a text to the task while the agents work; raises as `approve`."""
        self.ask(run, "say", text=text)

    def pause(self, run: str) -> None:
        """Pause a run at its next boundary; raises as `approve`."""
        self.ask(run, "pause")

    def resume(self, run: str, *, trust: bool = False) -> None:
        """Continue a paused run, or an incomplete one in the next turn; raises as `approve`.

        Args:
            run: The run's id.
            trust: Whether to go on with a session that the server's user has not made there.
        """
        self.ask(run, "resume", trust=trust)

    def ask(self, run: str, verb: str, **body: object) -> dict[str, Any]:
        """Ask something of a run or a sweep by any verb of the server's ``openapi.json``.

        Args:
            run: Its id.
            verb: The last word of the address, such as "say".
            body: What the request holds, such as the text.

        Returns:
            The reply, with a `message` for a person.

        Raises:
            UnknownRunError: There is no such run.
            UserError: It can't be done, or the server has no such verb.
            ServerError: As by `runs`.
        """
        return self._post(f"{_path(run)}/{verb}", body, run)

    # The wire --------------------------------------------------------------------------------

    def _get(self, path: str, run: str = "", **query: str) -> Any:
        with self._asked("GET", path, run, params=query) as response:
            return self._decoded(response)

    def _post(
        self, path: str, body: Mapping[str, Any], run: str = "", timeout: float = TIMEOUT_S
    ) -> dict[str, Any]:
        with self._asked("POST", path, run, json=dict(body), timeout=timeout) as response:
            answer: dict[str, Any] = self._decoded(response)
            return answer

    def _decoded(self, response: httpx2.Response) -> Any:
        try:
            return json.loads(_whole(response))
        except ValueError:
            raise ServerError(self._url, "what it answers is not nb_agents'") from None

    @contextmanager
    def _asked(self, method: str, path: str, run: str, **options: Any) -> Iterator[httpx2.Response]:
        """Send a request; translate the server's refusals into our errors."""
        try:
            with self._http.stream(method, path, **options) as response:
                if not response.is_success:
                    self._refuse(response, run)
                yield response
        except httpx2.HTTPError as exc:
            late = isinstance(exc, httpx2.TimeoutException)
            why = (
                "it does not answer in time" if late else f"the connection failed ({said_by(exc)})"
            )
            proxy = proxy_of(self._url)
            raise ServerError(self._url, f"{why}, by the {proxy}" if proxy else why) from None

    def _refuse(self, response: httpx2.Response, run: str) -> None:
        code, said = response.status_code, _message(_whole(response))
        if code in (401, 403):
            raise ServerError(self._url, "it does not allow this with the token that was given")
        if code == 404 and not said:
            raise ServerError(self._url, "it has no nb_agents: install it where Jupyter is")
        if code == 404 and run:
            raise UnknownRunError(run, tuple(str(each.get("id")) for each in self.runs()))
        if code == 409:
            raise _ConflictError(said)
        if code < 400 or code >= 500:
            raise ServerError(self._url, f"it answers {code}")
        raise UserError(said or f"The server answers {code}.")


class _ConflictError(UserError):
    """A run is over, or not at a point where this can be asked."""


def _path(run: str) -> str:
    return f"runs/{quote(run)}"


def _message(body: bytes) -> str:
    """Return the sentence of our own refusals; "" of any other."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    said = answer.get("message") if isinstance(answer, dict) else None
    return said[:MAX_SAID_CHARS] if isinstance(said, str) else ""


def _whole(response: httpx2.Response) -> bytes:
    body = b""
    for piece in response.iter_bytes():
        body += piece
        if len(body) > MAX_REPLY_BYTES:
            raise ServerError(str(response.url.host), f"its reply has over {MAX_REPLY_BYTES} bytes")
    return body


def _lines(response: httpx2.Response) -> Iterator[bytes]:
    """Return the lines of a stream; not by ``iter_lines``, which has no limit."""
    rest = b""
    for piece in response.iter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
        if len(rest) > MAX_REPLY_BYTES:
            raise ServerError(str(response.url.host), f"an event has over {MAX_REPLY_BYTES} bytes")
