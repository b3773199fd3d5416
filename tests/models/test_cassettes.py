"""Recorded streams are read as by pydantic-ai alone, and `doctor --record` records them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from nb_agents.errors import UserError
from nb_agents.models.cassettes import ACCOUNT, OTHER_HOST, HttpExchange, cassette_text
from tests.cli.calls import call_here
from tests.kit.secrets import Mask, Secret
from tests.model_server import ModelServer, Reply, free_port
from tests.models.streams import (
    FOLDER,
    NOTE,
    WIRES,
    cassette_files,
    read_with,
    record,
    streams_in,
)

KEY = "sk-proj-1f9Qz7LmX02pA8"
ORGANIZATION = "org-Ab12Cd34Ef56"
COOKIE = "__cf_bm=Zq81xW-1f9Qz7"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")  # of an old recording
@pytest.mark.parametrize("path", cassette_files(), ids=lambda path: path.name)
def test_recorded_streams_are_read_as_by_pydantic_ai_alone(server: ModelServer, path: Path) -> None:
    for recorded in streams_in(path):
        ours, plain = read_with(server, recorded)
        assert ours == plain, recorded.name


def test_directory_without_a_recording_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        monkeypatch.setenv("NB_AGENTS_CASSETTES", str(path))
        with pytest.raises(ValueError, match="contains no recorded stream"):
            cassette_files()


def test_repository_has_a_stream_of_each_wire_format() -> None:
    streams = [each for path in FOLDER.glob("*.yaml") for each in streams_in(path)]
    assert {each.wire for each in streams} == {*WIRES}
    assert len(streams) == len([*FOLDER.iterdir()])


@pytest.mark.parametrize("wire", WIRES)
def test_recording_of_doctor_is_replayed(server: ModelServer, wire: str, tmp_path: Path) -> None:
    told = record(server, wire, Reply("The sea is wide.", (NOTE,)), tmp_path / "c.yaml")
    assert "HTTP 200" in told
    (recorded,) = streams_in(tmp_path / "c.yaml")
    ours, plain = read_with(server, recorded)
    assert ours == plain and not ours["error"]
    assert (recorded.wire, recorded.tools[0].name) == (wire, NOTE.name)
    text, call = ours["reply"]["parts"]
    args = call["args"] if isinstance(call["args"], dict) else json.loads(call["args"])
    assert (text["content"], args) == ("The sea is wide.", NOTE.args)


@pytest.mark.parametrize("wire", WIRES)
def test_recording_has_no_key_cookie_or_account(
    server: ModelServer, wire: str, tmp_path: Path
) -> None:
    headers = {"Set-Cookie": COOKIE, "openai-organization": "acme-28gund", "x-api-key": KEY}
    error = f"Incorrect API key provided: {KEY}. Organization {ORGANIZATION} has no access."
    refused = Reply(status=401, headers=headers, error=error)
    own = {"extra_headers": {"X-Gateway": "Bearer gw-71Lq0zX9sW3e"}, "api_key": KEY}
    told = record(server, wire, refused, tmp_path / "c.yaml", **own)
    text = (tmp_path / "c.yaml").read_text()
    assert "HTTP 401" in told and "refused the key" in told
    assert "Incorrect API key provided: [key]" in text and ACCOUNT in text
    for secret in (KEY, ORGANIZATION, COOKIE, "acme-28gund", "gw-71Lq0zX9sW3e", "uthorization"):
        assert secret not in text + told
    assert KEY in str(server.requests[-1].headers)
    assert (tmp_path / "c.yaml").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            f"https://generativelanguage.googleapis.com/v1/m:stream?alt=sse&key={KEY}",
            "https://generativelanguage.googleapis.com/v1/m:stream?alt=sse",
        ),
        (f"https://ada:{KEY}@llm.acme.example/v1?token=7", f"https://{OTHER_HOST}/v1"),
        (
            "https://acme-labs.openai.azure.com/openai/x?api-version=1",
            "https://resource.openai.azure.com/openai/x?api-version=1",
        ),
        ("http://localhost:8000/v1/responses", "http://localhost:8000/v1/responses"),
    ],
)
def test_address_is_stored_without_secrets(url: str, shown: str) -> None:
    assert interaction(url=url)["request"]["uri"] == shown


def interaction(
    url: str = "https://api.openai.com/v1/responses",
    asked: object = None,
    body: bytes = b"data: {}\n\n",
    headers: dict[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return what a cassette has of a request and a response."""
    sent, received = httpx2.Headers({"Cookie": COOKIE}), httpx2.Headers(headers or {})
    exchange = HttpExchange(
        "POST", url, sent, json.dumps(asked).encode(), 200, "OK", received, body
    )
    text = cassette_text([exchange], Mask([Secret(KEY, ("api_key",))]).text)
    assert COOKIE not in text
    (found,) = yaml.safe_load(text)["interactions"]
    return dict(found)


def test_bodies_are_stored_without_users_and_decompressed() -> None:
    stream = f"data: {{'id': 'user-1a2b3c4d5', 'text': 'user-friendly “é” \\r {KEY}'}}\r\n\r\n"
    found = interaction(
        asked={"model": "m", "user": "ada@acme.example", "metadata": {"team": "x"}},
        body=gzip.compress(stream.encode()),
        headers={"Content-Encoding": "gzip", "Content-Type": "text/event-stream", "Date": "now"},
    )
    assert json.loads(found["request"]["body"]) == {"model": "m"}
    kept = stream.replace(KEY, "[key]").replace("user-1a2b3c4d5", ACCOUNT)
    assert found["response"]["body"] == {"string": kept}
    assert found["response"]["headers"] == {"content-type": ["text/event-stream"]}


def test_stream_that_breaks_off_is_recorded(server: ModelServer, tmp_path: Path) -> None:
    told = record(server, "openai", Reply("one two three", drop_after=2), tmp_path / "c.yaml")
    assert "could not be read" in told and "dropped the connection" in told
    text = (tmp_path / "c.yaml").read_text()
    assert " two" in text and "three" not in text


def test_no_file_is_written_without_a_response_or_a_model(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    url = f"http://127.0.0.1:{free_port()}/v1"
    agents = [
        {"id": name, "backend": {"type": "vllm", "model": "m", "base_url": url}}
        for name in ("ann", "ben")
    ]
    (tmp_path / "t.json").write_text(json.dumps({"agents": agents}))
    words = ("doctor", "--record", str(file), "--config", str(tmp_path / "t.json"))
    for more, message in {
        (*words, "--agent", "ben"): "refused the connection",
        words: "Choose one with --agent: ann, ben.",
        (*words, "--agent", "eve"): "No agent 'eve'",
        ("doctor", "--record", str(file)): "Add --model",
        ("doctor", "--model", "vllm:m"): "--record FILE",
    }.items():
        with pytest.raises(UserError, match=message):
            call_here(*more)
    assert not file.exists()
