"""Damaged sessions next to undamaged ones: every entry point reports a sentence and still works.

The entry points run in a subprocess with a terminal's shell, which obeys permissions even for root.
Waiting for a named pipe would keep the subprocess from ending.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.damage import small_sessions
from tests.kit.sessions import MAX_BYTES, TurnPaths
from tests.processes import BOUND_BY_PERMISSIONS, ROOT

DOORS = f"""
import contextlib, io, json, os, sys, traceback
sys.path.insert(0, {str(ROOT)!r})
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.error import UsageError
import nb_agents
from nb_agents.testing import Answer, ScriptedModel, scripted_team
root, *names = sys.argv[1:]
os.environ["NB_AGENTS_SESSIONS"] = root
os.chdir(root)
shell = InteractiveShell.instance()


def door(action):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            action()
        except (UsageError, nb_agents.NbAgentsError) as exc:
            return {{"said": out.getvalue() + str(exc)}}
        except BaseException:
            return {{"said": out.getvalue(), "defect": traceback.format_exc()}}
    return {{"said": out.getvalue()}}


def go_on(session):
    run = nb_agents.start("And?", scripted_team(ada=ScriptedModel(Answer("Done."))),
                          continue_=True, session=session,
                          options=nb_agents.RunOptions(trust=True))
    print(run.wait(200))


def line(text):
    return door(lambda: shell.run_line_magic("agents", text))


told = {{"load": door(lambda: shell.run_line_magic("load_ext", "nb_agents")),
         "sessions": line("sessions")}}
for name in names:
    verbs = ("show", "log", "resume --preview", "resume")
    told[name] = {{verb: line(f"{{verb}} {{name}}") for verb in verbs}}
    told[name]["continue"] = door(lambda: go_on(name))
print(json.dumps(told))
"""


class Bad(NamedTuple):
    """A damage to a session, and its expected effects.

    Attributes:
        of: The session to damage.
        spoil: Damages the session.
        listed: Whether it is still in the list.
        unread: Part of the sentence about what can't be read, or "" if everything can be read.
        goes_on: Whether a new turn can start.
    """

    of: str
    spoil: Callable[[TurnPaths], object]
    listed: bool = True
    unread: str = ""
    goes_on: bool = True


def edit(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[TurnPaths], None]:
    def done(paths: TurnPaths) -> None:
        lines = [change(json.loads(line)) for line in paths.journal.read_text().splitlines()]
        paths.journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    return done


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[TurnPaths], None]:
    def done(paths: TurnPaths) -> None:
        place = paths.path / name
        place.unlink(missing_ok=True)
        make(place)

    return done


def cut(size: int) -> Callable[[TurnPaths], None]:
    return lambda paths: os.truncate(paths.journal, size)


def first_lines(count: int) -> Callable[[TurnPaths], None]:
    def done(paths: TurnPaths) -> None:
        lines = paths.journal.read_bytes().splitlines(keepends=True)
        paths.journal.write_bytes(b"".join(lines[:count]))

    return done


def nested(paths: TurnPaths) -> None:
    data = paths.journal.read_bytes()
    paths.journal.write_bytes(data.replace(b'"args":"{}"', b'"args":' + b"[" * 10_000))


def all_closed(paths: TurnPaths) -> None:
    for path in (paths.journal, paths.metadata, paths.answer, paths.partial_answers):
        path.chmod(0)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_BYTES + 1)


BAD = {
    "a closed directory": Bad(
        "team", lambda p: p.path.parent.chmod(0), False, "Permission denied", False
    ),
    "a closed turn": Bad("team", lambda p: p.path.chmod(0), True, "Permission denied"),
    "a closed journal": Bad("team", lambda p: p.journal.chmod(0), True, "Permission denied"),
    "all files closed": Bad("team", all_closed, True, "Permission denied"),
    "a pipe as the journal": Bad("team", replaced("events.jsonl", os.mkfifo), True, "a pipe"),
    "a pipe as the metadata": Bad("team", replaced("metadata.json", os.mkfifo)),
    "a directory as the journal": Bad("team", replaced("events.jsonl", Path.mkdir), True, "jsonl"),
    "a huge journal": Bad("team", replaced("events.jsonl", sparse), True, "larger than"),
    "an empty journal": Bad("team", cut(0)),
    "a journal without its first line": Bad("team", cut(100)),
    "half a journal": Bad("team", first_lines(8)),
    "a recipe cut before it was read": Bad("recipe", first_lines(1)),
    "a recipe cut in the middle": Bad("recipe", first_lines(7)),
    "a time of 1e308": Bad("team", edit(lambda e: {**e, "at": 1e308}), True, "out of range"),
    "a time of NaN": Bad("team", edit(lambda e: {**e, "at": float("nan")}), True, "out of range"),
    "nested 10,000 deep": Bad("team", nested, True, "can't be read and"),
    "an emptied summary": Bad("team", lambda p: p.summary.write_text("")),
    "a directory as the summary": Bad(
        "team", lambda p: (p.summary.unlink(), p.summary.mkdir()), goes_on=True
    ),
    "no metadata": Bad("team", lambda p: p.metadata.unlink()),
}


def slug(how: str) -> str:
    return re.sub(r"\W+", "_", how)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Return the output of each entry point for damaged and undamaged sessions in one root."""
    root = tmp_path_factory.mktemp("root")
    small_sessions(root)
    for how, bad in BAD.items():
        shutil.copytree(root / bad.of, root / slug(how), symlinks=True)
    for how, bad in BAD.items():
        bad.spoil(TurnPaths(root / slug(how) / "turn_1"))
    names = [*map(slug, BAD), "team", "recipe"]
    command = [*BOUND_BY_PERMISSIONS, sys.executable, "-c", DOORS, str(root), *names]
    env = {**os.environ, "IPYTHONDIR": str(root / ".ipython")}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=200, check=False
        )
    finally:
        for how in BAD:  # pytest deletes them
            for path in (root / slug(how), root / slug(how) / "turn_1"):
                path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout.splitlines()[-1])


