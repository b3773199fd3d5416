"""From a backend of a team file to a model: one row per MassGen backend type.

Providers are imported when they are first needed (0.9-2 s cold), by `load`, in the thread that
starts a run: pydantic-ai's modules import each other in circles, and when two threads do that at
once one of them is given a half-made module. A notebook's cells and their imports are on the main
thread; so is the warming after ``%load_ext``, between cells.
"""

from __future__ import annotations

import difflib
import importlib
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nb_agents.config.document import unset_variable
from nb_agents.config.team import AgentSpec, BackendSpec, TeamSpec
from nb_agents.errors import ConfigError, MissingKeyError
from nb_agents.models.backend import Backend, PydanticBackend

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model

__all__ = ["PROVIDERS", "backend_for", "check_team", "http_client", "load"]

_BASE = ("pydantic_ai.direct", "pydantic_ai.models.function", "httpx2")
_loading = threading.Lock()

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 300.0
"""Silence after which a stream counts as dead; reasoning models may think for minutes."""
MAX_CONNECTIONS = 1000
"""Above any team's size: a bare client's 100 made calls fail while they waited for a slot."""


@dataclass(frozen=True)
class Provider:
    """How to reach a backend type.

    Attributes:
        build: Makes the model from (spec, base_url, key, client).
        base_url: Where it lives, or None when its SDK knows.
        variables: Environment variables that may hold the key, best first; none for local servers.
        module: What `build` imports, by name.
    """

    build: Callable[[BackendSpec, str | None, str | None, httpx2.AsyncClient], Model]
    base_url: str | None = None
    variables: tuple[str, ...] = ()
    module: str = "pydantic_ai.models.openai"


def http_client() -> httpx2.AsyncClient:
    """Make the one HTTP client of a run, with explicit limits and timeouts; the run closes it."""
    import httpx2

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None),
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100),
        follow_redirects=True,
    )


def check_team(team: TeamSpec) -> None:
    """Refuse a team that can't start, before anything does.

    Args:
        team: The team.

    Raises:
        ConfigError: A backend type that nobody knows, or a model that is not named.
        MissingKeyError: A key that is not set, named by its variable.
    """
    for agent in team.agents:
        kind = agent.backend.type
        if kind in ("demo", "python"):
            continue
        if kind not in PROVIDERS:
            near = difflib.get_close_matches(kind, [*PROVIDERS, "demo"], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(sorted([*PROVIDERS, "demo"]))
            raise ConfigError(
                f"Agent {agent.id!r} has backend type {kind!r}, which is not supported.{hint} "
                f"Supported: {known}."
            )
        if not agent.backend.model:
            raise ConfigError(f"Agent {agent.id!r} names no model; add `model:` to its backend.")
        _key(agent)
        _base_url(agent)


def backend_for(agent: AgentSpec, client: httpx2.AsyncClient) -> Backend:
    """Make the backend of an agent.

    Args:
        agent: The agent.
        client: The run's HTTP client.

    Returns:
        A backend ready to stream.
    """
    spec = agent.backend
    if spec.type == "demo":
        from nb_agents.models.demo import demo_backend

        return demo_backend(spec.words_per_second)
    if spec.type == "python":
        instance: Backend = spec.instance
        return instance
    model = PROVIDERS[spec.type].build(spec, _base_url(agent), _key(agent), client)
    settings = {
        name: value
        for name in ("temperature", "max_tokens", "top_p")
        if (value := getattr(spec, name)) is not None
    }
    return PydanticBackend(model, spec.model, settings)


def load(kinds: Iterable[str] = ()) -> None:
    """Import what runs of these backend types need; quick when it was done before.

    Args:
        kinds: Backend types; what every run needs is imported in any case.
    """
    # Separates threads that start runs; see the top of this file.
    with _loading:
        for name in _BASE:
            importlib.import_module(name)
        for kind in kinds:
            if kind in PROVIDERS:
                importlib.import_module(PROVIDERS[kind].module)


def _key(agent: AgentSpec) -> str | None:
    spec, provider = agent.backend, PROVIDERS[agent.backend.type]
    if spec.api_key is not None:
        key = spec.api_key.get_secret_value()
        if name := unset_variable(key):
            raise MissingKeyError(agent.id, name, spec.type)
        if key:
            return key
    for variable in provider.variables:
        if key := os.environ.get(variable, ""):
            return key
    # A server of one's own often wants no key; the SDKs want some text all the same.
    if provider.variables and not spec.base_url:
        raise MissingKeyError(agent.id, provider.variables[0], spec.type)
    return "no-key-needed"


def _base_url(agent: AgentSpec) -> str | None:
    spec = agent.backend
    url = spec.base_url or PROVIDERS[spec.type].base_url
    if spec.type == "azure_openai":
        url = url or os.environ.get("AZURE_OPENAI_ENDPOINT")
        if not url:
            raise MissingKeyError(agent.id, "AZURE_OPENAI_ENDPOINT", spec.type)
    if url and (name := unset_variable(url)):
        raise MissingKeyError(agent.id, name, spec.type)
    return url


def _openai(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key=key, http_client=client)
    return OpenAIChatModel(spec.model, provider=provider)


def _azure(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.azure import AzureProvider

    provider = AzureProvider(
        azure_endpoint=url or "",
        api_version=spec.api_version or os.environ.get("OPENAI_API_VERSION") or "2024-10-21",
        api_key=key or "",
        http_client=client,
    )
    return OpenAIChatModel(spec.model, provider=provider)


def _openrouter(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.openrouter import OpenRouterModel
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    if spec.base_url:
        return _openai(spec, url, key, client)
    return OpenRouterModel(
        spec.model, provider=OpenRouterProvider(api_key=key or "", http_client=client)
    )


def _claude(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(api_key=key, base_url=url, http_client=client)
    return AnthropicModel(spec.model, provider=provider)


def _gemini(spec: BackendSpec, url: str | None, key: str | None, client: Any) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key=key or "", base_url=url, http_client=client)
    return GoogleModel(spec.model, provider=provider)


PROVIDERS: dict[str, Provider] = {
    "openai": Provider(_openai, "https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "chatcompletion": Provider(_openai, "https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "claude": Provider(_claude, None, ("ANTHROPIC_API_KEY",), "pydantic_ai.models.anthropic"),
    "gemini": Provider(
        _gemini, None, ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "pydantic_ai.models.google"
    ),
    "grok": Provider(_openai, "https://api.x.ai/v1", ("XAI_API_KEY",)),
    "openrouter": Provider(_openrouter, "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "azure_openai": Provider(_azure, None, ("AZURE_OPENAI_API_KEY",)),
    "lmstudio": Provider(_openai, "http://localhost:1234/v1"),
    "vllm": Provider(_openai, "http://localhost:8000/v1"),
    "sglang": Provider(_openai, "http://localhost:30000/v1"),
    "ollama": Provider(_openai, "http://localhost:11434/v1"),
}
"""Backend types of a MassGen team file that work here (and "demo")."""
