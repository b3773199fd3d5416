"""Output of the command line: no control characters, no notebook commands, and valid JSON."""

from __future__ import annotations

import json
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer

import nb_agents
from nb_agents import Run
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.cli.calls import CLI, answer, call_here, call_in, told_here
from tests.kit.models import demo
from tests.kit.terminal import COMPLETE, FAILED, INCOMPLETE, app
from tests.model_server import ModelServer, wait_until
from tests.team_kit import WAIT_S
from tests.test_terminal import HOSTILE
from tests.warm import WarmProcess

EVIL = " ".join(f"before {text} after" for text in HOSTILE.values()) + " \x9b2J\x7f"


def controls(text: str) -> set[str]:
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cs")} - {"\n", "\t"}


@pytest.fixture
def held(place: Path) -> Iterator[Run]:
    """A run in this process with a model that waits until the test is over."""
    gate = Gate()
    model = ScriptedModel(Turn(text=EVIL, gate=gate), Answer(EVIL))
    run = nb_agents.start(f"Why? {EVIL}", scripted_team(a=model), "live")
    gate.wait_reached()
    yield run
    run.stop(now=True)
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)


def test_output_of_a_model_has_no_control_characters(
    place: Path, server: ModelServer, held: Run
) -> None:
    server.script("m", answer(EVIL), answer(EVIL))
    team = ("-c", "team.yaml")
    printed = {
        "run": call_here("run", *team, "-s", "lab", f"What? {EVIL}"),
        "chat": call_here("chat", *team, typed=f"What? {EVIL}\n"),
        "runs": call_here("runs"),
        "runs --json": call_here("runs", "--json"),
        "sessions": call_here("sessions"),
        "sessions --json": call_here("sessions", "--json"),
        "show live": call_here("show", "live"),
    }
    for command in ("show", "follow", "log"):
        printed[command] = call_here(command, "lab")
        printed[f"{command} --json"] = call_here(command, "lab", "--json")
    printed["show --html"] = call_here("show", "lab", "--html")
    assert {command: controls(text) for command, text in printed.items() if controls(text)} == {}
    assert [c for c, text in printed.items() if "before" not in text and "sessions" not in c] == []


def test_json_preserves_the_output_of_a_model(place: Path, server: ModelServer) -> None:
    server.script("m", answer(EVIL))
    assert told_here("run", "-c", "team.yaml", "-s", "lab", "What?")["result"] == EVIL


