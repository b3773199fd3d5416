"""The question to raise a budget outlives its kernel, and every interface answers it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from nb_agents import Client
from tests.cli.calls import CLI
from tests.kernel.driver import Kernel
from tests.kernel.notebook import Notebook, Turn
from tests.kit.sessions import TurnPaths, past_events, turns_of
from tests.kit.views import fold
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.processes import run as run_process
from tests.server.conftest import JupyterServer, jupyter_server
from tests.team_kit import kill_writers

# A reply reports more tokens than its prompt is estimated at, because an estimate can be counted
# before the report arrives.
LIMIT = 4000
RAISED = 90000
READ = Reply(tool_calls=(ToolCall("list_files", {}),), input_tokens=1400, output_tokens=1)
ANSWER = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),), input_tokens=7)
QUESTION = r"4,203 tokens used\. Raise the budget to 8,000 tokens\?"
READS = 3
"""Number of calls after which the budget is used up."""


class Scene(NamedTuple):
    """A session whose first kernel was killed while its question was open."""

    notebook: Notebook
    jupyter: JupyterServer
    killed: Turn

    def cell(self, code: str) -> str:
        """Run a cell that must succeed in the new kernel. Returns its text."""
        result = self.notebook.kernel.run(code)
        assert result.status == "ok", result
        return self.notebook.text(result)

    def command(self, *words: str) -> str:
        """Run a command that must succeed in a process of its own. Returns its output."""
        done = run_process([*CLI, *words, "--session-root", str(self.notebook.root)])
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def client(self) -> Iterator[Client]:
        with Client(self.jupyter.base, self.jupyter.token) as client:
            yield client

    def name(self, turn: Turn) -> str:
        """Return the name of a turn in the server's requests."""
        return self.jupyter.name(turn.path)

    @property
    def resumed(self) -> Turn:
        """The turn that resumes the killed one."""
        path = self.killed.path.with_name("turn_2")
        wait_until(lambda: path in [each.path for each in turns_of(path.parent)], 60, "the turn")
        return Turn(path)

    def in_panel(self) -> Turn:
        """Resume in a cell. Returns the turn once its panel shows the question."""
        turn = self.notebook.turn_of(self.notebook.kernel.send("%agents resume lab"))
        gates = lambda: self.notebook.panel(turn).state["state"]["gates"]  # noqa: E731
        self.notebook.kernel.wait_until(gates, 60, "the question in the panel", gates)
        [gate] = gates()
        assert (gate["asks"], bool(re.match(QUESTION, gate["prompt"]))) == ("budget", True)
        return turn


class Interface(NamedTuple):
    """How a user resumes the killed turn, reads the question, and answers it."""

    resume: Callable[[Scene], object]
    shown: Callable[[Scene, Turn], str]
    answer: Callable[[Scene, Turn], object]


def resume_in_cell(scene: Scene) -> None:
    scene.cell("%agents resume lab")


def resume_by_rest(scene: Scene) -> None:
    answer = scene.jupyter.post(f"runs/{scene.name(scene.killed)}/resume")
    assert answer.status_code == 202, answer.text


def resume_by_client(scene: Scene) -> None:
    with scene.client() as client:
        client.resume(scene.name(scene.killed))


def show_by_client(scene: Scene, turn: Turn) -> str:
    with scene.client() as client:
        return json.dumps(client.run(scene.name(turn)))


def approve_by_client(scene: Scene, turn: Turn) -> None:
    with scene.client() as client:
        client.approve(scene.name(turn), str(RAISED))


def show_in_cell(scene: Scene, turn: Turn) -> str:
    return scene.cell(f"%agents show {turn.name}")


def state_in_panel(scene: Scene, turn: Turn) -> str:
    states = [panel.state["state"] for panel in scene.notebook.panels().values()]
    return json.dumps([state["gates"] for state in states if state["session"] == turn.session])


def decide_in_panel(scene: Scene, turn: Turn, *, widget: bool) -> None:
    kernel, gate = scene.notebook.kernel, turn.events("approval_asked")[-1]["step"]
    [run] = [
        run
        for run, panel in scene.notebook.panels().items()
        if panel.state["state"]["session"] == turn.session
    ]
    content = {"run": run, "gate": gate, "message": str(RAISED), "id": "decision"}
    if widget:
        panel = scene.notebook.panels()[run]
        kernel.send_custom(panel.comm_id, {"type": "approve", **content})
    else:
        assert kernel.control("nb_agents_approve_request", content)["refusal"] == ""


RUN = "[run] = [run for run in nb_agents.runs() if run.session == 'lab']"

