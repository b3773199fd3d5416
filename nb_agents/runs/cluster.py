"""Runs on the workers of a Dask cluster: each turn is a task of a worker, which writes its files.

Of a run nothing but its beginning goes by the scheduler: events and commands are files of the turn,
in a session root that all machines see.

A run begins once at most: it has a *ticket*, a file in the session root, and begins when a worker
removes that. A task that Dask carries out again, as its worker died, finds none; and who does not
want to wait for a worker any more removes it first. Needs ``nb_agents[cluster]``.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import cloudpickle
import dask
from distributed import Client, LocalCluster, WorkerPlugin, fire_and_forget, get_worker, secede
from distributed.client import ClosedClientError

from nb_agents.cancel import CancellationStatus, StopRequest
from nb_agents.errors import ClusterLostError, StorageError, UserError
from nb_agents.options import Cluster
from nb_agents.runs.live_turns import LiveTurn, announce
from nb_agents.session.commands import send
from nb_agents.session.layout import TICKETS, TurnPaths

logger = logging.getLogger("nb_agents")

__all__ = ["PLACES", "RESOURCE", "Started", "begin_on", "connect", "withdraw"]

RESOURCE = "nb_agents"
"""Of a worker: how many turns it takes at a time. Without it, as many as it has threads."""

PLACES = 25
"""Turns that a worker of "local:N" takes at a time: they wait for servers, most of the time."""

WORKERS_S = 120.0
"""What a cluster without a worker gets to bring one: a job's queue takes its time."""

CONNECT_S = 10.0
"""What a scheduler gets to answer."""

ANSWER_S = 60.0
"""Timeout of a request to a connected scheduler, seconds: a busy one is slow, a dead one closes the
connection."""

MOVE_S = 1.0
"""After so long, a run that waits for a worker's place may go to another one's."""

TELL_S = 120.0
"""What a worker gets to begin a run, once it has taken its ticket: a cold import takes seconds."""

RESTART_S = 20.0
"""What a nanny gets to end a worker's process that hears nothing."""

_UNSEEN_ROOT = "the session root {}. Give one that all machines see: --session-root DIR."
_UNSEEN_PROJECT = (
    "{}, in which `workspace: project` lets the run work. Start it in a directory that all "
    "machines see, or without a cluster."
)

_Workers = Mapping[str, Mapping[str, Any]]
_KEY = "nb_agents-"
_LOCAL = re.compile(r"local:([1-9][0-9]*)")


@dataclass(frozen=True)
class Started:
    """A run that a worker has begun.

    Attributes:
        path: The turn's directory.
        worker: The worker's address.
        client: The cluster's client.
    """

    path: Path
    worker: str
    client: Client

    def restart(self) -> None:
        """End the worker's process, which hears no command any more; its other runs are cut too."""
        with _restarting:
            if not TurnPaths(self.path).is_live():  # another turn's restart has ended it
                return
            try:
                self.client.restart_workers([self.worker], RESTART_S, raise_for_error=False)
            except (OSError, ValueError) as exc:  # the scheduler is gone, or there is no nanny
                logger.warning("worker %s can't be restarted: %s", self.worker, exc)


_restarting = threading.Lock()


@dataclass(frozen=True)
class _Job:
    """What a worker is to do; its `repr`, which Dask may log, tells nothing of it."""

    ticket: Path
    topic: str
    has_place: bool
    call: bytes = field(repr=False)


@dataclass(eq=False)
class _Waiting:
    """A run that no worker has begun.

    Attributes:
        ticket: Its ticket.
        projects: Directories of the person's own that it works in.
        told: What the worker says once it has.
        worker: Who is to begin it, when that is chosen here.
        future: Dask's, once it is asked.
        sent_back: A future of Dask's whose worker has sent it back, to come again for a place.
    """

    ticket: Path
    projects: Sequence[Path] = ()
    told: Future[Mapping[str, str]] = field(default_factory=Future)
    worker: str | None = None
    future: Any = None
    sent_back: Any = None

    @property
    def key(self) -> str:
        """Of its task."""
        return self.ticket.name

    @property
    def root(self) -> Path:
        """Where its session is to be."""
        return self.ticket.parents[1]

    def take(self, told: Mapping[str, str]) -> None:
        """Take what a worker, or who knows of it, says; the first word counts."""
        with suppress(InvalidStateError):
            self.told.set_result(told)

    @property
    def is_in_time(self) -> bool:
        """Whether no worker has begun it."""
        return self.ticket.exists()

    def give_up(self) -> bool:
        """Let it not begin; whether that came in time."""
        try:
            self.ticket.unlink()
        except OSError:
            return False
        self.take({"error": "The run was stopped before a worker took it."})
        if self.future is not None:
            self.future.cancel()
        return True


