"""The sandbox of an agent's processes: bubblewrap, where it is installed.

Inside, the workspace can be written and what the agent may read can be read. There are besides the
system's programs, the Python environment that this process runs in, and a ``/tmp`` that ends with
the command: no home directory, no notebook, no other agent, no process but the command's own, and
no network unless it is allowed (`nb_agents.process.bubblewrap` says how).

It fails closed: where bubblewrap is installed, a command runs confined or not at all, unless the
user sets ``sandbox: off``. Containers often have it and don't permit it; then an agent gets no
commands, and the panel says what to write. Where it is not installed, and off Linux, commands may
do what the user may, and the run's start says so.

Confined or not, a command has resource limits and gets only the environment variables meant for it.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from nb_agents.config.tools import ToolKeys
from nb_agents.process import bubblewrap
from nb_agents.process.command import Finished, OpenCommand, open_command, run_command
from nb_agents.process.environment import agent_env
from nb_agents.process.writable import Mounts, mounts_of
from nb_agents.tools.base import ToolContext, ToolError

_MB = 1_000_000


@dataclass(frozen=True)
class Confinement:
    """How commands run on this machine.

    Attributes:
        program: Bubblewrap's path; None if commands are not confined.
        why_not: Why they are not confined, or must not run; "" if they are confined.
        is_refused: Whether they must not run at all.
    """

    program: str | None
    why_not: str = ""
    is_refused: bool = False

    @property
    def is_confined(self) -> bool:
        """Whether commands run confined."""
        return self.program is not None and not self.is_refused

    def notice(self, agent: str) -> str:
        """Return a notice for the user about an agent's commands, or ""."""
        if self.is_refused:
            return (
                f"{agent} can't run commands: bubblewrap is installed and can't confine them here "
                f"({self.why_not}). `sandbox: off` in its backend runs them unconfined."
            )
        if self.why_not:
            return f"Commands of {agent} are not sandboxed: {self.why_not}."
        return ""


def confinement(is_wanted: bool = True) -> Confinement:
    """Return how commands run on this machine. Blocks for a moment: call it in a worker thread.

    Args:
        is_wanted: False for ``sandbox: off``.
    """
    if not is_wanted:
        return Confinement(None, "its backend says `sandbox: off`")
    program = bubblewrap.installed()
    if program is None:
        what = "is not installed" if sys.platform == "linux" else "needs Linux"
        return Confinement(None, f"bubblewrap {what}")
    try:
        bubblewrap.check_confinement(program)
    except bubblewrap.Unusable as exc:
        return Confinement(program, str(exc), is_refused=True)
    return Confinement(program)


class Sandbox:
    """Runs one agent's commands. Created in a worker thread, as `confinement` blocks.

    Args:
        context: What the agent may write and read.
        keys: Its configuration.
        network: Whether commands may use the network; unconfined ones always may.

    Attributes:
        context: As given.
        confinement: How commands run; fixed at creation.
        limits: Their resource limits.
        cwd: Their working directory.
    """

    def __init__(
        self, context: ToolContext, keys: ToolKeys | None = None, *, network: bool = False
    ) -> None:
        keys = keys or ToolKeys()
        self.context = context
        self.confinement = confinement(keys.sandbox)
        self.limits = keys.limits
        self.cwd = context.workspace.resolve()
        self._named = keys.pass_env
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
        """Run a program in the workspace, to its end.

        Args:
            command: The program and its arguments.
            readable: Further paths that it may read.
            writable: Directories that it may write besides its workspace, and besides what the
                agent may write now.
            hidden: Files to hide from it, as real paths.
            env: Variables to add.
            timeout_s: See `run_command`.
            on_output: See `run_command`.

        Returns:
            How it ended.

        Raises:
            ToolError: It can't be confined, so it was not run.
            OSError, ValueError: As `run_command`.
        """
        done = await run_command(
            await to_thread.run_sync(self._confined, command, readable, writable, hidden),
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
        """Start a program in the workspace and yield its pipes; it has no resource limits.

        Leaving the block ends all of its processes. Arguments and errors are those of `run`.
        """
        argv = await to_thread.run_sync(self._confined, command, readable, writable, ())
        async with open_command(argv, cwd=self.cwd, env=self._env(env or {})) as opened:
            yield opened

    def _confined(
        self,
        command: Sequence[str],
        readable: Iterable[Path],
        writable: Iterable[Path],
        hidden: Collection[Path],
    ) -> list[str]:
        if self.confinement.is_refused:
            raise ToolError(self.confinement.notice(self.context.agent))
        if self.confinement.program is None and hidden:
            raise ToolError("what is blocked here can't be kept from being run without a sandbox")
        if self.confinement.program is None:
            return list(command)
        places = [mounts_of(place) for place in self.context.access.now]
        if self.context.project is None:
            places.append(Mounts((self.cwd,)))
        else:
            places.append(mounts_of(self.context.project))
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
                    *(path for each in places for path in each.read_only),
                ],
                writable=[
                    *(path for each in places for path in each.writable),
                    *writable,
                ],
                hidden=hidden,
                network=self._network,
            )
        except bubblewrap.Unusable as exc:
            raise ToolError(f"the sandbox can't be used: {exc}") from None

    def _env(self, extra: Mapping[str, str]) -> dict[str, str]:
        # `python` is the one that the notebook has.
        path = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
        ours = {"TERM": "dumb", "NO_COLOR": "1", "PATH": os.pathsep.join(path)}
        if site.ENABLE_USER_SITE:  # whose packages are below a HOME that it does not have
            ours |= {"PYTHONUSERBASE": site.getuserbase()}
        if self.confinement.program:
            ours |= {"HOME": bubblewrap.HOME, "TMPDIR": bubblewrap.TMP}
        else:
            ours |= {"HOME": str(self.cwd)}
        return agent_env(ours | dict(extra), self._named, self.context.secrets)
