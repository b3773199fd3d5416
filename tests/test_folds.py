"""Each fold handles or ignores every kind of event; unknown kinds are kept."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from nb_agents import events as ev
from nb_agents import plugins
from nb_agents.events.folds import FOLDS as REGISTERED
from tests.kit.agents import PLACED_CALLS, REPLAY, VOTING, replay
from tests.kit.cards import TRANSCRIPT, pieces
from tests.kit.recipes import PROGRESS, Progress, apply
from tests.kit.replays import RECORDING
from tests.kit.runs import log_lines
from tests.kit.sessions import read_journal
from tests.kit.views import SPANS, VIEW, fold, fold_timeline

FOLDS = [VIEW, TRANSCRIPT, SPANS, REPLAY, VOTING, PLACED_CALLS, PROGRESS, RECORDING]
OF_ALL_KINDS = [VIEW, TRANSCRIPT, SPANS, REPLAY]

PACKAGE = Path(ev.__file__).parents[1]
MANY_KINDS = 5
NOT_FOLDS = {
    "extensions/external_agents/team_agent.py": 7,
    "extensions/recipes/recipe_launch.py": 5,
    "launch/rewind_plan.py": 10,
    "turns/limits.py": 6,
    "turns/telemetry.py": 8,
    "view/prefix.py": 7,
    "view/steps.py": 5,
}
"""Modules that interpret many kinds of events without a registered fold, and how many kinds.

They are part of a registered fold or select some events. Entries are only lowered or removed."""

LATER = b'{"kind": "from_an_extension", "seq": 2, "at": 5, "agent": "ada", "colour": ["red"]}'


@pytest.fixture
def new_event() -> Iterator[type[ev.Event]]:
    """An event class that no fold knows, as an extension would define it."""

    class FromAnExtension(ev.Event):
        agent: str
        colour: tuple[str, ...]

    yield FromAnExtension
    del ev.KINDS["from_an_extension"]
    for each in FOLDS:
        each.forget(FromAnExtension)


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.name)
def test_each_kind_has_a_function_or_is_ignored(fold: ev.Fold[object]) -> None:
    fold.check()


def test_each_registered_fold_is_tested() -> None:
    assert set(REGISTERED) == {each.name for each in FOLDS}


def test_modules_that_interpret_many_kinds_are_registered_folds() -> None:
    for extension in plugins.extensions():
        for reference in extension.events.values():
            resolve_name(reference)  # registers its kind
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        kinds = interpreted_kinds(tree)
        if len(kinds) >= MANY_KINDS and not declares_fold(tree):
            found[module] = len(kinds)
    listed = {name: kinds for name, kinds in NOT_FOLDS.items() if (PACKAGE / name).exists()}
    assert found == listed, "register a Fold, or lower the number in NOT_FOLDS"


def declares_fold(tree: ast.Module) -> bool:
    return any(isinstance(n, ast.Call) and ast.unparse(n.func) == "ev.Fold" for n in ast.walk(tree))


def interpreted_kinds(tree: ast.Module) -> set[str]:
    """Return the names of the event classes that a module distinguishes."""
    tests: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
                tests.append(classes)
            case ast.MatchClass(cls=name):
                tests.append(name)
            case ast.Dict(keys=keys):
                tests += filter(None, keys)
    words = {word for test in tests for word in re.findall(r"\w+", ast.unparse(test))}
    return words & {each.__name__ for each in ev.KINDS.values()}


def test_event_class_names_the_folds_that_ignore_it() -> None:
    names = [each.name for each in OF_ALL_KINDS]
    try:

        class Quiet(ev.Event, ignored_by=names):
            """An event that changes no fold."""

        for each in FOLDS:
            each.check(["quiet"])
        ev.register_events(Quiet)
        with pytest.raises(TypeError, match=r"'view' both ignores and handles Quiet"):
            VIEW.on(Quiet)(lambda view, _: view)
            VIEW.check(["quiet"])
    finally:
        del ev.KINDS["quiet"]
        VIEW.forget(Quiet)


def test_events_inherit_the_folds_that_ignore_them() -> None:
    assert "voting" in ev.ModelStarted.ignored_by
    assert ev.AgentEvent.ignored_by == frozenset()


def test_ignored_by_names_registered_folds() -> None:
    names = {name for kind in ev.KINDS.values() for name in kind.ignored_by}
    assert names <= REGISTERED.keys()


def test_an_event_that_a_fold_does_not_mention_is_refused(new_event: type[ev.Event]) -> None:
    for each in OF_ALL_KINDS:
        with pytest.raises(NotImplementedError, match=rf"{each.name}.*FromAnExtension"):
            each.check([new_event.kind])
    with pytest.raises(NotImplementedError, match="FromAnExtension"):
        ev.register_events(new_event)


def test_an_event_of_another_package_need_not_be_mentioned(new_event: type[ev.Event]) -> None:
    for each in FOLDS:
        each.check()
    assert fold([new_event(agent="ada", colour=(), seq=3)]).agents == {}


def test_an_extension_registers_an_event_with_its_functions(new_event: type[ev.Event]) -> None:
    for each in FOLDS:
        each.ignore(new_event)
    ev.register_events(new_event)
    assert type(ev.EVENT.validate_json(LATER)) is new_event


def test_an_event_of_a_missing_extension_is_kept_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    started = ev.TurnStarted(session="s", turn=1, task="t", agents=(), timeout_s=1, seq=1, at=4)
    path.write_bytes(ev.EVENT.dump_json(started) + b"\n" + LATER + b"\n")
    journal = read_journal(path)
    assert journal.warnings == ()
    unknown = journal.events[1]
    assert isinstance(unknown, ev.UnknownEvent) and unknown.seq == 2
    assert ev.EVENT.dump_python(unknown)["colour"] == ["red"]
    assert ev.EVENT.validate_json(ev.EVENT.dump_json(unknown)) == unknown
    assert "from an extension" in log_lines(journal.events)[1]
    assert (fold(journal.events).seq, pieces(journal.events)) == (2, [])


@pytest.mark.parametrize("each", FOLDS, ids=lambda fold: fold.name)
def test_an_event_of_a_missing_extension_changes_no_fold(each: ev.Fold[object]) -> None:
    state = object()
    assert each.apply(state, ev.EVENT.validate_json(LATER)) is state


def test_an_event_of_a_missing_extension_does_not_prevent_a_resume() -> None:
    started = ev.TurnStarted(session="s", turn=1, task="t", agents=(), timeout_s=1, seq=1, at=4)
    answered = ev.AnswerGiven(agent="ada", answer="red", seq=3, at=6)
    known = [started, answered]
    events = [started, ev.EVENT.validate_json(LATER), answered]
    assert replay(["ada"], events) == replay(["ada"], known)
    assert fold_timeline(events) == fold_timeline(known)
    assert apply(Progress(), events[1]) == Progress()
