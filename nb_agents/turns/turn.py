"""Executes a turn on the background loop.

A `TurnWriter` owns the turn's lock, journal and cancel tokens. Everything that changes the course
of the turn is a command. `TurnWriter.take` journals commands, one at a time, before they take
effect. However the turn ends, all tasks are awaited, the turn is written while the client is
closed, the lock is released, the hooks are called, and then waiting callers are notified.

Other threads use the handle in `nb_agents.turns.handle`.
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
from nb_agents.disk.lock import FileLock
from nb_agents.errors import UserError, error_message, leaf_exceptions
from nb_agents.events.turn_events import (
    ChangeGroup,
    Command,
    Continue,
    Decide,
    FoldContext,
    OfferTools,
    Pause,
    RecordEvent,
    Say,
    SetTimeLimit,
)
from nb_agents.loop import call, is_loop_thread, post, submit
from nb_agents.models.providers import SharedClient, until_loaded
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.commands import has_commands, take_commands
from nb_agents.session.journal import Journal
from nb_agents.snapshots.user_files import UserFiles
from nb_agents.tools.offer import CallInbox
from nb_agents.tools.run_tools import RunTools
from nb_agents.tools.threads import is_call_running
from nb_agents.turns.approvals import Approvals, bind_asker, text_of
from nb_agents.turns.budget_watch import WatchDeps
from nb_agents.turns.drivers import (
    ClosableTools,
    Driver,
    DriverDeps,
    driver_for,
    runners_for,
    subagents_for,
    tools_for,
    with_agent_tools,
)
from nb_agents.turns.file_history import FileHistory
from nb_agents.turns.hiding import mask_logs
from nb_agents.turns.hooks import Hooks, Subscribers
from nb_agents.turns.limits import Limits, check_time_limit
from nb_agents.turns.live_turns import polling
from nb_agents.turns.recorder import Recorder, TurnFiles
from nb_agents.turns.status import failure_of, result_of
from nb_agents.turns.telemetry import live_trace
from nb_agents.turns.turn_spec import TurnSpec, offered_of
from nb_agents.turns.user_events import user_event
from nb_agents.view.receipt import receipt
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import Timeline

logger = logging.getLogger("nb_agents")

Asked = TypeVar("Asked")

ANSWER_S = 1.0
"""Seconds to wait for the loop to handle a stop, which may still take effect later."""

TICK_S = 0.1
"""Interval in seconds for journalling streamed text and publishing the view."""

CLOCK_S = 1.0
"""Interval in seconds for publishing the view of a run without news, to update the elapsed time."""

MAX_BY_CHARS = 200
"""Maximum length of an untrusted description from another process."""

CLOSE_S = 2.0
"""Time limit for closing the HTTP client's connections, in seconds."""

NO_COMMAND = "A file in `commands` was ignored: this version of nb_agents does not know its format."

NOT_CARRIED_OUT = (
    "The command is unknown, or failed because of a bug in nb_agents; see the log of the run."
)

MAX_NEXT = 20
"""Maximum number of recorded next steps of a stopped turn, because a loop may have thousands."""


