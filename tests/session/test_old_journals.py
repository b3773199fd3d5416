"""Sessions written by earlier minor versions can be read and continued.

`journals/` keeps one of each: two demo agents, stopped when one had answered. It is a stranger's
session here, so that going on takes a word of trust.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from tests.kit.sessions import load_session
from tests.team_kit import WAIT_S

JOURNALS = Path(__file__).parent / "journals"
VERSIONS = sorted(path.name for path in JOURNALS.iterdir())


@pytest.fixture(params=VERSIONS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A session root with a session of the given version."""
    shutil.copytree(JOURNALS / request.param, tmp_path / "sessions")
    return tmp_path / "sessions"


def test_each_minor_version_has_a_stored_session() -> None:
    minor = nb_agents.__version__.rpartition(".")[0]
    assert minor in VERSIONS


def test_old_session_loads_completely(root: Path) -> None:
    [turn] = load_session(root / "kept").turns
    assert turn.view.task == "Compare two caches."
    assert [bool(agent.answers) for agent in turn.view.agents.values()] == [True, False]
    assert turn.view.stop is not None


def test_resumed_old_turn_repeats_no_finished_call(root: Path) -> None:
    [past] = load_session(root / "kept").turns
    [answer] = past.view.agents["ada"].answers
    run = nb_agents.resume("kept", options=RunOptions(session_root=root, trust=True))
    assert run.wait(WAIT_S)
    assert run.view.agents["ada"].answers[0] == answer
    assert all(agent.answers for agent in run.view.agents.values())


def test_old_session_can_be_continued(root: Path) -> None:
    options = RunOptions(session_root=root, trust=True)
    run = nb_agents.start("And now?", session="kept", continue_=True, options=options)
    assert run.wait(WAIT_S)
    assert run.turn == 2
