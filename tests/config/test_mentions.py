"""Mentions of files in a task, and text that only looks like one."""

import ast
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import ConfigError, TaskError
from nb_agents.testing import Answer, ScriptedModel, scripted_team
from tests.kit.teams import mentions
from tests.team_kit import WAIT_S, prompt


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    for name in ("notes.md", "two words.txt", "src/main.py"):
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    "task, names",
    [
        ("Review @notes.md.", ["notes.md"]),
        ("Review @src/main.py, then (@src) and @src/main.py!", ["src/main.py", "src"]),
        ('Read @"two words.txt": now', ["two words.txt"]),
        ("@notes.md", ["notes.md"]),
        ("Write to ada@notes.md", []),
        (r"Keep \@notes.md", []),
        ("Explain @property and @pytest.fixture", []),
        ("@", []),
        ("@~nobody-here/x @a\0b", []),
        ("Add @types/node, @vue/runtime and @/components/x.vue as @x.setter", []),
        (r"Keep \@./data/nofile.csv", []),
    ],
)
def test_existing_file_is_mentioned(task: str, names: list[str], here: Path) -> None:
    assert mentions(task).paths == tuple(str(here / name) for name in names)


def test_mention_is_replaced_by_the_path(here: Path) -> None:
    assert mentions("Review @notes.md.").task == f"Review {here / 'notes.md'}."
    assert mentions(r"Keep \@notes.md and a @b").task == "Keep @notes.md and a @b"


@pytest.mark.parametrize(
    "mention",
    [
        "@./data/nofile.csv",
        "@../x",
        "@~/no-such-file",
        "@src/gone",
        "@gone/x.tex",
        "@nofile.csv",
        '@"my file.md"',
    ],
)
def test_clear_path_to_a_missing_file_is_an_error(mention: str, here: Path) -> None:
    with pytest.raises(TaskError, match="There is no file for") as refused:
        mentions(f"Read {mention}, please.")
    assert mention in str(refused.value) and f"\\{mention}" in str(refused.value)


def test_mention_cannot_grant_write_access() -> None:
    with pytest.raises(TaskError, match="context_paths"):
        mentions("Update @notes.md:w")


def test_team_can_read_mentioned_files(here: Path) -> None:
    model = ScriptedModel(Answer("So."))
    options = RunOptions(session_root=here / "sessions", context_paths=["notes.md"])
    run = nb_agents.start("Review it.", scripted_team(a=model), options=options)
    run.wait(WAIT_S)
    assert str(here / "notes.md") in prompt(model, 0)
    with pytest.raises(ConfigError, match="gone.md' does not exist"):
        nb_agents.start("t", options=RunOptions(context_paths=["gone.md"]))


# Tasks in Python ---------------------------------------------------------------------------


def begun(door: str, task: str, here: Path) -> ScriptedModel:
    """Start a task with a Python function, and return the model that got the request."""
    model = ScriptedModel(Answer("So."))
    options = RunOptions(session_root=here / "sessions")
    team = scripted_team(a=model)
    match door:
        case "start":
            nb_agents.start(task, team, options=options).wait(WAIT_S)
        case "once":
            nb_agents.once(task, team, options=options).wait(WAIT_S)
        case "map":
            nb_agents.map([{"n": 1}], task, team, options=options).wait()
    return model


DOORS = ["start", "once", "map"]


@pytest.mark.parametrize("door", DOORS)
def test_python_task_can_mention_files(door: str, here: Path) -> None:
    model = begun(door, r"Review @notes.md, @src and \@notes.md of ada@notes.md.", here)
    asked = prompt(model, 0)
    assert f"Review {here / 'notes.md'}, {here / 'src'} and @notes.md of ada@notes.md." in asked
    readable = asked.partition("Review")[0] + asked.partition("notes.md.")[2]
    assert str(here / "notes.md") in readable and str(here / "src") in readable


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mention", ["@nofile.csv", "@notes.md:w"])
def test_python_task_has_the_same_mention_errors(door: str, mention: str, here: Path) -> None:
    with pytest.raises(TaskError, match=mention):
        begun(door, f"Read {mention}, please.", here)
    assert not (here / "sessions").exists()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mention", ["@../secret.txt", "@{place}/secret.txt", "@.env", "@src/.key"])
def test_python_task_cannot_mention_hidden_or_outside_files(
    door: str, mention: str, here: Path
) -> None:
    for name in ("../secret.txt", ".env", "src/.key"):
        (here / name).write_text("x")
    mention = mention.format(place=here.parent)
    with pytest.raises(TaskError, match="context_paths") as refused:
        begun(door, f"Read {mention}, please.", here)
    assert mention in str(refused.value) and f"\\{mention}" in str(refused.value)


def test_row_values_cannot_mention_files(here: Path) -> None:
    model = ScriptedModel(Answer("So."))
    options = RunOptions(session_root=here / "sessions")
    rows = [{"text": r"See @notes.md and \@src."}]
    nb_agents.map(rows, "Sort: {{text}}", scripted_team(a=model), options=options).wait()
    assert r"Sort: See @notes.md and \@src." in prompt(model, 0)
    assert str(here / "notes.md") not in prompt(model, 0)


def test_only_user_entry_points_read_mentions() -> None:
    """Code that starts runs with other people's text calls `start_verbatim` and `map_verbatim`."""
    package = Path(nb_agents.__file__).parent
    readers = {("nb_agents.launch.api", "start"), ("nb_agents.extensions.sweeps.mapping", "map")}
    found = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and {(node.module, name.name) for name in node.names} & readers
    }
    assert found == {"__init__.py"}
