"""`on_budget: ask`: at the limit, a gate asks whether to raise the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import UserError
from tests.kit.runs import Budget, Run, Spent, chosen_raise, is_clock_stopped, propose_raise
from tests.kit.sessions import TurnPaths, past_events
from tests.kit.views import fold
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import WAIT_S, events, finish

# A reply reports more tokens than its prompt is estimated at, because an estimate can be counted
# before the report arrives.
LIMIT = 4000
READ = Reply(tool_calls=(ToolCall("list_files", {}),), input_tokens=1400, output_tokens=1)
ANSWER = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),), input_tokens=7)


def team_of(server: ModelServer, **orchestrator: Any) -> TeamSpec:
    backend = server.backend("vllm", model="a")
    return TeamSpec.model_validate(
        {
            "agents": [{"id": "a", "backend": backend}],
            "orchestrator": {"max_tokens": LIMIT, "on_budget": "ask", **orchestrator},
        }
    )


def begin(root: Path, team: TeamSpec, **options: Any) -> Run:
    return nb_agents.start("t", team, session="s", options=RunOptions(session_root=root, **options))


def wait_asked(run: Run) -> str:
    """Wait until the run asks to raise its budget. Returns the question."""
    asked = lambda: [g for g in run.view.gates.values() if g.about == "budget"]  # noqa: E731
    wait_until(lambda: bool(asked()), WAIT_S)
    return asked()[0].prompt


def test_approval_doubles_the_budget_and_the_run_continues(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("a", READ, READ, READ, ANSWER)
    run = begin(tmp_path, team_of(server))
    assert wait_asked(run).startswith("4,203 tokens used. Raise the budget to 8,000 tokens?")
    assert (len(server.requests), is_clock_stopped(run.view)) == (3, True)
    run.approve()
    assert finish(run).result == "done"
    [raised] = events(run, ev.BudgetRaised)
    assert (raised.max_tokens, raised.max_cost) == (8000, None)


def test_denial_is_a_graceful_stop(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", READ)
    run = begin(tmp_path, team_of(server))
    wait_asked(run)
    run.deny("too dear")
    finish(run)
    assert (run.receipt.source, run.view.stop.level if run.view.stop else "") == (
        "budget",
        "requested",
    )
    assert "4,203 of 4,000 tokens" in run.receipt.reason and "too dear" in run.receipt.reason
    assert len(server.requests) == 3


def test_approval_with_an_amount_raises_to_it_and_asks_again_there(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("a", READ)
    run = begin(tmp_path, team_of(server))
    wait_asked(run)
    run.approve("5000")
    wait_until(lambda: len(server.requests) == 4, WAIT_S)
    wait_until(lambda: len(run.view.approvals) == 1 and bool(run.view.gates), WAIT_S)
    assert "tokens used. Raise the budget to 10,000 tokens?" in wait_asked(run)
    run.deny()
    assert finish(run).receipt.source == "budget"


def test_streams_are_closed_while_asking_and_sent_again_after_a_raise(
    tmp_path: Path, server: ModelServer
) -> None:
    endless = Reply("word " * 100_000, words_per_second=200, input_tokens=1)
    server.script("a", endless, ANSWER)
    run = begin(tmp_path, team_of(server, max_tokens=2000))
    wait_asked(run)
    wait_until(lambda: server.requests[0].closed_by == "client", WAIT_S)
    wait_until(lambda: bool(events(run, ev.ModelCut)), WAIT_S, "the cut")
    [cut] = events(run, ev.ModelCut)
    assert cut.usage is not None and cut.usage.estimated
    assert run.view.task_tokens < 2000 * 1.2
    run.approve()
    assert finish(run).result == "done"
    assert len(server.requests) == 2
    assert run.receipt.is_estimated
    assert fold(past_events(TurnPaths(run.path))).task_tokens == run.view.task_tokens > 2000


def test_resume_of_a_run_that_was_asking_asks_again_before_any_request(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("a", READ)
    run = begin(tmp_path, team_of(server))
    wait_asked(run)
    run.stop(now=True)
    finish(run)
    assert any(gate.about == "budget" for gate in run.view.gates.values())
    server.script("a", ANSWER)
    resumed = run.resume()
    assert wait_asked(resumed).startswith("4,203 tokens used.")
    assert len(server.requests) == 3
    resumed.approve()
    assert finish(resumed).result == "done"


def test_resume_keeps_the_raised_budget(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", READ, READ, READ, Reply("word", hang_after=1))
    run = begin(tmp_path, team_of(server))
    wait_asked(run)
    run.approve("50000")
    wait_until(lambda: run.view.agents["a"].partial == "word", WAIT_S)
    run.stop(now=True)
    finish(run)
    server.script("a", ANSWER)
    resumed = finish(run.resume())
    assert (resumed.result, resumed.view.max_tokens) == ("done", 50000)


def test_resume_keeps_the_options_of_the_start(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", READ)
    team = team_of(server, max_tokens=90_000, on_budget="stop")
    run = finish(begin(tmp_path, team, max_tokens=1000, on_budget="stop"))
    assert run.receipt.source == "budget"
    options = RunOptions(session_root=tmp_path)
    with pytest.raises(UserError, match="1,401 of 1,000 tokens"):
        nb_agents.resume("s", options=options)
    asking = nb_agents.resume("s", options=RunOptions(session_root=tmp_path, on_budget="ask"))
    assert wait_asked(asking).startswith("1,401 tokens used. Raise the budget to 2,000 tokens?")
    asking.stop(now=True)
    finish(asking)


def test_question_in_dollars_proposes_to_double() -> None:
    proposed = propose_raise(Spent(cost=1.0), Budget(max_cost=1.0))
    assert proposed is not None
    assert proposed.question.startswith("$1.00 used. Raise the budget to $2.00?")
    assert proposed.budget == Budget(max_cost=2.0)


@pytest.mark.parametrize(
    ("message", "cost"),
    [("", 2.0), ("yes", 2.0), ("3.50", 3.5), ("$1,000", 1000.0), ("5 USD", 5.0), ("0", 2.0)],
)
def test_message_of_an_approval_may_be_another_amount(message: str, cost: float) -> None:
    old = Budget(max_cost=1.0)
    chosen = chosen_raise(old, old._replace(max_cost=2.0), message)
    assert chosen.max_cost == cost


def test_budget_cannot_be_raised_above_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NB_AGENTS_MAX_COST", "1.5")
    old = Budget(max_cost=1.0)
    proposed = propose_raise(Spent(cost=1.0), old)
    assert proposed is not None and proposed.budget.max_cost == 1.5
    assert chosen_raise(old, proposed.budget, "7").max_cost == 1.5
    assert propose_raise(Spent(cost=1.5), Budget(max_cost=1.5)) is None


def test_unknown_choice_is_refused() -> None:
    with pytest.raises(UserError, match="Use 'stop' or 'ask'"):
        RunOptions(on_budget="never")  # type: ignore[arg-type]
