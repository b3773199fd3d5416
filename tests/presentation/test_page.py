"""The page of a session is readable on its own, makes no request and runs no script."""

from __future__ import annotations

import re
from pathlib import Path

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


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of a turn of three agents that write hostile text, files and a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path / "sessions"))
    files = {"notes.md": EVIL + KEY, "big.txt": "word " * 50_000, "</pre><script>.py": "x = 1"}
    write = Turn(
        calls=tuple(
            Call("write_file", {"path": name, "content": content})
            for name, content in files.items()
        )
    )
    models = {
        name: ScriptedModel(write, Answer(f"{EVIL} by {name}"), Vote("agent1"))
        for name in ("ada", "ben", "cleo")
    }
    options = RunOptions(session_root=tmp_path / "sessions")
    run = nb_agents.start(f"Compare {EVIL}", scripted_team(None, **models), "s", options=options)
    run.wait(WAIT_S)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    written = told_here("export", "s", "--html")
    assert written["bytes"] < MAX_BYTES
    return Path(written["path"]).read_text()


def test_page_is_valid_and_forbids_scripts_and_requests(page: str) -> None:
    read = Page(page)
    assert read.open == []
    tags = {tag for tag, _ in read.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base"}
    policies = [a["content"] or "" for tag, a in read.tags if a.get("http-equiv")]
    assert [policy.startswith("default-src 'none'") for policy in policies] == [True]
    for _, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("src") or "data:").startswith("data:")
        assert not (attributes.get("href") or "").lower().startswith("javascript:")
    assert not re.search(r"url\(|@import", "".join(re.findall(r"<style>.*?</style>", page, re.S)))


def test_page_has_timeline_agents_files_and_receipt_but_no_key(page: str) -> None:
    assert "<svg" in page and "prefers-color-scheme" in page
    assert all(f"by {agent}" in page for agent in ("ada", "ben", "cleo"))
    assert "x = 1" in page and "[… cut]" in page
    assert "<th>outcome</th>" in page and "finished" in page
    assert KEY not in page and "[key]" in page


def test_page_does_not_replace_a_file(page: str) -> None:
    assert "already exists" in call_here_refused("export", "s", "--html")


def call_here_refused(*words: str) -> str:
    with pytest.raises(nb_agents.UserError) as refused:
        call_here(*words, code=USAGE)
    return str(refused.value)
