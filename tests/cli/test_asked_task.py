"""A run without a task asks for it in a terminal; elsewhere it is an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.calls import CLI, answer, call_in
from tests.kit.sessions import read_json, session_root, turns_of
from tests.kit.terminal import COMPLETE, USAGE
from tests.model_server import ModelServer
from tests.processes import Terminal

TEAM = ("-c", "team.yaml", "-s", "lab")


@pytest.fixture
def talked(place: Path, server: ModelServer) -> Path:
    """A session with a turn."""
    server.script("m", answer("One."), answer("Two."))
    call_in("utf-8", "run", *TEAM, "First?")
    return session_root() / "lab"


@pytest.mark.parametrize("more", [("--continue",), ()], ids=["--continue", "run"])
def test_run_without_task_asks_for_it_in_a_terminal(
    talked: Path, place: Path, more: tuple[str, ...]
) -> None:
    words = [*CLI, "run", *more, *TEAM]
    terminal = Terminal(words, place, {**os.environ, "TERM": "dumb"})
    try:
        terminal.wait_text("Task")
        terminal.type("And then?\n")
        assert terminal.wait_end() == COMPLETE
    finally:
        terminal.close()
    assert [read_json(turn.metadata)["task"] for turn in turns_of(talked)] == [
        "First?",
        "And then?",
    ]


@pytest.mark.parametrize("more", [("--continue",), ()], ids=["--continue", "run"])
def test_run_without_task_or_terminal_is_an_error_that_shows_the_syntax(
    talked: Path, more: tuple[str, ...]
) -> None:
    said = call_in("utf-8", "run", *more, *TEAM, code=USAGE)
    line = " ".join(("nb-agents run", *more))
    assert f'There is no task. Write it after the options, as `{line} "…"`' in said
    assert f"`{line} -`" in said
    assert ("nb-agents resume" in said) is bool(more)
    assert len(turns_of(talked)) == 1


def test_piped_input_is_the_task_only_with_a_dash(talked: Path) -> None:
    call_in("utf-8", "run", "--continue", *TEAM, typed="And then?\n", code=USAGE)
    call_in("utf-8", "run", "--continue", *TEAM, "-", typed="And then?\n")
    assert len(turns_of(talked)) == 2
