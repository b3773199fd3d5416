"""Running one turn, on the background loop.

A `Turn` owns the turn's lock, its journal and its cancel tokens. Everything that changes its course
is a command that goes through `Turn.take`, one at a time, and is journalled before it takes effect.
However the work ends, the same steps follow: all tasks are awaited, the turn is written while the
client is closed, its lock released, the hooks are called, and then those who wait are notified.

`nb_agents.runs.run` is the handle that other threads hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from filelock import FileLock

from nb_agents import events as ev
from nb_agents.agents.runner import Runners
from nb_agents.agents.stop_scope import PauseGate, RunPolicy, StopScope, bind_policy
from nb_agents.agents.subagents import SubAgents
from nb_agents.agents.turn_result import TurnResult
from nb_agents.cancel import (
    AgentStopped,
    CancellationStatus,
    CancelToken,
    StopRequest,
    StopResult,
    bind,
    checkpoint,
)
from nb_agents.errors import UserError, leaves_of, said_by
from nb_agents.events.turn_events import Command, Continue, Decide, OfferTools, Pause, Say
from nb_agents.loop import call, is_loop_thread, post, submit
from nb_agents.models.providers import SharedClient, until_loaded
from nb_agents.runs.approvals import Approvals, bind_asker, text_of
from nb_agents.runs.drivers import (
    Driver,
    DriverDeps,
    driver_for,
    runners_for,
    subagents_for,
    tools_for,
)
from nb_agents.runs.file_history import FileHistory
from nb_agents.runs.hiding import mask_logs
from nb_agents.runs.hooks import Hooks, Subscribers
from nb_agents.runs.limits import Limits
from nb_agents.runs.live_turns import watched
from nb_agents.runs.recorder import Recorder, TurnFiles
from nb_agents.runs.status import failure_of, result_of
from nb_agents.runs.telemetry import live_trace
from nb_agents.runs.turn_spec import TurnSpec, offered_of
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.commands import has_commands, take_commands
from nb_agents.session.journal import Journal
from nb_agents.session.own_files import OwnFiles
from nb_agents.tools.offer import CallInbox
from nb_agents.tools.run_tools import RunTools
from nb_agents.tools.threads import still_runs
from nb_agents.view.receipt import receipt
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import Timeline

logger = logging.getLogger("nb_agents")

Asked = TypeVar("Asked")

ANSWER_S = 1.0
"""How long to wait for the loop to handle a stop, which it may still follow later."""

TICK_S = 0.1
"""Interval for journalling streamed text, which a kill -9 may lose, and for publishing the view."""

CLOCK_S = 1.0
"""Interval for publishing the view of a run without news, for the elapsed time in seconds."""

MAX_BY_CHARS = 200
"""Characters shown of the description of a process that offers tools, which may be untrusted."""

CLOSE_S = 2.0
"""Time for the HTTP client to close its connections."""

NO_COMMAND = "A file in `commands` is not a command that this nb_agents knows, and was ignored."

NOT_CARRIED_OUT = (
    "It is not a command, or failed because of a bug in nb_agents; the run's log has more."
)

MAX_NEXT = 20
"""Recorded addresses of a stopped recipe's next steps, as a loop may have thousands."""


