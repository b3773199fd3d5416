"""The pytest plugin: the fixture `agents_replay` and the option ``--agents-record``."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nb_agents.config.team import TeamSpec
    from nb_agents.launch.run import Run
    from nb_agents.turns.groups import Group

MODES = ("none", "once", "all")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--agents-record``."""
    parser.getgroup("nb_agents").addoption(
        "--agents-record",
        choices=MODES,
        default="none",
        help="when to run agents and record them: none (default), once if there is no recording, "
        "or all",
    )


@pytest.fixture
def agents_replay(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that replays a recording and returns the finished run or sweep."""
    mode, folder = request.config.getoption("--agents-record"), request.path.parent

    def play(
        path: str | os.PathLike[str],
        task: str | None = None,
        config: str | os.PathLike[str] | TeamSpec | None = None,
        **arguments: Any,
    ) -> Run | Group:
        """Replay a recording, or run the task and record it if ``--agents-record`` says so.

        Args:
            path: The recording. Relative paths are relative to the test's file.
            task: The task. By default, the recorded one.
            config: The team file or team. By default, the recorded team.
            arguments: More arguments of `nb_agents.start`. A replay uses `recipe` and `context`. If
                one of them is `source`, the rows of a sweep, those of `nb_agents.map`.

        Raises:
            ReplayError: A request differs from the recorded one.
        """
        # Not imported before it is used, because pytest loads the plugin for every project.
        testing = import_module("nb_agents.extensions.replays.replay_fixture")
        recording = folder / path
        run: Run | Group
        if mode == "all" or (mode == "once" and not recording.exists()):
            run = testing.record_run(recording, task, config, tmp_path, arguments)
        else:
            run = testing.replayed_run(recording, task, config, tmp_path, arguments)
        return run

    return play
