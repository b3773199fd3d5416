"""The bodies of requests, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from nb_agents.verbs.facts import (
    PastTurnFacts,
    RowCounts,
    SessionFacts,
    SweepFacts,
    TurnFacts,
    WholeTurnFacts,
)
from nb_agents.verbs.requests import BODIES, Request, TrustingRequest
from nb_agents.verbs.table import ROUTES


class NextTask(TrustingRequest):
    """Body of a request for the next turn of a session."""

    task: str = Field(min_length=1, description="The task of the next turn.")


class Rename(Request):
    """Body of a request to rename a session."""

    name: str = Field(min_length=1, max_length=200, description="The new id.")


class Start(TrustingRequest):
    """Body of a request to start a run in a process of its own."""

    task: str = Field("", description="What is asked; a recipe asks for itself.")
    config: str | None = Field(None, description="A team file; by default demo agents.")
    recipe: str | None = Field(None, description="A recipe file.")
    context: dict[str, Any] | None = Field(None, description="What the recipe starts with.")
    session: str | None = Field(None, description="The session to go on in, or to begin.")
    folder: str = Field("", description="Where it works: files and sessions are named from there.")


Tool = Literal["enable_web_search", "enable_mcp_command_line", "enable_code_interpreter"]
"""Keys of the tools that a new team is offered."""


class NewFile(Request):
    """Body of a request for the text of a new file."""

    kind: Literal["team", "notebook"] = Field("team", description="What it is to be.")
    models: list[str] = Field(
        [], max_length=20, description="An agent for each, as type:model; none is the demo."
    )
    tools: list[Tool] = Field([], description="Tools that the agents of a team have.")


class CheckedText(Request):
    """Body of a request to check a text."""

    text: str = Field(description="Source of a team file or a recipe.")
    file: str = Field("", description="Its path from the server's root on, for its own paths.")


_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The directory of the turn or the sweep from the server's root on, with its "
    "slashes; or the whole path of one elsewhere; or in a session root the session's id and "
    "`turn_1`, or the sweep's name.",
    "schema": {"type": "string"},
}
_SESSION = {**_ID, "description": "The session's directory, as a turn's."}


def _object(**types: str | dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object from the types of its properties, such as "number|null"."""
    named = {
        name: each if isinstance(each, dict) else {"type": each.split("|")}
        for name, each in types.items()
    }
    return {"type": "object", "properties": named, "required": list(named)}


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


FACTS: tuple[type, ...] = (
    TurnFacts,
    WholeTurnFacts,
    SweepFacts,
    RowCounts,
    SessionFacts,
    PastTurnFacts,
)
"""What replies tell of turns, sweeps and sessions."""
_REF = "#/components/schemas/{model}"
_, _SCHEMAS = TypeAdapter.json_schemas(
    [(kind, "serialization", TypeAdapter(kind)) for kind in FACTS], ref_template=_REF
)


