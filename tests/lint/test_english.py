"""The check of English finds phrases to avoid wherever people read them, and only there."""

import json
from pathlib import Path

import pytest

from tests.lint import english
from tests.lint.english import check, findings_in, load_rules

RULES = """
[[rule]]
avoid = ["{go,goes} on with", "at once"]
use = "continue, resume"

[[rule]]
avoid = ["door{,s}"]
but = ["front door"]
use = "entry point"
"""


@pytest.fixture
def rules(tmp_path: Path) -> list[english.Rule]:
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    return load_rules(file)


def found(
    folder: Path, name: str, text: str, rules: list[english.Rule], is_package: bool = False
) -> list[tuple[int, str]]:
    file = folder / name
    file.write_text(text)
    return [(line, match) for line, match, _ in sorted(findings_in(file, rules, is_package))]


PYTHON = '''
"""Goes on
with a turn."""

# It stops at once; then it goes
# on with the next.
path = "tests/doors.py"
message = "By one door."


def test_phrase_goes_on_with_is_reported():
    """By the front door."""
    at_once = 1


class Stop:
    """Stop.

    Attributes:
        now: At once.
    """
'''


def test_docstrings_comments_and_names_of_tests_are_read(
    tmp_path: Path, rules: list[english.Rule]
) -> None:
    assert found(tmp_path, "a.py", PYTHON, rules) == [
        (2, "Goes on with"),
        (5, "at once"),
        (5, "goes on with"),
        (11, "goes on with"),
        (20, "At once"),
    ]


def test_strings_of_the_package_are_checked(tmp_path: Path, rules: list[english.Rule]) -> None:
    assert (8, "door") in found(tmp_path, "a.py", PYTHON, rules, is_package=True)


def test_pages_are_read_without_their_code(tmp_path: Path, rules: list[english.Rule]) -> None:
    page = "# A page\n\n`at once`\n\n```\ngoes on with\n```\n\nIt goes\non with `x`.\n"
    assert found(tmp_path, "a.md", page, rules) == [(9, "goes on with")]


def test_notebooks_are_read_in_their_markdown_cells(
    tmp_path: Path, rules: list[english.Rule]
) -> None:
    cells = [
        {"cell_type": "code", "source": ["# at once\n"]},
        {"cell_type": "markdown", "source": ["## A title\n", "\n", "Two doors.\n"]},
    ]
    text = json.dumps({"cells": cells}, indent=1)
    [(line, match)] = found(tmp_path, "a.ipynb", text, rules)
    assert match == "doors"
    assert match in text.splitlines()[line - 1]


def test_a_line_of_the_change_log_has_at_most_thirty_words(
    tmp_path: Path, rules: list[english.Rule]
) -> None:
    log = f"# Changelog\n\n- {'word ' * 30}\n- {'word ' * 31}\n"
    assert [line for line, _ in found(tmp_path, "CHANGELOG.md", log, rules)] == [4]


def test_a_problem_names_its_line_and_the_replacement(
    tmp_path: Path, rules: list[english.Rule]
) -> None:
    (tmp_path / "a.md").write_text("\nEach door.\n")
    assert list(check(tmp_path, ["a.md"], rules, ())) == [
        "a.md:2: instead of 'door': entry point",
    ]


def test_listed_path_is_skipped_and_must_leave_the_list_when_clean(
    tmp_path: Path, rules: list[english.Rule]
) -> None:
    for name, text in {"old/a.md": "Each door.", "old/b.md": "Fine.", "new/c.md": "Fine."}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    files = ["new/c.md", "old/a.md", "old/b.md"]
    assert list(check(tmp_path, files, rules, ["old"])) == []
    [problem] = check(tmp_path, files, rules, ["old", "new", "old/a.md"])
    assert "'new' has no phrase to avoid: remove it" in problem
    [problem] = check(tmp_path, files, rules, ["old", "gone"])
    assert "'gone'" in problem


def test_each_rule_of_the_project_matches_its_own_phrases() -> None:
    for phrases, pattern, use in load_rules(english.HERE / "english.toml"):
        for phrase in phrases:
            match = pattern.search(f"Then {phrase} ends.")
            assert match is not None, phrase
            assert match[1] == phrase
        assert use


@pytest.mark.parametrize(
    "right",
    [
        "The docs are in the second person.",
        "Other people's files stay.",
        "A session of its own.",
        "A process with its own files.",
        "Go on the page.",
        "From 1.0 on, names warn first.",
        "It is not far from 1.5 seconds.",
        "See tests/kernel/doors.py and notebooks/doors.",
        "Besides, hands-on guides help.",
        "What he said often was true.",
    ],
)
def test_correct_english_is_no_match(right: str, tmp_path: Path) -> None:
    rules = load_rules(english.HERE / "english.toml")
    assert found(tmp_path, "a.md", right, rules) == []
