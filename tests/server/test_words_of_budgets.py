"""A budget can be given in all user interfaces, and means the same in each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import nb_agents
from nb_agents import Client, RunOptions
from nb_agents.errors import NbAgentsError
from tests.cli.calls import call_here
from tests.kit.sessions import sessions_in, turns_of
from tests.kit.terminal import COMPLETE, USAGE
from tests.magics import magics
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S

BAD = ("-1", "0", "nan", "inf", "1e999", "many")
"""Budgets that are no numbers above 0."""


def number(text: str) -> object:
    """Return the number in a text, or the text."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def by_python(jupyter: JupyterServer, team: Path, name: str, value: str) -> str:
    try:
        options = RunOptions(session_root=jupyter.sessions, **{name: number(value)})  # type: ignore[arg-type]
        nb_agents.start("t", str(team), options=options).wait(WAIT_S)
    except NbAgentsError as exc:
        return str(exc)
    return ""


def by_cell(jupyter: JupyterServer, team: Path, name: str, value: str) -> str:
    flags = f"--config {team} --session-root {jupyter.sessions} --{name.replace('_', '-')}={value}"
    try:
        magics().agents(f"--wait {flags}", "t")
    except UsageError as exc:
        return str(exc)
    return ""


def by_command(jupyter: JupyterServer, team: Path, name: str, value: str) -> str:
    flag = f"--{name.replace('_', '-')}={value}"
    words = ("run", "t", "--config", str(team), "--session-root", str(jupyter.sessions), flag)
    try:
        said = call_here(*words, code=USAGE if value in BAD else COMPLETE)
    except NbAgentsError as exc:  # `main` shows it
        return str(exc)
    return said if value in BAD else ""


def by_rest(jupyter: JupyterServer, team: Path, name: str, value: str) -> str:
    body = json.dumps({"task": "t", "config": team.name, name: number(value)})  # NaN, too
    answer = jupyter.client.post(f"{jupyter.url}/runs", content=body)
    return "" if answer.status_code == 202 else answer.text


def by_client(jupyter: JupyterServer, team: Path, name: str, value: str) -> str:
    try:
        with Client(jupyter.base, jupyter.token) as client:
            client.start("t", config=team.name, **{name: number(value)})
    except (NbAgentsError, ValueError) as exc:
        return str(exc)
    return ""


INTERFACES: dict[str, Callable[[JupyterServer, Path, str, str], str]] = {
    "Python": by_python,
    "cells": by_cell,
    "command line": by_command,
    "REST": by_rest,
    "Client": by_client,
}


@pytest.fixture
def team(jupyter: JupyterServer) -> Path:
    path = jupyter.root / "team.yaml"
    path.write_text("agents:\n  - {id: ada, backend: {type: demo, words_per_second: 1000}}\n")
    return path


@pytest.mark.parametrize("name", ["max_cost", "max_tokens"])
@pytest.mark.parametrize("interface", INTERFACES)
def test_budget_that_is_no_number_above_0_is_refused_before_anything_starts(
    interface: str, name: str, jupyter: JupyterServer, team: Path
) -> None:
    before = len(sessions_in(jupyter.sessions).by_use)
    said = {value: INTERFACES[interface](jupyter, team, name, value) for value in BAD}
    assert all(name in each or name.replace("_", "-") in each for each in said.values()), said
    assert not any("Traceback" in each for each in said.values())
    assert len(sessions_in(jupyter.sessions).by_use) == before


@pytest.mark.parametrize("interface", INTERFACES)
def test_budget_of_a_start_is_in_its_journal(
    interface: str, jupyter: JupyterServer, team: Path
) -> None:
    before = {*sessions_in(jupyter.sessions).by_use}
    assert INTERFACES[interface](jupyter, team, "max_tokens", "90000") == ""

    def new() -> set[Path]:
        return {*sessions_in(jupyter.sessions).by_use} - before

    wait_until(lambda: bool(new()), WAIT_S, "the new session")
    [session] = new()
    [turn] = turns_of(session)
    wait_until(lambda: bool(first_event(turn.journal)), WAIT_S, "its first event")
    assert first_event(turn.journal)["max_tokens"] == 90_000


def first_event(journal: Path) -> dict[str, Any]:
    """Return the first event, or {} if it is not written yet."""
    line, newline, _ = journal.read_text().partition("\n") if journal.exists() else ("", "", "")
    return dict(json.loads(line)) if newline else {}
