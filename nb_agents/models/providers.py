"""Builds the model of an agent's backend, and finds out why a team can't start.

`load` imports providers when they are first needed (0.9-2 s without a cache), in the thread that
starts a run. pydantic-ai's modules have circular imports: if two threads import them at the same
time, one may get an incomplete module. So while `load_in_background` is running after
``%load_ext``, only cells with nb_agents's magics are executed, and these import none of the
modules.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio import to_thread

from nb_agents.config.backends import (
    BACKEND_TYPES,
    BackendSpec,
    matching_type,
    missing_key,
    unsupported_reason,
)
from nb_agents.config.document import unset_variable
from nb_agents.config.extras import missing_extra
from nb_agents.config.team import NO_AGENTS, AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, MissingKeyError, UserError
from nb_agents.imports import garbage_collection_off
from nb_agents.models.backend import Backend, PydanticBackend, read_uploads
from nb_agents.models.demo import demo_backend
from nb_agents.models.network import check_network, tls_context
from nb_agents.models.ollama_window import ollama_window
from nb_agents.models.openai_client import patch_client
from nb_agents.models.settings import settings_of, unsupported_settings, without_settings
from nb_agents.models.streamed_calls import with_sorted_calls
from nb_agents.plugins import extensions

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model
    from pydantic_ai.profiles import ModelProfile

_BASE = (
    "pydantic_ai",  # must be first, as in `message_json`
    "pydantic_ai.direct",
    "pydantic_ai.models.function",
    "genai_prices.data",  # otherwise imported when a model is built
    "nb_agents.models.response_limits",
)
_OPENAI = (
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.openai",
    "openai.resources.chat.chat",  # otherwise imported at a client's first request
)
_loading = threading.Lock()
_background: _Loading | None = None

CONNECT_TIMEOUT_S = 10.0
MAX_SILENCE_S = 300.0
"""Seconds without data after which a stream is considered lost.

Reasoning models may need minutes.
"""
MAX_CONNECTIONS = 1000
"""More than any team needs. With httpx2's default of 100, calls timed out while waiting."""


@dataclass(frozen=True)
class Provider:
    """How to build the models of a backend type.

    Attributes:
        build: Function of (spec, base_url, key, client) that builds a model.
        modules: Names of the modules that `build` and the first request import.
    """

    build: Callable[[BackendSpec, str | None, str | None, httpx2.AsyncClient], Model]
    modules: tuple[str, ...] = _OPENAI


class FoundKey(NamedTuple):
    """An API key and its source.

    Attributes:
        value: The key, which must never be shown.
        where: Its source, such as "OPENAI_API_KEY is set".
    """

    value: str
    where: str


def http_client(max_silence_s: float | None = None) -> httpx2.AsyncClient:
    """Return an HTTP client with explicit limits and timeouts. The caller must close it.

    Call `load` first to avoid imports here.

    Args:
        max_silence_s: Seconds without data after which a stream is considered lost. Defaults to
            `MAX_SILENCE_S`.

    Raises:
        UserError: A proxy or certificates in the environment can't be used.
    """
    import httpx2

    from nb_agents.models.response_limits import limit

    check_network()
    return httpx2.AsyncClient(
        verify=tls_context(),
        timeout=httpx2.Timeout(
            max_silence_s or MAX_SILENCE_S, connect=CONNECT_TIMEOUT_S, pool=None
        ),
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100),
        follow_redirects=True,
        event_hooks={"response": [limit]},
    )


class SharedClient:
    """Creates a run's HTTP client when it is first needed.

    Args:
        max_silence_s: See `http_client`.
    """

    def __init__(self, max_silence_s: float | None = None) -> None:
        self._max_silence_s = max_silence_s
        self._client: httpx2.AsyncClient | None = None
        # Backends are built in several threads.
        self._lock = threading.Lock()

    def get(self) -> httpx2.AsyncClient:
        """Return the client. The first call creates it."""
        with self._lock:
            if self._client is None:
                self._client = http_client(self._max_silence_s)
            return self._client

    async def aclose(self) -> None:
        """Close the client, if there is one."""
        if self._client is not None:
            await self._client.aclose()


def start_errors(team: TeamSpec) -> Iterator[UserError]:
    """Yield all errors that prevent a team from starting, except those of its settings.

    Yields:
        ConfigError: A backend type is not supported, a restriction can't be enforced, or a model is
            missing. The error includes the position in the file.
        MissingKeyError: The environment variable of an API key is not set.
    """
    if not team.agents:
        yield ConfigError(NO_AGENTS)
        return
    yield from _unsupported_errors(team)
    able = team.without({each.id for each in team.unsupported})
    yield from able.refusals
    if _names_network() and any(agent.backend.type in PROVIDERS for agent in able.everyone):
        yield from error_raised_by(check_network)
    for agent in able.everyone:
        yield from agent_start_errors(team, agent)


