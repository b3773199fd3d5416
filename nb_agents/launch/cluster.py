"""Runs on the workers of a Dask cluster: each turn is a task of a worker, which writes its files.

Only the start of a run goes through the scheduler: events and commands are files of the turn, in a
session root that all machines share.

A run starts at most once: it has a *ticket*, a file in the session root, which a worker takes
(`nb_agents.launch.tickets`). When that worker dies before the run has begun, the ticket is put back
and the run submitted again; a caller that stops waiting withdraws it. Needs ``nb_agents[cluster]``.
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
from nb_agents.errors import ClusterLostError, NoWorkersError, StorageError, UserError, said_by
from nb_agents.launch.here import Begun, Job
from nb_agents.launch.host import carry_out
from nb_agents.launch.tickets import Ticket, new_file
from nb_agents.options import Cluster
from nb_agents.runs.live_turns import LiveTurn, announce
from nb_agents.session.commands import send
from nb_agents.session.layout import TurnPaths

logger = logging.getLogger("nb_agents")

RESOURCE = "nb_agents"
"""The Dask resource that limits a worker's turns; without it, its number of threads does."""

PLACES = 25
"""Turns that a worker of "local:N" runs at a time: mostly they wait for servers."""

WORKERS_S = 120.0
"""How long a cluster may have no worker: a job queue may take that long to start one."""

CONNECT_S = 10.0
"""Time limit for a scheduler to answer."""

ANSWER_S = 60.0
"""Timeout of a request to a connected scheduler, seconds: a busy one is slow, a dead one closes the
connection."""

LOST_S = 0.5
"""Interval for checking that the connection of a waiting request still exists, seconds."""

MOVE_S = 1.0
"""Time after which a run that waits for a place at one worker may move to another."""

TELL_S = 120.0
"""Time limit for a worker to start a run once it has its ticket: a cold import takes seconds."""

MAX_LOST = 3
"""Workers that may be lost while they start a run before it fails, as it may be the cause."""

RESTART_S = 20.0
"""Time limit for a nanny to end the process of a worker that does not respond."""

_UNSEEN_ROOT = "the session root {}. Give one that all machines see: --session-root DIR."
_UNSEEN_PROJECT = (
    "{}, in which `workspace: project` lets the run work. Start it in a directory that all "
    "machines see, or without a cluster."
)

Answer = TypeVar("Answer")

_Workers = Mapping[str, Mapping[str, Any]]
_KEY = "nb_agents-"
_LOCAL = re.compile(r"local:([1-9][0-9]*)")


_restarting = threading.Lock()


@dataclass(frozen=True)
class _WorkerTask:
    """A worker's job; its `repr`, which Dask may log, does not include the call."""

    ticket: Ticket
    topic: str
    has_place: bool
    call: bytes = field(repr=False)


