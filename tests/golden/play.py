"""Plays turns of every shape and stores their journals: ``python -m tests.golden.play NAME...``.

A journal is stored once and stays: later versions have to read it as it is. Times, paths and MACs
are replaced, so that nothing in it depends on the machine that played it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

from tests.golden import recipe_turns, team_turns
from tests.golden.players import PLAYERS
from tests.golden.stored import JOURNALS

__all__ = ["recipe_turns", "team_turns"]

STARTED_AT = 1_800_000_000.0
STEP_S = 1.25
MAX_SYSTEM = 100
"""Characters of a system prompt that are stored: no reader shows more."""


class _Clock:
    """Gives the moments of one session, in the order of its events."""

    def __init__(self) -> None:
        self.now = STARTED_AT

    def next(self) -> float:
        self.now += STEP_S
        return self.now


def _stored(value: Any, clock: _Clock, places: Mapping[str, str]) -> Any:
    """Return an event's JSON without what depends on the machine."""
    match value:
        case dict():
            kept = {k: v for k, v in value.items() if k not in ("mark", "mac")}
            return {k: _field(k, v, clock, places) for k, v in kept.items()}
        case list():
            return [_stored(each, clock, places) for each in value]
        case str():
            for real, shown in places.items():
                value = value.replace(real, shown)
            return re.sub(r"\bpid \d+", "pid 7", value)
    return value


def _field(name: str, value: Any, clock: _Clock, places: Mapping[str, str]) -> Any:
    match name:
        case "at":
            return clock.next()
        case "seconds" | "elapsed_s":
            return STEP_S
        case "timestamp":
            return "2027-01-15T08:00:00Z"
        case "origin":
            return "terminal:/home/ann/project"
        case "system":
            return value[:MAX_SYSTEM]
        case "response":
            return _stored(_without_defaults(value), clock, places)
    return _stored(value, clock, places)


def _without_defaults(value: Any) -> Any:
    """Return a model's message without empty fields, as pydantic-ai reads it, too."""
    if isinstance(value, list):
        return [_without_defaults(each) for each in value]
    if isinstance(value, dict):
        return {k: _without_defaults(v) for k, v in value.items() if v not in (None, 0, {})}
    return value


def _store(root: Path, session: str) -> None:
    """Copy a session's, or a sweep's, files without what depends on the machine."""
    source, target, clock = root / session, JOURNALS / session, _Clock()
    places = {
        str(root): "/home/ann/sessions",
        str(root.parent): "/home/ann/project",
        sys.executable: "python",
        str(Path(__file__).parents[1]): "/home/ann/tests",
    }
    shutil.rmtree(target, ignore_errors=True)
    for path in _files(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            shutil.copy(path, copy)
            continue
        whole = path.read_text("utf-8")
        lines = whole.splitlines() if path.suffix == ".jsonl" else [whole]
        made = (_stored(json.loads(line), clock, places) for line in lines)
        copy.write_text("".join(f"{json.dumps(e, separators=(',', ':'))}\n" for e in made), "utf-8")


def _files(source: Path) -> Iterator[Path]:
    is_sweep = (source / "sweep.json").exists()
    turns = "*/turn_*" if is_sweep else "turn_*"
    for pattern in (
        "sweep.json",
        "rows.jsonl",
        f"{turns}/events.jsonl",
        f"{turns}/workspaces/*/*.png",
    ):
        yield from sorted(source.glob(pattern))


def main(names: list[str]) -> None:
    """Play these sessions, or all, and store them."""
    for name in names or PLAYERS:
        with tempfile.TemporaryDirectory() as place, chdir(place):
            root = Path(place).resolve() / "sessions"
            root.mkdir()
            PLAYERS[name](root, name)
            _store(root, name)
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
