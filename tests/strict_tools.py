"""Checks the tools of a request as strictly as the providers' APIs.

Source: the errors of the APIs themselves. OpenAI: "schema must have type 'object' and not have
'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level", "array schema missing items", "array too
long. Expected an array with maximum length 128". Anthropic: "input_schema does not support oneOf,
allOf, or anyOf at the top level", "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
for the outermost object only, "It must match JSON Schema draft 2020-12". Google: "Must start
with a letter or an underscore", "property is not defined", "items: missing field", "At most 512
function declarations can be specified".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["tools_fault"]

_AT_TOP = ("oneOf", "anyOf", "allOf", "enum", "not")
_DATA = ("default", "const", "enum", "examples")
_STRICT = frozenset(
    "type properties required additionalProperties items anyOf $ref $defs definitions description "
    "enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems "
    "pattern format minLength maxLength".split()
)
_MAX_STRICT_DEPTH = 10


class _Rules(NamedTuple):
    name: str
    properties: str = ".*"
    most: int | None = None
    description: int | None = None


_RULES = {
    "openai": _Rules("[a-zA-Z0-9_-]{1,64}", most=128, description=1024),
    "responses": _Rules("[a-zA-Z0-9_-]{1,64}", most=128, description=1024),
    "anthropic": _Rules("[a-zA-Z0-9_-]{1,128}", "[a-zA-Z0-9_.-]{1,64}"),
    "google": _Rules("[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", most=512),
}


class _Declared(NamedTuple):
    name: Any
    description: Any
    schema: Any
    is_strict: bool


def tools_fault(protocol: str, body: Mapping[str, Any]) -> str:
    """Return why an API rejects the tools of a request, or "".

    Args:
        protocol: The API's protocol.
        body: The request's body.
    """
    rules, declared = _RULES[protocol], [*_declared(protocol, body)]
    if rules.most is not None and len(declared) > rules.most:
        return f"tools: at most {rules.most} can be specified, but there are {len(declared)}"
    names = [each.name for each in declared]
    if duplicates := [name for name in names if names.count(name) > 1]:
        return f"tools: {duplicates[0]!r} is declared twice"
    for number, each in enumerate(declared):
        if fault := _fault(protocol, rules, each):
            return f"tools[{number}] {each.name!r}: {fault}"
    return ""


def _declared(protocol: str, body: Mapping[str, Any]) -> Iterator[_Declared]:
    for tool in body.get("tools") or ():
        match protocol:
            case "openai":
                tool = tool["function"]
                yield _Declared(
                    tool["name"],
                    tool.get("description", ""),
                    tool.get("parameters"),
                    tool.get("strict") is True,
                )
            case "responses" if tool["type"] == "function":
                yield _Declared(
                    tool["name"],
                    tool.get("description", ""),
                    tool.get("parameters"),
                    tool.get("strict") is True,
                )
            case "anthropic" if "input_schema" in tool:
                yield _Declared(
                    tool["name"],
                    tool.get("description", ""),
                    tool["input_schema"],
                    tool.get("strict") is True,
                )
            case "google":
                for each in tool.get("functionDeclarations") or ():
                    yield _Declared(
                        each["name"],
                        each.get("description", ""),
                        each.get("parametersJsonSchema"),
                        False,
                    )


def _fault(protocol: str, rules: _Rules, tool: _Declared) -> str:
    schema = tool.schema
    if not re.fullmatch(rules.name, tool.name):
        return f"the name must match {rules.name!r}"
    if rules.description is not None and len(tool.description or "") > rules.description:
        return "description: string too long"
    if schema is None and protocol == "google":
        return ""  # without parameters
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "schema must be a JSON Schema of 'type: \"object\"'"
    if protocol != "google" and (found := [key for key in _AT_TOP if key in schema]):
        return f"schema must not have {found[0]!r} at the top level"
    for key in schema.get("properties") or ():
        if not re.fullmatch(rules.properties, key, re.DOTALL):
            return f"Property keys should match pattern {rules.properties!r}, not {key!r}"
    return (
        _invalid(schema)
        or next(_node_faults(schema, schema), "")
        or (next(_strict_faults(schema, 1), "") if tool.is_strict else "")
    )


def _invalid(schema: Any) -> str:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as exc:
        return f"it must match JSON Schema draft 2020-12: {exc.message}"
    return ""


def _node_faults(node: Any, root: Any) -> Iterator[str]:
    """Yield the faults of a schema and its nested schemas, ignoring data such as defaults."""
    if isinstance(node, list):
        for each in node:
            yield from _node_faults(each, root)
    if not isinstance(node, dict):
        return
    ref = node.get("$ref")
    if isinstance(ref, str):
        yield from _ref_faults(ref, root)
    kinds = node.get("type")
    if "array" in (kinds if isinstance(kinds, list) else [kinds]):
        if "items" not in node and "prefixItems" not in node:
            yield "array schema missing items"
    properties = node.get("properties")
    if isinstance(properties, dict):
        for name in node.get("required") or ():
            if name not in properties:
                yield f"required {name!r}: property is not defined"
    for key, each in node.items():
        if key in ("properties", "$defs", "definitions", "patternProperties"):
            yield from _node_faults([*each.values()], root)
        elif key not in _DATA:
            yield from _node_faults(each, root)


def _ref_faults(ref: str, root: Any) -> Iterator[str]:
    visited: set[str] = set()
    while True:
        target = _at(ref, root)
        if target is None:
            yield f"reference {ref!r} was not found in the schema"
            return
        visited.add(ref)
        following = target.get("$ref") if isinstance(target, dict) else None
        if following is None or len(target) > 1:
            return
        if following in visited:
            yield f"reference {ref!r} never ends"
            return
        ref = following


def _at(ref: str, root: Any) -> Any:
    if ref != "#" and not ref.startswith("#/"):
        return None
    node = root
    for part in ref.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


def _strict_faults(node: Any, depth: int) -> Iterator[str]:
    """Yield the faults of a schema in OpenAI's strict mode."""
    if not isinstance(node, dict):
        yield "strict: a schema must be an object"
        return
    if unknown := sorted(node.keys() - _STRICT):
        yield f"strict: {unknown[0]!r} is not permitted"
    if depth > _MAX_STRICT_DEPTH:
        yield "strict: too deep"
        return
    if not node.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
        yield "strict: schema must have a 'type' key"
    if node.get("type") == "object" or "properties" in node:
        if node.get("additionalProperties") is not False:
            yield "strict: 'additionalProperties' is required to be supplied and to be false"
        if {*node.get("required", ())} != {*node.get("properties", ())}:
            yield "strict: 'required' is required to include every key in properties"
    if node.get("type") == "array" and not node.get("items"):
        yield "strict: array schema missing items"
    for each in (*node.get("properties", {}).values(), *node.get("anyOf", ())):
        yield from _strict_faults(each, depth + 1)
    if "items" in node:
        yield from _strict_faults(node["items"], depth + 1)
    for each in (*node.get("$defs", {}).values(), *node.get("definitions", {}).values()):
        yield from _strict_faults(each, 1)
