"""A comparison stops when it is decided, survives a kill, and pays for nothing twice."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import NotYoursError, TaskError, UserError
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.models import Backend
from tests.kit.runs import live_turns, registry
from tests.kit.sessions import load_session, read_journal
from tests.kit.sweeps import SWEEP_MIME, SweepReader, fold_notes
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.processes import ROOT
from tests.samples import some_or_all
from tests.team_kit import WAIT_S
from tests.warm import WarmProcess

TASK = "Item {{id}}."
KILL_S = 60
LIMIT = 3
CODE = """
import sys
from tests.sweeps.test_compare import compare_served
compare_served(*sys.argv[1:]).wait()
"""
MODELS = ("gpt-5-mini", "gpt-4o")
JUDGE = "gpt-5"


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(count)]


def number_in(text: str) -> int:
    match = re.search(r"Item (\d+)\.", text)
    assert match is not None, text
    return int(match[1])


def grade(task: str, answer: str) -> float:
    return float(answer.startswith("good"))


def team(share: int) -> TeamSpec:
    """Return a team whose answers are good for that many of ten rows."""

    def answer(said: Any) -> Turn:
        return Answer("good" if number_in(str(said)) % 10 < share else "bad")

    return scripted_team(x=ScriptedModel(answer))


def compared(options: RunOptions, *teams: TeamSpec, count: int = 60, **more: Any) -> Any:
    settings = {"score": grade, "name": "ab", **more}
    return nb_agents.compare(rows(count), TASK, *teams, options=options, **settings)


def test_comparison_stops_when_the_better_team_is_known(options: RunOptions) -> None:
    comparison = compared(options, team(2), team(9), limit=4)
    view = comparison.wait(WAIT_S)
    verdict = comparison.verdict
    assert (view.status, verdict.decision, verdict.is_final) == ("completed", "b", True)
    assert verdict.low > 0 and verdict.rows_used + verdict.rows_saved <= verdict.rows_total == 60
    assert verdict.rows_saved > 20
    effect = f"effect {verdict.effect:+.3g} (95 % interval: {verdict.low:+.3g} to "
    assert comparison.effect_so_far().startswith(effect)
    records = comparison.table()
    used = records[: verdict.rows_used]
    assert [record["id"] for record in used] != sorted(record["id"] for record in used)
    assert sum(each["difference"] for each in used) / len(used) == pytest.approx(verdict.effect)
    frame = comparison.to_frame()
    assert len(frame) == 60 and {"id", "score_a", "answer_b", "difference"} <= {*frame.columns}


def test_same_call_repeats_the_verdict_without_a_run(options: RunOptions) -> None:
    first = compared(options, team(2), team(9))
    first.wait(WAIT_S)
    begun = len(registry.started_runs())
    again = compared(options, team(2), team(9))
    assert again.wait(WAIT_S).status == "completed"
    assert again.verdict == first.verdict
    assert len(registry.started_runs()) == begun


def test_both_teams_run_the_same_rows_and_start_in_random_order(options: RunOptions) -> None:
    comparison = compared(options, team(5), team(5), count=12, limit=1)
    comparison.wait(WAIT_S)
    assert comparison.verdict.reason == "all rows are compared"
    pairs = [(each.values["id"], each.values["team"]) for each in comparison.rows]
    assert Counter(number for number, _ in pairs) == dict.fromkeys(range(12), 2)
    assert [a for a, _ in pairs[::2]] == [b for b, _ in pairs[1::2]], "side by side"
    assert {team for _, team in pairs[::2]} == {"a", "b"}


def test_stopped_comparison_has_no_verdict_and_continues(options: RunOptions) -> None:
    gate = Gate()
    held = scripted_team(x=ScriptedModel(Turn(text="good", gate=gate), Answer("good")))
    comparison = compared(options, team(1), held, count=8)
    gate.wait_reached()
    comparison.stop()
    gate.open()
    assert comparison.wait(WAIT_S).status == "cancelled"
    assert not comparison.verdict.is_final
    assert "Not decided yet" in comparison._repr_mimebundle_()["text/html"]
    again = comparison.resume()
    again.wait(WAIT_S)
    assert again.verdict.is_final and again.verdict.rows_used == 8


def test_failed_runs_count_as_the_lowest_score(options: RunOptions) -> None:
    failing = scripted_team(x=ScriptedModel(Turn(error=ValueError("no"))))
    comparison = compared(options, team(10), failing, count=30)
    comparison.wait(WAIT_S)
    assert comparison.verdict.decision == "a"
    assert "A failed run gets the score 0" in comparison._repr_mimebundle_()["text/html"]


# A kill -----------------------------------------------------------------------------------------


def compare_served(root: str, url: str, score: str) -> Any:
    def served(model: str) -> dict[str, Any]:
        return {"type": "openai", "model": model, "base_url": url, "api_key": "k"}

    judge = {"id": "judge", "backend": served(JUDGE)}
    teams = [
        TeamSpec.model_validate(
            {
                "agents": [{"id": f"of {model}", "backend": served(model)}],
                "callable_agents": [judge],
            }
        )
        for model in MODELS
    ]
    more: dict[str, Any] = {"score": "judge"} if score == "judge" else {}
    return compared(RunOptions(session_root=Path(root)), *teams, count=40, limit=LIMIT, **more)


class ServedTeams:
    """The models of both teams and of their judge.

    Attributes:
        answered: The number of answers to each request.
        unanswered: The number of requests without an answer.
        most: The number of answers after which no request is answered.
        judged: The judge's prompts.
    """

    def __init__(self, server: ModelServer) -> None:
        self.answered, self.unanswered, self.most = Counter[str](), 0, 0
        self.judged = list[str]()
        for model in (*MODELS, JUDGE):
            server.script(model, *([self._reply] * 300))

    def _reply(self, request: Request) -> Reply:
        if self.answered.total() >= self.most:
            self.unanswered += 1
            return Reply(hang_after=0)
        self.answered[f"{request.model}: {request.prompt}"] += 1
        answer = self._judgement(request) if request.model == JUDGE else self._answer(request)
        return Reply(tool_calls=(ToolCall("new_answer", {"content": answer}),))

    def _answer(self, request: Request) -> str:
        share, end = (2, ".") if request.model == MODELS[0] else (8, "!")
        return ("good" if number_in(request.prompt) % 10 < share else "bad") + end

    def _judgement(self, request: Request) -> str:
        self.judged.append(request.prompt)
        first, second = re.findall(r"\b(good|bad)[.!]", request.prompt)
        return "tie" if first == second else "1" if first == "good" else "2"


def recorded(root: Path) -> int:
    """Return the number of answers in the journals of all sessions."""
    journals = [read_journal(path).events for path in root.rglob("events.jsonl")]
    return sum(isinstance(each, ev.ModelFinished) for events in journals for each in events)


KILLS = [
    (score, sorted(random.Random(seed).sample(range(1, 24), 2)))
    for seed in range(some_or_all(1, 12))
    for score in ("function", "judge")
]


@pytest.mark.parametrize(("score", "points"), KILLS)
def test_kills_change_no_verdict_and_nothing_is_paid_twice(
    tmp_path: Path, server: ModelServer, score: str, points: list[int]
) -> None:
    models, root = ServedTeams(server), tmp_path / "killed"
    for models.most in points:
        models.unanswered = 0
        command = [sys.executable, "-c", CODE, str(root), server.url, score]
        with WarmProcess(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            try:
                wait_until(lambda: models.unanswered and recorded(root) == models.most, KILL_S)
            finally:
                process.kill()
        wait_until(lambda: not live_turns(root=root))
        server.wait_closed()  # a request that the server reads late is not answered either
        assert models.answered.total() == models.most
    models.most = 10_000
    resumed = compare_served(str(root), server.url, score)
    resumed.wait(WAIT_S)
    assert set(models.answered.values()) == {1}
    assert bool(models.judged) is (score == "judge")
    assert not any(name in prompt for name in MODELS for prompt in models.judged)
    whole = compare_served(str(tmp_path / "whole"), server.url, score)
    whole.wait(WAIT_S)
    verdict = resumed.verdict
    assert verdict.decision == "b"
    assert verdict.history == whole.verdict.history and verdict.rows_used == whole.verdict.rows_used


# A judge ----------------------------------------------------------------------------------------


def judged_teams(judge: Backend) -> tuple[TeamSpec, TeamSpec]:
    def spec(answer: str, *agents: Any) -> TeamSpec:
        backend = {"type": "python", "instance": ScriptedModel(Answer(answer))}
        document = {"agents": [{"id": "x", "backend": backend}], "callable_agents": agents}
        return TeamSpec.model_validate(document)

    own = {"id": "judge", "backend": {"type": "python", "instance": judge}}
    return spec("weak"), spec("strong", own)


def test_judge_compares_both_orders_without_the_names_of_the_teams(options: RunOptions) -> None:
    def choose(said: Any) -> Turn:
        first, second = (str(said).find(word) for word in ("weak", "strong"))
        return Answer(f"I prefer the strong one.\n{'2' if first < second else '1'}")

    judge = ScriptedModel(choose)
    comparison = compared(options, *judged_teams(judge), count=30, score="judge")
    comparison.wait(WAIT_S)
    verdict = comparison.verdict
    assert (verdict.decision, verdict.effect) == ("b", 1.0)
    asked = [str(request) for request in judge.requests]
    orders = Counter(each.find("weak") < each.find("strong") for each in asked)
    assert abs(orders[True] - orders[False]) <= 8  # the decision stops up to 8 judges
    assert all("answer_1>" in each and "answer_2>" in each for each in asked)
    paid = sum(each.tokens for each in fold_notes(comparison.path).results.values())
    again = compared(options, *judged_teams(judge), count=30, score="judge")
    again.wait(WAIT_S)
    assert again.verdict == verdict and len(judge.requests) == len(asked)
    assert sum(each.tokens for each in fold_notes(again.path).results.values()) == paid


@pytest.mark.parametrize(
    ("returned", "why"),
    [(None, "The score function returned None, which is no number."), (7, "The score is 7.")],
)
def test_card_says_why_rows_have_no_score(options: RunOptions, returned: object, why: str) -> None:
    comparison = compared(options, team(1), team(2), count=3, score=lambda task, answer: returned)
    comparison.wait(WAIT_S)
    card = comparison._card()
    assert "Undecided: no row has a score." in card["text/plain"]
    assert "3 rows without a score from 0 to 1 are left out." in card["text/plain"]
    for text in (card["text/plain"], card["text/html"]):
        assert re.search(rf"[012]: {re.escape(why)}", text)
    assert repr(comparison) == "<TeamComparison ab: complete, 6 of 6 runs; undecided after 0 rows>"


def test_judge_that_prefers_a_position_makes_ties(options: RunOptions) -> None:
    comparison = compared(
        options, *judged_teams(ScriptedModel(Answer("1"))), count=6, score="judge"
    )
    comparison.wait(WAIT_S)
    assert comparison.verdict.effect == 0 and comparison.verdict.rows_used == 6
    assert [each["difference"] for each in comparison.table()] == [0.0] * 6
    for row in comparison.table():
        places = [Path(row["session_a"]), Path(row["session_b"])]
        judges = [each.name for place in places for each in place.glob("judge_*")]
        assert sorted(judges) == ["judge_1", "judge_2"], "each pair is judged once"


def test_judge_without_a_choice_leaves_the_row_out(options: RunOptions) -> None:
    judge = ScriptedModel(Answer("Both are fine."))
    comparison = compared(options, *judged_teams(judge), count=3, score="judge")
    comparison.wait(WAIT_S)
    assert (comparison.verdict.rows_unscored, comparison.verdict.rows_used) == (3, 0)
    errors = [row["error_a"] or row["error_b"] for row in comparison.table()]
    assert all("chose no answer" in error for error in errors)


def test_killed_judge_is_asked_only_for_the_order_that_is_missing(options: RunOptions) -> None:
    gate = Gate()
    judge = ScriptedModel(Answer("1"), Turn(text="Hm. ", gate=gate), Answer("1"))
    comparison = compared(options, *judged_teams(judge), count=1, score="judge")
    gate.wait_reached()
    comparison.stop(True)
    gate.open()
    comparison.wait(WAIT_S)
    asked = len(judge.requests)
    again = comparison.resume()
    again.wait(WAIT_S)
    assert again.verdict.rows_used == 1
    first = [row for row in comparison.path.glob("*/judge_1")]
    assert len(load_session(first[0]).turns) == 1
    assert len(judge.requests) <= asked + 2


# Errors and cards ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"max_rows": 0}, "max_rows is 0"),
        ({"score_range": (1, 1)}, "score_range is"),
        ({"margin": 2.0}, "margin is 2.0"),
        ({"score": "judge"}, "The judge 'judge' is not among"),
        ({"limit": 0}, "The limit is 0"),
    ],
)
def test_invalid_arguments_are_refused(
    options: RunOptions, more: dict[str, Any], error: str
) -> None:
    with pytest.raises(UserError, match=re.escape(error)):
        compared(options, team(1), team(2), **more)


def test_name_belongs_to_one_comparison(options: RunOptions) -> None:
    compared(options, team(2), team(9), count=4).wait(WAIT_S)
    with pytest.raises(UserError, match="'ab' compares other teams, or the same teams with"):
        compared(options, team(2), team(9), count=4, seed=1)
    nb_agents.map(rows(1), TASK, team(2), name="plain", options=options).wait(WAIT_S)
    with pytest.raises(UserError, match="'plain' is a sweep that compares no teams"):
        compared(options, team(2), team(9), count=4, name="plain")
    with pytest.raises(TaskError, match="has no such column"):
        nb_agents.compare(rows(1), "{{x}}", team(1), team(2), score=grade, options=options)


def test_runs_of_another_user_need_trust(
    options: RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    held = scripted_team(x=ScriptedModel(Turn(text="good", gate=gate)))
    comparison = compared(options, team(1), held, count=2)
    gate.wait_reached()
    comparison.stop(True)
    comparison.wait(WAIT_S)
    gate.open()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home of another"))
    with pytest.raises(NotYoursError, match="'ab' was not created by you"):
        compared(options, team(1), held, count=2)


def test_card_shows_the_verdict_in_any_process_and_escapes_answers(options: RunOptions) -> None:
    evil = "<script>alert(1)</script>"
    bad = scripted_team(x=ScriptedModel(Answer(evil)))
    comparison = compared(options, bad, team(10), count=40)
    comparison.wait(WAIT_S)
    card = comparison._card()
    html, plain = card["text/html"], card["text/plain"]
    assert "b is better than a." in html and "<svg role" in html and "rows used" in html
    assert "<script" not in html and "&lt;script&gt;" in html
    assert "b is better than a." in plain and "Rows that differ most:" in plain
    verdict = card[SWEEP_MIME]["comparison"]
    more = 40 - verdict["rows_used"] - verdict["rows_saved"]
    assert (f"{more} more started before the end" in plain) is (more > 0)
    assert (verdict["winner"], verdict["rows_used"]) == ("b", comparison.verdict.rows_used)
    assert len(html) < 20_000
    elsewhere = SweepReader(comparison.path)
    assert "b is better than a." in elsewhere._card()["text/html"]