def _names_network() -> bool:
    """Return whether the environment configures a proxy or certificates."""
    return any(name.lower().endswith("_proxy") or name.startswith("SSL_") for name in os.environ)


def error_raised_by(check: Callable[..., object], *args: object) -> Iterator[UserError]:
    """Call ``check`` and yield the `UserError` that it raises, if any."""
    try:
        check(*args)
    except UserError as exc:
        yield exc


_SKIP = "To run the other agents, use --skip-unsupported. In Python, pass skip_unsupported=True."


def _unsupported_errors(team: TeamSpec) -> Iterator[ConfigError]:
    """Yield an error for each unsupported backend type, with its agents and the reason."""
    by_type: dict[str, list[str]] = {}
    for each in team.unsupported:
        by_type.setdefault(each.backend.type, []).append(each.id)
    unsupported = {agent for agents in by_type.values() for agent in agents}
    can_skip = any(agent.id not in unsupported for agent in team.agents)
    remedy = _SKIP if can_skip else ""
    for kind, agents in by_type.items():
        names = ", ".join(map(repr, agents))
        who = f"Agent {names} has" if len(agents) == 1 else f"Agents {names} have"
        message = f"{who} backend type {kind!r}, which is not supported. {unsupported_reason(kind)}"
        path = ("agents", agents[0], "backend", "type")
        yield team.fault(message, *path, code="unsupported-type", remedy=remedy)


def agent_start_errors(team: TeamSpec, agent: AgentSpec) -> Iterator[UserError]:
    """Yield all errors that prevent an agent of a supported type from starting.

    Args:
        team: The agent's team, for the position in its file.

    Yields:
        ConfigError: The model or a library is missing, an uploaded file can't be sent, or an
            external agent can't be started.
        MissingKeyError: The variable of its API key, or a variable in its other keys, is not set.
    """
    yield from _missing_libraries(team, agent)
    if BACKEND_TYPES[agent.backend.type].needs_model:
        if not agent.backend.model:
            message, remedy = f"Agent {agent.id!r} has no model.", "Add `model:` to its backend."
            path = ("agents", agent.id, "backend")
            yield team.fault(message, *path, code="no-model", remedy=remedy)
        yield from _address_errors(team, agent)
        yield from _unset_variables(agent)
        for number, upload in enumerate(agent.backend.uploads):
            if upload.fault:
                where = ("agents", agent.id, "backend", "upload_files", number)
                yield team.fault(upload.fault, *where, code="upload")
    check = BACKEND_TYPES[agent.backend.type].start_fault
    if check is not None and (why := check(agent.backend)):
        yield team.fault(f"Agent {agent.id!r}: {why}", "agents", agent.id, "backend")
    yield from error_raised_by(find_key, agent)


def _address_errors(team: TeamSpec, agent: AgentSpec) -> Iterator[UserError]:
    """Yield the error of an agent's `base_url`, if it has one."""
    try:
        url = _base_url(agent)
    except UserError as exc:
        yield exc
        return
    if url and not url.lower().startswith(("http://", "https://")):
        shown = url.rpartition("@")[2]  # without a user name and password
        message = (
            f"Agent {agent.id!r} has base_url {shown!r}. It must begin with http:// or https://."
        )
        yield team.fault(message, "agents", agent.id, "backend", "base_url", code="base-url")


def _missing_libraries(team: TeamSpec, agent: AgentSpec) -> Iterator[ConfigError]:
    """Yield an error for each library that the agent needs and that is not installed."""
    backend, path = agent.backend, ("agents", agent.id, "backend")
    if remedy := missing_extra(BACKEND_TYPES[backend.type].extra):
        message = f"Agent {agent.id!r} has backend type {backend.type!r}, which needs a library."
        yield team.fault(message, *path, "type", code="no-library", remedy=remedy)
    if backend.mcp_servers and (remedy := missing_extra("mcp")):
        message = f"Agent {agent.id!r} has MCP servers, which need a library."
        yield team.fault(message, *path, "mcp_servers", code="no-library", remedy=remedy)


def has_library(kind: str) -> bool:
    """Return whether the SDK of a backend type is installed."""
    row = BACKEND_TYPES.get(kind)
    return row is None or not missing_extra(row.extra)


