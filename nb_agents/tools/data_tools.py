"""The data store as an agent calls it: each operation a tool that speaks JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from anyio import to_thread
from pydantic import JsonValue

from nb_agents.errors import UserError
from nb_agents.masking import Mask
from nb_agents.tools.base import Tool, ToolError, current_call
from nb_agents.tools.data_store import DEFAULT_NAMESPACE, DataStore

__all__ = ["AgentStore"]

T = TypeVar("T")


class AgentStore:
    """The operations as one agent calls them, in worker threads.

    Args:
        store: The store as the agent uses it.
        mask: Knows the secrets, which are never kept.
    """

    def __init__(self, store: DataStore, mask: Mask) -> None:
        self._store = store
        self._mask = mask

    def tools(self) -> list[Tool]:
        """The operations, each as a tool."""
        functions = (
            self.data_get,
            self.data_set,
            self.data_delete,
            self.data_list_keys,
            self.data_list_namespaces,
            self.data_get_all,
            self.data_get_many,
            self.data_set_many,
            self.data_delete_many,
            self.data_clear,
        )
        return [Tool(function, is_repeatable=True) for function in functions]

    async def data_get(self, key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Get a value from the data store that all agents of this session share.

        Args:
            key: Its key.
            namespace: Part of the store.
        """
        found = await self._do(namespace, lambda store: store.get_many([key]))
        return _told(found[key]) if key in found else _missing(key, namespace)

    async def data_set(self, key: str, value: JsonValue, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Set a value in the data store that all agents of this session share.

        Args:
            key: Its key; a value that is there is replaced.
            value: Any JSON.
            namespace: Part of the store; a new one needs no making.
        """
        self._refuse_secrets({key: value})
        await self._do(namespace, lambda store: store.set(key, value))
        return f"Set {key!r}."

    async def data_delete(self, key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Remove a key from the data store.

        Args:
            key: The key.
            namespace: Part of the store.
        """
        was_there = await self._do(namespace, lambda store: store.delete(key))
        return (
            f"Deleted {key!r}."
            if was_there or current_call().is_repeated
            else _missing(key, namespace)
        )

    async def data_list_keys(self, prefix: str = "", namespace: str = DEFAULT_NAMESPACE) -> str:
        """List the keys of the data store.

        Args:
            prefix: What they begin with.
            namespace: Part of the store.
        """
        return _told(list(await self._do(namespace, lambda store: store.list_keys(prefix))))

    async def data_list_namespaces(self) -> str:
        """List the parts of the data store that have keys."""
        return _told(list(await self._do(DEFAULT_NAMESPACE, lambda store: store.list_namespaces())))

    async def data_get_all(self, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Get all keys of the data store with their values.

        Args:
            namespace: Part of the store.
        """
        return _told(await self._do(namespace, lambda store: store.get_all()))

    async def data_get_many(self, keys: list[str], namespace: str = DEFAULT_NAMESPACE) -> str:
        """Get several values from the data store; keys that are not there are left out.

        Args:
            keys: Their keys.
            namespace: Part of the store.
        """
        return _told(await self._do(namespace, lambda store: store.get_many(keys)))

    async def data_set_many(
        self, items: dict[str, JsonValue], namespace: str = DEFAULT_NAMESPACE
    ) -> str:
        """Set several values in the data store, all or none.

        Args:
            items: The values by their keys.
            namespace: Part of the store; a new one needs no making.
        """
        self._refuse_secrets(items)
        return f"Set {await self._do(namespace, lambda store: store.set_many(items))} keys."

    async def data_delete_many(self, keys: list[str], namespace: str = DEFAULT_NAMESPACE) -> str:
        """Remove several keys from the data store, all or none.

        Args:
            keys: The keys; those that are not there do not matter.
            namespace: Part of the store.
        """
        return f"Deleted {await self._do(namespace, lambda store: store.delete_many(keys))} keys."

    async def data_clear(self, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Remove all keys of one part of the data store.

        Args:
            namespace: The part.
        """
        return f"Removed {await self._do(namespace, lambda store: store.clear())} keys."

    async def _do(self, namespace: str, operation: Callable[[DataStore], T]) -> T:
        # Never abandoned: after a stop nothing may be written. It does not take long to end.
        try:
            store = self._store.use_namespace(namespace)
            return await to_thread.run_sync(operation, store)
        except UserError as exc:
            raise ToolError(str(exc)) from exc

    def _refuse_secrets(self, items: Mapping[str, JsonValue]) -> None:
        if self._mask.value(items) != items:
            raise ToolError("what you set holds a key, and keys are not kept")


def _missing(key: str, namespace: str) -> str:
    return f"(no key {key!r} in namespace {namespace!r})"


def _told(value: JsonValue) -> str:
    """Return a value as JSON for a model."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
