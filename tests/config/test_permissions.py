"""MassGen's ``permissions``: what its rules decide."""

from typing import Any

import pytest
from pydantic import ValidationError

from nb_agents.config.permissions import Act, PermissionSpec


def spec(**rules: Any) -> PermissionSpec:
    return PermissionSpec.model_validate({"rules": rules})


PUSH = [Act("command", "git push --force")]
STATUS = [Act("command", "git status")]


def test_deny_goes_before_allow_and_allow_before_ask() -> None:
    rules = spec(
        deny=["command(git push*)"], allow=["command(git *)"], ask=["command(*)", "read_url"]
    )
    assert rules.decide([PUSH]) == "deny"
    assert rules.decide([STATUS]) == "allow"
    assert rules.decide([[Act("command", "npm publish")]]) == "ask"
    assert rules.decide([[Act("read_url", "https://x")]]) == "ask"
    assert rules.decide([[Act("read_file", "x")]]) is None


def test_every_part_must_be_allowed_and_one_that_is_denied_is_enough() -> None:
    rules = spec(allow=["command(git status)"], deny=["command(git push*)"])
    assert rules.decide([STATUS, PUSH]) == "deny"
    assert rules.decide([STATUS, [Act("command", "make")]]) is None
    assert rules.decide([STATUS], also=PUSH) == "deny"
    assert rules.decide([[Act("command", "make")]], also=STATUS) is None


def test_a_star_is_any_action() -> None:
    assert spec(deny=["*"]).decide([STATUS]) == "deny"
    assert spec(deny=["*(x*)"]).decide([[Act("mcp", "x/y")]]) == "deny"


def test_a_role_can_not_be_loosened_by_rules() -> None:
    rules = PermissionSpec.model_validate({"role": "read-only", "rules": {"allow": ["*"]}})
    assert rules.decide([[Act("write_file", "x")]]) == "deny"
    assert rules.decide([STATUS]) == "deny"
    assert rules.decide([[Act("read_file", "x")]]) == "allow"
    assert PermissionSpec(role="implementer").decide([STATUS]) is None


@pytest.mark.parametrize(
    "given",
    [
        {"rules": {"deny": ["git push"]}},
        {"rules": {"deny": ["comand(git push)"]}},
        {"rules": {"deny": ["command(git push"]}},
        {"rules": {"deny": 3}},
        {"role": "readonly"},
    ],
)
def test_a_rule_that_can_not_be_read_is_refused_and_never_left_out(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PermissionSpec.model_validate(given)
