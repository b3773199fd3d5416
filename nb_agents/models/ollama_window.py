"""Asks an Ollama server for the context window with which it runs a model.

Ollama drops the beginning of a longer conversation without an error, and its OpenAI-compatible API
takes no window. `/api/ps` reports the window of a loaded model. `/api/show` reports the one from
the model's file, which applies when the model is loaded.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 5.0

_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.M)


async def ollama_window(client: httpx2.AsyncClient, base_url: str, model: str) -> int:
    """Return a model's context window in tokens, or 0 if the server does not report it.

    Args:
        client: The HTTP client.
        base_url: The address of the OpenAI-compatible API, which ends with ``/v1``.
        model: The model's name.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    with anyio.move_on_after(TIMEOUT_S):
        running = await _json(client, "GET", f"{root}/api/ps")
        if window := _running_window(running, model):
            return window
        model_info = await _json(client, "POST", f"{root}/api/show", {"model": model})
        parameters = model_info.get("parameters")
        match = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
        return int(match[1]) if match else 0
    return 0


def _running_window(running: dict[str, Any], model: str) -> int:
    names = {model, f"{model}:latest"}
    models = running.get("models")
    for each in models if isinstance(models, list) else ():
        if isinstance(each, dict) and not names.isdisjoint((each.get("name"), each.get("model"))):
            window = each.get("context_length")
            return window if isinstance(window, int) and window > 0 else 0
    return 0


async def _json(
    client: httpx2.AsyncClient, method: str, url: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON object that a server sends, or {} if it sends none."""
    import httpx2

    try:
        response = await client.request(method, url, json=body)
        value = response.json() if response.status_code == 200 else {}
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
