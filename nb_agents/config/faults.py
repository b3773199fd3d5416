"""What is wrong with a file: each fault a sentence with its place and the nearest valid key.

Keys of a team that none of its specs knows are found here too, each with what becomes of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nb_agents.config.document import Document, Place
from nb_agents.config.massgen_keys import (
    SECTIONS,
    Restriction,
    Section,
    Sort,
    sort_of,
    sounds_restricting,
)
from nb_agents.errors import ConfigError

__all__ = [
    "Fault",
    "Finding",
    "ForeignKey",
    "Origin",
    "Sections",
    "as_error",
    "foreign_keys",
    "invalid",
    "keys_of",
    "meant_by",
    "nearest",
    "own_foreign_keys",
    "refusal",
    "slips",
]

Sections = Mapping[tuple[object, ...], type[BaseModel]]
"""For each section of a file, by its path with "*" for list positions, the spec it becomes."""

MAX_FAULTS = 10
"""Faults told of one file; who has more begins with these."""
MAX_FOUND = 100
"""Faults looked for in one file: a hint and a place for each take their time."""

MAX_WORDS = 200
"""Words that a wrong one is compared with: each costs some microseconds, for each wrong one."""

_NO_SLIPS = {"agent", "instance_id"}
"""Keys of MassGen's that only look like slips of ours."""

_OTHER_NAMES = {"system_prompt": "system_message"}
"""What others call a key of ours."""

_UNKNOWN = Restriction("what agents may do, by its name or its place")


@dataclass(frozen=True)
class Fault:
    """A mistake in a file, with its place.

    Attributes:
        what: A sentence, without its place.
        place: Where it is, or None when the file has no such place.
        is_slip: Whether it is a key that is nearly one of ours.
    """

    what: str
    place: Place | None
    is_slip: bool = False


@dataclass(frozen=True)
class Finding:
    """Something to tell of a file that loads all the same, or a fault as a record.

    Attributes:
        what: A sentence, without its place.
        file: The file's path or name, or None for a spec made in Python.
        line: From 1, or None when it has no place.
        column: From 1, or None when it has no place.
    """

    what: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return str(ConfigError(self.what, file=self.file, line=self.line, column=self.column))


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a spec was read from; equal to any other, because it is no part of what a spec says."""

    document: Document | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0

    def fault(self, what: str, path: tuple[object, ...]) -> ConfigError:
        """Return the error of a fault at ``path``, with its place where one is known."""
        if self.document is None:
            return ConfigError(what)
        place = self.document.place(_as_written(path, self.document))
        return as_error([Fault(what, place)], self.document.file)


def as_error(faults: Iterable[Fault], file: str) -> ConfigError:
    """Return one error for a file's faults: the first one's message, with the others attached."""
    kept = _without_doubles(faults)
    errors = [
        ConfigError(f.what, file=file, **f.place._asdict() if f.place else {})
        for f in kept[:MAX_FAULTS]
    ]
    if more := kept[MAX_FAULTS:]:
        least = " at least" if len(kept) >= MAX_FOUND else ""
        errors.append(ConfigError(f"{len(more)} more faults{least}.", file=file))
    errors[0].others = tuple(errors[1:])
    return errors[0]


def slips(document: Document, sections: Sections) -> list[Fault]:
    """Find keys that are nearly one of ours.

    Args:
        document: A file.
        sections: Its sections.

    Returns:
        A fault for each.
    """
    found = []
    for path in document.keys:
        place, key = _pattern(_as_spec(path[:-1])), str(path[-1])
        section = sections.get(place)
        near = meant_by(key, section) if section else ""
        if near and not _is_massgens(place, key):
            name = ".".join(str(p) for p in path)
            what = f"Unknown key {name!r}; did you mean {near!r}?"
            found.append(Fault(what, document.place(path, key=True), is_slip=True))
    return found


def _is_massgens(section: tuple[object, ...], key: str) -> bool:
    """Return whether MassGen has such a key, even if it resembles one of ours."""
    names = tuple("agents" if part == "callable_agents" else str(part) for part in section)
    return sort_of(names, key) != "unknown"


def invalid(exc: ValidationError, document: Document) -> list[Fault]:
    """Turn pydantic's faults into sentences with their places."""
    errors = exc.errors(include_url=False)[:MAX_FOUND]
    inside = {error["loc"][:1] for error in errors if len(error["loc"]) > 1}
    # Of a list whose items are all faulty pydantic says besides that it is empty.
    real = (e for e in errors if e["type"] != "too_short" or e["loc"] not in inside)
    return [_fault(each, document) for each in real]