class TurnWriter:
    """A turn that runs in this process. All but `send` and `ask_*` is for the loop thread.

    Args:
        run_id: The run's id in this process.
        spec: The turn's spec.
        lock: The turn's lock, held; released when the turn is saved.

    Attributes:
        agents: Each agent's cancel token, created before the team so that no early stop is lost.
        done: A future that is resolved when everything is written, for any thread.
        crash: The defect that ended the turn, or None.
        hooks: The user's hooks.
        subscribers: The subscribers to the view.
        approvals: The open questions to the user, except a recipe's gates.

    Raises:
        OSError: The turn's first files can't be written.
    """

    def __init__(self, run_id: str, spec: TurnSpec, lock: FileLock) -> None:
        self._id = run_id
        self._spec = spec
        self._lock = lock
        self._policy = spec.cancel
        self._token = CancelToken(run_id)
        self.agents = _tokens(spec, self._token)
        # Without sub-agents, which are added later.
        self._members = tuple(self.agents.values())
        self._grace_timers: list[asyncio.TimerHandle] = []
        self._hold = PauseGate()
        self._driver: Driver | None = None
        self._said_before: list[ev.Said] = []
        self._is_vetoing = False
        self._has_worked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_news = asyncio.Event()
        self._synced, self._unsynced = 0, asyncio.Event()
        # What comes to its end while the files are written.
        self._closing: list[asyncio.Task[None]] = []
        self.done: Future[None] = Future()
        # Marked as running, it can't be cancelled by those who wait for it.
        self.done.set_running_or_notify_cancel()
        self.crash: Exception | None = None

        journal = Journal(spec.paths.journal, spec.mark)
        self._recorder = _recorder(journal, spec)
        self._files = TurnFiles(run_id, spec.paths, self._recorder)
        self.subscribers = Subscribers()
        self.hooks = Hooks(run_id, spec, self._recorder.note)
        self._limits = Limits(spec, self.hooks, lambda: self.view, self.take, self._recorder.note)
        self._history = self._file_history()
        self._recorder.observe(self.hooks.observe)
        self._recorder.observe(self._limits.observe)
        self._recorder.observe(lambda *_: self._has_news.set())
        if (trace := live_trace()) is not None:
            self._recorder.observe(lambda event, *_: trace.take(event))
        self.approvals = Approvals(self._token, self._recorder.emit, self.take, spec.approval)
        # The turn's first event and its incomplete metadata are written before anything else.
        with journal.in_one_write():
            self._recorder.emit(spec.started)
            if spec.recipe is not None:
                from nb_agents.recipes.units import planned  # not needed by teams

                path, outline = str(spec.recipe.path or ""), planned(spec.recipe)
                self._recorder.emit(
                    ev.RecipeLoaded(step="", path=path, text=spec.recipe.text, outline=outline)
                )
            for event in spec.resumed.put_back if spec.resumed else ():
                self._recorder.emit(event)
            if spec.resumed is not None and spec.resumed.said is not None:
                self._recorder.emit(spec.resumed.said)
                self._said_before.append(spec.resumed.said)
        if (error := self._recorder.error or self._files.write()) is not None:
            journal.close()
            raise error

    def discard(self) -> None:
        """Close the journal of a turn that can't start."""
        self._recorder.discard()

    @property
    def view(self) -> RunView:
        """The turn's current view."""
        return self._recorder.view

    @property
    def timeline(self) -> Timeline:
        """The timeline of the turn so far."""
        return self._recorder.timeline

    @property
    def is_stopping(self) -> bool:
        """Whether a stop of any level was requested; may be read from any thread."""
        return self._token.is_stopping

    @property
    def is_over(self) -> bool:
        """Whether everything is written."""
        return self.done.done()

    # Commands --------------------------------------------------------------------------------

    def send(self, command: Command) -> Any:
        """Send a command from any thread, and wait for its result.

        Returns:
            As for `take`. The status of a stop is "asked" when this must not wait for it, or when
            it takes longer than `ANSWER_S`.

        Raises:
            UserError: As for `take`.
        """
        if not isinstance(command, StopRequest):
            return call(self.take, command)
        if not self._may_be_vetoed(command):
            try:
                return call(self.take, command, timeout_s=ANSWER_S)
            except TimeoutError:
                return StopResult(False, "asked")
        asked = submit(self.take_unless_vetoed, command)
        # The hook may take a while, and the loop must not wait for it.
        return StopResult(False, "asked") if is_loop_thread() else asked.result()

    def _may_be_vetoed(self, request: StopRequest) -> bool:
        is_hard = request.level >= CancellationStatus.IMMEDIATE or request.agent
        is_late = is_hard or self.is_stopping or self.view.is_over
        return not is_late and self.hooks.may_veto

    def take(self, command: Command) -> Any:
        """Carry out a command, after journalling it.

        Returns:
            For a stop its StopResult; for a decision the gate's address, or "" when it is not open;
            else whether the command had an effect.

        Raises:
            UserError: The user is not among the approvers, or the tools can't be offered.
        """
        match command:
            case StopRequest():
                return self._stop(command)
            case Say(text=text):
                return self._say(ev.Said(text=text))
            case Pause():
                return self._pause()
            case Continue():
                return self._go_on()
            case Decide():
                return self._decide(command)
            case OfferTools():
                return self._take_offer(command)

    async def take_unless_vetoed(self, request: StopRequest) -> StopResult:
        """Carry out a graceful stop of the run, unless the user's hook vetoes it."""
        if self._is_vetoing:
            return StopResult(False, "asked")
        self._is_vetoing = True
        try:
            if await self.hooks.is_vetoed(request):
                return StopResult(False, "vetoed")
        finally:
            self._is_vetoing = False
        return self._stop(request)

    def _stop(self, request: StopRequest) -> StopResult:
        if self.view.is_over:
            return StopResult(False, "finished")
        if request.agent and request.agent not in self.agents:
            return StopResult(False, "unknown")
        one = self.view.agents.get(request.agent)
        if one is not None and one.outcome:
            return StopResult(False, "finished")
        token = self.agents[request.agent] if request.agent else self._token
        changed = request.level > token.status
        if changed:
            is_hard = request.level >= CancellationStatus.IMMEDIATE
            grace_s = None if is_hard else self._grace_s(request)
            self._recorder.emit(
                ev.StopRequested(
                    level="immediate" if is_hard else "requested",
                    source=request.source,
                    reason=request.reason,
                    agent=request.agent,
                    gate=request.gate,
                    grace_s=grace_s,
                )
            )
            token.request(request.level, request.source, request.reason)
            self._give_grace(request, grace_s)
            self._publish()
        is_hard = token.status >= CancellationStatus.IMMEDIATE
        return StopResult(changed, "stopping-now" if is_hard else "stopping")

    def _grace_s(self, request: StopRequest) -> float | None:
        grace_s, limit_s = self._policy.grace_timeout_s, self._spec.timeout_s
        if request.source == "timeout" and grace_s is not None and limit_s:
            return min(grace_s, limit_s)  # or a limit of 3 s would take 33
        return grace_s

    def _give_grace(self, request: StopRequest, grace_s: float | None) -> None:
        """Make a graceful stop immediate after the grace time."""
        if grace_s is not None:
            hard, why = CancellationStatus.IMMEDIATE, "the grace time is over"
            over = StopRequest(hard, request.source, why, request.agent)
            loop = asyncio.get_running_loop()
            self._grace_timers.append(loop.call_later(grace_s, post, self._stop, over))

    def _say(self, event: ev.Said) -> bool:
        # Journalled in any case, as the next turn has it in its conversation.
        if self.view.is_over:
            return False
        self._recorder.emit(event)
        if self._driver is None:
            self._said_before.append(event)
        else:
            self._driver.hear(event)
        self._publish()
        return True

    def _pause(self) -> bool:
        if self.view.is_over or self._token.is_stopping:
            return False
        if not self._hold.is_on:
            self._recorder.emit(ev.Paused())
            self._hold.pause()
            self._publish()
        return True

    def _go_on(self) -> bool:
        if not self._hold.is_on:
            return False
        if not self.view.is_over:
            self._recorder.emit(ev.Continued())
        self._hold.go_on()
        self._publish()
        return True

    def _decide(self, decision: Decide) -> str:
        if self.view.is_over:
            return ""
        gate = decision.gate
        if decision.wants and not gate:
            open_ = self.view.gates.values()
            gate = next((g.address for g in open_ if g.wants == decision.wants), "")
            if not gate:
                return ""
        said = (decision.approved, decision.message, decision.by, gate)
        address = self.approvals.decide(*said)
        if not address and self._driver is not None:
            address = self._driver.decide(*said)
        self._publish()
        return address

    def _take_offer(self, command: OfferTools) -> bool:
        if self.view.is_over:
            return False
        functions = offered_of(self._spec.functions, command)
        named = ", ".join(f"`{function.name}`" for function in functions)
        self._recorder.note(f"From now on {command.by[:MAX_BY_CHARS]} offers {named}.")
        for function in functions:
            function.offer = CallInbox(command.offer, self._spec.paths.root)
        self._publish()
        return True

    async def _listen(self, news: asyncio.Event) -> None:
        """Carry out commands of other processes, until the work is over."""
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        async with anyio.create_task_group() as group:
            with watched(partial(has_commands, str(self._spec.paths.commands)), tell):
                is_last = False
                while not is_last:
                    await news.wait()
                    news.clear()
                    is_last = self._has_worked
                    with ServiceLoop.COMMANDS.item(self._recorder.note_once):
                        taken = await to_thread.run_sync(take_commands, self._spec.paths)
                        for name, command in taken:
                            group.start_soon(self._answer, name, command)

    async def _answer(self, name: str, command: Command | None) -> None:
        """Carry out a command of another process, and journal the result."""
        answer = ev.CommandAnswered(command=name, error=NOT_CARRIED_OUT)
        with ServiceLoop.COMMANDS.item(self._recorder.note_once):
            if command is None:
                self._recorder.note_once(NO_COMMAND)
            else:
                answer = replace(await self._carry_out(command), command=name)
        with ServiceLoop.COMMANDS.item(self._recorder.note_once):
            self._recorder.emit(answer)
            self._publish()

    async def _carry_out(self, command: Command) -> ev.CommandAnswered:
        try:
            if isinstance(command, StopRequest) and self._may_be_vetoed(command):
                result = await self.take_unless_vetoed(command)
            else:
                result = self.take(command)
        except UserError as exc:
            return ev.CommandAnswered(command="", error=str(exc))
        if isinstance(result, StopResult):
            return ev.CommandAnswered(command="", changed=result.changed, status=result.status)
        status = result if isinstance(result, str) else ""
        return ev.CommandAnswered(command="", changed=bool(result), status=status)

    def _publish(self) -> None:
        with ServiceLoop.VIEWS.item():
            self.subscribers.publish(self.view)

    # The work --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the turn's work and finish the turn. Called once; never raises."""
        result: TurnResult | None = None
        self._loop = asyncio.get_running_loop()
        news = asyncio.Event()
        self._closing.append(asyncio.create_task(self._listen(news)))
        with mask_logs(self._spec.mask, self._spec.paths.path):
            try:
                result = await self._run_driver()
            except AgentStopped:
                pass
            except BaseException as exc:
                # A bug in nb_agents, or the loop's end: the turn is still saved.
                self._crashed(exc)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._finish(result, news)

    def _crashed(self, exc: BaseException) -> None:
        leaf, *others = leaves_of(exc)
        exc = exc if others else leaf
        logger.error("run %s crashed", self._id, exc_info=exc)
        if isinstance(exc, Exception):
            text = f"A bug in nb_agents ended this run: {said_by(exc, named=True)}"
            self._recorder.note(text)
            self.crash = self.crash or self._spec.mask.error(exc)

    async def _run_driver(self) -> TurnResult:
        retry = self._spec.retry
        client = SharedClient(retry.max_silence if retry else None)
        try:
            terms = RunPolicy(self._hold, self.hooks.retry_delay_s, self._wake)
            with bind(self._token), bind_policy(terms), bind_asker(self.ask_for_text):
                deps = self._driver_deps()
                runners, tools = runners_for(deps, client), tools_for(deps)
                try:
                    async with tools as run_tools:
                        run_tools.call_at_end(runners.close)
                        children = subagents_for(deps, runners, run_tools)
                        with children.bound():
                            driver = await self._start(deps, runners, run_tools, children)
                            return await self._drive(driver, run_tools)
                finally:
                    for end in tools.ends():
                        self._recorder.emit(end)
        finally:
            self._closing.append(asyncio.create_task(_close(client)))
            self._closing.append(asyncio.create_task(self._history.close()))

    def _driver_deps(self) -> DriverDeps:
        return DriverDeps(
            spec=self._spec,
            started_at=self.view.started_at,
            token=self._token,
            agents=self.agents,
            emit=self._recorder.emit,
            note=self._recorder.note,
            admit=self._admit,
            ask=self.approvals.ask,
            ask_about=self.approvals.ask_about,
            stop=self.take,
            wake=self._wake,
            keep=self._history.writing if self._spec.team.snapshots else None,
        )

    def _file_history(self) -> FileHistory:
        spec = self._spec
        own = OwnFiles(spec.paths.path.parent, spec.team.snapshot_bytes)
        known = spec.resumed.kept if spec.resumed else {}
        return FileHistory(own, spec.paths.live_workspaces, known, self._recorder.emit)

    def _admit(self, agent: str, token: CancelToken) -> None:
        # Replaced, not modified, as a thread that stops an agent may be reading it.
        self.agents = {**self.agents, agent: token}

    async def _start(
        self, deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
    ) -> Driver:
        """Create the driver; a stop does not wait for tools that are still starting."""
        everyone = [(agent.id, agent.backend) for agent in self._spec.team.everyone]

        async def announce() -> None:
            await until_loaded()
            await run_tools.announce(everyone)

        if self._spec.recipe is not None:  # its agents' tools start with their steps
            with StopScope(self._token) as boundary, suppress(AgentStopped):
                await boundary.wait_or_stop(announce)
            return await driver_for(deps, runners, run_tools, children)
        made: list[Driver] = []

        async def make() -> None:
            await announce()
            made.append(await driver_for(deps, runners, run_tools, children))

        with StopScope(self._token) as boundary:
            await boundary.wait_or_stop(make)
        self._token.checkpoint()
        return made[0]

    async def _drive(self, driver: Driver, run_tools: RunTools) -> TurnResult:
        for event in self._said_before:
            driver.hear(event)
        self._driver = driver
        # Exceptions are caught inside the group, which would wrap them.
        outcome: TurnResult | AgentStopped | Exception
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick, driver, run_tools)
            group.start_soon(self._sync)
            self._limits.watch(group)
            group.start_soon(self.hooks.watch)
            try:
                outcome = await driver.run()
            except (AgentStopped, Exception) as exc:
                outcome = exc
            group.cancel_scope.cancel()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _wake(self) -> None:
        """Make `_tick` process news; may be called from any thread."""
        if self._loop is not None and not self._has_news.is_set():
            with suppress(RuntimeError):  # the calling thread may outlive the loop
                self._loop.call_soon_threadsafe(self._has_news.set)

    async def _tick(self, driver: Driver, run_tools: RunTools) -> None:
        """Journal streamed text and publish the view, in batches."""
        shown = (-1, -1)
        while True:
            try:
                # Cheaper than anyio's, in a loop that runs for hours.
                async with asyncio.timeout(CLOCK_S):
                    await self._has_news.wait()
                    await asyncio.sleep(TICK_S)
            except TimeoutError:  # nothing but the seconds has changed
                if not self._has_news.is_set():
                    self._publish()
                    continue
            self._has_news.clear()
            emit_told = partial(self._emit_told, run_tools)
            for part in (driver.flush, emit_told, self._recorder.flush):
                with ServiceLoop.TICKS.item(self._recorder.note_once):
                    part()
            if self.view.seq != self._synced:
                self._unsynced.set()
            if self._recorder.error is not None:  # writing is retried at the next tick
                self._has_news.set()
            news = (self.view.seq, int(time.time() - self.view.started_at))
            if news != shown:
                shown = news
                self._publish()

    def _emit_told(self, run_tools: RunTools) -> None:
        for agent, text in run_tools.take_told().items():
            self._recorder.emit(ev.ToolTold(agent=agent, text=text))

    async def _sync(self) -> None:
        """Sync the journal to disk; separate from `_tick`, as a slow disk may block it."""
        while True:
            await self._unsynced.wait()
            self._unsynced.clear()
            self._synced = self.view.seq
            with ServiceLoop.SYNCS.item(self._recorder.note_once):
                await to_thread.run_sync(self._recorder.sync)

    # Asking ----------------------------------------------------------------------------------

    def ask_for_text(self, prompt: str) -> str:
        """Ask the user for a text and block until it is given; not for the loop thread.

        Raises:
            UserError: The user refuses to answer.
            AgentStopped: The run is being stopped.
        """
        asked = self.ask_outside(partial(self.approvals.ask_for_text, prompt))
        try:
            while not asked.done():
                # The agent whose tool asks may be stopped alone.
                checkpoint()
                wait((asked,), TICK_S)
            answer = asked.result()
        finally:
            asked.cancel()
        if answer is None:
            self._token.checkpoint()
            checkpoint()  # for the agent whose tool asks
            raise UserError(f"Run {self._id} is over: it asks no more questions.")
        return text_of(answer)

    def ask_outside(self, question: Callable[[], Awaitable[Asked]]) -> Future[Asked | None]:
        """Ask the user a question on behalf of another thread.

        Args:
            question: Asks the question, on the loop.

        Returns:
            A future of the answer; None if the run ends first.
        """

        async def asked() -> Asked | None:
            if self.view.is_over:
                return None
            try:
                return await question()
            except AgentStopped:
                # Uncaught, it would end the loop of all runs.
                return None

        return submit(asked)

    # The end ---------------------------------------------------------------------------------

    async def _finish(self, result: TurnResult | None, news: asyncio.Event) -> None:
        """Save the turn and resolve `done`, whatever fails on the way."""
        try:
            try:
                self._end(result)
                await self._files.finish()
            finally:
                self._has_worked = True
                news.set()  # not before: a thread is free now, and starting one more takes long
            await asyncio.wait(self._closing)  # late commands are answered "finished"
            self._publish()
            self._recorder.close()
        except Exception as exc:
            self._crashed(exc)
        finally:
            self._lock.release()
        try:
            await self._call_last_hooks()
            await self.subscribers.finish(self.view)
        finally:
            self.done.set_result(None)

    async def _call_last_hooks(self) -> None:
        was_stopped = self.view.stop is not None and self.view.status != "completed"
        if was_stopped and self._policy.after_cancel is not None:
            kept = receipt(self.view, str(self._spec.paths.path), still_runs)
            await self.hooks.call(self._policy.after_cancel, kept)
        error = self.crash or failure_of(self._id, self.view, self._spec.paths.path)
        await self.hooks.finish(self.view.status, result_of(self.view), error)

    def _end(self, result: TurnResult | None) -> None:
        """Record how the turn ended."""
        self._note_that_all_were_stopped(result)
        for timer in self._grace_timers:
            timer.cancel()
        self.approvals.close()
        status = self._status(result)
        is_complete = status == "completed"
        self._limits.conclude(status)
        self._recorder.emit(
            ev.TurnEnded(
                status=status,
                phase=self.view.phase,
                winner=result.winner if result and result.winner else self.view.winner,
                answer=result.answer if result and is_complete else "",
                outputs=dict(result.outputs or {}) if result and is_complete else {},
                next=() if is_complete else self._next(),
            )
        )
        if status == "cancelled":
            self._token.request(CancellationStatus.CANCELLED, "api")

    def _next(self) -> tuple[str, ...]:
        """Return the next steps of a recipe; a defect in computing them must not lose the turn."""
        try:
            return self._driver.next()[:MAX_NEXT] if self._driver is not None else ()
        except Exception as exc:
            logger.error("run %s: the next steps can't be determined", self._id, exc_info=exc)
            return ()

    def _status(self, result: TurnResult | None) -> Any:
        if result is not None and result.is_complete:
            return "completed"
        is_failure = self._limits.has_failed or not self._token.is_stopping
        return "failed" if is_failure else "cancelled"

    def _note_that_all_were_stopped(self, result: TurnResult | None) -> None:
        """Record a stop of the run if all agents were stopped alone, so that it does not fail."""
        alone = [token.first_request for token in self._members]
        if result is not None and not result.is_complete and alone and all(alone):
            first = alone[0]
            assert first is not None
            self._stop(StopRequest(first.level, first.source, first.reason))

    def save_elsewhere(self, root: Path) -> Path:
        """Write the session below another directory; see `TurnFiles.write_elsewhere`."""
        return self._files.write_elsewhere(root)

    async def save(self) -> OSError | None:
        """Write everything again after saving failed; return the error if it fails again."""
        return await self._files.write_again(is_last=self.done.done())


def _tokens(spec: TurnSpec, token: CancelToken) -> dict[str, CancelToken]:
    """Return a token for each agent; a recipe's agents work under the run's token."""
    return {} if spec.recipe else {a.id: token.child(a.id) for a in spec.team.agents}


async def _close(client: SharedClient) -> None:
    with anyio.move_on_after(CLOSE_S):
        await client.aclose()


def _recorder(journal: Journal, spec: TurnSpec) -> Recorder:
    if spec.resumed is None:
        return Recorder(journal, mask=spec.mask)
    return Recorder(journal, spec.resumed.view, spec.resumed.timeline, spec.mask)
