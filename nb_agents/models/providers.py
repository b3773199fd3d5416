"""Makes the model of an agent's backend, and finds the reasons for which a team can't start.

Providers are imported when they are first needed (0.9-2 s cold), by `load`, in the thread that
starts a run: pydantic-ai's modules import each other in circles, and when two threads do that at
once one of them is given a half-made module. So while `load_in_background` is at it after
``%load_ext``, no cell runs but those of our own magics, which import none of them.
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
    missing_key,
    type_at,
    why_unsupported,
)
from nb_agents.config.document import unset_variable
from nb_agents.config.programs import why_not_startable
from nb_agents.config.report import Unsupported
from nb_agents.config.team import NO_AGENTS, AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, MissingKeyError, UserError
from nb_agents.imports import no_collection
from nb_agents.models.backend import Backend, PydanticBackend, read_uploads
from nb_agents.models.openai_client import lighten
from nb_agents.models.settings import settings_of, untaken, without
from nb_agents.models.streamed_calls import sorting_calls

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model
    from pydantic_ai.profiles import ModelProfile

_BASE = (
    "pydantic_ai",  # first, as in `message_json`
    "pydantic_ai.direct",
    "pydantic_ai.models.function",
    "genai_prices.data",  # which each model asks for when it is made
    "nb_agents.models.network",
    "nb_agents.models.response_limits",
)
_OPENAI = (
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.openai",
    "openai.resources.chat.chat",  # which the client asks for at its first request
)
_loading = threading.Lock()
_background: _Loading | None = None

CONNECT_TIMEOUT_S = 10.0
MAX_SILENCE_S = 300.0
"""Silence after which a stream counts as lost; reasoning models may think for minutes."""
MAX_CONNECTIONS = 1000
"""Above any team's size: a bare client's 100 made calls fail while they waited for a slot."""


@dataclass(frozen=True)
class Provider:
    """How to make a backend type's models.

    Attributes:
        build: Makes the model from (spec, base_url, key, client).
        modules: What `build` and a first request import, by name.
    """

    build: Callable[[BackendSpec, str | None, str | None, httpx2.AsyncClient], Model]
    modules: tuple[str, ...] = _OPENAI


class FoundKey(NamedTuple):
    """A key, and where it was found, in words: its variable, the file, or that none is needed.

    The value must never be shown.
    """

    value: str
    where: str


def http_client(max_silence_s: float | None = None) -> httpx2.AsyncClient:
    """Return an HTTP client with explicit limits and timeouts, which the caller closes.

    Quick where `load` was called before.

    Args:
        max_silence_s: Silence after which a stream counts as lost; by default `MAX_SILENCE_S`.

    Raises:
        UserError: What the environment says of proxies and certificates can't be used.
    """
    import httpx2

    from nb_agents.models.network import refuse_network, tls_context
    from nb_agents.models.response_limits import limit

    refuse_network()
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
    """A run's HTTP client, which is created when the first of its models needs it.

    Args:
        max_silence_s: As for `http_client`.
    """

    def __init__(self, max_silence_s: float | None = None) -> None:
        self._max_silence_s = max_silence_s
        self._client: httpx2.AsyncClient | None = None
        # Separates the threads in which backends are made.
        self._lock = threading.Lock()

    def get(self) -> httpx2.AsyncClient:
        """Return the client."""
        with self._lock:
            if self._client is None:
                self._client = http_client(self._max_silence_s)
            return self._client

    async def aclose(self) -> None:
        """Close the client, if there is one."""
        if self._client is not None:
            await self._client.aclose()


def check_team(team: TeamSpec) -> None:
    """Raise if a team can't start.

    Args:
        team: The team.

    Raises:
        ConfigError: Agents whose backend type can't run here, each by name; a key that restricts
            and can't be enforced; an agent whose model is not named; with the place in the file.
        MissingKeyError: A key that is not set, named by its variable.
    """
    for refusal in refusals(team):
        raise refusal


def refusals(team: TeamSpec) -> Iterator[UserError]:
    """Yield every reason for which a team can't start.

    Args:
        team: The team.
    """
    if unsupported := [*raised_by(_check_agents, team)]:
        yield from unsupported
        return
    yield from team.refusals
    if _names_network() and any(agent.backend.type in PROVIDERS for agent in team.everyone):
        from nb_agents.models.network import refuse_network  # takes a tenth of a second

        yield from raised_by(refuse_network)
    for agent in team.everyone:
        yield from why_refused(team, agent)


def _names_network() -> bool:
    """Return whether the environment names a proxy or certificates, which may be wrong."""
    return any(name.lower().endswith("_proxy") or name.startswith("SSL_") for name in os.environ)


def raised_by(check: Callable[..., object], *about: object) -> Iterator[UserError]:
    """Yield the error that a check raises, if any."""
    try:
        check(*about)
    except UserError as exc:
        yield exc


def _check_agents(team: TeamSpec) -> None:
    if not team.agents:
        raise ConfigError(NO_AGENTS)
    if unsupported := team.unsupported:
        said = [*_unsupported(unsupported)]
        gone = {each.agent for each in unsupported}
        if any(agent.id not in gone for agent in team.agents):
            said.append("--skip-unsupported (from Python: skip_unsupported=True) runs the others.")
        raise team.fault(" ".join(said), "agents", unsupported[0].agent, "backend", "type")


def _unsupported(gone: Iterable[Unsupported]) -> Iterator[str]:
    """Yield for each backend type that is not supported who has it, and why it is not."""
    alike: dict[tuple[str, str], list[str]] = {}
    for each in gone:
        alike.setdefault((each.type, each.why), []).append(repr(each.agent))
    for (kind, why), agents in alike.items():
        who = f"Agent {agents[0]} has" if len(agents) == 1 else f"Agents {', '.join(agents)} have"
        yield f"{who} backend type {kind!r}, which is not supported. {why}"


def why_refused(team: TeamSpec, agent: AgentSpec) -> Iterator[UserError]:
    """Yield every reason for which an agent of a supported type can't start.

    Args:
        team: Its team.
        agent: The agent.

    Yields:
        ConfigError: Its model is not named, a file that it is to be shown can't be sent, or its
            program can't be started.
        MissingKeyError: Its key is not set, or a variable in its address or in what it sends.
    """
    if BACKEND_TYPES[agent.backend.type].needs_model:
        if not agent.backend.model:
            what = f"Agent {agent.id!r} names no model; add `model:` to its backend."
            yield team.fault(what, "agents", agent.id, "backend")
        yield from raised_by(_base_url, agent)
        yield from _unset_variables(agent)
        for number, upload in enumerate(agent.backend.uploads):
            if upload.fault:
                at = ("agents", agent.id, "backend", "upload_files", number)
                yield team.fault(upload.fault, *at)
    if agent.backend.is_program and (why := why_not_startable(agent.backend.type, agent.backend)):
        yield team.fault(f"Agent {agent.id!r}: {why}", "agents", agent.id, "backend")
    yield from raised_by(find_key, agent)


def _unset_variables(agent: AgentSpec) -> Iterator[MissingKeyError]:
    backend, settings = agent.backend, settings_of(agent.backend)
    sent = {name: str(settings.get(name)) for name in ("extra_body", "extra_headers")}
    for key, value in {"model": backend.model, "api_version": backend.api_version, **sent}.items():
        if name := unset_variable(value or ""):
            yield MissingKeyError(agent.id, name, backend.type, f"a value for `{key}`")


def is_usable(agent: AgentSpec) -> bool:
    """Return whether an agent's model can be called: its type runs here, and its key is set."""
    if why_unsupported(agent.backend.type):
        return False
    return next(why_refused(TeamSpec(agents=(agent,)), agent), None) is None


