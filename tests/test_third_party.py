"""An extension of another distribution works when it is installed, and leaves nothing broken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nb_agents import Client
from tests import warm
from tests.server.conftest import jupyter_server

PACKAGE = Path(__file__).parent / "acme" / "acme"
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in which the distribution is installed, as by pip."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "acme")
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nb_agents]\nacme = acme:EXTENSION\n")
    with warm.forked_with(folder, "nb_agents.cli", "nb_agents.testing"):
        yield folder


def run(folder: Path, *arguments: str, site: Path | None = None, code: int = 0) -> str:
    """Run Python in a directory, with what is installed in ``site``.

    With a site, it is forked from a process that has imported nb_agents with it.

    Returns:
        Its output, after checking its exit code.
    """
    found = [str(ROOT), *([str(site)] if site else [])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(found), "NO_COLOR": "1"}
    pipe, start = subprocess.PIPE, warm.WarmProcess if site else subprocess.Popen
    command = [sys.executable, *arguments]
    with start(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        shown, errors = process.communicate()
    assert process.returncode == code, errors
    return str(shown)


ECHO = """
import nb_agents
agent = {"id": "ada", "backend": {"type": "acme_echo"}}
team = nb_agents.TeamSpec.model_validate({"agents": [agent]})
run = nb_agents.start("say hi", team, session="s")
print(run.wait())
"""


@pytest.fixture(scope="module")
def turn(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a session that an agent of the extension's backend type answered."""
    folder = tmp_path_factory.mktemp("work")
    assert run(folder, "-c", ECHO, site=site).strip() == "SAY HI"
    return folder


def test_backend_type_takes_part_in_a_round(turn: Path) -> None:
    journal = next(turn.rglob("events.jsonl")).read_text()
    kinds = [json.loads(line)["kind"] for line in journal.splitlines()]
    assert kinds.count("mood_changed") == 1 and "turn_ended" in kinds


def test_a_tool_is_called_by_a_model(site: Path, tmp_path: Path) -> None:
    code = """
import nb_agents
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
calls = Turn(calls=(Call("acme_weather", {"city": "Rome"}),))
model = ScriptedModel(calls, Answer("Good."))
backend = {"type": "python", "instance": model, "extension_tools": ["acme_weather", "acme_wether"]}
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "ada", "backend": backend}]})
run = nb_agents.start("Weather?", team)
run.wait()
view = run.view
print((run.path / "events.jsonl").read_text().count("Sunny in Rome"), *view.notices)
"""
    shown = run(tmp_path, "-c", code, site=site)
    assert int(shown.split()[0]) > 0
    assert "ada: No installed extension has the tool 'acme_wether'." in shown
    assert "Did you mean 'acme_weather'?" in shown


def test_a_verb_is_a_command_and_a_cell(turn: Path, site: Path) -> None:
    command = ("-m", "nb_agents.cli", "mood", "s")
    assert run(turn, *command, site=site).strip() == "ada: loud"
    assert run(turn, *command, "--loud", site=site).strip() == "ADA: LOUD"
    cell = """
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_line_magic("load_ext", "nb_agents")
shell.run_line_magic("agents", "mood s")
"""
    assert "ada: loud" in run(turn, "-c", cell, site=site)


def test_a_verb_has_a_rest_route_and_is_called_by_the_client(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path, dirs_exist_ok=True)  # the server's directory is in its path
    with jupyter_server(tmp_path, is_warm=False) as server:
        run(server.root, "-c", ECHO, site=site)
        turn = server.name(server.sessions / "s" / "turn_1")
        asked = server.post(f"runs/{turn}/mood", {"loud": True})
        assert asked.status_code == 202, asked.text
        assert asked.json() == {
            "id": turn,
            "ada": "loud",
            "message": "ADA: LOUD",
            "status": "complete",
        }
        assert server.post(f"runs/{turn}/mood", {"quiet": True}).status_code == 400
        operation = server.get("openapi.json")["paths"]["/runs/{id}/mood"]["post"]
        assert operation["summary"] == "Show the moods of a turn's agents."
        with Client(server.base, server.token) as client:
            assert client.ask(turn, "mood")["message"] == "ada: loud"


def test_a_command_is_listed_and_runs(site: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "-m", "nb_agents.cli", "acme", "Eve", site=site) == "Hello Eve\n"
    assert "Greet somebody." in run(tmp_path, "-m", "nb_agents.cli", "--help", site=site)


def test_a_card_has_a_part_for_the_event(turn: Path, site: Path) -> None:
    code = """
from nb_agents.presentation.cards import turn_bundle
from nb_agents.session.history import load_turn
from nb_agents.session.layout import session_root
from nb_agents.session.lookup import find_turn
bundle = turn_bundle(load_turn(find_turn(session_root(None), "s")), "s")
print(bundle["text/html"].count("<strong>ada</strong> is loud"))
print(bundle["text/plain"].count("**ada** is loud"))
"""
    assert run(turn, "-c", code, site=site).split() == ["1", "1"]
    assert run(turn, "-c", code).split() == ["0", "0"]


