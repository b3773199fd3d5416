"""Request bodies of the verbs, for REST and for messages from pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from nb_agents.errors import UserError
from nb_agents.signatures import Argument
from nb_agents.turns.groups import kinds
from nb_agents.verbs.table import by_route
from nb_agents.verbs.verb import Parameter, Verb

_Body = TypeVar("_Body", bound=BaseModel)


class Request(BaseModel):
    """Base class of request bodies. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


_MORE: dict[str, dict[str, Any]] = {
    "stop": {
        **{
            kind.noun: (
                bool,
                Field(False, description=f"Also stop the {kind.noun} to which the run belongs."),
            )
            for kind in kinds()
        },
        "source": (
            Literal["rest", "widget"],
            Field("rest", description="The interface in which the stop was requested."),
        ),
    },
}
"""Fields of a request in addition to the verb's arguments, by route."""


def _body_of(verb: Verb) -> type[Request]:
    sent = (each for each in verb.parameters if "http" in each.interfaces)
    fields: dict[str, Any] = {each.name: _field(each) for each in sent}
    more = _MORE.get(verb.route, {})
    return create_model(f"{verb.route.capitalize()}Body", __base__=Request, **fields, **more)


def body_of(name: str, doc: str, arguments: Iterable[Argument], **more: Any) -> type[Request]:
    """Create the class of a request body.

    Args:
        name: The name of the class.
        doc: Its docstring.
        arguments: The fields that are arguments of a request for a run. Null means the default.
        more: Other fields by name, as pydantic's `create_model` takes them.
    """
    fields: dict[str, Any] = {each.name: _argument(each) for each in arguments}
    return create_model(name, __base__=Request, __doc__=doc, **more, **fields)


def _argument(argument: Argument) -> Any:
    description = f"{argument.help[:1].upper()}{argument.help[1:]}."
    if argument.kind is bool:
        return bool, Field(False, description=description)
    kind: Any = dict[str, Any] if argument.kind is dict else argument.kind
    if argument.choices:
        kind = Literal[argument.choices]
    return kind | None, Field(None, description=description)


def _field(parameter: Parameter) -> Any:
    more: dict[str, Any] = {
        "alias": parameter.wire or parameter.name,
        "description": f"{parameter.help[:1].upper()}{parameter.help[1:]}.",
    }
    if parameter.default is False:
        return bool, Field(False, **more)
    if parameter.default == ():
        return list[str], Field([], **more)
    if parameter.kind in (int, float):
        return _number_field(parameter, more)
    if parameter.default is None:
        return str | None, Field(None, max_length=parameter.max_chars, **more)
    if parameter.is_required:
        return str, Field(min_length=1, max_length=parameter.max_chars, **more)
    return str, Field(parameter.default, max_length=parameter.max_chars, **more)


def _number_field(parameter: Parameter, more: dict[str, Any]) -> Any:
    if parameter.is_required:
        return parameter.kind, Field(**more)
    default = None if parameter.default == "" else parameter.default
    return parameter.kind | None, Field(default, **more)


BODIES = by_route(_body_of)
"""Models of the request bodies, by the last word of the route."""


def read(kind: type[_Body], sent: bytes | Mapping[str, Any]) -> _Body:
    """Validate a request body.

    Args:
        kind: The model to validate with.
        sent: The body, as JSON or decoded.

    Raises:
        UserError: The body is invalid.
    """
    try:
        if isinstance(sent, bytes):
            return kind.model_validate_json(sent)
        return kind.model_validate(sent)
    except ValidationError as exc:
        errors = [f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in exc.errors()]
        raise UserError(f"{'; '.join(errors)}. openapi.json describes valid requests.") from None


def values_of(body: Request) -> dict[str, Any]:
    """Return the arguments of a request's verb by name."""
    return body.model_dump(exclude={"source", *(kind.noun for kind in kinds())})
