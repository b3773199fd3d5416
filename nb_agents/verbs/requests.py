"""The bodies of requests for verbs, by programs and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from nb_agents.errors import UserError
from nb_agents.verbs.table import ROUTES
from nb_agents.verbs.verb import Parameter, Verb

MAX_TEXT = 20_000
"""Characters, as `MAX_SAID` of a run."""

_Body = TypeVar("_Body", bound=BaseModel)


class Request(BaseModel):
    """A request's body; other keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TrustingRequest(Request):
    """A request that may go on with a session."""

    trust: bool = Field(False, description="Go on with a session that this user has not made here.")


_MORE: dict[str, dict[str, Any]] = {
    "stop": {
        "sweep": (bool, Field(False, description="With it the sweep that it is a row of.")),
        "source": (Literal["rest", "widget"], Field("rest", description="Where it was asked.")),
    },
}
"""What requests of a verb hold besides its arguments, by its route."""


def _body_of(verb: Verb) -> type[Request]:
    sent = (each for each in verb.parameters if "http" in each.interfaces)
    fields: dict[str, Any] = {each.name: _field(each) for each in sent}
    base = TrustingRequest if verb.route in ("resume", "rewind") else Request
    more = _MORE.get(verb.route, {})
    return create_model(f"{verb.route.capitalize()}Body", __base__=base, **fields, **more)


def _field(parameter: Parameter) -> Any:
    more: dict[str, Any] = {
        "alias": parameter.wire or parameter.name,
        "description": f"{parameter.help[:1].upper()}{parameter.help[1:]}.",
    }
    if parameter.default is False:
        return bool, Field(False, **more)
    if parameter.kind is int:
        return int | None, Field(None, **more)
    if parameter.default is None:
        return str | None, Field(None, **more)
    if parameter.is_required:
        return str, Field(min_length=1, max_length=MAX_TEXT, **more)
    return str, Field(parameter.default, max_length=MAX_TEXT, **more)


BODIES: dict[str, type[Request]] = {route: _body_of(verb) for route, verb in ROUTES.items()}
"""What requests of the verbs hold, by the last word of the route."""


def read(kind: type[_Body], sent: bytes | Mapping[str, Any]) -> _Body:
    """Read what a request holds.

    Args:
        kind: What it must hold.
        sent: It, as JSON or decoded.

    Raises:
        UserError: It holds something else.
    """
    try:
        if isinstance(sent, bytes):
            return kind.model_validate_json(sent)
        return kind.model_validate(sent)
    except ValidationError as exc:
        faults = [f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in exc.errors()]
        raise UserError(f"{'; '.join(faults)}. openapi.json lists what can be sent.") from None


def values_of(body: Request) -> dict[str, Any]:
    """Return the arguments of the verb that a request asks for, by their names."""
    own = {"trust"} if isinstance(body, BODIES["resume"]) else set()
    return body.model_dump(exclude={"sweep", "source", *own})