def test_api_keys_of_this_process_are_not_printed(
    place: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script("m", answer("The key is sk-9f8a7b6c5d4e3f."))
    call_here("run", "-c", "team.yaml", "-s", "lab", "What?")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-9f8a7b6c5d4e3f")
    nb_agents.cli.printing.mask.cache_clear()
    printed = call_here("show", "lab") + call_here("show", "lab", "--json")
    nb_agents.cli.printing.mask.cache_clear()
    assert "9f8a7b6c" not in printed
    assert "The key is [key]." in printed


def test_card_of_a_stopped_run_names_terminal_commands(place: Path, held: Run) -> None:
    live = call_here("show", "live")
    assert "`nb-agents show live/1`" in live and "nb-agents resume live" in live
    assert held.stop(now=True, source="interrupt").changed
    held.wait(WAIT_S, raise_on_stop=False)
    card, page = call_here("show", "live"), call_here("show", "live", "--html")
    for printed in (live, card, page):
        assert "%agents" not in printed
        assert "kernel" not in printed
    assert "cell" not in live + card
    assert "cell" not in page.replace("cancelled", "")
    assert "Resume or continue at any time:" in card
    assert "    nb-agents resume live\n" in card
    assert '    nb-agents run --continue --session live "What should the agents do now?"' in card


def test_notebook_commands_in_model_output_are_not_replaced(
    place: Path, server: ModelServer
) -> None:
    words = "Type %agents resume s in a cell, or %%agents --continue."
    server.script("m", answer(words))
    assert words in call_here("run", "-c", "team.yaml", "-s", "lab", "What?")


def test_demo_output_does_not_mention_notebooks(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "DEMO_WORDS_PER_SECOND", 1e5)
    printed = call_here("demo")
    assert "This is the demo model" in printed and "--config team.yaml" in printed
    assert "%" not in printed and "cell" not in printed


class EveryCommand:
    """The arguments of each command, in an order in which every command has some output."""

    def __init__(self, place: Path, server: ModelServer, held: Run, said: str) -> None:
        server.script("m", answer(said), answer(said))
        (place / "r.yaml").write_text(
            "name: r\ndescription: d\nversion: 1.0.0\n"
            f"steps: [{{id: s, type: bash, command: 'echo {said}'}}]\n"
        )
        (place / "some.ipynb").write_text('{"cells": []}')
        self._held, self._said = held, said
        self.heard: list[Any] = []
        self.calls = {
            "run": lambda: ("-c", "team.yaml", "-s", "lab", said),
            "chat": lambda: ("-c", "team.yaml", "-s", "talk"),
            "demo": tuple,
            "runs": tuple,
            "sessions": tuple,
            "sweeps": tuple,
            "say": lambda: ("live", "Be brief."),
            "fold": lambda: ("live", "--agent", "a"),
            "cells": lambda: ("lab",),
            "apply": lambda: ("lab", "some.ipynb"),
            "blame": lambda: ("some.ipynb",),
            "pause": lambda: ("live",),
            "unpause": lambda: ("live",),
            "approve": lambda: self._ask("whether", "live"),
            "deny": lambda: self._ask("whether", "live", "too dear"),
            "answer": lambda: self._ask("text", "live", "blue"),
            "stop": lambda: ("live", "--now"),
            "wait": lambda: ("live",),
            "resume": lambda: ("live", "--preview"),
            "show": lambda: ("lab",),
            "follow": lambda: ("live",),
            "log": lambda: ("lab",),
            "rewind": lambda: ("lab", "--to", "1", "--preview"),
            "diff": lambda: ("lab/1", "lab/1"),
            "trace": lambda: ("lab",),
            "record": lambda: ("lab",),
            "replay": lambda: ("lab.nbar",),
            "init": lambda: ("new.yaml",),
            "schema": lambda: ("recipe",),
            "check": lambda: ("team.yaml",),
            "plan": lambda: ("r.yaml",),
            "export": lambda: ("lab", "lab.zip"),
            "verify": lambda: ("lab.zip",),
            "rename": lambda: ("lab", "other"),
            "delete": lambda: ("other", "--yes"),
            "prune": lambda: ("--older", "30d"),
            "doctor": tuple,
            "why": lambda: ("lab",),
            "wait-for-quota": tuple,
        }
        commands = typer.main.get_command(app).commands.items()
        listed = {name for name, each in commands if not each.hidden}
        assert self.calls.keys() == listed - {
            "acp",
            "mcp",
            "steer",
        }  # protocols, and a command for sweeps

    def each(self, *but: str) -> Iterator[tuple[str, tuple[str, ...], int]]:
        """Yield the name, the arguments and the exit code of each command."""
        for name, words in self.calls.items():
            if name not in but:
                yield name, words(), INCOMPLETE if name == "wait" else COMPLETE

    def _ask(self, question: str, *words: str) -> tuple[str, ...]:
        held = self._held
        asks = held.wait_for_input if question == "text" else held.wait_for_approval
        Thread(target=lambda: self.heard.append(asks(self._said)), daemon=True).start()
        wait_until(lambda: held.view.gates, WAIT_S, "the question")
        return words


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_every_command_prints_in_ascii_encoding(
    place: Path,
    server: ModelServer,
    held: Run,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
) -> None:
    monkeypatch.setattr(demo, "DEMO_WORDS_PER_SECOND", 1e5)
    commands = EveryCommand(place, server, held, "What? 日本 → ✓ é 😀")
    printed = {
        name: call_in(encoding, name, *words, code=code, typed="Why? 日本\n")
        for name, words, code in commands.each()
    }
    for name in ("run", "chat", "sessions", "show", "log"):
        assert "What? ?? ? ? " in printed[name], name
    facts = json.loads(call_in(encoding, "show", "live", "--json", code=COMPLETE))
    assert facts["task"] == held.view.task


def test_run_is_complete_although_its_answer_cannot_be_printed(
    place: Path, server: ModelServer
) -> None:
    server.script("m", answer("forty-two"))
    command = [*CLI, "run", "-c", "team.yaml", "-s", "full", "What?"]
    with (
        open("/dev/full", "wb") as full,
        WarmProcess(command, stdout=full, stderr=subprocess.PIPE, text=True) as process,
    ):
        _, errors = process.communicate()
    assert process.returncode == COMPLETE
    assert errors == "The output can't be written: No space left on device.\n"
    done = subprocess.run(["bash", "-c", f"{' '.join(CLI)} show full > /dev/full 2>&1"])
    assert done.returncode == FAILED
    assert told_here("show", "full")["result"] == "forty-two"


def test_every_command_prints_json(
    place: Path, server: ModelServer, held: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "DEMO_WORDS_PER_SECOND", 1e5)
    commands = EveryCommand(place, server, held, "forty-two")
    printed = {
        name: told_here(name, *words, code=code)
        for name, words, code in commands.each("follow", "chat", "trace", "init", "schema")
    }
    # One event per line, so that programs can read the output while the run is live.
    events = [json.loads(line) for line in call_here("follow", "live", "--json").splitlines()]
    assert all(isinstance(value, dict | list) for value in printed.values())
    assert (printed["run"]["result"], printed["show"]["status"]) == ("forty-two", "complete")
    paused, again = (printed[name]["said"] for name in ("pause", "unpause"))
    assert "is paused: calls in flight finish, no new ones start." in paused
    assert again.endswith("continues.")
    heard = commands.heard
    wait_until(lambda: len(heard) == 3, WAIT_S, "the answers", lambda: heard)
    assert "blue" in heard
    decided = {(each.approved, each.message) for each in heard if each != "blue"}
    assert decided == {(True, ""), (False, "too dear")}
    assert printed["wait"]["status"] == "stopped" and "a" in str(printed["resume"]["said"])
    assert printed["check"]["can_start"] is True and "  s: bash" in printed["plan"]["lines"]
    assert printed["delete"]["deleted"] and printed["delete"]["session"] == "other"
    assert (place / "lab.zip").stat().st_size == printed["export"]["bytes"]
    assert events[0]["kind"] == "turn_started"
