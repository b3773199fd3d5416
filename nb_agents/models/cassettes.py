"""Records requests to model providers as cassettes, without keys, cookies and account ids.

A cassette is the YAML file that vcrpy and pytest-recording write, so other projects can replay it.
Bodies are stored decompressed. Headers are removed unless they are known to be harmless.
`cassette_text` is pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import yaml

from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.team import AgentSpec
from nb_agents.models.backend import open_request
from nb_agents.models.failures import describe
from nb_agents.models.providers import backend_for, http_client

if TYPE_CHECKING:
    import httpx2

Hide = Callable[[str], str]
"""Returns a text without its secrets."""

KEPT_HEADERS = frozenset(
    "accept anthropic-beta anthropic-version cache-control content-type openai-beta "
    "openai-processing-ms openai-version retry-after transfer-encoding user-agent".split()
)
"""Headers that help with a bug report. All others are removed, whatever they contain."""
KEPT_QUERY = frozenset({"alt", "api-version", "beta"})
"""Parameters of addresses that are kept."""
REMOVED_KEYS = frozenset("metadata prompt_cache_key safety_identifier user".split())
"""Keys of request bodies that identify a user."""

SDK_HOSTS = ("anthropic.com", "googleapis.com", "azure.com")
"""Domains of providers whose SDK knows the address."""
OTHER_HOST = "server.example"
"""Replaces the name of a server that is neither local nor of a known provider."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_AZURE = re.compile(r"^[^.]+(?=\.(openai|cognitiveservices|services\.ai)\.azure\.com$)")
_ACCOUNT = re.compile(
    r"\b(?:org|proj|user|acct|wrkspc)[-_](?=\w*\d)\w{8,}"
    r"|(?<=project[_ /:])\w*\d{6,}|(?<=projects[_ /:])\w*\d{6,}|(?<=project_number:)\d{6,}"
    r"|(?<=organization[ :(])\W{0,2}[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    re.IGNORECASE,
)
ACCOUNT = "[account]"
"""Replaces the id of an organization, project or user."""


TASK = (
    "Write one short sentence about the sea. Then call the tool `write_note` with a title and two "
    "words."
)
"""The task of the request, which asks for text and a tool call because both can be wrong."""
TOOL = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "words": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "words"],
}
LIMIT_S = 120.0
"""Seconds after which the request is given up. What has arrived is recorded."""


class HttpExchange(NamedTuple):
    """A request and its response.

    Attributes:
        method, url: The request's method and address.
        request_headers, request_body: The request.
        status: The response's status code.
        reason: The status as text.
        response_headers, response_body: The response, as received.
    """

    method: str
    url: str
    request_headers: httpx2.Headers
    request_body: bytes
    status: int
    reason: str
    response_headers: httpx2.Headers
    response_body: bytes


class ExchangeRecorder:
    """Records all responses of an HTTP client while they are read, and their requests.

    Args:
        client: The client. Its other response hooks are called after the recorder's.
    """

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._recorded: list[tuple[httpx2.Response, httpx2.Headers, bytearray]] = []
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [self._record, *hooks.get("response", ())]}

    @property
    def exchanges(self) -> list[HttpExchange]:
        """The exchanges so far. A response that is still being read is incomplete."""
        return [
            HttpExchange(
                response.request.method,
                str(response.request.url),
                response.request.headers,
                response.request.content,
                response.status_code,
                response.reason_phrase,
                headers,
                bytes(body),
            )
            for response, headers, body in self._recorded
        ]

    async def _record(self, response: httpx2.Response) -> None:
        body = bytearray()
        self._recorded.append((response, response.headers.copy(), body))
        response.stream = _copied(response.stream, body)


def _copied(source: Any, copy: bytearray) -> Any:
    """Return a response's raw body, which is copied while it is read."""
    import httpx2

    class CopiedStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in source:
                copy.extend(piece)
                yield piece

        async def aclose(self) -> None:
            await source.aclose()

    return CopiedStream()


