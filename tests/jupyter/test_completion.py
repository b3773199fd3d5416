"""Tab completion of the magics' arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from nb_agents import RunOptions
from nb_agents.jupyter.completion import completions
from nb_agents.testing import Answer, Gate, ScriptedModel
from tests.kit.cells import VERBS
from tests.team_kit import finish, start


def test_completion_offers_verbs_or_options_first() -> None:
    assert completions("%agents sto", {}) == ["stop"]
    assert completions("%agents ", {}) == [verb for verb in VERBS if verb]
    assert "--recipe" in completions("%agents --re", {})


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%%agents --confi", ["--config"]),
        ("%%agents --model m --ses", ["--session", "--session-root"]),
        ("%agents stop --n", ["--now"]),
        ("%agents stop r1 --agent ", []),
        ("%agents nonsense --", []),
        ("%agents", []),
        ("%%agents", []),
        ("sorted(--con", []),
    ],
)
def test_completion_offers_the_options_of_each_magic(line: str, offered: list[str]) -> None:
    assert completions(line, {}) == offered


def test_completion_offers_the_values_of_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("team.yaml", "teams.txt", ".hidden.yaml", "two words.yaml"):
        Path(name).touch()
    Path("teams").mkdir()
    Path("teams/large.json").touch()
    assert completions("%%agents --config te", {}) == ["team.yaml", "teams/"]
    assert completions("%%agents -c teams/", {}) == ["teams/large.json"]
    assert completions("%agents check no/such/", {}) == []
    names = {"query": lambda: 0, "quiet": RunOptions(), "_q": lambda: 0}
    assert completions("%%agents --tools q", names) == ["query"]
    assert completions("%%agents --tools query,q", names) == ["query,query"]
    assert completions("%%agents --options q", names) == ["quiet"]


def test_completion_offers_runs_and_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path))
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    gate.wait_reached()
    try:
        assert run.id in completions("%agents stop ", {})
        assert completions(f"%agents show {run.session[:-1]}", {}) == [run.session]
        assert completions("%agents resume ", {}) == [run.session]
    finally:
        gate.open()
        finish(run)
