"""Marks of sessions: which turns are accepted, and where the key is stored."""

import json
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from platformdirs import user_state_path

from nb_agents.events import TextStreamed
from nb_agents.session.ownership import (
    Evidence,
    LineMarker,
    OwnerMark,
    confirm_turns,
    evidence_of,
    find_owner_mark,
    new_mark,
    user_mark,
    using_mark,
)
from tests.kit.sessions import (
    Journal,
    TurnPaths,
    fork_session,
    read_journal,
    rename_session,
    strip_session,
    turns_of,
)
from tests.session.turns import COMPLETED, STOP, answer, stamped, started, turn_paths, writing
from tests.session.turns import write_turn as write_unmarked

OWN, OTHER = OwnerMark("own", b"k" * 32), OwnerMark("own", b"x" * 32)
AS_OWN: Callable[[str], OwnerMark] = partial(OwnerMark, key=OWN.key)


def write(paths: TurnPaths, mark: OwnerMark, words: str = "I ") -> None:
    journal = Journal(paths.journal, mark)
    for event in stamped(started(), *writing("ada", words), answer("ada", words), STOP):
        journal.append(event)
    journal.close()


def move_in(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Become the user with the given state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home))


def is_own(session: Path) -> bool:
    return find_owner_mark(evidence_of(session), user_mark) is not None


