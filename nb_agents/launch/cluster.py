"""Runs turns on the workers of a Dask cluster.

Each turn is a Dask task, whose worker writes the turn's files.

Only the start of a run goes through the scheduler. Events and commands are files of the turn, in a
session root that all machines share.

A run starts at most once. It has a *ticket*, a file in the session root that a worker takes
(`nb_agents.launch.tickets`). If that worker dies before the run has started, the ticket is put back
and the run is submitted again. A caller that stops waiting withdraws the ticket. Requires
``nb_agents[cluster]``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import cloudpickle
import dask
from distributed import (
    Client,
    KilledWorker,
    LocalCluster,
    WorkerPlugin,
    fire_and_forget,
    get_worker,
    secede,
)
from distributed.client import ClosedClientError

from nb_agents.cancel import CancellationStatus, StopRequest
from nb_agents.errors import (
    ClusterLostError,
    NoWorkersError,
    StorageError,
    UserError,
    error_message,
)
from nb_agents.launch.here import Begun, Job
from nb_agents.launch.host import carry_out
from nb_agents.launch.tickets import Ticket, new_file
from nb_agents.options import Cluster
from nb_agents.session.commands import send
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.live_turns import LiveTurn, announce

logger = logging.getLogger("nb_agents")

RESOURCE = "nb_agents"
"""The Dask resource that limits a worker's turns. Without it, the number of threads does."""

PLACES = 25
"""Number of turns that a worker of "local:N" runs at the same time.

They mostly wait for servers.
"""

WORKERS_S = 120.0
"""Seconds to wait for a first worker. A job queue may take that long to start one."""

CONNECT_S = 10.0
"""Time limit in seconds for connecting to a scheduler."""

ANSWER_S = 60.0
"""Time limit in seconds for a request to a connected scheduler. A busy one is slow, and a dead one
closes the connection."""

LOST_S = 0.5
"""Interval in seconds for checking the connection of a waiting request."""

MOVE_S = 1.0
"""Seconds after which a run that is waiting for one worker may move to another."""

TELL_S = 120.0
"""Time limit in seconds for starting a run after taking its ticket. A cold import takes seconds."""

MAX_LOST = 3
"""Number of workers lost while starting a run after which it fails, because it may be the cause."""

RESTART_S = 20.0
"""Time limit in seconds for a nanny to end a worker process that does not respond."""

_UNSEEN_ROOT = "the session root {}. Use one on a shared disk: --session-root DIR."
_UNSEEN_PROJECT = (
    "{}, the working directory of the run because of `workspace: project`. Start the run in a "
    "directory on a shared disk, or without a cluster."
)

Answer = TypeVar("Answer")

_Workers = Mapping[str, Mapping[str, Any]]
_KEY = "nb_agents-"
_LOCAL = re.compile(r"local:([1-9][0-9]*)")


_restarting = threading.Lock()


@dataclass(frozen=True)
class _WorkerTask:
    """A job for a worker. Its `repr`, which Dask may log, does not include the request."""

    ticket: Ticket
    topic: str
    has_place: bool
    call: bytes = field(repr=False)


