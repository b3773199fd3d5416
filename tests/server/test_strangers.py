"""Resuming and continuing another user's session over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import Client, RunOptions
from nb_agents.errors import UserError
from tests.kit.sessions import turns_of
from tests.kit.teams import TeamSpec
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S

NOT_YOURS = "was not created by you"
DEMO = {"agents": [{"id": "ada", "backend": {"type": "demo", "words_per_second": 10_000}}]}
RECIPE = """\
name: build
description: Builds.
version: 1.0.0
steps:
  - id: make
    type: bash
    command: echo x >> {ran}; exit 1
"""


@pytest.fixture
def ran(tmp_path: Path) -> Callable[[], int]:
    """Return how often the recipe's command has run."""
    return lambda: (tmp_path / "ran").read_text().count("x")


@pytest.fixture
def theirs(
    jupyter: JupyterServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Create a session of another user, in which a command has failed."""
    (tmp_path / "build.yaml").write_text(RECIPE.format(ran=tmp_path / "ran"))
    with monkeypatch.context() as as_another:
        as_another.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
        run = nb_agents.start(
            session="theirs",
            config=TeamSpec.model_validate(DEMO),
            recipe=tmp_path / "build.yaml",
            options=RunOptions(session_root=jupyter.sessions),
        )
        run.wait(WAIT_S, raise_on_stop=False)
    yield run.path.parent
    wait_until(lambda: not any(turn.is_live() for turn in turns_of(run.path.parent)))


Ask = Callable[[JupyterServer, str, bool], Any]
BY_HTTP: dict[str, Ask] = {
    "resume": lambda server, name, trust: server.post(
        f"runs/{name}/turn_1/resume", {"trust": trust}
    ),
    "continue": lambda server, name, trust: server.post(
        f"sessions/{name}/continue", {"task": "Why?", "trust": trust}
    ),
    "start": lambda server, name, trust: server.post(
        "runs", {"task": "Why?", "session": "theirs", "trust": trust}
    ),
}


@pytest.mark.parametrize("ask", BY_HTTP)
def test_session_of_another_user_needs_trust_over_http(
    ask: str, jupyter: JupyterServer, theirs: Path, ran: Callable[[], int]
) -> None:
    refused = BY_HTTP[ask](jupyter, jupyter.name(theirs), False)
    assert refused.status_code == 428
    assert NOT_YOURS in refused.json()["message"] and "model of" in refused.json()["message"]
    assert len(turns_of(theirs)) == 1 and ran() == 1
    taken = BY_HTTP[ask](jupyter, jupyter.name(theirs), True)
    assert taken.status_code == 202, taken.text
    wait_until(lambda: not any(turn.is_live() for turn in turns_of(theirs)))
    assert len(turns_of(theirs)) == 2
    again = jupyter.post(f"sessions/{jupyter.name(theirs)}/continue", {"task": "And?"})
    assert again.status_code == 202, again.text


def test_client_can_confirm_trust(
    jupyter: JupyterServer, theirs: Path, ran: Callable[[], int]
) -> None:
    with Client(jupyter.base, jupyter.token) as client:
        name = f"{jupyter.name(theirs)}/turn_1"
        with pytest.raises(UserError, match=NOT_YOURS) as refused:
            client.resume(name)
        assert "command of make: echo x >>" in str(refused.value)
        with pytest.raises(UserError, match=NOT_YOURS):
            client.start("Why?", session="theirs")
        assert ran() == 1
        client.resume(name, trust=True)
        wait_until(lambda: ran() == 2)
