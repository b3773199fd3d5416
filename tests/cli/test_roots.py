"""A session root that is given limits every command; without a name none leaves its directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import nb_agents
from nb_agents.cli.application import USAGE, app
from nb_agents.options import RunOptions
from nb_agents.runs import finding
from nb_agents.runs.live_runs import live_runs
from nb_agents.runs.run import Run
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.cli.calls import call_here, call_in, told_here
from tests.team_kit import WAIT_S

TAKES_A_RUN = {
    "show": (),
    "follow": (),
    "log": (),
    "wait": (),
    "stop": (),
    "pause": (),
    "continue": (),
    "say": ("mind the tables",),
    "approve": (),
    "deny": (),
    "answer": ("the second",),
}
"""The commands that take a run, and what else they need."""

TAKES_A_SESSION = {
    "resume": ("--preview",),
    "rewind": ("--to", "1", "--preview"),
    "rename": ("other",),
    "export": (),
    "delete": ("--yes",),
}
LISTS = {"runs": (), "sessions": (), "sweeps": (), "prune": ("--older", "0h")}
WITH_NAME_ALONE = {"say", "approve", "deny", "answer", "rename", "export", "delete"}
OTHERS = {"run", "chat", "demo", "check", "plan", "diff", "acp", "mcp", "init", "schema", "trace"}
"""Commands that start or serve something, read a file or two turns, or give others' JSON."""


@pytest.fixture
def far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> Iterator[tuple[Run, Path, Path]]:
    """A live run in one root, as of another process; that root, and an empty one that is here."""
    near, root = tmp_path / "here", tmp_path / "far"
    near.mkdir()
    monkeypatch.chdir(near)
    team = scripted_team(a=ScriptedModel(Answer("A's", gate=gate)))
    run = nb_agents.start("the task", team, "same", options=RunOptions(session_root=root))
    gate.wait_reached()
    # What this process runs is, for the commands, what any other does.
    monkeypatch.setattr(finding, "begun_runs", tuple)
    monkeypatch.setattr(finding, "live_runs", tuple)
    yield run, root, near
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def refused(*words: str) -> str:
    return call_in("utf-8", *words, code=USAGE)


def commands() -> dict[str, typer.models.CommandInfo]:
    group = typer.main.get_group(app)
    return dict(group.commands)  # type: ignore[arg-type]


def test_each_command_on_runs_and_sessions_takes_a_root() -> None:
    known = {*TAKES_A_RUN, *TAKES_A_SESSION, *LISTS}
    assert commands().keys() - known == OTHERS, "say above which of them a new command is"
    for name in known:
        options = {each for param in commands()[name].params for each in param.opts}  # type: ignore[attr-defined]
        assert "--session-root" in options, name


@pytest.mark.parametrize("name", sorted({*TAKES_A_RUN, *TAKES_A_SESSION}))
def test_a_root_that_is_given_hides_what_is_in_any_other(
    far: tuple[Run, Path, Path], name: str
) -> None:
    run, root, near = far
    empty = near / "empty"
    empty.mkdir()
    more = (*TAKES_A_RUN.get(name, ()), *TAKES_A_SESSION.get(name, ()))
    said = refused(name, "same", *more, "--session-root", str(empty))
    assert "'same'" in said
    if name not in WITH_NAME_ALONE:
        assert "No " in refused(name, *more, "--session-root", str(empty))
        assert "No " in refused(name, *more)  # nor does it leave its directory
    assert run.view.stop is None and not run.view.is_paused and run.view.said == ()


@pytest.mark.parametrize("name", sorted(LISTS))
def test_a_list_of_a_root_holds_nothing_of_any_other(
    far: tuple[Run, Path, Path], name: str
) -> None:
    _, root, near = far
    more = LISTS[name]
    assert "same" not in call_here(name, *more, "--session-root", str(near / "empty"))
    if name in ("runs", "sessions"):
        listed = call_here(name, *more, "--session-root", str(root))
        assert "same" in listed and (name == "sessions" or f"in {root}" in listed)


def test_a_command_reaches_the_run_of_the_root_that_is_given(
    far: tuple[Run, Path, Path], gate: Gate
) -> None:
    run, root, near = far
    at = ("--session-root", str(root))
    team = scripted_team(a=ScriptedModel(Answer("B's", gate=gate)))
    here = nb_agents.start("of here", team, "same")
    gate.wait_reached(2)
    assert "next request" in call_here("say", "same", "mind", *at)
    assert "is paused" in call_here("pause", "same", *at)
    assert "goes on" in call_here("continue", "same", *at)
    assert "the task" in call_here("show", *at)
    assert told_here("stop", "same", *at)["changed"]
    assert (run.view.said, here.view.said, here.view.stop) == (("mind",), (), None)
    assert run.view.stop is not None and run.view.stop.source == "cli"
    assert told_here("stop")["changed"]  # of here
    assert here.view.stop is not None
    gate.open()
    here.wait(WAIT_S, raise_on_stop=False)
    assert here not in live_runs()
