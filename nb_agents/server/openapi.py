"""Defines request bodies, and generates the OpenAPI document from the table of routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from nb_agents.routes import ROUTES, Route
from nb_agents.turns.groups import GroupKind, kinds
from nb_agents.verbs.facts import (
    PastTurnFacts,
    SessionFacts,
    TurnFacts,
    WholeTurnFacts,
)
from nb_agents.verbs.parameters import HTTP_NEXT_TASK, HTTP_RESUME, HTTP_START
from nb_agents.verbs.requests import BODIES, Request, body_of
from nb_agents.verbs.table import ROUTES as VERBS

Start = body_of(
    "Start",
    "Body of a request to start a run in a separate process.",
    HTTP_START,
    task=(str, Field("", description="The task. Empty for a recipe.")),
    folder=(
        str,
        Field("", description="The working directory. Files and sessions are relative to it."),
    ),
)
NextTask = body_of(
    "NextTask",
    "Body of a request for the next turn of a session.",
    HTTP_NEXT_TASK,
    task=(str, Field(min_length=1, description="The task of the next turn.")),
)
Resume = body_of("Resume", "Body of a request to resume a turn.", HTTP_RESUME)


class Rename(Request):
    """Body of a request to rename a session."""

    name: str = Field(min_length=1, max_length=200, description="The new id.")


Tool = Literal["enable_web_search", "enable_mcp_command_line", "enable_code_interpreter"]
"""Keys of the tools that the form for a new team offers."""


class NewTeamAgent(Request):
    """An agent in the body of a request for the text of a new team file."""

    model: str = Field(max_length=300, description="The model as type:model, or demo.")
    name: str = Field("", max_length=100, description="The agent's id. Empty: a default name.")
    role: str = Field("", max_length=20_000, description="The agent's system message.")
    base_url: str = Field("", max_length=2000, description="The address of the model's server.")


class NewFile(Request):
    """Body of a request for the text of a new file."""

    kind: Literal["team", "notebook"] = Field("team", description="The kind of file.")
    models: list[str] = Field(
        [],
        max_length=20,
        description="Models as type:model, one per agent. By default, the demo model.",
    )
    agents: list[NewTeamAgent] = Field(
        [], max_length=20, description="The agents of a team file, instead of models."
    )
    tools: list[Tool] = Field([], description="Keys of the tools that the agents can use.")


class CheckedText(Request):
    """Body of a request to check a text."""

    text: str = Field(description="Text of a team file or recipe.")
    file: str = Field("", description="The file's path, for resolving relative paths in the text.")


class AuthoredText(Request):
    """Body of a request for the authors of a text's lines."""

    path: str = Field(
        max_length=4000,
        description="The file's path below the server's root, or the session, the turn and the "
        "path in the turn.",
    )
    text: str = Field(description="The text, which may differ from the file's content.")


_BODIES: dict[str, type[BaseModel]] = {
    kind.__name__: kind
    for kind in (NextTask, Rename, Resume, Start, NewFile, CheckedText, AuthoredText)
}
"""The classes of request bodies, by the names in the table of routes."""


