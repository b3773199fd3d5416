"""Truncated replies and refusals, end to end: none silently becomes an answer."""

from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import RunFailed
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.recipes.live import over, write
from tests.team_kit import WAIT_S, events, finish, outcome, outcomes

LIMIT = "at its token limit (max_tokens)"
KINDS = ["vllm", "responses", "claude", "gemini"]


def team_of(server: ModelServer, *agents: str, kind: str = "vllm") -> TeamSpec:
    """Return a team in which each agent's model on the server has the agent's name."""
    backend = server.backend(kind)
    return TeamSpec.model_validate(
        {"agents": [{"id": a, "backend": {**backend, "model": a}} for a in agents]}
    )


def start(root: Path, server: ModelServer, *agents: str, kind: str = "vllm") -> Run:
    return nb_agents.start(
        "the task", team_of(server, *agents, kind=kind), options=RunOptions(session_root=root)
    )


def answer(text: str, **more: Any) -> Reply:
    return Reply(tool_calls=(ToolCall("new_answer", {"content": text}),), **more)


def vote(label: str) -> Reply:
    return Reply(tool_calls=(ToolCall("vote", {"agent_id": label, "reason": "best"}),))


def test_truncated_written_call_is_not_part_of_the_answer(
    tmp_path: Path, server: ModelServer
) -> None:
    call = '<tool_call>{"name": "write_file", "arguments": {"path": "n.md", "content": "a b"}}'
    server.script(
        "a",
        Reply(call, stop_after=1),
        Reply(call.partition(" ")[2], stop_after=4),
        Reply("the answer"),
    )
    run = finish(start(tmp_path, server, "a"))
    assert run.result == "the answer"
    assert "You wrote a call to write_file as text" in server.requests[2].prompt
    assert events(run, ev.ToolStarted) == []


# Cut off ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_text_is_continued(tmp_path: Path, server: ModelServer, kind: str) -> None:
    server.script(
        "a",
        Reply("one two three", stop_after=2),
        Reply(" three four five", stop_after=2),
        Reply(" five"),
    )
    run = finish(start(tmp_path, server, "a", kind=kind))
    assert run.result == "one two three four five"
    first, second, third = server.requests
    assert LIMIT not in first.prompt
    assert f"cut off {LIMIT}" in second.prompt and "ends with: one two\n" in second.prompt
    assert "ends with: one two three four\n" in third.prompt
    cuts = events(run, ev.ReplyCut)
    assert [(e.call, e.kept) for e in cuts] == [(1, "one two"), (2, "one two three four")]
    assert run.view.notices == (f"a's reply was cut off {LIMIT}. The agent continues it.",)
    # No word of the answer is also told to be one that was never submitted.
    assert run.view.agents["a"].unsubmitted == ""


@pytest.mark.parametrize("kind", ["vllm", "claude"])
def test_truncated_answer_call_is_continued(tmp_path: Path, server: ModelServer, kind: str) -> None:
    server.script("a", answer("one two three four", stop_after=3), answer("ee four"))
    run = finish(start(tmp_path, server, "a", kind=kind))
    assert run.result == "one two three four"
    assert "Call new_answer again with only the rest" in server.requests[1].prompt
    assert events(run, ev.TurnRejected) == []


