"""Errors in a file. Each is a sentence with a position and, for a misspelling, the nearest key."""

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
"""The maximum number of errors that are reported for a file."""
MAX_FOUND = 100
"""The maximum number of errors to collect, because finding hints and positions takes time."""

_Spec = TypeVar("_Spec", bound=Spec)

_NOT_MISSPELLED = {"agent", "instance_id"}
"""MassGen's keys that look like misspellings of our keys."""

_OTHER_NAMES = {"system_prompt": "system_message"}
"""Names that other programs have for our keys."""

_MESSAGES = {
    "tuple_type": "it is not a list; begin each item of it with `- `",
    "model_type": "it is not a mapping of keys",
    "dict_type": "it is not a mapping of keys",
}
"""Our messages for errors in which pydantic would mention a Python type."""


class Fault(NamedTuple):
    """An error in a file, or a key that has no effect.

    Attributes:
        what: The message, as a sentence.
        path: The keys and list indices that lead to it.
        at_key: Whether the message is about the key and not its value.
        code: What kind of error it is, as in `nb_agents.config.file_findings.Finding`.
    """

    what: str
    path: Keys
    at_key: bool = False
    code: str = "invalid"


class Section(NamedTuple):
    """A mapping in a file and the class of spec that it becomes."""

    spec: type[Spec]
    path: Keys
    data: Mapping[str, Any]


def validate_document(
    spec: type[_Spec],
    document: Document,
    faults: Iterable[Fault],
    slips: Iterable[Fault],
    context: Mapping[str, Any] | None = None,
) -> _Spec:
    """Validate a file's content and return its spec.

    Args:
        spec: The class of the spec.
        document: The file.
        faults: Errors in addition to those of the validation.
        slips: Misspelled keys. One is left out if another error has the same position.
        context: The validation context.

    Raises:
        ConfigError: The first error, with the others in its ``others``.
    """
    faults_found, misspelled = list(islice(faults, MAX_FOUND)), list(islice(slips, MAX_FOUND))
    try:
        validated = spec.model_validate(document.data, context=context)
    except ValidationError as exc:
        faults_found += _invalid(exc, document)
    else:
        if not faults_found and not misspelled:
            return validated
    positions = {document.place(each.path, key=each.at_key) for each in faults_found}
    faults_found += (f for f in misspelled if document.place(f.path, key=f.at_key) not in positions)
    first, *others = errors_from_faults(document, faults_found)[:MAX_FAULTS]
    if more := len(faults_found[MAX_FAULTS:]):
        at_least = "At least " if len(faults_found) >= MAX_FOUND else ""
        others.append(ConfigError(f"{at_least}{more} more errors.", file=document.file))
    first.others = tuple(others)
    raise first


def errors_from_faults(document: Document, faults: Iterable[Fault]) -> list[ConfigError]:
    """Return an exception for each fault, in the order of the file."""
    errors = (document.error(*each) for each in faults)
    return sorted(errors, key=lambda error: (error.line or 0, error.column or 0))


def sections(spec: type[Spec], data: Mapping[str, Any], path: Keys = ()) -> Iterator[Section]:
    """Yield a mapping in a file, and all mappings inside it, that become specs."""
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
    """Return the keys of a spec with nested specs, as {key: (class, whether it is a list)}."""
    specs = {f.alias or name: _spec_in(f.annotation) for name, f in spec.model_fields.items()}
    return {key: inner for key, inner in specs.items() if inner is not None}


def _spec_in(annotation: Any, is_list: bool = False) -> tuple[type[Spec], bool] | None:
    if isinstance(annotation, type):
        return (annotation, is_list) if issubclass(annotation, Spec) else None
    is_list |= get_origin(annotation) is tuple
    return next((s for arg in get_args(annotation) if (s := _spec_in(arg, is_list))), None)


def slips(mapped: Iterable[Section]) -> Iterator[Fault]:
    """Yield the misspelled keys of a file."""
    for spec, path, data in mapped:
        for key in data:
            if near := misspelled_key(str(key), spec):
                full = (*path, key)
                message = f"Unknown key {dotted(full)!r}; did you mean {near!r}?"
                yield Fault(message, full, True, "unknown-key")


def dotted(path: Keys) -> str:
    """Return a path as text with dots, for messages."""
    return ".".join(map(str, path))


def _invalid(exc: ValidationError, document: Document) -> list[Fault]:
    """Convert pydantic's validation errors to faults."""
    errors = exc.errors(include_url=False)[:MAX_FOUND]
    inside = {error["loc"][:1] for error in errors if len(error["loc"]) > 1}
    # If all items of a list are invalid, pydantic also reports that the list is empty.
    real = (e for e in errors if e["type"] != "too_short" or e["loc"] not in inside)
    return [_fault(each, document) for each in real]


def _fault(error: ErrorDetails, document: Document) -> Fault:
    path = document.as_written(error["loc"])
    name = dotted(path)
    if error["type"] == "missing":
        near = nearest(str(path[-1]), _keys_in(document.data, path[:-1]))
        hint = f"; did you write {near!r} instead?" if near else "."
        return Fault(f"{name!r} is missing{hint}", (*path[:-1], near or path[-1]), True, "missing")
    message = error["msg"].removeprefix("Value error, ") + _nearest_value(error)
    sentence = _MESSAGES.get(error["type"], message)
    return Fault(f"{name}: {sentence}." if name else f"{sentence}.", path)


def _keys_in(section: Any, path: Keys) -> Iterable[str]:
    with suppress(LookupError, TypeError):  # pydantic's path may name a type instead of a key
        for part in path:
            section = section[part]
        return map(str, section)
    return ()


def _nearest_value(error: ErrorDetails) -> str:
    """Return a hint with the nearest allowed value.

    The wrong value is left out, as it may be secret.
    """
    value = error["input"]
    if error["type"] != "literal_error" or not isinstance(value, str):
        return ""
    near = nearest(value.lower(), error["ctx"]["expected"].split("'")[1::2])
    return f" (nearest: {near!r})" if near else ""


def keys_of(section: type[BaseModel]) -> list[str]:
    """Return the known keys of a section of a file."""
    return [field.alias or name for name, field in section.model_fields.items()]


@lru_cache(1000)
def misspelled_key(key: str, section: type[BaseModel]) -> str:
    """Return the key of the section that ``key`` probably misspells, or ""."""
    keys = keys_of(section)
    if key in keys or key in _NOT_MISSPELLED:
        return ""
    if (correct_key := _OTHER_NAMES.get(key)) in keys:
        return correct_key
    swapped = [name for name in keys if sorted(name) == sorted(key)]
    # With 0.84, "temprature" matches, and "top_k" does not match "top_p".
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.84)
    return next(iter(swapped + near), "")