@dataclass(eq=False)
class _Waiting:
    """A run that waits for a worker to start it.

    Attributes:
        ticket: The run's ticket.
        projects: The user's directories in which it works.
        answer: The worker's answer.
        worker: The worker chosen for it, if any.
        future: The Dask future, once submitted.
        sent_back: A future that ended without starting the run. The run is then submitted again.
        taken_by: The worker that last had its ticket.
        taken_s: Seconds since that worker took it.
        lost: Number of workers that were lost while they had its ticket.
    """

    ticket: Ticket
    projects: Sequence[Path] = ()
    answer: Future[Mapping[str, str]] = field(default_factory=Future)
    worker: str | None = None
    future: Any = None
    sent_back: Any = None
    taken_by: str = ""
    taken_s: float = 0.0
    lost: int = 0

    @property
    def key(self) -> str:
        """The key of the run's Dask task."""
        return self.ticket.name

    def resolve(self, answer: Mapping[str, str]) -> None:
        """Set the worker's answer, unless there already is one."""
        with suppress(InvalidStateError):
            self.answer.set_result(answer)

    def withdraw(self) -> None:
        """Withdraw the run if it has not started. Does not wait for the scheduler."""
        if self.ticket.withdraw():
            self.resolve({"error": "The run was stopped before a worker started it."})

    def check_worker(self, workers: _Workers) -> None:
        """Recover the run if the worker with its ticket is gone or does not respond.

        Args:
            workers: The workers known to the scheduler.
        """
        before, self.taken_by = self.taken_by, self.ticket.worker
        self.taken_s = self.taken_s + MOVE_S if before == self.taken_by else 0.0
        is_gone = before == self.taken_by and before not in workers
        if not self.taken_by:
            self.find()
        elif is_gone or self.taken_s >= TELL_S:
            self.recover()

    def find(self) -> None:
        """Set the answer of a run that has started although its worker could not report it."""
        if (answer := self.ticket.answer) is not None:
            self.resolve(answer)

    def recover(self) -> None:
        """Mark the run for resubmission, unless it has started. Its worker or task was lost."""
        is_last = self.lost == MAX_LOST - 1  # so no other worker may take the ticket
        if self.ticket.take_away() if is_last else self.ticket.put_back():
            self.lost += 1
        if self.lost >= MAX_LOST:
            self.resolve({"error": f"{self.lost} workers were lost while starting the run."})
        elif self.ticket.is_waiting:
            self.sent_back = self.future
        else:
            self.find()


@dataclass(frozen=True)
class _Load:
    """The workers of a cluster and their tasks.

    Attributes:
        at: When the scheduler was asked, on the clock of `time.monotonic`.
        workers: The scheduler's information about each worker, by address.
        held: The keys of each worker's tasks, by address.
    """

    at: float
    workers: _Workers
    held: Mapping[str, Sequence[Any]]


