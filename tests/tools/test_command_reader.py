"""The parser of command lines, compared with bash itself."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.tools import read_commands

BASH = shutil.which("bash") or "/bin/bash"

READ = [
    ("ls", [("ls",)]),
    ("cd 'my src' && ls -l | wc", [("cd", "my src"), ("ls", "-l"), ("wc",)]),
    ('git log --format="%h %s"', [("git", "log", "--format=%h %s")]),
    ("a; b & c || d\ne", [("a",), ("b",), ("c",), ("d",), ("e",)]),
    ("p''ython3 -V", [("python3", "-V")]),
    (r"\git pu\sh", [("git", "push")]),
    ("python x.py > out.txt 2>&1 < in", [("python", "x.py")]),
    (">out python x", [("python", "x")]),
    ("'a'2>x b", [("a2", "b")]),
    ("ls *.py # all of them", [("ls", "*.py")]),
    ("tar \\\n  -x", [("tar", "-x")]),
    ("[ -f x ] && cat x", [("[", "-f", "x", "]"), ("cat", "x")]),
    ("# nothing", []),
]


@pytest.mark.parametrize("line, words", READ)
def test_plain_commands_are_parsed(line: str, words: list[tuple[str, ...]]) -> None:
    found = read_commands(line)
    assert found is not None
    assert [command.words for command in found] == words


UNREADABLE = [
    "$(echo python3)",
    "`echo python3`",
    '"$x"',
    "x=python3; $x",
    "PATH=. ls",
    "PATH='.' ls",
    "a=''b ls",
    "eval $x",
    "{ ls; }",
    "(ls)",
    "if true; then ls; fi",
    "! ls",
    "time ls",
    "/usr/bin/pytho? x",
    "cat <<EOF\nx\nEOF",
    "cat <<< x",
    "diff <(ls) x",
    "ls > ",
    "ls >> > x",
    "'open",
    "$'\\x6c\\x73'",
    "python\\\n3",
    "2\\\n>x python3",
    "l\x00s",
    "ls\r",
    "ls\u00a0x",
    "~/bin/x",
    "x >& -python3",
    "a" * 10_001,
]


@pytest.mark.parametrize("line", UNREADABLE)
def test_lines_that_bash_evaluates_are_not_parsed(line: str) -> None:
    assert read_commands(line) is None


_PIECES = st.sampled_from(
    "p1 p2 'p3' \"p4\" p\\5 '' 1 2 12 -x a=b '=' ~ ! # * ? [ ] > >> < 2> >& &> | || & && ; \\ {} "
    "if fi time '\n' $( ) ` $p1 \" ' << \\\n".split(" ")
) | st.sampled_from([" ", "  ", "\n", "\t", "\\\n", " \\\n "])

# Bash finds none of the programs in these lines and calls this handler instead. Redirects create
# files in a separate directory.
_TELL = """
command_not_found_handle() { printf '%s\\0' $# "$@" >> ../told; }
set +H
"""


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(_PIECES, max_size=12).map("".join))
def test_bash_runs_only_the_parsed_programs(tmp_path: Path, line: str) -> None:
    found = read_commands(line)
    if found is None:
        return
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "told").write_bytes(b"")
    subprocess.run(
        [BASH, "-c", f"{_TELL}{line}\nwait"],
        cwd=tmp_path / "in",
        env={"PATH": "/nowhere", "HOME": "~"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )
    read = {json.dumps([*command.words]) for command in found}
    programs = {command.words[0] for command in found if command.has_patterns}
    for words in _told((tmp_path / "told").read_bytes()):
        assert json.dumps(words) in read or words[0] in programs, line


def _told(data: bytes) -> list[list[str]]:
    rest, calls = data.decode().split("\0")[:-1], []
    while rest:
        count = int(rest.pop(0))
        calls.append(rest[:count])
        del rest[:count]
    return calls