def _fault(error: ErrorDetails, document: Document) -> Fault:
    path = _as_written(tuple(error["loc"]), document)
    name = ".".join(str(p) for p in path)
    if error["type"] == "missing":
        near = nearest(str(path[-1]), _beside(document, path))
        hint = f"; is {near!r} meant for it?" if near else "."
        place = document.place((*path[:-1], near) if near else path, key=True)
        return Fault(f"{name!r} is missing{hint}", place)
    what = error["msg"].removeprefix("Value error, ") + _nearest_value(error)
    if error["type"] == "tuple_type":
        what = "it is not a list; begin each item of it with `- `"
    if error["type"] in ("model_type", "dict_type"):
        what = "it is not a mapping of keys"
    return Fault(f"{name}: {what}." if name else f"{what}.", document.place(path))


def _nearest_value(error: ErrorDetails) -> str:
    """Return the allowed word closest to a wrong one, which is not repeated: it may be a secret."""
    given = error["input"]
    if error["type"] != "literal_error" or not isinstance(given, str):
        return ""
    allowed = re.findall("'([^']*)'", error["ctx"]["expected"])
    near = nearest(given.lower(), allowed)
    return f" (nearest: {near!r})" if near else ""


def keys_of(section: type[BaseModel]) -> list[str]:
    """Return the keys that a section of a file may have."""
    return [field.alias or name for name, field in section.model_fields.items()]


@lru_cache(1000)
def meant_by(key: str, section: type[BaseModel]) -> str:
    """Return the key of a section that ``key`` is a misspelling of, or ""."""
    keys = keys_of(section)
    if key in keys or key in _NO_SLIPS:
        return ""
    if (meant := _OTHER_NAMES.get(key)) in keys:
        return meant
    swapped = [name for name in keys if sorted(name) == sorted(key)]
    # 0.84 lets "temprature" be caught and tells "top_k" from "top_p".
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.84)
    return next(iter(swapped + near), "")


def _without_doubles(faults: Iterable[Fault]) -> list[Fault]:
    """Sort faults by their place in the file, and merge a missing key with its misspelling."""
    inorder = sorted(faults, key=lambda fault: fault.place or Place(0, 0))
    told = {fault.place for fault in inorder if not fault.is_slip}
    return [fault for fault in inorder if not (fault.is_slip and fault.place in told)]


def _beside(document: Document, path: tuple[object, ...]) -> list[str]:
    section: Any = document.data
    try:
        for part in path[:-1]:
            section = section[part]
    except (LookupError, TypeError):  # a part that names no key, such as the kind of a value
        return []
    return [str(key) for key in section] if isinstance(section, dict) else []


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the most similar word, or ""; of many words, only one with the same first letter."""
    known = list(words)
    if len(known) > MAX_WORDS:
        known = [each for each in known if each[:1] == word[:1]][:MAX_WORDS]
    return next(iter(difflib.get_close_matches(word, known, n=1)), "")


def _as_written(path: tuple[object, ...], document: Document) -> tuple[object, ...]:
    """Return a spec's path as the file has it, where a lone agent is ``agent``."""
    if path[:2] == ("agents", 0) and "agents" not in document.data:
        return ("agent", *path[2:])
    return path


def _as_spec(path: tuple[object, ...]) -> tuple[object, ...]:
    return ("agents", 0, *path[1:]) if path[:1] == ("agent",) else path


def _pattern(path: tuple[object, ...]) -> tuple[object, ...]:
    return tuple("*" if isinstance(part, int) else part for part in path)


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
    """Yield every unknown key of a spec and of those below it.

    Args:
        spec: A team, or a part of one.
        path: Where it stands.
        section: The section of a file that it is.
    """
    yield from own_foreign_keys(spec, path, section)
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        place = "agents" if name == "callable_agents" else name
        if isinstance(value, BaseModel):
            yield from foreign_keys(value, (*path, name), (*section, place))
        for number, item in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(item, BaseModel):
                where = getattr(item, "id", number)
                yield from foreign_keys(item, (*path, name, where), (*section, place, "*"))


def own_foreign_keys(
    spec: BaseModel, path: tuple[object, ...] = (), section: tuple[str, ...] = ()
) -> Iterator[ForeignKey]:
    """Yield every unknown key of a spec itself; see `foreign_keys`."""
    for key, value in (spec.model_extra or {}).items():
        yield from _judged(path, section, key, value)


def refusal(found: ForeignKey) -> str:
    """Return why a team does not start, in a sentence or two.

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
    is_ignored = section in SECTIONS and key in SECTIONS[section].harmless
    if inner in SECTIONS and isinstance(value, dict) and not is_ignored:
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
    """Return whether an unknown key, or one below it, sounds like a restriction."""
    if sounds_restricting(key):
        return True
    if isinstance(value, dict):
        return any(_may_restrict(str(name), each) for name, each in value.items())
    return isinstance(value, list) and any(_may_restrict("", each) for each in value)
