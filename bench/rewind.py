"""The cost of snapshots per call, and the time from a rewind to its first new call."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import nb_agents
from bench.server import BenchServer
from bench.table import print_table, spread, verdict
from nb_agents import RunOptions
from nb_agents.testing import ScriptedModel, Turn, scripted_team
from tests.kit.processes import WritablePath
from tests.kit.sessions import read_journal
from tests.kit.snapshots import Index, LocationScan, SnapshotStore, UserFiles

REPEATS = 7
CHANGED = 5
FILE_BYTES = 2_000
EDIT_MS = 2.0
SHELL_MS = {100: 5.0, 1_000: 5.0, 10_000: 40.0}
FIRST_CALL_S = 0.5
EVENTS = 5_000
FILES = 10_000


def main(server: BenchServer) -> None:
    # First, before anything is deleted: for minutes, ext4 passes over each number of a file that
    # is gone whenever it makes one, which costs more than all else here.
    long_turns = _long_turns()
    rows = [_kept(count) for count in SHELL_MS]
    head = ("files", "edit, ms", "", "command, ms", "", "first, ms", "laid, ms", "disk/changed")
    print_table(f"rewind: keeping a workspace of which {CHANGED} files changed", head, rows)
    head = ("files", "command, ms", "", "CPU, ms", "first, ms")
    rows = [_own(count) for count in SHELL_MS if count >= 1_000]
    print_table(
        f"own files: a command in `workspace: project` that changes {CHANGED} files", head, rows
    )
    head = ("to", "events", "files", "rewind to its first new call, s", "")
    print_table("rewind: of a long turn", head, long_turns)


def _kept(count: int) -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        work, store = Path(place, "work"), SnapshotStore(Path(place))
        _fill(work, count)
        time.sleep(0.1)  # until the clock of the file system has ticked
        began = time.perf_counter()
        known = store.snapshot(work, Index()).new_index
        first = _ms(began)
        size = _size(store.path)
        commands, edits = list[float](), list[float]()
        for number in range(REPEATS):
            changed = [f"d0/f{each}" for each in range(CHANGED)]
            _write(work, changed, number)
            began = time.perf_counter()
            known = store.snapshot(work, known).new_index
            commands.append(_ms(began))
        more = (_size(store.path) - size) / (REPEATS * CHANGED * FILE_BYTES)
        for number in range(REPEATS):
            _write(work, ["d0/f1"], number + REPEATS)
            began = time.perf_counter()
            known = store.snapshot(work, known, ["d0/f1"]).new_index
            edits.append(_ms(began))
        began = time.perf_counter()
        store.checkout(known.tree_id, Path(place, "laid"))
        laid = _ms(began)
    edit, command = sorted(edits)[REPEATS // 2], sorted(commands)[REPEATS // 2]
    return [
        str(count),
        spread(edits, 2),
        verdict(edit <= EDIT_MS),
        spread(commands, 1),
        verdict(command <= SHELL_MS[count]),
        f"{first:.0f}",
        f"{laid:.0f}",
        f"{more:.2f}",
    ]


def _own(count: int) -> list[str]:
    """Measure a command in a user directory, which is scanned before and after."""
    with tempfile.TemporaryDirectory() as place:
        work, own = Path(place, "work"), UserFiles(Path(place, "session"))
        _fill(work, count)
        time.sleep(0.1)  # until the clock of the file system has ticked
        writable, known = WritablePath(work), LocationScan()
        took, cpu = list[float](), list[float]()
        for number in range(REPEATS + 1):
            began, busy = time.perf_counter(), time.thread_time()
            known, _ = own.scan(writable, known)
            record = own.record_start(writable, known)
            before, before_cpu = _ms(began), (time.thread_time() - busy) * 1000
            _write(work, [f"d0/f{each}" for each in range(CHANGED)], number)
            began, busy = time.perf_counter(), time.thread_time()
            known, changes = own.scan(writable, known)
            own.store_changes(str(work), changes, "call")
            record.unlink()
            took.append(before + _ms(began))
            cpu.append(before_cpu + (time.thread_time() - busy) * 1000)
        first, *took = took
    is_met = sorted(took)[REPEATS // 2] <= SHELL_MS[count]
    return [str(count), spread(took, 1), verdict(is_met), spread(cpu[1:], 1), f"{first:.0f}"]


def _long_turns() -> list[list[str]]:
    """Rewind to where the files are as they are now, and to where one of them was not."""
    with tempfile.TemporaryDirectory() as place:
        asked: list[float] = []

        def reply(messages: object) -> Turn:
            asked.append(time.perf_counter())
            return Turn("Done.")

        recipe = Path(place, "recipe.yaml")
        recipe.write_text(_recipe())
        team = scripted_team(a=ScriptedModel(reply))
        options = RunOptions(session_root=Path(place))
        run = nb_agents.start("", team, "s", recipe=recipe, options=options)
        run.wait()
        events = str(len(read_journal(run.path / "events.jsonl").events))
        rows = []
        for to in ("step words", "step files"):
            took = list[float]()
            for _ in range(3):
                asked.clear()
                began = time.perf_counter()
                run.rewind(to).wait()
                took.append(asked[0] - began)
            is_met = sorted(took)[1] <= FIRST_CALL_S
            rows.append([to, events, str(FILES), spread(took, 2), verdict(is_met)])
        return rows


def _recipe() -> str:
    numbers = ", ".join(map(str, range(EVENTS // 3)))
    files = (
        f"for d in $(seq {FILES // 100}); do mkdir d$d; "
        "for i in $(seq 100); do echo $i > d$d/f$i; done; done"
    )
    return f"""\
name: long
description: d
version: 1.0.0
context: {{numbers: [{numbers}]}}
steps:
- {{id: many, foreach: "{{{{numbers}}}}", as: n, max_iterations: 9999, type: bash, command: "true"}}
- {{id: files, type: bash, command: "{files}", output: a}}
- {{id: words, type: bash, command: "echo one > f1", output: b}}
- {{id: think, agent: a, prompt: Think., output: c}}
"""


def _fill(work: Path, count: int) -> None:
    work.mkdir()
    for number in range(count):
        folder = work / f"d{number // 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"f{number}").write_bytes(os.urandom(FILE_BYTES))


def _write(work: Path, paths: list[str], number: int) -> None:
    for path in paths:
        (work / path).write_bytes(number.to_bytes(4, "big") + os.urandom(FILE_BYTES - 4))


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1000
