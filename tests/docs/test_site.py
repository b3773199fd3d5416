"""The HTML of the reference shows help and keys exactly as written."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs import reference_pages as reference
from tests.docs.site import build_reference
from tests.kit.cells import VERBS, AgentsMagics
from tests.kit.recipes import Recipe
from tests.kit.teams import TeamSpec


class Shown(HTMLParser):
    """The text of a page, without markup. Text in different blocks is separated by a space."""

    INLINE = ("a", "code", "em", "span", "strong")

    def __init__(self, page: Path) -> None:
        super().__init__()
        self._parts: list[str] = []
        self.feed(page.read_text("utf-8"))
        self.text = " ".join("".join(self._parts).split())

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._parts.append("" if tag in self.INLINE else " ")

    def handle_data(self, data: str) -> None:
        self._parts.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_reference(tmp_path_factory.mktemp("site")) / "reference"


def missing(page: Path, texts: list[str]) -> list[str]:
    shown = Shown(page).text
    return [text for text in texts if " ".join(text.split()) not in shown]


def test_pages_of_magics_and_commands_show_help_literally(site: Path) -> None:
    magics = [AgentsMagics.agents, *VERBS.values()]
    prose = [part for magic in magics for part in reference.prose_of(magic).split("\n\n")]
    options = [help_ for magic in magics for *_, help_ in reference.options_of(magic)]
    assert any(r"\{{name}}" in text for text in prose + options)
    assert missing(site / "magics.html", prose + options) == []
    commands = reference.commands().values()
    helps = [part for command in commands for part in command.help.split("\n\n")]
    helps += [getattr(p, "help", "") or "" for command in commands for p in command.params]
    assert missing(site / "command-line.html", helps) == []


def test_options_have_hyphens_and_no_dashes(site: Path) -> None:
    shown = Shown(site / "magics.html").text
    assert "--over" in shown
    assert "–over" not in shown and "—over" not in shown


def test_pages_of_files_show_the_full_description_of_each_key(site: Path) -> None:
    for spec, page in ((TeamSpec, "team-file"), (Recipe, "recipe-language")):
        about = [text.replace("`", "") for *_, text in reference.spec_keys(spec)]
        assert missing(site / f"{page}.html", about) == []
