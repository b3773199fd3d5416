"""The work of a run, on the background loop: drive the team, hear stops, finish, save.

However it ends, it ends the same way: every task awaited, the client closed, the turn written, its
files listed, the lock released, the hook called, and only then the waiters told.
`nb_agents.runs.run` is the handle that other threads hold; what they want of the work reaches it
as levels on the cancel tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from filelock import FileLock

from nb_agents import events as ev
from nb_agents.agents.boundary import Boundary
from nb_agents.agents.team import Result, Team
from nb_agents.agents.terms import Hold, Terms, bind_terms
from nb_agents.cancel import (
    AgentStopped,
    CancellationStatus,
    CancelPolicy,
    CancelToken,
    bind,
    checkpoint,
)
from nb_agents.errors import UserError
from nb_agents.models.providers import http_client
from nb_agents.models.retry import Retry
from nb_agents.receipt import receipt
from nb_agents.recipes.addresses import planned
from nb_agents.recipes.executor import Executor
from nb_agents.runs.approvals import Approvals, text_of
from nb_agents.runs.asking import bind_asker
from nb_agents.runs.callbacks import Callbacks, Retrying
from nb_agents.runs.children import Children
from nb_agents.runs.debug import hidden_in_logs
from nb_agents.runs.drivers import Driver, children_for, driver_for, kit_for
from nb_agents.runs.limits import Limits
from nb_agents.runs.loop import portal
from nb_agents.runs.outcome import failure_of, result_of
from nb_agents.runs.recorder import Recorder
from nb_agents.runs.resumption import Preview, preview_of
from nb_agents.runs.saving import Saving
from nb_agents.runs.stops import Stops
from nb_agents.runs.work import Resumed, Work
from nb_agents.session.cancellation import read_stop
from nb_agents.session.history import past_events
from nb_agents.session.journal import Journal
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.kit import ToolKit
from nb_agents.tools.threads import still_runs
from nb_agents.view import RunView

__all__ = ["Execution", "Resumed", "Work"]

logger = logging.getLogger("nb_agents")

Asked = TypeVar("Asked")

TICK_S = 0.1
"""How much a kill -9 may cost, and how often people are shown news."""

CLOSE_S = 2.0
"""What the HTTP client gets to close its connections."""

PREVIEW_S = 5.0
"""What finding out what a resume would do gets, for the card; the resume tells it, too."""

MAX_WHY = 500
"""Characters of what a person's hook raised that are noted."""

