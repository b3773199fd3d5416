"""Tests of MassGen's document on graceful cancellation, with one row per statement.

Its statements about the terminal apply to cells here; those rows are in tests/kernel.
"""

import json
import re
from pathlib import Path

from pydantic_ai.messages import ModelRequest, SystemPromptPart, ToolReturnPart

import nb_agents
from nb_agents import RunCancelled, RunOptions
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests import processes
from tests.canaries import KEY
from tests.kit.sessions import load_session, session_root
from tests.massgen.rows import (
    ANSWERS,
    HALF,
    SESSION,
    TASK,
    Row,
    Table,
    begin,
    complete,
    files_below,
    go_on,
    partial_answers,
    session_in,
    stopped,
    stopped_early,
    writes,
)
from tests.model_server import ModelServer, Reply, wait_until
from tests.team_kit import finish, metadata, outcome, outcomes, prompt

TABLE = Table()
GO_ON = """
import sys, nb_agents
from nb_agents.testing import Answer, ScriptedModel, scripted_team
team = scripted_team(None, newcomer=ScriptedModel(Answer("Done.")))
options = nb_agents.RunOptions(session_root=sys.argv[1])
run = nb_agents.start("And now?", team, continue_=True, options=options)
print(run.session, run.turn, run.wait())
"""
says = TABLE.says


@TABLE.parametrize()
def test_graceful_cancellation(row: Row, tmp_path: Path) -> None:
    row.hold(tmp_path)


def block_of(agent: str, root: Path) -> list[str]:
    """Return the lines about an agent of the stopped turn in the next turn's prompt."""
    text = session_in(root).messages[1].content
    blocks = re.split(r"(?m)^(?=## )", text)
    (found,) = [b for b in blocks if b.startswith(f"## {agent}")]
    return found.rstrip("\n").splitlines()


# How it works -------------------------------------------------------------------------------


@says("A stop while the team coordinates takes down how every agent stands, also the idle ones.")
def every_agents_state_is_taken(root: Path) -> None:
    run = stopped(root)
    known = metadata(run)["receipt"]["agents"]
    assert {a: (e["outcome"], e["answers"], e["words_kept"]) for a, e in known.items()} == {
        "agent_a": ("finished", 1, 0),
        "agent_b": ("killed", 1, 1),
        "agent_c": ("killed", 0, 3),
    }
    again = session_in(root).turns[0].view
    assert again.agents == run.view.agents


@says("Answers that were there when the stop came are saved.")
def answers_are_saved(root: Path) -> None:
    stopped(root)
    agents = session_in(root).turns[0].view.agents
    assert {a: v.answer for a, v in agents.items() if v.answers} == ANSWERS


@says("Agents' workspaces outlive the stop.")
def workspaces_are_kept(root: Path) -> None:
    run = stopped(root)
    assert files_below(run.path / "workspaces") == {"agent_a/a.md": "kept", "agent_c/c.md": "kept"}


@says("The session goes on later, by `--continue`, in a process that knows nothing of the stop.")
def the_session_continues_later(root: Path) -> None:
    stopped(root)
    assert processes.output(GO_ON, root).split() == [SESSION, "2", "Done."]


# What gets saved ----------------------------------------------------------------------------


@says("Saved: any answer that agents have submitted, each under its agent, whole.")
def saved_partial_answers(root: Path) -> None:
    saved = partial_answers(stopped(root).path)
    assert {a: e["answer"] for a, e in saved.items() if "answer" in e} == ANSWERS
    assert {a: e["answer_count"] for a, e in saved.items()} == {
        "agent_a": 1,
        "agent_b": 1,
        "agent_c": 0,
    }


