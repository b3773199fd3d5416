"""A run: the handle of one turn that is being worked on, from any thread.

The work happens on the background loop; everything that reaches it from elsewhere is a level on
its cancel token. However it ends, it ends the same way: every task awaited, the client closed,
the turn written, the lock released, the hook called, and only then the waiters told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import isawaitable
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from filelock import FileLock

from nb_agents import events as ev
from nb_agents.agents.team import Result, Team
from nb_agents.cancel import (
    AgentStopped,
    CancellationStatus,
    CancelPolicy,
    CancelToken,
    StopRequest,
    StopResult,
    StopSource,
    bind,
)
from nb_agents.config.team import TeamSpec
from nb_agents.errors import RunCancelled, RunFailed, StorageError, UserError
from nb_agents.models.providers import backend_for, http_client
from nb_agents.runs.interrupts import interrupt_calls
from nb_agents.runs.loop import portal, post
from nb_agents.runs.recorder import Recorder
from nb_agents.session.history import Message, workspace_files
from nb_agents.session.journal import Journal
from nb_agents.session.layout import TurnPaths
from nb_agents.session.turn import write_views
from nb_agents.view import Receipt, RunStatus, RunView, receipt

__all__ = ["Progress", "Run", "Work"]

logger = logging.getLogger("nb_agents")

TICK_S = 0.1
"""How much a kill -9 may cost, and how often people are shown news."""


@dataclass(frozen=True)
class Work:
    """What a run is to do.

    Attributes:
        task: What was asked.
        spec: The team.
        paths: The turn's files.
        history: The conversation before.
        context: Read-only files and directories.
        timeout_s: The orchestrator timeout, seconds.
        notices: One-line notes for the panel.
        owner: Who runs it, in words.
    """

    task: str
    spec: TeamSpec
    paths: TurnPaths
    history: Sequence[Message] = ()
    context: Sequence[Path] = ()
    timeout_s: float = 1800.0
    notices: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        round: The furthest round of any agent, from 1.
        elapsed_s, timeout_s: Seconds since the start, and until the timeout stops it.
        answers, votes: How many there are now.
        in_flight: Agents whose model call is open.
    """

    round: int
    elapsed_s: float
    timeout_s: float
    answers: int
    votes: int
    in_flight: tuple[str, ...]


