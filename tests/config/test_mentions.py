"""Which files a person's task names, and what only looks like one."""

from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.config.uploads import mentions
from nb_agents.errors import ConfigError, TaskError
from nb_agents.testing import Answer, ScriptedModel, scripted_team
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
def test_a_file_is_named_where_there_is_one(task: str, names: list[str], here: Path) -> None:
    assert mentions(task).paths == tuple(str(here / name) for name in names)


def test_the_task_says_where_the_file_is(here: Path) -> None:
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
def test_what_is_plainly_a_path_to_nothing_is_refused(mention: str, here: Path) -> None:
    with pytest.raises(TaskError, match="There is no file for") as refused:
        mentions(f"Read {mention}, please.")
    assert mention in str(refused.value) and f"\\{mention}" in str(refused.value)


def test_a_task_allows_no_writing() -> None:
    with pytest.raises(TaskError, match="context_paths"):
        mentions("Update @notes.md:w")


def test_what_is_named_is_read_by_the_team(here: Path) -> None:
    model = ScriptedModel(Answer("So."))
    options = RunOptions(session_root=here / "sessions", context_paths=["notes.md"])
    run = nb_agents.start("Review it.", scripted_team(a=model), options=options)
    run.wait(WAIT_S)
    assert str(here / "notes.md") in prompt(model, 0)
    with pytest.raises(ConfigError, match="gone.md' does not exist"):
        nb_agents.start("t", options=RunOptions(context_paths=["gone.md"]))
