"""A mapping that grows event by event, and whose older states stay as they were.

A copy for each event would cost the square of their number. Here a change is a small layer over
those before; layers of about the same size become one, so that there are few and each entry is
copied as often as their number doubles.

This module imports nothing of nb_agents.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic, TypeVar

V = TypeVar("V")


def grown(entries: Mapping[str, V], key: str, value: V) -> Growing[V]:
    """Return a mapping with one entry added or replaced; ``entries`` is unchanged.

    Args:
        entries: Copied only when it is not one of these mappings yet.
        key: Its key; one that is there keeps its place.
        value: Its value.

    Example:
        >>> one = grown({"a": 1}, "b", 2)
        >>> two = grown(one, "a", 3)
        >>> dict(one), dict(two)
        ({'a': 1, 'b': 2}, {'a': 3, 'b': 2})
    """
    layers = list(entries._layers if isinstance(entries, Growing) else (dict(entries),))
    top = {key: value}
    while layers and len(layers[-1]) < 2 * len(top):
        top = {**layers.pop(), **top}
    return Growing(*layers, top)


class Growing(Mapping[str, V], Generic[V]):
    """A mapping that never changes.

    Args:
        layers: Each is less than half as large as the one before, whose entries it hides.
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
        for layer in self._layers:  # in half of the time of `any`
            if key in layer:
                return True
        return False

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or ``default``, without raising KeyError inside."""
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        return default

    def __len__(self) -> int:
        return len(self._whole())

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def keys(self) -> KeysView[str]:
        """Return the keys, in the order of their first insertion."""
        return self._whole().keys()

    def values(self) -> ValuesView[V]:
        """Return the values, in the order of their keys."""
        return self._whole().values()

    def items(self) -> ItemsView[str, V]:
        """Return the entries, in the order of their keys."""
        return self._whole().items()

    def __repr__(self) -> str:
        return repr(self._whole())

    def _whole(self) -> dict[str, V]:
        """Merge the layers into one dict; the contents stay the same."""
        if len(self._layers) > 1:
            whole: dict[str, V] = {}
            for layer in self._layers:
                whole.update(layer)
            self._layers = (whole,)
        return self._layers[0]