def _named(*kinds: type, **more: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one of these, with its name."""
    known = [{"$ref": _REF.format(model=kind.__name__)} for kind in kinds]
    return {"allOf": [{"anyOf": known}, _object(id="string", **more)]}


_SHOWN = _named(WholeTurnFacts, SweepFacts)
_SWEEP = {**_named(SweepFacts), "description": "Of a sweep, which has no turns of its own."}
_SESSION_STATE = _named(SessionFacts, turns=_list_of(_object(id="string")))
_LISTED_SWEEP = _object(
    id="string", session="string", turns=_list_of({"type": "object"}), sweep=_SWEEP
)
_BEGUN_TURN = _object(id="string", session="string", turn="integer", status="string")
_ASKED_STATE = _object(id="string", status="string")
_RENAMED = _object(id="string", session="string")
_REFUSAL = _object(message="string")

_STREAM = "Server-sent events; closing them stops nothing."
_DRAWN = f"{_STREAM} Each has the panel's state, and the last one the card."
_BEGUN = {"202": "It has begun, as the turn that `id` names; with `session`, `turn`, `status`."}
_ASKED = {
    "202": "It was asked, and `status` says how it stands. A stop says in `changed` whether it was "
    "not asked before. The turn that goes on is the one that `id` names, or with `times` the "
    "sweep of them."
}
_NUMBER = {"name": "n", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}


def _of_runs() -> dict[str, Any]:
    return {
        "/runs": _get(
            "What is live: turns, and sweeps in the place of their rows' turns.",
            "A list of `TurnFacts` and `SweepFacts`, each with its `id`.",
            schema=_list_of(_named(TurnFacts, SweepFacts)),
        )
        | _post("Start a run that outlives this server.", Start, _BEGUN, _BEGUN_TURN),
        "/runs/{id}": _get(
            "A turn or a sweep, live or over.",
            "`WholeTurnFacts` or `SweepFacts`, with its `id`.",
            _ID,
            schema=_SHOWN,
        ),
        "/runs/{id}/events": _get(
            "The events of a turn, or of a sweep how its rows began and ended, after "
            "`Last-Event-ID`.",
            f"{_STREAM} Each has an event as in the turn's `events.jsonl`, or a line of the "
            "sweep's `rows.jsonl`.",
            _ID,
        ),
        "/runs/{id}/transcript": _get(
            "What an agent wrote and did, from byte `after` of the journal on.",
            "`pieces`, the `end` up to which was read, and whether there is `more` by now.",
            _ID,
            _QUERY_AGENT,
            _QUERY_AFTER,
            refused={"400": "`after` is not a number of bytes, or there is no `agent`."},
        ),
        "/runs/{id}/timeline": _get(
            "The timeline of a turn so far, drawn.",
            "Its `html`, or an empty text before anything has happened.",
            _ID,
            schema=_object(html="string"),
        ),
        "/runs/{id}/view": _get("How it is drawn.", _DRAWN, _ID),
        "/view": _get("How all that `id` names is drawn.", _DRAWN, _QUERY_IDS),
        **{
            f"/runs/{{id}}/{route}": _post(verb.help, BODIES[route], _ASKED, _ASKED_STATE, _ID)
            for route, verb in ROUTES.items()
        },
    }


def _of_sessions() -> dict[str, Any]:
    turns = "/sessions/{id}/turns/{n}"
    goes_on = "Ask its team something new, as its next turn."
    renamed = {"200": "Its new `id` and name."}
    return {
        "/sessions": _get(
            "The sweeps on disk, and of each root the thousand sessions that were used last.",
            "A list of `SessionFacts`, each with its `id`, and so have its turns. A sweep has "
            "`sweep`, its `SweepFacts`, and no turns.",
            _QUERY_FOLDER,
            _QUERY_SWEEP,
            schema=_list_of({"anyOf": [_LISTED_SWEEP, _SESSION_STATE]}),
        ),
        "/sessions/{id}": _get(
            "A session.", "`SessionFacts`, with its `id`.", _SESSION, schema=_SESSION_STATE
        )
        | _delete("Delete it and all its files.", _SESSION),
        "/sessions/{id}/continue": _post(goes_on, NextTask, _BEGUN, _BEGUN_TURN, _SESSION),
        "/sessions/{id}/rename": _post("Rename it.", Rename, renamed, _RENAMED, _SESSION),
        "/sessions/{id}/export": _get("All its files.", "A zip, of one directory.", _SESSION),
        turns: _get(
            "A turn, live or over.",
            "`WholeTurnFacts`, with its `id`.",
            _SESSION,
            _NUMBER,
            schema=_named(WholeTurnFacts),
        ),
        f"{turns}/view": _get("How it is drawn.", _DRAWN, _SESSION, _NUMBER),
    }


def _of_files() -> dict[str, Any]:
    return {
        "/contents/{path}": _get(
            "A directory or a file of a turn, as Jupyter's contents API has it.",
            "Its model: session, turn and path within it make its `path`.",
            _PATH,
            refused={"413": "It is too large to be shown."},
        ),
        "/files/{path}": _get(
            "A file of a turn.",
            "Its bytes: images and text as what they are, all else to be saved.",
            _PATH,
        ),
    }


def _of_new_files() -> dict[str, Any]:
    provider = _object(type="string", where="string", models=_list_of({"type": "string"}))
    finding = _object(severity="string", what="string", line="integer", column="integer")
    tool = _object(key="string", label="string")
    return {
        "/new": _get(
            "What a new team can be made of.",
            "`providers` whose key is set here, or whose server answers on this machine, each "
            "with its `models`; `tools` by their keys.",
            schema=_object(providers=_list_of(provider), tools=_list_of(tool)),
        )
        | _post(
            "Make the text of a new file, which is not written.",
            NewFile,
            {"200": "Its `text`, as it would be saved."},
            _object(text="string"),
        ),
        "/check": _post(
            "Check the text of a team file or a recipe without running anything.",
            CheckedText,
            {"200": "`findings` with their places: of `severity` error, warning or info."},
            _object(findings=_list_of(finding)),
        ),
    }


def document(base_url: str) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        base_url: What the server's paths begin with.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "nb_agents", "version": "1", "license": {"name": "MIT"}},
        "servers": [{"url": base_url.rstrip("/") + "/nb-agents"}],
        "paths": {**_of_runs(), **_of_sessions(), **_of_files(), **_of_new_files()},
        "components": {
            "schemas": _SCHEMAS["$defs"],
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "Authorization"}
            },
        },
        "security": [{"token": []}],
    }


_QUERY_IDS = {
    "name": "id",
    "in": "query",
    "schema": {"type": "array", "items": {"type": "string"}, "maxItems": 200},
}
_PATH = {"name": "path", "in": "path", "required": True, "schema": {"type": "string"}}
_QUERY_AGENT = {
    "name": "agent",
    "in": "query",
    "required": True,
    "description": "An agent's id, or the address of a recipe's step.",
    "schema": {"type": "string"},
}
_QUERY_AFTER = {
    "name": "after",
    "in": "query",
    "schema": {"type": "integer", "minimum": 0, "default": 0},
}
_QUERY_FOLDER = {
    "name": "folder",
    "in": "query",
    "description": "Folders of notebooks, whose sessions are listed too.",
    "schema": {"type": "array", "items": {"type": "string"}, "maxItems": 100},
}

_QUERY_SWEEP = {
    "name": "sweep",
    "in": "query",
    "description": "The one sweep whose rows' sessions are listed; of many, those used last.",
    "schema": {"type": "string"},
}


_REFUSED = {"403": "The token or the server's authorizer does not allow it."}
_UNKNOWN = {**_REFUSED, "404": "Nothing of that name is there."}


def _get(
    summary: str,
    found: str,
    *parameters: dict[str, Any],
    schema: dict[str, Any] | None = None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    replies = _replies({"200": found, **_UNKNOWN, **refused}, schema)
    return {"get": {"summary": summary, "parameters": [*parameters], "responses": replies}}


def _delete(summary: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    replies = _replies({"204": "It is gone.", **_UNKNOWN, "409": "A turn of it is live."})
    return {"delete": {"summary": summary, "parameters": [*parameters], "responses": replies}}


def _post(
    summary: str,
    body: type[Request],
    done: dict[str, str],
    schema: dict[str, Any],
    *parameters: dict[str, Any],
) -> dict[str, Any]:
    replies = {
        **done,
        **_UNKNOWN,
        "400": "The body is not as it must be; `message` says what of it.",
        "409": "It is over, with its `status`; or not at a point where this can be asked.",
        "413": "The body is too large.",
    }
    if issubclass(body, TrustingRequest):
        replies["428"] = (
            "The session was not made by this user: `message` lists what it would run. With "
            "`trust` it is gone on with."
        )
    return {
        "post": {
            "summary": summary,
            "parameters": [*parameters],
            "requestBody": {"content": {"application/json": {"schema": body.model_json_schema()}}},
            "responses": _replies(replies, schema),
        }
    }


def _replies(says: dict[str, str], schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the replies by HTTP status; `schema` is that of a success."""
    replies: dict[str, Any] = {}
    for code, text in says.items():
        replies[code] = {"description": text}
        shape = schema if code.startswith("2") else _REFUSAL
        if shape:
            replies[code]["content"] = {"application/json": {"schema": shape}}
    return replies
