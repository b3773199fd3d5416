"""``workspace: project``: steps work only in the user's own directory."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.errors import ConfigError
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.kit.sessions import delete_session
from tests.kit.teams import check_file
from tests.model_server import wait_until
from tests.recipes.live import begin, commands_alive, ran, write
from tests.team_kit import WAIT_S, finish
from tests.tools.sandboxes import needs_sandbox

RECIPE = """
workspace: project
steps:
- {id: draft, agent: worker, prompt: "Write it.", output: draft}
- {id: count, type: bash, command: "cat mine.txt drafts/new.md; pwd", output: seen}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a user's directory with a repository and uncommitted changes."""
    place = tmp_path / "project"
    place.mkdir()
    subprocess.run(["git", "init", "-q", place], check=True)
    (place / "mine.txt").write_text("mine\n")
    (place / ".env").write_text("TOKEN=x\n")
    monkeypatch.chdir(place)
    return place


def files(place: Path) -> dict[str, str]:
    """Return the files in it, except those of the repository and of nb_agents."""
    found = (p for p in place.rglob("*") if p.is_file())
    named = {p.relative_to(place).as_posix(): p for p in found}
    ours = (".git/", ".nb_agents/")
    return {name: p.read_text() for name, p in named.items() if not name.startswith(ours)}


def writes(*calls: tuple[str, str]) -> ScriptedModel:
    """Return a model that writes these files in order, and gets the results."""
    turns = [Turn(calls=(Call("write_file", {"path": p, "content": c}),)) for p, c in calls]
    return ScriptedModel(*turns, Turn(text="done"))


def told(model: ScriptedModel) -> str:
    """Return the last text that the model received."""
    return str(model.requests[-1])


def test_steps_work_in_the_directory_of_the_start(tmp_path: Path, project: Path) -> None:
    file = write(tmp_path / "recipes", RECIPE)
    root = project / ".nb_agents" / "sessions"
    run = finish(begin(file, writes(("drafts/new.md", "new\n")), session_root=root))
    assert run.result["seen"] == f"mine\nnew\n{project}"
    assert files(project) == {"mine.txt": "mine\n", ".env": "TOKEN=x\n", "drafts/new.md": "new\n"}
    assert f"It changes files in {project} directly." in run.view.notices
    delete_session(run.path.parent)
    assert "drafts/new.md" in files(project)


@pytest.mark.parametrize(
    "path",
    [
        "../beside.txt",
        "{tmp}/beside.txt",
        "link/beside.txt",
        ".git/hooks/pre-commit",
        ".env",
        "src/.venv/x.py",
        ".nb_agents/sessions/s/turn_1/events.jsonl",
        "{project}/.git/config",
    ],
)
def test_files_outside_and_program_settings_are_not_writable(
    tmp_path: Path, project: Path, path: str
) -> None:
    (project / "link").symlink_to(tmp_path)
    file = write(tmp_path / "recipes", RECIPE.replace(" drafts/new.md", ""))
    path = path.format(tmp=tmp_path, project=project)
    before = {**files(project), "git": (project / ".git/config").read_text()}
    model = writes((path, "no"))
    run = finish(begin(file, model, session_root=project / ".nb_agents" / "sessions"))
    assert run.status == "completed"
    assert "Wrote" not in told(model)
    assert {**files(project), "git": (project / ".git/config").read_text()} == before
    assert not (tmp_path / "beside.txt").exists()


def test_resume_from_another_directory_continues_in_the_project(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = RECIPE + (
        "- id: wait\n  type: bash\n  output: last\n"
        "  command: touch begun; until [ -e go ]; do sleep 0.02; done; pwd\n"
    )
    file = write(tmp_path / "recipes", body)
    model = writes(("drafts/new.md", "new\n"))
    run = begin(file, model)
    wait_until(lambda: (project / "begun").exists(), WAIT_S, "begun", lambda: run.view)
    run.stop(now=True)
    finish(run)
    assert not commands_alive(project)
    (project / "go").touch()
    (project / "mine.txt").write_text("changed by me\n")
    monkeypatch.chdir(tmp_path)
    again = finish(run.resume(scripted_team(None, worker=model)))
    assert again.result["last"] == str(project) and ran(again) == ["wait"]
    assert files(project)["mine.txt"] == "changed by me\n"


def test_resume_without_the_directory_is_refused(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "recipes", RECIPE.replace("cat mine.txt drafts/new.md; pwd", "exit 1"))
    run = finish(begin(file, writes(("a", "b"))))
    assert run.status == "failed"
    monkeypatch.chdir(tmp_path)
    project.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="which is no longer a directory"):
        run.resume(scripted_team(None, worker=writes()))
    assert not (run.path.parent / "turn_2").exists()


