"""Results of benchmarks are stored as JSON, and compared with the previous results."""

from __future__ import annotations

import json
from pathlib import Path

from bench.kept import KEPT, changes, figures, keep
from bench.table import Table


def table(ms: str) -> Table:
    return Table("stop: from a press to the end", ("by", "ms", "aim"), [("panel", ms, "met")])


def test_figure_is_the_number_at_the_start_of_a_cell() -> None:
    assert figures([table("12.5 (10-14)")]) == {"stop / panel / ms": 12.5}


def test_figures_of_stored_runs_have_distinct_names() -> None:
    for file in KEPT.glob("*.json"):
        found = json.loads(file.read_text("utf-8"))
        tables = [Table(**each) for each in found["tables"]]
        names = [name for each in tables for name in figures([each])]
        assert len(names) == len(set(names)), file.name
        assert figures(tables) == found["figures"], file.name


def test_figure_that_grew_by_a_fifth_is_reported(tmp_path: Path) -> None:
    assert keep([table("10")], tmp_path) == []
    assert keep([table("11")], tmp_path) == []
    assert keep([table("15 (1-20)")], tmp_path) == ["stop / panel / ms: 11 -> 15 (+36%)"]
    newest = max(tmp_path.glob("*.json"))
    assert json.loads(newest.read_text())["figures"] == {"stop / panel / ms": 15}


def test_figure_without_an_earlier_value_counts_as_unchanged() -> None:
    assert changes({}, {"a": 1.0}) == []
    assert changes({"a": 0.0}, {"a": 1.0}) == ["a: 0 -> 1 (+inf%)"]
