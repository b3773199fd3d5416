"""Starts a run in another process, which outlives this one.

The run gets a separate process, or a worker of a cluster (`nb_agents.launch.cluster`). The job is
sent through a pipe or the cluster's connection, and API keys through the environment. Neither is
ever written to disk or to a command line.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from nb_agents.config.agent_objects import MAIN
from nb_agents.config.backends import BackendSpec
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.launch.here import Begun, Job, Loaded, RunRequest
from nb_agents.options import Cluster, RunOptions
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import current_origin
from nb_agents.turns.budget import (
    MAX_COST,
    budget_of,
    dollars_in_environment,
    process_limit_variable,
)
from nb_agents.turns.handle import RunHandle, check_turn
from nb_agents.turns.live_runs import remember
from nb_agents.turns.offering import Offering
from nb_agents.turns.reader import TurnReader
from nb_agents.turns.turn_spec import cancel_policy, checked_functions, mask_for

PROCESS = "a separate process"
"""Describes where a detached run without a cluster is running."""

START_S = 120.0
"""Time limit in seconds for the process to start. A cold import is slow on a busy machine."""

END_S = 2.0
"""How long to wait for a killed process to end, in seconds."""

MAX_LOG_BYTES = 1_000_000
"""Maximum bytes to read of the log of a process that could not start."""

MAX_LOG_CHARS = 2_000
"""Maximum characters to show of the end of that log."""


def is_detached(options: RunOptions, team: TeamSpec) -> bool:
    """Return whether the options or, by default, the team file request another process."""
    if options.cluster is not None:
        return True
    return team.detach if options.detach is None else options.detach


_Handle = TypeVar("_Handle", bound=RunHandle)


def begin_elsewhere(request: RunRequest, loaded: Loaded, handle: type[_Handle]) -> _Handle:
    """Start a run in another process and return its handle.

    Args:
        request: The request, which the other process loads again. Its functions stay in this
            process and are called from the other one, unless they are shipped to a cluster.
        loaded: The request as loaded in this process.
        handle: The class of the handle.

    Raises:
        UserError: An argument can't be sent to another process, or the run can't start.
        StorageError: Tools are given, but the session root can't be written.
    """
    options = request.options
    begun = _start(request, loaded, handle)
    grace_s = cancel_policy(loaded.team, options).grace_timeout_s
    paths = TurnPaths(begun.path.absolute())
    check_turn(paths)
    reader = TurnReader(paths, restart=begun.restart, grace_s=grace_s)
    run = handle(f"{paths.session}/{paths.number}", reader, paths, where=begun.where)
    run.options, run.functions = options, tuple(request.tools)
    return remember(run)


def _start(request: RunRequest, loaded: Loaded, handle: type[RunHandle]) -> Begun:
    options, team, tools = request.options, loaded.team, request.tools
    if argument := next(_unsendable_arguments(options, team), ""):
        raise UserError(
            f"A detached run outlives this process, but {argument} can't. Leave it out, or don't "
            "detach the run."
        )
    root = session_root(options.session_root)
    outgoing = request.outgoing(loaded.session).changed(
        options=replace(
            options,
            detach=False,
            cluster=None,
            session_root=root,
            trust=False,
            max_cost=_max_cost(team, options),
        )
    )
    cluster = _cluster_of(options)
    if cluster is not None and cluster.ship:
        return _send(
            outgoing.changed(tools=checked_functions(tools)), loaded, root, cluster, handle
        )
    if not tools:
        return _send(outgoing, loaded, root, cluster, handle)
    # Created before the run, which may call the functions immediately.
    offering = Offering(tools, root, team)
    try:
        begun = _send(outgoing.changed(tools=offering.functions), loaded, root, cluster, handle)
    except BaseException:
        offering.withdraw()
        raise
    offering.serve(begun.path)
    return begun


def _max_cost(team: TeamSpec, options: RunOptions) -> float | None:
    """Return the cost limit to send: on another machine, the environment does not limit it."""
    is_limited = options.cluster is not None and dollars_in_environment(MAX_COST) is not None
    return budget_of(team, options).max_cost if is_limited else options.max_cost


def _cluster_of(options: RunOptions) -> Cluster | None:
    cluster = options.cluster
    return cluster if cluster is None or isinstance(cluster, Cluster) else Cluster(cluster)


def _send(
    request: RunRequest,
    loaded: Loaded,
    root: Path,
    cluster: Cluster | None,
    handle: type[RunHandle],
) -> Begun:
    """Start a run in another process."""
    job = Job(request, loaded.mark, current_origin(root), Path.cwd(), handle)
    if cluster is None:
        return Begun(_begin_process(job, loaded.team), PROCESS)
    try:
        from nb_agents.launch.cluster import start_on_worker
    except ImportError as exc:
        raise UserError(
            f"Runs on a cluster need Dask ({exc}): `pip install 'nb_agents[cluster]'`."
        ) from None
    projects = tuple({each for each in (loaded.team.project, loaded.project) if each is not None})
    return start_on_worker(cluster, job, root, projects)


def _begin_process(job: Job, team: TeamSpec) -> Path:
    """Start the run in a separate process. Wait until it has started."""
    # An unnamed file, because a library might log a key.
    with TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nb_agents.launch.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # ending this process group must not end the run
            env={**os.environ, **process_limit_variable()},
        )
        reply = _wait_for_reply(process, pickle.dumps(job))
        log.seek(0)
        log_text = log.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    answer = _parse(reply)
    if "path" in answer:
        return Path(answer["path"])
    if "error" in answer:
        raise UserError(answer["error"])
    # Masked before it is shortened: part of a key would not be recognized.
    text = mask_for(team).text(log_text.strip())[-MAX_LOG_CHARS:]
    raise UserError(f"The run's process ended before the run began. Its log:\n{text}")


def _wait_for_reply(process: subprocess.Popen[bytes], job: bytes) -> bytes:
    """Return the reply of the run's process. Without a reply, end the process."""
    try:
        return process.communicate(job, timeout=START_S)[0]
    except subprocess.TimeoutExpired as exc:
        if _parse(partial_reply := exc.output or b""):  # a child process of it holds the pipe
            return partial_reply
        _end(process)
        raise UserError(
            f"The run did not start within {START_S:g} s, so its process was ended. Try again when "
            "this machine is less busy."
        ) from None
    except BaseException:  # an interrupt
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    # The whole group: the process may have forked and exited.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=END_S)


def _parse(reply: bytes) -> Mapping[str, str]:
    with suppress(ValueError):
        answer = json.loads(reply)
        if isinstance(answer, dict):
            return answer
    return {}


def _unsendable_arguments(options: RunOptions, team: TeamSpec) -> Iterator[str]:
    """Yield descriptions of arguments that can't be sent to another process."""
    local_agents = (
        a for a in team.everyone if a.backend.type == "python" and not _is_named(a.backend)
    )
    yield from (f"the agent {agent.id!r}, an object of this process," for agent in local_agents)
    yield from (f"the function {name} of the options" for name in _functions(options))


def _is_named(backend: BackendSpec) -> bool:
    return backend.object is not None and not backend.object.startswith(f"{MAIN}:")


def _functions(value: object, name: str = "") -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _functions(getattr(value, each.name), f"{name}.{each.name}".lstrip("."))
    elif isinstance(value, Callable):  # type: ignore[arg-type]
        yield name
