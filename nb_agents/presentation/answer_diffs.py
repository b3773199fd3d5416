"""Compares each answer of an agent word by word with its next answer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from nb_agents.view.run_view import AgentView

MAX_DIFFED = 4_000
"""Maximum length of a compared answer, in characters."""
MAX_REVISIONS = 4
"""Maximum number of comparisons per agent. The latest ones are kept."""


@dataclass(frozen=True, slots=True)
class DiffPart:
    """A part of a comparison; `kind` is "same", "gone" or "new"."""

    kind: Literal["same", "gone", "new"]
    text: str


@dataclass(frozen=True, slots=True)
class Revision:
    """A comparison of an answer with the agent's next one."""

    before: int
    after: int
    changes: tuple[DiffPart, ...]
    is_cut: bool

    @property
    def has_changes(self) -> bool:
        """Whether the answers differ."""
        return any(change.kind != "same" for change in self.changes)


def revisions(agent: AgentView) -> tuple[Revision, ...]:
    """Compare each answer of an agent with its next one.

    Returns:
        The latest comparisons, oldest first. Empty for a single answer.
    """
    pairs = list(enumerate(pairwise(agent.answers), start=1))
    return tuple(_revision(n, old, new) for n, (old, new) in pairs[-MAX_REVISIONS:])


def _revision(number: int, old: str, new: str) -> Revision:
    changes = compare(old[:MAX_DIFFED], new[:MAX_DIFFED])
    is_cut = max(len(old), len(new)) > MAX_DIFFED
    return Revision(number, number + 1, tuple(_shortened(changes)), is_cut)


_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_ALIKE = 0.35
"""Minimum similarity for a word-by-word comparison. Less similar texts are shown one after the
other."""
_AROUND = 60
"""Number of unchanged characters to show next to a change."""


def compare(old: str, new: str) -> list[DiffPart]:
    """Compare two strings by words.

    Args:
        old: The old text.
        new: The new text.

    Returns:
        The unchanged, removed and added parts in order. The unchanged and removed parts together
        are ``old``, the unchanged and added parts ``new``.
    """
    one, other = _WORDS.findall(old), _WORDS.findall(new)
    # Without "autojunk", text with few distinct words takes seconds.
    matcher = difflib.SequenceMatcher(None, one, other)
    if matcher.quick_ratio() < _ALIKE or matcher.ratio() < _ALIKE:
        return [DiffPart("gone", old), DiffPart("new", new)]
    changes: list[DiffPart] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            changes.append(DiffPart("same", "".join(one[a:b])))
            continue
        if b > a:
            changes.append(DiffPart("gone", "".join(one[a:b])))
        if d > c:
            changes.append(DiffPart("new", "".join(other[c:d])))
    return changes


def _shortened(changes: Sequence[DiffPart]) -> list[DiffPart]:
    """Remove the middle of long unchanged parts."""
    last = len(changes) - 1
    return [
        DiffPart("same", _ends(change.text, index > 0, index < last))
        if change.kind == "same"
        else change
        for index, change in enumerate(changes)
    ]


def _ends(words: str, has_before: bool, has_after: bool) -> str:
    head = words[:_AROUND] if has_before else ""
    tail = words[-_AROUND:] if has_after else ""
    return words if len(words) <= len(head) + len(tail) + 20 else f"{head} … {tail}"
