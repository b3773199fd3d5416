"""Paths of the workspace stay valid after a resume, and earlier turns do not change."""

import os
import shutil
import stat
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from zipfile import ZipFile

import pytest
from pydantic_ai.messages import ModelMessage, ToolReturnPart

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn
from tests.kit.runs import Run
from tests.kit.sessions import export_session, fork_session, turns_of
from tests.kit.teams import TeamSpec
from tests.kit.tools import ToolContext
from tests.recipes.live import begin, files_of, hold, let_go, over, ran, resume, wait_held, write
from tests.team_kit import events, finish

WAYS = {
    "pwd": "pwd",
    "pwd -P": "pwd -P",
    "realpath": "realpath .",
    "PWD": "echo $PWD",
    "Python": '"$AMPLIFIER_PYTHON" -c "import os; print(os.getcwd())"',
}
"""How a command learns where it is."""

RECIPE = r"""
steps:
- {{id: where, type: bash, command: '{way}', output: here}}
- {{id: tool, type: bash,
   command: 'printf "#!/bin/sh\necho x >> %s/by_file\n" "$PWD" > run.sh; chmod +x run.sh'}}
- {{id: one, type: bash, command: "{first}"}}
- {{id: two, type: bash, env: {{HERE: "{{{{here}}}}"}},
   command: 'echo x >> "{{{{here}}}}/by_value"; "$HERE/run.sh"'}}
- {{id: three, type: bash, command: "{second}"}}
- {{id: same, type: bash, command: '[ "$({way})" = "{{{{here}}}}" ] && echo x >> same'}}
"""


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    """What is below a directory, with the times of its changes."""
    found = [p for p in path.rglob("*") if stat.S_ISREG(p.lstat().st_mode)]
    return {str(p.relative_to(path)): (p.stat().st_mtime_ns, p.read_bytes()) for p in found}


def stopped_in(run: Run, name: str) -> Run:
    """Stop a run immediately in the command of this name."""
    wait_held(run, name)
    run.stop(now=True)
    return finish(run)


@pytest.mark.parametrize("way", WAYS)
def test_value_with_the_workspace_path_is_relocated_in_all_turns(tmp_path: Path, way: str) -> None:
    body = RECIPE.format(way=WAYS[way], first=hold("first"), second=hold("second"))
    run = stopped_in(begin(write(tmp_path, body)), "first")
    kept = tree(run.path)
    let_go(run, "first")
    kept = tree(run.path)
    second = stopped_in(resume(run), "second")
    let_go(second, "second")
    kept_too = tree(second.path)
    third = finish(resume(second))
    assert third.status == "completed", third.view.notices
    files = files_of(third)
    assert [files[f"main/{name}"] for name in ("by_value", "by_file", "same")] == ["x\n"] * 3
    assert tree(run.path) == kept and not (run.path / "workspaces/main/by_value").exists()
    assert tree(second.path) == kept_too
    # What the steps were told leads to where the last turn has left it.
    where = Path(str(third.view.steps["where"].output).strip())
    assert (where / "same").read_text() == "x\n"
    assert ran(third) == ["three", "same"]


def test_workspace_path_in_a_prompt_is_valid_after_a_resume(tmp_path: Path) -> None:
    gate = Gate()

    @nb_agents.tool
    def place(context: ToolContext) -> str:
        """Tell where the workspace is."""
        return str(context.workspace)

    def writes(messages: Sequence[ModelMessage]) -> Turn:
        command = f"echo late > {told(messages)[0]}/late.txt && pwd -P"
        return Turn(calls=(Call("run_command", {"command": command}), Call("place")))

    model = ScriptedModel(Turn(calls=(Call("place"),)), Turn(gate=gate), writes, Answer("done"))
    keys = {"enable_mcp_command_line": True, "type": "python", "instance": model}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": keys}]})
    run = nb_agents.start("t", team, "s", options=RunOptions(session_root=tmp_path), tools=[place])
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    again = over(run.resume(tools=[place]))
    first, *later = told(model.requests[-1])
    assert [text.splitlines()[0] for text in later] == [first, first]
    assert (again.path / "workspaces/a/late.txt").read_text() == "late\n"
    assert not (run.path / "workspaces/a/late.txt").exists()
    assert (Path(first) / "late.txt").read_text() == "late\n"