def test_events_of_a_marked_journal_are_read_back(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write(paths, OWN)
    known = read_journal(paths.journal)
    assert known.warnings == ()
    assert known.events == tuple(
        stamped(started(), *writing("ada", "I "), answer("ada", "I "), STOP)
    )


_NAMES = st.text(max_size=5).filter(lambda name: name not in ("mark", "mac"))


@given(
    st.lists(st.dictionaries(_NAMES, st.text(max_size=9), min_size=1), min_size=1),
    st.data(),
)
def test_truncated_journal_is_accepted_and_a_changed_one_is_not(
    written: list[dict[str, str]], data: st.DataObject
) -> None:
    marker = LineMarker(OWN)
    lines = [marker.marked(json.dumps(each).encode() + b"\n") for each in written]
    for line, each in zip(lines, written, strict=True):
        known = json.loads(line)
        assert known.keys() - each.keys() <= {"mark", "mac"} and {**known, **each} == known
    kept = b"".join(lines[: data.draw(st.integers(1, len(lines)))])
    assert _bears(kept, OWN) and not _bears(kept, OTHER)
    at = data.draw(st.integers(0, len(kept) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != kept[at]))
    assert not _bears(kept[:at] + bytes([other]) + kept[at + 1 :], OWN)
    assert not _bears(kept + b'{"kind":"said","text":"and then"}\n', OWN)
    assert lines[1:] == [] or not _bears(b"".join(lines[1:]), OWN)


def _bears(journal: bytes, mark: OwnerMark) -> bool:
    return Evidence(TurnPaths(Path("s/turn_1")), journal).bears(mark)


def test_a_torn_last_line_does_not_count(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write(paths, OWN)
    with paths.journal.open("ab") as file:
        file.write(b'{"kind":"said","te')
    assert find_owner_mark(evidence_of(paths.path.parent), AS_OWN) == OWN


def test_every_turn_must_be_authentic(tmp_path: Path) -> None:
    write(turn_paths(tmp_path, 1), OWN)
    write(turn_paths(tmp_path, 2), OWN)
    session = turn_paths(tmp_path, 3).path.parent  # its process died before writing
    assert find_owner_mark(evidence_of(session), AS_OWN) == OWN
    for number in (1, 2, 3):
        paths = turn_paths(tmp_path, number)
        before = paths.journal.read_bytes() if paths.journal.exists() else b""
        paths.journal.unlink(missing_ok=True)
        write(paths, OTHER, "as a stranger")
        assert find_owner_mark(evidence_of(session), AS_OWN) is None
        paths.journal.write_bytes(before)
    assert find_owner_mark(evidence_of(session), AS_OWN) == OWN


def test_turn_of_another_session_of_the_same_user_is_rejected(tmp_path: Path) -> None:
    one, other = turn_paths(tmp_path, 1, "one"), turn_paths(tmp_path, 2, "other")
    write(one, new_mark())
    write(other, new_mark())
    assert is_own(one.path.parent) and is_own(other.path.parent)
    shutil.copytree(other.path, one.path.with_name("turn_2"))
    assert not is_own(one.path.parent)


def test_an_owner_renames_moves_forks_and_strips_a_session(tmp_path: Path) -> None:
    mark = new_mark()
    paths = turn_paths(tmp_path)
    write(paths, mark)
    write(turn_paths(tmp_path, 2), mark)
    session = rename_session(paths.path.parent, "renamed")
    assert is_own(session)
    session = Path(shutil.move(session, tmp_path / "elsewhere"))
    assert is_own(session)
    assert is_own(fork_session(session, 1, datetime.now()).path)
    strip_session(session)
    assert not turns_of(session)[0].journal.exists()
    assert is_own(session)


def test_trusted_session_is_accepted_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, foreign = turn_paths(tmp_path, 1), turn_paths(tmp_path, 2)
    write_unmarked(old, started(), answer("ada", "x"), COMPLETED)
    foreign.metadata.write_text('{"status": "incomplete"}')  # as MassGen's, without a journal
    foreign.answer.write_text("half")
    session = old.path.parent
    assert not is_own(session)
    mark = confirm_turns(evidence_of(session))
    assert find_owner_mark(evidence_of(session), user_mark) == mark
    write(turn_paths(tmp_path, 3), mark)
    assert is_own(session)
    assert is_own(fork_session(session, 2, datetime.now()).path)
    with monkeypatch.context() as elsewhere:
        move_in(elsewhere, tmp_path / "another home")
        assert not is_own(session)
        confirm_turns(evidence_of(session))
        assert is_own(session)
    assert is_own(session)
    for file in (old.journal, foreign.metadata, foreign.answer):
        text = file.read_text()
        file.write_text(text.replace("half", "all").replace('"x"', '"y"').replace("inc", "c"))
        assert not is_own(session), file
        file.write_text(text)
    assert is_own(session)


def test_a_confirmation_on_another_turn_does_not_count(tmp_path: Path) -> None:
    one, other = turn_paths(tmp_path, 1, "one"), turn_paths(tmp_path, 1, "other")
    write_unmarked(one, started(), answer("ada", "x"), COMPLETED)
    write_unmarked(other, started(), answer("ada", "rm -rf"), COMPLETED)
    confirm_turns(evidence_of(one.path.parent))
    shutil.copy(one.path / "mark.json", other.path)
    assert not is_own(other.path.parent)


LONG = json.dumps({"a": "x" * 9_999})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"\\ud800": "\\udfff"}', "{}", LONG])
def test_a_confirmation_that_cannot_be_read_does_not_count(tmp_path: Path, text: str) -> None:
    paths = turn_paths(tmp_path)
    write_unmarked(paths, started(), COMPLETED)
    (paths.path / "mark.json").write_text(text)
    assert not is_own(paths.path.parent)
    confirm_turns(evidence_of(paths.path.parent))
    assert is_own(paths.path.parent)


def test_key_is_created_once_atomically_and_privately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_in(monkeypatch, tmp_path)
    with ThreadPoolExecutor(8) as pool:
        marks = set(pool.map(user_mark, ["same"] * 40))
    assert len(marks) == 1
    [key] = (user_state_path("nb_agents")).iterdir()
    assert len(key.read_bytes()) == 32 and stat.S_IMODE(key.stat().st_mode) == 0o600
    assert marks.pop().key != key.read_bytes()


def test_without_a_stored_key_sessions_are_accepted_only_in_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("no directory")
    move_in(monkeypatch, tmp_path / "home")
    paths = turn_paths(tmp_path)
    write(paths, new_mark())
    assert is_own(paths.path.parent)


def test_process_with_a_mark_accepts_only_that_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, session = new_mark(), turn_paths(tmp_path).path.parent
    write(turn_paths(tmp_path), mark)
    write(turn_paths(tmp_path, 1, "another"), new_mark())
    move_in(monkeypatch, tmp_path / "of a worker")
    assert not is_own(session)
    with using_mark(mark):
        assert is_own(session) and not is_own(tmp_path / "another")
        assert new_mark() == mark
    assert not is_own(session)


def test_key_is_in_no_text(tmp_path: Path) -> None:
    mark = new_mark()
    assert repr(mark.key) not in repr(mark)
    write(turn_paths(tmp_path), mark)
    assert mark.name in turn_paths(tmp_path).journal.read_text()


def test_text_of_a_model_cannot_set_the_mark(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    journal = Journal(paths.journal, OWN)
    text = ',"mark":"x","mac":"AAAAAAAAAAAAAAAA"}'
    streamed = TextStreamed(agent="ada", call=1, channel="answer", text=text)
    for event in stamped(started(task=text), streamed):
        journal.append(event)
    journal.close()
    assert find_owner_mark(evidence_of(paths.path.parent), AS_OWN) == OWN
