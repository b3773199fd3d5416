"""The journal stays readable, whatever happens to the process or the disk."""

import codecs
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents
from nb_agents.events import EVENT, Event, Noticed
from nb_agents.options import RunOptions
from nb_agents.session.journal import Journal, JournalReader, read_journal
from nb_agents.testing import Answer, ScriptedModel, Turn, scripted_team
from tests import processes
from tests.strategies import EVENTS, STARTED

FULL_DISK = """
import resource, sys
from pathlib import Path
from nb_agents.events import Noticed
from nb_agents.session.journal import Journal
journal = Journal(Path(sys.argv[1]))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for n in range(1, 51):
    journal.append(Noticed(text=f"line {n}", seq=n))
failed = journal.error
journal.sync()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.append(Noticed(text="line 51", seq=51))
print(failed.strerror if failed else "", "|", journal.error)
journal.close()
"""

WRITER = """
import sys
from pathlib import Path
from nb_agents.events import Noticed
from nb_agents.session.journal import Journal
journal = Journal(Path(sys.argv[1]))
seq = int(sys.argv[2])
while True:
    seq += 1
    journal.append(Noticed(text="x" * (seq * 37 % 5000), seq=seq))
    print(seq, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def note(number: int) -> Noticed:
    return Noticed(text=f"note {number}", seq=number)


def write(path: Path, *events: Event) -> None:
    journal = Journal(path)
    for event in events:
        journal.append(event)
    journal.close()
    assert journal.error is None


def add_bytes(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


@given(st.lists(EVENTS, max_size=8))
def test_written_events_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    write(path, *events)
    recovered = read_journal(path)
    assert (recovered.events, recovered.warnings) == (tuple(events), ())


@given(st.text(max_size=20))
def test_any_text_survives_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    write(path, Noticed(text=text))
    (event,) = read_journal(path).events
    assert event == Noticed(text=text)


@pytest.mark.parametrize(
    "text",
    ["line\u2028separator", "\u2029", "\x85", "\0", "\r\n", "\\ud800", "😀", "\ufeff"],
)
def test_unicode_line_separators_do_not_end_a_journal_line(path: Path, text: str) -> None:
    write(path, Noticed(text=text), note(2))
    data = path.read_bytes()
    assert data.count(b"\n") == 2 and data.isascii()
    first, second = read_journal(path).events
    assert second == note(2)
    assert first == Noticed(text=text)


def test_a_torn_last_line_is_dropped_and_cut_before_the_next_append(path: Path) -> None:
    write(path, note(1))
    add_bytes(path, b'{"kind": "noticed", "text": "half')
    assert read_journal(path).events == (note(1),)
    assert read_journal(path).warnings == ()
    write(path, note(2))
    recovered = read_journal(path)
    assert (recovered.events, recovered.warnings) == ((note(1), note(2)), ())


@pytest.mark.parametrize("tail", [1, 65_535, 65_536, 65_537, 200_000])
def test_a_torn_tail_of_any_length_is_cut(path: Path, tail: int) -> None:
    for before in ((), (note(1),)):
        path.unlink(missing_ok=True)
        write(path, *before)
        add_bytes(path, b"x" * tail)
        write(path, note(2))
        assert read_journal(path).events == (*before, note(2))
        assert read_journal(path).warnings == ()


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"\0" * 300,
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'{"kind": "From the future"}',
        b'{"kind": "noticed"}',
        b"[" * 100_000,
    ],
    ids=lambda b: repr(b[:20]),
)
def test_invalid_line_in_the_middle_is_skipped_with_a_warning(path: Path, line: bytes) -> None:
    write(path, note(1))
    add_bytes(path, line + b"\n")
    write(path, note(3))
    recovered = read_journal(path)
    assert recovered.events == (note(1), note(3))
    assert recovered.warnings == ("events.jsonl: line 2 can't be read and was skipped",)


def test_many_invalid_lines_give_one_warning(path: Path) -> None:
    write(path, note(1))
    add_bytes(path, b"rubbish\n" * 10_000)
    write(path, note(2))
    recovered = read_journal(path)
    assert recovered.events == (note(1), note(2))
    [told] = recovered.warnings
    assert told == "events.jsonl: 10000 lines can't be read and were skipped (the first is line 2)"


@pytest.mark.parametrize("at", [1e308, math.nan, math.inf, -math.inf, -1.0, 1e12])
def test_impossible_time_is_replaced_by_that_of_the_previous_line(path: Path, at: float) -> None:
    said = [Noticed(text=str(n), at=100.0 + n) for n in range(4)]
    for wrong in range(4):
        path.unlink(missing_ok=True)
        write(path, *(replace(e, at=at) if n == wrong else e for n, e in enumerate(said)))
        recovered = read_journal(path)
        assert [e.text for e in recovered.events] == ["0", "1", "2", "3"]  # type: ignore[union-attr]
        assert [e.at for e in recovered.events][wrong] == (101.0 if wrong == 0 else 99.0 + wrong)
        line = f"events.jsonl: line {wrong + 1} has a number out of range, which was corrected"
        assert recovered.warnings == (line,)


@given(
    st.lists(st.one_of(st.floats(1.0, 1e9), st.sampled_from([1e308, -1.0, math.inf])), max_size=8),
    st.lists(st.integers(1, 3), max_size=8),
)
def test_reading_a_growing_journal_gives_the_same_events_as_loading_it(
    times: list[float], chunks: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "events.jsonl")
        path.touch()
        reader, live = JournalReader(path), list[Event]()
        said = [Noticed(text=str(n), at=at) for n, at in enumerate([1.0, *times])]
        while said:
            size = chunks.pop() if chunks else len(said)
            write(path, *said[:size])
            said = said[size:]
            live += reader.read()
        assert tuple(live) == read_journal(path).events


def test_nul_bytes_that_a_power_loss_left_at_the_end_are_cut(path: Path) -> None:
    write(path, note(1))
    add_bytes(path, b"\0" * 5000)
    write(path, note(2))
    assert read_journal(path).events == (note(1), note(2))


def test_blank_lines_are_ignored(path: Path) -> None:
    write(path, note(1))
    add_bytes(path, b"\n \r\n")
    write(path, note(2))
    assert read_journal(path) == read_journal(path)
    assert read_journal(path).warnings == ()


def test_journal_of_a_newer_version_gives_a_warning(path: Path) -> None:
    add_bytes(path, EVENT.dump_json(STARTED).replace(b'"schema_version":1', b'"schema_version":9'))
    add_bytes(path, b'\n{"kind": "from_the_future"}\n')
    recovered = read_journal(path)
    assert len(recovered.events) == 2
    assert "newer" in recovered.warnings[-1]


def test_a_missing_or_unreadable_journal_is_a_warning(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none").warnings == ("none is missing",)
    (tmp_path / "folder").mkdir()
    assert "can't be read" in read_journal(tmp_path / "folder").warnings[0]


def test_journal_can_be_closed_twice(path: Path) -> None:
    journal = Journal(path)
    journal.append(note(1))
    journal.close()
    journal.close()
    journal.sync()
    assert read_journal(path).events == (note(1),)


def test_each_event_is_on_disk_when_append_returns(path: Path) -> None:
    journal = Journal(path)
    for number in range(1, 4):
        journal.append(note(number))
        assert len(read_journal(path).events) == number
    journal.close()


def test_a_write_that_fails_halfway_is_finished_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, real = Journal(path), os.write
    room = [10]

    def filling(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = real(fd, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", filling)
    journal.append(note(1))
    journal.append(note(2))
    assert journal.error is not None and journal.error.errno == 28
    assert read_journal(path).events == ()
    room[0] = 10**6
    journal.flush()
    assert journal.error is None
    journal.close()
    assert read_journal(path).events == (note(1), note(2))


def test_failed_sync_sets_the_error_and_is_retried(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    journal.append(note(1))
    tried: list[int] = []

    def fails_once(fd: int) -> None:
        tried.append(fd)
        if len(tried) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails_once)
    journal.sync()
    assert journal.error is not None and journal.error.errno == 5
    journal.sync()
    journal.sync()  # a no-op, as all is synced
    assert len(tried) == 2
    journal.close()


def test_full_disk_loses_nothing_after_space_is_freed(path: Path) -> None:
    assert processes.output(FULL_DISK, path).strip() == "File too large | None"
    recovered = read_journal(path)
    assert recovered.warnings == ()
    assert [e.seq for e in recovered.events] == list(range(1, 52))
    assert recovered.events[-1] == Noticed(text="line 51", seq=51)


def test_sigkill_at_any_moment_leaves_a_usable_journal(path: Path) -> None:
    chance, written = random.Random(7), 0
    for _ in range(3):
        with processes.python(WRITER, path, written) as process:
            for _ in range(chance.randint(1, 200)):
                told = int(processes.line(process))
            process.kill()
        recovered = read_journal(path)
        assert recovered.warnings == ()
        assert [e.seq for e in recovered.events] == list(range(1, len(recovered.events) + 1))
        # All events for which append had returned are there.
        assert len(recovered.events) >= told
        written = len(recovered.events)


def test_a_byte_order_mark_hides_no_event(path: Path) -> None:
    events = [note(1), note(2), note(3)]
    write(path, *events)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_journal(path).events == tuple(events)
    assert not read_journal(path).warnings
    reader = JournalReader(path)
    assert reader.read() == events
    with open(path, "ab") as file:
        file.write(EVENT.dump_json(note(4)) + b"\n")
    assert reader.read() == [note(4)]


def test_session_with_byte_order_marks_can_be_resumed(
    tmp_path: Path,
) -> None:
    options = RunOptions(session_root=tmp_path)
    broken = scripted_team(a=ScriptedModel(Turn(error=ValueError("broken"))))
    run = nb_agents.start("Why?", broken, "lab", options=options)
    run.wait(raise_on_stop=False)
    for name in ("events.jsonl", "metadata.json"):
        file = run.path / name
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    again = nb_agents.resume("lab", scripted_team(a=ScriptedModel(Answer("So."))), options=options)
    assert again.wait() == "So."
