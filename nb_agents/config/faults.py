"""What is wrong with a file: each fault a sentence with its place and the nearest valid key.

Keys of a team that none of its specs knows are found here too, each with what becomes of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nb_agents.config.document import Document, Keys
from nb_agents.config.massgen_keys import (
    SECTIONS,
    Restriction,
    SectionKeys,
    Sort,
    sort_of,
    sounds_restricting,
)
from nb_agents.config.spec import Spec
from nb_agents.errors import ConfigError

MAX_FAULTS = 10
"""Faults shown of one file, the first ones."""
MAX_FOUND = 100
"""Faults looked for in one file: a hint and a place for each take their time."""

MAX_WORDS = 200
"""Words that a wrong one is compared with: each costs some microseconds, for each wrong one."""

_NO_SLIPS = {"agent", "instance_id"}
"""Keys of MassGen's that only look like slips of ours."""

_OTHER_NAMES = {"system_prompt": "system_message"}
"""What others call a key of ours."""

_UNKNOWN = Restriction("what agents may do, by its name or its place")


class Fault(NamedTuple):
    """A mistake in a file, or a key of it that does nothing.

    Attributes:
        what: A sentence, without its place.
        path: Where it is.
        at_key: Whether the key itself is meant, not its value.
    """

    what: str
    path: Keys
    at_key: bool = False


class Section(NamedTuple):
    """A mapping of a file, and the spec that it becomes."""

    spec: type[Spec]
    path: Keys
    data: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a spec was read from; equal to any other, because it is no part of what a spec says."""

    document: Document | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0

    def fault(self, what: str, path: Keys) -> ConfigError:
        """Return the error of a fault at ``path``, with its place where one is known."""
        if self.document is None:
            return ConfigError(what)
        return self.document.error(what, _as_written(path, self.document))


def as_error(
    document: Document, faults: Iterable[Fault], slips: Iterable[Fault] = ()
) -> ConfigError:
    """Return one error for a file's faults: the first one's message, with the others attached.

    Args:
        document: The file.
        faults: What is wrong with it.
        slips: Misspelled keys; one at the place of a fault is that fault.
    """
    found = [document.error(*each) for each in faults]
    taken = {(error.line, error.column) for error in found}
    slipped = (document.error(*each) for each in slips)
    found += [error for error in slipped if (error.line, error.column) not in taken]
    found.sort(key=lambda error: (error.line or 0, error.column or 0))
    first, *others = found[:MAX_FAULTS]
    if more := len(found[MAX_FAULTS:]):
        least = " at least" if len(found) >= MAX_FOUND else ""
        others.append(ConfigError(f"{more} more faults{least}.", file=document.file))
    first.others = tuple(others)
    return first


def sections(spec: type[Spec], data: Mapping[str, Any], path: Keys = ()) -> Iterator[Section]:
    """Yield a mapping of a file, and those inside it that become specs."""
    yield Section(spec, path, data)
    for key, (inner, is_list) in specs_in(spec).items():
        value = data.get(key)
        if isinstance(value, dict) and not is_list:
            yield from sections(inner, value, (*path, key))
        for number, item in enumerate(value if isinstance(value, list) and is_list else ()):
            if isinstance(item, dict):
                yield from sections(inner, item, (*path, key, number))


@cache
def specs_in(spec: type[Spec]) -> Mapping[str, tuple[type[Spec], bool]]:
    """Return the keys of a spec whose values become specs: which, and whether a list of them."""
    found = {f.alias or name: _spec_in(f.annotation) for name, f in spec.model_fields.items()}
    return {key: inner for key, inner in found.items() if inner is not None}


def _spec_in(annotation: Any, is_list: bool = False) -> tuple[type[Spec], bool] | None:
    if isinstance(annotation, type):
        return (annotation, is_list) if issubclass(annotation, Spec) else None
    is_list |= get_origin(annotation) is tuple
    return next((s for arg in get_args(annotation) if (s := _spec_in(arg, is_list))), None)


def slips(mapped: Iterable[Section]) -> Iterator[Fault]:
    """Yield the keys of a file that are misspellings of ours."""
    for spec, path, data in mapped:
        for key in data:
            if near := meant_by(str(key), spec):
                here = (*path, key)
                yield Fault(f"Unknown key {dotted(here)!r}; did you mean {near!r}?", here, True)


def dotted(path: Keys) -> str:
    """Return a path as messages show it."""
    return ".".join(map(str, path))


def invalid(exc: ValidationError, document: Document) -> list[Fault]:
    """Return pydantic's errors as faults."""
    errors = exc.errors(include_url=False)[:MAX_FOUND]
    inside = {error["loc"][:1] for error in errors if len(error["loc"]) > 1}
    # Of a list whose items are all faulty pydantic says besides that it is empty.
    real = (e for e in errors if e["type"] != "too_short" or e["loc"] not in inside)
    return [_fault(each, document) for each in real]


