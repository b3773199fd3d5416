"""Tests of external agents in teams, recipes and sweeps."""

import base64
import json
import os
import random
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError
from nb_agents.extensions.external_agents.acp import acp_runner
from tests import processes
from tests.kit.programs import acp_session
from tests.kit.runs import Run
from tests.kit.sessions import read_journal
from tests.kit.teams import report_on
from tests.model_server import wait_until
from tests.team_kit import finish, streamed_text

AGENT = Path(__file__).parent / "agent.py"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a stopped agent enough time to answer on a busy machine."""
    for module in (acp_runner, acp_session):
        monkeypatch.setattr(module, "ANSWER_S", 60.0)


def agent(id: str, *steps: str, **keys: Any) -> dict[str, Any]:
    command = [sys.executable, str(AGENT), *steps]
    return {"id": id, "backend": {"type": "acp", "command": command} | keys}


def team(*agents: dict[str, Any], **keys: Any) -> TeamSpec:
    return TeamSpec.model_validate({"agents": agents, **keys})


def start(root: Path, spec: TeamSpec, **given: Any) -> Run:
    return nb_agents.start("the task", spec, options=RunOptions(session_root=root), **given)


def events(run: Run, kind: type[Any]) -> list[Any]:
    return [e for e in read_journal(run.path / "events.jsonl").events if isinstance(e, kind)]


def asked(run: Run, id: str, what: str) -> list[str]:
    """Return the requests of one kind that an agent received, in order."""
    lines = (run.path.parent / "programs" / id / "asked.jsonl").read_text().splitlines()
    return [text for kind, text in map(json.loads, lines) if kind == what]


def test_plain_text_is_the_answer_in_a_team_of_one(tmp_path: Path) -> None:
    run = finish(start(tmp_path, team(agent("ada", "think So.", "say one two"))))
    assert (run.status, run.result) == ("completed", "one two")
    streamed = [(e.channel, e.text) for e in events(run, ev.TextStreamed)]
    assert streamed == [("thinking", "So."), ("text", "one two ")]
    [prompt] = asked(run, "ada", "prompt")
    assert "the task" in prompt and "mcp__team__new_answer" in prompt


def test_agent_answers_votes_and_presents_with_team_tools(tmp_path: Path) -> None:
    steps = ("vote", "answer The best one")
    run = finish(start(tmp_path, team(agent("ada", *steps), agent("ben", *steps))))
    assert (run.status, run.result) == ("completed", "The best one")
    assert events(run, ev.VoteCast)


def test_agents_own_tool_calls_are_recorded_with_outcome(tmp_path: Path) -> None:
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


def test_agent_runs_a_recipe_step(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\n"
        "steps: [{id: one, agent: ada, prompt: Say it., output: said}]\n"
    )
    options = RunOptions(session_root=tmp_path)
    spec = team(agent("ada", "tool read x", "say It"))
    run = finish(nb_agents.start(config=spec, recipe=path, options=options))
    assert run.result == {"said": "It"}


def test_agent_gets_notebook_functions_but_no_duplicate_file_tools(tmp_path: Path) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    steps = ('mcp add {"a": 2, "b": 3}', 'mcp write_file {"path": "x"}')
    run = finish(start(tmp_path, team(agent("ada", *steps)), tools=[add]))
    results = asked(run, "ada", "result")
    assert results[0] == "5" and results[1].startswith("Error: no tool 'write_file'. Your tools: ")


def test_plain_text_is_not_a_vote(tmp_path: Path) -> None:
    steps = ("say Mine.", "AGAIN", "vote", "answer Mine")
    run = finish(start(tmp_path, team(agent("ada", *steps), agent("ben", "vote", "answer His"))))
    assert run.status == "completed"
    assert [e.agent for e in events(run, ev.TurnRejected)][:1] == ["ada"]


@pytest.mark.usefixtures("patience")
def test_an_agent_that_has_decided_is_cancelled(tmp_path: Path) -> None:
    run = finish(start(tmp_path, team(agent("ada", "answer Mine", "hang"))))
    assert run.result == "Mine"
    assert asked(run, "ada", "cancel")


def test_rules_apply_to_what_a_call_does(tmp_path: Path) -> None:
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
    assert events(run, ev.ApprovalAsked)[0].prompt == "ada wants to call run_command: rm x"
    run = start(tmp_path, team(agent("ada", *steps, tool_policy=rules)))
    wait_until(lambda: events(run, ev.ApprovalAsked))
    run.deny()
    finish(run)
    assert asked(run, "ada", "permission")[0] == "rejected"


def permission(root: Path, asked: dict[str, Any], rules: Any, **keys: Any) -> str:
    """Request permission for a call under some rules, and return the outcome."""
    # The sandbox hides the test's directory, and an argument holds at most 128 kB.
    data = base64.b64encode(zlib.compress(json.dumps(asked).encode())).decode()
    steps = (f"asks {data}", "say end")
    run = finish(start(root, team(agent("ada", *steps, **rules)), **keys))
    assert run.status == "completed"
    [said] = asked_of(run)
    return said


def asked_of(run: Run) -> list[str]:
    return asked(run, "ada", "permission")


DENY_ALL = {"tool_policy": [{"match": "*", "action": "deny"}]}
DENY_COMMANDS = {"tool_policy": [{"match": "run_command", "action": "deny"}]}
DENY_RM = {"permissions": {"rules": {"deny": ["command(rm *)"], "allow": ["*"]}}}
NAMES = {
    "claude_code": {
        "title": "mcp__team__new_answer",
        "rawInput": {"content": "Mine"},
        "_meta": {"claudeCode": {"toolName": "mcp__team__new_answer"}},
    },
    "copilot": {
        "announced": {"title": "team-new_answer", "kind": "other", "rawInput": {"content": "Mine"}},
        "title": "new_answer",
        "rawInput": {"content": "Mine"},
    },
    "gemini_cli": {"title": "new_answer (team MCP Server)"},
    "opencode": {"title": "team_new_answer", "rawInput": {}},
    "qwen_code": {
        "announced": {"title": "new_answer (team MCP Server)", "kind": "other", "rawInput": {}},
        "title": '{"content":"Mine"}',
        "rawInput": {"content": "Mine"},
        "_meta": {"toolName": "mcp__team__new_answer"},
    },
}


@pytest.mark.parametrize("program", NAMES)
def test_team_tools_are_allowed_by_their_exact_names(tmp_path: Path, program: str) -> None:
    assert permission(tmp_path, {"kind": "other", **NAMES[program]}, DENY_ALL) == "allowed"


OTHERS = {
    "a title with our names in it": {"title": "Ask the team for a new_answer"},
    "a longer name": {"title": "mcp__team__new_answer_and_more"},
    "a name with words": {"title": "mcp__team__new_answer: rm -rf /"},
    "a bare name": {"title": "new_answer"},
    "another server": {"title": "mcp__steam__new_answer"},
    "another tool": {"title": "mcp__team__write_file"},
    "another kind": {"kind": "think", "title": "mcp__team__new_answer"},
    "a command": {"kind": "execute", "title": "mcp__team__new_answer"},
    "other arguments": {
        "title": "mcp__team__new_answer",
        "rawInput": {"description": "mcp__team__new_answer", "prompt": "rm"},
    },
    "another tool's name beside it": {
        "title": "mcp__team__new_answer",
        "_meta": {"toolName": "run_shell_command"},
    },
    "another announcement": {
        "announced": {"title": "Task", "kind": "other"},
        "title": "mcp__team__new_answer",
    },
}


@pytest.mark.parametrize("asked", OTHERS.values(), ids=OTHERS)
def test_deny_rule_covers_calls_that_only_resemble_team_tools(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    assert permission(tmp_path, {"kind": "other", **asked}, DENY_ALL) == "rejected"


LONG = "x" * 50_000
COMMANDS = {
    "of its kind": {"kind": "execute", "title": "List", "rawInput": {"command": "rm x"}},
    "of no kind": {"title": "List", "rawInput": {"command": "rm x"}},
    "of another kind": {"kind": "other", "title": "List", "rawInput": {"command": "rm x"}},
    "to think": {"kind": "think", "title": "List", "rawInput": {"cmd": "rm x"}},
    "to read": {"kind": "read", "title": "List", "rawInput": {"command": ["rm", "x"]}},
    "within": {"kind": "other", "title": "List", "rawInput": {"input": {"command": "rm x"}}},
    "beside long text": {
        "kind": "other",
        "title": "List",
        "rawInput": {"why": LONG, "command": "rm x", "more": {"why": LONG}},
    },
    "with a long end": {
        "kind": "execute",
        "title": "List",
        "rawInput": {"why": LONG, "command": f"true {'x' * 8_000}; rm x"},
    },
    "without arguments": {"kind": "execute", "title": f"true {'x' * 500}; rm x"},
    "too long to be looked at": {"kind": "execute", "title": f"true {LONG}; rm x"},
    "too wide to be looked at": {
        "kind": "other",
        "title": "List",
        "rawInput": {f"n{number}": "x" * 400 for number in range(500)} | {"command": "rm x"},
    },
}


@pytest.mark.parametrize("rules", [DENY_COMMANDS, DENY_RM], ids=["all", "rm"])
@pytest.mark.parametrize("asked", COMMANDS.values(), ids=COMMANDS)
def test_command_is_recognized_by_its_arguments_not_its_kind(
    tmp_path: Path, asked: dict[str, Any], rules: dict[str, Any]
) -> None:
    assert permission(tmp_path, asked, rules) == "rejected"


@pytest.mark.parametrize(
    ("tool", "raw"),
    [
        ("edit_file", {"path": "secret"}),
        ("edit_file", {"file_path": "secret"}),
        ("fetch", {"url": "http://127.0.0.1"}),
    ],
)
def test_paths_and_urls_of_an_unknown_kind_count_as_edits_and_fetches(
    tmp_path: Path, tool: str, raw: dict[str, str]
) -> None:
    rules = {"tool_policy": [{"match": tool, "action": "deny"}]}
    asked = {"kind": "other", "title": "Look", "rawInput": raw}
    assert permission(tmp_path, asked, rules) == "rejected"


def test_each_path_of_a_call_is_checked(tmp_path: Path) -> None:
    rules = {"permissions": {"rules": {"deny": ["write_file(last)"], "allow": ["*"]}}}
    files = [{"path": f"f{number}"} for number in range(100)] + [{"path": "last"}]
    asked = {"kind": "edit", "title": "Change", "locations": files}
    assert permission(tmp_path / "a", asked, rules) == "rejected"
    asked = {"kind": "edit", "title": "Change", "locations": files[:-1]}
    assert permission(tmp_path / "b", asked, rules) == "allowed"


def held(run: Run, name: str = "held", agent: str = "ada") -> Path:
    """Wait until an agent waits for a file, and return the file."""
    path = run.path / "workspaces" / agent / name
    wait_until(path.exists)
    return path


@pytest.mark.usefixtures("patience")
def test_immediate_stop_saves_text_and_leaves_no_process(tmp_path: Path) -> None:
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


def test_graceful_stop_lets_the_prompt_finish(tmp_path: Path) -> None:
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


def test_agent_that_ignores_a_cancel_is_ended_after_a_second(tmp_path: Path) -> None:
    run = start(tmp_path, team(agent("ada", "deaf", "say one", "hold held", "say late")))
    held(run)
    run.stop(now=True)
    finish(run)
    assert (run.status, words(run)) == ("cancelled", "one ")


def test_user_message_cancels_the_prompt_and_becomes_the_next(tmp_path: Path) -> None:
    steps = ("say one", "hold held", "AGAIN", "say two")
    run = start(tmp_path, team(agent("ada", *steps)))
    held(run)
    run.say("Use metres.")
    finish(run)
    assert run.result == "two"
    assert "Use metres." in asked(run, "ada", "prompt")[1]


@pytest.mark.parametrize("flags", [(), ("--forgetful",)])
def test_resume_continues_interrupted_work(tmp_path: Path, flags: tuple[str, ...]) -> None:
    steps = ("say one two", "open edit a.py", "hold held", "RESUMED", "say three")
    known = () if flags else ("RESUMED", "say three")
    run = start(tmp_path, team(agent("ada", *flags, *steps)))
    held(run)
    run.stop(now=True)
    finish(run)
    assert "Continued from a summary, so calls may be repeated: ada" in str(run.preview)
    options = RunOptions(session_root=tmp_path)
    spec = team(agent("ada", *flags, "say three", *known))
    again = finish(nb_agents.resume(run.session, spec, options=options))
    assert (again.status, again.result) == ("completed", "three")
    sessions = asked(again, "ada", "session")
    assert (len(set(sessions)) == 1) == (not flags)
    prompt = asked(again, "ada", "prompt")[-1]
    assert "You were interrupted while you wrote:\none two" in prompt
    assert "may have run in part. Check first before you repeat them:\n- edit a.py" in prompt
    assert "the task" in prompt


def test_check_and_start_name_agents_that_continue(tmp_path: Path) -> None:
    report = report_on(team(agent("ada", "say x")))
    assert "A resume continues from a summary of their work: ada" in report.lines
    assert report.verdict == "Can start."


def test_missing_program_is_named_before_anything_starts(tmp_path: Path) -> None:
    spec = team({"id": "ada", "backend": {"type": "acp", "command": "no-such-agent --acp"}})
    with pytest.raises(ConfigError, match="'no-such-agent' is not installed"):
        start(tmp_path, spec)
    assert not list(tmp_path.iterdir())


def test_killed_kernel_leaves_no_process_and_resume_continues(tmp_path: Path) -> None:
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
        wait_until(lambda: "one two" in streamed_text(tmp_path))
        kernel.kill()
        wait_until(lambda: not processes_with(mark))
    options = RunOptions(session_root=tmp_path)
    again = finish(nb_agents.resume(None, team(agent("ada", "say three")), options=options))
    assert again.result == "three"
    assert "interrupted while you wrote:\none two" in asked(again, "ada", "prompt")[-1]


def words(run: Run) -> str:
    return "".join(e.text for e in events(run, ev.TextStreamed) if e.channel == "text")


def processes_with(mark: str) -> list[str]:
    """Return the command lines of all processes that contain a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if mark in line and str(os.getpid()) != path.parent.name else []
    return found


def test_workspace_is_saved_before_and_after_each_prompt(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    steps = "".join(f"- {{id: {id}, agent: ada, prompt: Go.}}\n" for id in ("one", "two"))
    path.write_text(f"name: r\ndescription: d\nversion: 1.0.0\nsteps:\n{steps}")
    options = RunOptions(session_root=tmp_path)
    spec = team(agent("ada", "run echo line >> log", "say done"))
    run = finish(nb_agents.start(config=spec, recipe=path, options=options))
    assert [(e.changed) for e in events(run, ev.FilesSaved)] == [(), ("log",)]
    told = run.preview_rewind("step one")
    assert [(file.what, file.plus, file.minus) for file in told.files] == [("changed", 0, 1)]
    again = finish(run.rewind("step one"))
    kept = events(again, ev.FilesSaved)
    assert len(kept) == 1 and kept[0].tree == events(run, ev.FilesSaved)[1].tree
    for each in (run, again):
        [log] = (each.path / "workspaces").glob("*/log")
        assert log.read_text() == "line\nline\n"
