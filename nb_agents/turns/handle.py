"""The handle of a run, which can be used from any thread.

`nb_agents.turns.turn` executes the run on the background loop. The handle sends it commands.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from getpass import getuser
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from nb_agents.cancel import (
    CancellationStatus,
    CancelPolicy,
    StopRequest,
    StopResult,
    StopSource,
)
from nb_agents.errors import (
    CancellationRequestedError,
    RunCancelled,
    RunNotFinished,
    StorageError,
    UserError,
    as_storage_error,
)
from nb_agents.events import EVENT, Event
from nb_agents.events.turn_events import (
    Continue,
    Decide,
    FoldContext,
    OfferTools,
    Pause,
    RecordEvent,
    Say,
    SetTimeLimit,
)
from nb_agents.loop import interrupt_source, post, redirect_interrupts, submit, wait_interruptibly
from nb_agents.options import RunOptions
from nb_agents.session.journal import follow, read_journal
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.threads import is_call_running
from nb_agents.turns.approvals import text_of
from nb_agents.turns.awaited import waiting_for
from nb_agents.turns.limits import check_time_limit
from nb_agents.turns.live_turns import describe_this_process
from nb_agents.turns.offering import Offering
from nb_agents.turns.reader import TurnReader
from nb_agents.turns.status import RunProgress, failure_of, log_lines, progress_of, result_of
from nb_agents.turns.turn import TurnWriter
from nb_agents.turns.turn_spec import TurnSpec
from nb_agents.unicode import well_formed
from nb_agents.view.receipt import Receipt, receipt
from nb_agents.view.run_view import RunState, RunStatus, RunView
from nb_agents.view.steps import ApprovalView
from nb_agents.view.timeline import COLUMNS, Timeline

_Answer = TypeVar("_Answer")

MAX_SAID = 20_000
"""Maximum length of a message in characters. It is added to all later prompts of every agent."""


def check_turn(paths: TurnPaths) -> None:
    """Raise `UserError` unless a directory is that of a turn."""
    if not (os.path.isfile(paths.journal) or os.path.isfile(paths.metadata)):
        raise UserError(
            f"{paths.path} is not a turn, because it has no {paths.journal.name}. Give the path "
            "of a directory turn_N."
        )


class RunHandle:
    """Handle of a run, to watch it, stop it and wait for its result.

    Users get the subclass `nb_agents.launch.run.Run`. ``await run`` and `wait` return the final
    answer. All methods may be called from any thread.

    Args:
        run_id: The run's id in this process, such as "r1".
        turn: The writer of a turn in this process, or the reader of a turn in another process or
            on disk.
        paths: The turn's paths.
        spec: The turn's spec, for a run in this process.
        where: A description of the process, for a run in another process.

    Attributes:
        policy: The policy that `cancel` follows.
        where: A description of the run's process, or "" for this process.
        functions: The functions of this process that the run's agents may call.
        began_at: Unix time at which this process started the run or created its handle.
    """

    def __init__(
        self,
        run_id: str,
        turn: TurnWriter | TurnReader,
        paths: TurnPaths,
        spec: TurnSpec | None = None,
        where: str = "",
    ) -> None:
        self.id = run_id
        self.where = where
        self.policy = spec.cancel if spec else CancelPolicy()
        self.options = spec.options if spec else RunOptions()
        self._turn: TurnWriter | TurnReader = turn
        self._paths = paths
        self.functions = spec.functions if spec else ()
        self.began_at = time.time()
        self._was_pressed = False

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.session}/{self.turn}: {self.state}>"

    # State ----------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The session's id."""
        return self._paths.session

    @property
    def turn(self) -> int:
        """The turn's number, starting at 1."""
        return self._paths.number

    @property
    def path(self) -> Path:
        """The turn's directory."""
        return self._paths.path

    @property
    def address(self) -> str:
        """A name that is unique in all session roots: the id, or the path for another process."""
        return str(self.path) if self.where else self.id

    @property
    def view(self) -> RunView:
        """The turn's current state: answers, votes and calls. `timeline` has their times."""
        return self._turn.view

    @property
    def status(self) -> RunStatus:
        """The run's status, in the terms of the OS Protocol. For users, see `state`."""
        return self.view.status

    @property
    def state(self) -> RunState:
        """The run's state as users see it, such as "timed out"."""
        return self.view.state

    @property
    def progress(self) -> RunProgress:
        """The current round or step, the counts of answers and votes, and a short message."""
        return progress_of(self.view, time.time())

    @property
    def logs(self) -> list[str]:
        """The log so far, one line per event, as `%agents log` shows it."""
        return log_lines(read_journal(self._paths.journal).events)

    @property
    def result(self) -> Any:
        """The final answer, or a recipe's outputs by name, or None if the run has no result.

        For a recipe without outputs, it is the text of the last step.

        Raises:
            RunNotFinished: The run has not ended.
        """
        if not (self.view.is_over or self.is_over):
            raise RunNotFinished(self.id)
        return result_of(self.view)

    @property
    def receipt(self) -> Receipt:
        """A summary of finished and interrupted work and its cost.

        It is final once the run is over.
        """
        return receipt(self.view, str(self.path), is_call_running)

    @property
    def timeline(self) -> Timeline:
        """The timeline so far, including the turns that this turn resumed."""
        return self._turn.timeline

    def to_frame(self) -> Any:
        """Return the timeline as a pandas DataFrame, with one row per span or mark.

        Returns:
            Columns agent, kind, name, start, end (UTC), seconds, outcome, tokens, cost, text.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise UserError(
                "run.to_frame() needs pandas: `pip install pandas`. run.timeline has the same data."
            ) from None
        frame = pandas.DataFrame(self.timeline.rows(), columns=COLUMNS)
        for column in ("start", "end"):
            frame[column] = pandas.to_datetime(frame[column], unit="s", utc=True)
        return frame

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and everything is written."""
        return self._turn.is_over

    # Waiting --------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None, *, raise_on_stop: bool = True) -> str:
        """Block until the run ends. An interrupt stops the run, and the wait continues.

        Args:
            timeout: Seconds after which to stop waiting, without stopping the run. None means
                never.
            raise_on_stop: Whether to raise an error when there is no final answer.

        Returns:
            The final answer, or "" if there is none.

        Raises:
            RunCancelled: The run was stopped. The exception has the partial answers and the
                receipt.
            RunFailed: The run failed, for example because no agent submitted an answer.
            TimeoutError: ``timeout`` passed.
        """
        with waiting_for(self.path) if timeout is None else nullcontext():
            wait_interruptibly(self._turn.done, self.press, timeout)
        return self._outcome() if raise_on_stop else self.view.answer

    def __await__(self) -> Generator[Any, None, str]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> str:
        with redirect_interrupts(self.press), waiting_for(self.path):
            await asyncio.wrap_future(self._turn.done)
        return self._outcome()

    def _outcome(self) -> str:
        if self._turn.crash is not None:
            raise self._turn.crash
        view = self.view
        if view.status == "completed":
            return view.answer
        if view.status == "failed":
            raise failure_of(self.id, view, self.path)
        run, texts, receipt, path = self.id, _texts(view), self.receipt, self.path
        if not view.has_steps:
            raise RunCancelled(run, texts, receipt, path)
        is_immediate = view.stop is not None and view.stop.level == "immediate"
        step = view.current_step or next(iter(view.next), "")
        raise CancellationRequestedError(
            self.session,
            is_immediate,
            step,
            run=run,
            partial_answers=texts,
            receipt=receipt,
            path=path,
        )

    # Messages -------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Send a message to the agents while they work on the task.

        Each agent gets it with its next model request, and earlier votes no longer count. If the
        turn ends first, the message stays in the conversation.

        Args:
            text: The message, at most `MAX_SAID` characters.

        Raises:
            UserError: The message is empty or too long, or the run is over.

        Example:
            run.say("Leave out the appendix, and write in British English")
        """
        if self.is_over or not self._turn.send(Say(checked_message(text))):
            raise UserError(
                f"Run {self.id} is over. Give its agents a new task with "
                f"`%%agents --continue --session {self.session}`."
            )

    def fold(self, agent: str, keep: str = "") -> None:
        """Fold an agent's conversation before its next model request.

        Older tool results and replies are replaced by a list of the agent's calls and a summary.
        The journal keeps the full text; the agent can read it, and a rewind to before the fold
        restores it.

        Args:
            agent: The agent's id.
            keep: What the summary must keep, such as "all file names and numbers".

        Raises:
            UserError: The run is over, or the agent is not working with a model now.

        Example:
            run.fold("ada", keep="the numbers of the second table")
        """
        keep = checked_message(keep) if keep else ""
        if self.is_over:
            raise UserError(f"Run {self.id} is over, so there is nothing to fold.")
        if not self._turn.send(FoldContext(agent, keep)):
            working = ", ".join(a.id for a in self.view.agents.values() if a.outcome is None)
            raise UserError(
                f"{agent!r} is not working with a model now, so there is nothing to fold. "
                f"Working agents: {working or 'none'}."
            )

    def set_time_limit(self, seconds: float) -> bool:
        """Change the time limit of the run. The time that it has worked counts.

        Args:
            seconds: The new limit in seconds, counted from the start of the turn.

        Returns:
            Whether the run was live.

        Raises:
            UserError: The limit is not a number above 0.

        Example:
            run.set_time_limit(3600)
        """
        check_time_limit(seconds)
        return bool(self._turn.send(SetTimeLimit(float(seconds))))

    def record_event(self, event: Event) -> bool:
        """Journal an event of an extension that records what a user did.

        Args:
            event: The event. Its kind must be in the extension's ``user_events``.

        Returns:
            Whether it was journalled. False if the run is over, or the event no longer applies.
        """
        if self.is_over:
            return False
        return bool(self._turn.send(RecordEvent(EVENT.dump_python(event, mode="json"))))

    # Gates ----------------------------------------------------------------------------------

    def approve(self, message: str = "", by: str = "") -> None:
        """Approve the gate that has been waiting longest.

        Args:
            message: A message for a recipe's later steps, as ``{{_approval_message}}``.
            by: The name of the user, to record. By default, the user of this process.

        Raises:
            UserError: No gate is waiting for an approval. Use `answer` for a question.
        """
        self.decide(True, message, by)

    def deny(self, message: str = "", by: str = "") -> None:
        """Deny the gate that has been waiting longest. This stops a recipe. A resume asks again.

        Args:
            message: The reason, to record.
            by: The name of the user, to record. By default, the user of this process.

        Raises:
            UserError: No gate is waiting.
        """
        self.decide(False, message, by)

    def decide(self, approved: bool, message: str = "", by: str = "", gate: str = "") -> str:
        """Approve or deny a gate; see `approve` and `deny`.

        Args:
            approved: Whether to approve.
            message: A message for a recipe's later steps.
            by: The name of the user, to record. By default, the user of this process.
            gate: The gate's address. "" means the gate that has been waiting longest. With "", a
                question that asks for text can't be approved, and is denied only if no other gate
                is waiting.

        Returns:
            The gate's address.

        Raises:
            UserError: This gate is not waiting or, with "", no gate is.
        """
        decision = Decide(approved, message, by, gate, wants="" if gate else "approval")
        chosen = self._decide(decision)
        if not chosen and not approved and not gate:
            chosen = self._decide(replace(decision, wants=""))
        if chosen:
            return chosen
        # The gates of a stopped run stay open for a resume.
        if not gate and self.view.gates and not self.is_over:
            raise UserError(
                f"Run {self.id} is waiting for text. Answer with run.answer(text) or "
                f"`%agents answer {self.id} TEXT`."
            )
        subject = f"at a gate {gate!r}" if gate else "for an approval"
        raise UserError(f"Run {self.id} is not waiting {subject}; it is {self.view.standing}.")

    def _decide(self, decision: Decide) -> str:
        """Send a decision. Returns the address of the gate that was waiting for it, or ""."""
        message, user = well_formed(decision.message), decision.by or getuser()
        complete = replace(decision, message=message, by=user)
        return "" if self.is_over else str(self._turn.send(complete) or "")

    def wait_for_approval(
        self, message: str | None = None, timeout: float | None = None
    ) -> ApprovalView:
        """Block until the user has made a decision. The run continues in the meantime.

        Args:
            message: A question to ask at a new gate. Without it, the method waits for the next
                decision at any gate of the run.
            timeout: Seconds after which to stop waiting. None means never.

        Raises:
            UserError: The run ended without a decision.
            TimeoutError: ``timeout`` passed.
        """
        if message is None:
            return self._next_approval(timeout)
        gate = self._answer_to(lambda turn: turn.approvals.ask_whether(message), timeout)
        return next(each for each in self.view.approvals if each.address == gate)

    def _next_approval(self, timeout: float | None) -> ApprovalView:
        count, changed = len(self.view.approvals), Future[None]()

        def check(view: RunView) -> None:
            if (len(view.approvals) > count or view.is_over) and not changed.done():
                changed.set_result(None)

        end = self.subscribe(check)
        check(self.view)
        try:
            wait_interruptibly(changed, self.press, timeout)
        finally:
            end()
        if len(self.view.approvals) == count:
            raise UserError(f"Run {self.id} ended without a decision; it is {self.view.standing}.")
        return self.view.approvals[count]

    def wait_for_input(self, prompt: str, timeout: float | None = None) -> str:
        """Ask the user of the run for text, and block until they answer.

        Args:
            prompt: The question, which the panel shows.
            timeout: Seconds after which to stop waiting. None means never.

        Returns:
            The user's text.

        Raises:
            UserError: The user refuses to answer, or the run ended first.
            TimeoutError: ``timeout`` passed.
        """
        answer = self._answer_to(lambda turn: turn.approvals.ask_for_text(prompt), timeout)
        return text_of(answer)

    def answer(self, text: str, by: str = "") -> None:
        """Answer the question that has been waiting longest.

        Args:
            text: The answer.
            by: The name of the user, to record. By default, the user of this process.

        Raises:
            UserError: No question is waiting.
        """
        if not self._decide(Decide(True, text, by, wants="input")):
            raise UserError(f"Run {self.id} has no open question; it is {self.view.standing}.")

    def _answer_to(
        self, question: Callable[[TurnWriter], Awaitable[_Answer]], timeout: float | None
    ) -> _Answer:
        turn = self._turn
        if not isinstance(turn, TurnWriter):
            state = f"is in {self.where}" if self.where else "is over"
            raise UserError(f"Run {self.id} {state}, so this process can't ask its user.")
        future = turn.ask_outside(lambda: question(turn))
        try:
            answer = wait_interruptibly(future, self.press, timeout)
        finally:
            # After a timeout, withdraw the question.
            future.cancel()
        if answer is None:
            raise UserError(f"Run {self.id} ended without an answer; it is {self.view.standing}.")
        return answer

    # Tools ----------------------------------------------------------------------------------

    def offer(self, tools: Sequence[Callable[..., Any]]) -> None:
        """Offer functions of this process to a run in another process.

        As long as this process lives, the run calls them instead of the functions that it was
        started with. Use it after restarting the kernel that started a detached run, or after
        changing a function.

        Args:
            tools: Functions with the same names as those that the run was started with.

        Raises:
            UserError: The run is in this process, is over, or was started without such a tool.
        """
        if not self.where or self.is_over:
            state = "is over" if self.is_over else "is in this process"
            raise UserError(
                f"Run {self.id} {state}. Tools can only be offered to a live run in another "
                "process."
            )
        offering = Offering(tools, self._paths.root)
        names = tuple(function.name for function in offering.functions)
        try:
            self._turn.send(
                OfferTools(offering.id, names, f"{describe_this_process()} (pid {os.getpid()})")
            )
        except BaseException:
            offering.withdraw()
            raise
        offering.serve(self.path)

    # Pausing --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause the run at its next boundary: open calls finish, and no new calls start.

        During the pause, the status is "awaiting" and the timeout's clock is stopped. The run can
        be stopped as usual.

        Raises:
            UserError: The run is over or stopping.
        """
        if self.is_over or not self._turn.send(Pause()):
            state = "over" if self.is_over else "stopping"
            raise UserError(f"Run {self.id} can't be paused: it is {state}.")

    def unpause(self) -> None:
        """End a pause.

        Raises:
            UserError: The run is not paused.
        """
        if not self._unpause():
            raise UserError(f"Run {self.id} is not paused; it is {self.view.standing}.")

    def _unpause(self) -> bool:
        return not self.is_over and bool(self._turn.send(Continue()))

    # Stopping -------------------------------------------------------------------------------

    def stop(
        self,
        now: bool = False,
        agent: str | None = None,
        reason: str = "",
        *,
        source: StopSource = "api",
    ) -> StopResult:
        """Request a stop of the run or of one agent, without waiting for it. Idempotent.

        Args:
            now: Whether to interrupt calls in flight instead of letting them finish.
            agent: Id of the only agent to stop. None stops the whole run.
            reason: The reason, to record.
            source: The interface from which the request comes, to record.

        Returns:
            Whether the request had an effect, and the run's status.

        Raises:
            UserError: The run has no such agent.
        """
        if self.is_over:
            return StopResult(False, "finished")
        level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
        if agent != "":  # "" is neither an agent nor the whole run
            result: StopResult = self._turn.send(StopRequest(level, source, reason, agent or ""))
            if result.status != "unknown":
                return result
        agent_names = ", ".join(self._turn.agents)
        raise UserError(f"Run {self.id} has no agent {agent!r}. Its agents are: {agent_names}.")

    async def cancel(self, reason: str | None = None) -> StopResult:
        """Stop the run according to its CancelPolicy, and wait until it has stopped and is saved.

        Args:
            reason: The reason, to record. By default, the policy's reason.

        Returns:
            Whether the request had an effect, and the run's status afterwards.
        """
        now, recorded = not self.policy.graceful, reason or self.policy.reason
        result = await asyncio.to_thread(self.stop, now, None, recorded)
        if result.status == "vetoed":
            return result
        await asyncio.wrap_future(self._turn.done)
        return StopResult(result.changed, "finished")

    def press(self) -> None:
        """Handle an interrupt. The first one stops the run gracefully, the second one immediately.

        Does not block, so signal handlers can call it.
        """
        # Decided now, because the same interrupt may already have stopped the sweep when the loop
        # runs.
        now = self._was_pressed or self._turn.is_stopping
        self._was_pressed = True
        post(partial(self.stop, now, reason="interrupted", source=interrupt_source()))

    # Watching -------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[RunView], None]) -> Callable[[], None]:
        """Call a function with the view when it changes, and at the end of the run.

        Args:
            callback: Called in a worker thread, one call at a time, at most ten times a second.

        Returns:
            A function that unsubscribes it.
        """
        if self.is_over:
            return lambda: None
        return self._turn.subscribers.add(callback)

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a function once the run has ended and is saved. If it already has, call it now.

        Args:
            callback: Called on the loop's thread or on the current thread. It must not block.
        """
        self._turn.done.add_done_callback(lambda _: callback())

    def events(self) -> AsyncIterator[Event]:
        """Yield the events of the turn so far, then new events until the turn ends.

        Example:
            async for event in run.events():
                print(event.kind)
        """
        return follow(self.path)

    @property
    def is_unsaved(self) -> bool:
        """Whether the run is over but not fully on disk, because saving failed."""
        return isinstance(self._turn, TurnWriter) and self.is_over and not self.view.is_saved

    def save(self, timeout: float | None = None) -> None:
        """Write all files again after saving failed.

        Args:
            timeout: Seconds after which to stop waiting for the disk. None means never.

        Raises:
            StorageError: Saving failed again. Unsaved events stay in memory.
            TimeoutError: ``timeout`` passed.
        """
        if not isinstance(self._turn, TurnWriter):
            return
        # On the loop, because only the loop's thread may write the journal.
        error = submit(self._turn.save).result(timeout)
        if error is not None:
            raise StorageError(str(self.path), error.strerror or str(error))

    def save_elsewhere(self, root: str | os.PathLike[str]) -> Path:
        """Write the session to another session root, for example because its disk is full.

        Args:
            root: The other session root.

        Returns:
            The new directory of the session.

        Raises:
            StorageError: It can't be written there or already exists.
            UserError: The run has not ended, or is not in this process.
        """
        if not isinstance(self._turn, TurnWriter) or not self.is_over:
            raise UserError(
                f"Run {self.id} is {self.view.standing}. Only a run that has ended in this process "
                "can be saved elsewhere."
            )
        with as_storage_error(root):
            return self._turn.save_elsewhere(Path(root).expanduser().absolute())

    async def execute(self) -> None:
        """Execute the run. `nb_agents.launch.here` calls this once, on the loop."""
        assert isinstance(self._turn, TurnWriter)
        if (task := asyncio.current_task()) is not None:
            task.set_name(f"run {self.id}")
        await self._turn.run()

    def release(self) -> None:
        """Free the memory of a run that has ended and is saved.

        From now on, it is read from disk.
        """
        if isinstance(self._turn, TurnWriter) and self.is_over and self.view.is_saved:
            self._turn = TurnReader(self._paths, self._turn.crash)


def checked_message(text: str) -> str:
    """Return a user's message to agents, stripped and well-formed.

    Raises:
        UserError: The message is empty or longer than `MAX_SAID`.
    """
    text = well_formed(text.strip())
    if not text:
        raise UserError("The message is empty. Write what the agents should know.")
    if len(text) > MAX_SAID:
        raise UserError(
            f"The message has {len(text)} characters; the limit is {MAX_SAID}. Shorten it, or let "
            "the agents read it from a file."
        )
    return text


def _texts(view: RunView) -> dict[str, str]:
    """Return each agent's latest answer or, if it has none, its unsubmitted text."""
    texts = {a.id: a.answer or a.unsubmitted for a in view.agents.values()}
    return {agent: text for agent, text in texts.items() if text}