def test_answer_that_stays_truncated_is_accepted_and_marked(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("a", Reply("x y z", stop_after=2))
    run = finish(start(tmp_path, server, "a"))
    assert server.count() == 10
    assert run.result == "x y" * 10 + f"\n\n[Cut off here {LIMIT}.]"
    assert run.view.notices[-1] == f"a's answer is incomplete: it was cut off {LIMIT}."


def test_truncated_tool_call_is_not_run_and_the_agent_is_informed(
    tmp_path: Path, server: ModelServer
) -> None:
    big = ToolCall("write_file", {"path": "n.md", "content": "a long text"})
    server.script("a", Reply(tool_calls=(big,), stop_after=4), answer("done"))
    run = finish(start(tmp_path, server, "a"))
    assert run.result == "done"
    assert f"This call was cut off {LIMIT} and was not executed." in server.requests[1].prompt
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["error"]
    assert not (run.path / "workspaces" / "a" / "n.md").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", ["write_file", "list_files", "new_answer"])
def test_call_truncated_before_its_arguments_is_not_run(
    tmp_path: Path, server: ModelServer, kind: str, tool: str
) -> None:
    looking, cut = ToolCall("read_file", {"path": "n.md"}), ToolCall(tool, None)
    server.script("a", Reply(tool_calls=(looking, cut), stop_after=99), answer("done"))
    run = finish(start(tmp_path, server, "a", kind=kind))
    assert run.result == "done"
    assert LIMIT in server.requests[1].prompt
    assert "invalid arguments" not in server.requests[1].prompt
    begun = [e.tool for e in events(run, ev.ToolStarted)]
    assert begun == ["read_file"]


def test_answer_next_to_a_truncated_call_does_not_count(
    tmp_path: Path, server: ModelServer
) -> None:
    early = ToolCall("new_answer", {"content": "early"}), ToolCall("write_file", None)
    server.script("a", Reply(tool_calls=early, stop_after=99), answer("done"))
    run = finish(start(tmp_path, server, "a"))
    assert run.result == "done"
    assert (
        "This call does not count because another call in the same reply"
        in server.requests[1].prompt
    )


def test_truncated_vote_does_not_count_but_earlier_calls_are_made(
    tmp_path: Path, server: ModelServer
) -> None:
    looking, cut = ToolCall("list_files"), ToolCall("vote", None)
    server.script("a", answer("A"), Reply(tool_calls=(looking, cut), stop_after=99), vote("agent2"))
    server.script("b", answer("B"), vote("agent2"))
    run = finish(start(tmp_path, server, "a", "b"))
    assert run.status == "completed" and outcomes(run) == {"a": "finished", "b": "finished"}
    made = [(e.tool, e.outcome) for e in events(run, ev.ToolFinished) if e.agent == "a"]
    assert made == [("vote", "error"), ("list_files", "ok")]
    told = next(r for r in server.requests if r.model == "a" and "was not executed" in r.prompt)
    assert told.messages[-2]["role"] == told.messages[-1]["role"] == "tool"
    assert "was not executed" in told.messages[-1]["content"]


@pytest.mark.parametrize("kind", KINDS)
def test_reply_cut_off_before_its_first_token_is_requested_again(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    server.script("a", Reply("", stop_after=0), answer("short"))
    run = finish(start(tmp_path, server, "a", kind=kind))
    assert run.result == "short"
    assert "before it contained a result. This time" in server.requests[1].prompt


def test_agent_with_only_truncated_replies_fails(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply("", stop_after=0))
    run = finish(start(tmp_path, server, "a"))
    assert (
        run.view.agents["a"].error
        == f"a: 3 of its replies were cut off {LIMIT} before it answered."
    )
    assert server.count() == 3


def test_unknown_finish_reason_does_not_end_the_reply(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply("so far", finish="abort"), Reply("END"))
    run = finish(start(tmp_path, server, "a"))
    assert run.result == "so far"
    assert "cut off by its server (abort)" in server.requests[1].prompt


def test_resume_continues_a_saved_partial_answer(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply("one two three", stop_after=2), Reply(" three four", hang_after=1))
    run = start(tmp_path, server, "a")
    wait_until(lambda: run.view.agents["a"].partial == "one two three", WAIT_S, "the second piece")
    run.stop(now=True)
    finish(run)
    kept = load_session(run.path.parent).turns[-1].view.agents["a"]
    assert kept.unsubmitted == "one two three"
    server.script("a", Reply(" three four five"))
    again = run.resume()
    again.wait(WAIT_S, raise_on_stop=False)
    assert again.result == "one two three four five"
    assert "ends with: one two\n" in server.requests[-1].prompt
    assert events(again, ev.ReplyCut) == []


def test_truncated_text_of_a_step_is_continued(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply("one two three", stop_after=2), Reply(" three"), Reply("fine"))
    steps = """
steps:
- {id: first, agent: a, prompt: "count", output: counted}
- {id: last, agent: a, prompt: "they said: {{counted}}"}
"""
    run = nb_agents.start(
        recipe=write(tmp_path, steps),
        config=team_of(server, "a"),
        options=RunOptions(session_root=tmp_path / "s"),
    )
    over(run)
    assert run.status == "completed"
    assert "they said: one two three" in server.requests[-1].prompt
    assert run.view.agents["first"].answer == "one two three"
    assert run.view.agents["first"].unsubmitted == ""


# Refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reply", "said"),
    [
        ("vllm", Reply("I ca", finish="content_filter"), "It refused to answer (content_filter)."),
        ("vllm", Reply(refusal="I can't."), "It refused to answer. It said: I can't."),
        (
            "responses",
            Reply("I ca", finish="content_filter"),
            "It refused to answer (content_filter).",
        ),
        ("responses", Reply(refusal="I can't."), "It refused to answer. It said: I can't."),
        ("claude", Reply("I ca", finish="refusal"), "It refused to answer (refusal)."),
        ("gemini", Reply("I ca", finish="SAFETY"), "It refused to answer (SAFETY)."),
    ],
)
def test_refusal_is_shown_as_a_refusal_and_not_as_an_answer(
    tmp_path: Path, server: ModelServer, kind: str, reply: Reply, said: str
) -> None:
    server.script("a", reply)
    run = finish(start(tmp_path, server, "a", kind=kind))
    error = outcome(run)
    assert isinstance(error, RunFailed)
    assert error.reasons == {"a": f"a: {said}"}
    assert (run.view.answer, run.view.agents["a"].phase) == ("", "failed")
    assert server.count() == 1


def test_team_continues_without_a_refusing_agent(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", answer("no", finish="content_filter"))
    server.script("b", answer("b's"), vote("agent2"), Reply("the result"))
    run = finish(start(tmp_path, server, "a", "b"))
    assert (run.result, run.view.winner) == ("the result", "b")
    assert outcomes(run) == {"a": "failed", "b": "finished"}
    assert run.view.agents["a"].answers == ()


def test_turn_fails_if_all_agents_refuse(tmp_path: Path, server: ModelServer) -> None:
    server.default = Reply("no", finish="content_filter")
    run = finish(start(tmp_path, server, "a", "b"))
    refused = "It refused to answer (content_filter)"
    assert f"failed: a: a: {refused}; b: b: {refused}. Its files are saved" in str(outcome(run))


def test_answer_stands_if_the_presenter_refuses(tmp_path: Path, server: ModelServer) -> None:
    def reply(request: Request) -> Reply:
        mine = f"{request.model}'s"
        if mine not in request.prompt:
            return answer(mine)
        may_vote = "vote" in request.tool_names  # else it presents
        return vote("agent1") if may_vote else Reply("no", finish="content_filter")

    server.default = reply
    run = finish(start(tmp_path, server, "a", "b"))
    assert run.result == "a's"
    assert any("refused to answer (content_filter)" in text for text in run.view.notices)


def test_step_refused_by_its_model_fails_with_that_reason(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("a", Reply("no", finish="content_filter"))
    steps = 'steps:\n- {id: only, agent: a, prompt: "count"}\n'
    run = nb_agents.start(
        recipe=write(tmp_path, steps),
        config=team_of(server, "a"),
        options=RunOptions(session_root=tmp_path / "s"),
    )
    over(run)
    assert run.status == "failed"
    assert "It refused to answer (content_filter)." in run.view.agents["only"].error


# Broken -------------------------------------------------------------------------------------------


def test_broken_reply_is_requested_again(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply("x", finish="MALFORMED_FUNCTION_CALL"), answer("done"))
    run = finish(start(tmp_path, server, "a", kind="gemini"))
    assert run.result == "done"
    [failed] = events(run, ev.ModelFailed)
    assert failed.error == "The reply was incomplete (MALFORMED_FUNCTION_CALL)."
