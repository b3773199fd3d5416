"""A recording: the requests, replies and tool results of one turn, as a small file.

The file is gzipped JSON lines: a header, then the events of the turn's journal without streamed
text. Secrets are masked.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from nb_agents import events as ev
from nb_agents.disk.directory import read_file
from nb_agents.errors import UserError
from nb_agents.extensions.replays.differences import DEFAULT_RULES, Replacement
from nb_agents.extensions.replays.script import script_of
from nb_agents.json_text import json_text
from nb_agents.masking import Mask
from nb_agents.session.history import PastTurn

FORMAT = 1
MAX_BYTES = 16_000_000
"""Size limit of a recording, in bytes."""
MAX_CHARS = 256_000_000
"""Size limit of an uncompressed recording, in bytes."""

_LEFT_OUT = (ev.TextStreamed, ev.UsageUpdated, ev.ToolNotice)


class ReplayError(UserError):
    """Raised when a replay differs from its recording, or a turn can't be recorded."""

    code = "replay"


@dataclass(frozen=True)
class Recording:
    """A recorded turn.

    Attributes:
        events: The turn's events, without streamed text.
        rules: The rules that replace volatile text before requests are compared, in order.
    """

    events: tuple[ev.Event, ...]
    rules: tuple[Replacement, ...] = DEFAULT_RULES

    @property
    def started(self) -> ev.TurnStarted:
        """The turn's first event."""
        first = self.events[0]
        assert isinstance(first, ev.TurnStarted)
        return first


def record_turn(turn: PastTurn, mask: Mask, rules: Sequence[Replacement] = ()) -> Recording:
    """Return the recording of a complete turn.

    Args:
        turn: The turn with its events.
        mask: Hides secrets. The journal's are already masked.
        rules: More rules for volatile text.

    Raises:
        ReplayError: The turn contains work that can't be replayed.
    """
    name = f"{turn.paths.session}/{turn.paths.number}"
    if not turn.is_complete:
        raise ReplayError(f"Turn {name} is {turn.state}. Only complete turns can be recorded.")
    if why := unsupported_reason(turn.events):
        raise ReplayError(f"Turn {name} can't be recorded, because {why}.")
    events = (mask.value(each) for each in turn.events if not isinstance(each, _LEFT_OUT))
    return Recording(tuple(events), (*DEFAULT_RULES, *rules))


def unsupported_reason(events: Sequence[ev.Event]) -> str:
    """Return why a turn can't be replayed, to follow "because", or ""."""
    if not events or not isinstance(events[0], ev.TurnStarted):
        return "its journal has no first event"
    return script_of(events).unsupported


def write_recording(recording: Recording, path: Path) -> int:
    """Write a recording to a file, and return its size in bytes.

    Raises:
        UserError: The file can't be written.
    """
    header = {"format": FORMAT, "rules": [rule._asdict() for rule in recording.rules]}
    lines = [
        json_text(header, is_compact=True).encode(),
        *map(ev.EVENT.dump_json, recording.events),
    ]
    data = gzip.compress(b"\n".join(lines), mtime=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as exc:
        raise UserError(f"{path} can't be written: {exc.strerror}.") from None
    return len(data)


def read_recording(path: Path) -> Recording:
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
        rules = tuple(Replacement(**each) for each in header["rules"])
        if header["format"] != FORMAT:
            raise ReplayError(
                f"Recording {path} has format {header['format']!r}; this version of nb_agents "
                f"reads format {FORMAT}. Record the turn again."
            )
        recording = Recording(_events(lines[1:]), rules)
    except (zlib.error, ValueError, KeyError, TypeError, IndexError, ValidationError):
        raise ReplayError(
            f"{path} is not a recording. `nb-agents record SESSION -o FILE.nbar` writes one."
        ) from None
    if why := unsupported_reason(recording.events):
        raise ReplayError(f"Recording {path} can't be replayed, because {why}.")
    return recording


def _events(lines: Iterable[bytes]) -> tuple[ev.Event, ...]:
    return tuple(ev.EVENT.validate_json(line) for line in lines)