INTERFACES = {
    "cell": Interface(
        resume_in_cell,
        show_in_cell,
        lambda scene, turn: scene.cell(f"%agents approve {turn.name} {RAISED}"),
    ),
    "Python": Interface(
        lambda scene: scene.cell("import nb_agents; nb_agents.resume('lab')"),
        lambda scene, turn: scene.cell(f"{RUN}; print(run.view.gates)"),
        lambda scene, turn: scene.cell(f"{RUN}; run.approve('{RAISED}')"),
    ),
    "panel": Interface(
        lambda scene: scene.in_panel(),
        state_in_panel,
        lambda scene, turn: decide_in_panel(scene, turn, widget=False),
    ),
    "panel, widget message": Interface(
        lambda scene: scene.in_panel(),
        state_in_panel,
        lambda scene, turn: decide_in_panel(scene, turn, widget=True),
    ),
    "command line": Interface(
        lambda scene: scene.command("resume", "lab", "--detach"),
        lambda scene, turn: scene.command("show", turn.name),
        lambda scene, turn: scene.command("approve", turn.name, str(RAISED)),
    ),
    "REST": Interface(
        resume_by_rest,
        lambda scene, turn: json.dumps(scene.jupyter.get(f"runs/{scene.name(turn)}")),
        lambda scene, turn: scene.jupyter.post(
            f"runs/{scene.name(turn)}/approve", {"message": str(RAISED)}
        ).raise_for_status(),
    ),
    "Client": Interface(resume_by_client, show_by_client, approve_by_client),
}


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    with jupyter_server(tmp_path_factory.mktemp("jupyter")) as server:
        yield server


def wait_asked(turn: Turn) -> None:
    asked = lambda: [e for e in turn.events("approval_asked") if e["about"] == "budget"]  # noqa: E731
    wait_until(lambda: bool(asked()), 60, "the question", turn.events)
    assert re.match(QUESTION, asked()[-1]["prompt"])


@pytest.fixture
def scene(jupyter: JupyterServer, server: ModelServer) -> Iterator[Scene]:
    """A turn that asked to raise its budget when its kernel was killed, and a new kernel."""
    place = jupyter.sessions.parent
    place.mkdir(exist_ok=True)
    server.script("m", *[READ] * READS, ANSWER)
    with Kernel(cwd=place) as first, Kernel(cwd=place) as second:
        for each in (first, second):
            assert each.run("%load_ext nb_agents").status == "ok"
        notebook = Notebook(first, server, place)
        backend = {**server.backend("claude"), "model": "m"}  # reports the prompt's tokens first
        notebook.team.write_text(json.dumps({"agents": [{"id": "a", "backend": backend}]}))
        turn = notebook.start(f"--session lab --max-tokens {LIMIT} --on-budget ask")
        wait_asked(turn)
        assert len(server.requests) == READS
        first.kill()
        notebook.use(second)
        yield Scene(notebook, jupyter, turn)
        notebook.end_all()
    kill_writers(jupyter.root)
    for session in jupyter.sessions.iterdir():
        session.rename(jupyter.root / f"old-{len(list(jupyter.root.iterdir()))}")


def assert_completed(scene: Scene, turn: Turn, server: ModelServer) -> None:
    """Assert that the turn completed, and that no finished call was requested again."""
    turn.wait_over()
    assert turn.metadata["run_status"] == "completed"
    assert turn.answer == "done"
    assert len(server.requests) == READS + 1
    sent = json.dumps(server.requests[-1].messages)
    assert sent.count('"tool_result"') == READS, sent
    view = fold(past_events(TurnPaths(turn.path)))
    assert view.task_tokens == 4203 + view.tokens > 4203


@pytest.mark.parametrize("name", INTERFACES)
def test_question_is_shown_and_answered(name: str, scene: Scene, server: ModelServer) -> None:
    interface = INTERFACES[name]
    interface.resume(scene)
    turn = scene.resumed
    wait_asked(turn)
    assert len(server.requests) == READS
    assert re.search(QUESTION, interface.shown(scene, turn))
    interface.answer(scene, turn)
    assert_completed(scene, turn, server)
    [raised] = turn.events("budget_raised")
    assert raised["max_tokens"] == RAISED


def test_card_of_the_killed_turn_raises_the_budget(scene: Scene, server: ModelServer) -> None:
    card = scene.cell(f"%agents show {scene.killed.name}")
    assert re.search(QUESTION, card)
    assert "A resume without it asks again." in card
    [line] = re.findall(r"^ *(%agents resume lab --max-tokens 8000)$", card, re.MULTILINE)
    scene.cell(line)
    assert_completed(scene, scene.resumed, server)
    assert scene.resumed.events("approval_asked") == []
