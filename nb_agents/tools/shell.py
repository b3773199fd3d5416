"""The shell tool of an agent, and the log of its output.

Each command runs in its own bash, which ends with all its children: by itself, on its time-out, on
an immediate stop, with the kernel (`nb_agents.process.command`). It runs in a sandbox where there
is one (`nb_agents.tools.sandbox`). All output is written to disk; the model gets its beginning and
end.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path

from anyio import CancelScope, to_thread

from nb_agents.masking import Mask
from nb_agents.process.command import Finished
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, declare
from nb_agents.tools.command_guard import CommandGuard
from nb_agents.tools.sandbox import Sandbox

declare(BuiltInTool("run_command", "command", "command", is_asked=True))

MAX_SHOWN_CHARS = 20_000
"""Limit of one command's output for a model, half of it from the end."""

_BLANK = re.compile(r"\s+")
# Colours and titles, which some programs write to anything.
# Source: ECMA-48, 5.4 (CSI) and 8.3.89 (OSC).
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")

DEFAULT_TIMEOUT_S = 300.0
_MAX_COMMAND_BYTES = 100_000
"""Linux takes 128 KiB as one argument (MAX_ARG_STRLEN)."""

_FILE_TOO_LARGE = 128 + signal.SIGXFSZ

# Both streams are one, so that what went wrong stands where it did.
_BASH = ("bash", "-c", 'exec "$@" 2>&1', "bash", "bash", "-c")


def kept_folder(kept: Path, agent: str) -> Path:
    """Return the directory for one agent's long outputs.

    Args:
        kept: The turn's directory for them.
        agent: The agent's id; what no file name should hold is replaced.
    """
    return kept / (re.sub(r"[^\w-]", "_", agent)[:80] or "_")


def last_chars(text: str, most: int) -> str:
    """Return the end of a text, from a blank on, so that it does not begin within a key.

    Args:
        text: The text.
        most: Maximal length, characters.
    """
    if len(text) <= most:
        return text
    end = text[-most:]
    blank = _BLANK.search(end, 0, most // 2)
    return end[blank.end() :] if blank else end


class OutputLog:
    """The output of one command, in order of arrival.

    Args:
        tell: Called with each piece, in the context of its call.
        mask: Removes secrets from what is written to disk.
    """

    def __init__(self, tell: Callable[[str], None], mask: Mask) -> None:
        # What an interpreter writes is read by a task that an earlier call began.
        self._tell = tell
        self._mask = mask
        self._context = copy_context()
        self._pieces: list[str] = []
        self.chars = 0

    def add(self, text: str) -> None:
        """Add a piece of output, and pass it on."""
        if text:
            self._pieces.append(text)
            self.chars += len(text)
            self._context.run(self._tell, text)

    def line(self, text: str) -> None:
        """Add a text on lines of its own."""
        if text:
            is_within = bool(self._pieces) and not self._pieces[-1].endswith("\n")
            self.add("\n" * is_within + text + "\n")

    async def keep(self, folder: Path, stem: str) -> str:
        """Write the whole output to a file, unless it is empty.

        Args:
            folder: Made if it is missing.
            stem: How the file's name begins; a number follows.

        Returns:
            The output for a model: all of it, or its two ends and the file's path.
        """
        whole = _ANSI.sub("", "".join(self._pieces)).replace("\r\n", "\n")
        if not whole:
            return ""
        try:
            place = await to_thread.run_sync(_write, folder, stem, whole, self._mask)
        except OSError as exc:
            where = f"the whole output could not be saved: {exc.strerror}"
        else:
            where = f"the whole output is in {place}"
        if len(whole) <= MAX_SHOWN_CHARS:
            return whole
        half = MAX_SHOWN_CHARS // 2
        end = last_chars(whole, half)
        left_out = len(whole) - half - len(end)
        return f"{whole[:half]}\n[… {left_out} characters left out; {where}]\n{end}"


def _write(folder: Path, stem: str, text: str, mask: Mask) -> Path:
    text = mask.text(text)
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


class Shell:
    """The shell of one agent.

    Args:
        sandbox: Runs its commands.
        timeout_s: Time limit of a command, seconds; a model may ask for less.
        guard: Checks each command; None allows all.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        guard: CommandGuard | None = None,
    ) -> None:
        self._guard = guard
        self._sandbox = sandbox
        self._context = sandbox.context
        self._timeout_s = timeout_s
        self._kept = kept_folder(self._context.kept, self._context.agent)

    def tools(self) -> list[Tool]:
        """Return the tool that runs a command."""
        return [Tool(self.run_command)]

    async def run_command(self, command: str, timeout_s: float | None = None) -> str:
        """Run a bash command in your workspace and wait for its end.

        Each call is a new shell: `cd` and variables don't last. What a command leaves running in
        the background is ended with it. Nothing can be typed in.

        Args:
            command: The command; may have many lines.
            timeout_s: Seconds after which it is ended.
        """
        _check(command, timeout_s)
        hidden = await to_thread.run_sync(self._guard.check, command) if self._guard else ()
        limit_s = min(timeout_s or self._timeout_s, self._timeout_s)
        said = OutputLog(self._context.tell, self._context.mask)
        shown = ""
        try:
            done = await self._sandbox.run(
                [*_BASH, command],
                readable=[self._kept],
                hidden=hidden,
                timeout_s=limit_s,
                on_output=said.add,
            )
        finally:
            # A stop loses no output.
            with CancelScope(shield=True):
                shown = await said.keep(self._kept, "command")
        return self._report(shown, done, limit_s)

    def _report(self, shown: str, done: Finished, limit_s: float) -> str:
        if shown and not shown.endswith("\n"):
            shown += "\n"
        if done.outcome == "timed out":
            return f"{shown}[timed out after {limit_s:g} s; all of it was ended]"
        limits = self._sandbox.limits
        if done.limit:
            return f"{shown}[it had {limits.exceeded(done.limit)}; all of it was ended]"
        code = done.exit_code or 0
        # As shells count it: 128 and the signal.
        code = code if code >= 0 else 128 - code
        why = f": {limits.exceeded('file_size_mb')}" if code == _FILE_TOO_LARGE else ""
        return f"{shown}[exit code {code}{why}]"


def _check(command: str, timeout_s: float | None) -> None:
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolError("the command has half a surrogate pair") from None
    if "\0" in command:
        raise ToolError("the command has a NUL character")
    if size > _MAX_COMMAND_BYTES:
        raise ToolError(
            f"the command has {size} bytes, {_MAX_COMMAND_BYTES} are possible; "
            "write it to a file and run that"
        )
    if timeout_s is not None and not timeout_s > 0:
        raise ToolError(f"timeout_s is {timeout_s:g}; it must be more than 0")
