"""A run's files: what stands in the place of a session's own keeps no turn from ending."""

from __future__ import annotations

from pathlib import Path

from nb_agents.testing import Answer, Gate, ScriptedModel, Vote
from tests.team_kit import finish, metadata, start


def test_a_turn_ends_beside_a_summary_that_is_a_directory_and_says_so(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, ada=ScriptedModel(Answer("Done.", gate=gate), Vote("agent1")))
    gate.wait_reached()
    (run.path.parent / "SESSION_SUMMARY.txt").mkdir()
    gate.open()
    finish(run)
    assert (run.status, run.result) == ("completed", "Done.")
    assert "status" not in metadata(run)
    assert run.view.notices == (
        "SESSION_SUMMARY.txt can't be written: Is a directory. It is left as it is.",
    )
    assert run.view.is_saved