def _object(**types: str | dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object.

    The type of a property may be a union, such as "number|null".
    """
    named = {
        name: each if isinstance(each, dict) else {"type": each.split("|")}
        for name, each in types.items()
    }
    return {"type": "object", "properties": named, "required": list(named)}


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


KINDS = kinds()
FACTS: tuple[type, ...] = (
    TurnFacts,
    WholeTurnFacts,
    *(each for kind in KINDS for each in kind.facts_types()),
    SessionFacts,
    PastTurnFacts,
)
"""The models of turns, groups and sessions in replies."""
_REF = "#/components/schemas/{model}"
_, _MODELS = TypeAdapter.json_schemas(
    [(kind, "serialization", TypeAdapter(kind)) for kind in FACTS], ref_template=_REF
)


def _named_schema(*kinds: type, **more: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of any of these models, with an additional ``id``."""
    references = [{"$ref": _REF.format(model=kind.__name__)} for kind in kinds]
    return {"allOf": [{"anyOf": references}, _object(id="string", **more)]}


def _listed_group(kind: GroupKind) -> dict[str, Any]:
    """Return the schema of a group in a list of sessions."""
    facts = _named_schema(kind.facts_types()[0])
    facts["description"] = f"The facts of a {kind.noun}. It has no turns itself."
    turns = _list_of({"type": "object"})
    return _object(id="string", session="string", turns=turns, **{kind.noun: facts})


_GROUPS = [kind.facts_types()[0] for kind in KINDS]
_SESSION = _named_schema(SessionFacts, turns=_list_of(_object(id="string")))
_PROVIDER = _object(type="string", where="string", models=_list_of({"type": "string"}))
_OFFERED_TYPE = _object(
    type="string",
    variables=_list_of({"type": "string"}),
    found="string",
    base_url="string",
    takes_address="boolean",
)
_FINDING = _object(
    severity="string",
    code="string",
    what="string",
    message="string",
    remedy="string",
    line="integer",
    column="integer",
)

_CALL = _object(
    agent="string",
    call="string",
    tool="string",
    model="string",
    at="number",
    session="string",
    turn="integer",
    prompt="string",
)

_SCHEMAS: dict[str, dict[str, Any]] = {
    "Asked": _object(id="string", status="string"),
    "Authors": _object(
        calls=_list_of(_CALL),
        lines=_list_of({"type": ["integer", "null"]}),
        is_current="boolean",
    ),
    "Begun": _object(id="string", session="string", turn="integer", status="string"),
    "Findings": _object(findings=_list_of(_FINDING)),
    "NewOptions": _object(
        providers=_list_of(_PROVIDER),
        types=_list_of(_OFFERED_TYPE),
        tools=_list_of(_object(key="string", label="string")),
    ),
    "NewText": _object(text="string"),
    "Renamed": _object(id="string", session="string"),
    "Run": _named_schema(WholeTurnFacts, *_GROUPS),
    "Runs": _list_of(_named_schema(TurnFacts, *_GROUPS)),
    "Session": _SESSION,
    "Sessions": _list_of({"anyOf": [*map(_listed_group, KINDS), _SESSION]}),
    "Timeline": _object(html="string"),
    "Turn": _named_schema(WholeTurnFacts),
}
"""The schemas of replies, by the names in the table of routes."""
_REFUSAL = _object(message="string")


def _text(description: str = "", **schema: Any) -> dict[str, Any]:
    return {"schema": {"type": "string", **schema}, "description": description}


_PARAMETERS: dict[str, dict[str, Any]] = {
    "id": _text(
        "The directory of the turn, session or sweep: a path relative to the server's root "
        "(slashes are not percent-encoded), an absolute path, or a path relative to a session "
        "root, such as `SESSION/turn_1` or a sweep's name."
    ),
    "n": {"schema": {"type": "integer", "minimum": 1}, "description": "The turn's number."},
    "path": _text("The directory of a turn, followed by a path within it."),
}
_QUERIES: dict[str, dict[str, Any]] = {
    "id": {
        "schema": {"type": "array", "items": {"type": "string"}, "maxItems": 200},
        "description": "The ids of the turns and sweeps to show.",
    },
    "agent": {**_text("An agent's id, or the address of a recipe's step."), "required": True},
    "after": {
        "schema": {"type": "integer", "minimum": 0, "default": 0},
        "description": "The `end` of the previous reply.",
    },
    "folder": {
        "schema": {"type": "array", "items": {"type": "string"}, "maxItems": 100},
        "description": "Directories of notebooks whose sessions are listed as well.",
    },
    **{
        kind.noun: _text(
            f"A {kind.noun}. Only the most recently used sessions of its rows are listed."
        )
        for kind in KINDS
    },
}


def document(base_url: str) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        base_url: The server's base URL.
    """
    paths: dict[str, dict[str, Any]] = {}
    for path, method, operation in _operations():
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "nb_agents", "version": "1", "license": {"name": "MIT"}},
        "servers": [{"url": base_url.rstrip("/") + "/nb-agents"}],
        "paths": paths,
        "components": {
            "schemas": _MODELS["$defs"],
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "Authorization"}
            },
        },
        "security": [{"token": []}],
    }


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the path, the method and the description of each operation."""
    for route in ROUTES:
        if "verb" not in route.parameters:
            body = _BODIES[route.body] if route.body else None
            yield route.path, route.method.lower(), _operation(route, route.summary, body)
            continue
        for name, verb in VERBS.items():
            operation = _operation(route, verb.help, BODIES[name])
            yield route.path.replace("{verb}", name), route.method.lower(), operation


def _operation(route: Route, summary: str, body: type[BaseModel] | None) -> dict[str, Any]:
    inside = [
        {"name": name, "in": "path", "required": True, **_PARAMETERS[name]}
        for name in route.parameters
        if name != "verb"
    ]
    # The query of a kind of group is in the table of routes, even if the kind is not installed.
    query_names = (name for name in route.query if name in _QUERIES)
    query_parameters = [{"name": name, "in": "query", **_QUERIES[name]} for name in query_names]
    operation: dict[str, Any] = {"summary": summary, "parameters": [*inside, *query_parameters]}
    if body is not None:
        content = {"application/json": {"schema": body.model_json_schema()}}
        operation["requestBody"] = {"content": content}
    return {**operation, "responses": _responses(route, body)}


def _responses(route: Route, body: type[BaseModel] | None) -> dict[str, Any]:
    done: dict[str, Any] = {"description": route.reply}
    if route.schema:
        done["content"] = {"application/json": {"schema": _SCHEMAS[route.schema]}}
    refusal = {"application/json": {"schema": _REFUSAL}}
    refused = {
        str(code): {"description": text, "content": refusal}
        for code, text in _refusals(route, body)
    }
    return {str(route.status): done, **refused}


def _refusals(route: Route, body: type[BaseModel] | None) -> Iterator[tuple[int, str]]:
    """Yield the HTTP error statuses, with their meaning."""
    yield 403, "The token or the server's authorizer does not allow this."
    yield 404, "Not found: no run, session or sweep has this name."
    if body is not None:
        yield 400, "Invalid request body; see `message`."
        yield 413, "The request body is too large."
    if body is not None and "trust" in body.model_fields:
        yield (
            428,
            "The session was created by another user or on another machine. `message` lists what "
            "it would run. Send `trust` to use it anyway.",
        )
    yield from route.refusals.items()
