"""The session verbs in a notebook: list, rename, export, and delete only when told so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.driver import Kernel

MAKE = """
%load_ext nb_agents
import nb_agents
from nb_agents.testing import Answer, ScriptedModel, scripted_team
team = scripted_team(a=ScriptedModel(Answer("done")))
nb_agents.start("first task", config=team, session="old").wait()
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with Kernel() as kernel:
        assert kernel.run(MAKE).status == "ok"
        yield kernel


def said(kernel: Kernel, line: str) -> str:
    result = kernel.run(line)
    assert result.status == "ok", result.stderr
    return str(result.displays[0].data["text/plain"])


def test_a_session_is_listed_renamed_exported_and_deleted(kernel: Kernel) -> None:
    assert "old" in said(kernel, "%agents sessions")
    assert said(kernel, "%agents rename old new") == "Session old is new now."
    os.mkfifo(Path(kernel.cwd, ".nb_agents/sessions/new/turn_1/workspaces/a/pipe"))
    told = said(kernel, "%agents export new")
    assert "Wrote new.zip" in told
    assert told.endswith("Left out: turn_1/workspaces/a/pipe (a pipe).")
    assert (Path(kernel.cwd) / "new.zip").exists()
    assert "first task" in said(kernel, "%agents show new/1")
    cell = kernel.send("%agents delete new")
    kernel.wait_until(lambda: kernel.input_prompts, what="the question")
    assert "Delete session new (1 turn)" in str(kernel.input_prompts[-1])
    kernel.answer_input("n")
    assert "Nothing was deleted." in str(kernel.result(cell).displays[0].data)
    assert "new" in said(kernel, "%agents sessions")
    assert said(kernel, "%agents delete new --yes") == "Session new is deleted."
    assert "No sessions" in said(kernel, "%agents sessions")


def test_an_unknown_session_is_one_sentence(kernel: Kernel) -> None:
    for verb in ("rename nope x", "export nope", "delete nope --yes"):
        result = kernel.run(f"%agents {verb}")
        assert result.status == "error"
        assert "No session 'nope'" in result.stderr
        assert "Traceback" not in result.stderr
