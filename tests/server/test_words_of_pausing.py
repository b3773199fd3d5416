"""Pause, unpause, continue and resume have one meaning in all user interfaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import pytest
import typer

import nb_agents
from nb_agents import Client, Run, RunOptions
from nb_agents.events import Continued, Paused
from tests.cli.calls import call_here
from tests.kit.cells import verbs
from tests.kit.servers import document
from tests.kit.sessions import turns_of
from tests.kit.teams import TeamSpec
from tests.kit.terminal import app
from tests.magics import magics
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S, events, finish, kill_writers

WORDS = {"pause", "unpause", "continue", "resume"}


class Interface(NamedTuple):
    """A user interface: where it declares its words, and how a user sends one for a run."""

    declared: Callable[[], Collection[str]]
    send: Callable[[JupyterServer, Run, str], object]

    @property
    def words(self) -> set[str]:
        return {*self.declared()} & WORDS


def by_python(jupyter: JupyterServer, run: Run, word: str) -> None:
    getattr(run, word)()


def by_cell(jupyter: JupyterServer, run: Run, word: str) -> None:
    magics().agents_line(f"{word} {run.path.parent}")


def by_command(jupyter: JupyterServer, run: Run, word: str) -> None:
    call_here(word, str(run.path.parent))


def by_rest(jupyter: JupyterServer, run: Run, word: str) -> None:
    answer = jupyter.post(f"runs/{jupyter.name(run.path)}/{word}")
    assert answer.status_code == 202, answer.text


def by_client(jupyter: JupyterServer, run: Run, word: str) -> None:
    with Client(jupyter.base, jupyter.token) as client:
        getattr(client, word)(jupyter.name(run.path))


def commands() -> Collection[str]:
    return typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]


def routes() -> Collection[str]:
    prefix = "/runs/{id}/"
    return {path.removeprefix(prefix) for path in document("/")["paths"] if prefix in path}


INTERFACES = {
    "Python": Interface(lambda: dir(Run), by_python),
    "cells": Interface(lambda: [*verbs.VERBS, *verbs.ALIASES], by_cell),
    "command line": Interface(commands, by_command),
    "REST": Interface(routes, by_rest),
    "Client": Interface(lambda: dir(Client), by_client),
}


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A server that does not finish its first reply."""
    replies = iter([Reply(text="I think so", hang_after=1)])
    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": "So."}),))
    vote = Reply(tool_calls=(ToolCall("vote", {"agent_id": "agent1", "reason": "good"}),))
    rest = iter([answer, vote])
    with ModelServer(lambda _: next(replies, None) or next(rest, Reply(text="So."))) as server:
        yield server


@pytest.fixture
def run(jupyter: JupyterServer, server: ModelServer) -> Iterator[Run]:
    team = TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": server.backend("openai", model="m")}]}
    )
    run = nb_agents.start("Why?", team, options=RunOptions(session_root=jupyter.sessions))
    wait_until(lambda: run.view.agents["a"].unsubmitted, WAIT_S, "the first word")
    yield run
    # The resumed turn too: the next test's session may get the same name.
    for turn in nb_agents.runs(root=jupyter.sessions):
        turn.stop(now=True)
        turn.wait(WAIT_S, raise_on_stop=False)
    kill_writers(jupyter.root)


def test_all_interfaces_have_the_words() -> None:
    """The old name "continue" works where users may have stored it."""
    assert {name: WORDS - each.words for name, each in INTERFACES.items()} == {
        "Python": {"continue"},
        "cells": set(),
        "command line": set(),
        "REST": {"continue"},
        "Client": {"continue"},
    }


@pytest.mark.parametrize("name", INTERFACES)
def test_words_pause_unpause_and_resume(name: str, jupyter: JupyterServer, run: Run) -> None:
    interface = INTERFACES[name]
    ends = sorted(interface.words & {"unpause", "continue"})
    for word in ends:
        interface.send(jupyter, run, "pause")
        wait_until(lambda: run.view.is_paused, WAIT_S, "the pause")
        interface.send(jupyter, run, word)
        wait_until(lambda: not run.view.is_paused, WAIT_S, "the end of the pause")
    assert len(events(run, Paused)) == len(events(run, Continued)) == len(ends)
    run.stop(now=True)
    finish(run)
    interface.send(jupyter, run, "resume")
    wait_until(lambda: len(turns_of(run.path.parent)) == 2, WAIT_S, "the next turn")