def backend_for(agent: AgentSpec, client: Callable[[], httpx2.AsyncClient]) -> Backend:
    """Return the backend of an agent.

    Args:
        agent: The agent.
        client: Returns the HTTP client; called for a model that needs one.

    Returns:
        A backend ready to stream.
    """
    spec = agent.backend
    if spec.type == "demo":
        from nb_agents.models.demo import demo_backend

        return demo_backend(agent.id, spec.words_per_second)
    if spec.type == "python":
        instance: Backend = spec.instance
        return instance
    model = model_for(agent, find_key(agent).value, client())
    given = settings_of(spec)
    settings = without(given, untaken(model, given))
    return PydanticBackend(
        model, spec.model, settings, spec.native_tools, read_uploads(spec.uploads)
    )


def model_for(agent: AgentSpec, key: str, client: httpx2.AsyncClient) -> Model:
    """Return the model of an agent whose type has models.

    Args:
        agent: The agent.
        key: Its provider's key.
        client: The HTTP client.

    Raises:
        MissingKeyError: A variable in its address is not set.
    """
    return PROVIDERS[agent.backend.type].build(agent.backend, _base_url(agent), key, client)


def load(kinds: Iterable[str] = ()) -> None:
    """Import the modules that runs of these backend types need; fast when done before.

    Args:
        kinds: Backend types; what every run needs is imported in any case.
    """
    # Separates threads that start runs; see the top of this file.
    with _loading, no_collection():
        for name in (*_BASE, *_modules(kinds)):
            importlib.import_module(name)
        # Otherwise built at its first use, on the loop.
        importlib.import_module("pydantic_ai.messages").ModelMessagesTypeAdapter.rebuild()
        with suppress(UserError):  # the check of a team that needs it reports it
            importlib.import_module("nb_agents.models.network").tls_context()


