"""JSON schemas of team files and recipes, made from the classes that read them.

An editor shows with them what a key means, completes keys and marks a value of the wrong kind as
it is typed. Keys that are not ours are left alone, as the reader leaves them: MassGen has more.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, BeforeValidator, PlainValidator, WrapValidator

from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.recipe import Recipe
from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"

SchemaKind = Literal["team", "recipe"]

_ATTRIBUTE = re.compile(r"^    (\w[\w, ]*): (.+(?:\n     {3,}.+)*)", re.MULTILINE)


def json_schema(kind: SchemaKind) -> dict[str, Any]:
    """Return the schema of a kind of file, in JSON Schema 2020-12.

    Args:
        kind: "team" or "recipe".
    """
    model = TeamSpec if kind == "team" else Recipe
    made = model.model_json_schema(mode="validation")
    classes = {each.__name__: each for each in _subclasses(Spec)}
    for name, schema in (*made.pop("$defs", {}).items(), (model.__name__, made)):
        if name in classes:
            _describe(schema, classes[name])
        made.setdefault("$defs", {})[name] = schema
    definitions = made.pop("$defs")
    del definitions[model.__name__]
    if kind == "team":
        backend = definitions["BackendSpec"]["properties"]["type"]
        backend["anyOf"] = [{"enum": sorted(BACKEND_TYPES)}, {"type": "string"}]
        backend.pop("type", None)
        made["properties"]["agent"] = {"$ref": "#/$defs/AgentSpec", "description": "A lone agent."}
        made.pop("required", None)
        made["anyOf"] = [{"required": ["agents"]}, {"required": ["agent"]}]
    head = {"$schema": DIALECT, "title": f"A {kind} of nb_agents"}
    return {**head, **{k: v for k, v in made.items() if k != "title"}, "$defs": definitions}


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Give a class's schema the words of its docstring, and let a key be without a value."""
    schema["description"] = _first_line(model)
    schema.pop("title", None)
    loose = set(_loose(model))
    told = {name: words for each in reversed(model.__mro__) for name, words in _attributes(each)}
    for name, found in schema.get("properties", {}).items():
        found.pop("title", None)
        found.pop("default", None)
        kept = {key: found.pop(key) for key in list(found)}
        if name not in loose:
            kinds = [*kept.pop("anyOf", []), *([kept] if kept else [])]
            found.update({"anyOf": [*(k for k in kinds if k != _NULL), _NULL]} if kinds else {})
        if name in told:
            found["description"] = told[name]


_NULL = {"type": "null"}
_READERS = (BeforeValidator, PlainValidator, WrapValidator)
_BEFORE = ("before", "wrap", "plain")


def _loose(model: type[BaseModel]) -> Iterator[str]:
    """Yield the keys that may be written in more kinds than their field has."""
    for validator in model.__pydantic_decorators__.field_validators.values():
        if validator.info.mode in _BEFORE:
            yield from validator.info.fields
    for name, known in model.model_fields.items():
        if any(isinstance(each, _READERS) for each in known.metadata):
            yield name


def _first_line(model: Callable[..., Any]) -> str:
    return (inspect.getdoc(model) or "").partition("\n\n")[0]


def _attributes(model: type) -> Iterator[tuple[str, str]]:
    """Yield what a class's own docstring says of its attributes."""
    _, _, listed = (inspect.cleandoc(model.__dict__.get("__doc__") or "")).partition("Attributes:")
    for names, words in _ATTRIBUTE.findall(listed.partition("\nExample:")[0]):
        for name in names.split(", "):
            yield name, " ".join(words.split())


def _subclasses(of: type[BaseModel]) -> Iterator[type[BaseModel]]:
    children: list[type[BaseModel]] = of.__subclasses__()
    for each in children:
        yield each
        yield from _subclasses(each)
