"""Retries of failed calls: which errors, which delays, stops and silent servers."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic_ai import exceptions as px

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.models import retry as retry_module
from nb_agents.models.retry import DEFAULT_RETRY, retry_delay_s
from nb_agents.options import Retry
from tests.canaries import KEY
from tests.kit.models import describe, providers
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import events, finish, outcomes

DONE = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
TRIES = 1 + DEFAULT_RETRY.attempts
TYPES = ("openai", "responses", "claude", "gemini")


def _http(status: int, **headers: str) -> px.ModelHTTPError:
    return px.ModelHTTPError(status, "m", headers=headers or None)


@pytest.mark.parametrize(
    ("error", "delays"),
    [
        (px.ModelRateLimitError("m", "x"), [0.5, 1, 2, None]),
        (px.ModelUnavailableError("m", "x"), [0.5, 1, 2, None]),
        (px.ModelOverloadedError("m", "x"), [0.5, 1, 2, None]),
        (px.ModelServerError("m", "x"), [0.5, 1, 2, None]),
        (px.ModelConnectionError("m", "x"), [0.5, 1, 2, None]),
        (px.ModelTimeoutError("m", "x"), [0.5, 1, 2, None]),
        (px.ModelAPIError("m", "of a kind not told"), [0.5, 1, 2, None]),
        (px.UnexpectedModelBehavior("empty response"), [0.5, 1, 2, None]),
        (httpx2.ReadError("x"), [0.5, 1, 2, None]),
        (httpx2.ReadTimeout("x"), [0.5, 1, 2, None]),
        (json.JSONDecodeError("x", "", 0), [0.5, 1, 2, None]),
        (_http(429), [0.5, 1, 2, None]),
        (_http(503), [0.5, 1, 2, None]),
        (_http(408), [0.5, 1, 2, None]),
        (_http(429, **{"retry-after": "7"}), [7, 7, 7, None]),
        (_http(429, **{"retry-after": "60"}), [60, 60, 60, None]),
        (_http(429, **{"retry-after": "61"}), [None]),
        (_http(429, **{"retry-after": "soon"}), [0.5, 1, 2, None]),
        (px.ModelQuotaExceededError("m", "x"), [None]),
        (px.ModelAuthenticationError("m", "x"), [None]),
        (px.ModelNotFoundError("m", "x"), [None]),
        (px.ModelContextWindowExceededError("m", "x"), [None]),
        (_http(400), [None]),
        (_http(401), [None]),
        (_http(404), [None]),
        (px.UserError("our mistake"), [None]),
        (ValueError("a defect"), [None]),
    ],
)
def test_retry_delays_by_error(error: Exception, delays: list[float | None]) -> None:
    assert [retry_delay_s(error, attempt) for attempt in range(1, len(delays) + 1)] == delays
    assert retry_delay_s(error, TRIES) is None


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (_http(401), "The server refused the key; check it (HTTP 401)."),
        (_http(418), "The server refused the request (HTTP 418)."),
        (px.ModelTimeoutError("m", "x"), "The server did not answer in time."),
        (httpx2.ReadTimeout("x"), "The server did not answer in time."),
        (
            px.ModelConnectionError("m", "x"),
            "The server dropped the connection before it replied: check its log.",
        ),
        (
            httpx2.UnsupportedProtocol(
                "x",
                request=httpx2.Request("GET", "ftp://user:secret@a.example:2121/path?key=secret"),
            ),
            "The server a.example:2121 can't be reached: base_url must begin with http:// or"
            " https://.",
        ),
        (
            px.UnexpectedModelBehavior("x"),
            "The server's reply is invalid (malformed stream).",
        ),
        (ValueError("with sk-secret in it"), "The call failed with ValueError."),
    ],
)
def test_error_is_one_sentence_without_secrets(error: Exception, sentence: str) -> None:
    assert describe(error) == sentence


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    monkeypatch.setattr(retry_module, "DEFAULT_RETRY", Retry(delay=0.001))
    with ModelServer() as running:
        yield running


def _start(root: Path, server: ModelServer, kind: str = "openai", url: str = "") -> nb_agents.Run:
    backend = server.backend(kind, model="m", api_key=KEY)
    if url:
        backend["base_url"] = url
    team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    return nb_agents.start("t", team, options=RunOptions(session_root=root))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "fault",
    [
        Reply(status=500),
        Reply(status=503),
        Reply(status=429),
        Reply(text="some words here", drop_after=2),
        Reply(drop_after=0),
        Reply(text="some words here", malformed=True),
        Reply(text=""),
        Reply(text="some words", error="overloaded"),
    ],
    ids=["500", "503", "429", "dropped", "no headers", "malformed", "empty", "error frame"],
)
def test_transient_errors_are_retried_with_one_request_each(
    tmp_path: Path, server: ModelServer, kind: str, fault: Reply
) -> None:
    server.script("m", fault, fault, DONE)
    run = finish(_start(tmp_path, server, kind))
    assert (run.result, server.count()) == ("done", 3)
    assert [e.attempt for e in events(run, ev.ModelStarted)][:3] in ([1, 2, 3], [1, 1, 1])
    assert len(events(run, ev.ModelFailed, ev.TurnRejected)) == 2


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("status", [400, 401, 404])
def test_rejected_request_is_not_retried(
    tmp_path: Path, server: ModelServer, kind: str, status: int
) -> None:
    server.script("m", Reply(status=status))
    run = finish(_start(tmp_path, server, kind))
    assert (run.status, server.count()) == ("failed", 1)
    assert f"(HTTP {status})" in run.view.agents["a"].error


@pytest.mark.parametrize("kind", TYPES)
def test_unavailable_server_gets_four_requests(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    server.script("m", Reply(status=503))
    run = finish(_start(tmp_path, server, kind))
    assert (run.status, server.count()) == ("failed", TRIES)
    assert "m: The server is overloaded or down (HTTP 503)." in str(run.view.agents["a"].error)


def test_retry_after_is_observed_and_interrupted_by_a_stop(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("m", Reply(status=429, headers={"Retry-After": "30"}), DONE)
    run = _start(tmp_path, server)
    wait_until(lambda: events(run, ev.ModelFailed))
    assert events(run, ev.ModelFailed)[0].retry_in_s == 30
    run.stop()
    finish(run)  # long before those 30 s
    assert (run.status, server.count()) == ("cancelled", 1)


@pytest.mark.parametrize("kind", TYPES)
def test_too_long_retry_after_is_reported(tmp_path: Path, server: ModelServer, kind: str) -> None:
    server.script("m", Reply(status=429, headers={"Retry-After": "3600"}))
    run = finish(_start(tmp_path, server, kind))
    assert (run.status, server.count()) == ("failed", 1)
    asks = "It asks to wait 3,600 s. To allow that, set `wait_for_quota`."
    assert asks in run.view.agents["a"].error


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("hang_after", [0, 2])
def test_immediate_stop_leaves_a_silent_server(
    tmp_path: Path, server: ModelServer, kind: str, hang_after: int
) -> None:
    server.script("m", Reply(text="one two three", hang_after=hang_after))
    run = _start(tmp_path, server, kind)
    server.wait_open(1)
    if hang_after:
        wait_until(lambda: "two" in run.view.agents["a"].partial)
    run.stop(now=True)
    server.wait_closed()
    finish(run)
    assert outcomes(run) == {"a": "killed"}
    assert run.view.agents["a"].partial.split() == ["one", "two"][:hang_after]


@pytest.mark.parametrize("kind", TYPES)
def test_silent_server_is_a_clear_error(
    tmp_path: Path, server: ModelServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "MAX_SILENCE_S", 0.25)
    server.script("m", Reply(text="one two three", hang_after=2))
    run = finish(_start(tmp_path, server, kind))
    where = f"m: The server {_host(server.url)} "
    assert run.view.agents["a"].error == (
        f"{where}sent nothing for 0.25 s (`max_silence` of `retry`)."
    )
    assert len(events(run, ev.ModelFailed)) == TRIES
    # A busy server may not read a request whose client has already disconnected.
    assert server.count() <= TRIES


def test_max_silence_comes_from_team_or_options(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", Reply(text="one two three", hang_after=2))
    backend = server.backend("openai", model="m")
    retry = {"attempts": 0, "max_silence": 0.07}
    team = nb_agents.TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": backend}], "retry": retry}
    )
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert "sent nothing for 0.07 s (`max_silence`" in run.view.agents["a"].error
    options = RunOptions(session_root=tmp_path, retry=Retry(attempts=0, max_silence=0.08))
    run = finish(nb_agents.start("t", team, options=options))
    assert "sent nothing for 0.08 s (`max_silence`" in run.view.agents["a"].error


def _host(url: str) -> str:
    return urlsplit(url).netloc


@pytest.mark.parametrize("kind", TYPES)
def test_failed_connection_message_names_the_server_and_has_advice(
    tmp_path: Path, server: ModelServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(url: str) -> str:
        run = finish(_start(tmp_path, server, kind, url))
        return run.view.agents["a"].error.removeprefix("m: ")

    server.script("m", Reply(text="one two three", drop_after=2))
    url = server.backend(kind)["base_url"]
    there = _host(url)
    assert told(url) == (f"The server {there} dropped the connection after 2 words of its reply.")
    server.script("m", Reply(text="one two three", drop_after=1))
    assert told(url) == f"The server {there} dropped the connection after 1 word of its reply."
    server.stop()
    assert told(url) == (
        f"The server {there} refused the connection: check that it is running, and its port."
    )

    def unknown(*args: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert told("http://models.example/v1") == (
        "The server models.example was not found: check base_url and the network."
    )


def test_server_without_tls_is_recognized(tmp_path: Path, server: ModelServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def refuse() -> None:
            for _ in range(TRIES):
                connection, _address = plain.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=refuse, daemon=True).start()
        host = f"127.0.0.1:{plain.getsockname()[1]}"
        run = finish(_start(tmp_path, server, url=f"https://{host}/v1"))
    assert run.view.agents["a"].error == (
        f"m: The TLS connection to the server {host} failed: wrong version number. Check its"
        " certificate, and whether base_url should begin with http:// or https://."
    )


def test_used_up_quota_is_not_retried(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", Reply(status=402))
    run = finish(_start(tmp_path, server))
    assert server.count() == 1
    assert "credit is used up" in run.view.agents["a"].error
