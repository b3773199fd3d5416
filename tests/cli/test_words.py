"""The command line has the verbs and options of the cells, and a shell completes arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import nb_agents
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.cli.calls import answer, call_here
from tests.kit.cells import VERBS, AgentsMagics, actions_of
from tests.kit.terminal import app
from tests.model_server import ModelServer
from tests.team_kit import WAIT_S

_ALL = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = {name: each for name, each in _ALL.items() if not each.hidden}
CELLS = {"run": AgentsMagics.agents, **{verb or "runs": action for verb, action in VERBS.items()}}

TERMINAL_ALONE = {
    "acp": "for programs that start one",
    "mcp": "for programs that start one",
    "chat": "in a notebook, each next cell is a prompt",
    "demo": "a cell without a team does the same",
    "follow": "in a notebook the panel does",
    "init": "before there is a notebook",
    "schema": "what an editor reads",
    "trace": "for programs that collect traces",
    "wait-for-quota": "for timers",
}
KERNEL_ALONE = {"once": "of one kernel; a terminal has $NB_AGENTS_ONCE"}
NOTEBOOK_ALONE = {
    ("run", "--tools"): "functions of the notebook",
    ("resume", "--tools"): "functions of the notebook",
    ("show", "--tools"): "functions of the notebook",
    ("run", "--agents"): "variables of the notebook",
    ("run", "--options"): "a variable of the notebook",
    ("resume", "--options"): "a variable of the notebook",
    ("run", "--out"): "a variable of the notebook",
    ("run", "--wait"): "a command waits unless it is told to --detach",
    ("resume", "--wait"): "a command waits unless it is told to --detach",
    ("run", "--replay"): "the command `replay`",
    **{
        ("run", option): "sweeps are begun in a notebook, and looked after from anywhere"
        for option in (
            *("--over", "--limit", "--name", "--score", "--retry-failed"),
            *("--compare", "--margin", "--max-rows", "--score-range", "--seed"),
        )
    },
}
BESIDES = {
    "--json": "what a program reads",
    "--html": "a notebook shows it anyway",
}


def test_notebook_verbs_are_terminal_commands() -> None:
    assert CELLS.keys() - COMMANDS.keys() == KERNEL_ALONE.keys()
    assert COMMANDS.keys() - CELLS.keys() == TERMINAL_ALONE.keys()


def test_commands_have_the_options_of_the_cells() -> None:
    missing, besides = set(), set()
    for name in CELLS.keys() & COMMANDS.keys():
        cell = CELLS[name]
        in_cell = {option for action in actions_of(cell) for option in action.option_strings}
        here = {o for each in COMMANDS[name].params for o in each.opts if o.startswith("-")}
        missing |= {(name, option) for option in in_cell - here}
        besides |= here - in_cell
    assert missing == NOTEBOOK_ALONE.keys()
    assert besides == BESIDES.keys()


def completed(line: str) -> list[str]:
    """Return the completions that a shell offers for the last word of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    env = {**asked, "_NB_AGENTS_COMPLETE": "complete_bash"}
    return CliRunner().invoke(app, [], env=env, prog_name="nb-agents").stdout.split()


def test_shell_completes_live_runs_and_sessions(place: Path, server: ModelServer) -> None:
    server.script("m", answer("forty-two"))
    call_here("run", "-c", "team.yaml", "-s", "done", "What is it?")
    gate = Gate()
    run = nb_agents.start("Why?", scripted_team(a=ScriptedModel(Answer("So.", gate=gate))), "busy")
    gate.wait_reached()
    offered = {each: completed(f"nb-agents {each} ") for each in ("stop", "say", "show", "resume")}
    gate.open()
    run.wait(WAIT_S)
    assert "busy/1" in offered["stop"] and "busy/1" in offered["say"]
    assert "done" not in offered["stop"]
    assert {"busy/1", "busy", "done"} <= set(offered["show"])
    assert set(offered["resume"]) == {"busy", "done"}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("nb-agents run --config t", ["team.yaml", "teams/"]),
        ("nb-agents run -c teams", ["teams/large.json", "teams/small.yaml"]),
        ("nb-agents resume lab --recipe r", ["review.yaml"]),
        ("nb-agents check teams/s", ["teams/small.yaml"]),
        ("nb-agents run -c nowhere/", []),
    ],
)
def test_shell_completes_team_files_and_recipes(place: Path, line: str, offered: list[str]) -> None:
    (place / "teams").mkdir()
    for name in ("teams/large.json", "teams/small.yaml", "teams/notes.md", "review.yaml"):
        (place / name).touch()
    assert completed(line) == offered


def test_session_continues_and_is_exported(place: Path, server: ModelServer) -> None:
    server.script("m", answer("forty-two"), answer("because"))
    call_here("run", "-c", "team.yaml", "-s", "lab", "What is it?")
    said = call_here("run", "-c", "team.yaml", "--continue", "Why?")
    assert "because" in said and "lab/2" in said
    assert "What is it?" in str(server.requests[-1].messages)
    assert "Wrote" in call_here("export", "lab")
    assert (place / "lab.zip").is_file()