@dataclass(eq=False)
class _Waiting:
    """A run that waits for a worker to start it.

    Attributes:
        ticket: The run's ticket.
        projects: The user's directories that it works in.
        answer: The worker's answer.
        worker: The worker chosen for it, if any.
        future: The Dask future, once submitted.
        sent_back: A future that ended without starting it, so that it is submitted again.
        taken_by: The worker that was last seen to have its ticket.
        taken_s: Seconds since then.
        lost: Workers that were lost while they had its ticket.
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
        """The key of its Dask task."""
        return self.ticket.name

    def resolve(self, answer: Mapping[str, str]) -> None:
        """Set the answer, unless there is one."""
        with suppress(InvalidStateError):
            self.answer.set_result(answer)

    def withdraw(self) -> None:
        """Withdraw the run, if it has not begun; does not wait for the scheduler."""
        if self.ticket.withdraw():
            self.resolve({"error": "The run was stopped before a worker started it."})

    def check_worker(self, workers: _Workers) -> None:
        """Look whether the worker that has its ticket is gone or does not respond.

        Args:
            workers: The workers, as the scheduler knew them after the last call.
        """
        before, self.taken_by = self.taken_by, self.ticket.worker
        self.taken_s = self.taken_s + MOVE_S if before == self.taken_by else 0.0
        is_gone = before == self.taken_by and before not in workers
        if not self.taken_by:
            self.find()
        elif is_gone or self.taken_s >= TELL_S:
            self.recover()

    def find(self) -> None:
        """Set the answer of a run that has begun, though its worker could not tell it."""
        if (answer := self.ticket.answer) is not None:
            self.resolve(answer)

    def recover(self) -> None:
        """Have it submitted again, unless it has begun: its worker or its task was lost."""
        is_last = self.lost == MAX_LOST - 1  # no worker may take it between this and its error
        if self.ticket.take_away() if is_last else self.ticket.put_back():
            self.lost += 1
        if self.lost >= MAX_LOST:
            self.resolve({"error": f"{self.lost} workers were lost while they started the run."})
        elif self.ticket.is_waiting:
            self.sent_back = self.future
        else:
            self.find()


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


class _Submitter:
    """Submits runs to the cluster of a client, and receives the workers' answers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._topic = f"nb_agents-{uuid4().hex}"
        self._waiting: dict[str, _Waiting] = {}
        self._seen: set[tuple[Path, str]] = set()
        # Separates the threads of a sweep, so that they don't all take the same place.
        self._choosing = threading.Lock()
        self._asking = threading.Lock()  # so that one of them asks the scheduler for all
        self._load: _Load | None = None
        client.subscribe_topic(self._topic, self._on_answer)

    def begin(self, call: bytes, root: Path, projects: Sequence[Path]) -> Begun:
        """Submit a run, and block until a worker has started it."""
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
        # The task goes on when this process and its client are gone.
        fire_and_forget(waiting.future)
        place = f"worker {answer['worker']}"
        if answer["host"] != socket.gethostname():  # that host has its own list of live turns
            pid = int(answer["pid"])
            announce(LiveTurn(answer["path"], answer["run"], pid, answer["host"], place))
        path = Path(answer["path"])
        return Begun(path, place, partial(self._restart, answer["worker"], path))

    def _restart(self, worker: str, path: Path) -> None:
        """Restart a worker that no longer responds to commands, which ends its other runs too."""
        with _restarting:
            if not TurnPaths(path).is_live():  # a restart for another turn has ended it
                return
            restart = partial(
                self.client.restart_workers, [worker], RESTART_S, raise_for_error=False
            )
            try:
                ask(self.client, restart)
            except (ClusterLostError, ValueError) as exc:  # or there is no nanny
                logger.warning("worker %s can't be restarted: %s", worker, exc)

    def _wait(self, waiting: _Waiting, call: bytes) -> Mapping[str, str]:
        """Submit a run, and resubmit it while no worker has started it and another one could."""
        alone_s = may_be_old_s = 0.0
        while alone_s < WORKERS_S:
            load = self._current_load(may_be_old_s)
            may_be_old_s, workers = MOVE_S, load.workers
            self._check_seen(workers, waiting.ticket.root, _UNSEEN_ROOT)
            for project in waiting.projects:
                self._check_seen(workers, project, _UNSEEN_PROJECT)
            waiting.check_worker(workers)
            with self._choosing:
                most = self._with_most_places(load)
                could_move = most not in (None, waiting.worker) and waiting.ticket.is_waiting
                if could_move or waiting.future is waiting.sent_back:  # both None at first
                    self._submit(waiting, call, workers, most)
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
        """Return the cluster's load, at most so many seconds old; threads share one request."""
        oldest = time.monotonic() - max_age_s
        with self._asking:
            if self._load is None or self._load.at < oldest:
                now = time.monotonic()
                workers = ask(self.client, self._identity)["workers"]
                self._load = _Load(now, workers, ask(self.client, self.client.processing))
            return self._load

    def _identity(self) -> Awaitable[Mapping[str, Any]]:
        """Ask for the workers: `Client.scheduler_info` at times has none, or not all."""
        scheduler: Any = self.client.scheduler
        asked: Awaitable[Mapping[str, Any]] = scheduler.identity(n_workers=-1)
        return asked

    def _with_most_places(self, load: _Load) -> str | None:
        """Name the worker with the most free places; None when all are taken.

        Dask does not take into account how much of a worker's resource is in use: it would let runs
        wait at one worker while another is free.
        """
        taken = {worker: {*keys} for worker, keys in load.held.items()}
        for waiting in tuple(self._waiting.values()):  # a copy, as other threads add theirs
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
        """Withdraw the runs that wait for a worker, of one session root."""
        for waiting in tuple(self._waiting.values()):
            if waiting.ticket.root.is_relative_to(root):  # a judge's session is within its row's
                waiting.withdraw()

    def _on_answer(self, event: tuple[float, Mapping[str, str]]) -> None:
        _, answer = event
        if (waiting := self._waiting.get(answer["key"])) is not None:
            waiting.resolve(answer)

    def _check_seen(self, workers: _Workers, place: Path, unseen: str) -> None:
        """Raise `UserError` if one of the workers does not see a directory."""
        if new := [each for each in workers if (place, each) not in self._seen]:
            probe = new_file(place / f".{_KEY}{uuid4().hex}")
            try:
                look = partial(self.client.run, _sees, probe, workers=new, on_error="return")
                seen = ask(self.client, look, TELL_S)  # the first time, workers import nb_agents
            finally:
                probe.unlink()
            for worker, answer in seen.items():
                if isinstance(answer, OSError):  # the worker is gone
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


