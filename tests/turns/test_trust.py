"""Sessions of other users: no entry point uses one before the user has confirmed it.

The session is one of this user's, seen by another one: with another state directory.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import NotYoursError
from tests.cli.calls import call_here
from tests.kit.cards import turn_bundle
from tests.kit.runs import Run, attach, preview
from tests.kit.sessions import load_session, turns_of
from tests.kit.sweeps import read_rows
from tests.kit.teams import TeamSpec
from tests.kit.terminal import FAILED
from tests.magics import magics
from tests.team_kit import WAIT_S

NAME = "theirs"
PACKAGE = Path(nb_agents.__file__).parent
RECIPE = """\
name: build
description: Builds.
version: 1.0.0
steps:
  - id: make
    type: bash
    command: echo x >> {ran}; exit 1
"""
DEMO = TeamSpec.model_validate(
    {"agents": [{"id": "ada", "backend": {"type": "demo", "words_per_second": 10_000}}]}
)
ROWS = [{"n": "one"}]
NOT_YOURS = "was not created by you"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def root(place: Path) -> Path:
    return place / "sessions"


@pytest.fixture
def ran(place: Path) -> Callable[[], int]:
    """How often the recipe's command has run."""
    return lambda: (place / "ran").read_text().count("x")


@pytest.fixture
def session(root: Path, place: Path, ran: Callable[[], int]) -> Path:
    """A session whose recipe's command has failed."""
    text = RECIPE.format(ran=place / "ran")
    (place / "build.yaml").write_text(text)
    options = RunOptions(session_root=root)
    run = nb_agents.start(session=NAME, config=DEMO, recipe="build.yaml", options=options)
    run.wait(WAIT_S, raise_on_stop=False)
    assert (run.status, ran()) == ("failed", 1)
    return run.path.parent


@pytest.fixture
def stranger(session: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same session, where another user works from here on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "home of another"))
    return session


def _cell(line: str, cell: str) -> None:
    magics().agents(line, cell)


def _line(line: str) -> None:
    magics().agents_line(line)


def _options(session: Path, **more: Any) -> RunOptions:
    return RunOptions(session_root=session.parent, **more)


def _shell(session: Path, *words: str) -> None:
    call_here(*words, "--session-root", str(session.parent))


def _chat(session: Path, *words: str) -> None:
    told = call_here("chat", *words, "--session-root", str(session.parent), typed="Why?\n")
    raise NotYoursError(told)


Door = Callable[[Path], object]
DOORS: dict[str, Door] = {
    "nb_agents.resume": lambda s: nb_agents.resume(NAME, options=_options(s)),
    "nb_agents.resume, the last": lambda s: nb_agents.resume(options=_options(s)),
    "nb_agents.resume, detached": lambda s: nb_agents.resume(
        NAME, options=_options(s, detach=True)
    ),
    "nb_agents.start, continue_": lambda s: nb_agents.start(
        "Why?", DEMO, continue_=True, options=_options(s)
    ),
    "nb_agents.start, session": lambda s: nb_agents.start("Why?", DEMO, NAME, options=_options(s)),
    "nb_agents.start, from_turn": lambda s: nb_agents.start(
        "Why?", DEMO, NAME, True, options=_options(s, from_turn=1)
    ),
    "nb_agents.start, detached": lambda s: nb_agents.start(
        "Why?", DEMO, NAME, True, options=_options(s, detach=True)
    ),
    "run.resume": lambda s: attach(s / "turn_1").resume(),
    "nb_agents.map": lambda s: nb_agents.map(
        ROWS, "Why {{n}}?", DEMO, name=s.parent.name, options=_rows(s)
    ),
    "%agents resume": lambda s: _line(f"resume {NAME} --session-root {s.parent}"),
    "%%agents --continue": lambda s: _cell(f"--continue --session-root {s.parent}", "Why?"),
    "%%agents --session": lambda s: _cell(f"--session {NAME} --session-root {s.parent}", "Why?"),
    "%%agents --from": lambda s: _cell(f"--continue --from 1 --session-root {s.parent}", "Why?"),
    "nb-agents resume": partial(lambda s: _shell(s, "resume", NAME)),
    "nb-agents run --continue": lambda s: _shell(s, "run", "Why?", "--continue"),
    "nb-agents run --session": lambda s: _shell(s, "run", "Why?", "--session", NAME),
    "nb-agents run --from": lambda s: _shell(s, "run", "Why?", "--continue", "--from", "1"),
    "nb-agents chat --continue": lambda s: _chat(s, "--continue"),
    "nb-agents chat --session": lambda s: _chat(s, "--session", NAME),
}
"""Functions that resume or continue a session; tests/server tests those over HTTP."""