@dataclass(frozen=True)
class _Load:
    """The workers of a cluster and the tasks that they hold.

    Attributes:
        at: When the scheduler was asked, by `time.monotonic`.
        workers: What the scheduler knows of each worker, by address.
        held: The keys of each worker's tasks, by address.
    """

    at: float
    workers: _Workers
    held: Mapping[str, Sequence[Any]]


class _Desk:
    """What one client has asked of its cluster, and what the workers tell.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._topic = f"nb_agents-{uuid4().hex}"
        self._waiting: dict[str, _Waiting] = {}
        self._seen: set[tuple[Path, str]] = set()
        # Separates the threads of a sweep, so that they don't all take the same place.
        self._choosing = threading.Lock()
        self._asking = threading.Lock()  # so that one of them asks the scheduler for all
        self._load: _Load | None = None
        client.subscribe_topic(self._topic, self._hear)

    def begin(self, call: bytes, root: Path, projects: Sequence[Path]) -> Started:
        """Let a worker begin a run; waits until one has."""
        waiting = _Waiting(_new_ticket(root), projects)
        self._waiting[waiting.key] = waiting
        waiting.told.add_done_callback(lambda _: self._waiting.pop(waiting.key))
        try:
            told = self._wait(waiting, call)
            if "error" in told:
                raise UserError(told["error"])
        except BaseException:
            if not waiting.give_up():  # a worker begins it at this moment
                waiting.told.add_done_callback(_stop_unwanted)
            raise
        # What works goes on when this process, and its client, is gone.
        fire_and_forget(waiting.future)
        if told["host"] != socket.gethostname():  # which has told of it in a list of its own
            place = f"worker {told['worker']}"
            announce(LiveTurn(told["path"], told["run"], int(told["pid"]), told["host"], place))
        return Started(Path(told["path"]), told["worker"], self.client)

    def _wait(self, waiting: _Waiting, call: bytes) -> Mapping[str, str]:
        """Submit a run, and again as long as no worker has begun it and another could."""
        alone_s = taken_s = may_be_old_s = 0.0
        while taken_s < TELL_S:
            load = self._current_load(may_be_old_s)
            may_be_old_s, workers = MOVE_S, load.workers
            self._check_seen(workers, waiting.root, _UNSEEN_ROOT)
            for project in waiting.projects:
                self._check_seen(workers, project, _UNSEEN_PROJECT)
            with self._choosing:
                most = self._with_most_places(load)
                could_move = waiting.is_in_time and most not in (None, waiting.worker)
                if could_move or waiting.future is waiting.sent_back:  # both None at first
                    self._submit(waiting, call, workers, most)
            with suppress(TimeoutError):
                return waiting.told.result(MOVE_S)
            alone_s = 0.0 if workers else alone_s + MOVE_S
            taken_s += 0.0 if waiting.is_in_time else MOVE_S
            if alone_s >= WORKERS_S:
                return {"error": f"The cluster has no worker, after {WORKERS_S:g} s."}
        return {"error": "The run was lost before it began: its worker tells nothing of it."}

    def _submit(
        self, waiting: _Waiting, call: bytes, workers: _Workers, worker: str | None
    ) -> None:
        has_places = any(RESOURCE in each["resources"] for each in workers.values())
        before = waiting.future
        waiting.worker = worker
        waiting.future = self.client.submit(
            _work,
            _Job(waiting.ticket, self._topic, has_places, call),
            key=f"{waiting.key}-{uuid4().hex[:8]}",
            pure=False,
            retries=0,
            resources={RESOURCE: 1} if has_places else None,
            workers=worker,
            allow_other_workers=worker is not None,
        )
        waiting.future.add_done_callback(partial(_end_of_task, waiting))
        if before is not None:
            before.cancel()

    def _current_load(self, max_age_s: float) -> _Load:
        """Return the cluster's load, at most so many seconds old; threads share one request."""
        oldest = time.monotonic() - max_age_s
        with self._asking:
            if self._load is None or self._load.at < oldest:
                now = time.monotonic()
                self._load = _Load(now, self._workers(), self.client.processing())
            return self._load

    def _with_most_places(self, load: _Load) -> str | None:
        """Name the worker with the most free places; None when all are taken.

        Dask knows what a worker can hold and not how much of it is taken: left to it, runs would
        wait at one worker while another is free.
        """
        taken = {worker: {*keys} for worker, keys in load.held.items()}
        for waiting in tuple(self._waiting.values()):  # other threads add theirs
            if waiting.worker is not None and (future := waiting.future) is not None:
                taken.setdefault(waiting.worker, set()).add(future.key)
        free = {
            worker: each["resources"].get(RESOURCE, 0)
            - sum(key.startswith(_KEY) for key in map(str, taken.get(worker, ())))
            for worker, each in load.workers.items()
        }
        most = max(free, key=free.__getitem__, default="")
        return most if free.get(most, 0) >= 1 else None  # None too where workers have no places

    def withdraw(self, root: Path) -> None:
        """Let none of the runs begin that are to be in a session root and wait for a worker."""
        for waiting in tuple(self._waiting.values()):
            if waiting.root.is_relative_to(root):  # a judge works below its row
                waiting.give_up()

    def _hear(self, event: tuple[float, Mapping[str, str]]) -> None:
        _, told = event
        if (waiting := self._waiting.get(told["key"])) is not None:
            waiting.take(told)

    def _check_seen(self, workers: _Workers, place: Path, unseen: str) -> None:
        """Refuse a cluster with a worker that does not see a directory."""
        if new := [each for each in workers if (place, each) not in self._seen]:
            probe = _new_file(place / f".{_KEY}{uuid4().hex}")
            try:
                seen = self.client.run(_sees, probe, workers=new, on_error="return")
            finally:
                probe.unlink()
            for worker, answer in seen.items():
                if isinstance(answer, OSError):  # it has gone
                    continue
                if isinstance(answer, Exception):
                    raise UserError(
                        f"Worker {worker} can't load nb_agents ({answer}). Install there what is "
                        "installed here."
                    )
                if not answer:
                    raise UserError(
                        f"Worker {worker} does not see {unseen.format(repr(str(place)))}"
                    )
                self._seen.add((place, worker))

    def _workers(self) -> _Workers:
        """Tell of the workers; a cluster that grows with its work may have none yet."""
        if self.client.status != "running":
            raise ConnectionError(f"its client is {self.client.status}")
        # Not `Client.scheduler_info`: what that gives is replaced now and then, without workers.
        scheduler: Any = self.client.scheduler
        told = self.client.sync(scheduler.identity, n_workers=-1, callback_timeout=ANSWER_S)
        found: _Workers = told["workers"]
        return found


