"""Golden files of the public surface of nb_agents; see `tests.golden`."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.golden.files import REGENERATE, ROOT, golden_files, leftover_files
from tests.golden.projections import FOLD_SECTIONS, same_everywhere
from tests.golden.stored import missing_kinds, unread_journals
from tests.kit.views import FOLDS

FILES = golden_files()
MAX_LINES = 80
"""Lines of a difference that are shown."""


@pytest.fixture(autouse=True)
def _same_everywhere() -> Iterator[None]:
    with same_everywhere():
        yield


@pytest.mark.parametrize("path", FILES, ids=str)
def test_golden_file_matches_the_code(path: Path) -> None:
    file = ROOT / path
    before, now = file.read_text("utf-8") if file.exists() else "", FILES[path]()
    if before != now:
        lines = [
            *unified_diff(before.splitlines(), now.splitlines(), str(path), "now", lineterm="")
        ]
        more = [f"… {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
        said = f"If this change is meant, run `{REGENERATE}` and commit what it writes."
        pytest.fail("\n".join([f"{path} differs:", *lines[:MAX_LINES], *more, said]), pytrace=False)


def test_every_golden_file_has_a_generator() -> None:
    assert leftover_files() == [], f"run `{REGENERATE}`"


def test_every_stored_journal_is_read_whole() -> None:
    assert unread_journals() == {}


def test_every_kind_of_event_is_in_a_stored_journal() -> None:
    assert missing_kinds() == [], f"run `{REGENERATE}`"


def test_each_registered_fold_is_in_the_golden_files() -> None:
    assert set(FOLDS) == set(FOLD_SECTIONS)
