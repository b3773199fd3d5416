"""The size of a session on disk, and its effect on a stop, a read and a resume."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nb_agents
from bench.server import BenchServer
from bench.table import print_table, spread, verdict
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.runs import preview
from tests.kit.sessions import Journal, load_session, read_journal
from tests.kit.views import fold

REPEATS = 5
FOLDED_EVENTS = 100_000
FOLD_S = 1.0
TURNS = 100
SMALL_FILES = 10_000
LARGE_FILE_BYTES = 1_000_000_000
POLL_S = 0.0005


def main(server: BenchServer) -> None:
    _print_turn_sizes()
    _print_reading()
    _print_stops()


def _print_turn_sizes() -> None:
    rows = [_turn_size(size) for size in (1_000, 10_000, 100_000)]
    head = ("answer, characters", "journal, bytes", "bytes per character", "ms per turn")
    print_table("disk: one agent's turn against the size of its answer", head, rows)


def _turn_size(size: int) -> list[str]:
    taken: list[float] = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as root:
            team = scripted_team(a=ScriptedModel(Answer("word " * (size // 5))))
            began = time.perf_counter()
            run = nb_agents.start("t", config=team, options=RunOptions(session_root=root))
            run.wait()
            taken.append((time.perf_counter() - began) * 1000)
            journal = (run.path / "events.jsonl").stat().st_size
    return [str(size), str(journal), f"{journal / size:.1f}", spread(taken, 1)]


def _print_reading() -> None:
    with tempfile.TemporaryDirectory() as root:
        journal = _long_journal(Path(root))
        folding = _times(lambda: fold(read_journal(journal).events))
        _many_turns(root)
        looking = _times(lambda: load_session(Path(root, "long")))
        previewing = _times(lambda: preview("long", session_root=root))
    is_met = sorted(folding)[len(folding) // 2] <= FOLD_S
    rows = [
        [f"read and fold {FOLDED_EVENTS} events", spread(folding), f"<= {FOLD_S}", verdict(is_met)],
        [f"load a session of {TURNS} turns", spread(looking), "", ""],
        [f"find what to resume among {TURNS} turns", spread(previewing), "", ""],
    ]
    print_table("disk: seconds to read, median of 5", ("what", "seconds", "aim", ""), rows)


def _long_journal(root: Path) -> Path:
    path = root / "events.jsonl"
    journal = Journal(path)
    agents = tuple(ev.AgentInfo(id=f"a{n}", model="m") for n in range(3))
    journal.append(ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=1800))
    for number in range(FOLDED_EVENTS):
        agent, call = f"a{number % 3}", number // 60 + 1
        if number % 20 == 0:
            journal.append(ev.ModelStarted(agent=agent, call=call, seq=number))
        text = ev.TextStreamed(agent=agent, call=call, channel="text", text="a few words ")
        journal.append(text)
    journal.close()
    return path


def _many_turns(root: str) -> None:
    for number in range(TURNS - 1):
        team = scripted_team(a=ScriptedModel(Answer(f"answer {number}")))
        nb_agents.start(
            "t", config=team, session="long", options=RunOptions(session_root=root)
        ).wait()
    run = _hanging(root, "long")
    run.stop(now=True)
    run.wait(raise_on_stop=False)


def _print_stops() -> None:
    rows = [
        ["an empty workspace", *_stops(lambda workspace: None)],
        [f"{SMALL_FILES} files of 100 bytes", *_stops(_small_files)],
        [f"one file of {LARGE_FILE_BYTES // 10**9} GB", *_stops(_large_file)],
    ]
    title = "disk: seconds from an immediate stop, median of 5 (aim for the turn on disk: the same)"
    head = ("workspace", "turn on disk", "files listed, wait() returns", "resume() returns")
    print_table(title, head, rows)


def _stops(fill: Callable[[Path], None]) -> list[str]:
    taken = [_stop(fill) for _ in range(REPEATS)]
    return [spread(list(times)) for times in zip(*taken, strict=True)]


def _stop(fill: Callable[[Path], None]) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as root:
        run = _hanging(root, "s")
        fill(run.path / "workspaces" / "a")
        began = time.perf_counter()
        run.stop(now=True)
        while not _is_on_disk(run):
            time.sleep(POLL_S)
        on_disk = time.perf_counter() - began
        run.wait(raise_on_stop=False)
        over = time.perf_counter() - began
        began = time.perf_counter()
        again = run.resume(config=scripted_team(a=ScriptedModel(Answer("an answer"))))
        resumed = time.perf_counter() - began
        again.wait()
        return on_disk, over, resumed


def _is_on_disk(run: nb_agents.Run) -> bool:
    """Return whether the turn's last line and final files are on disk now."""
    status = json.loads((run.path / "metadata.json").read_bytes())["run_status"]
    return status == "cancelled" and b'"turn_ended"' in (run.path / "events.jsonl").read_bytes()


def _hanging(root: str, session: str) -> nb_agents.Run:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Turn(text="some words ", gate=gate)))
    run = nb_agents.start("t", config=team, session=session, options=RunOptions(session_root=root))
    gate.wait_reached()
    return run


def _small_files(workspace: Path) -> None:
    for number in range(SMALL_FILES):
        (workspace / f"{number}.txt").write_text("x" * 100)


def _large_file(workspace: Path) -> None:
    with open(workspace / "large.bin", "wb") as file:
        file.truncate(LARGE_FILE_BYTES)


def _times(action: Callable[[], object]) -> list[float]:
    taken: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return taken
