"""Counted nouns in sentences: "1 vote", "2 votes". This module imports nothing of nb_agents."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
