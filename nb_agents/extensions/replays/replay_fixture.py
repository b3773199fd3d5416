"""What the pytest fixture does: replays a recording, or runs a task or sweep and records it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.team import TeamSpec
from nb_agents.errors import NbAgentsError, UserError
from nb_agents.extensions.replays.recording import ReplayError, record_group, record_turn
from nb_agents.extensions.replays.recording_file import write_recording
from nb_agents.extensions.replays.replaying import start_replay
from nb_agents.launch.api import start_verbatim
from nb_agents.launch.run import Run
from nb_agents.masking import Mask
from nb_agents.options import RunOptions
from nb_agents.plugins import ExtensionPoint
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.groups import Group

__all__ = ["NbAgentsError", "record_run", "replayed_run"]

_START: ExtensionPoint[Callable[..., Group]] = ExtensionPoint("public_names")


def replayed_run(
    path: Path,
    task: str | None,
    config: str | os.PathLike[str] | TeamSpec | None,
    root: Path,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> Run | Group:
    """Replay a recording and return the finished run or sweep.

    Args:
        path: The recording.
        task, config: As for `nb_agents.replay`.
        root: The session root.
        arguments: More arguments of `nb_agents.start` or `nb_agents.map`. Only `source`, `recipe`
            and `context` are used.

    Raises:
        ReplayError: The recording is missing, or a request differs from the recorded one.
    """
    work = {name: arguments.get(name) for name in ("source", "recipe", "context")}
    played = start_replay(path, task, config, **work, options=RunOptions(session_root=root))
    if not isinstance(played.work, Run):
        played.group.wait()
        return played.group
    played.run.wait(raise_on_stop=False)
    if played.difference:
        raise ReplayError(played.difference)
    return played.run


def record_run(
    path: Path,
    task: str | None,
    config: str | os.PathLike[str] | TeamSpec | None,
    root: Path,
    arguments: Mapping[str, Any],
) -> Run | Group:
    """Run a task with its models, write the recording, and return the finished run or sweep.

    Args:
        path: The recording to write.
        task, config: As for `nb_agents.start`, but `@` in the task has no special meaning.
        root: The session root.
        arguments: More arguments of `nb_agents.start` or, if `source` is one of them, of
            `nb_agents.map`.

    Raises:
        UserError: There is neither a task nor a recipe.
        ReplayError: The turn or sweep can't be recorded.
    """
    if task is None and "recipe" not in arguments:
        raise UserError(f"Recording {path.name} needs a task or recipe. Pass it to agents_replay.")
    options = replace(arguments.get("options") or RunOptions(), session_root=root)
    mask, more = Mask(secrets_of_environment()), {**arguments, "options": options}
    if (source := more.pop("source", None)) is not None:
        sweep: Group = _START["map"](source, task or "", config, **more)
        sweep.wait()
        recording = record_group(sweep.path, mask)
        for row, why in recording.left_out.items():
            raise ReplayError(f"Row {row} can't be recorded: {why}")
        write_recording(recording, path)
        return sweep
    run = start_verbatim(task or "", config, **more)
    run.wait()
    write_recording(record_turn(load_turn(TurnPaths(run.path)), mask), path)
    return run
