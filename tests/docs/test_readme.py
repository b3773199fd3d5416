"""The README fits on one and a half screens, and everything that it links to exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.blocks import ROOT
from tests.docs.reader import Reader

README = (ROOT / "README.md").read_text("utf-8")
PICTURE = ROOT / "notebooks" / "images" / "stop-and-resume.gif"


def test_readme_has_at_most_120_lines_and_900_words() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 900


def test_readme_picture_is_animated_and_small() -> None:
    assert f"({PICTURE.relative_to(ROOT).as_posix()})" in README
    gif = PICTURE.read_bytes()
    assert len(gif) <= 600_000
    assert gif.startswith(b"GIF89a")
    assert gif.count(b"\x21\xf9\x04") > 10  # frames


def test_every_link_of_the_top_level_pages_leads_to_a_file() -> None:
    for page in ROOT.glob("*.md"):
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
        assert [link for link in links if not (ROOT / link).exists()] == [], page.name


def test_readme_examples_run_in_order_without_the_stop_and_the_resume(tmp_path: Path) -> None:
    with Reader(tmp_path, ROOT / "README.md") as reader:
        reader.try_page(without="%agents (stop|resume)")
        assert reader.failed == []
