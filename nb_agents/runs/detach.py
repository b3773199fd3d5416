"""Starting a run in a process of its own, which outlives the one that asks for it.

What is to be done goes there through a pipe, keys with the environment: neither is ever on the
disk or on a command line.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.options import RunOptions
from nb_agents.runs.offering import Offering
from nb_agents.runs.turn_spec import mask_for

__all__ = ["begin_detached", "is_detached"]

START_S = 120.0
"""What the process gets to start: a cold import takes seconds on a busy machine."""

MAX_LOG_BYTES = 1_000_000
"""Of the log of a process that could not start: what is read."""

MAX_LOG_CHARS = 2_000
"""Of the log of a process that could not start: what is shown of its end."""


def is_detached(options: RunOptions, team: TeamSpec) -> bool:
    """Whether a run goes in a process of its own: by its options, else by its team's file."""
    return team.detach if options.detach is None else options.detach


def begin_detached(
    what: str,
    team: TeamSpec,
    options: RunOptions,
    tools: Sequence[Callable[..., Any]] = (),
    **arguments: Any,
) -> Path:
    """Start or resume a run in a process of its own.

    Args:
        what: "start" or "resume".
        team: Who works in it, as it is read here; there it is read anew.
        options: How it goes.
        tools: Functions that stay in this process and are called from there.
        arguments: The others of `nb_agents.start` or `nb_agents.resume`.

    Returns:
        The turn's directory.

    Raises:
        UserError: Something that is given can't leave this process, or the run can't start.
        StorageError: Tools are given, and the user's state directory can't be written.
    """
    if bound := next(_bound(options, team), ""):
        raise UserError(
            f"A detached run outlives this process, and {bound} can't. Leave it out, or don't "
            "detach the run."
        )
    job = {**arguments, "options": replace(options, detach=False)}
    if not tools:
        return _begin(what, job, team)
    # Made before the run is: its first call may come at once.
    offering = Offering(tools, team)
    try:
        turn = _begin(what, {**job, "tools": offering.functions}, team)
    except BaseException:
        offering.withdraw()
        raise
    offering.serve(turn)
    return turn


def _begin(what: str, arguments: Mapping[str, Any], team: TeamSpec) -> Path:
    """Let another process begin the run, and wait until it has."""
    # A file without a name: what a library says there may hold a key, and nobody reads it later.
    with TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nb_agents.runs.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # who ends this process and its group does not end that one
        )
        try:
            said, _ = process.communicate(pickle.dumps((what, arguments)), timeout=START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise UserError(f"The run's process has not started within {START_S:g} s.") from None
        log.seek(0)
        written = log.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    told = _read(said)
    if "path" in told:
        return Path(told["path"])
    if "error" in told:
        raise UserError(told["error"])
    # Hidden before it is cut: the rest of a key would not be known.
    text = mask_for(team).text(written.strip())[-MAX_LOG_CHARS:]
    raise UserError(f"The run's process ended before the run began. Its log:\n{text}")


def _read(said: bytes) -> Mapping[str, str]:
    with suppress(ValueError):
        told = json.loads(said)
        if isinstance(told, dict):
            return told
    return {}


def _bound(options: RunOptions, team: TeamSpec) -> Iterator[str]:
    """Name what is bound to this process."""
    if any(agent.backend.type == "python" for agent in team.everyone):
        yield "a model made in Python"
    yield from (f"the function {name} of the options" for name in _functions(options))


def _functions(value: object, name: str = "") -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _functions(getattr(value, each.name), f"{name}.{each.name}".lstrip("."))
    elif isinstance(value, Callable):  # type: ignore[arg-type]
        yield name
