"""Commands in subprocesses: output, JSON, exit codes and Ctrl+C."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

import nb_agents
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.cli.calls import CLI, answer, call, call_here, told, told_here
from tests.kit.terminal import COMPLETE, FAILED, GOODBYE, INCOMPLETE, NEXT, USAGE, main
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.warm import WarmProcess

STOPPING = "Stopping: waiting for a"

HELD = Reply("words that come", hang_after=3)


def test_run_prints_the_answer_and_show_prints_it_later(place: Path, server: ModelServer) -> None:
    server.script("m", answer("forty-two"))
    assert "forty-two" in call("run", "-c", "team.yaml", "-s", "first", "What is it?")
    assert "forty-two" in call_here("show", "first")
    assert "forty-two" in call_here("show", "first/1", "--html")
    shown = told("show", "first")
    assert (shown["status"], shown["result"]) == ("complete", "forty-two")
    assert [each["session"] for each in told_here("sessions")] == ["first"]
    assert "forty-two" in call_here("follow", "first")


def test_failed_run_has_its_own_exit_code(place: Path, server: ModelServer) -> None:
    server.script("m", Reply(status=400))
    assert "Failed" in call("run", "-c", "team.yaml", "-s", "bad", "What is it?", code=FAILED)
    assert "400" in told_here("show", "bad")["failed"]["a"]


Mistake = Callable[..., str]


@pytest.fixture
def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mistake:
    """Return a function that runs an invalid command and returns its error message."""

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["nb-agents", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == USAGE
        return "".join(capsys.readouterr())

    return run


def test_user_error_exits_with_usage_code(place: Path) -> None:
    assert "No run named 'no'" in call("stop", "no", code=USAGE)


@pytest.mark.parametrize(
    "words", [("run",), ("run", "-c", "no.yaml", "t"), ("stop", "no"), ("resume",), ("run", "--no")]
)
def test_user_error_prints_a_sentence_without_traceback(
    place: Path, mistake: Mistake, words: tuple[str, ...]
) -> None:
    said = mistake(*words)
    assert said.strip() and "Traceback" not in said


@pytest.mark.parametrize(
    "words, says",
    [
        (
            ("show", "no"),
            "`nb-agents runs` lists the runs; `nb-agents sessions` lists the sessions on disk",
        ),
        (("resume",), "`nb-agents sessions` lists the sessions"),
        (("run", "Count.", "--set", "depth=2"), "can only be used with a recipe. Add --recipe"),
        (("chat", "-c", "no.yaml"), "no.yaml: No such file"),
    ],
)
def test_user_error_names_terminal_commands(
    place: Path, mistake: Mistake, words: tuple[str, ...], says: str
) -> None:
    said = mistake(*words)
    assert says in said
    assert "%agents" not in said


def test_check_fails_for_a_team_that_cannot_start(place: Path) -> None:
    (place / "team.yaml").write_text("agents: [{id: a, backend: {type: openai, model: m}}]\n")
    assert "OPENAI_API_KEY is not set" in call("check", "team.yaml", code=FAILED)
    (place / "team.yaml").write_text("agents: [{id: a, backend: {type: demo}}]\n")
    assert "Can start." in call_here("check", "team.yaml")


@pytest.mark.parametrize("presses", [1, 2])
def test_interrupt_stops_and_saves_the_run_and_resume_completes_it(
    place: Path, server: ModelServer, presses: int
) -> None:
    # The call in flight may finish. It asks for a tool call, which no longer starts.
    more = (ToolCall("list_files", {}),)
    server.script("m", Reply("words that come", tool_calls=more), answer("forty-two"))
    server.hold(3)
    journal = place / ".nb_agents/sessions/lab/turn_1/events.jsonl"
    command = [*CLI, "run", "-c", "team.yaml", "-s", "lab", "What is it?"]
    pipe = subprocess.PIPE
    with WarmProcess(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        wait_until(lambda: journal.exists() and " come" in journal.read_text())
        process.send_signal(signal.SIGINT)
        assert any(STOPPING in line for line in process.stderr)
        if presses == 2:
            process.send_signal(signal.SIGINT)
        else:
            server.release()
        out, _ = process.communicate()
        assert process.returncode == INCOMPLETE
    assert "words that come" in out
    server.release()
    assert "forty-two" in call_here("resume", "lab")


def test_detached_run_is_listed_receives_a_message_and_is_stopped(
    place: Path, server: ModelServer
) -> None:
    server.script("m", HELD)
    begun = told("run", "-c", "team.yaml", "--detach", "-s", "far", "What is it?")
    assert begun["session"] == "far"
    journal = place / ".nb_agents/sessions/far/turn_1/events.jsonl"
    wait_until(lambda: "words" in journal.read_text(), what="the words")
    [listed] = told("runs")
    assert (listed["session"], listed["task"]) == ("far", "What is it?")
    assert "next request" in call("say", "far", "mind the tables")
    assert "is paused" in call_here("pause", "far")
    assert "continues" in call_here("unpause", "far")
    stopped = told("stop", "far", "--now", "--reason", "wrong path")
    assert (stopped["changed"], stopped["status"]) == (True, "stopping-now")
    wait_until(lambda: told("runs") == [])
    shown = told("show", "far")
    assert shown["status"] == "stopped" and "words" in shown["partial"]["a"]
    assert "already over" in call("stop", "far")


def test_run_detached_by_its_team_file_outlives_the_command(
    place: Path, server: ModelServer
) -> None:
    server.script("m", HELD)
    team = place / "team.yaml"
    team.write_text(f"detach: true\n{team.read_text()}")
    assert "is running: nb-agents follow" in call(
        "run", "-c", "team.yaml", "-s", "lab", "What is it?"
    )
    assert [listed["session"] for listed in told("runs")] == ["lab"]
    assert told("stop", "lab", "--now")["changed"]
    wait_until(lambda: told("runs") == [])


def test_sweep_is_listed_paused_unpaused_and_waited_for(place: Path) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(replace(Answer("So."), gate=gate)))
    sweep = nb_agents.map([{"q": "1"}, {"q": "2"}], "Why {{q}}?", team, name="ask", limit=1)
    gate.wait_reached()
    assert "ask" in [row["session"] for row in told_here("runs")]
    said = "Sweep ask is paused: calls in flight finish, no new row starts."
    paused = told_here("pause", "ask")
    assert (paused["sweep"], paused["said"].partition(" `")[0]) == ("ask", said)
    wait_until(lambda: sweep.view.status == "paused", what="the pause")
    assert "Sweep ask continues." in call_here("continue", "ask")  # the old name of unpause
    wait_until(lambda: sweep.view.status == "running", what="the end of the pause")
    shown = told_here("show", "ask")
    assert (shown["status"], shown["rows"]["done"]) == ("running", 0)
    steered = "Sweep ask: at most 2 rows at the same time, a time limit of 1,200 s for each row."
    assert steered in call_here("steer", "ask", "--limit", "2", "--timeout", "1200")
    wait_until(lambda: len(sweep.runs) == 2, what="a second row")
    with pytest.raises(UserError, match="The limit is 0. Use 1 to"):
        call_here("steer", "ask", "--limit", "0", code=FAILED)
    assert call_here("show", "ask").count(": running") == 2
    gate.open()
    ended = told_here("wait", "ask")
    assert (ended["status"], ended["says"]) == ("complete", "2 of 2 rows")
    assert told_here("sweeps") == [ended]
    card = call_here("show", "ask")
    assert "2 complete" in card and "So." in card
    for needs_one_turn in ("why", "log", "export"):
        with pytest.raises(UserError, match=r"ask is a sweep. Each of its rows is a session"):
            call_here(needs_one_turn, "ask", code=FAILED)


class Talk:
    """A chat in a subprocess, which the test types into and reads from."""

    def __init__(self, *words: str) -> None:
        pipe = subprocess.PIPE
        self.process = WarmProcess(
            [*CLI, "chat", *words], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        self.said, self._at = "", 0
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said += line

    def type(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def wait_said(self, what: str) -> None:
        """Wait for a text that comes after the previous one."""
        wait_until(lambda: what in self.said[self._at :], what=what, seen=lambda: self.said)
        self._at = self.said.index(what, self._at) + len(what)

    def press(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(200)


@pytest.fixture
def talk(place: Path) -> Iterator[Talk]:
    talk = Talk("-c", "team.yaml", "-s", "lab")
    with talk.process:
        yield talk
        talk.process.kill()


def test_chat_runs_the_turns_of_one_session(talk: Talk, server: ModelServer) -> None:
    server.script("m", answer("forty-two"), answer("because"))
    talk.wait_said("You:")
    talk.type("What is it?")
    talk.wait_said("forty-two")
    talk.wait_said("You:")
    talk.type("Why?")
    talk.wait_said("because")
    talk.type("/quit")
    talk.wait_said(GOODBYE)
    assert talk.ended() == COMPLETE
    assert [len(row["turns"]) for row in told("sessions")] == [2]
    assert "What is it?" in str(server.requests[-1].messages)


def test_stopped_turn_of_a_chat_is_saved_and_chat_prompts_again(
    talk: Talk, server: ModelServer
) -> None:
    server.hold(2, "m")
    server.script("m", Reply("words that come to a late end"), answer("forty-two"))
    talk.type("What is it?")
    talk.wait_said("a: writing")
    talk.type("mind the tables")
    talk.wait_said("next request")
    talk.press()
    talk.wait_said(STOPPING)
    server.release("m")
    for said in (NEXT, "You:"):
        talk.wait_said(said)
    talk.type("And now?")
    talk.wait_said("Turn 1 was stopped")
    talk.wait_said("forty-two")
    talk.wait_said("You:")
    talk.press()
    talk.wait_said(GOODBYE)
    assert talk.ended() == COMPLETE


def test_second_interrupt_stops_the_turn_immediately_and_ends_the_chat(
    talk: Talk, server: ModelServer
) -> None:
    server.script("m", HELD)
    talk.type("What is it?")
    talk.wait_said("a: writing")
    talk.press()
    talk.wait_said(STOPPING)
    talk.press()
    talk.wait_said(GOODBYE)
    assert NEXT not in talk.said
    assert talk.ended() == COMPLETE
    assert "words" in told("show", "lab")["partial"]["a"]


def test_follow_prints_activity_and_text_of_each_agent_and_then_the_card_into_a_pipe(
    place: Path, server: ModelServer
) -> None:
    server.script("m", HELD)
    call("run", "-c", "team.yaml", "--detach", "-s", "lab", "What is it?")
    pipe = subprocess.PIPE
    with WarmProcess([*CLI, "follow", "lab"], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if line.startswith("a  writing"))
        assert told("stop", "lab", "--now")["changed"]
        rest = list(lines)
    assert process.returncode == COMPLETE
    assert rest[0] == "a  stopped  words that come\n"
    assert "### What is it? [stopped]\n" in rest
    assert "turn_started" not in "".join(rest)


def test_follow_with_json_prints_each_event(place: Path, server: ModelServer) -> None:
    server.script("m", answer("forty-two"))
    call_here("run", "-c", "team.yaml", "-s", "lab", "What is it?")
    events = [json.loads(line) for line in call_here("follow", "lab", "--json").splitlines()]
    assert {"turn_started", "model_finished", "turn_ended"} <= {each["kind"] for each in events}


def test_interrupt_ends_follow_but_not_the_run(place: Path, server: ModelServer) -> None:
    server.script("m", HELD)
    call("run", "-c", "team.yaml", "--detach", "-s", "lab", "What is it?")
    command, pipe = [*CLI, "follow", "lab"], subprocess.PIPE
    with WarmProcess(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("a  ")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert (process.returncode, said) == (COMPLETE, "The run continues.\n")
    assert [row["session"] for row in told("runs")] == ["lab"]
    assert told("stop", "lab", "--now")["changed"]


def test_check_reports_the_same_as_the_cell_and_loads_tools(place: Path) -> None:
    (place / "tools.py").write_text("import no_such_module_here\n")
    tools = "custom_tools: [{path: tools.py, function: f}], enable_mcp_command_line: true"
    docker = "command_line_execution_mode: docker"
    (place / "other.yaml").write_text(
        f"agents:\n  - id: a\n    backend: {{type: demo, {tools}, {docker}}}\n"
    )
    said = call_here("check", "other.yaml")
    assert "Command line mode 'docker' is not supported" in said and "use --connect" in said
    assert "no_such_module_here" in call("check", "other.yaml", "--connect")


def test_check_prints_findings_with_positions_as_json(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    backends = ["{type: groq, model: m}", "{type: demo, temperatur: 1}"]
    valid, invalid = (f"agents:\n  - id: a\n    backend: {each}\n" for each in backends)
    (place / "valid.yaml").write_text(valid)
    (place / "invalid.yaml").write_text(invalid)
    lacking = told_here("check", "valid.yaml", code=FAILED)
    [missing] = [each for each in lacking["findings"] if each["severity"] == "warning"]
    assert (lacking["can_start"], missing["code"]) == (False, "missing-key")
    assert missing["remedy"].startswith("Set it in the environment")
    assert (missing["file"], missing["line"]) == ("valid.yaml", 3)
    assert json.loads(call_json("check", "invalid.yaml")) == {
        "can_start": False,
        "findings": [
            {
                "severity": "error",
                "code": "unknown-key",
                "message": "Unknown key 'agents.0.backend.temperatur'; did you mean 'temperature'?",
                "remedy": "",
                "file": "invalid.yaml",
                "line": 3,
                "column": 27,
            }
        ],
    }


def call_json(*words: str) -> str:
    """Return the first line that a failing command prints."""
    return call(*words, "--json", code=USAGE).splitlines()[0]


def test_recipe_is_checked_and_run_with_bundle_options(place: Path) -> None:
    head = "description: d\nversion: 1.0.0\nsteps:\n- "
    (place / "kit").mkdir()
    (place / "kit" / "part.yaml").write_text(
        f"name: part\n{head}{{id: say, type: bash, command: echo part, output: said}}\n"
    )
    (place / "whole.yaml").write_text(
        f"name: whole\n{head}{{id: call, type: recipe, recipe: '@kit:part.yaml', output: got}}\n"
    )
    assert "Unknown bundle 'kit'." in call("check", "whole.yaml", code=FAILED)
    assert "It can run." in call("check", "whole.yaml", "--bundle", "kit=kit")
    ran = told("run", "--recipe", "whole.yaml", "--bundle", "kit=kit")
    assert ran["result"] == {"got": {"said": "part"}}


def test_recipe_with_missing_value_resumes_with_set(place: Path) -> None:
    (place / "push.yaml").write_text(
        "name: push\ndescription: d\nversion: 1.0.0\n"
        "steps:\n- {id: push, type: bash, command: 'echo to {{branch}}', output: pushed}\n"
    )
    call_here("run", "--recipe", "push.yaml", "-s", "pushed", code=FAILED)
    assert "push" in call_here("resume", "pushed", "--set", "branch=main", "--preview")
    assert told_here("resume", "pushed", "--set", "branch=main")["result"] == {"pushed": "to main"}