def _rows(session: Path) -> RunOptions:
    """Make the session the first row's of a sweep."""
    shutil.copytree(session, session.with_name(read_rows(ROWS)[0].name))
    return RunOptions(session_root=session.parents[1])


@pytest.mark.parametrize("door", DOORS)
def test_no_entry_point_uses_a_session_of_another_user(
    door: str, stranger: Path, ran: Callable[[], int]
) -> None:
    with pytest.raises((NotYoursError, UsageError), match=NOT_YOURS):
        DOORS[door](stranger)
    assert ran() == 1
    assert [turn.number for turn in turns_of(stranger)] == [1]


def test_only_code_that_checked_the_sessions_owner_starts_a_turn() -> None:
    """All entry points call `start` or `resume`, and only these start turns."""
    callers = {
        "launch": {"launch/resume.py", "launch/start.py"},
        "trusted_mark": {"launch/resume.py", "launch/start.py"},
        "claim_turn": {"launch/here.py"},
        "new_mark": {"launch/trust.py", "session/ownership.py"},
        "confirm_turns": {"launch/trust.py", "session/manage.py"},
        "OwnerMark": {"session/ownership.py"},
    }
    found: dict[str, set[str]] = {name: set() for name in callers}
    for path in PACKAGE.rglob("*.py"):
        for call in _calls(path):
            if call in found:
                found[call].add(path.relative_to(PACKAGE).as_posix())
    assert found == callers


def _calls(path: Path) -> list[str]:
    """The names of the functions that a module calls."""
    nodes = ast.walk(ast.parse(path.read_text()))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return [getattr(each, "id", getattr(each, "attr", "")) for each in called]


def test_error_lists_what_would_run(stranger: Path, place: Path) -> None:
    with pytest.raises(NotYoursError) as refused:
        nb_agents.resume(NAME, options=_options(stranger))
    assert refused.value.would_run == (
        f"command of make: echo x >> {place}/ran; exit 1",
        "model of ada: demo",
    )
    said = str(refused.value)
    assert all(line in said for line in refused.value.would_run)
    assert "--trust" in said and "trust=True" in said and "RunOptions" in said


def test_preview_and_card_warn_of_a_session_from_another_user(stranger: Path, place: Path) -> None:
    told = preview(NAME, session_root=stranger.parent)
    assert told.would_run == (
        f"command of make: echo x >> {place}/ran; exit 1",
        "model of ada: demo",
    )
    assert "Not created by you" in str(told)
    assert all(line in str(told) for line in told.would_run)
    (turn,) = load_session(stranger).turns
    assert (
        "created by another user or machine: asks first"
        in turn_bundle(turn, str(stranger))["text/plain"]
    )


def test_preview_of_the_users_own_session_has_no_warning(session: Path) -> None:
    told = preview(NAME, session_root=session.parent)
    assert told.would_run is None
    assert "not created by you" not in str(told).lower()


