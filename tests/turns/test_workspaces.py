"""Unexpected files in workspaces and sessions: no turn waits for a pipe or follows a link."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import NbAgentsError
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.runs import Run, preview, resume
from tests.kit.sessions import export_session, load_session
from tests.team_kit import WAIT_S, finish

SECRET = "what no agent may see"
WRITE = Turn(calls=(Call("write_file", {"path": "notes.md", "content": "kept"}),))


def stopped(root: Path) -> Run:
    """A turn that was stopped at its agent's second call."""
    gate = Gate()
    model = ScriptedModel(WRITE, Turn("half ", gate=gate))
    run = nb_agents.start(
        "t", scripted_team(ada=model), session="s", options=RunOptions(session_root=root / "all")
    )
    gate.wait_reached()
    run.stop(now=True)
    return finish(run)


def complete(root: Path) -> Run:
    team = scripted_team(ada=ScriptedModel(WRITE, Answer("the answer")))
    return finish(
        nb_agents.start("t", team, session="s", options=RunOptions(session_root=root / "all"))
    )


def looking(run: Run) -> ScriptedModel:
    """A model that reads all that it can name of an earlier turn."""
    space = run.path / "workspaces" / "ada"
    names = ("notes.md", "pipe", "link", "up/secret", "environ")
    paths = [str(space / name) for name in names] + list(names)
    reads = [Call("read_file", {"path": path}) for path in paths]
    lists = [Call("list_files", {"path": str(path)}) for path in (space, space / "up", ".")]
    return ScriptedModel(Turn(calls=(*reads, *lists)), Answer("seen"))


def litter(run: Run, root: Path) -> None:
    """Leave in a workspace what an agent's commands can make there."""
    space = run.path / "workspaces" / "ada"
    (root / "outside").mkdir()
    (root / "outside" / "secret").write_text(SECRET)
    os.mkfifo(space / "pipe")
    (space / "plots").mkdir()
    os.mkfifo(space / "plots" / "cell_1_1.png")
    (space / "link").symlink_to(root / "outside" / "secret")
    (space / "up").symlink_to(root / "outside")
    (space / "environ").symlink_to("/proc/self/environ")
    (space / "inner").symlink_to("notes.md")


def go_on(root: Path, model: ScriptedModel, from_turn: int | None = None) -> Run:
    team = scripted_team(ada=model)
    return nb_agents.start(
        "go on",
        team,
        session="s",
        options=RunOptions(session_root=root / "all", from_turn=from_turn, trust=True),
        continue_=True,
    )


def seen(model: ScriptedModel) -> str:
    """All that a model was sent."""
    return str(model.requests)


@pytest.mark.parametrize("from_turn", [None, 1])
@pytest.mark.parametrize("begin", [stopped, complete])
def test_continue_reads_no_pipe_and_follows_no_link(
    tmp_path: Path, begin: type[Run], from_turn: int | None
) -> None:
    run = begin(tmp_path)
    litter(run, tmp_path)
    model = looking(run)
    again = finish(go_on(tmp_path, model, from_turn))
    assert again.status == "completed"
    said = seen(model)
    assert SECRET not in said and "PATH=" not in said
    if not from_turn:
        assert "kept" in said and "is a pipe, not a file" in said
    else:
        told = "turn_1/workspaces/ada/pipe (a pipe), turn_1/workspaces/ada/plots/cell_1_1.png"
        assert f"Not copied: {told} (a pipe)." in again.view.notices


def test_resume_reads_no_pipe_and_follows_no_link(tmp_path: Path) -> None:
    run = stopped(tmp_path)
    litter(run, tmp_path)
    assert "Resumes turn 1" in str(preview("s", session_root=tmp_path / "all"))
    model = looking(run)
    again = resume("s", scripted_team(ada=model), options=RunOptions(session_root=tmp_path / "all"))
    again.wait(WAIT_S, raise_on_stop=False)
    assert again.status == "completed"
    assert "Not copied: ada/pipe (a pipe), ada/plots/cell_1_1.png (a pipe)." in again.view.notices
    space = again.path / "workspaces" / "ada"
    assert sorted(os.listdir(space)) == ["environ", "inner", "link", "notes.md", "plots", "up"]
    assert os.readlink(space / "environ") == "/proc/self/environ"
    assert SECRET not in seen(model) and "PATH=" not in seen(model)


