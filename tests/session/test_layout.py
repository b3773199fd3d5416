"""Names on disk are unique, and no two processes share one."""

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from nb_agents.errors import (
    SessionBusyError,
    SessionChangedError,
    StorageError,
    UnknownSessionError,
    UserError,
)
from nb_agents.session import layout
from nb_agents.session.layout import (
    TurnPaths,
    claim_turn,
    named_session,
    new_session,
    turns_of,
)
from tests import processes
from tests.kit.sessions import find_session

LIST = """
import sys
from pathlib import Path
from nb_agents.errors import UserError
from nb_agents.session.layout import sessions_in, turns_of
from nb_agents.session.lookup import find_session
root = Path(sys.argv[1])
print(sorted(path.name for path in sessions_in(root).by_use))
print(*sessions_in(root).unreadable)
for look in (lambda: find_session(root, "closed"), lambda: turns_of(root / "closed")):
    try:
        look()
    except UserError as exc:
        print(exc)
"""

NOW = datetime(2026, 11, 20, 12, 0, 0)

CLAIM_AND_HOLD = """
import sys
from pathlib import Path
from nb_agents.session.layout import claim_turn
paths, lock = claim_turn(Path(sys.argv[1]))
print(paths.number, flush=True)
sys.stdin.readline()
"""

CLAIM_SOME = """
import sys
from pathlib import Path
from nb_agents.errors import SessionBusyError
from nb_agents.session.layout import claim_turn
print("ready", flush=True)
sys.stdin.readline()
got = []
while len(got) < 4:
    try:
        paths, lock = claim_turn(Path(sys.argv[1]))
    except SessionBusyError:
        continue
    got.append(paths.number)
    lock.release()
print(*got)
"""


def claim(session: Path) -> int:
    """Claim a turn and release it immediately."""
    paths, lock = claim_turn(session)
    lock.release()
    return paths.number


def make_turns(session: Path, *numbers: int) -> None:
    for number in numbers:
        (session / f"turn_{number}").mkdir(parents=True)


# Sessions -----------------------------------------------------------------------------------


def test_two_sessions_in_one_second_have_two_directories(tmp_path: Path) -> None:
    made = [layout.new_session(tmp_path / "root", NOW).name for _ in range(3)]
    first = "session_20261120_120000"
    assert made == [first, f"{first}_2", f"{first}_3"]


def test_root_comes_from_argument_then_variable_then_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert layout.session_root() == tmp_path / ".nb_agents" / "sessions"
    monkeypatch.setenv(layout.SESSIONS_VARIABLE, "elsewhere")
    assert layout.session_root() == tmp_path / "elsewhere"
    assert layout.session_root(tmp_path / "here") == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert layout.session_root("~/mine") == tmp_path / "mine"


@pytest.mark.parametrize("name", ["", ".", "..", "../out", "a/b", "/abs", "a\0b", "nul", "x" * 65])
def test_unsafe_session_name_is_a_user_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="directory name"):
        layout.named_session(tmp_path / "root", name)
    assert list(tmp_path.iterdir()) == []


def test_named_session_is_created_once(tmp_path: Path) -> None:
    path = layout.named_session(tmp_path / "root", "my work")
    assert path == tmp_path / "root" / "my work"
    assert layout.named_session(tmp_path / "root", "my work") == path


def test_unwritable_root_gives_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    root = tmp_path / "file" / "sessions"
    for make in (
        lambda: layout.new_session(root, NOW),
        lambda: layout.named_session(root, "mine"),
        lambda: claim_turn(root / "mine"),
    ):
        with pytest.raises(StorageError, match="--session-root"):
            make()


def test_a_root_that_does_not_exist_has_no_sessions(tmp_path: Path) -> None:
    assert layout.sessions_in(tmp_path / "nothing") == ([], [])
    with pytest.raises(UnknownSessionError, match="No session to continue"):
        find_session(tmp_path / "nothing")


