"""What is wrong with a file: each fault a sentence with its place and the nearest valid key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nb_agents.config.document import Document, Keys
from nb_agents.config.spec import Spec
from nb_agents.errors import ConfigError
from nb_agents.nouns import nearest

MAX_FAULTS = 10
"""Faults shown of one file, the first ones."""
MAX_FOUND = 100
"""Faults looked for in one file: a hint and a place for each take their time."""

_Spec = TypeVar("_Spec", bound=Spec)

_NO_SLIPS = {"agent", "instance_id"}
"""Keys of MassGen's that only look like slips of ours."""

_OTHER_NAMES = {"system_prompt": "system_message"}
"""What others call a key of ours."""

_SAID = {
    "tuple_type": "it is not a list; begin each item of it with `- `",
    "model_type": "it is not a mapping of keys",
    "dict_type": "it is not a mapping of keys",
}
"""What we say where pydantic names a type of Python's."""


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


def checked(
    spec: type[_Spec],
    document: Document,
    faults: Iterable[Fault],
    slips: Iterable[Fault],
    context: Mapping[str, Any] | None = None,
) -> _Spec:
    """Return what a file becomes.

    Args:
        spec: The class of it.
        document: The file.
        faults: What is wrong with it besides what its validation finds.
        slips: Misspelled keys; one at the place of a fault is that fault.
        context: That of its validation.

    Raises:
        ConfigError: The first fault, with the others attached.
    """
    found, slipped = list(islice(faults, MAX_FOUND)), list(islice(slips, MAX_FOUND))
    try:
        made = spec.model_validate(document.data, context=context)
    except ValidationError as exc:
        found += _invalid(exc, document)
    else:
        if not found and not slipped:
            return made
    taken = {document.place(each.path, key=each.at_key) for each in found}
    found += (each for each in slipped if document.place(each.path, key=each.at_key) not in taken)
    first, *others = errors_of(document, found)[:MAX_FAULTS]
    if more := len(found[MAX_FAULTS:]):
        least = " at least" if len(found) >= MAX_FOUND else ""
        others.append(ConfigError(f"{more} more faults{least}.", file=document.file))
    first.others = tuple(others)
    raise first


def errors_of(document: Document, faults: Iterable[Fault]) -> list[ConfigError]:
    """Return the errors of a file's faults, in its order."""
    found = (document.error(*each) for each in faults)
    return sorted(found, key=lambda error: (error.line or 0, error.column or 0))


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


def _invalid(exc: ValidationError, document: Document) -> list[Fault]:
    """Return pydantic's errors as faults."""
    errors = exc.errors(include_url=False)[:MAX_FOUND]
    inside = {error["loc"][:1] for error in errors if len(error["loc"]) > 1}
    # Of a list whose items are all faulty pydantic says besides that it is empty.
    real = (e for e in errors if e["type"] != "too_short" or e["loc"] not in inside)
    return [_fault(each, document) for each in real]


def _fault(error: ErrorDetails, document: Document) -> Fault:
    path = document.as_written(error["loc"])
    name = dotted(path)
    if error["type"] == "missing":
        near = nearest(str(path[-1]), _keys_in(document.data, path[:-1]))
        hint = f"; is {near!r} meant for it?" if near else "."
        return Fault(f"{name!r} is missing{hint}", (*path[:-1], near or path[-1]), at_key=True)
    said = error["msg"].removeprefix("Value error, ") + _nearest_value(error)
    what = _SAID.get(error["type"], said)
    return Fault(f"{name}: {what}." if name else f"{what}.", path)


def _keys_in(section: Any, path: Keys) -> Iterable[str]:
    with suppress(LookupError, TypeError):  # a part may be no key, but the kind of a value
        for part in path:
            section = section[part]
        return map(str, section)
    return ()


def _nearest_value(error: ErrorDetails) -> str:
    """Return the allowed word closest to a wrong one, which is not repeated: it may be a secret."""
    given = error["input"]
    if error["type"] != "literal_error" or not isinstance(given, str):
        return ""
    near = nearest(given.lower(), error["ctx"]["expected"].split("'")[1::2])
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