class _Loading(threading.Thread):
    """Imports what runs of these backend types need."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__(name="nb_agents imports", daemon=True)
        self._kinds = kinds
        self.modules = frozenset(_modules(kinds))

    def run(self) -> None:
        with suppress(Exception):  # whoever needs it tries again, and gets the error
            load(self._kinds)


def load_in_background(kinds: Sequence[str]) -> None:
    """Start `load` in a thread.

    Args:
        kinds: Backend types.
    """
    global _background
    _background = _Loading(kinds)
    _background.start()


def load_or_leave(kinds: Collection[str]) -> None:
    """Import what a run needs, unless a thread is doing so; see `until_loaded`.

    Args:
        kinds: The backend types of the run.
    """
    running = _background if _background is not None and _background.is_alive() else None
    if running is None or not running.modules.issuperset(_modules(kinds)):
        load(kinds)


def wait_until_loaded() -> None:
    """Wait until `load_in_background` is done."""
    if _background is not None:
        _background.join()


async def until_loaded() -> None:
    """Wait until `load_in_background` is done."""
    if _background is not None and _background.is_alive():
        await to_thread.run_sync(wait_until_loaded, abandon_on_cancel=True)


def _modules(kinds: Iterable[str]) -> Iterator[str]:
    for kind in kinds:
        if kind in PROVIDERS:
            yield from PROVIDERS[kind].modules


def find_key(agent: AgentSpec) -> FoundKey:
    """Find the key of an agent of a supported type: its own, else the environment's.

    Raises:
        MissingKeyError: There is none, and one is needed.
    """
    spec, needs = agent.backend, type_at(agent.backend)
    if missing := missing_key(spec):
        raise MissingKeyError(agent.id, missing[0], spec.type)
    if spec.api_key is not None and (key := spec.api_key.get_secret_value()):
        return FoundKey(key, "given")
    if spec.is_program and spec.use_my_settings:
        return FoundKey("", "your own settings")
    for variable in needs.variables:
        if key := os.environ.get(variable, ""):
            return FoundKey(key, f"{variable} is set")
    # The SDKs want some text all the same.
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
    lighten(provider.client)
    if spec.wire_format == "openai responses":
        return OpenAIResponsesModel(spec.model, provider=provider)
    is_openai = url is not None and BACKEND_TYPES["openai"].lives_at(url)
    profile = partial(_profile, is_openai)
    return sorting_calls(OpenAIChatModel)(spec.model, provider=provider, profile=profile)


def _profile(is_openai: bool, default: ModelProfile) -> ModelProfile:
    """Return a profile by which `max_tokens` is sent under the name that the server knows.

    OpenAI's reasoning models refuse it, also behind a proxy. Elsewhere `max_completion_tokens` may
    be ignored without a word, and the reply has no end.

    Source: https://github.com/ggml-org/llama.cpp/issues/13700 and
    https://github.com/abetlen/llama-cpp-python/issues/1907; the default is pydantic-ai's by the
    model's name.
    """
    from pydantic_ai.profiles import merge_profile
    from pydantic_ai.profiles.openai import OpenAIModelProfile

    by_new_name = is_openai or default.get("supports_thinking", False)
    return merge_profile(
        default, OpenAIModelProfile(openai_chat_supports_max_completion_tokens=by_new_name)
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
    lighten(provider.client)
    return sorting_calls(OpenAIChatModel)(spec.model, provider=provider)


def _openrouter(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.openrouter import OpenRouterModel
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    if spec.base_url:
        return _openai(spec, url, key, client)
    provider = OpenRouterProvider(api_key=key or "", http_client=client)
    lighten(provider.client)
    return sorting_calls(OpenRouterModel)(spec.model, provider=provider)


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

    from nb_agents.models.network import tls_context

    # Left to itself it makes two TLS contexts for connections that are never opened: 60 ms a model.
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
    for kind, row in BACKEND_TYPES.items()
    if row.needs_model
}
"""Backend types whose models are behind an HTTP API; most speak OpenAI's protocol."""
