"""Runs a recipe's bash commands with the user's permissions, or in a sandbox if required."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from nb_agents.config.team import TeamSpec
from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.tasks import CommandWork
from nb_agents.process.command import Finished, run_bash
from nb_agents.process.environment import user_env
from nb_agents.process.special_bits import without_special_bits
from nb_agents.process.writable import WritablePath
from nb_agents.tools.base import ToolContext, ToolError
from nb_agents.tools.sandbox import Sandbox


@dataclass(frozen=True)
class CommandRunner:
    """Runs the commands of one turn.

    Attributes:
        team: The team. Its file can require a sandbox.
        workspace: The working directory of commands.
        readable: Other paths that commands in a sandbox can read.
        project: The workspace, if it is the user's own directory, or None.
        secrets: The team's API keys, which are removed from the environment of commands.
    """

    team: TeamSpec
    workspace: Path
    readable: Sequence[Path]
    project: WritablePath | None
    secrets: Sequence[str]

    async def run(
        self, work: CommandWork, recipes: Sequence[Recipe], write: Callable[[str], None]
    ) -> Finished:
        """Run a command until it ends.

        Args:
            recipes: The command's recipe, and the recipes that call it. Each can require a sandbox.
            write: Receives the output while the command runs.

        Raises:
            RecipeError: The working directory does not exist.
            ToolError: The required sandbox is not available. The command was not run.
            TimeoutError: The command took too long.
            OSError: The command can't be started, or exceeded a limit of the sandbox.
        """
        files: list[TeamSpec | Recipe] = [self.team, *recipes]
        sandboxing = [each for each in files if each.sandbox]
        env = {"AMPLIFIER_PYTHON": sys.executable, **work.env}  # recipes use it to find Python
        folder = self._directory(work.cwd)
        if not sandboxing:
            async with without_special_bits(None if self.project else self.workspace):
                done = await run_bash(
                    work.command,
                    cwd=folder,
                    env=user_env(env, self.secrets),
                    timeout_s=work.timeout_s,
                    on_output=write,
                )
        else:
            has_network = all(each.network for each in sandboxing)
            box = await to_thread.run_sync(self._sandbox, work.address, has_network)
            script = f"cd {shlex.quote(str(folder.resolve()))} || exit; {work.command}"
            done = await box.run(
                ["bash", "-c", script], env=env, timeout_s=work.timeout_s, on_output=write
            )
            if done.limit:
                raise OSError(f"The command exceeded a limit: {box.limits.exceeded(done.limit)}.")
        if done.exit_code is None:
            raise TimeoutError(f"The command took longer than {work.timeout_s:g} s.")
        return done

    def _directory(self, cwd: str) -> Path:
        path = self.workspace / os.path.expanduser(cwd)
        if not path.is_dir():
            raise RecipeError(f"The directory {cwd!r} does not exist.")
        return path

    def _sandbox(self, address: str, has_network: bool) -> Sandbox:
        context = ToolContext(
            agent=address,
            workspace=self.workspace,
            readable=self.readable,
            session=self.workspace,
            kept=self.workspace,
            secrets=self.secrets,
            tell=lambda _: None,
            project=self.project,
        )
        box = Sandbox(context, network=has_network)
        if not box.confinement.is_confined:
            why = box.confinement.why_not
            raise ToolError(f"`sandbox: on` can't be enforced, so the command was not run: {why}.")
        return box