def test_special_files_are_reported_at_the_end_of_the_turn(
    tmp_path: Path,
) -> None:
    gate = Gate()
    model = ScriptedModel(WRITE, Turn("half ", gate=gate), Answer("the answer"))
    run = nb_agents.start("t", scripted_team(ada=model), options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    os.mkfifo(run.path / "workspaces" / "ada" / "a\nb")
    gate.open()
    told = "Omitted from lists, copies and exports: ada/a\\nb (a pipe)."
    assert told in finish(run).view.notices
    assert [f.path for f in run.view.files] == ["notes.md"]


def test_session_of_a_dead_kernel_names_its_special_files(tmp_path: Path) -> None:
    run = stopped(tmp_path)
    litter(run, tmp_path)
    journal = run.path / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"turn_ended"' not in line)[:-200])
    (turn,) = load_session(run.path.parent).turns
    assert turn.warnings[-1] == "ada/pipe (a pipe), ada/plots/cell_1_1.png (a pipe)"


def test_export_contains_no_secret_and_names_omitted_parts(tmp_path: Path) -> None:
    run = complete(tmp_path)
    litter(run, tmp_path)
    made = export_session(run.path.parent, tmp_path / "out.zip")
    place = "turn_1/workspaces/ada"
    assert made.left_out == (
        f"{place}/environ (points outside the session)",
        f"{place}/link (points outside the session)",
        f"{place}/pipe (a pipe)",
        f"{place}/up (points outside the session)",
        f"{place}/plots/cell_1_1.png (a pipe)",
    )
    archive = zipfile.ZipFile(made.path)
    assert not any(SECRET.encode() in archive.read(n) for n in archive.namelist())
    assert not any(b"PATH=" in archive.read(name) for name in archive.namelist())
    assert archive.read(f"s/{place}/inner") == b"notes.md"
    assert archive.read("s/turn_1/workspace") == b"workspaces/ada"


PLACES = [
    "turn_1/metadata.json",
    "turn_1/.metadata.json.tmp",
    "turn_1/events.jsonl",
    "turn_1/answer.txt",
    "turn_1/.answer.txt.tmp",
    "turn_1/partial_answers.json",
    "turn_1/.partial_answers.json.tmp",
    "turn_1/owner.lock",
    "turn_1/stop.json",
    "turn_1/tools",
    "turn_1/workspace",
    "turn_1/workspaces",
    "turn_1/workspaces/ada",
    "turn_1/workspaces/ada/notes.md",
    "SESSION_SUMMARY.txt",
    ".SESSION_SUMMARY.txt.tmp",
    "winning_agents_history.json",
    ".winning_agents_history.json.tmp",
    ".allot.lock",
]


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("begin", [stopped, complete])
def test_special_file_at_a_sessions_path_is_neither_read_nor_followed(
    tmp_path: Path, begin: type[Run], place: str, kind: str
) -> None:
    run = begin(tmp_path)
    session = run.path.parent
    target = session / place
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "notes.md").write_text(SECRET)
    is_folder = target.is_dir() or target.name == "tools"
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
    if kind == "pipe":
        os.mkfifo(target)
    else:
        target.symlink_to(outside if is_folder else outside / "notes.md")
    model, resumed = looking(run), looking(run)
    options = RunOptions(session_root=tmp_path / "all", trust=True)
    for work in (
        lambda: export_session(session, tmp_path / "out.zip"),
        lambda: resume("s", scripted_team(ada=resumed), options=options).wait(WAIT_S),
        lambda: go_on(tmp_path, model).wait(WAIT_S),
    ):
        try:
            work()
        except NbAgentsError as exc:
            assert "\n" not in str(exc)
    assert {p.name: p.read_text() for p in outside.iterdir()} == {"notes.md": SECRET}
    assert SECRET not in seen(model) + seen(resumed)
    archive = zipfile.ZipFile(tmp_path / "out.zip")
    assert not any(SECRET.encode() in archive.read(name) for name in archive.namelist())
    for path in session.rglob("*"):
        assert path.is_symlink() or not path.is_file() or SECRET not in path.read_text()