_desks: dict[Client, _Desk] = {}
_clients: dict[str, Client] = {}
# Separates the threads of a sweep, which come here at once.
_connecting = threading.Lock()


def begin_on(
    cluster: Cluster,
    what: str,
    arguments: Mapping[str, Any],
    root: Path,
    projects: Sequence[Path] = (),
) -> Started:
    """Start or resume a run on a worker, as soon as one has a place for it; blocks until then.

    Args:
        cluster: Where.
        what: "start" or "resume".
        arguments: Those of `nb_agents.start` or `nb_agents.resume`.
        root: The session root, absolute.
        projects: Directories of the person's own that it works in, absolute.

    Returns:
        Where it is.

    Raises:
        UserError: A worker does not see one of those directories, or the run can't start there.
        ClusterLostError: The cluster can't be reached, or not any more.
        StorageError: The session root can't be written.
    """
    try:
        call = cloudpickle.dumps((what, arguments, Path.cwd()))
    except (TypeError, AttributeError, pickle.PicklingError) as exc:
        raise UserError(
            f"What the run is given can't be sent to a worker ({exc}). Without ship=True, tools "
            "stay in this process."
        ) from None
    desk = _desk(connect(cluster))
    try:
        return desk.begin(call, root, projects)
    except (OSError, RuntimeError, ClosedClientError) as exc:
        raise ClusterLostError(_address(desk.client), str(exc) or type(exc).__name__) from None


def withdraw(root: Path) -> None:
    """Let no run begin that waits for a worker, in a session root."""
    for desk in tuple(_desks.values()):
        desk.withdraw(root)


def connect(cluster: Cluster) -> Client:
    """Give a cluster's client, with the variables sent that the workers are to have.

    Args:
        cluster: Which; "local:N" is begun at its first use.

    Raises:
        ClusterLostError: No scheduler answers.
        UserError: A variable is not set here.
    """
    with _connecting:
        given = cluster.client
        if isinstance(given, str) and (
            given not in _clients or _clients[given].status != "running"
        ):
            _clients[given] = _open(given)
        client: Client = _clients[given] if isinstance(given, str) else given
        if client.asynchronous:
            raise UserError(
                "The cluster's client is asynchronous; give Client(asynchronous=False)."
            )
        if cluster.forward_env:
            client.register_plugin(_Variables(cluster.forward_env))
    return client


