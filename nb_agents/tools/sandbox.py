"""The sandbox of an agent's processes: bubblewrap, if it is installed.

In the sandbox, a command can write to the workspace and read the paths that the agent may read, the
system's programs, and the Python environment of this process. It has a ``/tmp`` that is removed
when the command ends. It can't see the home directory, the notebook, other agents or other
processes, and has no network unless that is allowed (see `nb_agents.process.bubblewrap`).

The sandbox fails closed: if bubblewrap is installed, a command runs confined or not at all, unless
the user sets ``sandbox: off``. Many containers have bubblewrap but don't permit it. An agent then
can't run commands, and a notice explains the setting. Without bubblewrap, and on systems other than
Linux, commands have the user's permissions, and a notice at the start of the run says so.

With or without the sandbox, a command has resource limits and gets only selected environment
variables.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyio import to_thread

from nb_agents.config.tools import ToolKeys
from nb_agents.process import bubblewrap
from nb_agents.process.command import Finished, OpenCommand, open_command, run_command
from nb_agents.process.environment import agent_env
from nb_agents.process.special_bits import without_special_bits
from nb_agents.process.writable import Mounts, mounts_of
from nb_agents.tools.base import ToolContext, ToolError

_MB = 1_000_000


@dataclass(frozen=True)
class Confinement:
    """How commands run on this machine.

    Attributes:
        program: The path of bubblewrap, or None if commands are not confined.
        why_not: Why commands are not confined or must not run. "" if they are confined.
        is_refused: Whether commands must not run at all.
    """

    program: str | None
    why_not: str = ""
    is_refused: bool = False

    @property
    def is_confined(self) -> bool:
        """Whether commands run confined."""
        return self.program is not None and not self.is_refused

    def notice(self, agent: str) -> str:
        """Return a notice about an agent's commands, or "" if they are confined."""
        if self.is_refused:
            return (
                f"{agent} can't run commands: bubblewrap is installed but does not work here "
                f"({self.why_not}). `sandbox: off` in its backend runs them unconfined."
            )
        if self.why_not:
            return f"Commands of {agent} are not sandboxed: {self.why_not}."
        return ""


def confinement(is_wanted: bool = True) -> Confinement:
    """Check whether commands can be confined on this machine. Call this in a worker thread.

    Args:
        is_wanted: False for ``sandbox: off``.
    """
    if not is_wanted:
        return Confinement(None, "its backend has `sandbox: off`")
    program = bubblewrap.installed()
    if program is None:
        reason = "is not installed" if sys.platform == "linux" else "needs Linux"
        return Confinement(None, f"bubblewrap {reason}")
    try:
        bubblewrap.check_confinement(program)
    except bubblewrap.Unusable as exc:
        return Confinement(program, str(exc), is_refused=True)
    return Confinement(program)


