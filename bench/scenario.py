"""Three concurrent agents are stopped or killed, and resumed: losses and repeated calls."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.server import BenchServer
from bench.table import print_table
from tests.turns.scenario import ANSWERS, Resumed, Stop, Stopped, ToolKind, scenario

REPEATS = 3
WORD_S = 0.03
WORDS_BEFORE = 60
ENDING_WORDS = 150
ENDING_TOOL = "sleep 6"

_TOOLS: dict[ToolKind, str] = {
    "run_command": "run_command",
    "tidy": "async function that ends its child",
    "bare": "async function that does not",
}


class Played(NamedTuple):
    """One scenario: what the stop left, and what a new process made of it."""

    left: Stopped
    done: Resumed


def main(server: BenchServer) -> None:
    rows = [_row(tool, "now", _played(tool, "now"), _played(tool, "kill")) for tool in _TOOLS]
    rows.insert(1, _row("run_command", "graceful, f", _played("run_command", "graceful"), []))
    print_table(
        "scenario S in nb_agents, by tool and stop: a has answered, b is streaming (30 ms per "
        "word), and c is inside a call to a tool that takes 30 s. The run is stopped after "
        f"{WORDS_BEFORE} words of b, and resumed in a new process\n"
        f"times: the minimum and maximum of {REPEATS} runs\n"
        f"f: b ends after {ENDING_WORDS} words, and the tool after 6 s. If the tool's command is "
        "not run again, c's model learns that it was interrupted",
        (
            *("c's tool, stop", "(1) streams closed, ms", "(2) control back, ms"),
            *("(3) a's answer", "(4) b's words", "(5) tool's processes"),
            "(6) re-sent / tool again / works",
            "(7) kill -9: a / b words / re-sent / tool again / works / processes",
        ),
        rows,
    )


def _played(tool: ToolKind, how: Stop) -> list[Played]:
    return [_play(tool, how) for _ in range(REPEATS)]


def _play(tool: ToolKind, how: Stop) -> Played:
    ends: dict[str, Any] = {"words": ENDING_WORDS, "work": ENDING_TOOL} if how == "graceful" else {}
    with tempfile.TemporaryDirectory() as root, scenario(Path(root), tool, **ends) as s:
        s.set_pace(1 / WORD_S)
        with s.started() as process:
            s.server.wait_chunks(WORDS_BEFORE, "b")
            left = s.stopped(process, s.stop(process, how))
        return Played(left, s.resumed())


def _row(
    tool: ToolKind, how: str, stopped: Sequence[Played], killed: Sequence[Played]
) -> list[str]:
    left = [each.left for each in stopped]
    return [
        f"{_TOOLS[tool]}, {how}",
        _range([(each.closed - each.asked) * 1000 for each in left]),
        _range([(each.back - each.asked) * 1000 for each in left]),
        *(_has_answer(left), _words(left), _alive(left), _resumed(stopped)),
        _killed(killed) if killed else "as above",
    ]


def _killed(played: Sequence[Played]) -> str:
    left = [each.left for each in played]
    return " / ".join([_has_answer(left), _words(left), _resumed(played), _alive(left)])


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1f}-{max(values):.1f}"


def _each(values: Sequence[object]) -> str:
    """Word what is the same in all runs once."""
    return ", ".join(dict.fromkeys(map(str, values)))


def _has_answer(left: Sequence[Stopped]) -> str:
    return _each(["yes" if each.answers.get("a") == ANSWERS["a"] else "no" for each in left])


def _words(left: Sequence[Stopped]) -> str:
    """Count the words kept of those sent; others than were sent count as none."""
    kept = [len(e.kept) if e.kept == e.sent[: len(e.kept)] else 0 for e in left]
    return _each([f"{count}/{len(each.sent)}" for count, each in zip(kept, left, strict=True)])


def _alive(left: Sequence[Stopped]) -> str:
    return _each(["alive" if each.alive else "ended" for each in left])


def _resumed(played: Sequence[Played]) -> str:
    done = [each.done for each in played]
    again = _each([f"{len(d.sent_again)} of {d.finished}" for d in done])
    tools = _each(["no" if d.tool_runs == 1 else "yes" for d in done])
    works = _each(["yes" if d.answers == ANSWERS else "no" for d in done])
    return f"{again} / {tools} / {works}"
