"""Converts the schema of a tool's arguments into one that every provider accepts.

A provider rejects a whole request because of one schema. So each schema is checked and, if its
meaning does not change, repaired: missing parts are added, arguments get names that providers
accept, and alternatives, which no provider accepts at the top level, move one level down.

The model's arguments are converted back before the tool is called. New names depend only on the old
names, so a resumed run creates the same names.

Source: JSON Schema draft 2020-12, https://json-schema.org/draft/2020-12; Anthropic's "Property keys
should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", for the top level only; OpenAI's "schema must
have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level", "array
schema missing items" and "is not a 'regex'"; Google's "required[0]: property is not defined".
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import TypedDict

MAX_DEPTH = 64
"""Maximum depth of a schema as JSON, because libraries process schemas recursively."""

WRAPPED_ARGUMENT = "arguments"
"""Name of the only argument of a tool with alternatives at the top level of its schema."""

Restore = Callable[[dict[str, Any]], dict[str, Any]]

_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords with values that are not schemas."""
_ABOUT_FILE = frozenset(
    "$schema $id id $anchor $dynamicAnchor $recursiveAnchor $vocabulary $comment".split()
)
"""Keywords that describe the schema as a document. Older drafts use `id` instead of `$id`."""
_NOT_AT_TOP = ("anyOf", "oneOf", "allOf", "not", "enum")
_DEFINITIONS = ("$defs", "definitions")

_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_IN_KEYS = re.compile(r"[^a-zA-Z0-9_.-]")
_POINTER = re.compile(r"#(/[\w.$~%@!&'()*+,;=:-]*)*", re.ASCII)


class SchemaFault(ValueError):
    """Raised if a schema can't be offered. The message completes the sentence "Its schema ..."."""


class FittedSchema(NamedTuple):
    """A schema that every provider accepts.

    Attributes:
        restore: Converts arguments for this schema to the tool's arguments. None if they are the
            same.
    """

    schema: dict[str, Any]
    restore: Restore | None = None


def fit_schema(schema: dict[str, Any]) -> FittedSchema:
    """Convert a schema to one that every provider accepts.

    Args:
        schema: The tool's schema, which is not modified.

    Raises:
        SchemaFault: No such schema has the same meaning.

    Example:
        >>> fit_schema({"properties": {"the id": {"type": "array"}}}).schema["properties"]
        {'the_id_abc405d8': {'type': 'array', 'items': {}}}
    """
    _check_size(schema)
    try:
        whole = _validator().validate_python(schema)
    except ValidationError as exc:
        raise SchemaFault(_explain(exc)) from None
    # A valid schema keeps the order of its keys, because providers' caches depend on it.
    top = _as_object(schema if whole == schema else whole)
    if any(key in top for key in _NOT_AT_TOP):
        result = FittedSchema(_wrapped(top), _unwrap)
    else:
        result = _with_valid_keys(top)
    for ref in _refs(result.schema):
        _check_ref(ref, result.schema)
    return result


