"""What of a team means nothing here, and what can't run here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import BaseModel

from nb_agents.config.backends import why_unsupported
from nb_agents.config.orchestrator import OrchestratorSpec

__all__ = ["Unsupported", "foreign_keys", "foreign_values", "unsupported"]


class Unsupported(NamedTuple):
    """An agent that can't run here.

    Attributes:
        agent: Its id.
        type: Its backend type.
        why: What that is, in a sentence or two.
    """

    agent: str
    type: str
    why: str


def foreign_keys(spec: BaseModel, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Give every key below a spec that it does not know, as a dotted path without positions."""
    for key in spec.model_extra or {}:
        yield ".".join((*path, key))
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, BaseModel):
                yield from foreign_keys(item, (*path, name))


def foreign_values(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Give every value that MassGen knows and we take for another, with the one we take."""
    given, taken = orchestrator.voting_sensitivity, orchestrator.voting_criteria
    if given != taken:
        yield f"orchestrator.voting_sensitivity: {given} ({taken} is used)"


def unsupported(types: Iterable[tuple[str, str]]) -> Iterator[Unsupported]:
    """Give those of some (agent id, backend type) that can't run here."""
    for agent, kind in types:
        if why := why_unsupported(kind):
            yield Unsupported(agent, kind, why)
