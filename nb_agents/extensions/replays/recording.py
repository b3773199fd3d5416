"""A recording: the requests, replies and tool results of one turn, as a small file.

The file is gzipped JSON lines: a header, then the events of the turn's journal, after those of the
earlier turns of its session. Streamed text of complete replies is left out, and secrets are masked.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from pydantic import ValidationError

from nb_agents import events as ev
from nb_agents.disk.directory import read_file
from nb_agents.errors import UserError
from nb_agents.events.work_kinds import TEAM
from nb_agents.extensions.replays.differences import DEFAULT_RULES, Replacement
from nb_agents.extensions.replays.script import script_of
from nb_agents.json_text import json_text
from nb_agents.launch.team_kind import kind_named
from nb_agents.launch.work_kind import StoresSource
from nb_agents.masking import Mask
from nb_agents.models.providers import load
from nb_agents.session.event_lines import read_event
from nb_agents.session.history import PastTurn
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import turns_of
from nb_agents.view.prefix import prefix_of

FORMAT = 1
MAX_BYTES = 16_000_000
"""Size limit of a recording, in bytes."""
MAX_CHARS = 256_000_000
"""Size limit of an uncompressed recording, in bytes."""

_LEFT_OUT = (ev.UsageUpdated, ev.ToolNotice, ev.FilesSaved, ev.UserFilesSaved, ev.OutputStreamed)


class ReplayError(UserError):
    """Raised when a replay differs from its recording, or a turn can't be recorded."""

    code = "replay"


@dataclass(frozen=True)
class Recording:
    """A recorded turn, with the earlier turns of its session.

    Attributes:
        turns: The events of each turn, without the streamed text of complete replies. The last
            turn is the recorded one.
        rules: The rules that replace volatile text before requests are compared, in order.
    """

    turns: tuple[tuple[ev.Event, ...], ...]
    rules: tuple[Replacement, ...] = DEFAULT_RULES

    @property
    def events(self) -> tuple[ev.Event, ...]:
        """The events of the recorded turn."""
        return self.turns[-1]

    @property
    def started(self) -> ev.TurnStarted:
        """The turn's first event."""
        first = self.events[0]
        assert isinstance(first, ev.TurnStarted)
        return first

    @cached_property
    def past(self) -> Sequence[ev.Event]:
        """The events of the turns that the recorded turn resumes, in order."""
        started, number, parts = self.started, len(self.turns), list[Sequence[ev.Event]]()
        while 0 < started.resumes < number:
            number, events = started.resumes, self.turns[started.resumes - 1]
            parts.append(prefix_of(events, started.point).events)
            first = events[0] if events else None
            if not isinstance(first, ev.TurnStarted):
                break
            started = first
        return [event for each in reversed(parts) for event in each]


def record_turn(turn: PastTurn, mask: Mask, rules: Sequence[Replacement] = ()) -> Recording:
    """Return the recording of a turn that has ended.

    Args:
        turn: The turn.
        mask: Hides secrets. The journal's are already masked.
        rules: More rules for volatile text.

    Raises:
        ReplayError: The turn contains work that can't be replayed.
    """
    paths = turn.paths
    name = f"{paths.session}/{paths.number}"
    if turn.is_live:
        raise ReplayError(f"Turn {name} is still running. Wait until it ends, then record it.")
    if turn.view.ending == "killed":
        raise ReplayError(
            f"Turn {name} was killed. Resume it with `nb-agents resume {paths.session}`, and "
            "record the resumed turn."
        )
    numbers = [each for each in turns_of(paths.path.parent) if each.number <= paths.number]
    turns = tuple(_recorded(read_journal(each.journal).events, mask) for each in numbers)
    recording = Recording(turns, (*DEFAULT_RULES, *rules))
    if [each.number for each in numbers] != [*range(1, paths.number + 1)]:
        raise ReplayError(
            f"Turn {name} can't be recorded: An earlier turn of its session was removed. Run the "
            "task in a new session."
        )
    if why := unsupported_reason(recording):
        raise ReplayError(f"Turn {name} can't be recorded: {why}")
    return recording


def _recorded(events: Sequence[ev.Event], mask: Mask) -> tuple[ev.Event, ...]:
    """Return the events of a turn that a recording contains."""
    finished = {(e.agent, e.call) for e in events if isinstance(e, ev.ModelFinished)}
    kept = (
        each
        for each in events
        if not isinstance(each, _LEFT_OUT)
        and not (isinstance(each, ev.TextStreamed) and (each.agent, each.call) in finished)
    )
    return tuple(mask.value(each) for each in kept)


def unsupported_reason(recording: Recording) -> str:
    """Return why a turn can't be replayed and what to do, in sentences, or ""."""
    if not all(turn and isinstance(turn[0], ev.TurnStarted) for turn in recording.turns):
        return "A journal of its session has no first event. Run the task in a new session."
    if recording.started.resumes >= len(recording.turns):
        return "Its journal is damaged. Run the task again."
    kind = recording.started.work_kind
    if kind != TEAM and not isinstance(kind_named(kind), StoresSource):
        return f"Its work, a {kind}, can't be started from its journal. Record a task or a recipe."
    load()  # a script contains messages, and a thread of a kernel may still import their library
    return script_of(recording.events, recording.past).unsupported


def write_recording(recording: Recording, path: Path) -> int:
    """Write a recording to a file, and return its size in bytes.

    Raises:
        UserError: The file can't be written.
    """
    header = {
        "format": FORMAT,
        "rules": [rule._asdict() for rule in recording.rules],
        "turns": [*map(len, recording.turns)],
    }
    lines = [
        json_text(header, is_compact=True).encode(),
        *map(ev.EVENT.dump_json, chain.from_iterable(recording.turns)),
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
        events = map(read_event, lines[1:])
        turns = tuple(tuple(islice(events, count)) for count in header["turns"])
        recording = Recording(turns, rules)
    except (zlib.error, ValueError, KeyError, TypeError, IndexError, ValidationError):
        raise ReplayError(
            f"{path} is not a recording. `nb-agents record SESSION -o FILE.nbar` writes one."
        ) from None
    if why := unsupported_reason(recording):
        raise ReplayError(f"Recording {path} can't be replayed: {why}")
    return recording
