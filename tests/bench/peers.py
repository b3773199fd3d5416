"""Scenario S beside other libraries: what a stop, or a kill -9, costs, leaves and pays twice.

The peers are the extra `bench`. The interpreter that `BENCH_PYTHON` names runs them, so that they
can have an environment of their own; by default it is this one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from statistics import median

from tests.bench.peer_play import WORD_S, WORDS_BEFORE, Library, Played, play
from tests.bench.server import BenchServer
from tests.bench.table import print_table, spread, verdict

REPEATS = 3
BACK_MS = 5.0

OURS = Library("nb_agents", "nb_agents", sys.executable)
LIBRARIES = (
    OURS,
    Library("pydantic-ai-slim", "pydantic_ai"),
    Library("langgraph", "langgraph"),
    Library("openai-agents", "openai_agents"),
)


def main(server: BenchServer) -> None:
    versions = {each: each.version() for each in LIBRARIES}
    played: dict[Library, list[tuple[Played, Played]]] = {each: [] for each in LIBRARIES}
    for _ in range(REPEATS):
        for each in filter(versions.get, LIBRARIES):
            played[each].append((play(each, "stop"), play(each, "kill")))
    print_table(
        f"peers: a has answered, b is mid-stream ({WORD_S * 1000:.0f} ms a word), c is inside a "
        f"plain tool of 30 s; stopped after {WORDS_BEFORE} words, resumed in a new process; median "
        f"of {REPEATS} (least-greatest)",
        (
            *("library", "control back, ms", "aim", "", "streams closed, ms"),
            *("a's answer", "b's words", "tool's process", "re-sent / tool again / works"),
            "kill -9: a / b / re-sent / tool again / works",
        ),
        [_row(each, versions[each], played[each]) for each in LIBRARIES],
    )


def _row(library: Library, version: str, played: list[tuple[Played, Played]]) -> list[str]:
    if not played:
        return [library.name, "not installed", *[""] * 8]
    stopped, killed = zip(*played, strict=True)
    back = [each.back for each in stopped]
    aim = (f"<= {BACK_MS}", verdict(median(back) <= BACK_MS)) if library == OURS else ("", "")
    return [
        *(f"{library.name} {version}", spread(back, 1), *aim),
        spread([each.closed for each in stopped], 1),
        *(_answers(stopped), _words(stopped)),
        _each("alive" if each.is_alive else "ended" for each in stopped),
        _resumed(stopped),
        " / ".join([_answers(killed), _words(killed), _resumed(killed)]),
    ]


def _answers(played: Iterable[Played]) -> str:
    return _each(_yes(each.has_answer) for each in played)


def _words(played: Iterable[Played]) -> str:
    return _each(each.words for each in played)


def _resumed(played: Iterable[Played]) -> str:
    rows = [(f"{p.resent} of 2", _yes(p.ran_again), _yes(p.works)) for p in played]
    return " / ".join(map(_each, zip(*rows, strict=True)))


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _each(values: Iterable[str]) -> str:
    """Word what is the same in all plays once."""
    return ", ".join(dict.fromkeys(values))