def _fault(error: ErrorDetails, document: Document) -> Fault:
    path = _as_written(tuple(error["loc"]), document)
    name = dotted(path)
    if error["type"] == "missing":
        near = nearest(str(path[-1]), _beside(document, path))
        hint = f"; is {near!r} meant for it?" if near else "."
        return Fault(f"{name!r} is missing{hint}", (*path[:-1], near or path[-1]), at_key=True)
    what = error["msg"].removeprefix("Value error, ") + _nearest_value(error)
    if error["type"] == "tuple_type":
        what = "it is not a list; begin each item of it with `- `"
    if error["type"] in ("model_type", "dict_type"):
        what = "it is not a mapping of keys"
    return Fault(f"{name}: {what}." if name else f"{what}.", path)


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


def _beside(document: Document, path: Keys) -> list[str]:
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


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a question for the `nearest` word, with a blank before it, or ""."""
    near = nearest(word, words)
    return f" Did you mean {near!r}?" if near else ""


def _as_written(path: Keys, document: Document) -> Keys:
    """Return a spec's path as the file has it, where a lone agent is ``agent``."""
    if path[:2] == ("agents", 0) and "agents" not in document.data:
        return ("agent", *path[2:])
    return path


class ForeignKey(NamedTuple):
    """A key that no spec has.

    Attributes:
        path: Where it stands: keys from the top, an agent by its id, other items by position.
        sort: What becomes of it with the value that it has; "enforced" when that restricts nothing.
        restriction: What it restricts; None when it is not known to restrict.
        value: What it was given.
    """

    path: Keys
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
        before = (None, *self.path)
        is_id = (each in ("agents", "callable_agents") for each in before)
        parts = zip(self.path, is_id, strict=False)
        return dotted(tuple(p for p, skip in parts if not skip and not isinstance(p, int)))


def foreign_keys(
    spec: BaseModel, path: Keys = (), section: tuple[str, ...] = ()
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
    spec: BaseModel, path: Keys = (), section: tuple[str, ...] = ()
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


def _judged(path: Keys, section: tuple[str, ...], key: str, value: Any) -> Iterator[ForeignKey]:
    inner = (*section, key)
    is_ignored = section in SECTIONS and key in SECTIONS[section].harmless
    if inner in SECTIONS and isinstance(value, dict) and not is_ignored:
        for name, each in value.items():
            yield from _judged((*path, key), inner, str(name), each)
    else:
        yield ForeignKey((*path, key), *_judge(section, key, value), value)


def _judge(section: tuple[str, ...], key: str, value: Any) -> tuple[Sort, Restriction | None]:
    table, sort = SECTIONS.get(section, SectionKeys()), sort_of(section, key)
    if sort in ("withheld", "refused"):
        restriction = {**table.withheld, **table.refused}[key]
        return (sort, restriction) if restriction.restricts(value) else ("enforced", None)
    if sort == "supported":  # a section that is no mapping
        return _failing(table) if value else ("enforced", None)
    if sort == "unknown" and (table.is_strict or _may_restrict(key, value)):
        return _failing(table)
    return sort, None


def _failing(table: SectionKeys) -> tuple[Sort, Restriction]:
    return ("withheld" if table.withholds else "refused"), _UNKNOWN


def _may_restrict(key: str, value: Any) -> bool:
    """Return whether an unknown key, or one below it, sounds like a restriction."""
    if sounds_restricting(key):
        return True
    if isinstance(value, dict):
        return any(_may_restrict(str(name), each) for name, each in value.items())
    return isinstance(value, list) and any(_may_restrict("", each) for each in value)
