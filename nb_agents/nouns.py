"""Nouns in sentences: counted ones, as "2 votes", and the name that a wrong one may stand for.

This module imports nothing of nb_agents.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_WORDS = 200
"""Words that a wrong one is compared with: each costs some microseconds, for each wrong one."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the most similar word, or ""; of many words, only one with the same first letter."""
    known = list(words)
    if len(known) > MAX_WORDS:
        known = [each for each in known if each[:1] == word[:1]][:MAX_WORDS]
    return next(iter(difflib.get_close_matches(word, known, n=1)), "")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a question for the `nearest` word, with a blank before it, or ""."""
    near = nearest(word, words)
    return f" Did you mean {near!r}?" if near else ""
