"""What users do with proposals after the end of the turn, which then has no writer any more.

The events are appended to a file in the turn's directory. Each line has a code (MAC) that is
computed with the key of the session's mark, like the lines of the journal. The next turn that
resumes this turn journals the decisions.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nb_agents.disk.directory import read_file
from nb_agents.disk.private import open_private, private_lock
from nb_agents.errors import as_storage_error
from nb_agents.events import EVENT, Event
from nb_agents.session.journal import first_event
from nb_agents.session.layout import TurnPaths
from nb_agents.session.ownership import add_mac, check_mac, user_mark
from nb_agents.turns.user_events import user_event
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView

FILE = "cell_decisions.jsonl"
MAX_BYTES = 50_000_000
_PURPOSE = "cell event"


def late_events(turn: TurnPaths) -> list[Event]:
    """Return the events after a turn's end.

    Lines that this user's nb_agents has not written for this turn are skipped, and so are repeated
    or reordered ones.
    """
    try:
        lines = read_file(turn.path / FILE, MAX_BYTES).splitlines()
    except OSError:
        return []
    mark, events, last = _mark_name(turn), list[Event](), 0
    for line in lines:
        with suppress(ValueError, RecursionError):
            document = check_mac(line, _PURPOSE)
            number = int(document["line"])
            if [document["session"], document["turn"]] == [mark, turn.number] and number > last:
                events.append(EVENT.validate_python(document["event"]))
                last = number
    return events


def late_events_in(directory: Path) -> list[Event]:
    """Return the events after the end of the turn in a directory."""
    return late_events(TurnPaths(directory))


def with_late_events(turn: TurnPaths, view: RunView) -> RunView:
    """Return a turn's final view with the events after its end."""
    return fold(late_events(turn), view)


def add_late_event(turn: TurnPaths, view: RunView, event: Event) -> bool:
    """Append an event, unless it does not apply to the turn any more.

    Args:
        turn: The turn.
        view: The turn's final view.
        event: The event.

    Returns:
        Whether it was appended. If several processes append the same decision, one of them does.

    Raises:
        StorageError: The file can't be written.
    """
    path = turn.path / FILE
    with as_storage_error(path), private_lock(turn.path / f"{FILE}.lock"):
        earlier = late_events(turn)
        if user_event(fold(earlier, view), EVENT.dump_python(event, mode="json")) is None:
            return False
        # The view's position is that of the journal, so the event has no number.
        stamped = replace(event, at=time.time())
        name = _mark_name(turn)
        document = {
            "session": name,
            "turn": turn.number,
            "line": _line_count(turn) + 1,
            "event": EVENT.dump_python(stamped, mode="json"),
        }
        with open_private(path, "ab") as file:
            file.write(add_mac(user_mark(name), _PURPOSE, document).encode() + b"\n")
    return True


def _line_count(turn: TurnPaths) -> int:
    with suppress(OSError):
        return len(read_file(turn.path / FILE, MAX_BYTES).splitlines())
    return 0


def _mark_name(turn: TurnPaths) -> str:
    """Return the name of the session's mark, or "" for a journal without one."""
    return str(first_event(turn.journal).get("mark") or "")