def test_trusted_session_needs_no_second_confirmation(
    stranger: Path, ran: Callable[[], int], monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    _finish(nb_agents.resume(NAME, options=_options(stranger, trust=True)))
    assert ran() == 2
    _finish(nb_agents.resume(NAME, options=_options(stranger)))
    assert ran() == 3
    moved = stranger.with_name("renamed")
    stranger.rename(moved)
    _finish(nb_agents.resume("renamed", options=_options(moved)))
    forked = nb_agents.start("Why?", DEMO, "renamed", True, options=_options(moved, from_turn=2))
    forked.wait(WAIT_S)
    assert forked.session != "renamed"


def _finish(run: Run) -> Run:
    run.wait(WAIT_S, raise_on_stop=False)
    return run


def test_trust_on_the_command_line(stranger: Path, ran: Callable[[], int]) -> None:
    words = ["resume", NAME, "--session-root", str(stranger.parent)]
    call_here(*words, "--trust", code=FAILED)
    call_here(*words, code=FAILED)
    assert ran() == 3


def test_trust_in_a_cell(stranger: Path, ran: Callable[[], int]) -> None:
    _line(f"resume {NAME} --session-root {stranger.parent} --wait --trust")
    _line(f"resume {NAME} --session-root {stranger.parent} --wait")
    assert ran() == 3


def test_own_session_needs_no_trust(session: Path, ran: Callable[[], int], root: Path) -> None:
    _finish(nb_agents.resume(NAME, options=_options(session)))
    _finish(nb_agents.resume(NAME, options=_options(session, detach=True)))
    assert ran() == 3
    nb_agents.start("Why?", DEMO, NAME, True, options=_options(session)).wait(WAIT_S)
    assert [turn.number for turn in turns_of(session)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("exit 1", "exit 0"),
        lambda text: text.replace("10000", "9999"),
        lambda text: text + text.splitlines(keepends=True)[-1],
        lambda text: "\n".join([*text.splitlines()[:2], *text.splitlines()[3:], ""]),
    ],
    ids=["the recipe", "the team", "an event more", "an event less"],
)
def test_modified_journal_of_the_same_user_needs_confirmation(
    session: Path, ran: Callable[[], int], change: Callable[[str], str]
) -> None:
    journal = session / "turn_1" / "events.jsonl"
    text = journal.read_text()
    assert change(text) != text
    journal.write_text(change(text))
    with pytest.raises(NotYoursError, match=NOT_YOURS):
        nb_agents.resume(NAME, options=_options(session))
    assert ran() == 1


def test_mark_of_another_session_is_rejected(
    session: Path, ran: Callable[[], int], root: Path
) -> None:
    other = nb_agents.start("Why?", DEMO, "other", options=_options(session))
    other.wait(WAIT_S)
    lines = (session / "turn_1" / "events.jsonl").read_text().splitlines()
    marks = (other.path / "events.jsonl").read_text().splitlines()
    forged = []
    for line, marked in zip(lines, [*marks, *[marks[-1]] * len(lines)], strict=False):
        known = {k: v for k, v in json.loads(marked).items() if k in ("mark", "mac")}
        forged.append(json.dumps({**json.loads(line), **known}, separators=(",", ":")))
    (session / "turn_1" / "events.jsonl").write_text("\n".join([*forged, ""]))
    with pytest.raises(NotYoursError, match=NOT_YOURS):
        nb_agents.resume(NAME, options=_options(session))
    assert ran() == 1


def test_sweep_needs_one_confirmation(
    root: Path, place: Path, ran: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "build.yaml").write_text(RECIPE.format(ran=place / "ran"))
    go_on = partial(
        nb_agents.map,
        [{"n": 1}, {"n": 2}],
        config=DEMO,
        recipe="build.yaml",
        name="s",
        retry_failed=True,
    )
    assert go_on(options=RunOptions(session_root=root)).wait(WAIT_S).failed == 2
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "home of another"))
    with pytest.raises(NotYoursError) as refused:
        go_on(options=RunOptions(session_root=root))
    assert refused.value.session_id == "s" and ran() == 2
    assert "command of make" in refused.value.would_run[0]
    assert len(refused.value.would_run) == 2
    go_on(options=RunOptions(session_root=root, trust=True)).wait(WAIT_S)
    assert ran() == 4
    go_on(options=RunOptions(session_root=root)).wait(WAIT_S)
    assert ran() == 6
