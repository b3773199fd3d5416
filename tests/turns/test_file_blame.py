"""`nb-agents blame` names the call that wrote each line of a file, by tools and shell commands."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.launch.file_blame import (
    MAX_LINES,
    FileVersion,
    blame_file,
    blame_text,
    line_authors,
)
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.cli.calls import call_here, told_here
from tests.kit.snapshots import FileCall
from tests.kit.teams import TeamSpec
from tests.samples import some_or_all
from tests.team_kit import WAIT_S

TASK = "Write the notes for the meeting on Thursday, in plain words"


def version(before: str, after: str, agent: str) -> FileVersion:
    return FileVersion(before, after, FileCall(agent, "1.0"))


def agents_of(current: str, *versions: FileVersion) -> list[str]:
    return [call.agent if call else "" for _, call in line_authors(versions, current)]


def test_each_line_is_of_the_last_call_that_changed_it_and_edits_of_the_user_are_not() -> None:
    first, second = version("", "a\nb\nc", "ada"), version("a\nb\nc", "a\nB\nc", "ben")
    assert agents_of("a\nB\nc", first, second) == ["ada", "ben", "ada"]
    assert agents_of("mine\na\nB\nC", first, second) == ["", "ada", "ben", ""]
    between = version("a\nb\nmine", "a\nb\nmine\nd", "ben")
    assert agents_of("a\nb\nmine\nd", first, between) == ["ada", "ada", "", "ben"]
    assert agents_of("x\n") == [""]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(tmp_path / "sessions"))
    return tmp_path


def test_repeated_lines_of_a_large_file_are_blamed_in_time_and_lines_are_limited() -> None:
    many = "".join(f"{n // 9}\n\n" for n in range(MAX_LINES // 4))
    edited = version(f"{many}a\n{many}", f"y\n{many}b\n{many}z\n", "ada")
    authors = agents_of(edited.after, version("", edited.before, "ben"), edited)
    assert (authors[0], authors[1], authors[-2], authors[-1]) == ("ada", "ben", "ben", "ada")
    with pytest.raises(nb_agents.UserError, match="more than 50,000 lines"):
        blame_text([], Path("/a"), "", "\n" * (MAX_LINES + 1))


def play(place: Path, scripts: dict[str, list[Call]], **more: Any) -> nb_agents.Run:
    """Play a turn in which each agent makes its calls one after the other."""
    agents = [
        {
            "id": name,
            "backend": {
                "type": "python",
                "instance": ScriptedModel(*(Turn(calls=(c,)) for c in calls), Answer("Done.")),
                "enable_mcp_command_line": True,
            },
        }
        for name, calls in scripts.items()
    ]
    orchestrator = {"skip_voting": True, **more}
    team = TeamSpec.model_validate({"agents": agents, "orchestrator": orchestrator})
    options = RunOptions(session_root=place / "sessions")
    run = nb_agents.start(TASK, team, "blamed", options=options)
    run.wait(WAIT_S)
    return run


def blamed(file: Path) -> dict[int, dict[str, Any]]:
    return {each["line"]: each for each in told_here("blame", str(file))}


def test_edits_by_tools_and_shell_commands_are_named(place: Path) -> None:
    write = Call("write_file", {"path": "notes.md", "content": "one\ntwo\nthree\n"})
    edit = Call("edit_file", {"path": "notes.md", "old": "two", "new": "TWO"})
    shell = Call("run_command", {"command": "echo four >> notes.md"})
    run = play(place, {"ada": [write, edit, shell]})
    file = run.path / "workspaces" / "ada" / "notes.md"
    lines = blamed(file)
    assert [lines[n]["tool"] for n in (1, 2, 3, 4)] == [
        *("write_file", "edit_file", "write_file", "run_command")
    ]
    assert lines[2]["turn"] == "blamed/1" and lines[2]["call"] == "2.0" and lines[2]["model"]
    assert lines[2]["prompt"] == TASK
    assert f"{TASK[:40]}…" in call_here("blame", str(file))
    assert TASK in call_here("blame", "--long", str(file))


def test_user_file_of_two_agents_is_blamed_over_turns(place: Path) -> None:
    site = place / "site"
    site.mkdir()
    page = site / "page.md"
    page.write_text("mine\n")
    given = {"context_paths": [{"path": str(site), "permission": "write"}]}
    play(
        place,
        {"ada": [Call("edit_file", {"path": str(page), "old": "mine", "new": "mine\na"})]},
        **given,
    )
    page.write_text(page.read_text() + "also mine\n")
    command = f"printf 'b\\n' >> {shlex.quote(str(page))}"
    team = {"ben": [Call("run_command", {"command": command})]}
    play(place, team, **given)
    lines = blamed(page)
    assert page.read_text() == "mine\na\nalso mine\nb\n"
    assert {n: each["agent"] for n, each in lines.items()} == {2: "ada", 4: "ben"}


@pytest.mark.parametrize("seed", range(some_or_all(3, 50)))
def test_random_runs_agree_with_an_independent_record(place: Path, seed: int) -> None:
    """Each line names the call that wrote it, so the record is the file itself."""
    chance = random.Random(seed)
    scripts: dict[str, list[Call]] = {}
    for agent in ("ada", "ben"):
        calls, lines = list[Call](), list[str]()
        for number in range(1, 7):
            new = [f"{agent} {number}.0 {n}" for n in range(chance.randint(1, 3))]
            at = chance.randint(0, len(lines))
            lines[at : at + chance.randint(0, 2)] = new
            text = "".join(f"{line}\n" for line in lines)
            if chance.random() < 0.5:
                calls.append(Call("write_file", {"path": "f.txt", "content": text}))
            else:
                command = f"printf %s {shlex.quote(text)} > f.txt"
                calls.append(Call("run_command", {"command": command}))
        scripts[agent] = calls
    run = play(place, scripts)
    for agent in scripts:
        file = run.path / "workspaces" / agent / "f.txt"
        for number, each in blamed(file).items():
            line = file.read_text().splitlines()[number - 1]
            assert line.startswith(f"{each['agent']} {each['call']} "), (line, each)
        assert len(blamed(file)) == len(file.read_text().splitlines())


@pytest.mark.parametrize("seed", range(some_or_all(2, 50)))
def test_random_edits_of_one_file_by_two_agents_agree_with_an_independent_record(
    place: Path, seed: int
) -> None:
    """The agents and the user take turns. Each line names the agent and call that wrote it."""
    chance = random.Random(seed)
    site = place / "site"
    site.mkdir()
    page = site / "page.md"
    page.write_text("user\n")
    for turn in range(4):
        name = chance.choice(("ada", "ben"))
        calls = [_edit(page, f"{name} {n}.0", chance) for n in range(1, 4)]
        play(place, {name: calls}, context_paths=[{"path": str(site), "permission": "write"}])
        lines = page.read_text().splitlines()
        lines.insert(chance.randrange(1, len(lines) + 1), f"user {turn}")
        page.write_text("".join(f"{line}\n" for line in lines))
    found = blamed(page)
    names = {n: f"{each['agent']} {each['call']}" for n, each in found.items()}
    expected = {n: line for n, line in enumerate(lines, 1) if not line.startswith("user")}
    assert names == expected and len(expected) == 12


def _edit(page: Path, line: str, chance: random.Random) -> Call:
    """Return a call that adds a line to a file: at its end, or below its first line."""
    if chance.random() < 0.5:
        return Call("edit_file", {"path": str(page), "old": "user\n", "new": f"user\n{line}\n"})
    return Call("run_command", {"command": f"echo {line} >> {shlex.quote(str(page))}"})


def test_file_that_is_not_text_is_refused(place: Path) -> None:
    (place / "a.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(nb_agents.UserError, match="not text"):
        blame_file([], place / "a.bin")
    with pytest.raises(nb_agents.UserError, match="can't be read"):
        blame_file([], place / "missing.txt")