def ask(
    client: Client, request: Callable[[], Awaitable[Answer]], limit_s: float = ANSWER_S
) -> Answer:
    """Send a request to the scheduler, and wait for the answer while the client is connected.

    Dask itself would first try to connect again, for as long as the client's own timeout.

    Args:
        client: The client.
        request: Sends it; called on the client's loop, where its methods return awaitables.
        limit_s: Seconds to wait at most.

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
    asked = asyncio.run_coroutine_threadsafe(answer(), loop.asyncio_loop)
    end = time.monotonic() + limit_s
    while not wait((asked,), LOST_S).done:
        is_late = time.monotonic() > end
        if is_late or client.status != "running":
            asked.cancel()
            why = f"no answer in {limit_s:g} s" if is_late else f"its client is {client.status}"
            raise lost(why)
    try:
        return asked.result()
    except OSError as exc:
        raise lost(said_by(exc)) from None


_submitters: dict[Client, _Submitter] = {}
_clients: dict[str, Client] = {}
_failures: dict[str, tuple[float, str]] = {}
# Separates the threads of a sweep, which connect at the same time.
_connecting = threading.Lock()


def start_on_worker(cluster: Cluster, job: Job, root: Path, projects: Sequence[Path] = ()) -> Begun:
    """Start or resume a run on a worker, blocking until one has a place for it.

    Args:
        cluster: The cluster.
        job: The job.
        root: The session root, absolute.
        projects: The user's directories that the run works in, absolute.

    Raises:
        UserError: A worker does not see one of those directories, or the run can't start there.
        ClusterLostError: The cluster can't be reached, or was lost.
        StorageError: The session root can't be written.
    """
    try:
        call = cloudpickle.dumps(job)
    except (TypeError, AttributeError, pickle.PicklingError) as exc:
        raise UserError(
            f"What the run is given can't be sent to a worker ({exc}). Without ship=True, tools "
            "stay in this process."
        ) from None
    submitter = _submitter(connect(cluster))
    try:
        return submitter.begin(call, root, projects)
    except (OSError, RuntimeError, ClosedClientError) as exc:
        raise ClusterLostError(_address(submitter.client), said_by(exc)) from None


def withdraw(root: Path) -> None:
    """Withdraw the runs that wait for a worker, of one session root."""
    for submitter in tuple(_submitters.values()):
        submitter.withdraw(root)


def connect(cluster: Cluster) -> Client:
    """Return a cluster's client, after forwarding environment variables to the workers.

    A cluster "local:N" is started at its first use.

    Raises:
        ClusterLostError: No scheduler answers.
        UserError: A variable is not set here.
    """
    asked_at, given = time.monotonic(), cluster.client
    with _connecting:
        client: Client = _connected(given, asked_at) if isinstance(given, str) else given
        if client.asynchronous:
            raise UserError(
                "The cluster's client is asynchronous; give Client(asynchronous=False)."
            )
        if cluster.forward_env:
            variables = _Variables(cluster.forward_env)
            ask(client, partial(client.register_plugin, variables), TELL_S)
    return client


def _connected(address: str, asked_at: float) -> Client:
    """Return the client of an address, reconnected if necessary.

    Args:
        address: The address, or "local:N".
        asked_at: When it was asked for: what failed since then is not tried again, as each of a
            sweep's rows would wait for its own attempt.
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
        for gone in [each for each in _submitters if each.status == "closed"]:
            del _submitters[gone]
        if client not in _submitters:
            _submitters[client] = _Submitter(client)
        return _submitters[client]


