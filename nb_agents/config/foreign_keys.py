"""The keys of a team that none of its specs knows, each with what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from nb_agents.config.massgen_keys import (
    SECTIONS,
    Restriction,
    Section,
    Sort,
    sort_of,
    sounds_restricting,
)

__all__ = ["ForeignKey", "foreign_keys", "refusal"]

_UNKNOWN = Restriction("what agents may do, by its name or its place")


class ForeignKey(NamedTuple):
    """A key that no spec has.

    Attributes:
        path: Where it stands: keys from the top, an agent by its id, other items by position.
        sort: What becomes of it with the value that it has; "enforced" when that restricts nothing.
        restriction: What it restricts; None when it is not known to restrict.
        value: What it was given.
    """

    path: tuple[object, ...]
    sort: Sort
    restriction: Restriction | None
    value: Any

    @property
    def key(self) -> str:
        """Its name."""
        return str(self.path[-1])

    @property
    def name(self) -> str:
        """Its path without positions and ids, with dots."""
        return ".".join(str(part) for part in self._pattern)

    @property
    def _pattern(self) -> tuple[object, ...]:
        skips = {"agents", "callable_agents"}
        return tuple(
            part
            for before, part in zip((None, *self.path), self.path, strict=False)
            if before not in skips and not isinstance(part, int)
        )


def foreign_keys(
    spec: BaseModel, path: tuple[object, ...] = (), section: tuple[str, ...] = ()
) -> Iterator[ForeignKey]:
    """Give every key of a spec, and below it, that it does not know.

    Args:
        spec: A team, or a part of one.
        path: Where it stands.
        section: The section of a file that it is.
    """
    for key, value in (spec.model_extra or {}).items():
        yield from _judged(path, section, key, value)
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        place = "agents" if name == "callable_agents" else name
        if isinstance(value, BaseModel):
            yield from foreign_keys(value, (*path, name), (*section, place))
        for number, item in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(item, BaseModel):
                where = getattr(item, "id", number)
                yield from foreign_keys(item, (*path, name, where), (*section, place, "*"))


def refusal(found: ForeignKey) -> str:
    """Say in a sentence or two why a team does not start.

    Args:
        found: A key that is refused.
    """
    assert found.restriction is not None
    return (
        f"`{found.name}` restricts {found.restriction.what}, and can't be enforced here. "
        f"{found.restriction.remedy}"
    )


def _judged(
    path: tuple[object, ...], section: tuple[str, ...], key: str, value: Any
) -> Iterator[ForeignKey]:
    inner = (*section, key)
    if inner in SECTIONS and isinstance(value, dict):
        for name, each in value.items():
            yield from _judged((*path, key), inner, str(name), each)
    else:
        yield ForeignKey((*path, key), *_judge(section, key, value), value)


def _judge(section: tuple[str, ...], key: str, value: Any) -> tuple[Sort, Restriction | None]:
    table, sort = SECTIONS.get(section, Section()), sort_of(section, key)
    if sort in ("withheld", "refused"):
        restriction = {**table.withheld, **table.refused}[key]
        return (sort, restriction) if restriction.restricts(value) else ("enforced", None)
    if sort == "supported":  # a section that is no mapping
        return _failing(table) if value else ("enforced", None)
    if sort == "unknown" and (table.is_strict or _may_restrict(key, value)):
        return _failing(table)
    return sort, None


def _failing(table: Section) -> tuple[Sort, Restriction]:
    return ("withheld" if table.withholds else "refused"), _UNKNOWN


def _may_restrict(key: str, value: Any) -> bool:
    """Whether a key that nobody knows sounds like a restriction, or one below it does."""
    if sounds_restricting(key):
        return True
    if isinstance(value, dict):
        return any(_may_restrict(str(name), each) for name, each in value.items())
    return isinstance(value, list) and any(_may_restrict("", each) for each in value)
