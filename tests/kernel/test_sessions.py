"""The session verbs in a notebook: list, rename, export, and delete after confirmation."""

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
    assert said(kernel, "%agents rename old new") == "Session old was renamed to new."
    os.mkfifo(Path(kernel.cwd, ".nb_agents/sessions/new/turn_1/workspaces/a/pipe"))
    told = said(kernel, "%agents export new")
    assert "Wrote new.zip" in told
    assert "Left out: turn_1/workspaces/a/pipe (a pipe)." in told
    assert (Path(kernel.cwd) / "new.zip").exists()
    assert "first task" in said(kernel, "%agents show new/1")
    cell = kernel.send("%agents delete new")
    kernel.wait_until(lambda: kernel.input_prompts, what="the question")
    assert "Delete session new (1 turn)" in str(kernel.input_prompts[-1])
    kernel.answer_input("n")
    assert "Nothing was deleted." in str(kernel.result(cell).displays[0].data)
    assert "new" in said(kernel, "%agents sessions")
    assert said(kernel, "%agents delete new --yes") == "Session new was deleted."
    assert "No sessions" in said(kernel, "%agents sessions")


def test_unknown_session_is_reported_in_a_sentence(kernel: Kernel) -> None:
    for verb in ("rename nope x", "export nope", "delete nope --yes"):
        result = kernel.run(f"%agents {verb}")
        assert result.status == "error"
        assert "No session 'nope'" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("leave", ["import os; os.chdir({!r})", "%cd -q {}"])
@pytest.mark.parametrize("root", ["", "my sessions"])
def test_a_notebook_that_changes_its_directory_keeps_its_sessions(
    tmp_path: Path, leave: str, root: str
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    with Kernel(cwd=home) as kernel:
        if root:
            kernel.run(f"%env NB_AGENTS_SESSIONS={root}")
        assert kernel.run(MAKE).status == "ok"
        assert kernel.run(leave.format(str(elsewhere))).status == "ok"
        assert kernel.eval("__import__('os').getcwd()") == str(elsewhere)
        assert "first task" in said(kernel, "%agents sessions")
        start = "nb_agents.start('second task', config=team, continue_=True)"
        assert kernel.eval(f"({start}.wait(), nb_agents.runs()[-1].turn)") == ("done", 2)
        assert "first task" in said(kernel, "%agents show old/1")
    assert not list(elsewhere.iterdir())


def test_kernel_that_only_imports_nb_agents_keeps_its_sessions(tmp_path: Path) -> None:
    with Kernel(cwd=tmp_path) as kernel:
        assert kernel.run(MAKE.replace("%load_ext nb_agents", "")).status == "ok"
        kernel.run("%cd -q /")
        start = "nb_agents.start('second task', config=team, continue_=True)"
        assert kernel.eval(f"({start}.wait(), nb_agents.runs()[-1].turn)") == ("done", 2)
