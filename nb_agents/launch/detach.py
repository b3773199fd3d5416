"""Starting a run in another process, which outlives this one.

The run gets a process of its own, or a worker of a cluster (`nb_agents.launch.cluster`). The job is
sent through a pipe or the cluster's connection, and keys with the environment: neither is ever
written to disk or to a command line.
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
from typing import Any

from nb_agents.config.agent_objects import MAIN
from nb_agents.config.backends import BackendSpec
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.launch.here import Begun, Job, Loaded, RunRequest
from nb_agents.options import Cluster, RunOptions
from nb_agents.runs.finding import attach
from nb_agents.runs.live_runs import remember
from nb_agents.runs.offering import Offering
from nb_agents.runs.run import Run
from nb_agents.runs.turn_spec import cancel_policy, checked_functions, mask_for
from nb_agents.session.layout import session_root
from nb_agents.session.lookup import origin_here

PROCESS = "a process of its own"
"""Description of where a detached run is that is not on a cluster."""

START_S = 120.0
"""Time limit for the process to start: a cold import takes seconds on a busy machine."""

END_S = 2.0
"""How long to wait for the end of a process that was killed."""

MAX_LOG_BYTES = 1_000_000
"""Bytes read of the log of a process that could not start."""

MAX_LOG_CHARS = 2_000
"""Characters shown of the end of that log."""


def is_detached(options: RunOptions, team: TeamSpec) -> bool:
    """Return whether a run's options, or else its team's file, request another process."""
    if options.cluster is not None:
        return True
    return team.detach if options.detach is None else options.detach


def begin_elsewhere(request: RunRequest, loaded: Loaded) -> Run:
    """Begin a run in another process, and return its handle.

    Args:
        request: The request, which the other process loads again. Its functions stay in this
            process and are called from the other one, unless they are shipped to a cluster.
        loaded: The request as loaded here.

    Raises:
        UserError: An argument can't leave this process, or the run can't start.
        StorageError: Tools are given, and the session root can't be written.
    """
    options = request.options
    begun = _begin(request, loaded)
    grace_s = cancel_policy(loaded.team, options).grace_timeout_s
    return remember(attach(*begun[:2], options, request.tools, begun.restart, grace_s))


def _begin(request: RunRequest, loaded: Loaded) -> Begun:
    options, team, tools = request.options, loaded.team, request.tools
    if bound := next(_bound(options, team), ""):
        raise UserError(
            f"A detached run outlives this process, and {bound} can't. Leave it out, or don't "
            "detach the run."
        )
    root = session_root(options.session_root)
    sent = replace(
        request,
        session=loaded.session,
        config=_absolute(request.config),
        recipe=_absolute(request.recipe),
        options=replace(options, detach=False, cluster=None, session_root=root, trust=False),
    )
    cluster = _cluster_of(options)
    if cluster is not None and cluster.ship:
        return _send(replace(sent, tools=checked_functions(tools)), loaded, root, cluster)
    if not tools:
        return _send(sent, loaded, root, cluster)
    # Created before the run, whose first call may come at once.
    offering = Offering(tools, root, team)
    try:
        begun = _send(replace(sent, tools=offering.functions), loaded, root, cluster)
    except BaseException:
        offering.withdraw()
        raise
    offering.serve(begun.path)
    return begun


def _cluster_of(options: RunOptions) -> Cluster | None:
    given = options.cluster
    return given if given is None or isinstance(given, Cluster) else Cluster(given)


def _absolute(value: Any) -> Any:
    """Return a file's absolute path, and any other value as it is."""
    if isinstance(value, str | os.PathLike):
        return Path(value).expanduser().absolute()
    return value


def _send(request: RunRequest, loaded: Loaded, root: Path, cluster: Cluster | None) -> Begun:
    """Have a run begin in another process."""
    job = Job(request, loaded.mark, origin_here(root), Path.cwd())
    if cluster is None:
        return Begun(_begin_process(job, loaded.team), PROCESS)
    try:
        from nb_agents.launch.cluster import start_on_worker
    except ImportError as exc:
        raise UserError(
            f"Runs on a cluster need Dask ({exc}): `pip install 'nb_agents[cluster]'`."
        ) from None
    worked_in = tuple({each for each in (loaded.team.project, loaded.project) if each is not None})
    return start_on_worker(cluster, job, root, worked_in)


def _begin_process(job: Job, team: TeamSpec) -> Path:
    """Start the run in a process of its own, and wait until it has started."""
    # An unnamed file, as a library may log a key there.
    with TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nb_agents.launch.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # ending this process group must not end the run
        )
        reply = _reply_of(process, pickle.dumps(job))
        log.seek(0)
        written = log.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    answer = _parse(reply)
    if "path" in answer:
        return Path(answer["path"])
    if "error" in answer:
        raise UserError(answer["error"])
    # Masked before it is cut, as part of a key would not be recognised.
    text = mask_for(team).text(written.strip())[-MAX_LOG_CHARS:]
    raise UserError(f"The run's process ended before the run began. Its log:\n{text}")


def _reply_of(process: subprocess.Popen[bytes], job: bytes) -> bytes:
    """Return the answer of the run's process; whoever gets none leaves no process behind."""
    try:
        return process.communicate(job, timeout=START_S)[0]
    except subprocess.TimeoutExpired as exc:
        if _parse(answered := exc.output or b""):  # a process that it has started holds the pipe
            return answered
        _end(process)
        raise UserError(
            f"The run's process had not begun the run within {START_S:g} s and was ended: nothing "
            "runs. Try again when this machine is less busy."
        ) from None
    except BaseException:  # an interrupt
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    # Its group, as it may have forked, and exited itself.
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


def _bound(options: RunOptions, team: TeamSpec) -> Iterator[str]:
    """Yield descriptions of arguments that can't be sent to another process."""
    here = (a for a in team.everyone if a.backend.type == "python" and not _is_named(a.backend))
    yield from (f"the agent {agent.id!r}, an object of this process," for agent in here)
    yield from (f"the function {name} of the options" for name in _functions(options))


def _is_named(backend: BackendSpec) -> bool:
    return backend.object is not None and not backend.object.startswith(f"{MAIN}:")


def _functions(value: object, name: str = "") -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _functions(getattr(value, each.name), f"{name}.{each.name}".lstrip("."))
    elif isinstance(value, Callable):  # type: ignore[arg-type]
        yield name
