"""The live view of a run in a terminal: rows while it works, then only its card."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from tests.cli.calls import CLI, call, call_here
from tests.cli.conftest import write_team
from tests.kit.terminal import COMPLETE, INCOMPLETE
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.processes import Terminal
from tests.team_kit import WAIT_S

STOPPING = "Stopping: waiting for a"

_STEP = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")
HARMLESS = {"m", "A", "K"}
"""Escape sequences of the live view: colours, cursor up, and clear line."""


def screen(written: str) -> list[str]:
    """Interpret escape sequences as a terminal does, and return the lines of the screen."""
    lines, row, column = [""], 0, 0
    for step in _STEP.finditer(written):
        match step[0], step[2]:
            case _, "A":
                row = max(0, row - int(step[1] or 1))
            case _, "K":
                lines[row] = "" if step[1] == "2" else lines[row][:column]
            case "\r", _:
                column = 0
            case "\n", _:
                row += 1
                lines += [""] * (row + 1 - len(lines))
            case text, None:
                line = lines[row].ljust(column)
                lines[row] = line[:column] + text + line[column + len(text) :]
                column += len(text)
    return lines


def test_terminal_shows_a_row_for_each_agent_and_then_the_card(
    place: Path, server: ModelServer
) -> None:
    write_team(place, server, agents="ab")
    evil = "words \x1b[2Jthat \x1b]52;c;aGk=\x07come \x9b2J[bold]and go"
    server.script("m", *[Reply(evil, hang_after=5)] * 2)
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    run = Terminal([*CLI, "run", "-c", "team.yaml", "-s", "lab", "What is it?"], place, env)

    def rows() -> list[str]:
        run.read()
        found = [line.split(maxsplit=2) for line in screen(run.bytes.decode(errors="replace"))]
        shown = [row for row in found if len(row) == 3 and row[1] == "writing"]
        return [agent for agent, _, words in shown if words.startswith("words that come [bold]")]

    wait_until(lambda: rows() == ["a", "b"], WAIT_S, "a row for each", lambda: run.text)
    assert "running · Round: 1/∞ · Elapsed: " in run.text
    run.ctrl_c()
    run.wait_text(STOPPING)
    run.ctrl_c()
    assert run.wait_end() == INCOMPLETE
    written = run.bytes.decode()
    left = screen(written)
    run.close()
    assert rows_of(left) == []
    assert left.count("### What is it? [stopped]") == 1 and "    nb-agents resume lab" in left
    said = [n for n, line in enumerate(left) if line.startswith(STOPPING)]
    assert len(said) == 1 and said[0] < left.index("### What is it? [stopped]")
    assert "then interrupts the rest" in left[said[0]]
    moves = {(step[1], step[2]) for step in _STEP.finditer(written) if "\x1b" in step[0]}
    assert {kind for _, kind in moves} - HARMLESS == {"h", "l"}
    assert {what for what, kind in moves if kind in "hl"} == {"?25"}, "hides the cursor alone"
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert "\x1b]" not in written and "\x07" not in written


def rows_of(lines: list[str]) -> list[str]:
    return [line for line in lines if re.match(r"[ab]  +\w", line)]


def test_keys_open_an_agent_send_a_message_and_stop(place: Path, server: ModelServer) -> None:
    write_team(place, server, agents="ab")
    server.script("m", *[Reply("words of one that thinks aloud", hang_after=5)] * 2)
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    run = Terminal([*CLI, "run", "-c", "team.yaml", "-s", "lab", "What is it?"], place, env)
    try:
        run.wait_text("1-9 open an agent")
        run.type("1")
        run.wait_text("── a ──")
        run.wait_text("[Round 1]")
        run.type("/Be shortr\x7fer\r")
        journal = place / ".nb_agents/sessions/lab/turn_1/events.jsonl"
        wait_until(
            lambda: "Be shorter" in journal.read_text(), WAIT_S, "the text", lambda: run.text
        )
        run.type("s")
        run.wait_text(STOPPING)
        run.type("S")
        assert run.wait_end() == INCOMPLETE
    finally:
        run.close()


def test_terminal_shows_the_estimate_while_the_run_works(place: Path, server: ModelServer) -> None:
    write_team(place, server)
    server.script("m", Reply(tool_calls=(ToolCall("new_answer", {"content": "Done."}),)))
    arguments = ["run", "-c", "team.yaml", "--max-tokens", "90000", "What is it?"]
    call_here(*arguments)
    server.script("m", Reply("words", hang_after=1))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "LINES": "30"}
    run = Terminal([*CLI, *arguments], place, env)
    try:
        run.wait_text("Estimate: 1 agent, about 1 model call. The last completed run of this team")
        run.wait_text("1-9 open an agent")
        run.type("S")
        assert run.wait_end() == INCOMPLETE
    finally:
        run.close()


def test_follow_shows_rows_takes_keys_and_an_interrupt_does_not_stop_the_run(
    place: Path, server: ModelServer
) -> None:
    write_team(place, server, agents="ab")
    server.script("m", *[Reply("words that come and go", hang_after=5)] * 2)
    call("run", "-c", "team.yaml", "-s", "lab", "--detach", "What is it?")
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    first = Terminal([*CLI, "follow", "lab"], place, env)
    first.wait_text("1-9 open an agent")
    first.wait_text("writing")
    first.ctrl_c()
    assert first.wait_end() == COMPLETE and "The run continues." in first.text
    first.close()
    run = Terminal([*CLI, "follow", "lab"], place, env)
    try:
        run.wait_text("writing")
        run.type("2")
        run.wait_text("── b ──")
        run.type("s")
        run.wait_text(STOPPING)
        run.type("S")
        assert run.wait_end() == COMPLETE
        assert "### What is it? [stopped]" in screen(run.bytes.decode())
    finally:
        run.close()


def test_terminal_shows_what_a_timed_out_run_waits_for_and_how_long(
    place: Path, server: ModelServer
) -> None:
    write_team(place, server, agents="ab")
    server.script("m", *[Reply("words that come and go", hang_after=5)] * 2)
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    limit = ("--orchestrator-timeout", "2")
    run = Terminal([*CLI, "run", "-c", "team.yaml", "-s", "lab", *limit, "Why?"], place, env)
    assert run.wait_end() == INCOMPLETE
    shown = screen(run.bytes.decode())
    run.close()
    waits = r"Time limit of 2 s reached: waiting for a, b until [\d:]{8}, then interrupts the rest"
    assert [line for line in shown if re.match(waits, line)]
    assert "### Why? [timed out]" in shown
    journal = (place / ".nb_agents/sessions/lab/turn_1/events.jsonl").read_text()
    assert [level for level in ("requested", "immediate") if f'"level":"{level}"' in journal] == [
        "requested",
        "immediate",
    ]


def test_run_help_has_examples() -> None:
    shown = call_here("run", "--help")
    lines = [line.strip(" │") for line in shown.splitlines() if "nb-agents run" in line]
    examples = [line for line in lines if "Usage" not in line]
    assert len(examples) >= 5
    for example in examples:
        words = shlex.split(example.rpartition("| ")[2])
        assert words[:2] == ["nb-agents", "run"]
        options = {word for word in words if word.startswith("-") and word != "-"}
        assert {each for each in options if each not in shown} == set()


def test_ipython_terminal_shows_rows_and_takes_keys_while_a_cell_waits(
    place: Path, server: ModelServer
) -> None:
    write_team(place, server, agents="ab")
    server.script("m", *[Reply("words that come and go", hang_after=5)] * 2)
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    env["IPYTHONDIR"] = str(place / "ipython")
    cell = "\n".join(
        [
            "%load_ext nb_agents",
            "get_ipython().run_cell_magic('agents', '-c team.yaml -s lab --wait', 'What is it?')",
        ]
    )
    words = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", cell]
    run = Terminal(words, place, env)

    def agents() -> list[str]:
        run.read()
        found = [line.split() for line in screen(run.bytes.decode(errors="replace"))]
        return [line[0] for line in found if line[1:2] == ["writing"]]

    wait_until(lambda: agents() == ["a", "b"], WAIT_S, "a row for each", lambda: run.text)
    run.type("s")
    run.wait_text(STOPPING)
    run.type("S")
    run.wait_end()
    left = screen(run.bytes.decode())
    run.close()
    assert rows_of(left) == []
    assert any("What is it? [stopped]" in line for line in left)
