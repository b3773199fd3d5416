"""The budget of a task: shared by all its turns, at every entry point of a resume."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import UserError
from tests.kit.cards import CELL, card_text
from tests.kit.runs import (
    Budget,
    Run,
    budget_of,
    check_used,
    rest_of_budget,
    usage_of_task,
    used_up,
)
from tests.kit.servers import Resume, places, resume_turn
from tests.kit.sessions import TurnPaths, past_events
from tests.kit.verbs import RUN, VERBS, Caller, NewRun, read, resume
from tests.kit.views import fold
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import finish

# A reply reports more tokens than its prompt is estimated at, because an estimate can be counted
# before the report arrives.
LIMIT = 4000
READ = Reply(tool_calls=(ToolCall("list_files", {}),), input_tokens=1400, output_tokens=1)
ANSWER = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),), input_tokens=7)


def team_of(server: ModelServer, limit: int = LIMIT) -> TeamSpec:
    backend = server.backend("vllm", model="a")
    return TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": backend}], "orchestrator": {"max_tokens": limit}}
    )


def spend_all(root: Path, server: ModelServer) -> Run:
    """Run a team that reads files until its budget is used up: three calls, 4203 tokens."""
    server.script("a", READ)
    options = RunOptions(session_root=root)
    run = finish(nb_agents.start("the task", team_of(server), session="s", options=options))
    assert (run.receipt.source, run.view.tokens) == ("budget", 4203)
    return run


def used(run: Run) -> int:
    """The tokens of the task, which must be the same on disk."""
    stored = fold(past_events(TurnPaths(run.path)))
    assert stored.task_tokens == run.view.task_tokens
    return run.view.task_tokens


def by_python(run: Run, **budget: Any) -> Run:
    return nb_agents.resume("s", options=RunOptions(session_root=run.path.parent.parent, **budget))


def by_run(run: Run, **budget: Any) -> Run:
    return run.resume(options=RunOptions(**budget))


def by_verb(run: Run, **budget: Any) -> Run:
    outcome = resume(Path(), Caller("cli", CELL, run.path.parent.parent), session="s", **budget)
    assert isinstance(outcome, NewRun)
    return outcome.begin().run


@pytest.mark.parametrize("again", [by_python, by_run, by_verb])
def test_resume_without_budget_is_refused_and_a_higher_limit_lets_it_run(
    tmp_path: Path, server: ModelServer, again: Callable[..., Run]
) -> None:
    run = spend_all(tmp_path, server)
    with pytest.raises(UserError, match=r"4,203 of 4,000 tokens") as refused:
        again(run)
    message = str(refused.value)
    for remedy in (
        "`--max-tokens 8000` at the resume",
        "RunOptions(max_tokens=8000)",
        "`max_tokens` in the body",
        "`orchestrator.max_tokens` in the team file",
    ):
        assert remedy in message
    resumed = finish(again(run, max_tokens=5000))
    # One call was left of the limit, not three.
    assert (resumed.receipt.source, used(resumed)) == ("budget", 5604)
    assert "5,604 of 5,000" in resumed.receipt.reason


def test_resume_has_the_remaining_budget_of_earlier_turns(
    tmp_path: Path, server: ModelServer
) -> None:
    limit = 4000
    server.script("a", READ, Reply("words", hang_after=1))
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("the task", team_of(server, limit), session="s", options=options)
    wait_until(lambda: run.view.agents["a"].partial == "words")
    run.stop(now=True)
    finish(run)
    before = used(run)
    assert 1401 < before < limit
    server.script("a", READ)
    resumed = finish(by_python(run))
    assert resumed.receipt.source == "budget"
    assert limit <= used(resumed) < limit + 1401


def test_resumed_cost_counts_against_the_limit_in_dollars() -> None:
    call = ev.ModelFinished(agent="a", call=1, response={}, usage=ev.Usage(cost=0.4))
    first = ev.TurnStarted(
        session="s", turn=1, task="t", agents=(ev.AgentInfo(id="a", model="m"),), timeout_s=1.0
    )
    view = fold([first, call, replace(first, turn=2, resumes=1), call])
    used = usage_of_task(view)
    assert used_up(used, Budget(max_cost=0.8)) == "$0.8 of $0.8 used"
    with pytest.raises(UserError, match="--max-cost 1.6"):
        check_used(view, used, Budget(max_cost=0.8))
    check_used(view, used, Budget(max_cost=0.81))


def test_rewind_counts_what_was_spent_after_its_checkpoint(
    tmp_path: Path, server: ModelServer
) -> None:
    run = spend_all(tmp_path, server)
    first = next(e for e in past_events(TurnPaths(run.path)) if isinstance(e, ev.ToolFinished))
    with pytest.raises(UserError, match="4,203 of 4,000 tokens"):
        run.rewind(first.seq)
    again = finish(run.rewind(first.seq, options=RunOptions(max_tokens=6000)))
    assert (again.view.tokens_before, again.view.tokens) == (1401, 2 * 1401)
    assert again.receipt.source == "budget"
    assert "7,005 of 6,000 tokens" in again.receipt.reason
    with pytest.raises(UserError, match="7,005 of 7,000 tokens"):
        nb_agents.resume("s", options=RunOptions(session_root=tmp_path, max_tokens=7000))


def test_new_task_in_the_session_has_its_own_budget(tmp_path: Path, server: ModelServer) -> None:
    run = spend_all(tmp_path, server)
    server.script("a", ANSWER)
    options = RunOptions(session_root=tmp_path)
    following = nb_agents.start(
        "another", team_of(server, 9000), session="s", continue_=True, options=options
    )
    assert finish(following).result == "done"
    assert following.view.tokens_before == 0 < run.view.tokens


def test_http_request_takes_a_limit_and_is_refused_without_one(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spend_all(tmp_path, server)
    with pytest.raises(UserError, match="4,203 of 4,000 tokens"):
        resume_turn(TurnPaths(run.path), dict(read(Resume, b"{}")))
    given: list[RunOptions] = []
    monkeypatch.setattr(places, "resume", lambda session, options, **_: given.append(options))
    resume_turn(TurnPaths(run.path), dict(read(Resume, b'{"max_tokens": 9, "max_cost": 0.5}')))
    assert (given[0].max_tokens, given[0].max_cost) == (9, 0.5)


@pytest.mark.parametrize("interface", ["cell", "terminal"])
def test_limits_are_options_of_start_and_resume_in_cells_and_terminals(interface: str) -> None:
    for parameters in (VERBS["resume"].parameters, RUN):
        options = {each.name for each in parameters if interface in each.interfaces}
        assert {"max_tokens", "max_cost"} <= options


def test_limit_in_the_changed_team_counts(tmp_path: Path, server: ModelServer) -> None:
    run = spend_all(tmp_path, server)
    server.script("a", ANSWER)
    raised = nb_agents.resume(
        "s", team_of(server, 90_000), options=RunOptions(session_root=tmp_path)
    )
    assert finish(raised).result == "done"
    assert used(raised) > used(run)


def test_forks_share_what_the_task_has_left_of_its_budget(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("a", READ, ANSWER)
    options, limit = RunOptions(session_root=tmp_path), 10_000
    run = finish(nb_agents.start("the task", team_of(server, limit), session="s", options=options))
    first = next(e for e in past_events(TurnPaths(run.path)) if isinstance(e, ev.ToolFinished))
    words = Reply("word " * limit, words_per_second=200, input_tokens=1)
    server.script("a", *([words] * 6))
    forks = nb_agents.fork(run.path, first.seq, times=6)
    forks.wait()
    assert forks.status == "cancelled"
    assert "tokens used" in forks.view.reason
    # Each fork alone may use most of the budget.
    assert limit * 0.98 < run.view.tokens + forks.view.tokens < limit * 1.05


def test_forks_of_a_spent_task_are_refused(tmp_path: Path, server: ModelServer) -> None:
    run = spend_all(tmp_path, server)
    [*_, last] = (e for e in past_events(TurnPaths(run.path)) if isinstance(e, ev.ModelFinished))
    with pytest.raises(UserError, match="4,203 of 4,000 tokens"):
        nb_agents.fork(run.path, last.seq, times=2)


def test_tokens_of_subagents_and_of_failed_attempts_count(
    tmp_path: Path, server: ModelServer
) -> None:
    limit = 5000
    call = ToolCall("call_agent", {"name": "b", "input": "x"})
    server.script("a", Reply(tool_calls=(call,), input_tokens=20), READ)
    server.script("b", Reply("words " * 9, drop_after=9), replace(READ, input_tokens=limit))
    a, b = (server.backend("vllm", model=id) for id in ("a", "b"))
    team = TeamSpec.model_validate(
        {
            "agents": [{"id": "a", "backend": {**a, "can_call": "*"}}],
            "callable_agents": [{"id": "b", "backend": b}],
            "orchestrator": {"max_tokens": limit},
            "retry": {"delay": 0},
        }
    )
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.receipt.source == "budget"
    assert [request.model for request in server.requests] == ["a", "b", "b"]
    assert run.view.task_tokens > limit + 20


@pytest.mark.parametrize(
    ("option", "variable", "limit"),
    [(None, "0.2", 0.2), (0.1, "0.2", 0.1), (0.9, "$0.2", 0.2), (None, "", 0.5), (None, "9", 0.5)],
)
def test_stricter_of_environment_and_option_applies(
    monkeypatch: pytest.MonkeyPatch, option: float | None, variable: str, limit: float
) -> None:
    monkeypatch.setenv("NB_AGENTS_MAX_COST", variable)
    team = TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": {"type": "demo"}}], "orchestrator": {"max_cost": 0.5}}
    )
    assert budget_of(team, RunOptions(max_cost=option)).max_cost == limit


def test_invalid_environment_variable_refuses_the_start(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NB_AGENTS_MAX_COST", "five")
    with pytest.raises(UserError, match="NB_AGENTS_MAX_COST is 'five'. Use a number above 0"):
        nb_agents.start("t", team_of(server), options=RunOptions(session_root=tmp_path))
    assert not list(tmp_path.iterdir())


def test_refusal_names_the_environment_variable_that_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NB_AGENTS_MAX_COST", "0.5")
    call = ev.ModelFinished(agent="a", call=1, response={}, usage=ev.Usage(cost=0.6))
    agents = (ev.AgentInfo(id="a", model="m"),)
    first = ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=1.0)
    with pytest.raises(UserError, match="NB_AGENTS_MAX_COST sets to at most"):
        view = fold([first, call])
        check_used(view, usage_of_task(view), Budget(max_cost=0.5))


@pytest.mark.parametrize("budget", [{"max_tokens": 0}, {"max_cost": -1.0}])
def test_limit_must_be_positive(budget: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="Use a (whole )?number above 0"):
        RunOptions(**budget)


def test_budget_of_a_chat_covers_all_its_tasks(tmp_path: Path, server: ModelServer) -> None:
    run = spend_all(tmp_path, server)
    chosen = RunOptions(max_tokens=10_000, max_cost=1.0)
    assert rest_of_budget(chosen, []) == chosen
    assert rest_of_budget(chosen, [run.view, run.view]).max_tokens == 10_000 - 2 * 4203
    with pytest.raises(UserError, match=r"Nothing more can be started: .*12,609 of 10,000 tokens"):
        rest_of_budget(chosen, [run.view] * 3)


def test_offered_limit_is_higher_than_what_calls_in_flight_have_used(
    tmp_path: Path, server: ModelServer
) -> None:
    agents = [{"id": name, "backend": server.backend("vllm", model="m")} for name in "abc"]
    server.script("m", READ)
    team = TeamSpec.model_validate({"agents": agents, "orchestrator": {"max_tokens": 1000}})
    run = finish(nb_agents.start("t", team, session="s", options=RunOptions(session_root=tmp_path)))
    assert run.view.next_max_tokens is not None
    _, offered = run.view.raised_limits
    assert offered is not None and offered > run.view.task_tokens
    assert f"--max-tokens {offered}" in card_text(run.view, str(run.path))
