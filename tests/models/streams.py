"""Reads streams of recorded cassettes, and replays each with nb_agents and with pydantic-ai alone.

Cassettes are files of vcrpy and pytest-recording, from other projects or `nb-agents doctor
--record`. Set `NB_AGENTS_CASSETTES` to a directory to replay its files, too:

    NB_AGENTS_CASSETTES=~/pydantic-ai/tests make py-test ARGS=tests/models/test_cassettes.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
import httpx2
import yaml
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from tests.cli.calls import call_here
from tests.kit.models import backend_for, http_client, load, open_request
from tests.kit.teams import TeamSpec
from tests.kit.terminal import COMPLETE, FAILED
from tests.model_server import ModelServer, Reply, Request, ToolCall

__all__ = [
    "FOLDER",
    "NOTE",
    "REPLIES",
    "WIRES",
    "RecordedStream",
    "cassette_files",
    "read_with",
    "record",
    "streams_in",
]

FOLDER = Path(__file__).parent / "cassettes"
"""The cassettes of this repository, which `python -m tests.models.streams` records."""

WireFormat = Literal["openai", "responses", "claude", "gemini"]
_FORMATS: dict[str, WireFormat] = {
    r"/chat/completions$": "openai",
    r"/responses$": "responses",
    r"/v1/messages$": "claude",
    r":streamGenerateContent$": "gemini",
}
WIRES: tuple[WireFormat, ...] = ("openai", "responses", "claude", "gemini")

NOTE = ToolCall("write_note", {"title": "The sea", "words": ["“wide”", "😀"]})
REPLIES = {
    "text": Reply("The sea is wide.", input_tokens=21),
    "calls": Reply("Two notes.", (NOTE, ToolCall("write_note", {"title": "", "words": []}))),
    "limit": Reply("The sea is wide and", (NOTE,), stop_after=6),
    "thoughts": Reply("The sea is wide.", (NOTE,), thoughts="I think of the sea."),
}
"""The replies of the repository's cassettes."""
_CHUNK = 700
"""Size of the chunks in which a stream is sent again, so that events are split."""
_RANDOM_ID = re.compile(r"pyd_ai_\w+")
_READER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RecordedStream(NamedTuple):
    """A streamed reply of a cassette.

    Attributes:
        name: The file, and the number of the interaction.
        wire: The wire format.
        model: The model of the request.
        tools: The tools of the request.
        body: The reply.
    """

    name: str
    wire: WireFormat
    model: str
    tools: list[ToolDefinition]
    body: bytes


def record(server: ModelServer, wire: str, reply: Reply, path: Path, **keys: Any) -> str:
    """Record a reply in a wire format with `nb-agents doctor`, and return what it prints."""
    server.script("m", reply)
    backend = server.backend(wire, model="m", **keys)
    team = path.with_suffix(".team.json")
    team.write_text(json.dumps({"agents": [{"id": "ann", "backend": backend}]}))
    code = COMPLETE if reply.status == 200 and reply.drop_after is None else FAILED
    told = call_here("doctor", "--record", str(path), "--config", str(team), code=code)
    team.unlink()
    return told


def cassette_files() -> list[Path]:
    """Return the cassettes of this repository and of `NB_AGENTS_CASSETTES`.

    Raises:
        ValueError: The variable names a directory without a stream, such as one that is missing.
    """
    given = os.environ.get("NB_AGENTS_CASSETTES")
    if not given:
        return _cassettes_in(FOLDER)
    if not (found := _cassettes_in(Path(given).expanduser())):
        raise ValueError(
            f"NB_AGENTS_CASSETTES={given!r} contains no recorded stream. Set it to the directory "
            "of your recordings."
        )
    return [*_cassettes_in(FOLDER), *found]


def _cassettes_in(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".yaml", ".yml", ".json") and b"text/event-stream" in path.read_bytes()
    ]


def streams_in(path: Path) -> Iterator[RecordedStream]:
    """Yield the streamed replies of a cassette whose wire format nb_agents reads."""
    cassette = yaml.load(path.read_bytes(), _READER)
    interactions = cassette.get("interactions", []) if isinstance(cassette, dict) else []
    for number, each in enumerate(interactions):
        request, response = each["request"], each["response"]
        url = httpx2.URL(request["uri"])
        wire = next((w for pattern, w in _FORMATS.items() if re.search(pattern, url.path)), None)
        code = response["status"]["code"] if "status" in response else response["status_code"]
        if wire and code == 200 and "event-stream" in str(response["headers"]):
            asked = _body(request)
            named = re.search(r"models/([^:]+):", url.path)
            yield RecordedStream(
                f"{path.name} #{number}",
                wire,
                named[1] if named else asked.get("model", "m"),
                [*_tools(asked)],
                _stream(response),
            )


