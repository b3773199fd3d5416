"""The work of a run, on the background loop: drive the team, hear stops, finish, save.

However it ends, it ends the same way: every task awaited, the client closed, the turn written, the
lock released, the hook called, and only then the waiters told. `nb_agents.runs.run` is the handle
that other threads hold; what they want of the work reaches it as levels on the cancel tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from inspect import isawaitable
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
    bind,
)
from nb_agents.models.providers import backend_for, http_client
from nb_agents.receipt import receipt
from nb_agents.runs.limits import Limits
from nb_agents.runs.recorder import Recorder
from nb_agents.runs.work import Resumed, Work
from nb_agents.session.history import workspace_files
from nb_agents.session.journal import Journal
from nb_agents.session.turn import write_views
from nb_agents.view import RunView

__all__ = ["Execution", "Resumed", "Work"]

logger = logging.getLogger("nb_agents")

TICK_S = 0.1
"""How much a kill -9 may cost, and how often people are shown news."""

CLOSE_S = 2.0
"""What the HTTP client gets to close its connections."""


class Execution:
    """One turn being worked on. All methods belong to the loop thread.

    Args:
        run_id: The run's name in this process.
        work: What to do.
        lock: The turn's lock, held; released when the turn is saved.
        policy: How it stops.

    Attributes:
        token: The run's cancel token.
        agents: Each agent's; made before the team is, so that no early stop is lost.
        recorder: Where its events go.
        done: Set when everything is written; waiting for it is for any thread.
        crash: A defect that ended it, or None.
        limits: What ends it by itself: its time and its budget.

    Raises:
        OSError: The turn's first files can't be written.
    """

    def __init__(self, run_id: str, work: Work, lock: FileLock, policy: CancelPolicy) -> None:
        self.id = run_id
        self.work = work
        self.policy = policy
        self.token = CancelToken(run_id)
        self.agents = {a.id: self.token.child(a.id) for a in work.spec.agents}
        journal = Journal(work.paths.journal)
        self.recorder = Recorder(journal, work.resumed.view if work.resumed else None)
        self.done: Future[None] = Future()
        # As one that runs it can't be cancelled by those who wait for it.
        self.done.set_running_or_notify_cancel()
        self.crash: Exception | None = None
        self.limits = Limits(self)
        self._lock = lock
        self._noted = CancellationStatus.NONE
        self._timers: list[asyncio.TimerHandle] = []
        # The turn's first line and its incomplete metadata are on disk before anything else.
        self.recorder.emit(work.started())
        if (error := self.recorder.error or self.write_views()) is not None:
            journal.close()
            raise error

    @property
    def view(self) -> RunView:
        """The turn as it stands."""
        return self.recorder.view

    async def run(self) -> None:
        """Do the work and finish it. Runs once; never raises."""
        result: Result | None = None
        try:
            result = await self._run_team()
        except AgentStopped:
            pass
        except BaseException as exc:
            # A defect of ours, or the loop's end: the turn is saved all the same.
            self._crashed(exc)
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish(result)

    def _crashed(self, exc: BaseException) -> None:
        while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
            exc = exc.exceptions[0]
        logger.error("run %s crashed", self.id, exc_info=exc)
        if isinstance(exc, Exception):
            self.crash = self.crash or exc
            self.recorder.note(f"A defect of nb_agents ended this run: {type(exc).__name__}: {exc}")

    # The team ------------------------------------------------------------------------------

    async def _run_team(self) -> Result:
        client = http_client()
        try:
            with bind(self.token):
                backends = await to_thread.run_sync(self._make_backends, client)
                return await self._drive(backends)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await client.aclose()

    def _make_backends(self, client: Any) -> dict[str, Any]:
        return {a.id: backend_for(a, client) for a in self.work.spec.agents}

    async def _drive(self, backends: dict[str, Any]) -> Result:
        work = self.work
        team = Team(
            work.spec,
            backends,
            work.paths,
            work.task,
            work.history,
            work.context,
            self.token,
            self.agents,
            self.limits.emit,
            work.resumed.past if work.resumed else None,
            work.timeout_s,
        )
        # What the team raises is caught inside because the group would wrap it.
        outcome: Result | AgentStopped | Exception
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick, team)
            group.start_soon(self._sync)
            group.start_soon(self.limits.watch)
            try:
                outcome = await team.run()
            except (AgentStopped, Exception) as exc:
                outcome = exc
            group.cancel_scope.cancel()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _tick(self, team: Team) -> None:
        """Ten times a second: bring streamed words to the journal, and news to those who watch."""
        shown = (-1, -1)
        while True:
            await anyio.sleep(TICK_S)
            team.flush()
            self.recorder.flush()
            news = (self.view.seq, int(time.time() - self.view.started_at))
            if news != shown:
                shown = news
                self.recorder.publish()

    async def _sync(self) -> None:
        """Bring the journal to the disk itself; apart from `_tick`, as a slow disk may block it."""
        synced = 0
        while True:
            await anyio.sleep(TICK_S)
            if self.view.seq != synced:
                synced = self.view.seq
                await to_thread.run_sync(self.recorder.sync)

    # Stopping ------------------------------------------------------------------------------

    def request(self, request: StopRequest) -> None:
        """Stop the run from the loop thread itself."""
        if self.token.request(request.level, request.source, request.reason):
            self.note_stop(request)

    async def is_vetoed(self, request: StopRequest) -> bool:
        """Ask the person's hook whether a graceful stop may not be."""
        hook = self.policy.before_cancel
        return hook is not None and await self.call_hook(hook, request) is False

    def note_stop(self, request: StopRequest, agent: str = "") -> None:
        """Record a stop that was asked for, and start its grace time.

        Args:
            request: The stop.
            agent: The one agent that is stopped, or "" for the run.
        """
        if self.view.is_over:
            return
        if agent:
            self._emit_stop(request, agent)
        else:
            # Notes of two threads may arrive the wrong way round: whoever was first is told first.
            for each in (self.token.first_request or request, request):
                if each.level > self._noted:
                    self._noted = each.level
                    self._emit_stop(each, "")
        self.recorder.publish()

    def _emit_stop(self, request: StopRequest, agent: str) -> None:
        hard = request.level >= CancellationStatus.IMMEDIATE
        grace_s = None if hard else self.policy.grace_timeout_s
        self.recorder.emit(
            ev.StopRequested(
                level="immediate" if hard else "requested",
                source=request.source,
                reason=request.reason,
                agent=agent,
                grace_s=grace_s,
            )
        )
        if grace_s is not None:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(grace_s, self._escalate, request, agent))

    def _escalate(self, first: StopRequest, agent: str) -> None:
        token = self.agents[agent] if agent else self.token
        if token.status is CancellationStatus.REQUESTED and not self.view.is_over:
            hard = StopRequest(CancellationStatus.IMMEDIATE, first.source, "the grace time is over")
            if token.request(hard.level, hard.source, hard.reason):
                self.note_stop(hard, agent)

    async def call_hook(self, hook: Callable[..., Any], argument: object) -> object:
        """Run a person's hook within its time; what goes wrong in it is noted, and ends there.

        Args:
            hook: The function, sync or async.
            argument: What it is given.

        Returns:
            What it returned, or None when it failed or took too long.
        """
        name = getattr(hook, "__name__", "hook")
        result: object = None
        with anyio.move_on_after(self.policy.hook_timeout_s) as scope:
            try:
                made = await to_thread.run_sync(hook, argument, abandon_on_cancel=True)
                result = await made if isawaitable(made) else made
            except (Exception, AgentStopped, SystemExit, KeyboardInterrupt) as exc:
                self._notice(f"The hook {name} failed: {type(exc).__name__}: {exc}")
        if scope.cancelled_caught:
            self._notice(f"The hook {name} took longer than {self.policy.hook_timeout_s:g} s.")
        return result

    def _notice(self, text: str) -> None:
        logger.warning("run %s: %s", self.id, text)
        self.recorder.note(text)

    # The end -------------------------------------------------------------------------------

    async def _finish(self, result: Result | None) -> None:
        """Save the turn and tell the waiters; whatever fails on the way, they are told."""
        try:
            self._end_turn(result)
        except Exception as exc:
            self._crashed(exc)
        finally:
            self._lock.release()
        try:
            hook = self.policy.after_cancel
            if self._was_stopped() and hook is not None:
                notices = len(self.view.notices)
                await self.call_hook(hook, receipt(self.view, str(self.work.paths.path)))
                if len(self.view.notices) > notices:
                    self.recorder.publish()
        finally:
            self.done.set_result(None)

    def _end_turn(self, result: Result | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self._note_missing_stop(result)
        status = self._status(result)
        self.limits.conclude(status)
        self.recorder.emit(
            ev.TurnEnded(
                status=status,
                phase=self.view.phase,
                winner=result.winner if result and result.winner else self.view.winner,
                answer=result.answer if result and status == "completed" else "",
                files=self._files(),
            )
        )
        self.recorder.sync()
        self.write_views()
        if status == "cancelled":
            self.token.request(CancellationStatus.CANCELLED, "api")
        self.recorder.publish()
        self.recorder.close()

    def _status(self, result: Result | None) -> Any:
        if result is not None and result.winner:
            return "completed"
        is_failure = self.limits.has_failed or not self.token.is_stopping
        return "failed" if is_failure else "cancelled"

    def _was_stopped(self) -> bool:
        return self.view.stop is not None and self.view.status != "completed"

    def _note_missing_stop(self, result: Result | None) -> None:
        """Record a stop that the work felt before its note came from the other thread."""
        alone = [token.first_request for token in self.agents.values()]
        if result is not None and not result.winner and all(alone) and alone[0] is not None:
            # Every agent was stopped by itself: that is a stop of the run, not its failure.
            self.token.request(alone[0].level, alone[0].source, alone[0].reason)
        if (last := self.token.last_request) is not None:
            self.note_stop(last)

    def _files(self) -> tuple[ev.FileInfo, ...]:
        try:
            return workspace_files(self.work.paths, self.agents)
        except OSError as exc:
            self._notice(f"The workspaces can't be listed: {exc.strerror or exc}.")
            return ()

    def write_views(self) -> OSError | None:
        """Bring the turn's files up to date.

        Returns:
            What the disk said when it refused, else None.
        """
        try:
            write_views(self.view, self.work.paths, self.work.owner)
        except OSError as exc:
            logger.warning("run %s: saving failed: %s", self.id, exc)
            if self.view.is_over:
                why = exc.strerror or str(exc)
                text = f"Saving failed: {why}. All is kept in memory: run.save() tries again."
                if text not in self.view.notices:
                    self.recorder.note(text)
            return exc
        return None

    def save(self) -> OSError | None:
        """Write everything again, after saving had failed.

        Returns:
            What the disk said when it refused again, else None.
        """
        self.recorder.flush()
        error = self.recorder.error or self.write_views()
        if error is None and self.done.done():
            self.recorder.close()
        return error
