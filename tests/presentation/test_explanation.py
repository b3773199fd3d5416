"""An explanation of a turn names the right cause first, its costs, moved votes and what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import NbAgentsError
from nb_agents.options import Retry
from nb_agents.presentation.explanation import explain
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.cli.calls import call_here, told_here
from tests.kit.runs import Run
from tests.kit.sessions import TurnPaths, history, past_events
from tests.kit.views import fold
from tests.model_server import wait_until
from tests.samples import some_or_all
from tests.team_kit import WAIT_S

NAMES = ("ada", "ben", "cleo", "dora")


def started(root: Path, models: dict[str, ScriptedModel], **options: Any) -> Run:
    options = {"session_root": root, "retry": Retry(attempts=0), **options}
    return nb_agents.start("the task", scripted_team(None, **models), options=RunOptions(**options))


def over(run: Run) -> Run:
    try:
        run.wait(WAIT_S, raise_on_stop=False)
    except NbAgentsError:
        pass  # the run failed, as it should
    return run


def first_cause(run: Run) -> str:
    return nb_agents.why(run).causes[0]


def refusing(status: int, message: str) -> Callable[[Path, Random], Run]:
    """Return a player of a run whose models all refuse with this status."""

    def play(root: Path, random: Random) -> Run:
        error = ModelHTTPError(status, "m", {"message": f"{message} {random.random()}"})
        names = random.sample(NAMES, random.randint(1, 3))
        return over(started(root, {name: ScriptedModel(Turn(error=error)) for name in names}))

    return play


def undecided(root: Path, random: Random) -> Run:
    vote = Vote(f"agent{random.randint(7, 99)}")  # nobody has this label
    return over(started(root, {name: ScriptedModel(vote) for name in random.sample(NAMES, 2)}))


def over_budget(root: Path, random: Random) -> Run:
    words = "word " * random.randint(30, 60)
    models = {name: ScriptedModel(Answer(words), Answer(words * 2)) for name in NAMES[:2]}
    return over(started(root, models, max_tokens=random.randint(10, 20)))


def held(root: Path, random: Random, **options: Any) -> Run:
    gate = Gate()
    models = {name: ScriptedModel(Turn("x ", gate=gate)) for name in random.sample(NAMES, 2)}
    run = started(root, models, **options)
    gate.wait_reached()
    return run


def stopped(root: Path, random: Random) -> Run:
    run = held(root, random)
    run.stop(now=True, reason="enough of it")
    return over(run)


def timed_out(root: Path, random: Random) -> Run:
    return over(held(root, random, timeout=0.2))


FAILURES: dict[str, tuple[Callable[[Path, Random], Run], str]] = {
    "key": (refusing(401, "bad key"), "The server refused the key"),
    "credit": (refusing(402, "no credit"), "credit is used up"),
    "model": (refusing(404, "no such model"), "doesn't know this model"),
    "long": (refusing(413, "prompt is too long"), "too long"),
    "overloaded": (refusing(503, "overloaded"), "overloaded or down"),
    "undecided": (undecided, "no valid answer in 3 attempts"),
    "budget": (over_budget, "Stopped by the budget"),
    "user": (stopped, "Stopped by you (run.stop) (enough of it)"),
    "time": (timed_out, "Timed out"),
}
"""How a failure of each kind is caused, and what its first cause must contain."""


def test_first_cause_of_seeded_failures_is_the_right_one(tmp_path: Path) -> None:
    wrong = []
    cases = some_or_all(len(FAILURES), 100)
    for seed in range(cases):
        kind = [*FAILURES][seed % len(FAILURES)]
        play, expected = FAILURES[kind]
        cause = first_cause(play(tmp_path / str(seed), Random(seed)))
        wrong += [] if expected in cause else [(kind, seed, cause)]
    assert len(wrong) <= 0.05 * cases, wrong


def test_killed_run_names_the_call_that_was_cut(tmp_path: Path) -> None:
    run = stopped(tmp_path, Random(0))
    events = past_events(TurnPaths(run.path))
    cut = next(i for i, event in enumerate(events) if isinstance(event, ev.ModelCut))
    killed = history.as_killed(fold(events[: cut - 1]))
    [cause, *_] = explain(killed, events[: cut - 1], str(run.path)).causes
    assert cause.startswith("Cut off when the kernel died during model call 1 of")


def test_call_that_was_cut_lasted_until_the_last_event(tmp_path: Path) -> None:
    run = over(started(tmp_path, {"ada": ScriptedModel(Answer("one answer"))}))
    events = past_events(TurnPaths(run.path))
    at = next(i for i, event in enumerate(events) if isinstance(event, ev.ModelStarted))
    later = events[at].at + 60
    killed = [
        *events[: at + 1],
        ev.TextStreamed(agent="ada", call=1, channel="text", text="one", at=later),
    ]
    explained = explain(history.as_killed(fold(killed)), killed, str(run.path))
    assert explained.spending[0].model_s == pytest.approx(60)
    assert explained.causes[0].endswith("during model call 1 of ada (1 min).")
    resumed = [*killed, replace(events[0], turn=2, at=later + 600)]
    [spent] = explain(fold(resumed), resumed, str(run.path)).spending
    assert spent.model_s == pytest.approx(60), "the time between two turns does not count"


@pytest.fixture
def voted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run in which ada votes for herself, until ben's second answer moves her vote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path / "sessions"))
    has_voted = Gate()
    ada = ScriptedModel(Answer("A"), Vote("agent1"), Vote("agent2"), Answer("final"))
    ben = ScriptedModel(Answer("B"), Answer("B2", gate=has_voted), Vote("agent2"), Answer("B3"))
    run = started(tmp_path / "sessions", {"ada": ada, "ben": ben})
    has_voted.wait_reached()
    wait_until(lambda: run.view.agents["ada"].vote, WAIT_S, "ada's vote")
    has_voted.open()
    return over(run)


def test_answer_that_moved_a_vote_is_named(voted: Run) -> None:
    explanation = nb_agents.why(voted)
    assert [str(each) for each in explanation.moved_votes] == [
        "Answer 2 of ben moved the vote of ada from ada to ben."
    ]
    assert {each.agent for each in explanation.spending} == {"ada", "ben"}
    assert all(each.tokens and each.longest for each in explanation.spending)


def test_why_prints_causes_and_an_exact_command(voted: Run) -> None:
    text = call_here("why", voted.session)
    assert "It is complete. ben gave the final answer." in text
    assert f"nb-agents run --continue --session {voted.session}" in text
    assert told_here("why", voted.address)["moved_votes"][0]["voter"] == "ada"


def test_resume_command_of_a_stopped_run_is_given(tmp_path: Path) -> None:
    explanation = nb_agents.why(stopped(tmp_path, Random(1)))
    assert any(line.startswith("%agents resume") for line in explanation.commands)


def test_explanation_of_many_events_is_linear_and_fast(voted: Run) -> None:
    events = past_events(TurnPaths(voted.path))
    filler = next(event for event in events if isinstance(event, ev.TextStreamed))
    many = [*events[:-2], *[filler] * (100_000 - len(events)), *events[-2:]]
    started_at = time.process_time()
    explanation = explain(voted.view, many, str(voted.path))
    took_s = time.process_time() - started_at
    assert explanation.causes == nb_agents.why(voted).causes
    assert took_s < 1, "its target is 0.1 s on an idle machine"
    print(f"{took_s * 1000:.0f} ms for {len(many):,} events")