@says("Saved: all files that an agent made or changed, apart from those of other agents.")
def saved_workspaces(root: Path) -> None:
    gate = Gate()
    change = Turn(calls=(Call("edit_file", {"path": "n.md", "old": "kept", "new": "changed"}),))
    a = ScriptedModel(writes("n.md"), change, writes("deep/m.md", "made"), Turn(gate=gate))
    b = ScriptedModel(writes("n.md", "b's own"), Turn(gate=gate))
    run = begin(root, agent_a=a, agent_b=b)
    gate.wait_reached(2)
    run.stop(now=True)
    finish(run)
    spaces = run.path / "workspaces"
    assert files_below(spaces / "agent_a") == {"n.md": "changed", "deep/m.md": "made"}
    assert files_below(spaces / "agent_b") == {"n.md": "b's own"}


@says("Saved: the turn's phase, time and task.")
def saved_turn_metadata(root: Path) -> None:
    known = metadata(stopped(root))
    assert (known["phase"], known["task"], known["turn"]) == ("coordinating", TASK, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?", known["timestamp"])


@says("Saved: votes, if the stop fell into the voting.")
def saved_voting_state(root: Path) -> None:
    run = stopped(root)
    saved = partial_answers(run.path)
    assert {a: e["has_voted"] for a, e in saved.items()} == {
        "agent_a": True,
        "agent_b": False,
        "agent_c": False,
    }
    assert saved["agent_a"]["votes"]["voted_for"] == "agent_b"
    assert saved["agent_b"]["votes"] is None
    assert metadata(run)["voting_complete"] is False


@says("The turn is marked incomplete in the session's directory.")
def the_turn_is_marked_incomplete(root: Path) -> None:
    assert metadata(stopped(root))["status"] == "incomplete"
    complete(root)
    # Completeness is told by the mark's absence, so that has to be a difference.
    assert "status" not in json.loads((root / SESSION / "turn_2" / "metadata.json").read_text())


# What the next turn sees --------------------------------------------------------------------


@says("Nothing is lost for the turn after an incomplete one; here not even unsubmitted words.")
def nothing_is_lost_for_the_next_turn(root: Path) -> None:
    stopped(root)
    _, model = go_on(root)
    read = prompt(model, 0)
    for text in (TASK, *ANSWERS.values(), HALF.strip(), "Judging", "And now?"):
        assert text in read


@says("All answers come as one message of the assistant, each below its agent's name.")
def answers_are_one_message(root: Path) -> None:
    stopped(root)
    told = session_in(root).messages
    assert [(m.role, m.content) for m in told[:1]] == [("user", TASK)]
    holding = [m for m in told if any(a in m.content for a in ANSWERS.values())]
    assert [m.role for m in holding] == ["assistant"]
    lines = holding[0].content.splitlines()
    for agent, answer in ANSWERS.items():
        heading = next(i for i, line in enumerate(lines) if line.startswith(f"## {agent}'s answer"))
        assert lines[heading + 1] == answer


@says("That message begins with what it is and with the phase of the stop.")
def the_message_says_what_it_is(root: Path) -> None:
    stopped(root)
    first, phase, empty = session_in(root).messages[1].content.splitlines()[:3]
    assert first == "[INCOMPLETE TURN - Session was cancelled before completion]"
    assert (phase, empty) == ("[Phase when cancelled: coordinating]", "")


@says("An agent's vote stands beside its answer; one that has not voted has none there.")
def votes_stand_beside_answers(root: Path) -> None:
    stopped(root)
    assert block_of("agent_a", root)[0] == "## agent_a's answer (voted for: agent_b):"
    assert block_of("agent_b", root)[0] == "## agent_b's answer:"


@says("Below an answer is where the agent's workspace is to be found.")
def answers_name_their_workspace(root: Path) -> None:
    run = stopped(root)
    last = block_of("agent_a", root)[-1]
    assert last == f"[Workspace available at: {run.path / 'workspaces' / 'agent_a'}]"
    assert (Path(last[25:-1]) / "a.md").read_text() == "kept"


@says(
    "An agent with a workspace and without an answer gets a placeholder that names the workspace."
)
def unanswered_agents_get_a_placeholder(root: Path) -> None:
    run = stopped(root)
    assert block_of("agent_c", root) == [
        "## agent_c:",
        "[No answer submitted - agent was still working]",
        f"[View workspace for current progress: {run.path / 'workspaces' / 'agent_c'}]",
    ]


@says(
    "All workspaces of the incomplete turn are context paths of the next: to read, not to change."
)
def workspaces_are_read_only_context(root: Path) -> None:
    run = stopped(root)
    target = run.path / "workspaces" / "agent_a" / "a.md"
    change = Turn(calls=(Call("write_file", {"path": str(target), "content": "spoilt"}),))
    _, model = go_on(root, change)
    system = [
        p.content
        for m in model.requests[0]
        if isinstance(m, ModelRequest)
        for p in m.parts
        if isinstance(p, SystemPromptPart)
    ]
    for agent in ("agent_a", "agent_b", "agent_c"):
        assert f"- {run.path / 'workspaces' / agent}\n" in f"{system[0]}\n"
    assert "can only be read" in prompt(model, 1)
    assert target.read_text() == "kept"


def read_back(root: Path, path: Path) -> str:
    """Return the text of a file that an agent of the next turn reads."""
    _, model = go_on(root, Turn(calls=(Call("read_file", {"path": str(path)}),)))
    parts = [p for m in model.requests[1] for p in m.parts if isinstance(p, ToolReturnPart)]
    return str(parts[0].content)


@says("Among them are workspaces of agents that had answered.")
def answered_agents_files_are_read(root: Path) -> None:
    run = stopped(root)
    assert "kept" in read_back(root, run.path / "workspaces/agent_a/a.md").splitlines()[0]


@says("Among them are workspaces of agents that had files and no answer yet.")
def working_agents_files_are_read(root: Path) -> None:
    run = stopped(root)
    assert "kept" in read_back(root, run.path / "workspaces/agent_c/c.md").splitlines()[0]


@says("No file and no progress is lost, also of agents that had not finished.")
def unfinished_work_is_not_lost(root: Path) -> None:
    run = stopped(root)
    assert [(f.agent, f.path, f.size) for f in run.view.files] == [
        ("agent_a", "a.md", 4),
        ("agent_c", "c.md", 4),
    ]
    again = load_session(run.path.parent).turns[0].view.agents["agent_c"]
    assert (again.partial, again.answers) == (HALF, ())
    assert partial_answers(run.path)["agent_c"]["partial_text"] == HALF


# The session's directory --------------------------------------------------------------------


@says(
    "Sessions are named by date and time below one root. Ours is .nb_agents/sessions, not "
    ".massgen/sessions: two programs that both write there would allot the same turns."
)
def sessions_are_named_by_their_time(root: Path) -> None:
    model = ScriptedModel(Answer("A's"))
    run = finish(
        nb_agents.start("t", scripted_team(a=model), options=RunOptions(session_root=root))
    )
    assert re.fullmatch(r"session_\d{8}_\d{6}", run.session)
    assert session_root() == Path.cwd() / ".nb_agents" / "sessions"


@says("The session's summary tells of the incomplete turn.")
def the_summary_tells_of_it(root: Path) -> None:
    complete(root)
    stopped(root)
    summary = (root / SESSION / "SESSION_SUMMARY.txt").read_text()
    before, _, block = summary.partition("TURN 2 [INCOMPLETE - CANCELLED]\n")
    assert "TURN 1\n" in before and "INCOMPLETE" not in before
    for line in (
        "Phase when cancelled: coordinating",
        f"Task: {TASK}",
        "Agents with answers: agent_a, agent_b",
        "Agents with workspace only (no answer): agent_c",
    ):
        assert f"{line}\n" in block


@says("A complete turn before it keeps its metadata, its answer and its workspace.")
def a_complete_turn_stays_as_it_was(root: Path) -> None:
    done = complete(root)
    before = files_below(done.path)
    stopped(root)
    go_on(root)
    assert files_below(done.path) == before
    assert {"metadata.json", "answer.txt"} <= before.keys()
    assert (done.path / "answer.txt").read_text() == "Its answer."
    assert (done.path / "workspace" / "early.md").read_text() == "kept"
    assert not (done.path / "partial_answers.json").exists()


@says("The incomplete turn has metadata, all partial answers, the best one, and each workspace.")
def the_incomplete_turns_files(root: Path) -> None:
    complete(root)
    path = stopped(root).path
    assert path == root / SESSION / "turn_2"
    names = {p.name for p in path.iterdir()}
    assert {"metadata.json", "partial_answers.json", "answer.txt", "workspaces"} <= names
    assert "workspace" not in names  # that is the winner's, and nobody has won
    assert {p.name for p in (path / "workspaces").iterdir()} == {"agent_a", "agent_b", "agent_c"}


# Resuming -----------------------------------------------------------------------------------


@says("Who goes on is told how many turns there are, and which one begins.")
def going_on_tells_the_turns(root: Path) -> None:
    complete(root)
    stopped(root)
    run, _ = go_on(root)
    assert run.view.notices[0] == f"Continues session {SESSION}: this is turn 3."
    assert run.turn == 3


@says("Who goes on is told of the incomplete turn: its phase, its task, whose answers there are.")
def going_on_tells_of_the_incomplete_turn(root: Path) -> None:
    stopped(root)
    run, _ = go_on(root)
    assert run.view.notices[1:-1] == (
        f"Turn 1 was stopped while coordinating: {TASK}",
        "Saved: answers of agent_a, agent_b.",
    )


@says("One may ask the same question again.")
def the_same_question_may_be_asked_again(root: Path) -> None:
    stopped(root)
    run, model = go_on(root, task=TASK)
    assert run.result == "Done."
    assert f"<TASK>\n{TASK}\n</TASK>" in prompt(model, 0)
    assert [m.content for m in session_in(root).messages if m.role == "user"] == [TASK, TASK]


@says("One may move on to another question.")
def another_question_may_be_asked(root: Path) -> None:
    stopped(root)
    _, model = go_on(root, task="Something else?")
    read = prompt(model, 0)
    assert "<TASK>\nSomething else?\n</TASK>" in read and f"User: {TASK}" in read


@says("Complete turns before the incomplete one are context for the agents.")
def complete_turns_are_context(root: Path) -> None:
    done = complete(root)
    stopped(root)
    _, model = go_on(root, Turn(calls=(Call("list_files", {"path": str(done.path)}),)))
    read = prompt(model, 0)
    assert "User: An earlier question\nAssistant: Its answer." in read
    assert str(done.path / "workspace") in read


@says("The stopped turn's answers stay in the session's directory when the session has gone on.")
def partial_answers_stay_to_be_read(root: Path) -> None:
    path = stopped(root).path
    before = files_below(path)
    go_on(root)
    assert files_below(path) == before
    assert partial_answers(path)["agent_a"]["answer"] == ANSWERS["agent_a"]


# Viewing ------------------------------------------------------------------------------------


@says("All partial answers of a session are one file a turn, found by its name's pattern.")
def partial_answers_are_found_by_pattern(root: Path) -> None:
    complete(root)
    stopped(root)
    stopped(root)
    found = sorted(root.glob("*/turn_*/partial_answers.json"))
    assert [p.parent.name for p in found] == ["turn_2", "turn_3"]
    assert all(json.loads(p.read_text())["agent_b"]["answer"] == "B's answer." for p in found)


@says(
    "answer.txt of a stopped turn has the best partial answer. Ours: the one with most votes, then "
    "the longest; MassGen's three rules for that differ among themselves."
)
def the_best_partial_answer_is_in_a_file(root: Path) -> None:
    text = (stopped(root).path / "answer.txt").read_text()
    head, _, answer = text.partition("\n\n")
    assert head.splitlines()[:2] == [
        "[PARTIAL ANSWER - Session was cancelled during coordinating phase]",
        "[Best answer from: agent_b]",
    ]
    assert answer == ANSWERS["agent_b"]


# Force exit ---------------------------------------------------------------------------------


@says("The first request is graceful: what is in hand is finished and kept, and no call begins.")
def the_first_request_is_graceful(root: Path) -> None:
    gate = Gate()
    models = {a: ScriptedModel(Answer(text, gate=gate)) for a, text in ANSWERS.items()}
    run = begin(root, **models)
    gate.wait_reached(2)
    assert run.stop().status == "stopping"
    assert not run.is_over
    gate.open()
    finish(run)
    assert {a: e["answer"] for a, e in partial_answers(run.path).items()} == ANSWERS
    assert [len(m.requests) for m in models.values()] == [1, 1]
    assert run.status == "cancelled"


@says(
    "The second request ends it at once. There it saves nothing; here it cuts what is in hand and "
    "saves all the same, as nobody who is in a hurry wants to lose work."
)
def the_second_request_ends_it_at_once(root: Path) -> None:
    a, b = ScriptedModel(Answer("A's"), Turn(hang=True)), ScriptedModel(Turn(HALF, hang=True))
    run = begin(root, agent_a=a, agent_b=b)
    wait_until(lambda: run.view.agents["agent_a"].answers)
    wait_until(lambda: run.view.agents["agent_b"].partial == HALF)
    run.stop()
    assert run.stop(now=True).changed
    finish(run)
    saved = partial_answers(run.path)
    assert (saved["agent_a"]["answer"], saved["agent_b"]["partial_text"]) == ("A's", HALF)
    assert (a.open_streams, b.open_streams) == (0, 0)


# Many turns ---------------------------------------------------------------------------------


@says("What a person asked in a turn that was cancelled stays in the conversation.")
def the_prompt_of_a_cancelled_turn_stays(root: Path) -> None:
    stopped_early(root)
    _, model = go_on(root)
    go_on(root)
    assert f"User: {TASK}\n" in prompt(model, 0)
    told = [m.content for m in session_in(root).messages if m.role == "user"]
    assert told == [TASK, "And now?", "And now?"]


@says(
    "So does what a person put into the turn while it ran. There such a text waits and can become "
    "the task of a turn of its own; here it belongs to the turn that it was said to."
)
def what_was_said_to_a_cancelled_turn_stays(root: Path) -> None:
    gate = Gate()
    run = begin(root, agent_a=ScriptedModel(Turn(gate=gate)))
    gate.wait_reached()
    run.say("Leave out the appendix.")
    run.stop(now=True)
    finish(run)
    _, model = go_on(root)
    assert "User: Leave out the appendix.\n" in prompt(model, 0)
    go_on(root)
    told = [m.content for m in session_in(root).messages if m.role == "user"]
    assert told == [TASK, "Leave out the appendix.", "And now?", "And now?"]


@says("A turn that takes too long is cancelled without losing the session.")
def the_session_outlives_its_turns(root: Path) -> None:
    complete(root)
    stopped_early(root)
    run, model = go_on(root)
    assert (run.turn, run.result) == (3, "Done.")
    assert "Assistant: Its answer." in prompt(model, 0)


@says("What there is can be looked at before deciding how to go on.")
def partial_progress_can_be_reviewed(root: Path) -> None:
    error = outcome(stopped(root))
    assert isinstance(error, RunCancelled)
    assert error.partial_answers == {**ANSWERS, "agent_c": HALF}
    assert (error.path / "workspaces/agent_c/c.md").exists()


# Use cases ----------------------------------------------------------------------------------


@says("Wrong direction: the stop says so, and the next turn is told another one.")
def use_wrong_direction(root: Path) -> None:
    run = stopped(root, reason="wrong path")
    assert (run.receipt.reason, metadata(run)["receipt"]["reason"]) == ("wrong path", "wrong path")
    later, model = go_on(root, task="Without Redis, please.")
    assert "Without Redis, please." in prompt(model, 0)
    assert later.result == "Done."


@says("Too long: a call that would never end does not hold up the stop.")
def use_too_long(root: Path) -> None:
    gate = Gate()
    hangs = Turn(HALF, gate=gate)  # and nobody opens it
    policy = CancelPolicy(grace_timeout_s=0.05)
    team = scripted_team(None, agent_a=ScriptedModel(hangs))
    run = nb_agents.start(TASK, team, SESSION, options=RunOptions(session_root=root, cancel=policy))
    gate.wait_reached()
    run.stop()
    finish(run)
    assert (outcomes(run), run.view.agents["agent_a"].partial) == ({"agent_a": "killed"}, HALF)


@says("Debugging: how each agent came to where it was stopped can be inspected, event by event.")
def use_debugging(root: Path) -> None:
    (turn,) = [stopped(root).path]
    events = [json.loads(line) for line in (turn / "events.jsonl").read_text().splitlines()]
    told = [e["kind"] for e in events if e.get("agent") == "agent_c"]
    expected = ["round_started", "model_started", "tool_started", "tool_finished", "model_cut"]
    assert [k for k in expected if k in told] == expected
    asked = next(e for e in events if e["kind"] == "round_started" and e["agent"] == "agent_c")
    assert TASK in json.dumps(asked["asks"])


@says("Resources: a stop frees the calls at the provider, and no further ones are made.")
def use_resource_management(root: Path) -> None:
    with ModelServer(Reply(text="word", endless=True, words_per_second=200)) as server:
        backend = {"type": "openai", "model": "m", "base_url": server.url, "api_key": KEY}
        agents = [{"id": f"a{n}", "backend": backend} for n in range(2)]
        team = nb_agents.TeamSpec.model_validate({"agents": agents})
        run = nb_agents.start(TASK, team, options=RunOptions(session_root=root))
        server.wait_open(2)
        server.wait_chunks(2)
        run.stop(now=True)
        assert server.endings() == ["client"] * 2
        finish(run)


# Configuration ------------------------------------------------------------------------------


@says("It needs no configuration: the demo team, started with nothing but a task, stops and saves.")
def no_configuration_is_needed(root: Path) -> None:
    run = nb_agents.start(TASK, options=RunOptions(session_root=root))
    wait_until(lambda: any(a.partial for a in run.view.agents.values()))
    run.stop(now=True)
    finish(run)
    assert (metadata(run)["status"], metadata(run)["task"]) == ("incomplete", TASK)
    assert any(e.get("partial_text") for e in partial_answers(run.path).values())


@says("A stop before any answer saves the turn's metadata, and no file that would be empty.")
def without_answers_the_metadata_is_saved(root: Path) -> None:
    run = stopped_early(root)
    known = metadata(run)
    assert (known["status"], known["task"]) == ("incomplete", TASK)
    assert known["phase"] == "coordinating"
    assert not (run.path / "partial_answers.json").exists()
    assert not (run.path / "answer.txt").exists()
    assert "It has no saved answers." in session_in(root).restored()


@says(
    "Progress is saved only once an agent has answered: here words and files are, too. What was "
    "paid for is kept, and told apart from answers."
)
def without_answers_words_are_saved_too(root: Path) -> None:
    run = stopped_early(root, HALF)
    saved = partial_answers(run.path)["agent_a"]
    assert "answer" not in saved
    assert (saved["partial"], saved["partial_text"]) == (True, HALF)
    (_, document, unsubmitted) = session_in(root).messages
    assert HALF.strip() not in document.content
    assert "never submitted" in unsubmitted.content and HALF.strip() in unsubmitted.content


def test_rows_have_unique_names() -> None:
    said = [row.says for row in TABLE.rows]
    assert len(set(said)) == len(said) > 40