def told(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the tool results that a model received, in order."""
    parts = [part for message in messages for part in message.parts]
    results = [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]
    return [result.partition("\n\n<TEAM_MESSAGE>")[0] for result in results]


def test_long_output_file_still_exists_after_a_resume(tmp_path: Path) -> None:
    gate = Gate()
    long = Call("run_command", {"command": "seq 1 20000"})

    def reads(messages: Sequence[ModelMessage]) -> Turn:
        path = told(messages)[0].partition("the full output is in ")[2].partition("]")[0]
        return Turn(calls=(Call("read_file", {"path": path}),))

    model = ScriptedModel(Turn(calls=(long,)), Turn(gate=gate), reads, Answer("done"))
    keys = {"enable_mcp_command_line": True, "type": "python", "instance": model}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": keys}]})
    run = nb_agents.start("t", team, "s", options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    again = over(run.resume())
    assert again.status == "completed"
    assert "\n9999\n" in told(model.requests[-1])[1]


HELD = f'steps:\n- {{id: one, type: bash, command: "{hold("one")}"}}\n'


def test_session_with_workspaces_in_its_turns_can_be_continued(tmp_path: Path) -> None:
    run = stopped_in(begin(write(tmp_path, HELD)), "one")
    shutil.rmtree(run.path.parent / "task_1")
    let_go(run, "one")
    again = finish(resume(run))
    assert again.status == "completed"
    assert set(files_of(again)) == set(files_of(run)) == {"main/one.begun", "main/one.go"}


def test_run_is_stopped_and_resumed_without_support_for_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    run = stopped_in(begin(write(tmp_path, HELD)), "one")
    let_go(run, "one")
    again = finish(resume(run))
    assert again.status == "completed"
    assert set(files_of(again)) == {"main/one.begun", "main/one.go"}


def test_renamed_recipe_keeps_its_paths_relative_to_the_workspace(tmp_path: Path) -> None:
    body = RECIPE.format(way="pwd", first=hold("first"), second="true")
    run = stopped_in(begin(write(tmp_path, body)), "first")
    let_go(run, "first")
    again = finish(resume(run, recipe=write(tmp_path, body.partition("- {id: same")[0], "renamed")))
    assert again.status == "completed", again.view.notices
    assert files_of(again)["renamed/by_value"] == "x\n"
    assert "by_value" not in " ".join(files_of(run))


def test_turn_without_a_first_line_is_not_resumed(tmp_path: Path) -> None:
    run = stopped_in(begin(write(tmp_path, HELD)), "one")
    let_go(run, "one")
    (run.path.parent / "turn_2").mkdir()
    again = finish(
        nb_agents.resume("s", run._team, options=RunOptions(session_root=tmp_path / "sessions"))
    )
    assert (again.turn, again.status) == (3, "completed")
    assert events(again, ev.TurnStarted)[0].resumes == 1


def test_a_turn_whose_process_died_is_forked_and_exported_with_its_files(tmp_path: Path) -> None:
    run = stopped_in(begin(write(tmp_path, HELD)), "one")
    session, task = run.path.parent, run.path.parent / "task_1"
    # As a kill leaves it.
    (task / "workspaces").unlink()
    (run.path / "workspaces").rename(task / "workspaces")
    (run.path / "workspaces").symlink_to("../task_1/workspaces")
    fork = fork_session(session, 1, datetime(2026, 11, 20)).path
    assert (fork / "turn_1/workspaces/main/one.begun").is_file()
    made = export_session(session, tmp_path / "out.zip").path
    assert "s/turn_1/workspaces/main/one.begun" in ZipFile(made).namelist()
    assert [t.workspaces.is_symlink() for t in turns_of(session)] == [False]
