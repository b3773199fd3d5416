"""What a command said: all of it for the disk, its beginning and end for the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path

from anyio import to_thread

from nb_agents.masking import Mask

__all__ = ["MAX_SHOWN_CHARS", "OutputLog", "kept_folder", "last_chars"]

MAX_SHOWN_CHARS = 20_000
"""What a model is shown of one command, half of it from the end."""

_BLANK = re.compile(r"\s+")
# Colours and titles, which some programs write to anything.
# Source: ECMA-48, 5.4 (CSI) and 8.3.89 (OSC).
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def kept_folder(kept: Path, agent: str) -> Path:
    """Name the directory for one agent's long outputs.

    Args:
        kept: The turn's directory for them.
        agent: The agent's id; what no file name should hold is replaced.
    """
    return kept / (re.sub(r"[^\w-]", "_", agent)[:80] or "_")


def last_chars(text: str, most: int) -> str:
    """Give the end of a text, from a blank on: of a key that is cut nothing can be told.

    Args:
        text: The text.
        most: Characters that it may have.
    """
    if len(text) <= most:
        return text
    end = text[-most:]
    blank = _BLANK.search(end, 0, most // 2)
    return end[blank.end() :] if blank else end


class OutputLog:
    """What one command wrote, in the order in which it came.

    Args:
        tell: Is given each piece as it comes, in the context of the call that this is for.
        mask: Takes secrets out of what is written to the disk.
    """

    def __init__(self, tell: Callable[[str], None], mask: Mask) -> None:
        # What an interpreter writes is read by a task that an earlier call began.
        self._tell = tell
        self._mask = mask
        self._context = copy_context()
        self._pieces: list[str] = []
        self.chars = 0

    def add(self, text: str) -> None:
        """Take down what was written, and pass it on."""
        if text:
            self._pieces.append(text)
            self.chars += len(text)
            self._context.run(self._tell, text)

    def line(self, text: str) -> None:
        """Take down something that has lines of its own."""
        if text:
            is_within = bool(self._pieces) and not self._pieces[-1].endswith("\n")
            self.add("\n" * is_within + text + "\n")

    async def keep(self, folder: Path, stem: str) -> str:
        """Write all of it to a file of its own; nothing when nothing was said.

        Args:
            folder: Made if it is missing.
            stem: How the file's name begins; a number follows.

        Returns:
            What a model is to see: all of it, or its two ends and the file's place.
        """
        whole = _ANSI.sub("", "".join(self._pieces)).replace("\r\n", "\n")
        if not whole:
            return ""
        try:
            place = await to_thread.run_sync(self._write, folder, stem, whole)
        except OSError as exc:
            where = f"the whole could not be kept: {exc.strerror}"
        else:
            where = f"the whole is in {place}"
        if len(whole) <= MAX_SHOWN_CHARS:
            return whole
        half = MAX_SHOWN_CHARS // 2
        end = last_chars(whole, half)
        left_out = len(whole) - half - len(end)
        return f"{whole[:half]}\n[… {left_out} characters left out; {where}]\n{end}"

    def _write(self, folder: Path, stem: str, text: str) -> Path:
        return _write(folder, stem, self._mask.text(text))


def _write(folder: Path, stem: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + max((_number(path, stem) for path in folder.glob(f"{stem}_*.txt")), default=0)
    while True:
        place = folder / f"{stem}_{number}.txt"
        try:
            with open(place, "x", encoding="utf-8", errors="replace", newline="") as file:
                file.write(text)
            return place
        except FileExistsError:  # of a command that ended in the same moment
            number += 1


def _number(path: Path, stem: str) -> int:
    digits = path.stem.removeprefix(f"{stem}_")
    return int(digits) if digits.isdecimal() else 0
