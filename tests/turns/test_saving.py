"""A run's files: unexpected files in a session do not prevent the end of a turn."""

from __future__ import annotations

from pathlib import Path

from nb_agents.testing import Answer, Gate, ScriptedModel, Vote
from tests.team_kit import finish, metadata, start


def test_turn_ends_if_the_summary_file_is_a_directory(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, ada=ScriptedModel(Answer("Done.", gate=gate), Vote("agent1")))
    gate.wait_reached()
    (run.path.parent / "SESSION_SUMMARY.txt").mkdir()
    gate.open()
    finish(run)
    assert (run.status, run.result) == ("completed", "Done.")
    assert "status" not in metadata(run)
    assert run.view.notices == (
        "SESSION_SUMMARY.txt can't be written: Is a directory. It was not changed.",
    )
    assert run.view.is_saved