def cassette_text(exchanges: Iterable[HttpExchange], hide: Hide) -> str:
    """Return a cassette as YAML.

    Args:
        exchanges: The recorded requests and responses.
        hide: Hides the secrets in addresses and bodies.
    """
    interactions = [_interaction(each, hide) for each in exchanges]
    cassette = {"interactions": interactions, "version": 1}
    return yaml.dump(cassette, Dumper=_Dumper, width=1_000_000, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is, and lists without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _interaction(exchange: HttpExchange, hide: Hide) -> dict[str, Any]:
    url = hide(_public_address(exchange.url))
    request = {
        "body": _masked(_without_user(exchange.request_body), hide),
        "headers": _kept(exchange.request_headers, hide),
        "method": exchange.method,
        "uri": url,
    }
    body = _decoded(exchange)
    response = {
        "body": {"string": _masked(body, hide)},
        "headers": _kept(exchange.response_headers, hide),
        "status": {"code": exchange.status, "message": exchange.reason},
    }
    return {"request": request, "response": response}


def _public_address(address: str) -> str:
    """Return an address without user, password, secret parameters and names of private servers."""
    import httpx2

    url = httpx2.URL(address)
    host = url.host if url.host in _LOCAL or _is_known(address, url.host) else OTHER_HOST
    kept = {name: value for name, value in url.params.items() if name in KEPT_QUERY}
    public = url.copy_with(userinfo=b"", query=None, host=_AZURE.sub("resource", host))
    return _without_accounts(str(public.copy_merge_params(kept) if kept else public))


def _is_known(address: str, host: str) -> bool:
    """Return whether an address is a model provider's, not a company's own."""
    if host.endswith(tuple(f".{each}" for each in SDK_HOSTS)):
        return True
    return any(each.lives_at(address) for each in BACKEND_TYPES.all().values())


def _without_user(body: bytes) -> bytes:
    """Return a request's body without the keys that identify a user."""
    try:
        value = json.loads(body)
    except ValueError:
        return body
    if not isinstance(value, dict) or REMOVED_KEYS.isdisjoint(value):
        return body
    kept = {key: each for key, each in value.items() if key not in REMOVED_KEYS}
    return json.dumps(kept, ensure_ascii=False).encode()


def _decoded(exchange: HttpExchange) -> bytes:
    """Return a response's body decompressed. A damaged one becomes empty."""
    import httpx2

    try:
        return httpx2.Response(
            200, headers=exchange.response_headers, content=exchange.response_body
        ).content
    except httpx2.DecodingError:
        return b""


def _masked(body: bytes, hide: Hide) -> str:
    return _without_accounts(hide(body.decode("utf-8", "replace")))


def _without_accounts(text: str) -> str:
    return _ACCOUNT.sub(ACCOUNT, text)


def _kept(headers: httpx2.Headers, hide: Hide) -> dict[str, list[str]]:
    names = sorted(KEPT_HEADERS.intersection(headers))
    return {name: [hide(each) for each in headers.get_list(name)] for name in names}


async def record_request(agent: AgentSpec, task: str = TASK) -> tuple[list[HttpExchange], str]:
    """Send a request to an agent's model, and return the exchanges.

    Args:
        agent: The agent. Its provider's modules are loaded.
        task: The text of the request.

    Returns:
        The requests and responses, and why the reply could not be read, or "".
    """
    from pydantic_ai.messages import ModelRequest, UserPromptPart
    from pydantic_ai.tools import ToolDefinition

    failure = f"No complete reply within {LIMIT_S:g} s."
    tool = ToolDefinition(
        name="write_note", description="Write a note.", parameters_json_schema=TOOL
    )
    messages = [ModelRequest([UserPromptPart(task)])]
    async with http_client() as client:
        recorder = ExchangeRecorder(client)
        with anyio.move_on_after(LIMIT_S):
            try:
                backend = backend_for(agent, lambda: client)
                async with open_request(backend, messages, [tool]) as stream:
                    async for _ in stream:
                        pass
                failure = ""
            except Exception as exc:
                failure = describe(exc)
        return recorder.exchanges, failure
