"""A verdict depends only on the results and on the order of the rows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from nb_agents.extensions.sweeps.comparison import (
    ComparisonDecider,
    ComparisonSpec,
    ComparisonVerdict,
    arm_name,
    arms_of,
    in_random_order,
    pair_of,
    partner_of,
    stop_reason,
    verdict_of,
)
from tests.kit.sweeps import RowResult

ROWS = tuple(f"row-{number}" for number in range(200))
SPEC = ComparisonSpec(("old", "new"), ROWS)


def results(scores: Mapping[str, tuple[float | None, float | None]]) -> dict[str, RowResult]:
    """Return completed results with the scores of both teams."""
    return {
        arm_name(row, arm): RowResult(arm_name(row, arm), "completed", "x", score=score, cost=0.01)
        for row, both in scores.items()
        for arm, score in zip(("a", "b"), both, strict=True)
    }


def some(effect: float, seed: int = 1, rows: int = 200) -> dict[str, RowResult]:
    """Return scores 0 and 1, in which team b is better by about ``effect``."""
    rng = random.Random(seed)
    pairs = [
        (float(rng.random() < 0.5 - effect / 2), float(rng.random() < 0.5 + effect / 2))
        for _ in range(rows)
    ]
    return results(dict(zip(ROWS, pairs, strict=False)))


def test_the_better_team_wins_after_as_few_rows_as_needed() -> None:
    verdict = verdict_of(SPEC, some(0.5))
    assert (verdict.decision, verdict.winner, verdict.is_final) == ("b", "new", True)
    assert 0 < verdict.low < verdict.effect < verdict.high
    assert verdict.rows_used < 100 and verdict.rows_total == 200
    assert verdict_of(SPEC, some(-0.5)).winner == "old"


def test_results_after_the_decision_do_not_change_it() -> None:
    everything = some(0.5)
    verdict = verdict_of(SPEC, everything)
    used = {arm_name(row, arm) for row in ROWS[: verdict.rows_used] for arm in ("a", "b")}
    only_used = {name: result for name, result in everything.items() if name in used}
    again = verdict_of(SPEC, only_used)
    assert again == replace(verdict, rows_saved=200 - verdict.rows_used)


@pytest.mark.parametrize("missing", ["a", "b"])
def test_a_row_that_one_team_has_not_finished_is_awaited(missing: str) -> None:
    late = some(0.5)
    del late[arm_name(ROWS[3], missing)]  # type: ignore[arg-type]
    verdict = verdict_of(SPEC, late)
    assert (verdict.decision, verdict.is_final, verdict.rows_used) == ("undecided", False, 3)
    late[f"{ROWS[3]}_{missing}"] = RowResult("", "cancelled")
    assert verdict_of(SPEC, late).rows_used == 3
    late[f"{ROWS[3]}_{missing}"] = RowResult("", "completed", "x")
    assert verdict_of(SPEC, late).rows_used == 3, "its score is not known yet"


def test_order_of_the_results_does_not_matter() -> None:
    everything = some(0.3)
    names, reason, calls = [*everything], stop_reason(SPEC), 0
    random.Random(5).shuffle(names)
    seen = dict[str, RowResult]()
    for name in names:
        seen[name] = everything[name]
        calls += 1
        if why := reason(seen):
            break
    verdict = verdict_of(SPEC, seen)
    assert why == f"decided after {verdict.rows_used} rows: new is better"
    assert verdict == replace(verdict_of(SPEC, everything), rows_saved=verdict.rows_saved)


def test_equal_teams_end_without_a_decision_before_all_rows() -> None:
    ends = [verdict_of(SPEC, some(0.0, seed), max_points=1) for seed in range(20)]
    undecided = [each for each in ends if each.decision == "undecided"]
    assert len(undecided) >= 19 and all(each.is_final for each in undecided)
    assert any(each.rows_used < 200 for each in undecided)
    reasons = {each.reason for each in undecided if each.rows_used < 200}
    assert reasons == {"the remaining rows are unlikely to decide it"}


def test_more_rows_continue_a_comparison_that_was_undecided() -> None:
    everything = some(0.15, seed=3)
    few = replace(SPEC, rows=ROWS[:40])
    verdict = verdict_of(few, everything)
    assert (verdict.decision, verdict.is_final) == ("undecided", True)
    assert verdict_of(SPEC, everything).rows_used > verdict.rows_used


def test_budget_limits_the_rows_that_can_decide() -> None:
    everything = some(0.2, seed=2)
    rich = verdict_of(SPEC, everything)
    poor = verdict_of(replace(SPEC, max_cost=0.5), everything)  # 25 rows of 2 cents
    assert poor.rows_used <= 25 < rich.rows_used
    assert poor.reason == "the remaining rows are unlikely to decide it"


def test_equal_within_a_margin_is_a_decision() -> None:
    same = results(dict.fromkeys(ROWS, (0.5, 0.5)))
    verdict = verdict_of(replace(SPEC, margin=0.1), same)
    assert (verdict.decision, verdict.is_final, verdict.winner) == ("equal", True, "")
    assert -0.1 <= verdict.low <= verdict.high <= 0.1
    assert verdict_of(SPEC, same).decision == "undecided"


def test_failed_run_has_the_lowest_score() -> None:
    failed = {
        arm_name("r", "a"): RowResult("", "failed"),
        arm_name("r", "b"): RowResult("", "completed", score=6.0),
    }
    spec = replace(SPEC, low=0.0, high=10.0)
    pair = pair_of("r", failed, spec)
    assert pair is not None and pair.difference == pytest.approx(0.6)


@pytest.mark.parametrize("score", [-0.1, 1.5, float("nan")])
def test_score_outside_the_range_is_left_out(score: float) -> None:
    verdict = verdict_of(SPEC, results({ROWS[0]: (score, 1.0), ROWS[1]: (0.0, 1.0)}))
    assert (verdict.rows_unscored, verdict.rows_used) == (1, 1)


def test_a_score_that_failed_in_an_earlier_process_is_awaited() -> None:
    failed = results({ROWS[0]: (None, 1.0)})
    failed[arm_name(ROWS[0], "a")] = replace(failed[arm_name(ROWS[0], "a")], error="it failed")
    decider = ComparisonDecider(replace(SPEC, rows=ROWS[:1]))
    assert decider.advance(failed), "in this process, it is left out"
    reason = stop_reason(replace(SPEC, rows=ROWS[:1]))
    assert reason(failed) == ""
    failed[arm_name(ROWS[0], "a")] = replace(failed[arm_name(ROWS[0], "a")])
    assert reason(failed) == "undecided: no row has a score"


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [(None, 1.0, 1.0), (0.0, None, 1.0), (0.5, None, 0.0), (1.0, None, -1)],
)
def test_judge_of_both_answers_scores_one_of_them(
    a: float | None, b: float | None, difference: float
) -> None:
    spec = replace(SPEC, pairwise=True)
    pair = pair_of(ROWS[0], results({ROWS[0]: (a, b)}), spec)
    assert pair is not None and pair.difference == difference
    assert pair_of(ROWS[0], results({ROWS[0]: (None, None)}), spec) is None


def test_random_order_depends_on_the_seed_and_not_on_the_source() -> None:
    rows = list(ROWS)
    order = in_random_order(rows, 0)
    assert order == in_random_order(rows[::-1], 0) != in_random_order(rows, 1)
    assert sorted(order) == sorted(rows) and order != rows
    firsts = [arms_of(row, 0)[0] for row in rows]
    assert 60 < firsts.count("a") < 140
    assert partner_of(arm_name("x_a", "b")) == "x_a_a"


def test_history_is_bounded_and_ends_with_the_verdict() -> None:
    verdict = verdict_of(SPEC, some(0.1, seed=8))
    assert 2 <= len(verdict.history) <= 40
    assert verdict.history[-1] == (verdict.rows_used, verdict.effect, verdict.low, verdict.high)
    assert len(verdict.different) == 5
    assert ComparisonVerdict().is_final is False
