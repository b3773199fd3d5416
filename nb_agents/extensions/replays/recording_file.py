"""Reads and writes the files of recordings.

A file is gzipped JSON lines: a header, then the events of each turn, after those of the earlier
turns of its session. In the recording of a group, the header also has the group and its runs.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nb_agents import events as ev
from nb_agents.config.spec import safe_name
from nb_agents.disk.directory import read_file
from nb_agents.errors import UserError
from nb_agents.extensions.replays.differences import Replacement
from nb_agents.extensions.replays.recording import (
    GroupRecording,
    Recording,
    ReplayError,
    unsupported_reason,
)
from nb_agents.json_text import json_text
from nb_agents.launch.group_record import GroupRecord
from nb_agents.presentation import text
from nb_agents.session.event_lines import read_event

TURN_FORMAT = 1
GROUP_FORMAT = 2
MAX_BYTES = 16_000_000
"""Size limit of a recording, in bytes."""
MAX_CHARS = 256_000_000
"""Size limit of an uncompressed recording, in bytes."""


def write_recording(recording: Recording | GroupRecording, path: Path) -> int:
    """Write a recording to a file, and return its size in bytes.

    Raises:
        ReplayError: The recording is too large.
        UserError: The file can't be written.
    """
    lines = [json_text(_header(recording), is_compact=True).encode(), *_lines(recording)]
    content = b"\n".join(lines)
    data = gzip.compress(content, mtime=0)
    if len(content) > MAX_CHARS or len(data) > MAX_BYTES:
        raise ReplayError(
            f"The recording would have {text.size(len(data))}, and {text.size(len(content))} "
            f"uncompressed. The limits are {text.size(MAX_BYTES)} and {text.size(MAX_CHARS)}. "
            "Record a shorter turn, or a sweep with fewer rows."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as exc:
        raise UserError(f"{path} can't be written: {exc.strerror}.") from None
    return len(data)


def _header(recording: Recording | GroupRecording) -> dict[str, Any]:
    if isinstance(recording, Recording):
        counts = [*map(len, recording.turns)]
        return {"format": TURN_FORMAT, "rules": _rules(recording), "turns": counts}
    group, runs = recording.group, recording.runs
    return {
        "format": GROUP_FORMAT,
        "rules": next(map(_rules, runs.values())),
        "group": {"noun": group.noun, "name": group.name, "facts": group.facts},
        "runs": {name: [*map(len, run.turns)] for name, run in runs.items()},
    }


def _rules(recording: Recording) -> list[dict[str, str]]:
    return [rule._asdict() for rule in recording.rules]


def _lines(recording: Recording | GroupRecording) -> Iterator[bytes]:
    runs = [recording] if isinstance(recording, Recording) else recording.runs.values()
    for run in runs:
        yield from map(ev.EVENT.dump_json, chain.from_iterable(run.turns))


def read_recording(path: Path) -> Recording | GroupRecording:
    """Read a recording.

    Raises:
        ReplayError: The file is missing or not a recording.
    """
    try:
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        raise ReplayError(
            f"Recording {path} does not exist. `nb-agents record SESSION -o FILE` and pytest with "
            "--agents-record=once write one."
        ) from None
    except OSError as exc:
        raise ReplayError(f"Recording {path} can't be read: {exc.strerror}.") from None
    try:
        lines = zlib.decompressobj(31).decompress(data, MAX_CHARS).split(b"\n")
        header = json.loads(lines[0])
        if header["format"] not in (TURN_FORMAT, GROUP_FORMAT):
            raise ReplayError(
                f"Recording {path} has format {header['format']!r}; this version of nb_agents "
                f"reads formats up to {GROUP_FORMAT}. Record it again."
            )
        recording = _parsed(header, map(read_event, lines[1:]))
    except (zlib.error, ValueError, KeyError, TypeError, IndexError, ValidationError):
        raise ReplayError(
            f"{path} is not a recording. `nb-agents record SESSION -o FILE.nbar` writes one."
        ) from None
    if isinstance(recording, Recording) and (why := unsupported_reason(recording)):
        raise ReplayError(f"Recording {path} can't be replayed: {why}")
    return recording


def _parsed(header: Any, events: Iterator[ev.Event]) -> Recording | GroupRecording:
    """Return a recording, given its header and all its events."""
    rules = tuple(Replacement(**each) for each in header["rules"])
    if header["format"] == TURN_FORMAT:
        return _of_turns(header["turns"], events, rules)
    # The names become directories.
    runs = {safe_name(n): _of_turns(counts, events, rules) for n, counts in header["runs"].items()}
    group = header["group"]
    record = GroupRecord(group["noun"], group["name"], group["facts"], (*runs,))
    return GroupRecording(record, runs)


def _of_turns(
    counts: Iterable[int], events: Iterator[ev.Event], rules: tuple[Replacement, ...]
) -> Recording:
    return Recording(tuple(tuple(islice(events, count)) for count in counts), rules)
