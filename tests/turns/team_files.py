"""Teams from MassGen's team files on a model server, for kills and resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nb_agents
from nb_agents import RunOptions
from tests.kit.runs import Run
from tests.model_server import ModelServer
from tests.processes import python

__all__ = ["killed_at", "options", "write_team"]

START = """
import sys, nb_agents
folder, root = sys.argv[1:]
options = nb_agents.RunOptions(session_root=root)
nb_agents.start("the task", f"{folder}/team.yaml", "s", options=options).wait(raise_on_stop=False)
"""


def write_team(folder: Path, server: ModelServer, text: str) -> Path:
    """Write a team file; its agents are at the server, where it says SERVER."""
    file = folder / "team.yaml"
    file.write_text(text.replace("SERVER", f'"{server.url}"'))
    return file


def options(root: Path) -> RunOptions:
    return RunOptions(session_root=root)


def killed_at(folder: Path, root: Path, is_there: Callable[[], object], server: ModelServer) -> Run:
    """Start the team of `folder` in another process, kill that, and resume it in this one."""
    with python(START, folder, root) as process:
        server.wait_until(is_there)
        process.kill()
        process.wait()
    return nb_agents.resume("s", options=options(root))
