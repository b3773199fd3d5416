"""Recipes in a notebook: start, gates, stop, kill, and resume."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests import warm
from tests.kernel.driver import Result
from tests.kernel.notebook import TURN_MIME, Notebook, Turn, write_team
from tests.kernel.test_terminal import Prompt, ipython
from tests.model_server import ModelServer, Reply, Request, wait_until
from tests.run_demo import without_ports

__all__ = ["ipython"]  # a fixture

Open = Callable[..., Notebook]
HEAD = "name: paper\ndescription: A test's recipe\nversion: 1.0.0\n"

VALUES = """
context: {depth: 1}
steps:
  - {id: list, type: bash, command: "printf '%s|' {{place}} {{depth}}", output: listed}
  - id: each
    foreach: "{{cities}}"
    as: city
    agent: ada
    prompt: "Write about {{city}}."
    collect: texts
"""

GATE = """
stages:
  - name: draft
    steps:
      - {id: write, agent: ada, prompt: Write a draft., output: draft}
    approval: {required: true, prompt: "Publish “{{draft}}”?"}
  - name: publish
    steps:
      - {id: tell, agent: ada, prompt: "Announce it. {{_approval_message}}", output: told}
"""


def said_by_model(request: Request) -> Reply:
    """Return the last line of the prompt."""
    return Reply(text=f"I did: {request.prompt.splitlines()[-1]}")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(default=said_by_model) as server:
        yield server


def write(notebook: Notebook, body: str, name: str = "recipe.yaml") -> Path:
    path = notebook.place / name
    path.write_text(HEAD + body)
    return path


def magic(notebook: Notebook, recipe: Path, options: str = "", values: str = "") -> str:
    line = f"--recipe {recipe} --agents-config {notebook.team} {options}"
    return f"%%agents {line}\n{values}" if values else f"%agents {line}"


def start(notebook: Notebook, recipe: Path, options: str = "", values: str = "") -> Turn:
    cell = notebook.kernel.send(magic(notebook, recipe, options, values))
    return notebook.turn_of(cell)


def resume(notebook: Notebook, options: str = "") -> Turn:
    return notebook.turn_of(notebook.kernel.send(f"%agents resume {options}"))


def wait_asked(turn: Turn) -> None:
    wait_until(lambda: turn.events("approval_asked"), 60, "the gate", turn.events)


def finished(turn: Turn) -> dict[str, str]:
    """Return the outcomes of the finished steps."""
    return {e["step"]: e["outcome"] for e in turn.events("step_finished")}


def began(turn: Turn) -> list[str]:
    return [e["step"] for e in turn.events("step_started")]


def sentence(result: Result) -> str:
    """Return the message about a user's mistake, without a traceback."""
    assert result.status == "error"
    assert "Traceback" not in result.stderr
    return result.stderr.removeprefix("UsageError: ").strip()


# Starting


def test_cell_runs_a_recipe_with_values_and_returns_its_outputs(notebook: Notebook) -> None:
    recipe = write(notebook, VALUES)
    notebook.kernel.run("found = ['Oslo', 'Bergen']\nfjord = 'Oslo; echo no'")
    values = 'cities: {{found}}\nplace: "{{fjord}}"\ndepth: 2'
    turn = start(notebook, recipe, "--set depth=3 --out run", values)
    turn.wait_over()
    assert notebook.kernel.eval("run.wait() and run.result") == {
        "listed": "Oslo; echo no|3|",
        "texts": ["I did: Write about Oslo.", "I did: Write about Bergen."],
    }
    assert notebook.kernel.eval("run.result['texts'][1]") == "I did: Write about Bergen."


def test_line_starts_a_recipe_without_values_with_its_bundle(
    notebook: Notebook,
) -> None:
    kit = notebook.place / "kit"
    kit.mkdir()
    part = 'steps: [{id: a, type: bash, command: "echo hi", output: said}]'
    (kit / "part.yaml").write_text(HEAD + part)
    recipe = write(notebook, "steps: [{id: c, type: recipe, recipe: '@kit:part.yaml', output: r}]")
    turn = start(notebook, recipe, f"--bundle kit={kit} --out run --wait")
    turn.wait_over()
    assert notebook.kernel.eval("run.result") == {"r": {"said": "hi"}}