class _Submitter:
    """Submits runs to a client's cluster, and receives the workers' answers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._topic = f"nb_agents-{uuid4().hex}"
        self._waiting: dict[str, _Waiting] = {}
        self._visible: set[tuple[Path, str]] = set()
        # Threads of a sweep choose workers one after the other, so that they don't all take the
        # same place.
        self._placement_lock = threading.Lock()
        self._load_lock = threading.Lock()  # lets threads share a request for the load
        self._load: _Load | None = None
        client.subscribe_topic(self._topic, self._on_answer)

    def begin(self, call: bytes, root: Path, projects: Sequence[Path]) -> Begun:
        """Submit a run. Block until a worker has started it."""
        waiting = _Waiting(Ticket.new(root, f"{_KEY}{uuid4().hex}"), projects)
        self._waiting[waiting.key] = waiting
        waiting.answer.add_done_callback(lambda _: self._waiting.pop(waiting.key))
        try:
            answer = self._wait(waiting, call)
            if "error" in answer:
                raise UserError(answer["error"])
        except BaseException:
            waiting.withdraw()
            waiting.find()
            _stop_unwanted(waiting.answer)
            if waiting.ticket.answer is None and waiting.future is not None:
                waiting.future.cancel()
            raise
        finally:
            waiting.ticket.close()
        # The task continues without this process and its client.
        fire_and_forget(waiting.future)
        location = f"worker {answer['worker']}"
        if answer["host"] != socket.gethostname():  # other hosts have their own lists of live turns
            pid = int(answer["pid"])
            announce(LiveTurn(answer["path"], answer["run"], pid, answer["host"], location))
        path = Path(answer["path"])
        return Begun(path, location, partial(self._restart, answer["worker"], path))

    def _restart(self, worker: str, path: Path) -> None:
        """Restart a worker that does not respond to commands. This ends its other runs too."""
        with _restarting:
            if not TurnPaths(path).is_live():  # a restart for another turn has already ended it
                return
            restart = partial(
                self.client.restart_workers, [worker], RESTART_S, raise_for_error=False
            )
            try:
                ask(self.client, restart)
            except (ClusterLostError, ValueError) as exc:  # ValueError: there is no nanny
                logger.warning("worker %s can't be restarted: %s", worker, exc)

    def _wait(self, waiting: _Waiting, call: bytes) -> Mapping[str, str]:
        """Submit a run.

        It is submitted again while it has not started and another worker could start it.
        """
        alone_s = may_be_old_s = 0.0
        while alone_s < WORKERS_S:
            load = self._current_load(may_be_old_s)
            may_be_old_s, workers = MOVE_S, load.workers
            self._check_visible(workers, waiting.ticket.root, _UNSEEN_ROOT)
            for project in waiting.projects:
                self._check_visible(workers, project, _UNSEEN_PROJECT)
            waiting.check_worker(workers)
            with self._placement_lock:
                freest = self._freest_worker(load)
                could_move = freest not in (None, waiting.worker) and waiting.ticket.is_waiting
                # Before the first submission, both futures are None.
                if could_move or waiting.future is waiting.sent_back:
                    self._submit(waiting, call, workers, freest)
            with suppress(TimeoutError):
                return waiting.answer.result(MOVE_S)
            alone_s = 0.0 if workers else alone_s + MOVE_S
        raise NoWorkersError(_address(self.client), f"for {WORKERS_S:g} s")

    def _submit(
        self, waiting: _Waiting, call: bytes, workers: _Workers, worker: str | None
    ) -> None:
        has_places = any(RESOURCE in each["resources"] for each in workers.values())
        before = waiting.future
        waiting.worker = worker
        waiting.future = self.client.submit(
            _work,
            _WorkerTask(waiting.ticket, self._topic, has_places, call),
            key=f"{waiting.key}-{uuid4().hex[:8]}",
            pure=False,
            retries=0,
            resources={RESOURCE: 1} if has_places else None,
            workers=worker,
            allow_other_workers=worker is not None,
        )
        waiting.future.add_done_callback(partial(_on_task_end, waiting))
        if before is not None:
            before.cancel()

    def _current_load(self, max_age_s: float) -> _Load:
        """Return the cluster's load, at most this many seconds old. Threads share requests."""
        oldest = time.monotonic() - max_age_s
        with self._load_lock:
            if self._load is None or self._load.at < oldest:
                now = time.monotonic()
                workers = ask(self.client, self._identity)["workers"]
                self._load = _Load(now, workers, ask(self.client, self.client.processing))
            return self._load

    def _identity(self) -> Awaitable[Mapping[str, Any]]:
        """Request the workers from the scheduler. `Client.scheduler_info` can be incomplete."""
        scheduler: Any = self.client.scheduler
        identity: Awaitable[Mapping[str, Any]] = scheduler.identity(n_workers=-1)
        return identity

    def _freest_worker(self, load: _Load) -> str | None:
        """Return the worker with the most free slots, or None if all are taken.

        Dask ignores how much of a worker's resource is in use, and would let runs wait for one
        worker while another is free.
        """
        held_keys = {worker: {*keys} for worker, keys in load.held.items()}
        for waiting in tuple(self._waiting.values()):  # a copy, because other threads add to it
            if waiting.worker is not None and (future := waiting.future) is not None:
                held_keys.setdefault(waiting.worker, set()).add(future.key)
        free = {
            worker: each["resources"].get(RESOURCE, 0)
            - sum(key.startswith(_KEY) for key in map(str, held_keys.get(worker, ())))
            for worker, each in load.workers.items()
        }
        freest = max(free, key=free.__getitem__, default="")
        return freest if free.get(freest, 0) >= 1 else None  # even if workers have no slots

    def withdraw(self, root: Path) -> None:
        """Withdraw the runs of one session root that wait for a worker."""
        for waiting in tuple(self._waiting.values()):
            if waiting.ticket.root.is_relative_to(
                root
            ):  # a judge's session is inside the session of its row
                waiting.withdraw()

    def _on_answer(self, event: tuple[float, Mapping[str, str]]) -> None:
        _, answer = event
        if (waiting := self._waiting.get(answer["key"])) is not None:
            waiting.resolve(answer)

    def _check_visible(self, workers: _Workers, directory: Path, unseen: str) -> None:
        """Raise `UserError` if one of the workers can't see a directory."""
        if new := [each for each in workers if (directory, each) not in self._visible]:
            probe = new_file(directory / f".{_KEY}{uuid4().hex}")
            try:
                check = partial(self.client.run, _is_visible, probe, workers=new, on_error="return")
                answers = ask(self.client, check, TELL_S)  # workers may first import nb_agents
            finally:
                probe.unlink()
            for worker, answer in answers.items():
                if isinstance(answer, OSError):  # the worker is gone
                    continue
                if isinstance(answer, Exception):
                    raise UserError(
                        f"Worker {worker} can't load nb_agents ({answer}). Install the same "
                        "packages there as here."
                    )
                if not answer:
                    raise UserError(
                        f"Worker {worker} can't see {unseen.format(repr(str(directory)))}"
                    )
                self._visible.add((directory, worker))


