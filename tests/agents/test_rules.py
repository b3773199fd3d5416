"""Tests of the rules of a team, and of the similarity of answers."""

from typing import Any

import pytest

from tests.kit.agents import Rules, rules_of, similarity
from tests.kit.teams import TeamSpec


def _team(agents: int = 2, orchestrator: Any = None, timeouts: Any = None) -> TeamSpec:
    each = [{"id": f"a{n}", "backend": {"type": "demo"}} for n in range(agents)]
    data = {"agents": each, "orchestrator": orchestrator, "timeout_settings": timeouts}
    return TeamSpec.model_validate(data)


@pytest.mark.parametrize(
    ("orchestrator", "rules"),
    [
        ({}, Rules()),
        ({"max_new_answers_per_agent": 2}, Rules(max_answers_each=2)),
        ({"max_new_answers_global": 5}, Rules(max_answers_all=5)),
        ({"answer_novelty_requirement": "balanced"}, Rules(max_similarity=0.70)),
        ({"answer_novelty_requirement": "strict"}, Rules(max_similarity=0.50)),
        ({"defer_voting_until_all_answered": True}, Rules(votes_after_all_answered=True)),
        ({"fairness_lead_cap_answers": 0}, Rules(lead_cap=0)),
        ({"fairness_enabled": False}, Rules(lead_cap=None)),
        ({"voting_sensitivity": "strict"}, Rules(sensitivity="strict")),
        ({"voting_sensitivity": "adversarial"}, Rules(sensitivity="strict")),
        ({"skip_voting": True}, Rules(skips_voting=True)),
        ({"skip_final_presentation": True}, Rules(final="winner_reuse")),
        (
            {"skip_final_presentation": True, "final_answer_strategy": "winner_present"},
            Rules(),
        ),
        (
            {"final_answer_strategy": "synthesize"},
            Rules(final="synthesize", skips_voting=True),
        ),
        ({"coordination": {"enable_planning_mode": True}}, Rules(plans_first=True)),
        (
            {
                "coordination": {
                    "enable_planning_mode": True,
                    "planning_mode_instruction": " Look.\n",
                }
            },
            Rules(plans_first=True, plan_instruction="Look."),
        ),
        ({"coordination": {"planning_mode_instruction": "Look."}}, Rules()),
    ],
)
def test_each_setting_is_a_rule(orchestrator: dict[str, Any], rules: Rules) -> None:
    assert rules_of(_team(orchestrator=orchestrator), 1800) == rules


def test_effective_timeouts_are_rules() -> None:
    timeouts = {
        "orchestrator_timeout_seconds": 600,
        "initial_round_timeout_seconds": 30,
        "subsequent_round_timeout_seconds": 20,
        "round_timeout_grace_seconds": 5,
    }
    rules = rules_of(_team(timeouts=timeouts), 60)
    assert (rules.turn_limit_s, rules.round_grace_s) == (60, 5)
    assert [rules.round_limit_s(n) for n in (1, 2, 3)] == [30, 20, 20]
    assert Rules().round_limit_s(1) is Rules().round_limit_s(2) is None


def test_team_of_one_skips_the_planning_phase() -> None:
    planning = {"coordination": {"enable_planning_mode": True}}
    assert not rules_of(_team(1, planning), 1800).plans_first


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ("", "", 1.0),
        ("a", "", 0.0),
        ("a b", "c d", 0.0),
        ("a a a", "A.", 1.0),
        ("a b c", "b c d", 0.5),
        ("Größe, 東京", "größe 東京", 1.0),
    ],
)
def test_similarity_is_the_share_of_words_in_common(one: str, other: str, share: float) -> None:
    assert similarity(one, other) == similarity(other, one) == share
