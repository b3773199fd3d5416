"""The page of a session is readable on its own, makes no request and runs no script."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, Vote, scripted_team
from tests.cli.calls import call_here, told_here
from tests.kit.terminal import USAGE
from tests.presentation.test_cards import EVIL, Page
from tests.team_kit import WAIT_S

KEY = "sk-proj-1f9Qz7LmX02p"
MAX_BYTES = 500_000


class Exported(NamedTuple):
    """A session's zip file and page, and the page's text."""

    archive: Path
    page: Path
    text: str


def write(**files: str) -> Turn:
    calls = [Call("write_file", {"path": n, "content": c}) for n, c in files.items()]
    return Turn(calls=tuple(calls))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """The export of two turns of three agents that write hostile text, files and a key."""
    place = tmp_path_factory.mktemp("page")
    code = "</pre><script>.py"
    first = {"notes.md": EVIL + KEY, "big.txt": "word " * 5_000, code: "x = 1\ny = 2\n"}
    second = {code: "x = 1\ny = 3\n"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("NB_AGENTS_SESSIONS", str(place / "sessions"))
        models = {
            name: ScriptedModel(write(**first), Answer(f"{EVIL} by {name}"), Vote("agent1"))
            for name in ("ada", "ben", "cleo")
        }
        options = RunOptions(session_root=place / "sessions")
        team = scripted_team(None, **models)
        nb_agents.start(f"Compare {EVIL}", team, "s", options=options).wait(WAIT_S)
        team = scripted_team(ada=ScriptedModel(write(**second), Answer("Corrected.")))
        nb_agents.start("Correct y", team, "s", True, options=options).wait(WAIT_S)
        patch.setenv("OPENAI_API_KEY", KEY)
        written = told_here("export", "s", "--html")
        assert written["page_bytes"] < MAX_BYTES
        page = Path(written["page"])
        yield Exported(Path(written["path"]), page, page.read_text())


def test_page_is_valid_and_forbids_scripts_and_requests(exported: Exported) -> None:
    read = Page(exported.text)
    assert read.open == []
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base"}
    policies = [a["content"] or "" for tag, a in read.tags if a.get("http-equiv")]
    assert [policy.startswith("default-src 'none'") for policy in policies] == [True]
    for _, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("src") or "data:").startswith("data:")
        assert not (attributes.get("href") or "").lower().startswith("javascript:")
    styles = "".join(re.findall(r"<style>.*?</style>", exported.text, re.S))
    assert not re.search(r"url\(|@import", styles)


def test_page_has_timeline_agents_files_diffs_and_receipt_but_no_key(exported: Exported) -> None:
    page = exported.text
    assert "<svg" in page and "prefers-color-scheme" in page
    assert all(f"by {agent}" in page for agent in ("ada", "ben", "cleo"))
    assert "x = 1" in page and "[… cut]" in page
    assert "· changes</summary>" in page and "-y = 2\n+y = 3" in page
    assert "<th>outcome</th>" in page and "finished" in page
    assert KEY not in page and "[key]" in page


def test_archive_next_to_the_page_is_trusted_elsewhere_only_after_a_confirmation(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exported.archive == exported.page.with_suffix(".zip")
    assert f"unzip {exported.archive.name}" in exported.text
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home of another"))
    with zipfile.ZipFile(exported.archive) as archive:
        archive.extractall(tmp_path / "sessions")
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path / "sessions"))
    assert "Correct y" in call_here("show", "s")
    team = scripted_team(ada=ScriptedModel(Answer("Mine.")))
    with pytest.raises(nb_agents.UserError, match="trust"):
        nb_agents.start("More", team, "s", continue_=True)
    trusted = RunOptions(trust=True)
    run = nb_agents.start("More", team, "s", continue_=True, options=trusted)
    run.wait(WAIT_S)
    assert run.status == "completed"


def test_page_does_not_replace_a_file(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(exported.page.parent / "sessions"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.html").write_text("mine")
    with pytest.raises(nb_agents.UserError, match="already exists"):
        call_here("export", "s", "--html", code=USAGE)
    assert (tmp_path / "s.html").read_text() == "mine" and not (tmp_path / "s.zip").exists()