def short_hash(text: str) -> str:
    """Return 8 hex digits that make a name derived from this text unique."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _check_size(schema: Mapping[str, Any]) -> None:
    """Raise SchemaFault if a schema is not JSON or is nested too deeply."""
    try:
        json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise SchemaFault(f"is not JSON: {exc}") from None
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _inner(each)]
    if level:
        raise SchemaFault(f"is more than {MAX_DEPTH} levels deep")


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else []


# Each schema within a schema --------------------------------------------------------------------


def _repaired(node: Any) -> Any:
    """Return a schema without meaningless keywords and with missing keywords filled in."""
    if node is True:
        return {}
    if not isinstance(node, dict):
        return node
    repaired = {
        key: value
        for key, value in node.items()
        if key in _DATA or (value is not None and key not in _ABOUT_FILE)
    }
    # A pattern is only a hint, because the tool checks its arguments itself.
    if not _is_valid_pattern(repaired.get("pattern", "")):
        del repaired["pattern"]
    if isinstance(named := repaired.get("patternProperties"), dict):
        repaired["patternProperties"] = {
            key: each for key, each in named.items() if _is_valid_pattern(key)
        }
    if isinstance(repaired.get("items"), list):  # draft 7
        repaired["prefixItems"] = repaired.pop("items")
        repaired |= (
            {"items": repaired.pop("additionalItems")} if "additionalItems" in repaired else {}
        )
    if _allows_type(repaired, "array") and not repaired.keys() & {"items", "prefixItems"}:
        repaired["items"] = {}
    names = repaired.get("required")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        _require(repaired, [*dict.fromkeys(names)])
    return repaired


def _require(node: dict[str, Any], names: list[str]) -> None:
    node["required"] = names
    properties = node.get("properties", {})
    if isinstance(properties, dict) and ("properties" in node or _allows_type(node, "object")):
        node["properties"] = {
            **properties,
            **{name: {} for name in names if name not in properties},
        }


def _allows_type(node: Mapping[str, Any], kind: str) -> bool:
    kinds = node.get("type")
    return kind in kinds if isinstance(kinds, list) else kind == kinds


def _is_valid_pattern(pattern: Any) -> bool:
    if not isinstance(pattern, str):
        return True  # reported like other invalid keywords
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _without_repeats(kinds: list[str]) -> list[str]:
    return list(dict.fromkeys(kinds))


_Kind = Literal["array", "boolean", "integer", "null", "number", "object", "string"]
_Schema = Annotated["bool | _Node", BeforeValidator(_repaired)]
_Schemas = Annotated["list[_Schema]", Field(min_length=1)]
_SchemasByName = dict[str, _Schema]
_Size = Annotated[int, Field(ge=0, strict=False)]
_Number = int | float
_Words = list[str]

_KEYWORDS: dict[str, Any] = {
    "type": Annotated[list[_Kind], Field(min_length=1), AfterValidator(_without_repeats)] | _Kind,
    **dict.fromkeys(
        ("items", "contains", "propertyNames", "contentSchema", "not", "if", "then", "else"),
        _Schema,
    ),
    **dict.fromkeys(
        ("additionalProperties", "unevaluatedItems", "unevaluatedProperties"), bool | _Schema
    ),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _Schemas),
    **dict.fromkeys(
        ("properties", "patternProperties", "dependentSchemas", *_DEFINITIONS), _SchemasByName
    ),
    **dict.fromkeys(("minItems", "maxItems", "minContains", "maxContains"), _Size),
    **dict.fromkeys(("minLength", "maxLength", "minProperties", "maxProperties"), _Size),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _Number),
    "multipleOf": Annotated[_Number, Field(gt=0)],
    **dict.fromkeys(("title", "description", "format", "pattern", "$ref"), str),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), str),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), bool),
    "required": _Words,
    "dependentRequired": dict[str, _Words],
    "dependencies": dict[str, _Words | _Schema],
    "enum": Annotated[list[JsonValue], Field(min_length=1)],
    "examples": list[JsonValue],
    # These references need a complete schema with anchors.
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), Literal["no reference but $ref"]),
}
_Node = TypedDict("_Node", _KEYWORDS, total=False)  # type: ignore[misc]
_Node.__pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[attr-defined]


@cache
def _validator() -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[_Node, BeforeValidator(_repaired)])


def _explain(exc: ValidationError) -> str:
    """Describe the error with the longest path, which belongs to the best matching alternative."""
    faults = exc.errors(include_url=False, include_input=False, include_context=False)
    paths = [[str(part) for part in each["loc"] if not _TAG.match(str(part))] for each in faults]
    path, fault = max(reversed([*zip(paths, faults, strict=True)]), key=lambda pair: len(pair[0]))
    return f"is not valid at {'.'.join(path)[:100]!r}: {fault['msg'][:200]}"


_TAG = re.compile(r"function-|_Node$|(bool|int|float)$|(literal|list)\[|nullable")
"""Pydantic's names for the alternatives of a keyword, as they appear in error paths."""


