"""Scenario S in other libraries: the time, the losses and the repeated calls of stops and kills.

`make proof` gives them environments of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import inf
from pathlib import Path

from bench.peer_play import STOP_S, WORD_S, WORDS_BEFORE, Library, Played, play
from bench.server import BenchServer
from bench.table import print_table, spread

REPEATS = 3

ENVIRONMENTS = Path(__file__).parents[1] / ".venv"

OURS = Library("nb_agents", "nb_agents", sys.executable, answer="new_answer")


def _peer(name: str, module: str, environment: str = "bench", **more: str) -> Library:
    return Library(name, module, str(ENVIRONMENTS / environment / "bin" / "python"), **more)


LIBRARIES = (
    OURS,
    _peer("pydantic-ai-slim", "pydantic_ai"),
    _peer("langgraph", "langgraph"),
    _peer("openai-agents", "openai_agents"),
    _peer("autogen-agentchat", "autogen"),
    _peer("ag2", "ag2"),
    _peer("crewai", "crewai", "bench-crewai"),
    _peer("massgen", "massgen", "bench-massgen", answer="new_answer", tool="custom_tool__work"),
)


def main(server: BenchServer) -> None:
    versions = {each: each.version() for each in LIBRARIES}
    played: dict[Library, list[tuple[Played, Played]]] = {each: [] for each in LIBRARIES}
    for _ in range(REPEATS):
        for each in filter(versions.get, LIBRARIES):
            played[each].append((play(each, "stop"), play(each, "kill")))
    print_table(
        f"scenario S, immediate stop: a has answered, b is streaming ({WORD_S * 1000:.0f} ms per "
        "word), and c is inside a call to a plain tool that takes 30 s. The run is stopped after "
        f"{WORDS_BEFORE} words of b, and resumed in a new process\n"
        f"times: the median of {REPEATS} runs (minimum-maximum)\n"
        f"never: it did not happen within {STOP_S} s, and the process was killed",
        (
            *("library", "(1) streams closed, ms", "(2) control back, ms", "(3) a's answer"),
            *("(4) b's words", "(5) tool's process"),
            "(6) resumed: finished calls re-sent / tool run again / works",
        ),
        [
            _row(each, versions[each], [stopped for stopped, _ in played[each]])
            for each in LIBRARIES
        ],
    )
    print_table(
        f"scenario S, kill -9: as above, but the process is killed\n"
        f"times: the median of {REPEATS} runs (minimum-maximum)",
        (
            *("library", "(1) streams closed, ms", "(3) a's answer", "(4) b's words"),
            "(7) resumed: finished calls re-sent / tool run again / works",
        ),
        [
            _killed(each, versions[each], [killed for _, killed in played[each]])
            for each in LIBRARIES
        ],
    )


def _row(library: Library, version: str, played: list[Played]) -> list[str]:
    if not played:
        return [library.name, "not installed", *[""] * 5]
    return [
        *(f"{library.name} {version}", _took(e.closed for e in played)),
        *(_took(e.back for e in played), _answers(played), _words(played)),
        _each("alive" if each.is_alive else "ended" for each in played),
        _resumed(played),
    ]


def _killed(library: Library, version: str, played: list[Played]) -> list[str]:
    if not played:
        return [library.name, "not installed", *[""] * 3]
    return [
        *(f"{library.name} {version}", _took(e.closed for e in played)),
        *(_answers(played), _words(played), _resumed(played)),
    ]


def _took(times_ms: Iterable[float]) -> str:
    """Word how long something took, where it came to its end."""
    took = [each for each in times_ms if each < inf]
    return spread(took, 1) if took else "never"


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
