"""JSON schemas of team files and recipes, generated from the spec classes.

With a schema, an editor explains and completes keys and marks values of a wrong type. Unknown keys
are not errors, because MassGen has keys that nb_agents does not have.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, BeforeValidator, PlainValidator, WrapValidator

from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.spec import Spec

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_ATTRIBUTE = re.compile(r"^    (\w[\w, ]*): (.+(?:\n     {3,}.+)*)", re.MULTILINE)


def json_schema(kind: str, model: type[Spec]) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) for team files, recipes or another kind of file.

    Args:
        kind: The name of the kind, such as "team".
        model: The class that a file of this kind is loaded as.
    """
    schema_dict = model.model_json_schema(mode="validation")
    classes = {each.__name__: each for each in _subclasses(Spec)}
    for name, schema in (*schema_dict.pop("$defs", {}).items(), (model.__name__, schema_dict)):
        if name in classes:
            _describe(schema, classes[name])
        schema_dict.setdefault("$defs", {})[name] = schema
    definitions = schema_dict.pop("$defs")
    del definitions[model.__name__]
    if kind == "team":
        backend = definitions["BackendSpec"]["properties"]["type"]
        backend["anyOf"] = [{"enum": sorted(BACKEND_TYPES)}, {"type": "string"}]
        backend.pop("type", None)
        schema_dict["properties"]["agent"] = {
            "$ref": "#/$defs/AgentSpec",
            "description": "A single agent, instead of `agents`.",
        }
        schema_dict.pop("required", None)
        schema_dict["anyOf"] = [{"required": ["agents"]}, {"required": ["agent"]}]
    head = {"$schema": DIALECT, "title": f"nb_agents {kind}"}
    return {**head, **{k: v for k, v in schema_dict.items() if k != "title"}, "$defs": definitions}


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the docstring's descriptions to a class's schema, and allow null for all keys."""
    schema["description"] = _first_line(model)
    schema.pop("title", None)
    loose = set(_loose(model))
    descriptions = {n: text for each in reversed(model.__mro__) for n, text in _attributes(each)}
    for name, subschema in schema.get("properties", {}).items():
        subschema.pop("title", None)
        subschema.pop("default", None)
        rest = {key: subschema.pop(key) for key in list(subschema)}
        if name not in loose:
            kinds = [*rest.pop("anyOf", []), *([rest] if rest else [])]
            subschema.update({"anyOf": [*(k for k in kinds if k != _NULL), _NULL]} if kinds else {})
        if name in descriptions:
            subschema["description"] = descriptions[name]


_NULL = {"type": "null"}
_READERS = (BeforeValidator, PlainValidator, WrapValidator)
_BEFORE = ("before", "wrap", "plain")


def _loose(model: type[BaseModel]) -> Iterator[str]:
    """Yield the keys that accept more types than their field, because a validator converts them."""
    for validator in model.__pydantic_decorators__.field_validators.values():
        if validator.info.mode in _BEFORE:
            yield from validator.info.fields
    for name, field in model.model_fields.items():
        if any(isinstance(each, _READERS) for each in field.metadata):
            yield name


def _first_line(model: Callable[..., Any]) -> str:
    return (inspect.getdoc(model) or "").partition("\n\n")[0]


def _attributes(model: type) -> Iterator[tuple[str, str]]:
    """Yield (name, description) from the Attributes section of a class's docstring."""
    _, _, attributes = (inspect.cleandoc(model.__dict__.get("__doc__") or "")).partition(
        "Attributes:"
    )
    for names, text in _ATTRIBUTE.findall(attributes.partition("\nExample:")[0]):
        for name in names.split(", "):
            yield name, " ".join(text.split())


def _subclasses(of: type[BaseModel]) -> Iterator[type[BaseModel]]:
    children: list[type[BaseModel]] = of.__subclasses__()
    for each in children:
        yield each
        yield from _subclasses(each)
