"""The shell tool of an agent, and the log of its output.

Each command runs in its own bash. When it ends, times out, is stopped immediately, or the kernel
ends, all of its child processes end too (`nb_agents.process.command`). It runs in a sandbox if one
is available (`nb_agents.tools.sandbox`). All output is written to disk; the model gets the start
and the end of long output.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path

from anyio import CancelScope, to_thread

from nb_agents.disk.directory import Directory
from nb_agents.masking import Mask
from nb_agents.process.command import Finished
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, declare
from nb_agents.tools.command_guard import CommandGuard
from nb_agents.tools.sandbox import Sandbox

declare(BuiltInTool("run_command", "command", "command", is_asked=True))

MAX_SHOWN_CHARS = 20_000
"""Maximum number of characters of a command's output for a model, half of them from the end."""

_BLANK = re.compile(r"\s+")
# Colours and window titles, which some programs also write to pipes.
# Source: ECMA-48, 5.4 (CSI) and 8.3.89 (OSC).
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")

DEFAULT_TIMEOUT_S = 300.0
_MAX_COMMAND_BYTES = 100_000
"""Linux limits an argument to 128 KiB (MAX_ARG_STRLEN)."""

_FILE_TOO_LARGE = 128 + signal.SIGXFSZ

# Stderr is merged into stdout, so that errors appear in order among the other output.
_BASH = ("bash", "-c", 'exec "$@" 2>&1', "bash", "bash", "-c")


def kept_folder(root: Path, agent: str) -> Path:
    """Return the directory for one agent's long outputs.

    Args:
        root: The turn's directory for long outputs.
        agent: The agent's id. Characters that don't belong in a file name are replaced.
    """
    return root / (re.sub(r"[^\w-]", "_", agent)[:80] or "_")


def last_chars(text: str, most: int) -> str:
    """Return the end of a string, starting after white space so that no API key is cut in half.

    Args:
        most: Maximum number of characters.
    """
    if len(text) <= most:
        return text
    end = text[-most:]
    blank = _BLANK.search(end, 0, most // 2)
    return end[blank.end() :] if blank else end


class OutputLog:
    """The output of one command, in order of arrival.

    Args:
        tell: Called with each chunk, in the context in which this log was created.
        mask: Removes secrets from the file.
    """

    def __init__(self, tell: Callable[[str], None], mask: Mask) -> None:
        # The task that reads an interpreter's output may belong to an earlier call.
        self._emit_text = tell
        self._mask = mask
        self._context = copy_context()
        self._pieces: list[str] = []
        self.chars = 0

    def add(self, text: str) -> None:
        """Add a chunk of output and pass it to `tell`."""
        if text:
            self._pieces.append(text)
            self.chars += len(text)
            self._context.run(self._emit_text, text)

    def line(self, text: str) -> None:
        """Add text that starts on a new line and ends with a line break."""
        if text:
            is_within = bool(self._pieces) and not self._pieces[-1].endswith("\n")
            self.add("\n" * is_within + text + "\n")

    async def keep(self, folder: Path, stem: str) -> str:
        """Write the whole output to a file, unless it is empty.

        Args:
            folder: The directory, which is created if necessary.
            stem: The start of the file's name, before a number.

        Returns:
            The output for a model: all of it, or its start and end with the path of the file.
        """
        whole = _ANSI.sub("", "".join(self._pieces)).replace("\r\n", "\n")
        if not whole:
            return ""
        try:
            path = await to_thread.run_sync(_write, folder, stem, whole, self._mask)
        except OSError as exc:
            where = f"the full output could not be saved: {exc.strerror}"
        else:
            where = f"the full output is in {path}"
        if len(whole) <= MAX_SHOWN_CHARS:
            return whole
        half = MAX_SHOWN_CHARS // 2
        end = last_chars(whole, half)
        left_out = len(whole) - half - len(end)
        return f"{whole[:half]}\n[… {left_out} characters omitted; {where}]\n{end}"


def _write(folder: Path, stem: str, text: str, mask: Mask) -> Path:
    data = mask.text(text).encode("utf-8", "replace")
    with Directory.made(folder) as opened:
        number = 1 + max((_number(each.name, stem) for each in opened.entries()), default=0)
        while True:
            name = f"{stem}_{number}.txt"
            try:
                with opened.create(name) as file:
                    file.write(data)
                return folder / name
            except FileExistsError:  # a command that ended at the same time wrote it
                number += 1


def _number(name: str, stem: str) -> int:
    match = re.fullmatch(rf"{re.escape(stem)}_([0-9]{{1,18}})\.txt", name)
    return int(match[1]) if match else 0


class Shell:
    """The shell tool of one agent.

    Args:
        sandbox: Runs the commands.
        timeout_s: Time limit of a command in seconds. A model may set a lower one.
        guard: Checks each command. None allows all.
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
        self._output_folder = kept_folder(self._context.kept, self._context.agent)

    def tools(self) -> list[Tool]:
        """Return the tool that runs a command."""
        return [Tool(self.run_command)]

    async def run_command(self, command: str, timeout_s: float | None = None) -> str:
        """Run a bash command in your workspace and wait until it ends.

        Each call starts a new shell: working directory and variables of earlier calls are lost.
        Background processes are terminated with the command. A command can't read keyboard input.

        Args:
            command: One or more lines of bash.
            timeout_s: Time limit in seconds.
        """
        _check(command, timeout_s)
        hidden = await to_thread.run_sync(self._guard.check, command) if self._guard else ()
        limit_s = min(timeout_s or self._timeout_s, self._timeout_s)
        output = OutputLog(self._context.tell, self._context.mask)
        shown_output = ""
        try:
            done = await self._sandbox.run(
                [*_BASH, command],
                readable=[self._output_folder],
                hidden=hidden,
                timeout_s=limit_s,
                on_output=output.add,
            )
        finally:
            # Save the output even after a stop.
            with CancelScope(shield=True):
                shown_output = await output.keep(self._output_folder, "command")
        return self._report(shown_output, done, limit_s)

    def _report(self, output: str, done: Finished, limit_s: float) -> str:
        if output and not output.endswith("\n"):
            output += "\n"
        if done.outcome == "timed out":
            return f"{output}[timed out after {limit_s:g} s; all its processes were ended]"
        limits = self._sandbox.limits
        if done.limit:
            why = limits.exceeded(done.limit)
            return f"{output}[stopped because it had {why}; all its processes were ended]"
        code = done.exit_code or 0
        # Shells report 128 plus the number of the signal.
        code = code if code >= 0 else 128 - code
        why = f": {limits.exceeded('file_size_mb')}" if code == _FILE_TOO_LARGE else ""
        return f"{output}[exit code {code}{why}]"


def _check(command: str, timeout_s: float | None) -> None:
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolError("the command contains a lone surrogate") from None
    if "\0" in command:
        raise ToolError("the command contains a NUL character")
    if size > _MAX_COMMAND_BYTES:
        raise ToolError(
            f"the command has {size} bytes; the limit is {_MAX_COMMAND_BYTES}. Write it to a file "
            "and run the file"
        )
    if timeout_s is not None and not timeout_s > 0:
        raise ToolError(f"timeout_s is {timeout_s:g}. It must be greater than 0")
