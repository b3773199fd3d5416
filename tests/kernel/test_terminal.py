"""Without a notebook: plain `ipython` in a terminal, and scripts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.notebook import (
    HELD,
    Turn,
    assert_stopped_gracefully,
    assert_stopped_now,
    write_team,
)
from tests.model_server import ModelServer, wait_until
from tests.processes import Terminal, read_line
from tests.warm import WarmProcess

ROOT = Path(__file__).parents[2]
PROMPT = re.compile(r"In \[\d+\]: $")


class Prompt(Terminal):
    """IPython at its prompt."""

    def enter(self, line: str) -> str:
        """Type a line, wait for the next prompt, and return the output before it."""
        start = len(self.text)
        self.type(f"{line}\n")
        self.wait_prompt(start)
        return self.text[start:]

    def wait_prompt(self, after: int = 0) -> None:
        wait_until(lambda: PROMPT.search(self.read()[after:]), 60, "a prompt", lambda: self.text)


def environment(place: Path) -> dict[str, str]:
    extra = {
        "NB_AGENTS_SESSIONS": str(place / "sessions"),
        "IPYTHONDIR": str(place / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TERM": "dumb",
    }
    return {**os.environ, **extra}


def only_turn(place: Path) -> Turn:
    found = lambda: list((place / "sessions").glob("*/turn_*/events.jsonl"))  # noqa: E731
    return Turn(wait_until(found, 60, "a turn on disk")[0].parent)


@contextlib.contextmanager
def begun(place: Path, cold: bool) -> Iterator[Prompt]:
    """Run IPython with nb_agents loaded; `cold` is as for kernels."""
    argv = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"]
    terminal = Prompt(argv, place, environment(place), cold)
    try:
        terminal.wait_prompt()
        terminal.enter("%load_ext nb_agents")
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def ipython(tmp_path: Path) -> Iterator[Prompt]:
    with begun(tmp_path, cold=False) as terminal:
        yield terminal


@pytest.fixture
def cold_ipython(tmp_path: Path) -> Iterator[Prompt]:
    """IPython that is started normally, for tests of its end."""
    with begun(tmp_path, cold=True) as terminal:
        yield terminal


def agents(team: Path, options: str = "") -> str:
    return f"get_ipython().run_cell_magic('agents', '--config {team} {options}', 'Count.')"


def test_a_run_from_start_to_card(ipython: Prompt, server: ModelServer, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team.yaml", server)
    shown = ipython.enter(agents(team, "--wait"))
    assert "The team's final answer." in shown
    assert "[complete]" in shown
    assert "Traceback" not in ipython.text
    table = ipython.enter("%agents")
    assert "complete" in table
    assert "Count." in table


def test_the_cell_magic_at_the_prompt(ipython: Prompt, server: ModelServer, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team.yaml", server)
    ipython.type(f"%%agents --config {team}\n")
    ipython.type("Count to six.\n")
    ipython.enter("\n")
    turn = only_turn(tmp_path)
    turn.wait_over()
    assert turn.metadata["task"] == "Count to six."
    assert "final answer" in ipython.enter("%agents show")


@pytest.mark.parametrize("how", ["--wait", "%agents wait", "run.wait()"])
@pytest.mark.parametrize("now", [False, True])
def test_ctrl_c_in_a_cell_that_waits(
    ipython: Prompt, server: ModelServer, tmp_path: Path, how: str, now: bool
) -> None:
    team = write_team(tmp_path / "team.yaml", server)
    server.hold(after=3)
    if how != "--wait":
        ipython.enter(agents(team, "--out run"))
    ipython.enter(f"exec({TELLS!r})")
    start = len(ipython.text)
    ipython.type(f"{agents(team, how) if how == '--wait' else how}\n")
    # A Ctrl-C before this would delete the typed text.
    wait_until(lambda: "waits\n" in ipython.read()[start:], 60, "a cell that waits")
    turn = only_turn(tmp_path)
    turn.wait_streamed()
    start = len(ipython.text)
    ipython.ctrl_c()
    turn.wait_stop("requested")
    if now:
        ipython.ctrl_c()
        turn.wait_stop("immediate")
    (assert_stopped_now if now else assert_stopped_gracefully)(turn, server, "interrupt")
    ipython.wait_prompt(start)
    assert "Incomplete turn" in ipython.text
    assert "Traceback" not in ipython.text
    assert "2" in ipython.enter("1 + 1")


def test_ctrl_c_at_the_prompt_does_not_stop_runs(
    ipython: Prompt, server: ModelServer, tmp_path: Path
) -> None:
    team = write_team(tmp_path / "team.yaml", server)
    server.hold(after=3)
    ipython.enter(agents(team))
    turn = only_turn(tmp_path)
    turn.wait_streamed()
    start = len(ipython.text)
    ipython.ctrl_c()
    ipython.wait_prompt(start)
    assert turn.events("stop_requested") == []
    ipython.enter("%agents stop --now")
    assert_stopped_now(turn, server, "magic")


def test_exit_of_ipython_saves_live_runs(
    cold_ipython: Prompt, server: ModelServer, tmp_path: Path
) -> None:
    ipython = cold_ipython
    team = write_team(tmp_path / "team.yaml", server)
    server.hold(after=3)
    ipython.enter(agents(team))
    turn = only_turn(tmp_path)
    turn.wait_streamed()
    ipython.type("exit\n")
    assert ipython.wait_end() == 0
    assert_stopped_now(turn, server, "parent")


def test_mistakes_are_reported_in_a_sentence(ipython: Prompt) -> None:
    shown = ipython.enter("%agents stahp")
    assert "UsageError: %agents has no verb 'stahp'" in shown
    shown = ipython.enter("import nb_agents; nb_agents.start(' ')")
    assert "TaskError: The task is empty" in shown
    assert "Traceback" not in ipython.text


# Scripts


@contextlib.contextmanager
def script(place: Path, code: str, cold: bool = False) -> Iterator[subprocess.Popen[str]]:
    file = place / "script.py"
    file.write_text(code)
    start = subprocess.Popen if cold else WarmProcess
    process = start(
        [sys.executable, str(file)],
        cwd=place,
        env=environment(place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        with process:
            yield process
            process.kill()
    finally:
        process.kill()


def test_model_text_cannot_control_the_terminal(ipython: Prompt) -> None:
    ipython.enter("import nb_agents")
    ipython.enter("from nb_agents.testing import Answer, ScriptedModel, scripted_team")
    hostile = r"\x1b]52;c;cm0=\x07spoken\x1b[2J\x9b2J"
    ipython.enter(f"team = scripted_team(a=ScriptedModel(Answer('{hostile}')))")
    ipython.enter(
        f"nb_agents.start('Say {hostile}', config=team, session='s').wait(raise_on_stop=False)"
    )
    before = len(ipython.bytes)
    shown = [ipython.enter(f"%agents {verb}") for verb in ("", "show s", "log s", "sessions")]
    assert all("spoken" in each for each in shown)
    written = ipython.bytes[before:].replace(b"\x1b[?2004h", b"").replace(b"\x1b[?2004l", b"")
    assert b"\x1b" not in written and b"\xc2\x9b" not in written and b"\x07" not in written


START = "import asyncio, nb_agents\nrun = nb_agents.start('Count.', config='team.yaml')\n"
TELLS = """
import threading, time
from nb_agents import loop
def tell():
    while not loop._handlers: time.sleep(0.01)
    print("waits", flush=True)
