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
            path: The recording. Relative to the test's file.
            task: The task. By default, the recorded one.
            config: The team file or team. By default, the recorded team. Relative to the test's
                file or, if there is no such file, to the working directory. So is a recipe.
            arguments: More arguments of `nb_agents.start`. A replay uses `recipe` and `context`. If
                one of them is `source`, the rows of a sweep, those of `nb_agents.map`.

        Raises:
            ReplayError: A request differs from the recorded one.
        """
        __tracebackhide__ = True
        # Not imported before it is used, because pytest loads the plugin for every project.
        testing = import_module("nb_agents.extensions.replays.replay_fixture")
        recording = folder / path
        is_new = mode == "all" or (mode == "once" and not recording.exists())
        play = testing.record_run if is_new else testing.replayed_run
        team, more = _beside(folder, config), dict(arguments)
        if "recipe" in more:
            more["recipe"] = _beside(folder, more["recipe"])
        run: Run | Group
        try:
            run = play(recording, task, team, tmp_path, more)
        except testing.NbAgentsError as exc:
            raise exc.with_traceback(None) from None  # whose frames are not those of the test
        return run

    return play


def _beside(folder: Path, file: Any) -> Any:
    """Return a relative path of an existing file in the test's directory, or the value itself."""
    if isinstance(file, str | os.PathLike) and (folder / file).is_file():
        return folder / file
    return file