def sentence(door: dict[str, Any]) -> str:
    """Return the message of an entry point, and check that it shows no traceback."""
    assert "defect" not in door, door["defect"]
    assert "Traceback" not in door["said"]
    return str(door["said"])


def test_loading_reports_each_unreadable_session_in_a_sentence(
    told: dict[str, dict[str, Any]],
) -> None:
    lines = sentence(told["load"]).splitlines()
    assert [line for line in lines if "a_closed_directory" in line] == [
        line for line in lines if line.startswith("Can't read ") and "Permission denied" in line
    ]
    assert len(lines) < len(BAD)


@pytest.mark.parametrize("how", BAD)
def test_every_entry_point_reports_a_damaged_session_in_a_sentence(
    told: dict[str, dict[str, Any]], how: str
) -> None:
    bad, doors, listed = BAD[how], told[slug(how)], sentence(told["sessions"])
    assert (f"\n{slug(how)} " in listed) == bad.listed
    about = [line for line in listed.splitlines() if slug(how) in line and "Not read" in line]
    about += [line for line in listed.splitlines() if slug(how) in line and "Can't read" in line]
    assert len(about) == bool(bad.unread)
    assert all(bad.unread in line for line in about)
    for door in ("show", "log"):
        assert bad.unread in sentence(doors[door])
    assert ("[stopped]" in doors["show"]["said"]) == bad.listed
    _, *warning = sentence(doors["resume --preview"]).strip().splitlines()
    assert not warning or warning[0].startswith("Not created by you")
    assert len(sentence(doors["resume"]).strip().splitlines()) == 1
    assert ("Done." in sentence(doors["continue"])) == bad.goes_on


@pytest.mark.parametrize("name", ["team", "recipe"])
def test_entry_points_work_for_undamaged_sessions(
    told: dict[str, dict[str, Any]], name: str
) -> None:
    doors = told[name]
    assert f"\n{name} " in sentence(told["sessions"])
    assert "[stopped]" in sentence(doors["show"])
    assert "turn ended" in sentence(doors["log"])
    assert sentence(doors["resume --preview"]).startswith("Resumes turn 1: ")
    assert sentence(doors["continue"]) == "Done.\n"