def test_the_session_used_last_comes_first(tmp_path: Path) -> None:
    for name, age in (("old", 100), ("new", 300), ("empty", None), ("middle", 200)):
        make_turns(tmp_path / name, *([1] if age else []))
        if age:
            journal = tmp_path / name / "turn_1" / "events.jsonl"
            journal.touch()
            os.utime(journal, (age, age))
    (tmp_path / "a file").touch()
    (tmp_path / "empty").mkdir()
    assert [p.name for p in layout.sessions_in(tmp_path).by_use] == ["new", "middle", "old"]
    # Reading an old session may repair its files; that does not count as use.
    (tmp_path / "old" / "turn_1" / "metadata.json").touch()
    assert [p.name for p in layout.sessions_in(tmp_path).by_use] == ["new", "middle", "old"]


def test_unreadable_session_does_not_hide_others(tmp_path: Path) -> None:
    def listed() -> list[str]:
        return processes.output(LIST, tmp_path, before=processes.BOUND_BY_PERMISSIONS).splitlines()

    for name in ("open", "closed", "other"):
        make_turns(tmp_path / name, 1)
    (tmp_path / "closed").chmod(0)
    names, *said = listed()
    (tmp_path / "closed").chmod(0o755)
    assert names == "['open', 'other']"
    sentence = f"Can't read {str(tmp_path / 'closed')!r}: Permission denied."
    assert said == [f"{sentence} Fix its permissions or move it elsewhere."] * 3
    tmp_path.chmod(0)
    names, said_of_root, *_ = listed()
    tmp_path.chmod(0o755)
    assert names == "[]"
    assert said_of_root.startswith(f"Can't read {str(tmp_path)!r}: Permission denied.")


def test_similar_session_name_is_suggested(tmp_path: Path) -> None:
    make_turns(tmp_path / "session_20261120_120000", 1)
    with pytest.raises(UnknownSessionError, match="Did you mean 'session_20261120_120000'"):
        find_session(tmp_path, "session_20261120_120001")
    with pytest.raises(UnknownSessionError):
        find_session(tmp_path, "../" + tmp_path.name + "/session_20261120_120000")


# Turns --------------------------------------------------------------------------------------


def test_turns_are_numbered_from_one_and_a_number_is_never_used_again(tmp_path: Path) -> None:
    assert [claim(tmp_path) for _ in range(3)] == [1, 2, 3]


def test_gap_in_turn_numbers_is_not_filled(tmp_path: Path) -> None:
    make_turns(tmp_path, 2, 7, 10)
    assert claim(tmp_path) == 11
    assert [t.number for t in turns_of(tmp_path)] == [2, 7, 10, 11]


def test_directories_with_other_names_are_not_turns(tmp_path: Path) -> None:
    for name in ("turn_0", "turn_01", "turn_x", "turn_1.bak", "Turn_3", "turn_-1", "workspace"):
        (tmp_path / name).mkdir()
    (tmp_path / "turn_5").touch()
    assert turns_of(tmp_path) == []
    assert turns_of(tmp_path / "missing") == []


def test_paths_are_absolute_and_named_as_massgen_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths, lock = claim_turn(Path("session_x"))
    with lock:
        assert paths == TurnPaths(tmp_path / "session_x" / "turn_1")
        assert (paths.session, paths.number) == ("session_x", 1)
        names = {
            p.name for p in (paths.metadata, paths.answer, paths.partial_answers, paths.workspaces)
        }
        assert names == {"metadata.json", "answer.txt", "partial_answers.json", "workspaces"}
        assert paths.summary == tmp_path / "session_x" / "SESSION_SUMMARY.txt"
        assert paths.workspaces.is_dir()


def test_a_live_turn_refuses_a_second_claim(tmp_path: Path) -> None:
    paths, lock = claim_turn(tmp_path)
    assert paths.is_live()
    with pytest.raises(SessionBusyError, match="another process"):
        claim_turn(tmp_path)
    with pytest.raises(SessionBusyError, match="run r7"):
        claim_turn(tmp_path, lambda session: "run r7")
    lock.release()
    assert not paths.is_live()
    assert claim(tmp_path) == 2


