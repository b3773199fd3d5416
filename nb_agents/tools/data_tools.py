"""The tools through which agents use the data store, one for each operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyio import to_thread
from pydantic import JsonValue

from nb_agents.errors import UserError
from nb_agents.json_text import json_text
from nb_agents.masking import Mask
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, current_call, declare
from nb_agents.tools.data_store import DEFAULT_NAMESPACE, DataStore


class AgentStore:
    """The data store tools of one agent. Their operations run in worker threads.

    Args:
        store: The store, which records the agent's id.
        mask: Detects secrets, which can't be stored.
    """

    def __init__(self, store: DataStore, mask: Mask) -> None:
        self._store = store
        self._mask = mask

    def tools(self) -> list[Tool]:
        """Return a tool for each operation."""
        return [Tool(getattr(self, name), is_repeatable=True) for name in DATA_TOOLS]

    async def data_get(self, key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Get a value from the data store that all agents of this session share."""
        values = await self._do(namespace, "get_many", [key])
        return _as_json(values[key]) if key in values else _missing(key, namespace)

    async def data_set(self, key: str, value: JsonValue, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Set a value in the data store that all agents of this session share.

        An existing value is replaced. A new namespace is created automatically.
        """
        self._refuse_secrets({key: value})
        await self._do(namespace, "set", key, value)
        return f"Set {key!r}."

    async def data_delete(self, key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Delete a key from the data store."""
        was_there = await self._do(namespace, "delete", key)
        is_gone = was_there or current_call().is_repeated
        return f"Deleted {key!r}." if is_gone else _missing(key, namespace)

    async def data_list_keys(self, prefix: str = "", namespace: str = DEFAULT_NAMESPACE) -> str:
        """List the keys in a namespace of the data store that begin with a prefix."""
        return _as_json(await self._do(namespace, "list_keys", prefix))

    async def data_list_namespaces(self) -> str:
        """List the namespaces of the data store that contain keys."""
        return _as_json(await self._do(DEFAULT_NAMESPACE, "list_namespaces"))

    async def data_get_all(self, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Get all keys and values in a namespace of the data store."""
        return _as_json(await self._do(namespace, "get_all"))

    async def data_get_many(self, keys: list[str], namespace: str = DEFAULT_NAMESPACE) -> str:
        """Get several values from the data store. Missing keys are left out."""
        return _as_json(await self._do(namespace, "get_many", keys))

    async def data_set_many(
        self, items: dict[str, JsonValue], namespace: str = DEFAULT_NAMESPACE
    ) -> str:
        """Set several values in the data store, given by key. Either all are set or none."""
        self._refuse_secrets(items)
        return f"Set {await self._do(namespace, 'set_many', items)} keys."

    async def data_delete_many(self, keys: list[str], namespace: str = DEFAULT_NAMESPACE) -> str:
        """Delete several keys from the data store, all or none. Missing keys are not an error."""
        return f"Deleted {await self._do(namespace, 'delete_many', keys)} keys."

    async def data_clear(self, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Delete all keys in one namespace of the data store."""
        return f"Deleted {await self._do(namespace, 'clear')} keys."

    async def _do(self, namespace: str, operation: str, *arguments: Any) -> Any:
        # The thread is not abandoned, because nothing may be written after a stop. It finishes
        # soon.
        try:
            store = self._store.use_namespace(namespace)
            return await to_thread.run_sync(getattr(store, operation), *arguments)
        except UserError as exc:
            raise ToolError(str(exc)) from exc

    def _refuse_secrets(self, items: Mapping[str, JsonValue]) -> None:
        if self._mask.value(items) != items:
            raise ToolError(
                "the value contains an API key or another secret. Secrets can't be stored"
            )


DATA_TOOLS = declare(*(BuiltInTool(name) for name in vars(AgentStore) if name.startswith("data_")))


def _missing(key: str, namespace: str) -> str:
    return f"(no key {key!r} in namespace {namespace!r})"


def _as_json(value: JsonValue) -> str:
    return json_text(value)
