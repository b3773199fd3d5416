"""The option --session-root limits every command; without a name, commands use their directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import nb_agents
from nb_agents.options import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.cli.calls import call_here, call_in, told_here
from tests.kit.runs import Run, finding, live_runs
from tests.kit.terminal import USAGE, app
from tests.team_kit import WAIT_S

TAKES_A_RUN = {
    "show": (),
    "follow": (),
    "log": (),
    "why": (),
    "record": (),
    "wait": (),
    "stop": (),
    "pause": (),
    "unpause": (),
    "say": ("mind the tables",),
    "fold": ("--agent", "a"),
    "cells": (),
    "apply": ("some.ipynb",),
    "approve": (),
    "deny": (),
    "answer": ("the second",),
}
"""The commands that act on a run, and their other arguments."""

TAKES_A_SESSION = {
    "resume": ("--preview",),
    "rewind": ("--to", "1", "--preview"),
    "rename": ("other",),
    "export": (),
    "delete": ("--yes",),
}
LISTS = {"runs": (), "sessions": (), "sweeps": (), "prune": ("--older", "0h")}
WITH_NAME_ALONE = {"apply", "say", "approve", "deny", "answer", "rename", "export", "delete"}
OTHERS = {
    "steer",
    *("run", "chat", "demo", "check", "plan", "diff", "acp", "mcp", "init", "schema", "trace"),
    *("wait-for-quota", "blame", "verify", "doctor", "replay"),
}
"""The commands that do not act on a single run or session."""


@pytest.fixture
def far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> Iterator[tuple[Run, Path, Path]]:
    """A live run in one session root, as if of another process, and an empty current root."""
    near, root = tmp_path / "here", tmp_path / "far"
    near.mkdir()
    monkeypatch.chdir(near)
    team = scripted_team(a=ScriptedModel(Answer("A's", gate=gate)))
    run = nb_agents.start("the task", team, "same", options=RunOptions(session_root=root))
    gate.wait_reached()
    # Commands must not prefer runs of this process.
    monkeypatch.setattr(finding, "started_runs", tuple)
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
    return {name: each for name, each in group.commands.items() if not each.hidden}  # type: ignore[misc]


def test_commands_on_runs_and_sessions_have_a_session_root_option() -> None:
    known = {*TAKES_A_RUN, *TAKES_A_SESSION, *LISTS}
    assert commands().keys() - known == OTHERS, "say above which of them a new command is"
    for name in known:
        options = {each for param in commands()[name].params for each in param.opts}  # type: ignore[attr-defined]
        assert "--session-root" in options, name


@pytest.mark.parametrize("name", sorted({*TAKES_A_RUN, *TAKES_A_SESSION}))
def test_session_root_option_hides_runs_of_other_roots(
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
        assert "No " in refused(name, *more)  # and it does not search other directories
    assert run.view.stop is None and not run.view.is_paused and run.view.said == ()


@pytest.mark.parametrize("name", sorted(LISTS))
def test_lists_show_only_the_given_session_root(far: tuple[Run, Path, Path], name: str) -> None:
    _, root, near = far
    more = LISTS[name]
    assert "same" not in call_here(name, *more, "--session-root", str(near / "empty"))
    if name in ("runs", "sessions"):
        listed = call_here(name, *more, "--session-root", str(root))
        assert "same" in listed and (name == "sessions" or f"in {root}" in listed)


def test_command_finds_the_run_of_the_given_session_root(
    far: tuple[Run, Path, Path], gate: Gate
) -> None:
    run, root, near = far
    at = ("--session-root", str(root))
    team = scripted_team(a=ScriptedModel(Answer("B's", gate=gate)))
    here = nb_agents.start("of here", team, "same")
    gate.wait_reached(2)
    assert "next request" in call_here("say", "same", "mind", *at)
    assert "is paused" in call_here("pause", "same", *at)
    assert "continues" in call_here("unpause", "same", *at)
    assert "the task" in call_here("show", *at)
    assert told_here("stop", "same", *at)["changed"]
    assert (run.view.said, here.view.said, here.view.stop) == (("mind",), (), None)
    assert run.view.stop is not None and run.view.stop.source == "cli"
    assert told_here("stop")["changed"]  # the current run
    assert here.view.stop is not None
    gate.open()
    here.wait(WAIT_S, raise_on_stop=False)
    assert here not in live_runs()
