"""A shell for an agent, in its workspace.

Each command is a bash of its own that ends whole: by itself, on its time-out, on an immediate stop,
with the kernel (`nb_agents.tools.process`). It runs in a sandbox where there is one
(`nb_agents.tools.sandbox`).
"""

from __future__ import annotations

import signal

from anyio import CancelScope, to_thread

from nb_agents.tools.base import Tool, ToolError
from nb_agents.tools.call import current_call
from nb_agents.tools.command_guard import CommandGuard
from nb_agents.tools.output_log import OutputLog, kept_folder
from nb_agents.tools.process import Finished
from nb_agents.tools.sandbox import Sandbox

__all__ = ["DEFAULT_TIMEOUT_S", "Shell"]

DEFAULT_TIMEOUT_S = 300.0
_MAX_COMMAND_BYTES = 100_000
"""Linux takes 128 KiB as one argument (MAX_ARG_STRLEN)."""

_FILE_TOO_LARGE = 128 + signal.SIGXFSZ

# Both streams are one, so that what went wrong stands where it did.
_BASH = ("bash", "-c", 'exec "$@" 2>&1', "bash", "bash", "-c")


class Shell:
    """The shell of one agent.

    Args:
        sandbox: Where its commands run.
        timeout_s: Seconds that a command may take; a model may ask for less.
        guard: Judges each command; None lets all be run.
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
        """The tool that runs a command."""
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
            # A stop loses nothing of what was said.
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
    if current_call().is_repeated:
        raise ToolError(
            "this command was begun before and cut off: part of it may have happened. "
            "Look at what is there, then run what is still to be done."
        )
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