threading.Thread(target=tell, daemon=True).start()
"""
WAITS = {
    "wait": (
        "try: print('answer:', run.wait())\n"
        "except nb_agents.RunCancelled as exc: print('kept', sorted(exc.partial_answers))\n"
    ),
    "await": (
        "async def main():\n"
        "    try: print('answer:', await run)\n"
        "    except nb_agents.RunCancelled as exc: print('kept', sorted(exc.partial_answers))\n"
        "asyncio.run(main())\n"
    ),
}


@pytest.mark.parametrize("how", WAITS)
def test_script_receives_the_answer(server: ModelServer, tmp_path: Path, how: str) -> None:
    write_team(tmp_path / "team.yaml", server)
    with script(tmp_path, START + WAITS[how]) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "answer: The team's final answer.\n")


@pytest.mark.parametrize("how", WAITS)
@pytest.mark.parametrize("now", [False, True])
def test_ctrl_c_in_a_script(server: ModelServer, tmp_path: Path, how: str, now: bool) -> None:
    write_team(tmp_path / "team.yaml", server)
    server.hold(after=3)
    with script(tmp_path, START + TELLS + WAITS[how]) as process:
        assert read_line(process) == "waits\n"
        turn = only_turn(tmp_path)
        turn.wait_streamed()
        process.send_signal(signal.SIGINT)
        turn.wait_stop("requested")
        if now:
            process.send_signal(signal.SIGINT)
            turn.wait_stop("immediate")
        (assert_stopped_now if now else assert_stopped_gracefully)(turn, server, "interrupt")
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "kept ['Ben', 'ada', 'cleo']\n")


def test_a_script_that_ends_saves_its_live_runs(server: ModelServer, tmp_path: Path) -> None:
    write_team(tmp_path / "team.yaml", server)
    server.hold(after=3)
    with script(tmp_path, START + "input()\n", cold=True) as process:
        turn = only_turn(tmp_path)
        turn.wait_streamed()
        process.communicate(timeout=60)
    assert_stopped_now(turn, server, "parent")
    assert HELD in turn.answer


def test_importing_is_light(tmp_path: Path) -> None:
    """The import loads no SDK and no notebook package."""
    code = (
        "import sys, nb_agents\n"
        "heavy = ('pydantic_ai', 'openai', 'anthropic', 'google.genai', 'IPython', 'anywidget')\n"
        "print([m for m in heavy if m in sys.modules])\n"
    )
    with script(tmp_path, code, cold=True) as process:
        assert process.communicate(timeout=60)[0] == "[]\n"
