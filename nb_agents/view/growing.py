"""An immutable mapping to which entries can be added cheaply.

A full copy per event would take quadratic time. Here, a change adds a small layer on top of the
earlier ones, and layers of similar size are merged. So there are few layers, and each entry is
copied a logarithmic number of times.

This module imports no other module of nb_agents.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic, TypeVar

V = TypeVar("V")


def with_entry(entries: Mapping[str, V], key: str, value: V) -> LayeredMapping[V]:
    """Return a mapping with one entry added or replaced. ``entries`` is unchanged.

    Args:
        entries: The mapping. It is copied only if it is not a `LayeredMapping` yet.
        key: The key of the entry. An existing key keeps its position.
        value: The value of the entry.

    Example:
        >>> one = with_entry({"a": 1}, "b", 2)
        >>> two = with_entry(one, "a", 3)
        >>> dict(one), dict(two)
        ({'a': 1, 'b': 2}, {'a': 3, 'b': 2})
    """
    layers = list(entries._layers if isinstance(entries, LayeredMapping) else (dict(entries),))
    top = {key: value}
    while layers and len(layers[-1]) < 2 * len(top):
        top = {**layers.pop(), **top}
    return LayeredMapping(*layers, top)


class LayeredMapping(Mapping[str, V], Generic[V]):
    """An immutable mapping made of layers.

    Args:
        layers: Later layers override entries of earlier ones. Each layer is at most half as large
            as the one before it.
    """

    __slots__ = ("_layers",)

    def __init__(self, *layers: dict[str, V]) -> None:
        self._layers = layers

    def __getitem__(self, key: str) -> V:
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        for layer in self._layers:  # twice as fast as `any`
            if key in layer:
                return True
        return False

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or ``default``. Faster than the inherited method."""
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        return default

    def __len__(self) -> int:
        return len(self._merged())

    def __iter__(self) -> Iterator[str]:
        return iter(self._merged())

    def keys(self) -> KeysView[str]:
        """Return the keys, in the order of their first insertion."""
        return self._merged().keys()

    def values(self) -> ValuesView[V]:
        """Return the values, in the order of their keys."""
        return self._merged().values()

    def items(self) -> ItemsView[str, V]:
        """Return the entries, in the order of their keys."""
        return self._merged().items()

    def __repr__(self) -> str:
        return repr(self._merged())

    def _merged(self) -> dict[str, V]:
        """Merge the layers into one dict and return it."""
        if len(self._layers) > 1:
            whole: dict[str, V] = {}
            for layer in self._layers:
                whole.update(layer)
            self._layers = (whole,)
        return self._layers[0]