# The top -----------------------------------------------------------------------------------------


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the type "object" and without a reference at the top level."""
    seen = set()
    while (ref := schema.get("$ref")) is not None:
        target = _at(ref, schema)
        if ref in seen or not isinstance(target, dict):
            raise SchemaFault(f"refers to {ref!r:.100}, which does not exist")
        seen.add(ref)
        schema = {**target, **{key: each for key, each in schema.items() if key != "$ref"}}
        schema |= {"$ref": target["$ref"]} if "$ref" in target else {}
    if "type" in schema and not _allows_type(schema, "object"):
        raise SchemaFault(f"has the type {schema['type']!r:.100}, but arguments are an object")
    repaired = _repaired(schema | {"type": "object", "properties": schema.get("properties", {})})
    return repaired if repaired != schema else schema


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {key: each for key, each in schema.items() if key not in _DEFINITIONS}
    if not inner["properties"]:
        del inner["properties"]
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    return {
        "type": "object",
        "properties": {WRAPPED_ARGUMENT: inner},
        "required": [WRAPPED_ARGUMENT],
        "additionalProperties": False,
        **definitions,
    }


def _unwrap(args: dict[str, Any]) -> dict[str, Any]:
    inner = args.get(WRAPPED_ARGUMENT)
    return inner if len(args) == 1 and isinstance(inner, dict) else args


def _with_valid_keys(schema: dict[str, Any]) -> FittedSchema:
    """Rename arguments whose names a provider rejects."""
    properties = schema["properties"]
    new = {key: key if _KEY.fullmatch(key) else _key_for(key) for key in properties}
    if all(key == mapped for key, mapped in new.items()):
        return FittedSchema(schema)
    if len({*new.values()}) < len(new):
        raise SchemaFault(
            "has argument names that are equal after unsupported characters are replaced"
        )
    renamed = {**schema, "properties": {new[key]: each for key, each in properties.items()}}
    if "required" in schema:
        renamed["required"] = [new.get(key, key) for key in schema["required"]]
    old = {mapped: key for key, mapped in new.items() if mapped != key}
    return FittedSchema(
        renamed, lambda args: {old.get(key, key): each for key, each in args.items()}
    )


def _key_for(key: str) -> str:
    return f"{_NOT_IN_KEYS.sub('_', key)[:55]}_{short_hash(key)}"


# References ---------------------------------------------------------------------------------------


def _refs(node: Any) -> Iterator[str]:
    """Yield all references in a schema, including keys that only look like one."""
    if isinstance(node, dict):
        if isinstance(ref := node.get("$ref"), str):
            yield ref
        for key, each in node.items():
            if key not in _DATA:
                yield from _refs(each)
    elif isinstance(node, list):
        for each in node:
            yield from _refs(each)


def _check_ref(ref: str, root: dict[str, Any]) -> None:
    """Raise SchemaFault if a reference is circular or does not point to a schema."""
    seen: set[str] = set()
    while ref not in seen:
        target = _at(ref, root)
        if not isinstance(target, dict | bool):
            raise SchemaFault(f"refers to {ref!r:.100}, which does not exist")
        if target is True or target is False or "$ref" not in target or len(target) > 1:
            return
        seen.add(ref)
        ref = target["$ref"]
    raise SchemaFault(f"has a circular reference at {ref!r:.100}")


def _at(ref: str, root: Any) -> Any:
    """Return the part of a schema that a reference points to, or None."""
    if not _POINTER.fullmatch(ref):
        return None
    for part in ref.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and part.isdecimal():
            root = root[int(part)] if int(part) < len(root) else None
        else:
            root = root.get(part) if isinstance(root, dict) else None
    return root
