"""What a person types to reach a turn from where they read about it: a cell, or a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["CELL", "Door", "TERMINAL"]


@dataclass(frozen=True)
class Door:
    """The words of one place where turns are shown.

    Attributes:
        name: Begins each command.
        next_turn: Begins the command for the next turn of a session.
        task: Follows it on the same line.
        task_below: Follows it where there is room for a task of its own.
        later: When one can go on, as a clause.
        once_saved: The same of a turn that the disk refused to take whole.
        writer: What a turn that it starts lives in.
        retried: How what the disk refused gets there after all, as a sentence.
        quote: Makes one word of a text.
    """

    name: str
    next_turn: str
    task: str
    task_below: str
    later: str
    once_saved: str
    writer: str
    retried: str
    quote: Callable[[str], str]

    def line(self, verb: str, words: Sequence[str]) -> str:
        """Return a command on a turn."""
        return f"{self.name} {verb} {self._words(words)}"

    def next_line(self, words: Sequence[str]) -> str:
        """Return the command for the next turn."""
        return f"{self.next_turn} {self._words(words)}{self.task}"

    def _words(self, words: Sequence[str]) -> str:
        return " ".join(map(self.quote, words))


CELL = Door(
    name="%agents",
    next_turn="%%agents --continue --session",
    task="",
    task_below="\nWhat should the agents do now?",
    later="in any later cell, also after a restart",
    once_saved="in any later cell, once `run.save()` has brought it to the disk",
    writer="kernel",
    retried="`run.save()` tries again.",
    quote=lambda word: f'"{word}"' if " " in word else word,
)
TERMINAL = Door(
    name="nb-agents",
    next_turn="nb-agents run --continue --session",
    task=' "What should the agents do now?"',
    task_below="",
    later="at any time",
    once_saved="with what the disk has",
    writer="process",
    retried="Its end tries again.",
    quote=shlex.quote,
)
