"""Providers for a new team: those with a key, and local servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from nb_agents.models import found_providers as found_providers_module
from nb_agents.models.found_providers import LOCAL, found_providers, offered_types
from tests.kit.models import BACKEND_TYPES
from tests.kit.teams import FIRST_MODELS
from tests.model_server import free_port


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset all keys and local servers, and allow more time for those that a test starts."""
    monkeypatch.setattr(found_providers_module, "ASK_S", 60)
    for kind, row in BACKEND_TYPES.all().items():
        for name in row.variables:
            monkeypatch.delenv(name, raising=False)
        if kind in LOCAL:
            at(monkeypatch, kind, free_port())


def at(monkeypatch: pytest.MonkeyPatch, kind: str, port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1"
    monkeypatch.setitem(BACKEND_TYPES.core, kind, replace(BACKEND_TYPES[kind], base_url=url))


@pytest.fixture
def answers() -> Iterator[list[bytes]]:
    """Replies of the servers, in order."""
    replies: list[bytes] = []
    yield replies


@pytest.fixture
def local(answers: list[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server at Ollama's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.end_headers()
            self.wfile.write(answers[0])

        def log_message(self, format: str, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        at(monkeypatch, "ollama", server.server_port)
        yield
        server.shutdown()
        thread.join()


def test_no_providers_without_keys_and_local_servers() -> None:
    assert found_providers() == []


def test_provider_with_a_key_is_found_with_its_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    [found] = found_providers()
    assert (found.type, found.where) == ("gemini", "GOOGLE_API_KEY is set")
    assert found.models[0] == FIRST_MODELS["gemini"]
    assert len(found.models) > 1 and len({*found.models}) == len(found.models)


def test_key_status_names_the_variable_and_never_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "sk-secret")
    types = {each.type: each for each in offered_types()}
    assert types["gemini"].found == "GOOGLE_API_KEY"
    assert (types["openai"].variables, types["openai"].found) == (("OPENAI_API_KEY",), "")
    assert types["ollama"].takes_address and not types["openai"].takes_address
    assert "demo" not in types and "sk-secret" not in repr(types)


def test_local_server_is_found_with_its_models(answers: list[bytes], local: None) -> None:
    answers.append(json.dumps({"data": [{"id": "llama3.2"}, {"id": 3}, "x"]}).encode())
    [found] = found_providers()
    assert (found.type, found.models) == ("ollama", ("llama3.2",))


@pytest.mark.parametrize(
    "reply", [b"<html>", b"[]", b'{"data": 3}', b'{"data": []}', b"[" * 2_000_000]
)
def test_other_program_on_the_port_is_not_a_provider(
    answers: list[bytes], local: None, reply: bytes
) -> None:
    answers.append(reply)
    assert found_providers() == []
