"""A path can be used instead of an id wherever a session or turn is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import Run, RunOptions, UserError
from nb_agents.testing import Answer, ScriptedModel, Turn, scripted_team
from tests.cli.calls import call_here
from tests.kit.cards import TERMINAL
from tests.kit.runs import preview
from tests.kit.verbs import REQUIRED, VERBS, Caller, Reply, Verb, run_verb
from tests.team_kit import WAIT_S

FORMS: dict[str, Callable[[Path], str | os.PathLike[str]]] = {
    "run.path": lambda turn: turn,
    "its text": str,
    "a slash after it": lambda turn: f"{turn}/",
    "the session's directory": lambda turn: turn.parent,
    "its text, of the directory": lambda turn: str(turn.parent),
    "relative": lambda turn: os.path.relpath(turn),
    "relative, of the directory": lambda turn: Path(os.path.relpath(turn.parent)),
    "with dots": lambda turn: f"./x/../{os.path.relpath(turn)}",
    "from home": lambda turn: "~/" + os.path.relpath(turn, Path.home()),
}


@pytest.fixture
def turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A failed turn of the session "lab", whose root is none that is looked in by default."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    model = ScriptedModel(Turn(error=ValueError("broken")))
    options = RunOptions(session_root=tmp_path / "elsewhere")
    run = nb_agents.start("Why?", scripted_team(a=model), "lab", options=options)
    run.wait(WAIT_S, raise_on_stop=False)
    return run.path


def answering() -> Any:
    return scripted_team(a=ScriptedModel(Answer("So.")))


def went_on(run: Run, turn: Path) -> None:
    run.wait(WAIT_S, raise_on_stop=False)
    assert run.path == turn.with_name("turn_2")


CALLS: dict[str, Callable[[Any], Run]] = {
    "resume": lambda name: nb_agents.resume(name, answering()),
    "start": lambda name: nb_agents.start("And?", answering(), name),
    "start, continue_": lambda name: nb_agents.start("And?", answering(), name, continue_=True),
    "once": lambda name: nb_agents.once("And?", answering(), name),
    "rewind": lambda name: nb_agents.rewind(name, 1, answering()),
}


@pytest.mark.parametrize(
    "call, form",
    sorted(
        {("resume", form) for form in FORMS}
        | {(call, form) for call in CALLS for form in ("run.path", "its text, of the directory")}
    ),
)
def test_python_functions_accept_a_path(turn: Path, call: str, form: str) -> None:
    went_on(CALLS[call](FORMS[form](turn)), turn)
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_resume_preview_accepts_a_path(turn: Path, form: str) -> None:
    assert preview(FORMS[form](turn), answering())


NAMED = [verb for verb in VERBS.values() if verb.on in ("run", "turn", "shown", "session")]


@pytest.mark.parametrize("form", ["run.path", "the session's directory", "relative", "with dots"])
@pytest.mark.parametrize("verb", NAMED, ids=lambda verb: verb.name)
def test_every_verb_accepts_a_path(turn: Path, verb: Verb, form: str) -> None:
    found: list[Any] = []

    def act(what: Any, caller: Caller, **_: Any) -> Reply:
        found.append(what if isinstance(what, Path) else what.path)
        return Reply("")

    name = os.fspath(FORMS[form](turn))
    given = {each.name: each.default for each in verb.on_line("terminal")}
    given |= {each.name: "x" for each in verb.parameters if each.default is REQUIRED}
    given[verb.on_line("terminal")[0].name] = name
    run_verb(verb._replace(act=act), Caller("cli", TERMINAL), given)
    assert found == [turn.parent if verb.on == "session" else turn]


@pytest.mark.parametrize(
    "words",
    [
        ("resume", "{}", "--preview"),
        ("diff", "{}", "{}"),
        ("trace", "{}"),
        ("run", "-s", "{}", "And?"),
        ("run", "--continue", "-s", "{}", "And?"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("form", ["its text", "relative, of the directory"])
def test_terminal_commands_accept_a_path(turn: Path, words: tuple[str, ...], form: str) -> None:
    name = os.fspath(FORMS[form](turn))
    call_here(*(word.format(name) for word in words))
    assert not list(Path.cwd().iterdir())


def test_turn_with_later_turns_is_not_treated_as_the_last(turn: Path) -> None:
    went_on(nb_agents.resume(turn, answering()), turn)
    for call in ("resume", "start"):
        with pytest.raises(
            UserError, match="lab/1 is not the last turn of its session; the last turn is lab/2"
        ):
            CALLS[call](turn)


def test_path_outside_the_given_root_is_refused(turn: Path) -> None:
    inside = RunOptions(session_root=Path.cwd())
    with pytest.raises(UserError, match="is not in the session root"):
        nb_agents.resume(turn, answering(), options=inside)
    with pytest.raises(UserError, match="is not in the session root"):
        nb_agents.start("And?", answering(), str(turn.parent), options=inside)
    own = replace(inside, session_root=turn.parents[1])
    went_on(nb_agents.resume(turn, answering(), options=own), turn)


def test_missing_path_and_wrong_file_type_raise_full_sentences(turn: Path) -> None:
    with pytest.raises(UserError, match=f"No session 'gone' in {turn.parents[1]}"):
        nb_agents.resume(turn.parent.with_name("gone"))
    with pytest.raises(UserError, match=f"No session 'new' in {turn.parents[1]}"):
        nb_agents.start("And?", answering(), turn.parent.with_name("new"))
    with pytest.raises(UserError, match="session is of type 'int'. Pass its id or its path."):
        nb_agents.resume(7)  # type: ignore[arg-type]
