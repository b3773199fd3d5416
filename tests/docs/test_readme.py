"""The README is one screen and a half, and all that it points at is there."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text("utf-8")
PICTURE = ROOT / "notebooks" / "images" / "stop-and-resume.gif"


def test_it_has_at_most_120_lines_and_900_words() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 900


def test_its_picture_moves_and_is_small() -> None:
    assert f"({PICTURE.relative_to(ROOT).as_posix()})" in README
    gif = PICTURE.read_bytes()
    assert len(gif) <= 600_000
    assert gif.startswith(b"GIF89a")
    assert gif.count(b"\x21\xf9\x04") > 10  # frames


def test_every_link_of_the_pages_at_the_top_leads_to_a_file() -> None:
    for page in ROOT.glob("*.md"):
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))
        assert [link for link in links if not (ROOT / link).exists()] == [], page.name