@pytest.mark.parametrize("known", [0, 1])
def test_claim_fails_if_there_is_a_later_turn(tmp_path: Path, known: int) -> None:
    make_turns(tmp_path, *range(1, known + 1))
    paths, lock = claim_turn(tmp_path, after=known)
    lock.release()
    assert paths.number == known + 1
    with pytest.raises(SessionChangedError, match=f"has added turn {known + 1} to session"):
        claim_turn(tmp_path, after=known)
    assert [turn.number for turn in turns_of(tmp_path)] == list(range(1, known + 2))


def test_a_turn_of_another_process_is_live_until_that_process_dies(tmp_path: Path) -> None:
    with processes.python(CLAIM_AND_HOLD, tmp_path) as process:
        number = int(processes.line(process))
        (turn,) = turns_of(tmp_path)
        assert turn.number == number and turn.is_live()
        with pytest.raises(SessionBusyError):
            claim_turn(tmp_path)
        process.kill()  # SIGKILL, so the process can't clean up
        process.wait()
        assert not turn.is_live()
        assert claim(tmp_path) == number + 1


def test_concurrent_claims_never_get_the_same_number(tmp_path: Path) -> None:
    with (
        processes.python(CLAIM_SOME, tmp_path) as one,
        processes.python(CLAIM_SOME, tmp_path) as two,
        processes.python(CLAIM_SOME, tmp_path) as three,
    ):
        all_three = (one, two, three)
        assert {processes.line(p) for p in all_three} == {"ready"}
        for process in all_three:
            processes.tell(process)
        numbers = [int(n) for p in all_three for n in processes.line(p).split()]
    assert sorted(numbers) == list(range(1, 13))


def test_turns_are_claimed_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, met, claimed = threading.Barrier(2), [], []

    def watched(session: Path) -> list[TurnPaths]:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.1)
            met.append(session)
        return turns_of(session)

    def claim_one() -> None:
        with suppress(SessionBusyError):
            claimed.append(claim_turn(tmp_path))

    monkeypatch.setattr(layout, "turns_of", watched)
    threads = [threading.Thread(target=claim_one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (met, len(claimed)) == ([], 1)


def test_checking_a_turn_does_not_make_it_live(tmp_path: Path) -> None:
    make_turns(tmp_path, 1)
    (turn,) = turns_of(tmp_path)
    seen: list[bool] = []
    threads = [
        threading.Thread(target=lambda: seen.extend(turn.is_live() for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {False}


def test_deleted_turn_is_not_live(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not TurnPaths(tmp_path / "file" / "turn_1").is_live()


def test_session_is_found_by_name_without_reading_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "turn_1").mkdir(parents=True)
    monkeypatch.setattr(layout, "sessions_in", None)
    assert find_session(tmp_path, "mine") == tmp_path / "mine"


@pytest.mark.parametrize("name", ["../mine", "sessions/../mine", ".", "mine/turn_1"])
def test_session_name_cannot_lead_out_of_the_root(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine" / "turn_1" / "turn_1").mkdir(parents=True)
    (tmp_path / "sessions").mkdir()
    with pytest.raises(UnknownSessionError):
        find_session(tmp_path / "sessions", name)


@pytest.mark.parametrize(
    "make", [lambda root: new_session(root, NOW), lambda root: named_session(root, "a")]
)
def test_default_folder_is_ignored_by_git(make: Callable[[Path], Path], tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=200)
    session = make(tmp_path / ".nb_agents" / "sessions")
    (session / "file").touch()
    status = ["git", "-C", str(tmp_path), "status", "--porcelain"]
    assert subprocess.run(status, check=True, capture_output=True, timeout=200).stdout == b""


def test_chosen_folder_gets_no_gitignore_and_existing_ones_stay(
    tmp_path: Path,
) -> None:
    named_session(tmp_path / "mine" / "sessions", "a")
    assert not (tmp_path / "mine" / ".gitignore").exists()
    ignored = tmp_path / ".nb_agents" / ".gitignore"
    ignored.parent.mkdir()
    ignored.write_text("*.log")
    named_session(ignored.parent / "sessions", "a")
    assert ignored.read_text() == "*.log"