@needs_sandbox
def test_commands_of_an_agent_write_the_project_but_not_its_repository(
    tmp_path: Path, project: Path
) -> None:
    (tmp_path / "private").write_text("private")
    lines = (
        "echo made >made.txt; echo x >.git/hooks/pre-commit; echo x >.env; "
        f"cat {tmp_path}/private; mv .git .git2"
    )
    model = ScriptedModel(Turn(calls=(Call("run_command", {"command": lines}),)), Turn(text="done"))
    team = scripted_team(None, worker=model)
    backend = team.agents[0].backend.model_copy(update={"enable_mcp_command_line": True})
    worker = team.agents[0].model_copy(update={"backend": backend})
    file = write(tmp_path / "recipes", RECIPE.replace(" drafts/new.md", ""))
    options = RunOptions(session_root=tmp_path / "sessions")
    team = team.model_copy(update={"agents": (worker,)})
    run = finish(nb_agents.start(config=team, recipe=file, options=options))
    assert run.status == "completed", run.view
    assert files(project) == {"mine.txt": "mine\n", ".env": "TOKEN=x\n", "made.txt": "made\n"}
    assert not (project / ".git/hooks/pre-commit").exists() and (project / ".git").is_dir()
    assert "Read-only file system" in told(model) and "private\n" not in told(model)


# Teams


def team(models: Sequence[ScriptedModel]) -> TeamSpec:
    agents = {name: model for name, model in zip(("a", "b"), models, strict=False)}
    spec = scripted_team(None, **agents)
    return TeamSpec.model_validate(
        {**{name: getattr(spec, name) for name in ("agents",)}, "workspace": "project"}
    )


def test_presenter_of_a_team_writes_the_project(tmp_path: Path, project: Path) -> None:
    inside = str(project / "result.md")
    early = Turn(calls=(Call("write_file", {"path": inside, "content": "early"}),))
    late = Turn(calls=(Call("write_file", {"path": inside, "content": "late"}),))
    a = ScriptedModel(early, Answer("A's"), Vote("agent1"), late, Turn(text="presented"))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    spec = team((a, b))
    assert spec.project == project
    run = finish(
        nb_agents.start("t", spec, options=RunOptions(session_root=project / ".nb_agents/sessions"))
    )
    assert run.status == "completed"
    assert files(project) == {"mine.txt": "mine\n", ".env": "TOKEN=x\n", "result.md": "late"}
    assert "can only be read" in str(a.requests[1])


def test_team_stopped_while_writing_the_project_resumes(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes_(name: str) -> Turn:
        path = str(project / f"{name}.md")
        return Turn(calls=(Call("write_file", {"path": path, "content": name}),))

    gate = Gate()
    model = ScriptedModel(
        writes_("one"), Turn(text="half ", gate=gate), writes_("two"), Answer("all")
    )
    config = team((model,))
    run = nb_agents.start(
        "t", config, options=RunOptions(session_root=project / ".nb_agents/sessions")
    )
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert files(project)["one.md"] == "one"
    (project / "one.md").write_text("changed by me")
    monkeypatch.chdir(tmp_path)
    gate.open()
    again = finish(run.resume(config))
    assert again.status == "completed"
    assert files(project) == {
        "mine.txt": "mine\n",
        ".env": "TOKEN=x\n",
        "one.md": "changed by me",
        "two.md": "two",
    }


def test_recipe_works_in_the_project_if_its_team_file_says_so(
    tmp_path: Path, project: Path
) -> None:
    file = write(tmp_path / "recipes", RECIPE.replace("workspace: project", ""))
    config = team([writes(("drafts/new.md", "new\n"))])
    options = RunOptions(session_root=tmp_path / "sessions")
    run = finish(nb_agents.start(config=config, recipe=file, options=options))
    assert run.result["seen"] == f"mine\nnew\n{project}"
    assert not [n for n in run.view.notices if "only read" in n]


def test_invalid_workspace_is_refused_and_a_check_names_its_position(
    tmp_path: Path, project: Path
) -> None:
    file = tmp_path / "team.yaml"
    file.write_text("agents: [{id: a, backend: {type: demo}}]\nworkspace: here\n")
    with pytest.raises(ConfigError, match="'here' is neither 'own' nor 'project'"):
        TeamSpec.from_file(file)
    recipe = write(tmp_path / "recipes", RECIPE)
    said = check_file(str(recipe)).lines
    assert f"It changes files in {os.getcwd()} directly." in said