def ask(
    client: Client, request: Callable[[], Awaitable[Answer]], limit_s: float = ANSWER_S
) -> Answer:
    """Send a request to the scheduler. Wait for the answer while the client is connected.

    Dask itself would first try to reconnect, for as long as the client's own timeout.

    Args:
        request: Sends the request. Called on the client's loop, where methods return awaitables.
        limit_s: Maximum seconds to wait.

    Raises:
        ClusterLostError: The client is not connected, or the scheduler does not answer in time.
    """

    async def answer() -> Answer:
        return await request()

    def lost(why: str) -> ClusterLostError:
        return ClusterLostError(_address(client), why)

    if client.status != "running":  # its loop may be closed
        raise lost(f"its client is {client.status}")
    loop: Any = client.loop
    future = asyncio.run_coroutine_threadsafe(answer(), loop.asyncio_loop)
    end = time.monotonic() + limit_s
    while not wait((future,), LOST_S).done:
        is_late = time.monotonic() > end
        if is_late or client.status != "running":
            future.cancel()
            why = f"no answer in {limit_s:g} s" if is_late else f"its client is {client.status}"
            raise lost(why)
    try:
        return future.result()
    except OSError as exc:
        raise lost(error_message(exc)) from None


_submitters: dict[Client, _Submitter] = {}
_clients: dict[str, Client] = {}
_failures: dict[str, tuple[float, str]] = {}
# Threads of a sweep connect at the same time.
_connecting = threading.Lock()


def start_on_worker(cluster: Cluster, job: Job, root: Path, projects: Sequence[Path] = ()) -> Begun:
    """Start or resume a run on a worker. Block until a worker has started it.

    Args:
        root: The absolute session root.
        projects: The user's directories in which the run works, as absolute paths.

    Raises:
        UserError: A worker can't see one of those directories, or the run can't start there.
        ClusterLostError: The cluster can't be reached, or was lost.
        StorageError: The session root can't be written.
    """
    try:
        call = cloudpickle.dumps(job)
    except (TypeError, AttributeError, pickle.PicklingError) as exc:
        raise UserError(
            f"An argument of the run can't be sent to a worker ({exc}). Without ship=True, tools "
            "stay in this process."
        ) from None
    submitter = _submitter(connect(cluster))
    try:
        return submitter.begin(call, root, projects)
    except (OSError, RuntimeError, ClosedClientError) as exc:
        raise ClusterLostError(_address(submitter.client), error_message(exc)) from None


def withdraw(root: Path) -> None:
    """Withdraw the runs of one session root that wait for a worker."""
    for submitter in tuple(_submitters.values()):
        submitter.withdraw(root)


def connect(cluster: Cluster) -> Client:
    """Return a cluster's client, after forwarding environment variables to the workers.

    A cluster "local:N" is started on its first use.

    Raises:
        ClusterLostError: The scheduler does not answer.
        UserError: A variable to forward is not set in this process.
    """
    asked_at, target = time.monotonic(), cluster.client
    with _connecting:
        client: Client = _connected(target, asked_at) if isinstance(target, str) else target
        if client.asynchronous:
            raise UserError("The cluster's client is asynchronous. Use Client(asynchronous=False).")
        if cluster.forward_env:
            variables = _Variables(cluster.forward_env)
            ask(client, partial(client.register_plugin, variables), TELL_S)
    return client


def _connected(address: str, asked_at: float) -> Client:
    """Return the client for an address, reconnecting if necessary.

    Args:
        address: The address, or "local:N".
        asked_at: When the request was made. A connection that failed since then is not tried again,
            so that the rows of a sweep do not each wait for an attempt.
    """
    if address not in _clients or _clients[address].status != "running":
        failed_at, why = _failures.get(address, (-math.inf, ""))
        if failed_at >= asked_at:
            raise ClusterLostError(address, why)
        try:
            _clients[address] = _open(address)
        except ClusterLostError as exc:
            _failures[address] = time.monotonic(), exc.why
            raise
    return _clients[address]


def _submitter(client: Client) -> _Submitter:
    with _connecting:
        for closed in [each for each in _submitters if each.status == "closed"]:
            del _submitters[closed]
        if client not in _submitters:
            _submitters[client] = _Submitter(client)
        return _submitters[client]


