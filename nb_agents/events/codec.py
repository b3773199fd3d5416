"""Reads and writes events as JSON.

Events of an unregistered kind, such as those of an extension that is not installed, are read as
`UnknownEvent`. All folds ignore them, and the log shows them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union

from pydantic import Discriminator, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from nb_agents.events.base_event import KINDS, Event

__all__ = ["EVENT", "UnknownEvent"]

_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")


class UnknownEvent(Event, is_kind=False):
    """An event of a kind that is not registered here.

    Attributes:
        fields: All fields of its JSON object.
    """

    fields: Mapping[str, Any]


class EventCodec:
    """Reads and writes the events of all registered kinds."""

    def __init__(self) -> None:
        self._known = 0
        self._made: TypeAdapter[Event]
        self._head: TypeAdapter[Event] = TypeAdapter(Event)

    @property
    def _adapter(self) -> TypeAdapter[Event]:
        # Built on first use, because it takes a tenth of a second.
        if self._known != len(KINDS):
            union: Any = Union[tuple(KINDS.values())]  # noqa: UP007
            self._made = TypeAdapter(Annotated[union, Discriminator("kind")])
            self._known = len(KINDS)
        return self._made

    def validate_json(self, data: str | bytes, context: list[str] | None = None) -> Event:
        """Parse an event.

        Args:
            data: The JSON text of an event.
            context: A list to which the names of fields with out-of-range numbers are appended.

        Raises:
            ValidationError: The JSON is not an event.
        """
        try:
            return self._adapter.validate_json(data, context=context)
        except ValidationError as exc:
            if not _is_unknown(exc):
                raise
            return self._unknown(from_json(data), context, exc)

    def validate_python(self, data: Any, context: list[str] | None = None) -> Event:
        """Create an event from a dict. Otherwise the same as `validate_json`."""
        try:
            return self._adapter.validate_python(data, context=context)
        except ValidationError as exc:
            if not _is_unknown(exc):
                raise
            return self._unknown(data, context, exc)

    def _unknown(self, data: Any, context: list[str] | None, exc: ValidationError) -> UnknownEvent:
        kind = data.get("kind")
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise exc
        head = self._head.validate_python(
            {name: data[name] for name in ("seq", "at") if name in data}, context=context
        )
        return UnknownEvent(seq=head.seq, at=head.at, kind=kind, fields=MappingProxyType(data))

    def dump_python(
        self, event: Event, mode: Literal["python", "json"] = "python"
    ) -> dict[str, Any]:
        """Return an event as a dict. In mode "json", all values are JSON values."""
        if isinstance(event, UnknownEvent):
            return dict(event.fields)
        dumped: dict[str, Any] = self._adapter.dump_python(event, mode=mode)
        return dumped

    def dump_json(self, event: Event) -> bytes:
        """Return an event as JSON."""
        if isinstance(event, UnknownEvent):
            return to_json(dict(event.fields))
        return self._adapter.dump_json(event)


def _is_unknown(exc: ValidationError) -> bool:
    return exc.errors(include_url=False)[0]["type"] == "union_tag_invalid"


EVENT = EventCodec()
"""The shared codec of all events."""
