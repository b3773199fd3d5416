"""Sessions that earlier minor versions wrote are read, and gone on with.

`journals/` keeps one of each: two demo agents, stopped when one had answered. It is a stranger's
session here, so that going on takes a word of trust.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.session.history import load_session
from tests.team_kit import WAIT_S

JOURNALS = Path(__file__).parent / "journals"
VERSIONS = sorted(path.name for path in JOURNALS.iterdir())


@pytest.fixture(params=VERSIONS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A session root with a session of that version."""
    shutil.copytree(JOURNALS / request.param, tmp_path / "sessions")
    return tmp_path / "sessions"


def test_there_is_a_session_of_each_minor_version_up_to_this_one() -> None:
    minor = nb_agents.__version__.rpartition(".")[0]
    assert minor in VERSIONS


def test_an_old_session_is_read_whole(root: Path) -> None:
    [turn] = load_session(root / "kept").turns
    assert turn.view.task == "Compare two caches."
    assert [bool(agent.answers) for agent in turn.view.agents.values()] == [True, False]
    assert turn.view.stop is not None


def test_an_old_turn_is_resumed_and_pays_for_no_finished_call_again(root: Path) -> None:
    [past] = load_session(root / "kept").turns
    [answer] = past.view.agents["ada"].answers
    run = nb_agents.resume("kept", options=RunOptions(session_root=root, trust=True))
    assert run.wait(WAIT_S)
    assert run.view.agents["ada"].answers[0] == answer
    assert all(agent.answers for agent in run.view.agents.values())


def test_an_old_session_gets_another_turn(root: Path) -> None:
    options = RunOptions(session_root=root, trust=True)
    run = nb_agents.start("And now?", session="kept", continue_=True, options=options)
    assert run.wait(WAIT_S)
    assert run.turn == 2
