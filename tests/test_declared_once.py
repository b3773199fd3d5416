"""An argument that a request declares is offered by all user interfaces without a further edit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import typer

import nb_agents
from nb_agents.client import Client
from tests.kit.cells import VERBS, AgentsMagics, actions_of
from tests.kit.runs import ResumeRequest, RewindRequest, StartRequest
from tests.kit.servers import document
from tests.kit.terminal import app
from tests.kit.verbs import (
    NOT_IN_REWIND,
    NOT_OVER_HTTP,
    ONLY_IN_PYTHON,
    arguments_in,
    arguments_of,
    body_of,
    described,
    on_lines,
    takes_keywords,
)

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PATHS = document("/")["paths"]
OPTIONS = {each.name for each in fields(nb_agents.RunOptions)} - {*ONLY_IN_PYTHON}


@dataclass(frozen=True)
class Wish(StartRequest):
    patience: int | None = field(default=None, metadata=described("how long to wait", metavar="N"))


OPTION_ARGUMENTS = arguments_of(nb_agents.RunOptions, without=ONLY_IN_PYTHON)


def flags_of(request: type, *without: str) -> set[str]:
    """Return an option's first spelling for each argument that lines offer."""
    taken = {each.name: each for each in (*arguments_of(request), *OPTION_ARGUMENTS)}
    in_place = {"tools", "options", "context"}  # text alone can't express them
    return {
        (each.flags or ("--" + name.replace("_", "-"),))[0]
        for name, each in taken.items()
        if name not in in_place and name not in without
    }


LINES: list[tuple[str, type, tuple[str, ...]]] = [
    ("run", StartRequest, ("task",)),
    ("resume", ResumeRequest, ("session", "from_turn", "skip_unsupported")),
    ("rewind", RewindRequest, NOT_IN_REWIND),
]


@pytest.mark.parametrize(("verb", "request_", "without"), LINES, ids=lambda each: str(each)[:8])
def test_commands_and_cells_offer_the_arguments(
    verb: str, request_: type, without: Iterable[str]
) -> None:
    cell = AgentsMagics.agents if verb == "run" else VERBS[verb]
    expected = flags_of(request_, *without)
    assert expected <= {name for each in COMMANDS[verb].params for name in each.opts}
    assert expected <= {name for each in actions_of(cell) for name in each.option_strings}


def body_at(path: str) -> Mapping[str, Any]:
    """Return the properties of the body of a POST request."""
    content = PATHS[path]["post"]["requestBody"]["content"]["application/json"]
    properties: Mapping[str, Any] = content["schema"]["properties"]
    return properties


BODIES = [
    ("/runs", Client.start, StartRequest, ("continue_",)),
    ("/runs/{id}/resume", Client.resume, ResumeRequest, ("session", "skip_unsupported")),
    ("/runs/{id}/rewind", Client.rewind, RewindRequest, ("turn", "skip_unsupported")),
]


@pytest.mark.parametrize(
    ("path", "method", "request_", "without"), BODIES, ids=lambda each: str(each)[:20]
)
def test_rest_and_client_offer_the_arguments(
    path: str, method: Callable[..., object], request_: type, without: Iterable[str]
) -> None:
    expected = {each.name for each in arguments_of(request_)} | OPTIONS
    expected -= {*NOT_OVER_HTTP, *without}
    assert expected <= body_at(path).keys()
    assert expected <= inspect.signature(method).parameters.keys()
    doc = inspect.getdoc(method) or ""
    assert all(f"\n    {name}: " in doc for name in expected)


def test_added_argument_appears_on_lines_in_bodies_and_signatures() -> None:
    (line,) = [each for each in on_lines(Wish, without=()) if each.name == "patience"]
    assert (line.spellings, line.kind, line.usage) == (("--patience",), int, "[--patience N]")

    offered = arguments_in(Wish, without=("task", *NOT_OVER_HTTP))
    body = body_of("Wish", "A wish.", offered).model_json_schema()["properties"]["patience"]
    assert body["description"] == "How long to wait."
    assert {"type": "integer"} in body["anyOf"]

    @takes_keywords(offered)
    def wish(task: str, **given: Any) -> dict[str, Any]:
        """Make a wish."""
        return given

    assert inspect.signature(wish).parameters["patience"].annotation == "int | None"
    assert "\n\nArgs:\n" in (wish.__doc__ or "") and "patience: How long to wait." in wish.__doc__
    assert wish("peace", patience=3) == {"patience": 3}
    with pytest.raises(TypeError, match=r"^wish\(\) got an unexpected keyword argument 'patiens'$"):
        wish("peace", patiens=3)


def test_argument_without_a_description_is_refused() -> None:
    @dataclass(frozen=True)
    class Bare(StartRequest):
        patience: int = 3

    with pytest.raises(LookupError, match="patience"):
        on_lines(Bare, without=())
    with pytest.raises(LookupError, match="no fields"):
        on_lines(StartRequest, without=("gone",))