class TurnWriter:
    """A turn that runs in this process.

    `send` and the ``ask_`` methods may be called from any thread, all other methods only from the
    loop's thread.

    Args:
        run_id: The run's id in this process.
        spec: The turn's spec.
        lock: The turn's lock, already acquired. It is released when the turn is saved.

    Attributes:
        agents: Cancel tokens by agent id, created before the team so that no early stop is lost.
        done: A thread-safe future that is resolved when everything is written.
        crash: The unexpected error that ended the turn, or that of its stand-in, or None.
        subscribers: The subscribers to the view.
        approvals: The open questions to the user, except the driver's gates.

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
        self._pause_gate = PauseGate()
        self._driver: Driver | None = None
        self._runners: Runners | None = None
        self._early_messages: list[ev.UserMessage] = []
        self._early_folds: list[FoldContext] = []
        self._is_vetoing = False
        self._has_worked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_news = asyncio.Event()
        self._synced, self._unsynced = 0, asyncio.Event()
        # Tasks that end while the files are written.
        self._closing: list[asyncio.Task[None]] = []
        self.done: Future[None] = Future()
        # A running future can't be cancelled by a waiting caller.
        self.done.set_running_or_notify_cancel()
        self.crash: Exception | None = None

        journal = Journal(spec.paths.journal, spec.mark)
        self._recorder = _recorder(journal, spec)
        self._files = TurnFiles(run_id, spec.paths, self._recorder)
        self.subscribers = Subscribers()
        self.hooks = Hooks(run_id, spec, self._recorder.note)
        self.approvals = Approvals(self._token, self._recorder.emit, self.take, spec.approval)
        self._limits = Limits(spec, self.hooks, self._watch_deps())
        self._history = self._file_history()
        self._recorder.observe(self.hooks.observe)
        self._recorder.observe(self._limits.observe)
        self._recorder.observe(lambda *_: self._has_news.set())
        if (trace := live_trace(spec.resumed.started if spec.resumed else None)) is not None:
            self._recorder.observe(lambda event, *_: trace.take(event))
        if (stand_in := spec.stand_in) is not None:
            self._recorder.observe(lambda event, *_: stand_in.observe(event))
        # The turn's first event and its incomplete metadata are written before anything else.
        with journal.in_one_write():
            self._recorder.emit(spec.started)
            for event in (*spec.work.first_events(), *_put_back(spec), *_carried(spec)):
                self._recorder.emit(event)
            if spec.resumed is not None and spec.resumed.said is not None:
                self._recorder.emit(spec.resumed.said)
                self._early_messages.append(spec.resumed.said)
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
        """Whether a stop of any level was requested. May be read from any thread."""
        return self._token.is_stopping

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended and everything is written."""
        return self.done.done()

    # Commands --------------------------------------------------------------------------------

    def send(self, command: Command) -> Any:
        """Send a command from any thread, and wait for its result.

        Returns:
            The result of `take`. A stop has the status "asked" if waiting for it would block the
            loop, or if it takes longer than `ANSWER_S`.

        Raises:
            UserError: See `take`.
        """
        if not isinstance(command, StopRequest):
            return call(self.take, command)
        if not self._may_be_vetoed(command):
            try:
                return call(self.take, command, timeout_s=ANSWER_S)
            except TimeoutError:
                return StopResult(False, "asked")
        future = submit(self.take_unless_vetoed, command)
        # The hook may be slow, and the loop must not wait for it.
        return StopResult(False, "asked") if is_loop_thread() else future.result()

    def _may_be_vetoed(self, request: StopRequest) -> bool:
        is_hard = request.level >= CancellationStatus.IMMEDIATE or request.agent
        is_late = is_hard or self.is_stopping or self.view.is_over
        return not is_late and self.hooks.may_veto

    def take(self, command: Command) -> Any:
        """Journal a command and carry it out.

        Returns:
            The StopResult of a stop; the gate's address for a decision, or "" if the gate is not
            open; for other commands, whether the command had an effect.

        Raises:
            UserError: The user is not an approver, or the offered tools or the limit are invalid.
        """
        match command:
            case StopRequest():
                return self._stop(command)
            case Say(text=text):
                return self._add_message(ev.UserMessage(text=text))
            case Pause():
                return self._pause()
            case Continue():
                return self._unpause()
            case Decide():
                return self._decide(command)
            case OfferTools():
                return self._take_offer(command)
            case FoldContext():
                return self._request_fold(command)
            case RecordEvent():
                return self._record_user_event(command)
            case SetTimeLimit():
                return self._set_time_limit(command.timeout_s)
            case ChangeGroup():
                return False  # a turn is no group

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
        if request.source == "budget" and not request.agent:
            self._limits.budget.close_streams()
        agent = self.view.agents.get(request.agent)
        if agent is not None and agent.outcome:
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
        grace_s, limit_s = self._policy.grace_timeout_s, self.view.timeout_s
        if request.source == "timeout" and grace_s is not None and limit_s:
            return min(grace_s, limit_s)  # otherwise a run with a limit of 3 s could take 33 s
        return grace_s

    def _give_grace(self, request: StopRequest, grace_s: float | None) -> None:
        """Make a graceful stop immediate after the grace time."""
        if grace_s is not None:
            level, reason = CancellationStatus.IMMEDIATE, "the grace time is over"
            immediate = StopRequest(level, request.source, reason, request.agent)
            loop = asyncio.get_running_loop()
            self._grace_timers.append(loop.call_later(grace_s, post, self._stop, immediate))

    def _add_message(self, event: ev.UserMessage) -> bool:
        # Journalled even without a driver, because the next turn has it in its conversation.
        if self.view.is_over:
            return False
        self._recorder.emit(event)
        if self._driver is None:
            self._early_messages.append(event)
        else:
            self._driver.add_message(event)
        self._publish()
        return True

    def _request_fold(self, command: FoldContext) -> bool:
        agent, runners = self.view.agents.get(command.agent), self._runners
        if agent is None or agent.outcome or self.view.is_over:
            return False
        if runners is None:
            self._early_folds.append(command)
        elif not runners.request_fold(command.agent, command.keep):
            return False
        self._recorder.emit(ev.FoldRequested(agent=command.agent, keep=command.keep))
        self._publish()
        return True

    def _set_time_limit(self, timeout_s: float) -> bool:
        check_time_limit(timeout_s)
        if self.view.is_over:
            return False
        self._recorder.emit(ev.TimeLimitChanged(timeout_s=timeout_s))
        self._limits.set_time_limit(timeout_s)
        self._publish()
        return True

    def _record_user_event(self, command: RecordEvent) -> bool:
        event = user_event(self.view, command.fields)
        if event is None or self.view.is_over:
            return False
        self._recorder.emit(event)
        self._publish()
        return True

    def _pause(self) -> bool:
        if self.view.is_over or self._token.is_stopping:
            return False
        if not self._pause_gate.is_held():
            self._recorder.emit(ev.Paused())
            self._pause_gate.pause()
            self._publish()
        return True

    def _unpause(self) -> bool:
        if not self._pause_gate.is_held():
            return False
        if not self.view.is_over:
            self._recorder.emit(ev.Continued())
        self._pause_gate.unpause()
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
        arguments = (decision.approved, decision.message, decision.by, gate)
        address = self.approvals.decide(*arguments)
        if not address and self._driver is not None:
            address = self._driver.decide(*arguments)
        self._publish()
        return address

    def _take_offer(self, command: OfferTools) -> bool:
        if self.view.is_over:
            return False
        functions = offered_of(self._spec.functions, command)
        names = ", ".join(f"`{function.name}`" for function in functions)
        self._recorder.note(f"{names}: from now on provided by {command.by[:MAX_BY_CHARS]}.")
        for function in functions:
            function.offer = CallInbox(command.offer, self._spec.paths.root)
        self._publish()
        return True

    async def _listen(self, news: asyncio.Event) -> None:
        """Carry out commands of other processes, until the work is over."""
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        async with anyio.create_task_group() as group:
            with polling(partial(has_commands, str(self._spec.paths.commands)), tell):
                is_last = False
                while not is_last:
                    await news.wait()
                    news.clear()
                    is_last = self._has_worked
                    with ServiceLoop.COMMANDS.item(self._recorder.note_once):
                        commands = await to_thread.run_sync(take_commands, self._spec.paths)
                        for name, command in commands:
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
                # A bug in nb_agents, or the end of the loop; the turn is saved all the same.
                self._crashed(exc)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._finish(result, news)

    def _crashed(self, exc: BaseException) -> None:
        leaf, *other_exceptions = leaf_exceptions(exc)
        exc = exc if other_exceptions else leaf
        logger.error("run %s crashed", self._id, exc_info=exc)
        if isinstance(exc, Exception):
            text = f"A bug in nb_agents ended this run: {error_message(exc, named=True)}"
            self._recorder.note(text)
            self.crash = self.crash or self._spec.mask.error(exc)

    async def _run_driver(self) -> TurnResult:
        retry = self._spec.retry
        client = SharedClient(retry.max_silence if retry else None)
        try:
            resumed, stand_in = self._spec.resumed, self._spec.stand_in
            if stand_in is not None:
                stand_in.attach(self.take, self._recorder.emit)
            terms = RunPolicy(
                self._pause_gate,
                stand_in.retry_after if stand_in else self.hooks.retry_after,
                self._wake,
                self._limits.budget.spending,
                dict(resumed.past.windows) if resumed else {},
                self._spec.quota_wait_s,
                has_delays=stand_in is None,
            )
            with bind(self._token), bind_policy(terms), bind_asker(self.ask_for_text):
                deps = with_agent_tools(self._driver_deps())
                runners, tools = runners_for(deps, client), tools_for(deps)
                self._runners = runners
                for each in self._early_folds:
                    runners.request_fold(each.agent, each.keep)
                try:
                    async with tools as run_tools:
                        run_tools.call_at_end(runners.close)
                        for extension_tools in deps.agent_tools:
                            if isinstance(extension_tools, ClosableTools):
                                run_tools.call_at_end(extension_tools.close)
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

    def _watch_deps(self) -> WatchDeps:
        return WatchDeps(
            view=lambda: self.view,
            stop=self.take,
            note=self._recorder.note,
            emit=self._recorder.emit,
            ask=self.approvals.ask_about_budget,
            hold=self._pause_gate,
        )

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
            observe=self._recorder.observe,
        )

    def _file_history(self) -> FileHistory:
        spec = self._spec
        team = spec.team
        user_files = UserFiles(
            spec.paths.path.parent, team.snapshot_bytes, spec.mark, team.snapshot_total_bytes
        )
        trees = spec.resumed.kept if spec.resumed else {}
        return FileHistory(user_files, spec.paths.live_workspaces, trees, self._recorder.emit)

    def _admit(self, agent: str, token: CancelToken) -> None:
        # Replaced, not modified, because a thread that stops an agent may be reading it.
        self.agents = {**self.agents, agent: token}

    async def _start(
        self, deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
    ) -> Driver:
        """Create the driver. A stop does not wait for tools that are still starting."""
        everyone = [(agent.id, agent.backend) for agent in self._spec.team.everyone]

        async def announce() -> None:
            await until_loaded()
            await run_tools.announce(everyone)

        if not self._spec.work.opens_tools:
            with StopScope(self._token) as boundary, suppress(AgentStopped):
                await boundary.wait_or_stop(announce)
            return await driver_for(deps, runners, run_tools, children)
        drivers: list[Driver] = []

        async def make() -> None:
            await announce()
            drivers.append(await driver_for(deps, runners, run_tools, children))

        with StopScope(self._token) as boundary:
            await boundary.wait_or_stop(make)
        self._token.checkpoint()
        return drivers[0]

    async def _drive(self, driver: Driver, run_tools: RunTools) -> TurnResult:
        for event in self._early_messages:
            driver.add_message(event)
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
        """Make `_tick` process news. May be called from any thread."""
        if self._loop is not None and not self._has_news.is_set():
            with suppress(RuntimeError):  # the calling thread may outlive the loop
                self._loop.call_soon_threadsafe(self._has_news.set)

    async def _tick(self, driver: Driver, run_tools: RunTools) -> None:
        """Journal streamed text and publish the view, in batches."""
        last_shown = (-1, -1)
        while True:
            try:
                # Cheaper than anyio's time limit, in a loop that runs for hours.
                async with asyncio.timeout(CLOCK_S):
                    await self._has_news.wait()
                    await asyncio.sleep(TICK_S)
            except TimeoutError:  # only the elapsed time has changed
                if not self._has_news.is_set():
                    self._publish()
                    continue
            self._has_news.clear()
            emit_told = partial(self._emit_tool_notices, run_tools)
            for part in (driver.flush, emit_told, self._recorder.flush):
                with ServiceLoop.TICKS.item(self._recorder.note_once):
                    part()
            if self.view.seq != self._synced:
                self._unsynced.set()
            if self._recorder.error is not None:  # writing is retried at the next tick
                self._has_news.set()
            news = (self.view.seq, int(time.time() - self.view.started_at))
            if news != last_shown:
                last_shown = news
                self._publish()

    def _emit_tool_notices(self, run_tools: RunTools) -> None:
        for agent, text in run_tools.take_told().items():
            self._recorder.emit(ev.ToolNotice(agent=agent, text=text))

    async def _sync(self) -> None:
        """Sync the journal to disk whenever it has new events.

        Separate from `_tick`, because a slow disk must not delay that.
        """
        while True:
            await self._unsynced.wait()
            self._unsynced.clear()
            self._synced = self.view.seq
            with ServiceLoop.SYNCS.item(self._recorder.note_once):
                await to_thread.run_sync(self._recorder.sync)

    # Questions -------------------------------------------------------------------------------

    def ask_for_text(self, prompt: str) -> str:
        """Ask the user for text and block until they answer. Must not be called on the loop thread.

        Raises:
            UserError: The user refuses to answer.
            AgentStopped: The run is being stopped.
        """
        future = self.ask_outside(partial(self.approvals.ask_for_text, prompt))
        try:
            while not future.done():
                # The agent with the tool may be stopped individually.
                checkpoint()
                wait((future,), TICK_S)
            answer = future.result()
        finally:
            future.cancel()
        if answer is None:
            self._token.checkpoint()
            checkpoint()  # for the agent with the tool
            raise UserError(f"Run {self._id} has ended, so it can no longer ask the user.")
        return text_of(answer)

    def ask_outside(self, question: Callable[[], Awaitable[Asked]]) -> Future[Asked | None]:
        """Ask the user a question on behalf of another thread.

        Args:
            question: An async function that asks the question. Called on the loop.

        Returns:
            A future of the answer. Its result is None if the run ends first.
        """

        async def ask() -> Asked | None:
            if self.view.is_over:
                return None
            try:
                return await question()
            except AgentStopped:
                # Uncaught, it would end the loop of all runs.
                return None

        return submit(ask)

    # The end ---------------------------------------------------------------------------------

    async def _finish(self, result: TurnResult | None, news: asyncio.Event) -> None:
        """Save the turn and resolve `done`, even if a step fails."""
        if self._spec.stand_in is not None:
            self.crash = self.crash or self._spec.stand_in.error()
        try:
            try:
                self._end(result)
                await self._files.finish()
                await self._limits.close()
            finally:
                self._has_worked = True
                news.set()  # a worker thread is free now; starting one is slow
            await asyncio.wait(self._closing)  # includes replies of "finished" to late commands
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
            saved = receipt(self.view, str(self._spec.paths.path), is_call_running)
            await self.hooks.call(self._policy.after_cancel, saved)
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
        """Return the next steps; empty on an error, because the turn must be saved."""
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
        """If all agents were stopped, record the run as stopped instead of failed."""
        requests = [token.first_request for token in self._members]
        if result is not None and not result.is_complete and requests and all(requests):
            first = requests[0]
            assert first is not None
            self._stop(StopRequest(first.level, first.source, first.reason))

    def save_elsewhere(self, root: Path) -> Path:
        """Write the session to another directory; see `TurnFiles.write_elsewhere`."""
        return self._files.write_elsewhere(root)

    async def save(self) -> OSError | None:
        """Write everything again after saving failed. Returns the error if it fails again."""
        return await self._files.write_again(is_last=self.done.done())


def _tokens(spec: TurnSpec, token: CancelToken) -> dict[str, CancelToken]:
    """Return a token for each member of the team; other agents work under the run's token."""
    return {agent.id: token.child(agent.id) for agent in spec.work.members(spec.team)}


def _carried(spec: TurnSpec) -> tuple[ev.Event, ...]:
    """Return the events that extensions add to a turn that continues another one."""
    return spec.resumed.carried if spec.resumed else ()


def _put_back(spec: TurnSpec) -> tuple[ev.Event, ...]:
    return spec.resumed.put_back if spec.resumed else ()


async def _close(client: SharedClient) -> None:
    with anyio.move_on_after(CLOSE_S):
        await client.aclose()


def _recorder(journal: Journal, spec: TurnSpec) -> Recorder:
    if spec.resumed is None:
        return Recorder(journal, mask=spec.mask)
    return Recorder(journal, spec.resumed.view, spec.resumed.timeline, spec.mask)
