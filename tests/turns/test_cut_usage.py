"""The usage of interrupted and failed calls: it is counted, and the same on disk as live."""

from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.kit.cards import panel_state, text
from tests.kit.models import UsageMeter
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.kit.texts import token_count
from tests.kit.views import AgentView
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import events, finish

KINDS = {"openai": "vllm", "responses": "responses", "anthropic": "claude", "google": "gemini"}
REPORTS_PROMPT = {"anthropic", "google"}
PROMPT_TOKENS = 50_000
WORDS = "word " * 40
ANSWER = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),), input_tokens=7)


def team_of(server: ModelServer, protocol: str, **orchestrator: Any) -> TeamSpec:
    backend = server.backend(KINDS[protocol], model="a")
    return TeamSpec.model_validate(
        {
            "agents": [{"id": "a", "backend": backend}],
            "orchestrator": orchestrator,
            "retry": {"delay": 0},
        }
    )


def start(root: Path, team: TeamSpec) -> Run:
    return nb_agents.start("the task", team, options=RunOptions(session_root=root))


def used(agent: AgentView) -> tuple[int, int, bool]:
    return agent.input_tokens, agent.output_tokens, agent.is_estimated


def check_cut(usage: ev.Usage, protocol: str) -> None:
    """Check the usage of a call interrupted after 40 words of a prompt of 50,000 tokens."""
    if protocol in REPORTS_PROMPT:
        assert usage.input_tokens == PROMPT_TOKENS
    else:
        assert 100 < usage.input_tokens < 10_000
    assert 39 <= usage.output_tokens <= 51
    assert usage.estimated is (protocol != "google")


@pytest.mark.parametrize("protocol", KINDS)
def test_stopped_stream_counts_what_was_reported_and_received(
    tmp_path: Path, server: ModelServer, protocol: str
) -> None:
    server.script("a", Reply(WORDS, hang_after=40, input_tokens=PROMPT_TOKENS))
    run = start(tmp_path, team_of(server, protocol))
    wait_until(lambda: run.view.agents["a"].partial == WORDS)
    run.stop(now=True)
    finish(run)
    [cut] = events(run, ev.ModelCut)
    check_cut(cut.usage, protocol)
    agent = run.view.agents["a"]
    total = cut.usage.input_tokens + cut.usage.output_tokens
    assert used(agent) == (cut.usage.input_tokens, cut.usage.output_tokens, cut.usage.estimated)
    assert run.receipt.tokens == run.receipt.agents["a"].tokens == run.view.tokens == total
    assert run.receipt.is_estimated is cut.usage.estimated
    shown = token_count(total, cut.usage.estimated)
    assert shown.startswith("~") is cut.usage.estimated
    assert text.spent(run.view).startswith(shown)
    assert panel_state(run.view, "r", 0)["agents"][0]["numbers"].startswith(shown)
    assert [e.tokens for e in run.timeline if e.kind == "model"] == [total]


@pytest.mark.parametrize("protocol", KINDS)
def test_failed_attempt_counts_as_well_as_its_retry(
    tmp_path: Path, server: ModelServer, protocol: str
) -> None:
    dropped = Reply(WORDS, drop_after=40, input_tokens=PROMPT_TOKENS)
    server.script("a", dropped, ANSWER)
    run = finish(start(tmp_path, team_of(server, protocol)))
    assert run.result == "done"
    [failed] = events(run, ev.ModelFailed)
    check_cut(failed.usage, protocol)
    [*finished] = events(run, ev.ModelFinished)
    total = sum((each.usage for each in finished), failed.usage)
    assert used(run.view.agents["a"]) == (total.input_tokens, total.output_tokens, total.estimated)


def test_attempt_without_a_reply_counts_nothing(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply(status=503), Reply(drop_after=0), ANSWER)
    run = finish(start(tmp_path, team_of(server, "openai")))
    assert [e.usage for e in events(run, ev.ModelFailed)] == [None, None]
    assert not run.view.is_estimated


def test_priced_stream_that_is_cut_has_a_cost(tmp_path: Path, server: ModelServer) -> None:
    server.script("claude-sonnet-4-6", Reply(WORDS, hang_after=40, input_tokens=PROMPT_TOKENS))
    backend = server.backend("claude", model="claude-sonnet-4-6")
    run = start(tmp_path, TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]}))
    wait_until(lambda: run.view.agents["a"].partial == WORDS)
    run.stop(now=True)
    finish(run)
    cost = run.receipt.cost
    assert cost is not None and 0.15 < cost < 0.16


def test_failed_attempt_spends_the_budget(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply(WORDS, drop_after=40, input_tokens=PROMPT_TOKENS), ANSWER)
    run = finish(start(tmp_path, team_of(server, "anthropic", max_tokens=PROMPT_TOKENS)))
    assert (run.receipt.source, len(server.requests)) == ("budget", 1)


def test_usage_is_journalled_while_a_call_is_open(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", Reply(WORDS, hang_after=40, input_tokens=PROMPT_TOKENS))
    run = start(tmp_path, team_of(server, "anthropic"))
    wait_until(lambda: run.view.tokens >= PROMPT_TOKENS)
    # What another process would read after this one was killed.
    [turn] = load_session(run.path.parent).turns
    assert turn.view.agents["a"].input_tokens == PROMPT_TOKENS
    run.stop(now=True)
    finish(run)


def test_usage_is_journalled_again_only_after_a_step() -> None:
    arrivals = iter(range(0, 10_000, 100))
    chars = 0
    meter = UsageMeter(lambda: 0, lambda: chars)
    counts = []
    while (chars := next(arrivals, -1)) >= 0:
        usage = meter.growth()
        counts += [usage.output_tokens] if usage else []
    assert counts == [*range(250, 2500, 250)]