@pytest.mark.parametrize(
    "cell, wanted",
    [
        ("%agents --recipe nope.yaml", "nope.yaml: No such file (working directory: "),
        (
            "%agents --recipe {broken}",
            "broken.yaml:7:5: Unknown key 'steps.0.comand'; did you mean",
        ),
        (
            "%agents --recipe {needy}",
            "The recipe 'paper' requires city: pass it as --set city=VALUE",
        ),
        ("%agents --recipe {team}", "team.yaml: This is a team file, not a recipe."),
        ("%%agents --recipe {needy}\nWrite about Oslo.", "A cell with --recipe contains"),
        ("%%agents --recipe {needy}\ncity: {{nope}}", "variable 'nope' is not defined"),
        (
            "%%agents --recipe {needy}\na: b: c",
            "The recipe's values are not valid YAML (line 1)",
        ),
        ("%agents --recipe {needy} --set city", "--set city is not NAME=VALUE"),
        ("%%agents --set city=Oslo\nWrite.", "--set can only be used with --recipe"),
        ("%agents --config {team}", "Write the task below %%agents"),
        ("%agents approve", "The following arguments are required: RUN"),
        ("%agents approve r99", "No run named 'r99'."),
        ("%agents plan {broken}", "broken.yaml:7:5: Unknown key"),
        ("%agents check {broken}", "broken.yaml:7:5: Unknown key"),
    ],
)
def test_mistake_is_reported_in_a_sentence(notebook: Notebook, cell: str, wanted: str) -> None:
    files = {
        "broken": write(
            notebook, "steps:\n  - id: a\n    type: bash\n    comand: ls\n", "broken.yaml"
        ),
        "needy": write(
            notebook,
            "context: {city: {type: string, required: true}}\n"
            "steps: [{id: a, type: bash, command: 'echo {{city}}'}]",
        ),
        "team": notebook.team,
    }
    for name, path in files.items():
        cell = cell.replace(f"{{{name}}}", str(path))
    assert wanted in sentence(notebook.kernel.run(cell))
    assert list(notebook.root.glob("*")) == []


def test_recipe_and_task_together_are_refused(notebook: Notebook) -> None:
    recipe = write(notebook, GATE)
    call = f"__import__('nb_agents').start('Write.', recipe={str(recipe)!r})"
    result = notebook.kernel.run(call)
    assert result.error and "Provide either a task or a recipe, not both." in result.error.evalue


# Looking at one


def test_check_and_plan_describe_a_recipe(notebook: Notebook) -> None:
    recipe = write(notebook, GATE + "    retries: 3\n")
    text = notebook.text(notebook.kernel.run(f"%agents check {recipe} -c {notebook.team}"))
    assert "write: agent ada = ada (ada)" in text
    assert "gate after draft: needs approval" in text
    assert "Unknown key 'stages.1.retries' is ignored." in text
    assert text.endswith("It can run.")
    [display] = notebook.kernel.run(f"%agents plan {recipe}").displays
    chart, text = display.data["text/markdown"].split("\n\n```\n\n")
    assert chart.startswith("```mermaid\nflowchart TD\n")
    assert "    gate after draft" in text
    assert "gate after draft" in display.data["text/plain"]
    assert "Can start." in notebook.text(notebook.kernel.run(f"%agents check {notebook.team}"))
    assert list(notebook.root.glob("*")) == []


def test_check_explains_why_a_recipe_cannot_run(notebook: Notebook) -> None:
    recipe = write(notebook, 'steps: [{id: a, type: recipe, recipe: "gone.yaml"}]')
    text = notebook.text(notebook.kernel.run(f"%agents check {recipe}"))
    assert f"Error {recipe}:4:" in text
    assert "No recipe 'gone.yaml' next to this one" in text
    assert text.endswith("It can't run.")


# Gates


def test_approve_verb_passes_its_message_to_later_steps(notebook: Notebook) -> None:
    turn = start(notebook, write(notebook, GATE), "--out run")
    wait_asked(turn)
    said = notebook.text(notebook.kernel.run(f'%agents approve {turn.run} don\'t name "me"'))
    assert "Approved “Publish “" in said
    assert said.endswith(f"of run {turn.run}: the recipe continues.")
    turn.wait_over()
    wanted = 'I did: Announce it. don\'t name "me"'
    assert notebook.kernel.eval("run.result['told']") == wanted
    assert "is not waiting for an approval" in sentence(
        notebook.kernel.run(f"%agents deny {turn.run}")
    )