class Sandbox:
    """Runs one agent's commands. Create it in a worker thread, because `confinement` blocks.

    Args:
        context: The agent's tool context.
        keys: The agent's configuration.
        network: Whether commands may use the network. Unconfined commands always may.

    Attributes:
        confinement: How commands run. Fixed at creation.
        limits: The resource limits of a command.
        cwd: The working directory of a command.
    """

    def __init__(
        self, context: ToolContext, keys: ToolKeys | None = None, *, network: bool = False
    ) -> None:
        keys = keys or ToolKeys()
        self.context = context
        self.confinement = confinement(keys.sandbox)
        self.limits = keys.limits
        self.cwd = context.workspace.resolve()
        self._passed_variables = keys.pass_env
        self._network = network

    async def run(
        self,
        command: Sequence[str],
        *,
        readable: Iterable[Path] = (),
        writable: Sequence[Path] = (),
        hidden: Collection[Path] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        on_output: Callable[[str], None] | None = None,
    ) -> Finished:
        """Run a program in the workspace and wait for it to end.

        Args:
            command: The program and its arguments.
            readable: Additional paths that the program may read.
            writable: Directories that the program may write to, in addition to those that the agent
                may write to now.
            hidden: Files to hide from the program, with links resolved.
            env: Environment variables to add.
            timeout_s: See `run_command`.
            on_output: See `run_command`.

        Raises:
            ToolError: The program can't be confined and was not run.
            OSError, ValueError: See `run_command`.
        """
        argv = await to_thread.run_sync(self._confined, command, readable, writable, hidden)
        async with self._without_special_bits():
            done = await run_command(
                argv,
                cwd=self.cwd,
                env=self._env(env or {}),
                timeout_s=timeout_s,
                on_output=on_output,
                limits=self.limits,
                folders=writable,
            )
        program = self.confinement.program
        if program and done.exit_code and (why := bubblewrap.startup_error(program, done.errors)):
            raise ToolError(f"the sandbox could not be set up, and nothing was run: {why}")
        return done

    @asynccontextmanager
    async def open(
        self,
        command: Sequence[str],
        *,
        readable: Iterable[Path] = (),
        writable: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[OpenCommand]:
        """Start a program in the workspace, without resource limits, and yield its pipes.

        When the block is exited, all processes of the program are terminated. Its stdout is closed
        when the program closes it, even in a sandbox. Arguments and errors are those of `run`.
        """
        confined = partial(self._confined, owns_output=True)
        argv = await to_thread.run_sync(confined, command, readable, writable, ())
        started = open_command(argv, cwd=self.cwd, env=self._env(env or {}))
        async with self._without_special_bits(), started as opened:
            yield opened

    def _without_special_bits(self) -> AbstractAsyncContextManager[None]:
        """Remove set-user-id and set-group-id bits that processes in the block have set."""
        project = self.context.project
        users = [each.path for each in (*self.context.access.now, *([project] if project else []))]
        return without_special_bits(None if project else self.cwd, users)

    def _confined(
        self,
        command: Sequence[str],
        readable: Iterable[Path],
        writable: Iterable[Path],
        hidden: Collection[Path],
        owns_output: bool = False,
    ) -> list[str]:
        if self.confinement.is_refused:
            raise ToolError(self.confinement.notice(self.context.agent))
        if self.confinement.program is None and hidden:
            raise ToolError(
                "blocked programs can't be hidden without a sandbox, so nothing was run"
            )
        if self.confinement.program is None:
            return list(command)
        mounts = [mounts_of(writable_path) for writable_path in self.context.access.now]
        if self.context.project is None:
            mounts.append(Mounts((self.cwd,)))
        else:
            mounts.append(mounts_of(self.context.project))
            readable = [*readable, self.cwd]
        try:
            return bubblewrap.argv(
                self.confinement.program,
                command,
                tmp_bytes=self.limits.tmp_mb * _MB,
                cwd=self.cwd,
                readable=[
                    *self.context.readable,
                    *readable,
                    *(path for each in mounts for path in each.read_only),
                ],
                writable=[
                    *(path for each in mounts for path in each.writable),
                    *writable,
                ],
                hidden=hidden,
                network=self._network,
                owns_output=owns_output,
            )
        except bubblewrap.Unusable as exc:
            raise ToolError(f"the sandbox can't be used: {exc}") from None

    def _env(self, extra: Mapping[str, str]) -> dict[str, str]:
        # `python` is the notebook's Python.
        path = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
        variables = {"TERM": "dumb", "NO_COLOR": "1", "PATH": os.pathsep.join(path)}
        if (
            site.ENABLE_USER_SITE
        ):  # its directory is in the user's home directory, which is not HOME here
            variables |= {"PYTHONUSERBASE": site.getuserbase()}
        if self.confinement.program:
            variables |= {"HOME": bubblewrap.HOME, "TMPDIR": bubblewrap.TMP}
        else:
            variables |= {"HOME": str(self.cwd)}
        return agent_env(variables | dict(extra), self._passed_variables, self.context.secrets)
