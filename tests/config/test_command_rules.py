"""Patterns for commands: which programs they identify."""

import pytest

from tests.kit.tools import Blocked, CommandRules, from_glob

PROGRAMS = ["python", "python3", "pip", "git", "git-shell", "rm", "rmdir", "sudo", "ls"]


def blocked(*patterns: str) -> tuple[Blocked, ...]:
    return CommandRules.of(blocked=patterns).blocked


def concerned(rules: tuple[Blocked, ...]) -> list[str]:
    return [name for name in PROGRAMS if any(each.concerns(name) for each in rules)]


@pytest.mark.parametrize(
    "pattern, programs",
    [
        ("python.*", ["python", "python3"]),
        ("python3?", ["python", "python3"]),
        ("git push", ["git"]),
        (r"git\s+push", ["git", "git-shell"]),
        ("^git push --force", ["git"]),
        ("git\tpush", ["git"]),
        ("rm -rf", ["rm"]),
        ("rm", ["rm", "rmdir"]),
        ("g.t push", ["git", "git-shell"]),
        ("/usr/bin/git push", ["git"]),
        ("sudo|pip install", ["pip", "sudo"]),
        ("pip.*install", ["pip"]),
        (r"\bls\b", ["ls"]),
    ],
)
def test_pattern_concerns_every_program_that_it_may_match(
    pattern: str, programs: list[str]
) -> None:
    rules = CommandRules.of(blocked=[pattern])
    assert not rules.unclear
    assert concerned(rules.blocked) == programs


@pytest.mark.parametrize(
    "pattern", [".*push", "(git|hg) push", "[Pp]ython", "(?i)python", "g?it", "", " git", "./x.sh"]
)
def test_pattern_without_a_program_name_is_reported(pattern: str) -> None:
    assert CommandRules.of(blocked=[pattern]).unclear == (pattern,)


def test_glob_matches_a_whole_command() -> None:
    rule = from_glob("git push --force*")
    assert rule.pattern.match("git push --force origin") and rule.concerns("git")
    assert not rule.pattern.match("git push origin") and not rule.concerns("git-shell")


def test_rules_without_lists_allow_all_commands() -> None:
    assert CommandRules.of().is_open
    assert not CommandRules.of(["ls"]).is_open and not CommandRules.of((), ["ls"]).is_open