def test_a_denied_gate_stops_the_recipe_and_a_resume_asks_again(notebook: Notebook) -> None:
    turn = start(notebook, write(notebook, GATE))
    wait_asked(turn)
    notebook.kernel.run(f"%agents deny {turn.run} Not yet")
    turn.wait_over()
    assert turn.metadata["run_status"] == "cancelled"
    reason = turn.events("stop_requested")[0]["reason"]
    assert re.fullmatch("the gate of 'draft' was denied by .+: Not yet", reason)
    again = resume(notebook, turn.session)
    wait_asked(again)
    assert notebook.server.count() == 1  # text that was written is not requested again
    notebook.kernel.run(f"%agents approve {again.run}")
    again.wait_over()
    assert again.metadata["run_status"] == "completed"


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_gate_asks_again_after_its_kernel_ended(open_notebook: Open, end: str) -> None:
    notebook = open_notebook()
    turn = start(notebook, write(notebook, GATE))
    wait_asked(turn)
    if end == "restart":
        notebook.kernel.restart()
        notebook.use(notebook.kernel)
    else:
        notebook.kernel.kill()
        notebook = open_notebook(load=False)
    told = notebook.text(notebook.kernel.run("%load_ext nb_agents"))
    # A properly saved turn is not reported.
    assert ("asks: “Publish “I did: Write a draft.”?”" in told) == (end == "kill")
    assert (f"`%agents resume {turn.session}` resumes it" in told) == (end == "kill")
    again = resume(notebook)
    wait_asked(again)
    [asked] = again.events("approval_asked")
    assert asked["prompt"] == "Publish “I did: Write a draft.”?"
    notebook.kernel.run(f"%agents approve {again.run}")
    again.wait_over()
    assert again.metadata["run_status"] == "completed"
    assert notebook.server.count() == 2


# Nobody there


def test_headless_run_stops_at_a_gate_without_an_approver(open_notebook: Open) -> None:
    notebook = open_notebook(headless=True)
    turn = start(notebook, write(notebook, GATE))
    result = notebook.kernel.result(turn.cell)
    assert result.status == "ok"
    said = notebook.text(result)
    assert "The gate 'draft' asks: “Publish “I did: Write a draft.”?”" in said
    assert f"`%agents resume {turn.session}` in an open notebook asks again" in said
    assert (turn.metadata["status"], turn.metadata["run_status"]) == ("incomplete", "cancelled")
    assert result.updates[-1].data[TURN_MIME]["state"] == "stopped"
    notebook = open_notebook()
    again = resume(notebook, turn.session)
    wait_asked(again)
    notebook.kernel.run(f"%agents approve {again.run}")
    again.wait_over()
    assert again.metadata["run_status"] == "completed"


@pytest.mark.parametrize("default, wanted", [("approve", "completed"), ("deny", "cancelled")])
def test_headless_run_uses_the_default_of_a_gate_with_a_timeout(
    open_notebook: Open, default: str, wanted: str
) -> None:
    notebook = open_notebook(headless=True)
    timed = GATE.replace("required: true", f"required: true, timeout: 0.2, default: {default}")
    turn = start(notebook, write(notebook, timed))
    assert notebook.kernel.result(turn.cell).status == "ok"
    assert turn.metadata["run_status"] == wanted


@pytest.mark.parametrize("headless", [False, True])
def test_an_interrupt_ends_a_cell_that_waits_at_a_gate(open_notebook: Open, headless: bool) -> None:
    notebook = open_notebook(headless=headless)
    # A gate with a default, much later: a headless cell waits for it.
    timed = GATE.replace("required: true", "required: true, timeout: 600")
    turn = start(notebook, write(notebook, timed), "--wait")
    wait_asked(turn)
    notebook.kernel.interrupt()
    turn.wait_over()
    assert notebook.kernel.result(turn.cell).status == "ok"
    source = "notebook" if headless else "interrupt"  # run by a program, not a user
    assert turn.events("stop_requested")[0]["source"] == source
    assert turn.metadata["run_status"] == "cancelled"