MAX_NEXT = 20
"""Addresses of a stopped recipe's next steps that are kept: a loop may have thousands."""


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
        stops: Those that were asked for.
        saving: Brings its files to the disk.
        limits: What ends it by itself: its time and its budget.
        approvals: What waits for a person, besides a recipe's gates.
        callbacks: Tells the person's functions how it stands.
        hold: Its pause.
        preview: Of a run that is over: what a resume would do; None when there is nothing to do.

    Raises:
        OSError: The turn's first files can't be written.
    """

    def __init__(self, run_id: str, work: Work, lock: FileLock, policy: CancelPolicy) -> None:
        self.id = run_id
        self.work = work
        self.policy = policy
        self.token = CancelToken(run_id)
        self.agents = _tokens(work, self.token)
        # Without those that others call, which come later.
        self._members = tuple(self.agents.values())
        journal = Journal(work.paths.journal)
        self.recorder = _recorder(journal, work)
        self.callbacks = Callbacks(work.options, self.call_hook)
        self.recorder.on_status = self.callbacks.note
        self.hold = Hold()
        self.preview: Preview | None = None
        self.done: Future[None] = Future()
        # As one that runs it can't be cancelled by those who wait for it.
        self.done.set_running_or_notify_cancel()
        self.crash: Exception | None = None
        self.stops = Stops(self)
        self.saving = Saving(run_id, work, self.recorder)
        self.limits = Limits(self)
        self.approvals = Approvals(
            self.token, self.recorder.emit, self.stops.request, work.options.approval
        )
        self._lock = lock
        self._driver: Team | Executor | None = None
        self._said_before: list[ev.Said] = []
        # The turn's first line and its incomplete metadata are on disk before anything else.
        self.recorder.emit(work.started())
        if work.recipe is not None:
            path, outline = str(work.recipe.path or ""), planned(work.recipe)
            self.recorder.emit(
                ev.RecipeLoaded(step="", path=path, text=work.recipe.text, outline=outline)
            )
        if (error := self.recorder.error or self.saving.write_views()) is not None:
            journal.close()
            raise error

    @property
    def view(self) -> RunView:
        """The turn as it stands."""
        return self.recorder.view

    async def run(self) -> None:
        """Do the work and finish it. Runs once; never raises."""
        with hidden_in_logs(self.work.mask):
            await self._run()

    async def _run(self) -> None:
        result: Result | None = None
        try:
            result = await self._run_driver()
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
            self.recorder.note(f"A defect of nb_agents ended this run: {type(exc).__name__}: {exc}")
            self.crash = self.crash or self.work.mask.error(exc)

    # The work ------------------------------------------------------------------------------

    async def _run_driver(self) -> Result:
        client = http_client()
        try:
            with bind(self.token), bind_terms(self._terms()), bind_asker(self.ask_for_text):
                async with kit_for(self) as kit:
                    children = children_for(self, client, kit)
                    with children.bound():
                        driver = await self._start(client, kit, children)
                        return await self._drive(driver, kit, children)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await client.aclose()

    def _terms(self) -> Terms:
        spec = self.work.spec.retry
        retry = self.work.options.retry or (
            Retry(spec.attempts, spec.delay, spec.backoff, spec.max_delay) if spec else None
        )
        return Terms(self.hold, Retrying(retry, self.call_hook).delay_s)

    async def _start(self, client: Any, kit: ToolKit, children: Children) -> Team | Executor:
        """Make the driver; tools that take their time to start are given up at a stop."""
        everyone = [(agent.id, agent.backend) for agent in self.work.spec.everyone]
        if self.work.recipe is not None:  # its agents' tools start with their steps
            with Boundary(self.token) as boundary, suppress(AgentStopped):
                await boundary.until(partial(kit.announce, everyone))
            return await driver_for(self, client, kit, children)
        made: list[Team | Executor] = []

        async def make() -> None:
            await kit.announce(everyone)
            made.append(await driver_for(self, client, kit, children))

        with Boundary(self.token) as boundary:
            await boundary.until(make)
        self.token.checkpoint()
        return made[0]

    async def _drive(self, driver: Team | Executor, kit: ToolKit, children: Children) -> Result:
        for event in self._said_before:
            driver.hear(event)
        self._driver = driver
        # What the work raises is caught inside because the group would wrap it.
        outcome: Result | AgentStopped | Exception
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick, driver, kit, children)
            group.start_soon(self._sync)
            group.start_soon(self.limits.watch)
            group.start_soon(self.callbacks.watch)
            try:
                outcome = await driver.run()
            except (AgentStopped, Exception) as exc:
                outcome = exc
            group.cancel_scope.cancel()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _tick(self, driver: Driver, kit: ToolKit, children: Children) -> None:
        """Ten times a second: bring streamed words to the journal, and news to those who watch."""
        shown = (-1, -1)
        while True:
            await anyio.sleep(TICK_S)
            self._look_for_stop()
            driver.flush()
            children.flush()
            for agent, text in kit.take_told().items():
                self.recorder.emit(ev.ToolTold(agent=agent, text=text))
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

    def _look_for_stop(self) -> None:
        """Feel a stop that another process has asked for."""
        if self.work.paths.stop.exists() and (request := read_stop(self.work.paths)) is not None:
            self.stops.request(request)

    # Saying --------------------------------------------------------------------------------

    def say(self, text: str) -> bool:
        """Take a follow-up text: whether the turn still does.

        It is journalled whatever comes of it: the next turn has it in its conversation.
        """
        if self.view.is_over:
            return False
        event = ev.Said(text=text)
        self.recorder.emit(event)
        if self._driver is None:
            self._said_before.append(event)
        else:
            self._driver.hear(event)
        self.recorder.publish()
        return True

    # Pausing -------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Let work hold still at its next boundary: whether it can."""
        if self.view.is_over or self.token.is_stopping:
            return False
        if self.hold.pause():
            self.recorder.emit(ev.Paused())
            self.recorder.publish()
        return True

    def go_on(self) -> bool:
        """Let a paused run go on: whether it was paused."""
        if not self.hold.go_on():
            return False
        if not self.view.is_over:
            self.recorder.emit(ev.Continued())
            self.recorder.publish()
        return True

    # Asking --------------------------------------------------------------------------------

    def ask_for_text(self, prompt: str) -> str:
        """Ask the person for a text, blocking; not on the loop.

        Args:
            prompt: The question.

        Raises:
            UserError: The person refuses to answer.
            AgentStopped: The run is being stopped.
        """
        asked = self.ask_outside(partial(self.approvals.ask_for_text, prompt))
        try:
            while not asked.done():
                # A stop may be of the one agent whose tool asks.
                checkpoint()
                wait((asked,), TICK_S)
            answer = asked.result()
        finally:
            asked.cancel()
        if answer is None:
            self.token.checkpoint()
            checkpoint()  # the one agent whose tool asks
            raise UserError(f"Run {self.id} is over: nobody is asked any more.")
        return text_of(answer)

    def ask_outside(self, question: Callable[[], Awaitable[Asked]]) -> Future[Asked | None]:
        """Ask the person for code on another thread.

        Args:
            question: Asks, on the loop.

        Returns:
            What comes of it; None when the run ends before.
        """

        async def asked() -> Asked | None:
            if self.view.is_over:
                return None
            try:
                return await question()
            except AgentStopped:
                # On its own it would end the loop of all runs.
                return None

        return portal().start_task_soon(asked, name=f"question of run {self.id}")

    # Deciding ------------------------------------------------------------------------------

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Decide a gate; "" is the one that has waited longest.

        Returns:
            Its address, or "" when it does not wait.

        Raises:
            UserError: This person is not among the approvers.
        """
        if self.view.is_over:
            return ""
        address = self.approvals.decide(approved, message, by, gate)
        if not address and isinstance(self._driver, Executor):
            address = self._driver.decide(approved, message, by, gate)
        self.recorder.publish()
        return address

    @property
    def next_step(self) -> str:
        """Of a stopped recipe: the step that comes next; else ""."""
        coming = self._driver.next() if isinstance(self._driver, Executor) else ()
        return coming[0] if coming else ""

    # Hooks ---------------------------------------------------------------------------------

    async def call_hook(self, hook: Callable[..., Any], *arguments: object) -> object:
        """Run a person's hook within its time; what goes wrong in it is noted, and ends there.

        Args:
            hook: The function, sync or async.
            arguments: What it is given.

        Returns:
            What it returned, or None when it failed or took too long.
        """
        name = getattr(hook, "__name__", "hook")
        result: object = None
        with anyio.move_on_after(self.policy.hook_timeout_s) as scope:
            try:
                made = await to_thread.run_sync(hook, *arguments, abandon_on_cancel=True)
                result = await made if isawaitable(made) else made
            except (Exception, AgentStopped, SystemExit, KeyboardInterrupt) as exc:
                why = str(exc)[:MAX_WHY]
                self._notice(f"The hook {name} failed: {type(exc).__name__}: {why}")
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
            await self.saving.list_files()
            await self._look_ahead()
            self.recorder.publish()
            self.recorder.close()
        except Exception as exc:
            self._crashed(exc)
        finally:
            self._lock.release()
        try:
            hook = self.policy.after_cancel
            notices = len(self.view.notices)
            if self._was_stopped() and hook is not None:
                await self.call_hook(
                    hook, receipt(self.view, str(self.work.paths.path), still_runs)
                )
            error = self.crash or failure_of(self.id, self.view, self.work.paths.path)
            await self.callbacks.finish(self.view.status, result_of(self.view), error)
            if len(self.view.notices) > notices:
                self.recorder.publish()
        finally:
            self.done.set_result(None)

    async def _look_ahead(self) -> None:
        """Find what a resume would do; off the loop, as planning a long recipe takes its time."""
        with anyio.move_on_after(PREVIEW_S):
            try:
                self.preview = await to_thread.run_sync(
                    preview_of, self.view, self.work.paths, abandon_on_cancel=True
                )
            except Exception as exc:  # a defect in that must not cost the turn
                logger.error("run %s: what a resume does is not known", self.id, exc_info=exc)

    def _end_turn(self, result: Result | None) -> None:
        self.stops.close()
        self.approvals.close()
        self._note_missing_stop(result)
        status = self._status(result)
        self.limits.conclude(status)
        self.recorder.emit(
            ev.TurnEnded(
                status=status,
                phase=self.view.phase,
                winner=result.winner if result and result.winner else self.view.winner,
                answer=result.answer if result and status == "completed" else "",
                outputs=dict(result.outputs or {}) if result and status == "completed" else {},
                next=() if status == "completed" else self._next(),
            )
        )
        self.saving.save()
        if status == "cancelled":
            self.token.request(CancellationStatus.CANCELLED, "api")

    def _next(self) -> tuple[str, ...]:
        """Say what a recipe would have done next; a defect in that must not cost the turn."""
        if not isinstance(self._driver, Executor):
            return ()
        try:
            return self._driver.next()[:MAX_NEXT]
        except Exception as exc:
            logger.error("run %s: what is next is not known", self.id, exc_info=exc)
            return ()

    def _status(self, result: Result | None) -> Any:
        if result is not None and result.is_complete:
            return "completed"
        is_failure = self.limits.has_failed or not self.token.is_stopping
        return "failed" if is_failure else "cancelled"

    def _was_stopped(self) -> bool:
        return self.view.stop is not None and self.view.status != "completed"

    def _note_missing_stop(self, result: Result | None) -> None:
        """Record a stop that the work felt before its note came from the other thread."""
        alone = [token.first_request for token in self._members]
        if result is not None and not result.is_complete and alone and all(alone):
            # Every agent was stopped by itself: that is a stop of the run, not its failure.
            first = alone[0]
            assert first is not None
            self.token.request(first.level, first.source, first.reason)
        if (last := self.token.last_request) is not None:
            self.stops.note(last)

    def save(self) -> OSError | None:
        """Write everything again, after saving had failed.

        Returns:
            What the disk said when it refused again, else None.
        """
        return self.saving.again(is_last=self.done.done())


def _tokens(work: Work, token: CancelToken) -> dict[str, CancelToken]:
    """Make the token of each agent; those of a recipe work in steps, under the run's own."""
    return {} if work.recipe else {a.id: token.child(a.id) for a in work.spec.agents}


def _recorder(journal: Journal, work: Work) -> Recorder:
    if work.resumed is None:
        return Recorder(journal, mask=work.mask)
    old = TurnPaths(work.paths.path.with_name(f"turn_{work.resumed.turn}"))
    return Recorder(journal, work.resumed.view, past_events(old), work.mask)