def _open(address: str) -> Client:
    if local := _LOCAL.fullmatch(address):
        # A run with a dead worker is resumed from its journal, not started again by Dask.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = LocalCluster(
                host="127.0.0.1",
                n_workers=int(local[1]),
                threads_per_worker=1,
                resources={RESOURCE: PLACES},
                dashboard_address="127.0.0.1:0",
                # Anyone who can connect to a scheduler can run code as its user. Without TLS, other
                # users of this machine could connect.
                protocol="tls://",
                security=True,
            )
        return Client(cluster)
    if address.startswith("local:"):
        raise UserError(
            f"{address!r} does not contain a number of workers. Write, for example, local:4."
        )
    try:
        return Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as exc:
        raise ClusterLostError(address, error_message(exc)) from None


def _address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler is not None else "?"


def _on_task_end(waiting: _Waiting, future: Any) -> None:
    """Handle the end of a run's task: set the answer, or submit the run again."""
    if waiting.answer.done() or future is not waiting.future:
        return
    if future.status == "finished":
        answer = future.result()
        if not answer:
            waiting.sent_back = future  # resubmitted, now that its worker's slots are known
        elif "untaken" not in answer or (waiting.ticket.is_waiting and "error" in answer):
            waiting.resolve(answer)
        elif waiting.ticket.is_waiting:  # otherwise, another copy of the task has the ticket
            waiting.sent_back = future
    elif future.status == "error":
        exc = future.exception()
        if isinstance(exc, KilledWorker):
            waiting.recover()
        else:
            waiting.resolve({"error": f"A worker can't start the run: {type(exc).__name__}: {exc}"})
    else:
        with suppress(InvalidStateError):
            waiting.answer.set_exception(ConnectionError("the cluster has closed"))


def _stop_unwanted(answer: Future[Mapping[str, str]]) -> None:
    """Stop a run that started just when its caller stopped waiting."""
    if answer.done() and answer.exception() is None and (path := answer.result().get("path")):
        request = StopRequest(CancellationStatus.IMMEDIATE, "parent", "its caller stopped waiting")
        with suppress(StorageError):
            send(TurnPaths(Path(path)), request)


class _Variables(WorkerPlugin):
    """Copies environment variables of this process to all workers, including later ones."""

    name = "nb_agents variables"

    def __init__(self, names: tuple[str, ...]) -> None:
        if missing := [name for name in names if name not in os.environ]:
            raise UserError(f"forward_env names {missing[0]!r}, which is not set in this process.")
        self._values = {name: os.environ[name] for name in names}

    def setup(self, worker: Any) -> None:
        """Set the variables. Dask calls this in the worker's process."""
        os.environ.update(self._values)


# In a worker's process ----------------------------------------------------------------------


def _is_visible(probe: Path) -> bool:
    return probe.exists()


def _work(job: _WorkerTask) -> Mapping[str, str]:
    """Start a run and wait until it ends. Its files record the result.

    Returns:
        The answer, or an empty mapping if the task was submitted without a slot, before the
        worker's slots were known.
    """
    worker = get_worker()
    has_places = RESOURCE in worker.state.total_resources
    if has_places and not job.has_place:
        return {}
    prefix = f"Worker {worker.address}:"
    answer = {"key": job.ticket.name, "worker": worker.address, "host": socket.gethostname()}
    if has_places:
        secede()  # the number of slots limits the turns, not the number of threads
    if not job.ticket.take(worker.address):
        answer["untaken"] = "yes"
        if not job.ticket.path.parent.is_dir():
            answer["error"] = f"{prefix} it can't see {str(job.ticket.root)!r}."
        return answer

    def begin(path: Path, run: str) -> None:
        answer.update(path=str(path), run=run, pid=str(os.getpid()))
        if not job.ticket.begin(worker.address, answer):
            raise UserError("The run was withdrawn before it started.")

    try:
        run = carry_out(job.call, begin)
    except UserError as exc:
        return {**answer, "error": f"{prefix} {exc}"}
    except Exception as exc:
        return {**answer, "error": f"{prefix} {error_message(exc, named=True)}"}
    worker.log_event(job.topic, answer)
    run.wait(raise_on_stop=False)
    return answer
