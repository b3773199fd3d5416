"""The pages of what was measured: tables as they were last, and plots of what was before, too."""

from __future__ import annotations

from pathlib import Path

from tests.bench import proof
from tests.bench.kept import keep
from tests.bench.table import Table

HEAD = ("by", "ms", "aim")


def table(panel: str, cell: str) -> Table:
    rows = [("panel", panel, "<= 5"), ("cell | line", cell, "<= 5")]
    return Table("stop: from a press to the end\nnever: not in 10 s", HEAD, rows, 7.5)


def test_a_kept_table_is_on_the_page_as_it_was_measured_last_with_a_plot_of_all(
    tmp_path: Path,
) -> None:
    from docs.figure_pages import write

    keep([table("10", "11")], tmp_path)
    keep([table("12", "13 (12-14)")], tmp_path)
    write(tmp_path, tmp_path)
    page = (tmp_path / "figures.md").read_text()
    assert page.count("## Stop") == 1
    assert "| cell \\| line | 13 (12-14) | \\<= 5 |" in page
    assert "the machine's load was 7.5" in page
    assert "![stop](figures-stop.svg)" in page
    assert (tmp_path / "figures-stop.svg").read_text().count("<svg") == 1


def test_without_figures_the_page_says_how_to_measure(tmp_path: Path) -> None:
    from docs.figure_pages import write

    write(tmp_path / "none", tmp_path)
    assert "`make bench" in (tmp_path / "figures.md").read_text()


def test_the_proof_is_a_page_with_a_section_for_each_table() -> None:
    page = proof.page([table("never", "1.5")])
    assert "## Stop\n\n- from a press to the end\n- never: not in 10 s\n" in page
    assert "- the machine's load: 7.5\n" in page
    assert "| panel | never | \\<= 5 |" in page
    assert "- nb_agents: a run stopped by" in page
