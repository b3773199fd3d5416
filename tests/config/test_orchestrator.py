"""Orchestrator settings: MassGen's keys, values, defaults and ranges."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from nb_agents.config import orchestrator
from nb_agents.config.orchestrator import (
    ContextPath,
    OrchestratorSpec,
    Sensitivity,
    TimeoutSpec,
)

COORDINATION_DEFAULTS = {
    "context_paths": (),
    "max_new_answers_per_agent": None,
    "max_new_answers_global": None,
    "answer_novelty_requirement": "lenient",
    "defer_voting_until_all_answered": False,
    "fairness_enabled": True,
    "fairness_lead_cap_answers": 2,
    "voting_sensitivity": "lenient",
    "skip_voting": False,
    "skip_final_presentation": False,
    "final_answer_strategy": None,
    "max_cost": None,
    "max_tokens": None,
    "on_budget": "stop",
    "max_orchestration_restarts": 0,
    "coordination": {
        "enable_planning_mode": False,
        "planning_mode_instruction": "",
        "max_orchestration_restarts": 0,
        "enable_agent_task_planning": False,
        "max_tasks_per_plan": 10,
        "task_planning_filesystem_mode": False,
        "enable_memory_filesystem_mode": False,
        "use_skills": False,
        "skills_directory": ".agent/skills",
        "massgen_skills": (),
        "enable_subagents": False,
        "background_subagents": {"enabled": True, "injection_strategy": "tool_result"},
        "subagent_max_concurrent": 3,
        "subagent_default_timeout": 300.0,
        "subagent_min_timeout": 60.0,
        "subagent_max_timeout": 600.0,
        "write_mode": None,
        # MassGen's default is "skip"; here changes are merged completely or not at all.
        "drift_conflict_policy": "fail",
    },
}
TIMEOUT_DEFAULTS = {
    "orchestrator_timeout_seconds": 1800.0,
    "initial_round_timeout_seconds": None,
    "subsequent_round_timeout_seconds": None,
    "round_timeout_grace_seconds": 120.0,
    "on_timeout": "cancel",
}


def test_defaults_match_massgen() -> None:
    assert OrchestratorSpec().model_dump() == COORDINATION_DEFAULTS
    assert TimeoutSpec().model_dump() == TIMEOUT_DEFAULTS


def test_null_counts_as_omitted() -> None:
    nothing = dict.fromkeys(COORDINATION_DEFAULTS)
    assert OrchestratorSpec.model_validate(nothing) == OrchestratorSpec()
    assert TimeoutSpec.model_validate(dict.fromkeys(TIMEOUT_DEFAULTS)) == TimeoutSpec()


GOOD: list[dict[str, Any]] = [
    {"max_new_answers_per_agent": 1},
    {"max_new_answers_global": 9},
    {"answer_novelty_requirement": "strict"},
    {"fairness_lead_cap_answers": 0},
    {"final_answer_strategy": "synthesize"},
    {"max_cost": 0.25},
    {"max_cost": 3},
    {"max_tokens": 100_000},
    {"coordination": {"enable_planning_mode": True}},
]


@pytest.mark.parametrize("given", GOOD, ids=str)
def test_massgens_values_are_accepted(given: dict[str, Any]) -> None:
    spec = OrchestratorSpec.model_validate(given).model_dump(exclude_unset=True)
    assert spec == given


BAD: list[dict[str, Any]] = [
    {"max_new_answers_per_agent": 0},
    {"max_new_answers_per_agent": 1.5},
    {"max_new_answers_per_agent": True},
    {"max_new_answers_global": -1},
    {"max_new_answers_global": "5"},
    {"answer_novelty_requirement": "some"},
    {"fairness_enabled": "perhaps"},
    {"fairness_lead_cap_answers": -1},
    {"fairness_lead_cap_answers": False},
    {"voting_sensitivity": "harsh"},
    {"skip_voting": []},
    {"final_answer_strategy": "none"},
    {"max_cost": 0},
    {"max_cost": float("inf")},
    {"max_cost": float("nan")},
    {"max_cost": True},
    {"max_tokens": 0},
    {"coordination": {"enable_planning_mode": "maybe"}},
    {"coordination": []},
    {"context_paths": "here"},
    {"context_paths": [{"permission": "read"}]},
]


@pytest.mark.parametrize("given", BAD, ids=str)
def test_invalid_values_are_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OrchestratorSpec.model_validate(given)


@pytest.mark.parametrize("value", get_args(Sensitivity))
def test_supported_sensitivity_is_unchanged(value: str) -> None:
    spec = OrchestratorSpec.model_validate({"voting_sensitivity": value})
    assert spec.voting_criteria == value


FOREIGN = [
    ("sequential", "balanced"),
    ("adversarial", "strict"),
    ("consistency", "balanced"),
    ("diversity", "balanced"),
    ("reflective", "balanced"),
    ("checklist", "strict"),
    ("checklist_scored", "strict"),
    ("checklist_gated", "strict"),
]


@pytest.mark.parametrize("given, used", FOREIGN)
def test_other_sensitivities_map_to_the_nearest(given: str, used: str) -> None:
    spec = OrchestratorSpec.model_validate({"voting_sensitivity": given})
    assert (spec.voting_sensitivity, spec.voting_criteria) == (given, used)


def test_every_sensitivity_is_mapped() -> None:
    known = {*get_args(Sensitivity), *(given for given, _ in FOREIGN)}
    assert known == set(get_args(orchestrator._AnySensitivity))


LIMITS = [name for name in TIMEOUT_DEFAULTS if name.endswith("seconds")]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [-1, True, "60", float("inf"), float("nan"), [60]])
def test_a_limit_is_a_number_of_seconds(name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        TimeoutSpec.model_validate({name: value})


@pytest.mark.parametrize("name", LIMITS)
def test_only_grace_may_be_zero(name: str) -> None:
    if name == "round_timeout_grace_seconds":
        assert TimeoutSpec.model_validate({name: 0}).round_timeout_grace_seconds == 0
        return
    with pytest.raises(ValidationError, match="above 0"):
        TimeoutSpec.model_validate({name: 0})


def test_on_timeout_values() -> None:
    for value in ("fail", "cancel", "continue"):
        assert TimeoutSpec.model_validate({"on_timeout": value}).on_timeout == value
    with pytest.raises(ValidationError):
        TimeoutSpec.model_validate({"on_timeout": "explode"})


def test_a_context_path_may_be_a_string() -> None:
    assert ContextPath.model_validate("src") == ContextPath(path="src", permission="read")
