"""Words for messages: counted nouns, such as "2 votes", and suggestions for misspelled names.

This module imports nothing of nb_agents.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_WORDS = 200
"""Maximum number of words to compare with. Each comparison takes some microseconds."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1,200 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def token_count(number: int, is_estimated: bool = False) -> str:
    """Return a number of tokens as text, such as "1,200 tokens". "~" marks an estimate."""
    return f"{'~' if is_estimated else ''}{count(number, 'token')}"


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the most similar word, or "" if none is similar.

    From more than `MAX_WORDS` words, only those with the same first letter are compared.
    """
    candidates = list(words)
    if len(candidates) > MAX_WORDS:
        candidates = [each for each in candidates if each[:1] == word[:1]][:MAX_WORDS]
    return next(iter(difflib.get_close_matches(word, candidates, n=1)), "")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a suggestion with the `nearest` word, starting with a space, or ""."""
    near = nearest(word, words)
    return f" Did you mean {near!r}?" if near else ""


def dollars(cost: float | None) -> str:
    """Return a cost as text, or "" if nothing was paid or a price is unknown.

    Every card, list, table and report uses this function, so an unknown cost is never shown as 0.

    Example:
        >>> [dollars(each) for each in (None, 0.0, 0.0001, 1.5)]
        ['', '', '<$0.001', '$1.500']
    """
    if not cost:
        return ""
    return "<$0.001" if cost < 0.0005 else f"${cost:.3f}"


def price(tokens: int, cost: float | None) -> str:
    """Return the cost of tokens as text: "$0" for a free model, "" if it is unknown.

    Example:
        >>> [price(900, each) for each in (None, 0.0, 1.5)], price(0, 0.0)
        (['', '$0', '$1.500'], '')
    """
    if not tokens:
        return ""
    return "$0" if cost == 0 else dollars(cost)


def amount_in_dollars(amount: float) -> str:
    """Return a limit, or what was used of it, as text, such as "$2.00"."""
    return f"${amount:.2f}" if amount >= 0.01 else f"${amount:.4g}"
