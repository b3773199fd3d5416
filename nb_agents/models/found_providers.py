"""Which providers can be used here: those with a key, and servers that answer on this machine.

No provider elsewhere is asked for anything: the names of its models are those that pydantic-ai
knows.
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
from nb_agents.config.programs import PROGRAM_TYPES

LOCAL = ("ollama", "lmstudio", "vllm", "sglang")
"""Types whose servers are on this machine, by their usual ports."""
ASK_S = 1.0
"""Limit of a question to such a server, seconds."""
MAX_MODELS = 100
"""Names of models of one provider."""
MAX_REPLY = 1_000_000
"""Limit of the reply, bytes."""

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
"""What pydantic-ai calls a type, in its names of models."""


class FoundProvider(NamedTuple):
    """A provider that can be used here.

    Attributes:
        type: The backend type.
        where: What was found: the variable of its key, or its address.
        models: Names of its models, as far as they are known; the first one for a first team.
    """

    type: str
    where: str
    models: tuple[str, ...]


def found_providers() -> list[FoundProvider]:
    """Return the providers that can be used here, blocking for at most a second."""
    with ThreadPoolExecutor(len(LOCAL), thread_name_prefix="nb_agents-ask") as pool:
        asked = [pool.submit(_asked, kind) for kind in LOCAL]
        with_key = [*_with_key()]
        return [*with_key, *(found for each in asked if (found := each.result()))]


def _with_key() -> Iterator[FoundProvider]:
    known: Mapping[str, tuple[str, ...]] | None = None
    for kind, row in BACKEND_TYPES.items():
        variable = next((name for name in row.variables if os.environ.get(name)), "")
        if variable and kind not in PROGRAM_TYPES and kind != "chatcompletion":
            known = _known_models() if known is None else known
            first = (FIRST_MODELS[kind],) if kind in FIRST_MODELS else ()
            names = dict.fromkeys((*first, *known.get(kind, ())))
            yield FoundProvider(kind, f"{variable} is set", tuple(names))


def _known_models() -> Mapping[str, tuple[str, ...]]:
    from pydantic_ai import models  # which loads much

    names = [each.partition(":") for each in get_args(models.KnownModelName.__value__)]
    return {
        kind: tuple(name for prefix, _, name in names if prefix == ours and "image" not in name)
        for kind, ours in _PREFIXES.items()
    }


def _asked(kind: str) -> FoundProvider | None:
    """Ask the server of a type for its models; None where there is none."""
    import httpx2

    url = BACKEND_TYPES[kind].base_url or ""
    reply = b""
    with (
        suppress(httpx2.HTTPError),
        # Not by a proxy: it is this machine.
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
    listed: Any = []
    with suppress(ValueError, LookupError, TypeError):
        listed = json.loads(reply)["data"]
    items = listed if isinstance(listed, list) else []
    found = [each.get("id") for each in items if isinstance(each, dict)]
    return tuple(name[:200] for name in found if isinstance(name, str) and name)[:MAX_MODELS]