class Run:
    """A team at work on a task. Made by `nb_agents.start`.

    ``await run`` and `wait` give the final answer. All methods may be called from any thread.

    Args:
        run_id: Its name in this process, such as "r1".
        work: What to do.
        lock: The turn's lock, held; released when the run is over.
        policy: How it stops.
    """

    def __init__(self, run_id: str, work: Work, lock: FileLock, policy: CancelPolicy) -> None:
        self.id = run_id
        self.policy = policy
        self._work = work
        self._lock = lock
        self._token = CancelToken(run_id)
        self._recorder = Recorder(Journal(work.paths.journal))
        self._done: Future[None] = Future()
        self._team: Team | None = None
        self._crash: BaseException | None = None
        self._was_pressed = False
        # The turn's first line and its incomplete metadata are on disk before anything else.
        self._recorder.emit(
            ev.TurnStarted(
                session=self.session,
                turn=self.turn,
                task=work.task,
                agents=tuple(
                    ev.AgentInfo(
                        id=a.id, model=a.backend.model or a.backend.type, backend=a.backend.type
                    )
                    for a in work.spec.agents
                ),
                timeout_s=work.timeout_s,
                notices=work.notices,
            )
        )
        self._write_views()

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.session}/{self.turn}: {self.status}>"

    # What it is -----------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The session's id."""
        return self._work.paths.session

    @property
    def turn(self) -> int:
        """The turn's number, from 1."""
        return self._work.paths.number

    @property
    def path(self) -> Path:
        """The turn's directory."""
        return self._work.paths.path

    @property
    def view(self) -> RunView:
        """The turn as it stands."""
        return self._recorder.view

    @property
    def status(self) -> RunStatus:
        """OS Protocol's word for how it stands; "cancelled" is shown to people as "stopped"."""
        return self.view.status

    @property
    def progress(self) -> Progress:
        """How far it is."""
        view = self.view
        return Progress(
            round=view.round,
            elapsed_s=(view.ended_at or time.time()) - view.started_at,
            timeout_s=view.timeout_s,
            answers=sum(1 for a in view.agents.values() if a.answers),
            votes=sum(view.votes.values()),
            in_flight=tuple(a.id for a in view.agents.values() if a.in_flight),
        )

    @property
    def result(self) -> str | None:
        """The final answer, or None as long as there is none."""
        return self.view.answer if self.status == "completed" else None

    @property
    def receipt(self) -> Receipt:
        """What finished, what was stopped, what it cost; complete once the run is over."""
        return receipt(self.view, str(self.path))

    @property
    def is_over(self) -> bool:
        """Whether it has ended and everything is written."""
        return self._done.done()

    # Waiting --------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the end, blocking. An interrupt stops the run, and the wait goes on.

        Args:
            timeout: Seconds after which to give up waiting; the run goes on. None means never.

        Returns:
            The final answer.

        Raises:
            RunCancelled: It was stopped; carries what was kept.
            RunFailed: No agent gave an answer.
            TimeoutError: ``timeout`` passed.
        """
        with interrupt_calls(self.press):
            self._done.result(timeout)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, str]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> str:
        with interrupt_calls(self.press):
            await asyncio.shield(asyncio.wrap_future(self._done))
        return self._outcome()

    def wait_quietly(self) -> None:
        """Wait for the end without raising for a stopped or failed run; for cells that wait."""
        with suppress(RunCancelled, RunFailed):
            self.wait()

    def _outcome(self) -> str:
        if self._crash is not None:
            raise self._crash
        view = self.view
        if view.status == "completed":
            return view.answer
        if view.status == "failed":
            reasons = {a.id: a.error or "no answer" for a in view.agents.values()}
            raise RunFailed(self.id, reasons, self.path)
        raise RunCancelled(self.id, partial_texts(view), self.receipt, self.path)

    # Stopping -------------------------------------------------------------------------------

    def stop(
        self, now: bool = False, agent: str | None = None, reason: str | None = None
    ) -> StopResult:
        """Ask the run, or one agent of it, to stop. Returns at once; idempotent.

        Args:
            now: Cut the work in hand instead of letting it finish.
            agent: Id of the one agent to stop; the others go on.
            reason: Why, for the record.

        Returns:
            Whether this changed anything, and where the run stands.

        Raises:
            UserError: No agent of that id.
        """
        return self.request_stop(now, "api", reason or "", agent)

    async def cancel(self, reason: str | None = None) -> StopResult:
        """Ask for a graceful stop, and wait until it is done and saved.

        Args:
            reason: Why, for the record.

        Returns:
            Whether this changed anything, and where the run stands afterwards.
        """
        result = await asyncio.to_thread(self.request_stop, False, "api", reason or "")
        if result.status not in ("finished", "vetoed"):
            await asyncio.shield(asyncio.wrap_future(self._done))
        return result

    def request_stop(
        self, now: bool, source: StopSource, reason: str = "", agent: str | None = None
    ) -> StopResult:
        """Ask for a stop through a door; see `stop`. Not to be called on the loop thread.

        Args:
            now: Whether it is immediate.
            source: The door.
            reason: Why.
            agent: Id of the one agent to stop, or None for the run.

        Returns:
            Whether this changed anything, and where the run stands.

        Raises:
            UserError: No agent of that id.
        """
        if agent is not None and agent not in self.view.agents:
            known = ", ".join(self.view.agents)
            raise UserError(f"Run {self.id} has no agent {agent!r}. It has: {known}.")
        if self.view.is_over or self._done.done():
            return StopResult(False, "finished")
        level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
        request = StopRequest(level, source, reason)
        if agent is None and not now and not self._token.is_stopping and self._is_vetoed(request):
            return StopResult(False, "vetoed")
        return self._raise_level(request, agent)

    def press(self) -> None:
        """Take one interrupt: graceful first, then immediate. Only posts; for signal handlers."""
        post(self._press)

    def _press(self) -> None:
        now = self._was_pressed or self._token.is_stopping
        self._was_pressed = True
        # A veto hook may take its time: not on the loop.
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self.request_stop, now, "interrupt", "interrupted")

    def _raise_level(self, request: StopRequest, agent: str | None) -> StopResult:
        token = self._token
        if agent is not None:
            if self._team is None:
                return StopResult(False, "finished" if self.view.is_over else "stopping")
            token = self._team.tokens[agent]
        changed = token.request(request.level, request.source, request.reason)
        if changed:
            post(self._note_stop, request, agent or "")
        hard = token.status >= CancellationStatus.IMMEDIATE
        return StopResult(changed, "stopping-now" if hard else "stopping")

    def _note_stop(self, request: StopRequest, agent: str) -> None:
        if self.view.is_over:
            return
        hard = request.level >= CancellationStatus.IMMEDIATE
        grace_s = None if hard else self.policy.grace_timeout_s
        self._recorder.emit(
            ev.StopRequested(
                level="immediate" if hard else "requested",
                source=request.source,
                reason=request.reason,
                agent=agent,
                grace_s=grace_s,
            )
        )
        if grace_s is not None:
            token = self._token if not agent or self._team is None else self._team.tokens[agent]
            asyncio.get_running_loop().call_later(grace_s, self._escalate, token, request, agent)
        self._recorder.publish()

    def _escalate(self, token: CancelToken, first: StopRequest, agent: str) -> None:
        if token.status is CancellationStatus.REQUESTED and not self.view.is_over:
            hard = StopRequest(CancellationStatus.IMMEDIATE, first.source, "the grace time is over")
            if token.request(hard.level, hard.source, hard.reason):
                self._note_stop(hard, agent)

    def _is_vetoed(self, request: StopRequest) -> bool:
        hook = self.policy.before_cancel
        return hook is not None and portal().call(self._call_hook, hook, request) is False

    async def _call_hook(self, hook: Callable[..., Any], argument: object) -> object:
        """Run a person's hook within its time; what goes wrong in it is noted and goes no further."""
        name = getattr(hook, "__name__", "hook")
        result: object = None
        with anyio.move_on_after(self.policy.hook_timeout_s) as scope:
            try:
                made = await to_thread.run_sync(hook, argument, abandon_on_cancel=True)
                result = await made if isawaitable(made) else made
            except Exception as exc:
                self._notice(f"The hook {name} failed: {type(exc).__name__}: {exc}")
        if scope.cancelled_caught:
            self._notice(f"The hook {name} took longer than {self.policy.hook_timeout_s:g} s.")
        return result

    def _notice(self, text: str) -> None:
        logger.warning("run %s: %s", self.id, text)
        if not self.view.is_over:
            self._recorder.emit(ev.Noticed(text=text))

    # Watching -------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[RunView], None]) -> None:
        """Call back with the view at most every `TICK_S` while there is news, and at the end.

        Args:
            callback: Called on the loop thread; must be quick.
        """
        self._recorder.subscribers.append(callback)

    def save(self) -> None:
        """Write everything again, after saving had failed.

        Raises:
            StorageError: It still fails; memory keeps it.
        """
        self._recorder.flush()
        error = self._recorder.error or self._write_views()
        if error is not None:
            raise StorageError(str(self.path), error.strerror or str(error))
        if self.is_over:
            self._recorder.close()

    # The work, on the loop ------------------------------------------------------------------

    async def execute(self) -> None:
        """Do the work and finish it. Runs once, on the loop; never raises."""
        result: Result | None = None
        try:
            result = await self._run_team()
        except AgentStopped:
            pass
        except BaseException as exc:
            # A defect of ours, or the loop's end: the turn is saved all the same.
            logger.exception("run %s crashed", self.id)
            self._crash = exc if isinstance(exc, Exception) else None
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish(result)

    async def _run_team(self) -> Result:
        client = http_client()
        try:
            with bind(self._token):
                backends = await to_thread.run_sync(self._make_backends, client)
                return await self._drive(backends)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                await client.aclose()

    def _make_backends(self, client: Any) -> dict[str, Any]:
        return {a.id: backend_for(a, client) for a in self._work.spec.agents}

    async def _drive(self, backends: dict[str, Any]) -> Result:
        work = self._work
        team = self._team = Team(
            work.spec,
            backends,
            work.paths,
            work.task,
            work.history,
            work.context,
            self._token,
            self._recorder.emit,
        )
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick, team)
            group.start_soon(self._time_out)
            try:
                return await team.run()
            finally:
                group.cancel_scope.cancel()

    async def _tick(self, team: Team) -> None:
        """Ten times a second: bring streamed words to the journal, and news to those who watch."""
        shown_seq, shown_second = -1, -1
        while True:
            await anyio.sleep(TICK_S)
            team.flush()
            self._recorder.flush()
            view, second = self.view, int(time.time() - self.view.started_at)
            if (view.seq, second) != (shown_seq, shown_second):
                shown_seq, shown_second = view.seq, second
                self._recorder.publish()
                await to_thread.run_sync(self._recorder.sync)

    async def _time_out(self) -> None:
        limit = self._work.timeout_s
        await anyio.sleep(limit)
        reason = f"orchestrator timeout reached ({limit:g} seconds)"
        await to_thread.run_sync(self.request_stop, False, "timeout", reason)

    async def _finish(self, result: Result | None) -> None:
        view = self.view
        if result is not None and result.winner:
            status, winner, answer = "completed", result.winner, result.answer
        else:
            stopped = self._token.is_stopping
            status, winner, answer = "cancelled" if stopped else "failed", view.winner, ""
        files = workspace_files(self._work.paths, view.agents)
        self._recorder.emit(
            ev.TurnEnded(
                status=status,  # type: ignore[arg-type]
                phase=view.phase,
                winner=winner,
                answer=answer,
                files=files,
            )
        )
        self._recorder.sync()
        self._write_views()
        if status == "cancelled":
            self._token.request(CancellationStatus.CANCELLED, "api")
        self._recorder.publish()
        self._recorder.close()
        self._lock.release()
        if status == "cancelled" and self.policy.after_cancel is not None:
            await self._call_hook(self.policy.after_cancel, self.receipt)
        self._done.set_result(None)

    def _write_views(self) -> OSError | None:
        try:
            write_views(self.view, self._work.paths, self._work.owner)
        except OSError as exc:
            logger.warning("run %s: saving failed: %s", self.id, exc)
            if not self.view.is_over:
                return exc
            # The journal is closed to new lines now; the view tells it all the same.
            self._recorder.view = _with_notice(
                self.view,
                f"Saving failed: {exc.strerror or exc}. All is kept in memory: run.save() tries again.",
            )
            return exc
        return None


def partial_texts(view: RunView) -> dict[str, str]:
    """For each agent with words to show: its latest answer, else its partial text."""
    texts = {a.id: a.answer or a.partial for a in view.agents.values()}
    return {agent: text for agent, text in texts.items() if text}


def _with_notice(view: RunView, text: str) -> RunView:
    return replace(view, notices=(*view.notices, text))

