"""Starting a run in another process, which outlives the one that asks for it.

That is one of its own, or a worker of a cluster (`nb_agents.runs.cluster`). What is to be done goes
there through a pipe or the cluster's connection, keys with the environment: neither is ever on the
disk or on a command line.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.options import Cluster, RunOptions
from nb_agents.runs.offering import Offering
from nb_agents.runs.turn_spec import checked_functions, mask_for
from nb_agents.session.layout import session_root

__all__ = ["Begun", "begin_detached", "is_detached"]

PROCESS = "a process of its own"
"""Where a run lives that is on no cluster."""

START_S = 120.0
"""What the process gets to start: a cold import takes seconds on a busy machine."""

MAX_LOG_BYTES = 1_000_000
"""Of the log of a process that could not start: what is read."""

MAX_LOG_CHARS = 2_000
"""Of the log of a process that could not start: what is shown of its end."""


class Begun(NamedTuple):
    """A run that another process has begun.

    Attributes:
        path: The turn's directory.
        where: Where it lives, in words.
        restart: Ends that process when it hears nothing any more; None when that is nobody's task.
    """

    path: Path
    where: str
    restart: Callable[[], object] | None = None


def is_detached(options: RunOptions, team: TeamSpec) -> bool:
    """Whether a run goes in another process: by its options, else by its team's file."""
    if options.cluster is not None:
        return True
    return team.detach if options.detach is None else options.detach


def begin_detached(
    what: str,
    team: TeamSpec,
    options: RunOptions,
    tools: Sequence[Callable[..., Any]] = (),
    project: Path | None = None,
    **arguments: Any,
) -> Begun:
    """Start or resume a run in another process.

    Args:
        what: "start" or "resume".
        team: Who works in it, as it is read here; there it is read anew.
        options: How it goes.
        tools: Functions that stay in this process and are called from there, unless they are to be
            sent to a cluster.
        project: The person's directory that a recipe works in, if it does.
        arguments: The others of `nb_agents.start` or `nb_agents.resume`.

    Returns:
        Where it is.

    Raises:
        UserError: Something that is given can't leave this process, or the run can't start.
        StorageError: Tools are given, and the session root can't be written.
    """
    if bound := next(_bound(options, team), ""):
        raise UserError(
            f"A detached run outlives this process, and {bound} can't. Leave it out, or don't "
            "detach the run."
        )
    root = session_root(options.session_root)
    given = replace(options, detach=False, cluster=None, session_root=root)
    files = {name: _absolute(arguments.get(name)) for name in ("config", "recipe")}
    job = {**arguments, **files, "options": given}
    cluster = _cluster_of(options)
    begin = partial(_begin, what, team=team, root=root, cluster=cluster, project=project)
    if cluster is not None and cluster.ship:
        return begin({**job, "tools": checked_functions(tools)})
    if not tools:
        return begin(job)
    # Made before the run is: its first call may come at once.
    offering = Offering(tools, root, team)
    try:
        begun = begin({**job, "tools": offering.functions})
    except BaseException:
        offering.withdraw()
        raise
    offering.serve(begun.path)
    return begun


def _cluster_of(options: RunOptions) -> Cluster | None:
    given = options.cluster
    return given if given is None or isinstance(given, Cluster) else Cluster(given)


def _absolute(value: Any) -> Any:
    """Name a file so that it is found from any working directory."""
    if isinstance(value, str | os.PathLike):
        return Path(value).expanduser().absolute()
    return value


def _begin(
    what: str,
    job: Mapping[str, Any],
    team: TeamSpec,
    root: Path,
    cluster: Cluster | None,
    project: Path | None,
) -> Begun:
    if cluster is None:
        return Begun(_begin_process(what, job, team), PROCESS)
    try:
        from nb_agents.runs.cluster import begin_on
    except ImportError as exc:
        raise UserError(
            f"Runs on a cluster need Dask ({exc}): `pip install 'nb_agents[cluster]'`."
        ) from None
    worked_in = tuple({each for each in (team.project, project) if each is not None})
    started = begin_on(cluster, what, job, root, worked_in)
    return Begun(started.path, f"worker {started.worker}", started.restart)


def _begin_process(what: str, arguments: Mapping[str, Any], team: TeamSpec) -> Path:
    """Let a process of its own begin the run, and wait until it has."""
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
            said, _ = process.communicate(
                pickle.dumps((what, arguments, Path.cwd())), timeout=START_S
            )
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