def _open(address: str) -> Client:
    if local := _LOCAL.fullmatch(address):
        # A run whose worker died is resumed from its journal, not started again by Dask.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = LocalCluster(
                host="127.0.0.1",
                n_workers=int(local[1]),
                threads_per_worker=1,
                resources={RESOURCE: PLACES},
                dashboard_address="127.0.0.1:0",
                # Whoever reaches a scheduler can run code as its user; without these TLS keys,
                # other users of this machine could.
                protocol="tls://",
                security=True,
            )
        return Client(cluster)
    if address.startswith("local:"):
        raise UserError(f"{address!r} names no number of workers. Write, for example, local:4.")
    try:
        return Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as exc:
        raise ClusterLostError(address, said_by(exc)) from None


def _address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler is not None else "?"


def _on_task_end(waiting: _Waiting, future: Any) -> None:
    """Set the answer of a run whose task ended before it started, or have it submitted again."""
    if waiting.answer.done() or future is not waiting.future:
        return
    if future.status == "finished":
        answer = future.result()
        if not answer:
            waiting.sent_back = future  # submitted again, now that its worker's places are known
        elif "untaken" not in answer or (waiting.ticket.is_waiting and "error" in answer):
            waiting.resolve(answer)
        elif waiting.ticket.is_waiting:  # else the other copy of a task that was moved has it
            waiting.sent_back = future
    elif future.status == "error":
        exc = future.exception()
        if isinstance(exc, KilledWorker):
            waiting.recover()
        else:
            waiting.resolve({"error": f"A worker can't start it: {type(exc).__name__}: {exc}"})
    else:
        with suppress(InvalidStateError):
            waiting.answer.set_exception(ConnectionError("the cluster has closed"))


def _stop_unwanted(answer: Future[Mapping[str, str]]) -> None:
    """Stop a run that started while its caller stopped waiting."""
    if answer.done() and answer.exception() is None and (path := answer.result().get("path")):
        request = StopRequest(CancellationStatus.IMMEDIATE, "parent", "nobody waits for it")
        with suppress(StorageError):
            send(TurnPaths(Path(path)), request)


class _Variables(WorkerPlugin):
    """Copies environment variables of this process to all workers, including later ones."""

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


def _work(job: _WorkerTask) -> Mapping[str, str]:
    """Start a run and wait for its end, which its files record.

    Returns:
        The answer; empty when the task was submitted without a place, before the worker's places
        were known.
    """
    worker = get_worker()
    has_places = RESOURCE in worker.state.total_resources
    if has_places and not job.has_place:
        return {}
    refused = f"Worker {worker.address}:"
    answer = {"key": job.ticket.name, "worker": worker.address, "host": socket.gethostname()}
    if has_places:
        secede()  # the places limit the number of turns, not the threads
    if not job.ticket.take(worker.address):
        answer["untaken"] = "yes"
        if not job.ticket.path.parent.is_dir():
            answer["error"] = f"{refused} it does not see {str(job.ticket.root)!r}."
        return answer

    def begin(path: Path, run: str) -> None:
        answer.update(path=str(path), run=run, pid=str(os.getpid()))
        if not job.ticket.begin(worker.address, answer):
            raise UserError("The run was withdrawn before it began.")

    try:
        run = carry_out(job.call, begin)
    except UserError as exc:
        return {**answer, "error": f"{refused} {exc}"}
    except Exception as exc:
        return {**answer, "error": f"{refused} {said_by(exc, named=True)}"}
    worker.log_event(job.topic, answer)
    run.wait(raise_on_stop=False)
    return answer
