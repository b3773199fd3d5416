"""SESSION_SUMMARY.txt: what a session's turns were about, for people; a block each.

People and other programs may have edited the file, emptied it or put something else in its place.
Whatever it holds besides the block of the turn that is written stays as it is.

Source: MassGen `session/_state.py` and `cli/run.py` (the blocks' wording).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from nb_agents.disk.directory import read_file
from nb_agents.disk.entry import RefusedError
from nb_agents.session.layout import TurnPaths
from nb_agents.terminal import without_controls
from nb_agents.view import Ending, RunView

__all__ = ["summary"]

MAX_BYTES = 16_000_000
"""A larger one is left as it is."""

_RULE = "=" * 80
_HEAD = re.compile(rf"{_RULE}\nMulti-Turn Session: [^\n]*\n{_RULE}\n")
_BLOCK = re.compile(rf"\n?^{_RULE}\nTURN ([0-9]{{1,18}})\b", re.MULTILINE)
_MARKERS: dict[Ending, str] = {
    "failed": "FAILED",
    "killed": "KERNEL DIED",
    "timed out": "TIMEOUT",
    "stopped": "CANCELLED",
    "cancelled": "CANCELLED",
}


class _Block(NamedTuple):
    turn: int
    text: str


def summary(view: RunView, paths: TurnPaths, left: str) -> str:
    """Make the session's summary with a turn's block, in the place of an older one of its own.

    Args:
        view: The turn.
        paths: Where it is.
        left: What it left: the end of an incomplete turn's block.

    Returns:
        The file's new content.

    Raises:
        OSError: The file that is there can't be read, or is too large.
    """
    before, blocks = _read(paths)
    kept = [block for block in blocks if block.turn != view.turn]
    made = _Block(view.turn, _block(view, paths, left))
    ordered = sorted([*kept, made], key=lambda block: block.turn)
    head = f"{_RULE}\nMulti-Turn Session: {view.session}\n{_RULE}\n"
    return head + before + "".join(block.text for block in ordered)


def _read(paths: TurnPaths) -> tuple[str, Sequence[_Block]]:
    """Read what stands below the head before all blocks, and the blocks."""
    try:
        text = read_file(paths.summary, MAX_BYTES).decode("utf-8", "replace")
        text = _HEAD.sub("", text.replace("\r\n", "\n"), count=1)
    except FileNotFoundError:
        return "", ()
    except RefusedError:
        if paths.summary.is_file():
            raise
        return "", ()  # a link or a pipe holds no summary: it is replaced
    starts = [(found.start(), int(found[1])) for found in _BLOCK.finditer(text)]
    ends = [*(start for start, _ in starts[1:]), len(text)]
    first = starts[0][0] if starts else len(text)
    blocks = [_Block(n, text[start:end]) for (start, n), end in zip(starts, ends, strict=False)]
    return text[:first], blocks


def _block(view: RunView, paths: TurnPaths, left: str) -> str:
    marker = f" [INCOMPLETE - {_MARKERS[view.ending]}]" if view.ending in _MARKERS else ""
    lines = ["", _RULE, f"TURN {view.turn}{marker}", _RULE]
    at = datetime.fromtimestamp(view.ended_at or view.last_at)
    lines.append(f"Timestamp: {at.isoformat()}")
    task = " ".join(view.task.split())
    if marker:
        lines += [f"Phase when cancelled: {view.phase}", f"Task: {task}", left]
    else:
        lines += [f"Winning Agent: {view.winner}", f"Task: {task}"]
        lines += [f"Workspace: {paths.workspace}", f"Answer: See {paths.answer}"]
    return "".join(f"{without_controls(line)}\n" for line in lines)