PROMPTS = """
import threading, nb_agents
from nb_agents.testing import ScriptedModel, Turn, scripted_team

def show(run):
    steps = [f"{step.status} {step.output}" for step in run.view.steps.values()]
    print(run.state, steps, [unit.label for unit in run.view.pending])

first = ScriptedModel(Turn("Rome."), Turn("Os", hang=True))
run = nb_agents.start(config=scripted_team(ada=first), recipe="prompts.txt", session="s")
streams = threading.Event()
run.subscribe(lambda view: "prompt-2" in view.steps and first.open_streams and streams.set())
streams.wait()
run.stop(now=True)
run.wait(raise_on_stop=False)
show(run)
print(run.preview)
second = ScriptedModel(Turn("Oslo."), Turn("Bonn."))
resumed = run.resume(config=scripted_team(ada=second))
resumed.wait()
show(resumed)
print(len(second.requests), resumed.result)
"""


@pytest.fixture(scope="module")
def prompts(site: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A directory with work of the extension's kind that was resumed, and the code's output."""
    folder = tmp_path_factory.mktemp("prompts")
    (folder / "prompts.txt").write_text("# prompts\nItaly?\nNorway?\nGermany?\n")
    return folder, run(folder, "-c", PROMPTS, site=site).splitlines()


def test_work_of_its_kind_is_stopped_and_resumed(prompts: tuple[Path, list[str]]) -> None:
    stopped, preview, resumed, result = prompts[1]
    assert stopped == "stopped ['ok Rome.', 'cut None'] ['Germany?']"
    assert "1 finished step and 1 finished model call are kept" in preview
    assert "1 model call interrupted or failed (prompt-2)" in preview
    assert resumed == "complete ['ok Rome.', 'ok Oslo.', 'ok Bonn.'] []"
    assert result == "2 {'answers': ['Rome.', 'Oslo.', 'Bonn.']}"


def test_a_file_of_its_kind_can_be_checked(prompts: tuple[Path, list[str]], site: Path) -> None:
    check = ("-m", "nb_agents.cli", "check", "prompts.txt")
    assert run(prompts[0], *check, site=site) == "prompts.txt\nCan start.\n"


def test_file_of_its_kind_is_rejected_with_the_extensions_error(site: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# prompts\n")
    code = """
import nb_agents
try:
    nb_agents.start(recipe="empty.txt")
except nb_agents.UserError as exc:
    print(exc)
"""
    assert "The file has no prompts." in run(tmp_path, "-c", code, site=site)


@pytest.mark.parametrize("is_installed", [True, False])
def test_its_turns_are_listed_and_shown(
    prompts: tuple[Path, list[str]], site: Path, is_installed: bool
) -> None:
    folder, installed = prompts[0], site if is_installed else None
    assert "complete" in run(folder, "-m", "nb_agents.cli", "sessions", site=installed)
    card = run(folder, "-m", "nb_agents.cli", "show", "s/1", site=installed)
    assert "during prompt-2" in card and "Rome." in card and "prompt-3 · Germany? · to come" in card
    assert "steps: 3 complete" in run(folder, "-m", "nb_agents.cli", "show", "s", site=installed)


FAILING = """
import nb_agents
from nb_agents.testing import ScriptedModel, Turn, scripted_team

def show(run):
    print(run.state, [f"{step.status} {step.output}" for step in run.view.steps.values()])

broken = ScriptedModel(Turn("Rome."), Turn(error=ValueError("no network")))
run = nb_agents.start(config=scripted_team(ada=broken), recipe="prompts.txt", session="f")
run.wait(raise_on_stop=False)
show(run)
print(*run.view.notices)
resumed = run.resume(config=scripted_team(ada=ScriptedModel(Turn("Oslo."))))
resumed.wait()
show(resumed)
"""


def test_resume_repeats_a_failed_step(site: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("# prompts\nItaly?\nNorway?\n")
    failed, notices, resumed = run(tmp_path, "-c", FAILING, site=site).splitlines()
    assert failed == "failed ['ok Rome.', 'failed None']"
    assert "A step failed: scripted: The call failed with ValueError." in notices
    assert resumed == "complete ['ok Rome.', 'ok Oslo.']"


KILLED = """
import os, signal, threading, nb_agents
from nb_agents.testing import ScriptedModel, Turn, scripted_team

model = ScriptedModel(Turn("Rome."), Turn("Os", hang=True))
run = nb_agents.start(config=scripted_team(ada=model), recipe="prompts.txt", session="k")
streams = threading.Event()
run.subscribe(lambda view: "prompt-2" in view.steps and model.open_streams and streams.set())
streams.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""

AFTER_KILL = """
import nb_agents
from nb_agents.testing import ScriptedModel, Turn, scripted_team

model = ScriptedModel(Turn("Oslo."))
run = nb_agents.resume("k", config=scripted_team(ada=model))
print(run.wait(), [(step.status, step.output) for step in run.view.steps.values()])
print(len(model.requests), run.result)
"""


def test_work_of_its_kind_is_resumed_after_its_process_was_killed(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("# prompts\nItaly?\nNorway?\n")
    run(tmp_path, "-c", KILLED, site=site, code=-signal.SIGKILL)

    steps, result = run(tmp_path, "-c", AFTER_KILL, site=site).splitlines()
    assert steps == "Oslo. [('ok', 'Rome.'), ('ok', 'Oslo.')]"
    assert result == "1 {'answers': ['Rome.', 'Oslo.']}"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_each_part_has_fewer_than_60_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60