def _body(request: dict[str, Any]) -> dict[str, Any]:
    if parsed := request.get("parsed_body"):
        return dict(parsed)
    body = request.get("body") or "{}"
    value = json.loads(body) if isinstance(body, str | bytes) else body
    return value if isinstance(value, dict) else {}


def _stream(response: dict[str, Any]) -> bytes:
    """Return the body of a response, decompressed."""
    body = response["body"]["string"] if "body" in response else response["content"]
    raw = body if isinstance(body, bytes) else body.encode()
    coding = [v for name, v in response["headers"].items() if name.lower() == "content-encoding"]
    if coding and not raw.startswith((b"data:", b"event:", b":", b"id:")):
        flat = coding[0] if isinstance(coding[0], str) else coding[0][0]
        return httpx2.Response(200, headers={"Content-Encoding": flat}, content=raw).content
    return raw


def _tools(asked: dict[str, Any]) -> Iterator[ToolDefinition]:
    for tool in asked.get("tools") or []:
        for each in tool.get("functionDeclarations") or [tool.get("function") or tool]:
            if "name" in each:
                yield ToolDefinition(name=each["name"])


def read_with(server: ModelServer, recorded: RecordedStream) -> tuple[Any, Any]:
    """Return what nb_agents and what pydantic-ai alone reads: events and the whole reply."""
    return _run(_read_ours, server, recorded), _run(_read_plain, server, recorded)


def _run(read: Any, server: ModelServer, recorded: RecordedStream) -> Any:
    server.script(recorded.model, partial(_reply, recorded.body))
    return anyio.run(read, server, recorded)


def _reply(body: bytes, request: Request) -> Reply:
    return Reply(body=lambda: (body[at : at + _CHUNK] for at in range(0, len(body), _CHUNK)))


_ASKED = [ModelRequest([UserPromptPart("again")])]


async def _read_ours(server: ModelServer, recorded: RecordedStream) -> Any:
    backend = server.backend(recorded.wire, model=recorded.model)
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    load([team.agents[0].backend.type])
    async with http_client() as client:
        ours = backend_for(team.agents[0], lambda: client)
        async with open_request(ours, _ASKED, recorded.tools) as stream:
            return await _facts(stream)


async def _read_plain(server: ModelServer, recorded: RecordedStream) -> Any:
    async with httpx2.AsyncClient() as client:
        model = _plain_model(server, recorded, client)
        parameters = ModelRequestParameters(function_tools=recorded.tools)
        async with model_request_stream(
            model, _ASKED, model_request_parameters=parameters
        ) as stream:
            return await _facts(stream)


def _plain_model(
    server: ModelServer, recorded: RecordedStream, client: httpx2.AsyncClient
) -> Model:
    from google.genai import Client
    from google.genai.types import HttpOptions
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.google import GoogleProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if recorded.wire == "claude":
        claude = AnthropicProvider(base_url=server.base, api_key="k", http_client=client)
        return AnthropicModel(recorded.model, provider=claude)
    if recorded.wire == "gemini":
        options = HttpOptions(base_url=server.base, httpx_async_client=client)
        return GoogleModel(
            recorded.model,
            provider=GoogleProvider(client=Client(api_key="k", http_options=options)),
        )
    kind = OpenAIResponsesModel if recorded.wire == "responses" else OpenAIChatModel
    openai = OpenAIProvider(base_url=server.url, api_key="k", http_client=client)
    return kind(recorded.model, provider=openai)


async def _facts(stream: Any) -> Any:
    """Return the events of a stream, its reply and its error, without times and random ids."""
    kinds, error = [], ""
    try:
        async for event in stream:
            kinds.append(event.event_kind)
    except Exception as exc:
        error = type(exc).__name__
    return {"events": kinds, "reply": _plain(stream.get()), "error": error}


def _plain(response: ModelResponse) -> Any:
    (reply,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    ids: dict[str, str] = {}
    text = _RANDOM_ID.sub(lambda m: ids.setdefault(m[0], f"id {len(ids)}"), json.dumps(reply))
    return _without_times(json.loads(text))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("part_kind") == "tool-call" and value["args"] in (None, "", "{}"):
            value["args"] = {}  # a call without arguments, in any spelling
        return {k: _without_times(v) for k, v in value.items() if "timestamp" not in k}
    return [*map(_without_times, value)] if isinstance(value, list) else value


def main() -> None:
    """Record the cassettes of this repository again."""
    FOLDER.mkdir(exist_ok=True)
    with ModelServer() as server:
        for wire in WIRES:
            for name, reply in REPLIES.items():
                record(server, wire, reply, FOLDER / f"{wire}-{name}.yaml")


if __name__ == "__main__":
    main()
