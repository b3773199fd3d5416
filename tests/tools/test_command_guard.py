"""Allowed and blocked commands: a blocked program can't be started in any way."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nb_agents.tools.command_guard import CommandGuard, find_programs
from tests.kit.processes import readable_directories
from tests.kit.tools import CommandRules, Shell, ToolError
from tests.tools.sandboxes import Place, place, sandboxed

__all__ = ["place"]


def guard(
    blocked: Sequence[str] = (), allowed: Sequence[str] = (), roots: Sequence[Path] = ()
) -> CommandGuard:
    rules = CommandRules.of(allowed, blocked)
    return CommandGuard(rules, find_programs(rules, roots))


def program(folder: Path, name: str, source: str = "echo ran\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{source}")
    path.chmod(0o755)
    return path


# Allowed lists


ALLOWED = ["python.*", "uv run pytest.*", "cd "]


@pytest.mark.parametrize(
    "line",
    [
        "python x.py",
        "python3 -m pytest",
        "uv run pytest -q",
        "python 'a b.py' > out",
        "cd src && python x",
    ],
)
def test_line_runs_if_each_command_is_allowed(line: str) -> None:
    assert guard(allowed=ALLOWED).check(line) == frozenset()


@pytest.mark.parametrize(
    "line, told",
    [
        ("ls", "'ls' is not allowed"),
        ("python x.py; ls", "'ls' is not allowed"),
        ("python x.py | sh", "'sh' is not allowed"),
        ("ls; python x.py", "is not allowed"),
        ("uv run ls", "is not allowed"),
        ("python $(ls)", "only plain commands"),
        ("python x.py `ls`", "only plain commands"),
        ("X=1 python x.py", "only plain commands"),
        ("python <<EOF\nEOF", "only plain commands"),
        ("'ls' -l", "is not allowed"),
    ],
)
def test_line_with_other_commands_is_refused(line: str, told: str) -> None:
    with pytest.raises(ToolError, match="Allowed: python") as refused:
        guard(allowed=ALLOWED).check(line)
    assert told in str(refused.value)


# Blocked lists


BLOCKED = ["python3.*", "git push", "rm -rf"]


@pytest.mark.parametrize(
    "line",
    [
        "python3 -V",
        "p''ython3 -V",
        "/usr/bin/python3 -V",
        "echo x | python3",
        "env python3 -V",
        "git push origin",
        "git -C . push",
        "git -c alias.p=push p",
        "git -c 'alias.p=!git push' p",
        "cd x && git push",
        "xargs git push",
        "rm -rf x",
        "rm x -rf",
    ],
)
def test_refusal_of_a_blocked_line_names_the_pattern(line: str) -> None:
    with pytest.raises(ToolError, match="blocked by the rule '(python3|git push|rm -rf)"):
        guard(BLOCKED).check(line)


def test_partly_blocked_program_is_visible_only_to_its_other_commands(
    tmp_path: Path,
) -> None:
    git, python = program(tmp_path, "git"), program(tmp_path, "python3.11")
    it = guard(BLOCKED, roots=[tmp_path])
    assert it.check("git status -s") == {python}
    assert it.check("cd x && git log 'a b' > log.txt") == {python}
    for line in ("ls", "g=git; $g push", "$(echo git) push", "./script.sh"):
        assert it.check(line) == {git, python}


@pytest.mark.parametrize(
    "line, told",
    [
        ("git status; ./script.sh", "run 'git' in a separate call, without './script.sh'"),
        ("git log | head", "without 'head'"),
        ("git add *", "write the arguments of 'git' without patterns"),
    ],
)
def test_partly_blocked_program_runs_without_other_programs(line: str, told: str) -> None:
    with pytest.raises(ToolError) as refused:
        guard(BLOCKED).check(line)
    assert told in str(refused.value)


def test_program_is_found_under_all_its_names(tmp_path: Path) -> None:
    real = program(tmp_path, "lib/real")
    os.link(real, tmp_path / "lib" / "other")
    (tmp_path / "bin").mkdir()
    os.symlink("../lib/real", tmp_path / "bin" / "tool")
    (tmp_path / "bin" / "tool.txt").write_text("no program")
    found = find_programs(CommandRules.of(blocked=["tool.*"]), [tmp_path])
    assert found == {"tool": {real, tmp_path / "lib" / "other"}}


def test_nothing_runs_if_bash_is_blocked(tmp_path: Path) -> None:
    os.symlink(shutil.which("bash") or "/bin/bash", tmp_path / "shell")
    with pytest.raises(ToolError, match="block bash itself"):
        guard(["shell"], roots=[tmp_path]).check("ls")


# In the sandbox


WAYS = [
    "$(echo python3) -c 'print(6*7)'",
    "p=python3; $p -c 'print(6*7)'",
    'eval "pyth"\'on3 -c "print(6*7)"\'',
    "printf '#!/bin/bash\\nexec python3 -c \"print(6*7)\"\\n' > x; chmod +x x; ./x",
    "echo 'python3 -c \"print(6*7)\"' > x; bash x; sh x",
    'perl -e \'exec "python3", "-c", "print(6*7)"\'',
    'awk \'BEGIN { system("python3 -c \\"print(6*7)\\"") }\'',
    "cp $(command -v pytho?3 || echo /usr/bin/pytho?3) y; ./y -c 'print(6*7)'",
    "ln -s /usr/bin/pytho?3 z; ./z -c 'print(6*7)'",
    f"{sys.executable} -c 'print(6*7)' || {os.path.realpath(sys.executable)} -c 'print(6*7)'",
    "for p in /bin/p*3 /usr/bin/p*3.* /lib/../bin/p*3; do $p -c 'print(6*7)'; done",
]


def shell(place: Place, *blocked: str) -> Shell:
    rules = CommandRules.of(blocked=blocked)
    return Shell(
        place.sandbox(), guard=CommandGuard(rules, find_programs(rules, readable_directories()))
    )


@sandboxed
@pytest.mark.parametrize("line", WAYS)
async def test_blocked_program_does_not_exist_for_any_starter(place: Place, line: str) -> None:
    try:
        said = await shell(place, "python.*").run_command(line)
    except ToolError as refused:
        said = str(refused)
    assert "42" not in said


@sandboxed
async def test_unblocked_program_is_found_by_every_starter(place: Place) -> None:
    it = shell(place, "no-such-program.*")
    said = [await it.run_command(line) for line in (*WAYS[:4], WAYS[9])]
    assert all("42" in each for each in said)


@sandboxed
async def test_partly_blocked_program_runs_but_not_in_scripts(
    place: Place,
) -> None:
    tool = program(place.given, "tool", 'echo "did $*"\n')
    rules = CommandRules.of(blocked=["tool push"])
    found = find_programs(rules, [place.given])
    it = Shell(place.sandbox(), guard=CommandGuard(rules, found))
    assert "did status" in await it.run_command(f"{tool} status")
    program(place.workspace, "x", f"{tool} push\n")
    said = await it.run_command(f"./x; bash x; t=to''ol; {place.given}/$t push")
    assert "did" not in said and "Permission denied" in said
    with pytest.raises(ToolError, match="blocked by the rule 'tool push'"):
        await it.run_command(f"{tool} push")