def _unset_variables(agent: AgentSpec) -> Iterator[MissingKeyError]:
    backend, settings = agent.backend, settings_of(agent.backend)
    sent = {name: str(settings.get(name)) for name in ("extra_body", "extra_headers")}
    for key, value in {"model": backend.model, "api_version": backend.api_version, **sent}.items():
        if name := unset_variable(value or ""):
            yield MissingKeyError(agent.id, name, backend.type, f"a value for `{key}`")


def is_usable(agent: AgentSpec) -> bool:
    """Return whether an agent can start: its type is supported and its API key is set."""
    if unsupported_reason(agent.backend.type):
        return False
    return next(agent_start_errors(TeamSpec(agents=(agent,)), agent), None) is None


def backend_for(agent: AgentSpec, client: Callable[[], httpx2.AsyncClient]) -> Backend:
    """Return the backend of an agent, ready to stream.

    Args:
        client: Returns the HTTP client; called only if the model needs one.
    """
    spec = agent.backend
    if spec.type == "demo":
        return demo_backend(agent.id, spec.words_per_second, spec.context_window)
    if spec.type == "python":
        instance: Backend = spec.instance
        return instance
    http = client()
    model = model_for(agent, find_key(agent).value, http)
    find_window = None
    if spec.type == "ollama":
        find_window = partial(ollama_window, http, _base_url(agent) or "", spec.model)
    all_settings = settings_of(spec)
    settings = without_settings(all_settings, unsupported_settings(model, all_settings))
    return PydanticBackend(
        model,
        spec.model,
        settings,
        spec.native_tools,
        read_uploads(spec.uploads),
        context_window=spec.context_window,
        find_window=find_window,
        batch=spec.batch,
    )


def model_for(agent: AgentSpec, key: str, client: httpx2.AsyncClient) -> Model:
    """Return the model of an agent whose backend type has models, unlike external agents.

    Args:
        key: The API key.
        client: The HTTP client.

    Raises:
        MissingKeyError: A variable in the server's address is not set.
    """
    provider = provider_of(agent.backend.type)
    if provider is None:
        raise ConfigError(f"Type {agent.backend.type!r} has no models.")
    return provider.build(agent.backend, _base_url(agent), key, client)


def load(kinds: Iterable[str] = ()) -> None:
    """Import the modules that every run needs, and those that these backend types need.

    It is fast if the modules are already imported.
    """
    # Only one thread may import; see the top of this file.
    with _loading, garbage_collection_off():
        for name in (*_BASE, *_modules(kinds)):
            importlib.import_module(name)
        extensions()  # reads the metadata of all installed packages
        # Otherwise it is built at its first use, on the loop.
        importlib.import_module("pydantic_ai.messages").ModelMessagesTypeAdapter.rebuild()
        with suppress(UserError):  # the check of a team reports it
            importlib.import_module("nb_agents.models.network").tls_context()


