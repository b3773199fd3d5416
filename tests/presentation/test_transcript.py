"""An agent's transcript, from the journal of a turn."""

from __future__ import annotations

from pathlib import Path

from nb_agents.presentation.transcript import read_transcript
from nb_agents.testing import Answer, ScriptedModel, Vote
from tests.kit.sessions import TurnPaths
from tests.team_kit import finish, start


def test_transcript_has_an_agents_text_in_order(tmp_path: Path) -> None:
    run = start(
        tmp_path,
        ada=ScriptedModel(Answer("Use mmap.", text="I think "), Vote("ada", "it is mine")),
        ben=ScriptedModel(Answer("Use Redis."), Vote("ada", "faster")),
    )
    finish(run)
    told = read_transcript(TurnPaths(run.path), "ben")
    assert ("answer", "Use Redis.") in [(each["kind"], each["text"]) for each in told["pieces"]]
    assert "Use mmap." not in [each["text"] for each in told["pieces"]]


def test_transcript_continues_at_the_given_position(tmp_path: Path) -> None:
    run = start(tmp_path, ada=ScriptedModel(Answer("Use mmap.", text="I think ")))
    finish(run)
    paths = TurnPaths(run.path)
    first = read_transcript(paths, "ada")
    assert first["end"] == paths.journal.stat().st_size and not first["more"]
    assert read_transcript(paths, "ada", first["end"])["pieces"] == []