def test_waiting_cell_is_answered_on_the_control_channel(
    notebook: Notebook,
) -> None:
    turn = start(notebook, write(notebook, GATE), "--wait")
    wait_asked(turn)
    told = lambda: "Answer in the panel." in notebook.text(notebook.kernel.outputs_of(turn.cell))  # noqa: E731
    notebook.kernel.wait_until(told, 60, "the sentence")
    answer = {"run": turn.run, "gate": "draft", "message": "Now.", "id": "1"}
    notebook.kernel.control("nb_agents_approve_request", answer)
    assert notebook.kernel.result(turn.cell).status == "ok"
    assert turn.metadata["run_status"] == "completed"


def test_waiting_cell_in_a_terminal_ends_at_a_gate_with_instructions(
    ipython: Prompt, server: ModelServer, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(HEAD + GATE)
    team = write_team(tmp_path / "team.yaml", server)
    shown = ipython.enter(f"%agents --recipe recipe.yaml --config {team} --wait")
    assert "The gate 'draft' asks: “Publish “I did: Write a draft.”?”" in shown
    assert "`%agents approve r1 [MESSAGE]` lets the recipe continue" in shown
    assert "Approved “" in ipython.enter("%agents approve r1")
    assert "[complete]" in ipython.enter("%agents wait")
    assert "Traceback" not in ipython.text


def test_nbclient_finishes_a_notebook_with_a_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", warm.kernel_path(tmp_path / "jupyter"))
    (tmp_path / "team.yaml").write_text(
        "agents:\n  - id: ada\n    backend: {type: demo, words_per_second: 500}\n"
    )
    (tmp_path / "recipe.yaml").write_text(HEAD + GATE)
    run = "%agents --recipe recipe.yaml --agents-config team.yaml --out run"
    cells = ["%load_ext nb_agents", run, "run.status, run.result"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(
        nb, config=without_ports(tmp_path), timeout=60, kernel_name="python3", resources=place
    ).execute()
    card, said = nb.cells[1].outputs
    assert card.data[TURN_MIME]["state"] == "stopped"
    assert "Nobody can answer" in said.data["text/plain"]
    assert nb.cells[2].outputs[0].data["text/plain"] == "('cancelled', None)"


# Commands


class Command:
    """A recipe of three steps; the second one works until it is released.

    Its processes keep a FIFO open; end of file means that all have ended.
    """

    def __init__(self, notebook: Notebook) -> None:
        self.go, self.signals = notebook.place / "go", notebook.place / "signals"
        alive = notebook.place / "alive"
        os.mkfifo(alive)
        self._end = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
        self.recipe = write(
            notebook,
            f"""
steps:
  - {{id: first, type: bash, command: "echo one", output: first}}
  - id: work
    type: bash
    command: |
      exec 9>"{alive}"
      trap 'echo INT >>"{self.signals}"' INT
      sleep 600 & setsid sleep 600 &
      echo ready
      until [ -e "{self.go}" ]; do sleep 0.05; done
      echo done
    output: work
  - {{id: last, type: bash, command: "echo three", output: last}}
""",
        )

    def wait_ready(self, turn: Turn) -> None:
        there = lambda: any("ready" in e["text"] for e in turn.events("output_streamed"))  # noqa: E731
        wait_until(there, 60, "the command at work", turn.events)
        assert not self.is_gone()

    def is_gone(self) -> bool:
        try:
            return os.read(self._end, 1) == b""
        except BlockingIOError:
            return False

    def wait_gone(self) -> None:
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        poll.poll(60_000)
        assert self.is_gone()

    def close(self) -> None:
        self.go.touch()
        os.close(self._end)


@pytest.fixture
def command(notebook: Notebook) -> Iterator[Command]:
    command = Command(notebook)
    yield command
    command.close()


def assert_resumes(notebook: Notebook, command: Command, session: str, runs: list[str]) -> None:
    """Assert that a resume runs only these steps, to the end."""
    command.go.touch()
    turn = resume(notebook, session)
    turn.wait_over()
    assert turn.metadata["run_status"] == "completed"
    assert began(turn) == runs


@pytest.mark.parametrize("options", ["", "--wait"])
def test_interrupt_lets_the_command_finish_and_starts_no_other(
    notebook: Notebook, command: Command, options: str
) -> None:
    turn = start(notebook, command.recipe, options)
    if not options:  # an interrupt of a cell that is about to end does not stop the run
        assert notebook.kernel.result(turn.cell).status == "ok"
    command.wait_ready(turn)
    notebook.kernel.interrupt()
    turn.wait_stop()
    assert not command.is_gone()
    command.go.touch()
    turn.wait_over()
    command.wait_gone()
    assert notebook.kernel.result(turn.cell).status == "ok"
    assert turn.metadata["run_status"] == "cancelled"
    assert finished(turn) == {"first": "ok", "work": "ok"}
    assert not command.signals.exists()  # the kernel's interrupt is not the command's
    assert_resumes(notebook, command, turn.session, ["last"])


@pytest.mark.parametrize("options", ["", "--wait"])
def test_second_interrupt_ends_all_processes_of_the_command(
    notebook: Notebook, command: Command, options: str
) -> None:
    turn = start(notebook, command.recipe, options)
    if not options:  # an interrupt of a cell that is about to end does not stop the run
        assert notebook.kernel.result(turn.cell).status == "ok"
    command.wait_ready(turn)
    notebook.kernel.interrupt()
    turn.wait_stop()
    notebook.kernel.interrupt()
    command.wait_gone()
    turn.wait_over()
    assert notebook.kernel.result(turn.cell).status == "ok"
    assert turn.events("stop_requested")[-1]["level"] == "immediate"
    assert finished(turn) == {"first": "ok"}
    assert not command.signals.exists()
    assert_resumes(notebook, command, turn.session, ["work", "last"])


def test_killed_kernel_leaves_no_process_and_its_step_is_repeated(open_notebook: Open) -> None:
    notebook = open_notebook()
    command = Command(notebook)
    turn = start(notebook, command.recipe)
    command.wait_ready(turn)
    notebook.kernel.kill()
    command.wait_gone()
    notebook = open_notebook(load=False)
    told = notebook.text(notebook.kernel.run("%load_ext nb_agents"))
    assert f"Incomplete turn {turn.name}: its kernel died." in told
    assert "Saved: 1 step" in told
    assert f"`%agents resume {turn.session}` resumes it" in told
    assert_resumes(notebook, command, turn.session, ["work", "last"])
    command.close()


def test_restart_leaves_no_process_and_repeats_its_step(open_notebook: Open) -> None:
    notebook = open_notebook()
    command = Command(notebook)
    turn = start(notebook, command.recipe)
    command.wait_ready(turn)
    notebook.kernel.restart()
    command.wait_gone()
    assert turn.metadata["run_status"] == "cancelled"
    notebook.use(notebook.kernel)
    assert notebook.kernel.run("%load_ext nb_agents").displays == []
    assert_resumes(notebook, command, turn.session, ["work", "last"])
    command.close()


def test_preview_lists_repeated_steps_without_running_them(
    notebook: Notebook, command: Command
) -> None:
    turn = start(notebook, command.recipe)
    command.wait_ready(turn)
    notebook.kernel.run(f"%agents stop {turn.run} --now")
    turn.wait_over()
    said = notebook.text(notebook.kernel.run(f"%agents resume {turn.session} --preview"))
    assert "Resumes turn 1: 1 finished step" in said
    assert "work" in said.partition("Runs again: ")[2]
    assert not (turn.path.parent / "turn_2").exists()


def test_resume_uses_a_changed_recipe(notebook: Notebook, command: Command) -> None:
    turn = start(notebook, command.recipe, "--out run")
    command.wait_ready(turn)
    notebook.kernel.run(f"%agents stop {turn.run} --now")
    turn.wait_over()
    changed = notebook.place / "changed.yaml"
    changed.write_text(command.recipe.read_text().replace("echo three", "echo 3, after {{first}}"))
    command.go.touch()
    again = resume(notebook, f"{turn.session} --recipe {changed}")
    again.wait_over()
    assert notebook.kernel.eval("__import__('nb_agents').runs()[-1].result['last']") == (
        "3, after one"
    )


def test_resume_accepts_a_missing_value(notebook: Notebook) -> None:
    file = notebook.place / "lacking.yaml"
    file.write_text(
        "name: lacking\ndescription: d\nversion: 1.0.0\n"
        "steps:\n- {id: push, type: bash, command: 'echo to {{branch}}', output: pushed}\n"
    )
    root = f"--session-root {notebook.root}"
    notebook.kernel.run(f"%agents --recipe {file} --wait --out run {root}")
    assert notebook.kernel.eval("run.status") == "failed"
    notebook.kernel.run(f"%agents resume --set branch=main --wait {root}")
    assert notebook.kernel.eval("__import__('nb_agents').runs()[-1].result['pushed']") == "to main"
