"""The stored turns and sweeps, copied to where loading may repair their files."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from nb_agents import events as ev
from tests.kit.sessions import TurnPaths, read_journal
from tests.kit.sweeps import SWEEP_FILE

__all__ = [
    "JOURNALS",
    "add_missing_kinds",
    "missing_kinds",
    "root",
    "stored_sweeps",
    "stored_turns",
    "sweep_at",
    "turn_at",
    "unread_journals",
]

JOURNALS = Path(__file__).parent / "journals"
OLD = Path(__file__).parents[1] / "session" / "journals"
"""A session of each minor version."""

EVERY_KIND = JOURNALS / "every-kind" / "turn_1" / "events.jsonl"
"""A journal that no turn has written: it has the kinds of events that are in no other one."""

_copy = tempfile.TemporaryDirectory(prefix="nb-agents-golden-")


@cache
def root() -> Path:
    """Return a session root with copies of all stored sessions and sweeps."""
    place = Path(_copy.name).resolve()
    for name, source in _sources().items():
        shutil.copytree(source, place / name)
    return place


def turn_at(name: str) -> TurnPaths:
    """Return the copy of a stored turn, by its name as of `stored_turns`."""
    session, _, number = name.rpartition("-")
    return TurnPaths(root() / session / f"turn_{number}")


def sweep_at(name: str) -> Path:
    """Return the directory of the copy of a stored sweep."""
    return root() / name


def stored_turns() -> list[str]:
    """Return the names of the stored turns, as SESSION-NUMBER, but for those of sweeps."""
    return [
        f"{name}-{turn.name.removeprefix('turn_')}"
        for name, source in _sources().items()
        for turn in sorted(source.glob("turn_*"))
    ]


def stored_sweeps() -> list[str]:
    """Return the names of the stored sweeps."""
    return [name for name, source in _sources().items() if (source / SWEEP_FILE).exists()]


def _sources() -> dict[str, Path]:
    versions = sorted(OLD.glob("*/*"))
    old = {f"{session.parent.name}-{session.name}": session for session in versions}
    return old | {session.name: session for session in sorted(JOURNALS.iterdir())}


def unread_journals() -> dict[str, tuple[str, ...]]:
    """Return what can't be read of the stored journals, by their paths."""
    paths = sorted(JOURNALS.rglob("events.jsonl"))
    read = {path.relative_to(JOURNALS).as_posix(): read_journal(path).warnings for path in paths}
    return {path: warnings for path, warnings in read.items() if warnings}


def missing_kinds() -> list[str]:
    """Return the kinds of events that are in no stored journal."""
    journals = sorted(JOURNALS.glob("**/events.jsonl"))
    stored = {event.kind for path in journals for event in read_journal(path).events}
    return [kind for kind in ev.KINDS if kind not in stored]


def add_missing_kinds() -> None:
    """Store an event of each kind that no journal has; older lines stay as they are."""
    lines = EVERY_KIND.read_bytes().splitlines()
    for seq, kind in enumerate(missing_kinds(), len(lines) + 1):
        fields = _sample_of(ev.KINDS[kind]) | {"seq": seq, "at": 1_800_000_000.0 + seq}
        lines.append(json.dumps(fields, separators=(",", ":")).encode())
    EVERY_KIND.write_bytes(b"".join(line + b"\n" for line in lines))


def _sample_of(cls: type[Any]) -> dict[str, Any]:
    """Return the JSON of an instance that has a value in each field."""
    hints = get_type_hints(cls)
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    else:
        names = list(cls._fields)
    return {name: _sample(hints[name], name) for name in names}


def _sample(annotation: Any, name: str) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _sample(args[0], name)
    if origin is Literal:
        return args[0]
    if origin in (Union, UnionType):
        return _sample(next(each for each in args if each is not NoneType), name)
    if origin is tuple:
        return [_sample(args[0], name)]
    if origin is dict or annotation is Any:
        return {name: f"the {name}"}
    if annotation in (bool, int, float):
        return annotation(3)
    return f"the {name}" if annotation is str else _sample_of(annotation)