class _Loading(threading.Thread):
    """A thread that calls `load` for these backend types."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__(name="nb_agents imports", daemon=True)
        self._kinds = kinds
        self.modules = frozenset(_modules(kinds))

    def run(self) -> None:
        with suppress(Exception):  # the run that needs it imports again and gets the error
            load(self._kinds)


def load_in_background(kinds: Sequence[str]) -> None:
    """Call `load` for these backend types in a thread."""
    global _background
    _background = _Loading(kinds)
    _background.start()


def load_or_leave(kinds: Collection[str]) -> None:
    """Call `load` for these backend types, unless the background thread is loading them.

    `until_loaded` waits for that thread.
    """
    running = _background if _background is not None and _background.is_alive() else None
    if running is None or not running.modules.issuperset(_modules(kinds)):
        load(kinds)


def wait_until_loaded() -> None:
    """Block until the thread of `load_in_background` ends."""
    if _background is not None:
        _background.join()


async def until_loaded() -> None:
    """Wait until the thread of `load_in_background` ends."""
    if _background is not None and _background.is_alive():
        await to_thread.run_sync(wait_until_loaded, abandon_on_cancel=True)


def _modules(kinds: Iterable[str]) -> Iterator[str]:
    for kind in kinds:
        provider = provider_of(kind)
        if provider is not None and has_library(kind):
            yield from provider.modules


def find_key(agent: AgentSpec) -> FoundKey:
    """Return the API key of an agent of a supported type, from its file or the environment.

    Raises:
        MissingKeyError: A key is needed and not found.
    """
    spec, kind = agent.backend, matching_type(agent.backend)
    if missing := missing_key(spec):
        raise MissingKeyError(agent.id, missing[0], spec.type)
    if spec.api_key is not None and (key := spec.api_key.get_secret_value()):
        return FoundKey(key, "given")
    if spec.is_program and spec.use_my_settings:
        return FoundKey("", "your own settings")
    for variable in kind.variables:
        if key := os.environ.get(variable, ""):
            return FoundKey(key, f"{variable} is set")
    # The SDKs require a non-empty key.
    return FoundKey("no-key-needed", "none needed")


def _base_url(agent: AgentSpec) -> str | None:
    spec = agent.backend
    url = spec.base_url or BACKEND_TYPES[spec.type].base_url
    if spec.type == "azure_openai":
        url = url or os.environ.get("AZURE_OPENAI_ENDPOINT")
        if not url:
            raise MissingKeyError(agent.id, "AZURE_OPENAI_ENDPOINT", spec.type, "an address")
    if url and (name := unset_variable(url)):
        raise MissingKeyError(agent.id, name, spec.type, "an address")
    return url


def _openai(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key=key, http_client=client)
    patch_client(provider.client)
    if spec.wire_format == "openai responses":
        return OpenAIResponsesModel(spec.model, provider=provider)
    is_openai = url is not None and BACKEND_TYPES["openai"].lives_at(url)
    profile = partial(_profile, is_openai)
    return with_sorted_calls(OpenAIChatModel)(spec.model, provider=provider, profile=profile)


def _profile(is_openai: bool, default: ModelProfile) -> ModelProfile:
    """Return a profile that sends the token limit under the name that the server knows.

    OpenAI's reasoning models reject `max_tokens`, even behind a proxy. Other servers may silently
    ignore `max_completion_tokens`, so that the reply has no limit.

    Source: https://github.com/ggml-org/llama.cpp/issues/13700 and
    https://github.com/abetlen/llama-cpp-python/issues/1907.

    Args:
        is_openai: Whether the server is OpenAI's.
        default: pydantic-ai's profile for the model's name.
    """
    from pydantic_ai.profiles import merge_profile
    from pydantic_ai.profiles.openai import OpenAIModelProfile

    uses_new_name = is_openai or default.get("supports_thinking", False)
    return merge_profile(
        default, OpenAIModelProfile(openai_chat_supports_max_completion_tokens=uses_new_name)
    )


def _azure(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.azure import AzureProvider

    provider = AzureProvider(
        azure_endpoint=url or "",
        api_version=spec.api_version or os.environ.get("OPENAI_API_VERSION") or "2024-10-21",
        api_key=key or "",
        http_client=client,
    )
    patch_client(provider.client)
    return with_sorted_calls(OpenAIChatModel)(spec.model, provider=provider)


def _openrouter(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.openrouter import OpenRouterModel
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    if spec.base_url:
        return _openai(spec, url, key, client)
    provider = OpenRouterProvider(api_key=key or "", http_client=client)
    patch_client(provider.client)
    return with_sorted_calls(OpenRouterModel)(spec.model, provider=provider)


def _claude(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key=key, base_url=url, http_client=client)
    return AnthropicModel(spec.model, provider=provider)


def _gemini(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from google.genai import Client
    from google.genai.types import HttpOptions
    from pydantic_ai.models import get_user_agent
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    # By default it creates two TLS contexts that are never used, which takes 60 ms per model.
    tls = tls_context()
    options = HttpOptions(
        base_url=url,
        headers={"user-agent": get_user_agent()},
        timeout=int((client.timeout.read or MAX_SILENCE_S) * 1000),
        httpx_async_client=client,
        client_args={"verify": tls},
        async_client_args={"verify": tls, "ssl": tls},
    )
    google = Client(vertexai=False, api_key=key or "", http_options=options)
    return GoogleModel(spec.model, provider=GoogleProvider(client=google))


_SDKS = {
    "claude": Provider(_claude, ("pydantic_ai.models.anthropic",)),
    "gemini": Provider(_gemini, ("pydantic_ai.models.google",)),
    "openrouter": Provider(_openrouter),
    "azure_openai": Provider(_azure),
}

PROVIDERS: dict[str, Provider] = {
    kind: _SDKS.get(kind, Provider(_openai))
    for kind, row in BACKEND_TYPES.core.items()
    if row.needs_model
}
"""The core's backend types with an HTTP API. Most use OpenAI's protocol."""


def provider_of(kind: str) -> Provider | None:
    """Return the provider of a backend type. None if the type has no models or is unknown.

    Models of a type that an extension adds are called through OpenAI's API.
    """
    if kind in PROVIDERS:
        return PROVIDERS[kind]
    row = BACKEND_TYPES.get(kind)
    return Provider(_openai) if row is not None and row.needs_model else None
