"""Decisions by MassGen's ``permissions``."""

from typing import Any

import pytest
from pydantic import ValidationError

from nb_agents.config.permissions import Act, PermissionSpec


def spec(**rules: Any) -> PermissionSpec:
    return PermissionSpec.model_validate({"rules": rules})


PUSH = [Act("command", "git push --force")]
STATUS = [Act("command", "git status")]


def test_deny_takes_precedence_over_allow_and_allow_over_ask() -> None:
    rules = spec(
        deny=["command(git push*)"], allow=["command(git *)"], ask=["command(*)", "read_url"]
    )
    assert rules.decide([PUSH]) == "deny"
    assert rules.decide([STATUS]) == "allow"
    assert rules.decide([[Act("command", "npm publish")]]) == "ask"
    assert rules.decide([[Act("read_url", "https://x")]]) == "ask"
    assert rules.decide([[Act("read_file", "x")]]) is None


def test_call_is_allowed_only_if_every_part_is() -> None:
    rules = spec(allow=["command(git status)"], deny=["command(git push*)"])
    assert rules.decide([STATUS, PUSH]) == "deny"
    assert rules.decide([STATUS, [Act("command", "make")]]) is None
    assert rules.decide([STATUS], also=PUSH) == "deny"
    assert rules.decide([[Act("command", "make")]], also=STATUS) is None


def test_star_matches_any_action() -> None:
    assert spec(deny=["*"]).decide([STATUS]) == "deny"
    assert spec(deny=["*(x*)"]).decide([[Act("mcp", "x/y")]]) == "deny"


def test_rules_cannot_loosen_a_role() -> None:
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
def test_invalid_rule_is_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PermissionSpec.model_validate(given)
