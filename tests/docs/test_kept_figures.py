"""Benchmarks are kept as JSON, and compared with what was kept last."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.kept import KEPT, changes, figures, keep
from tests.bench.table import Table


def table(ms: str) -> Table:
    return Table("stop: from a press to the end", ("by", "ms", "aim"), [("panel", ms, "met")])


def test_a_figure_is_the_number_that_a_cell_begins_with() -> None:
    assert figures([table("12.5 (10-14)")]) == {"stop / panel / ms": 12.5}


def test_no_figure_of_a_kept_run_has_the_name_of_another() -> None:
    for file in KEPT.glob("*.json"):
        found = json.loads(file.read_text("utf-8"))
        tables = [Table(**each) for each in found["tables"]]
        names = [name for each in tables for name in figures([each])]
        assert len(names) == len(set(names)), file.name
        assert figures(tables) == found["figures"], file.name


def test_a_figure_that_is_a_fifth_more_than_the_last_one_is_named(tmp_path: Path) -> None:
    assert keep([table("10")], tmp_path) == []
    assert keep([table("11")], tmp_path) == []
    assert keep([table("15 (1-20)")], tmp_path) == ["stop / panel / ms: 11 -> 15 (+36%)"]
    newest = max(tmp_path.glob("*.json"))
    assert json.loads(newest.read_text())["figures"] == {"stop / panel / ms": 15}


def test_what_was_not_measured_before_has_not_changed() -> None:
    assert changes({}, {"a": 1.0}) == []
    assert changes({"a": 0.0}, {"a": 1.0}) == ["a: 0 -> 1 (+inf%)"]