def _desk(client: Client) -> _Desk:
    with _connecting:
        if client not in _desks:
            _desks[client] = _Desk(client)
        return _desks[client]


def _open(address: str) -> Client:
    if local := _LOCAL.fullmatch(address):
        # A run whose worker died is resumed by its journal, and not begun anew.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = LocalCluster(
                host="127.0.0.1",
                n_workers=int(local[1]),
                threads_per_worker=1,
                resources={RESOURCE: PLACES},
                dashboard_address="127.0.0.1:0",
                # Who can reach a scheduler can run anything as its user: others on this machine
                # could, without the keys that this makes.
                protocol="tls://",
                security=True,
            )
        return Client(cluster)
    if address.startswith("local:"):
        raise UserError(f"{address!r} names no number of workers. Write, for example, local:4.")
    try:
        return Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as exc:
        raise ClusterLostError(address, str(exc) or type(exc).__name__) from None


def _address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler is not None else "?"


def _new_ticket(root: Path) -> Path:
    return _new_file(root / TICKETS / f"{_KEY}{uuid4().hex}")


def _new_file(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except OSError as exc:
        raise StorageError(str(path.parent), exc.strerror or str(exc)) from None
    return path


def _end_of_task(waiting: _Waiting, future: Any) -> None:
    """Tell the one who waits of a task that has ended before its run began."""
    if waiting.told.done() or future is not waiting.future:
        return
    if future.status == "finished":
        told = future.result()
        if not told:
            waiting.sent_back = future  # submitted again, now that its worker's places are known
        # Where a task was moved, both may come to begin the run: the other one has.
        elif not told.get("unseen") or waiting.is_in_time:
            waiting.take(told)
    elif future.status == "error":
        waiting.take({"error": "The run was lost before it began: its worker died."})
    else:
        with suppress(InvalidStateError):
            waiting.told.set_exception(ConnectionError("the cluster has closed"))


def _stop_unwanted(told: Future[Mapping[str, str]]) -> None:
    """Stop a run that has begun while the one who had asked for it gave up."""
    if told.exception() is None and (path := told.result().get("path")):
        request = StopRequest(CancellationStatus.IMMEDIATE, "parent", "nobody waits for it")
        with suppress(StorageError):
            send(TurnPaths(Path(path)), request)


class _Variables(WorkerPlugin):
    """Sets variables of this process in each worker, also in those that come later.

    Args:
        names: Of the variables.
    """

    name = "nb_agents variables"

    def __init__(self, names: tuple[str, ...]) -> None:
        if missing := [name for name in names if name not in os.environ]:
            raise UserError(f"forward_env names {missing[0]!r}, which is not set here.")
        self._values = {name: os.environ[name] for name in names}

    def setup(self, worker: Any) -> None:
        """Called by Dask in the worker's process."""
        os.environ.update(self._values)


# In a worker's process ----------------------------------------------------------------------


def _sees(probe: Path) -> bool:
    return probe.exists()


def _work(job: _Job) -> Mapping[str, str]:
    """Begin a run and stay until it is over; its end is in its files.

    Returns:
        What became of it; nothing when it was submitted before its worker had told of its places,
        of which none is held for it.
    """
    worker = get_worker()
    has_places = RESOURCE in worker.state.total_resources
    if has_places and not job.has_place:
        return {}
    refused = f"Worker {worker.address}:"
    told = {"key": job.ticket.name, "worker": worker.address, "host": socket.gethostname()}
    if has_places:
        secede()  # its places say how many turns it takes, and not its threads
    try:
        job.ticket.unlink()
    except OSError:
        root = job.ticket.parents[1]
        return {**told, "unseen": "yes", "error": f"{refused} it does not see {str(root)!r}."}
    try:
        # By its name, as for a process of its own: what can begin any run lies above this module.
        run = import_module("nb_agents.runs.host").carry_out(job.call)
    except UserError as exc:
        return {**told, "error": f"{refused} {exc}"}
    except Exception as exc:
        return {**told, "error": f"{refused} {type(exc).__name__}: {exc}"}
    told |= {"path": str(run.path), "run": run.id, "pid": str(os.getpid())}
    worker.log_event(job.topic, told)
    run.wait(raise_on_stop=False)
    return told
