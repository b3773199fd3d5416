"""An agent that is a program, in each place where an agent may be."""

import json
import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.agents.acp import acp_runner, acp_session
from nb_agents.errors import ConfigError
from nb_agents.launch.team_report import report_on
from nb_agents.runs.run import Run
from nb_agents.session.journal import read_journal
from tests import processes
from tests.model_server import wait_until
from tests.team_kit import finish

AGENT = Path(__file__).parent / "agent.py"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a program that is stopped the time to answer that it may need on a busy machine."""
    for module in (acp_runner, acp_session):
        monkeypatch.setattr(module, "ANSWER_S", 60.0)


def agent(id: str, *steps: str, **keys: Any) -> dict[str, Any]:
    command = [sys.executable, str(AGENT), *steps]
    return {"id": id, "backend": {"type": "acp", "command": command, **keys}}


def team(*agents: dict[str, Any], **keys: Any) -> TeamSpec:
    return TeamSpec.model_validate({"agents": agents, **keys})


def start(root: Path, spec: TeamSpec, **given: Any) -> Run:
    return nb_agents.start("the task", spec, options=RunOptions(session_root=root), **given)


def events(run: Run, kind: type[Any]) -> list[Any]:
    return [e for e in read_journal(run.path / "events.jsonl").events if isinstance(e, kind)]


def asked(run: Run, id: str, what: str) -> list[str]:
    """What a program was asked, of one kind, in order."""
    lines = (run.path.parent / "programs" / id / "asked.jsonl").read_text().splitlines()
    return [text for kind, text in map(json.loads, lines) if kind == what]


def test_its_plain_words_are_the_answer_of_a_team_of_one(tmp_path: Path) -> None:
    run = finish(start(tmp_path, team(agent("ada", "think So.", "say one two"))))
    assert (run.status, run.result) == ("completed", "one two")
    streamed = [(e.channel, e.text) for e in events(run, ev.TextStreamed)]
    assert streamed == [("thinking", "So."), ("text", "one two ")]
    [prompt] = asked(run, "ada", "prompt")
    assert "the task" in prompt and "mcp__team__new_answer" in prompt


def test_it_answers_votes_and_presents_by_our_tools(tmp_path: Path) -> None:
    steps = ("vote", "answer The best one")
    run = finish(start(tmp_path, team(agent("ada", *steps), agent("ben", *steps))))
    assert (run.status, run.result) == ("completed", "The best one")
    assert events(run, ev.VoteCast)


def test_what_it_does_is_told_as_tool_calls_with_their_outcome(tmp_path: Path) -> None:
    steps = ("plan Look", "tool read notes.txt", "open edit a.py", "cost 0.25", "say done")
    run = finish(start(tmp_path, team(agent("ada", *steps))))
    ended = [(e.tool, e.outcome, e.result) for e in events(run, ev.ToolFinished)]
    assert ended == [
        ("plan", "ok", "[pending] Look"),
        ("read", "ok", "did read notes.txt"),
        ("edit", "cut", ""),
    ]
    assert [e.summary for e in events(run, ev.ToolStarted)] == ["", "notes.txt", "a.py"]
    usage = events(run, ev.ModelFinished)[0].usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost) == (10, 5, 0.25)


def test_it_does_a_step_of_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\n"
        "steps: [{id: one, agent: ada, prompt: Say it., output: said}]\n"
    )
    options = RunOptions(session_root=tmp_path)
    spec = team(agent("ada", "tool read x", "say It"))
    run = finish(nb_agents.start(config=spec, recipe=path, options=options))
    assert run.result == {"said": "It"}


def test_it_has_the_functions_of_the_notebook_and_no_second_hands(tmp_path: Path) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    steps = ('mcp add {"a": 2, "b": 3}', 'mcp write_file {"path": "x"}')
    run = finish(start(tmp_path, team(agent("ada", *steps)), tools=[add]))
    results = asked(run, "ada", "result")
    assert results[0] == "5" and results[1].startswith("Error: no tool 'write_file'. You have: ")


def test_plain_words_are_no_vote_and_it_is_asked_again(tmp_path: Path) -> None:
    steps = ("say Mine.", "AGAIN", "vote", "answer Mine")
    run = finish(start(tmp_path, team(agent("ada", *steps), agent("ben", "vote", "answer His"))))
    assert run.status == "completed"
    assert [e.agent for e in events(run, ev.TurnRejected)][:1] == ["ada"]


@pytest.mark.usefixtures("patience")
def test_an_agent_that_has_decided_is_cancelled(tmp_path: Path) -> None:
    run = finish(start(tmp_path, team(agent("ada", "answer Mine", "hang"))))
    assert run.result == "Mine"
    assert asked(run, "ada", "cancel")


def test_its_rules_ask_a_person_by_what_a_call_does(tmp_path: Path) -> None:
    rules = [
        {"match": "run_command", "action": "ask"},
        {"match": "delete_file", "action": "deny"},
    ]
    steps = ("ask execute rm x", "ask delete y", "ask read z", "say end")
    run = start(tmp_path, team(agent("ada", *steps, tool_policy=rules)))
    wait_until(lambda: events(run, ev.ApprovalAsked))
    run.approve()
    finish(run)
    assert asked(run, "ada", "permission") == ["allowed", "rejected", "allowed"]
    assert events(run, ev.ApprovalAsked)[0].prompt == "May ada call run_command: rm x?"
    run = start(tmp_path, team(agent("ada", *steps, tool_policy=rules)))
    wait_until(lambda: events(run, ev.ApprovalAsked))
    run.deny()
    finish(run)
    assert asked(run, "ada", "permission")[0] == "rejected"


def held(run: Run, name: str = "held", agent: str = "ada") -> Path:
    """Wait until a program holds, and return the file that it waits for."""
    path = run.path / "workspaces" / agent / name
    wait_until(path.exists)
    return path


@pytest.mark.usefixtures("patience")
def test_a_stop_at_once_keeps_its_words_and_leaves_no_process(tmp_path: Path) -> None:
    mark = f"sleep {random.random() * 1e6:.3f}"
    steps = ("say one two", f"run ({mark} &) ; {mark} & touch held ; {mark}")
    run = start(tmp_path, team(agent("ada", *steps)))
    held(run)
    assert processes_with(mark)
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    assert words(run) == "one two "
    assert len(events(run, ev.ModelCut)) == 1
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["cut"]
    assert asked(run, "ada", "cancel") and asked(run, "ada", "close")
    wait_until(lambda: not processes_with(mark))


def test_a_graceful_stop_lets_it_finish_its_prompt_and_sends_no_other(tmp_path: Path) -> None:
    steps = ("hold held", "say Mine.")
    run = start(tmp_path, team(agent("ada", *steps), agent("ben", *steps)))
    files = [held(run, agent=each) for each in ("ada", "ben")]
    run.stop()
    for file in files:
        file.unlink()
    finish(run)
    assert (run.status, events(run, ev.ModelCut)) == ("cancelled", [])
    assert len(events(run, ev.ModelFinished)) == 2
    assert len(asked(run, "ada", "prompt")) == 1


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("now", [False, True])
def test_a_stop_answers_an_open_request_for_permission_as_cancelled(
    tmp_path: Path, now: bool
) -> None:
    rules = [{"match": "run_command", "action": "ask"}]
    run = start(tmp_path, team(agent("ada", "ask execute rm x", tool_policy=rules)))
    wait_until(lambda: events(run, ev.ApprovalAsked))
    run.stop(now=now)
    finish(run)
    assert run.status == "cancelled"
    assert asked(run, "ada", "permission") == ([] if now else ["cancelled"])


def test_a_program_that_takes_no_cancel_is_ended_after_a_second(tmp_path: Path) -> None:
    run = start(tmp_path, team(agent("ada", "deaf", "say one", "hold held", "say late")))
    held(run)
    run.stop(now=True)
    finish(run)
    assert (run.status, words(run)) == ("cancelled", "one ")


def test_what_a_person_says_cancels_its_prompt_and_is_the_next_one(tmp_path: Path) -> None:
    steps = ("say one", "hold held", "AGAIN", "say two")
    run = start(tmp_path, team(agent("ada", *steps)))
    held(run)
    run.say("Use metres.")
    finish(run)
    assert run.result == "two"
    assert "Use metres." in asked(run, "ada", "prompt")[1]


@pytest.mark.parametrize("flags", [(), ("--forgetful",)])
def test_a_resume_goes_on_with_what_was_cut(tmp_path: Path, flags: tuple[str, ...]) -> None:
    steps = ("say one two", "open edit a.py", "hold held", "RESUMED", "say three")
    known = () if flags else ("RESUMED", "say three")
    run = start(tmp_path, team(agent("ada", *flags, *steps)))
    held(run)
    run.stop(now=True)
    finish(run)
    assert "go on: ada" in str(run.preview)
    options = RunOptions(session_root=tmp_path)
    spec = team(agent("ada", *flags, "say three", *known))
    again = finish(nb_agents.resume(run.session, spec, options=options))
    assert (again.status, again.result) == ("completed", "three")
    sessions = asked(again, "ada", "session")
    assert (len(set(sessions)) == 1) == (not flags)
    prompt = asked(again, "ada", "prompt")[-1]
    assert "You had begun to write, and were cut:\none two" in prompt
    assert "may have happened in part; look before you repeat them:\n- edit a.py" in prompt
    assert "the task" in prompt


def test_a_check_and_the_start_name_agents_that_go_on(tmp_path: Path) -> None:
    report = report_on(team(agent("ada", "say x")))
    assert "A resume goes on from what they had said and done: ada" in report.lines
    assert report.verdict == "Can start."


def test_a_program_that_is_not_installed_is_named_before_anything_starts(tmp_path: Path) -> None:
    spec = team({"id": "ada", "backend": {"type": "acp", "command": "no-such-agent --acp"}})
    with pytest.raises(ConfigError, match="'no-such-agent' is not installed"):
        start(tmp_path, spec)
    assert not list(tmp_path.iterdir())


def test_when_the_kernel_is_killed_all_of_it_ends_and_a_resume_goes_on(tmp_path: Path) -> None:
    mark = f"sleep {random.random() * 1e6:.3f}"
    spec = {"agents": [agent("ada", "say one two", f"run touch held ; {mark}")]}
    code = (
        "import json, sys, nb_agents\n"
        "from nb_agents import RunOptions, TeamSpec\n"
        "team = TeamSpec.model_validate(json.loads(sys.argv[2]))\n"
        "run = nb_agents.start('the task', team, options=RunOptions(session_root=sys.argv[1]))\n"
        "run.wait()\n"
    )
    with processes.python(code, tmp_path, json.dumps(spec)) as kernel:
        wait_until(lambda: list(tmp_path.rglob("held")))
        wait_until(lambda: "one two" in journals(tmp_path))
        kernel.kill()
        wait_until(lambda: not processes_with(mark))
    options = RunOptions(session_root=tmp_path)
    again = finish(nb_agents.resume(None, team(agent("ada", "say three")), options=options))
    assert again.result == "three"
    assert "were cut:\none two" in asked(again, "ada", "prompt")[-1]


def journals(root: Path) -> str:
    return "".join(path.read_text() for path in root.rglob("events.jsonl"))


def words(run: Run) -> str:
    return "".join(e.text for e in events(run, ev.TextStreamed) if e.channel == "text")


def processes_with(mark: str) -> list[str]:
    """The command lines of all processes that have a text in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if mark in line and str(os.getpid()) != path.parent.name else []
    return found


def test_its_workspace_is_kept_before_and_after_each_prompt(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    steps = "".join(f"- {{id: {id}, agent: ada, prompt: Go.}}\n" for id in ("one", "two"))
    path.write_text(f"name: r\ndescription: d\nversion: 1.0.0\nsteps:\n{steps}")
    options = RunOptions(session_root=tmp_path)
    spec = team(agent("ada", "run echo line >> log", "say done"))
    run = finish(nb_agents.start(config=spec, recipe=path, options=options))
    assert [(e.changed) for e in events(run, ev.FilesKept)] == [(), ("log",)]
    told = run.preview_rewind("step one")
    assert [(file.what, file.plus, file.minus) for file in told.files] == [("changed", 0, 1)]
    again = finish(run.rewind("step one"))
    kept = events(again, ev.FilesKept)
    assert len(kept) == 1 and kept[0].tree == events(run, ev.FilesKept)[1].tree
    for each in (run, again):
        [log] = (each.path / "workspaces").glob("*/log")
        assert log.read_text() == "line\nline\n"
