"""Finds usable providers: those with an API key, and model servers on this machine.

Values of API keys are never returned, only the names of their variables.

Only local servers are contacted. For other providers, the model names known to pydantic-ai are
listed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, get_args

from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.new_team import FIRST_MODELS

LOCAL = ("ollama", "lmstudio", "vllm", "sglang")
"""Backend types whose servers run locally on a default port."""
_AT_ANY_ADDRESS = ("chatcompletion", "azure_openai")
"""Backend types with a key whose server's address is in the team file."""
ASK_S = 1.0
"""Time limit of a request to a local server, in seconds."""
MAX_MODELS = 100
"""Maximum number of model names per provider."""
MAX_REPLY = 1_000_000
"""Maximum size of a local server's reply, in bytes."""

_PREFIXES = {
    "openai": "openai",
    "claude": "anthropic",
    "gemini": "google",
    "grok": "xai",
    "zai": "zai",
    "cerebras": "cerebras",
    "groq": "groq",
    "moonshot": "moonshotai",
}
"""The prefix of pydantic-ai's model names for each backend type."""


class FoundProvider(NamedTuple):
    """A provider that can be used.

    Attributes:
        type: The backend type.
        where: Why it can be used: "VARIABLE is set" or "answers at URL".
        models: Names of known models. The first one is suggested for a new team.
    """

    type: str
    where: str
    models: tuple[str, ...]


class OfferedType(NamedTuple):
    """A backend type that a new team can use, even if its key is missing.

    Attributes:
        type: The backend type.
        variables: Environment variables that can contain the API key. Empty if no key is needed.
        found: The variable that is set, or "".
        base_url: The default address of a local server, or "".
        takes_address: Whether the form asks for the server's address.
    """

    type: str
    variables: tuple[str, ...]
    found: str
    base_url: str
    takes_address: bool


def offered_types() -> list[OfferedType]:
    """Return the backend types for the form of a new team, without contacting a server."""
    return [
        OfferedType(
            kind,
            row.variables,
            next((name for name in row.variables if os.environ.get(name)), ""),
            "" if row.variables else row.base_url or "",
            not row.variables or kind in _AT_ANY_ADDRESS,
        )
        for kind, row in BACKEND_TYPES.all().items()
        if row.needs_model and not row.is_external
    ]


def found_providers() -> list[FoundProvider]:
    """Return the providers that can be used. Blocks for at most about a second."""
    with ThreadPoolExecutor(len(LOCAL), thread_name_prefix="nb_agents-ask") as pool:
        requests = [pool.submit(_local_provider, kind) for kind in LOCAL]
        with_key = [*_with_key()]
        return [*with_key, *(provider for each in requests if (provider := each.result()))]


def _with_key() -> Iterator[FoundProvider]:
    known_models: Mapping[str, tuple[str, ...]] | None = None
    for kind, row in BACKEND_TYPES.all().items():
        variable = next((name for name in row.variables if os.environ.get(name)), "")
        if variable and not row.is_external and kind != "chatcompletion":
            known_models = _known_models() if known_models is None else known_models
            first = (FIRST_MODELS[kind],) if kind in FIRST_MODELS else ()
            names = dict.fromkeys((*first, *known_models.get(kind, ())))
            yield FoundProvider(kind, f"{variable} is set", tuple(names))


def _known_models() -> Mapping[str, tuple[str, ...]]:
    from pydantic_ai import models  # a slow import

    names = [each.partition(":") for each in get_args(models.KnownModelName.__value__)]
    return {
        kind: tuple(name for prefix, _, name in names if prefix == provider and "image" not in name)
        for kind, provider in _PREFIXES.items()
    }


def _local_provider(kind: str) -> FoundProvider | None:
    """Request the model names of a local server. Returns None if it does not answer."""
    import httpx2

    url = BACKEND_TYPES[kind].base_url or ""
    reply = b""
    with (
        suppress(httpx2.HTTPError),
        # No proxy, because the server is on this machine.
        httpx2.Client(timeout=ASK_S, trust_env=False, verify=False) as client,
        client.stream("GET", f"{url}/models") as response,
    ):
        for part in response.iter_bytes():
            reply += part
            if len(reply) > MAX_REPLY:
                return None
    names = _names(reply)
    return FoundProvider(kind, f"answers at {url}", names) if names else None


def _names(reply: bytes) -> tuple[str, ...]:
    models: Any = []
    with suppress(ValueError, LookupError, TypeError):
        models = json.loads(reply)["data"]
    items = models if isinstance(models, list) else []
    names = [each.get("id") for each in items if isinstance(each, dict)]
    return tuple(name[:200] for name in names if isinstance(name, str) and name)[:MAX_MODELS]
