"""The pages with measurements: tables of the latest figures, and plots with earlier ones."""

from __future__ import annotations

from pathlib import Path

from bench import proof
from bench.kept import keep
from bench.table import Table

HEAD = ("by", "ms", "aim")


def table(panel: str, cell: str) -> Table:
    rows = [("panel", panel, "<= 5"), ("cell | line", cell, "<= 5")]
    return Table("stop: from a press to the end\nnever: not in 10 s", HEAD, rows, 7.5)


def test_page_shows_the_latest_table_with_a_plot_of_all_runs(
    tmp_path: Path,
) -> None:
    from docs.figure_pages import write

    keep([table("10", "11")], tmp_path)
    keep([table("12", "13 (12-14)")], tmp_path)
    write(tmp_path, tmp_path)
    page = (tmp_path / "figures.md").read_text()
    assert page.count("## Stop") == 1
    assert "| cell \\| line | 13 (12-14) | \\<= 5 |" in page
    assert "load of the machine: 7.5" in page
    assert "![stop](figures-stop.svg)" in page
    assert (tmp_path / "figures-stop.svg").read_text().count("<svg") == 1


def test_without_figures_the_page_says_how_to_measure(tmp_path: Path) -> None:
    from docs.figure_pages import write

    write(tmp_path / "none", tmp_path)
    assert "`make bench" in (tmp_path / "figures.md").read_text()


def test_proof_page_has_a_section_for_each_table() -> None:
    page = proof.page([table("never", "1.5")])
    assert "## Stop\n\n- from a press to the end\n- never: not in 10 s\n" in page
    assert "- load of the machine: 7.5\n" in page
    assert "| panel | never | \\<= 5 |" in page
    assert "- nb_agents: a run stopped by" in page
