"""Runs a recipe's bash commands: with the person's rights, or in a sandbox where a file says so."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from nb_agents.config.recipe import Recipe
from nb_agents.config.team import TeamSpec
from nb_agents.errors import RecipeError
from nb_agents.process.command import Finished, run_bash
from nb_agents.process.environment import user_env
from nb_agents.process.writable import WritablePath
from nb_agents.recipes.tasks import CommandWork
from nb_agents.tools.base import ToolContext, ToolError
from nb_agents.tools.sandbox import Sandbox


@dataclass(frozen=True)
class CommandRunner:
    """Runs the commands of one turn.

    Attributes:
        team: The team, whose file may want a sandbox.
        workspace: Where they work.
        readable: What they may read besides in a sandbox.
        project: The workspace, when it is a person's own directory.
        secrets: The team's keys: no command inherits them.
    """

    team: TeamSpec
    workspace: Path
    readable: Sequence[Path]
    project: WritablePath | None
    secrets: Sequence[str]

    async def run(
        self, work: CommandWork, recipes: Sequence[Recipe], write: Callable[[str], None]
    ) -> Finished:
        """Run a command to its end.

        Args:
            work: The command.
            recipes: The one that has it, and those on the way to it.
            write: Takes its output as it comes.

        Returns:
            How it ended.

        Raises:
            RecipeError: Its directory does not exist.
            ToolError: It can't be confined as wanted, and was not run.
            TimeoutError: It took too long.
            OSError: It had more than its limits allow in a sandbox, or can't be started.
        """
        files: list[TeamSpec | Recipe] = [self.team, *recipes]
        wanting = [each for each in files if each.sandbox]
        env = {"AMPLIFIER_PYTHON": sys.executable, **work.env}  # by this name recipes find a Python
        folder = self._directory(work.cwd)
        if not wanting:
            done = await run_bash(
                work.command,
                cwd=folder,
                env=user_env(env, self.secrets),
                timeout_s=work.timeout_s,
                on_output=write,
            )
        else:
            has_network = all(each.network for each in wanting)
            box = await to_thread.run_sync(self._sandbox, work.address, has_network)
            script = f"cd {shlex.quote(str(folder.resolve()))} || exit; {work.command}"
            done = await box.run(
                ["bash", "-c", script], env=env, timeout_s=work.timeout_s, on_output=write
            )
            if done.limit:
                raise OSError(f"The command had {box.limits.exceeded(done.limit)}.")
        if done.exit_code is None:
            raise TimeoutError(f"The command took longer than {work.timeout_s:g} s.")
        return done

    def _directory(self, cwd: str) -> Path:
        path = self.workspace / os.path.expanduser(cwd)
        if not path.is_dir():
            raise RecipeError(f"The directory {cwd!r} does not exist.")
        return path

    def _sandbox(self, address: str, has_network: bool) -> Sandbox:
        place = ToolContext(
            agent=address,
            workspace=self.workspace,
            readable=self.readable,
            session=self.workspace,
            kept=self.workspace,
            secrets=self.secrets,
            tell=lambda _: None,
            project=self.project,
        )
        box = Sandbox(place, network=has_network)
        if not box.confinement.is_confined:
            why = box.confinement.why_not
            raise ToolError(f"`sandbox: on` can't be kept to here, and nothing was run: {why}.")
        return box
