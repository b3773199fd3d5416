"""The handle of a run, for any thread.

The work is done on the background loop (`nb_agents.runs.turn`), to which the handle only sends
commands.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from getpass import getuser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, overload

from nb_agents.cancel import (
    CancellationStatus,
    CancelPolicy,
    StopRequest,
    StopResult,
    StopSource,
)
from nb_agents.config.team import TeamSpec
from nb_agents.errors import (
    CancellationRequestedError,
    RunCancelled,
    RunNotFinished,
    StorageError,
    UserError,
    as_storage_error,
)
from nb_agents.events import Event
from nb_agents.events.turn_events import Continue, Decide, OfferTools, Pause, Say
from nb_agents.loop import interrupt_calls, interrupt_source, post, submit, wait_interruptibly
from nb_agents.options import RunOptions
from nb_agents.runs.approvals import text_of
from nb_agents.runs.live_turns import place_of_this_process
from nb_agents.runs.offering import Offering
from nb_agents.runs.reader import TurnReader
from nb_agents.runs.status import RunProgress, failure_of, log_lines, progress_of, result_of
from nb_agents.runs.turn import TurnWriter
from nb_agents.runs.turn_spec import TurnSpec
from nb_agents.session.journal import follow, read_journal
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.tools.threads import still_runs
from nb_agents.unicode import well_formed
from nb_agents.view.receipt import Receipt, receipt
from nb_agents.view.run_view import RunState, RunStatus, RunView
from nb_agents.view.steps import ApprovalView
from nb_agents.view.timeline import COLUMNS, Timeline

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe
    from nb_agents.launch.resume_plan import Preview
    from nb_agents.launch.rewind_plan import RewindPreview

_Answer = TypeVar("_Answer")

MAX_SAID = 20_000
"""Characters of a follow-up text, which is part of every agent's later prompts."""


class RunDisplay(NamedTuple):
    """The functions by which a run is shown, which are above this module.

    Attributes:
        bundle: Returns its card as a mime bundle.
        panel: Returns its live panel, an anywidget.
    """

    bundle: Callable[[Run], dict[str, Any]]
    panel: Callable[[Run], Any]


class Resumer(NamedTuple):
    """The functions by which a run is resumed, which are above this module.

    Attributes:
        resume: Resumes a session's last turn; see `nb_agents.resume`.
        preview_of: Returns what that would do with a turn; None when there is nothing to resume.
        rewind: Goes back to a point of a turn; see `nb_agents.rewind`.
        preview_rewind: Returns what that would do.
        try_again: Goes on from a point several times.
    """

    resume: Callable[..., Run]
    preview_of: Callable[[RunView, TurnPaths], Preview | None]
    rewind: Callable[..., Any]
    preview_rewind: Callable[..., RewindPreview]
    try_again: Callable[..., Any]


class Run:
    """Handle of a run: watch it, stop it, wait for its result. Created by `nb_agents.start`.

    ``await run`` and `wait` return the final answer. All methods may be called from any thread.

    Args:
        run_id: The run's id in this process, such as "r1".
        turn: Runs the turn here, or follows one that another process runs.
        paths: The turn's paths.
        spec: The turn's spec, for a run in this process.
        where: A description of the process, for a run in another process.

    Attributes:
        resumer: Resumes a run that is over; set by `nb_agents.launch.api`.
        display: Shows a run in a notebook; set by `nb_agents`.
        id: The run's id.
        policy: The policy that `cancel` follows.
        options: The run's options.
        where: The description of another process; "" for a run in this one.
        functions: The functions of this process that the run's agents may call.
        began_at: When this process began the run, or first looked at it, in Unix seconds.
    """

    resumer: ClassVar[Resumer]
    display: ClassVar[RunDisplay]

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
        # A team from a file is loaded again on resume; another one is kept, with its keys.
        self._team = None if spec is None or spec.config else spec.team
        self.functions = spec.functions if spec else ()
        self.began_at = time.time()
        self._was_pressed = False
        self._preview: Preview | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.session}/{self.turn}: {self.state}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return the card; in words alone the repr is shown."""
        return {k: v for k, v in self.display.bundle(self).items() if k != "text/plain"}

    def _mime_(self) -> tuple[str, str]:
        """Return the card for marimo."""
        return "text/html", self.display.bundle(self)["text/html"]

    @property
    def panel(self) -> Any:
        """The run's live panel, an anywidget for any front end; it ends as the run's card."""
        return self.display.panel(self)

    # State ----------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The session's id."""
        return self._paths.session

    @property
    def turn(self) -> int:
        """The turn's number, from 1."""
        return self._paths.number

    @property
    def path(self) -> Path:
        """The turn's directory."""
        return self._paths.path

    @property
    def address(self) -> str:
        """What names the run among all runs, also of other roots: its id here, else its path."""
        return str(self.path) if self.where else self.id

    @property
    def view(self) -> RunView:
        """The turn's current state: answers, votes, calls; `timeline` has their times."""
        return self._turn.view

    @property
    def status(self) -> RunStatus:
        """The run's status, in OS Protocol's terms; people are shown `state`."""
        return self.view.status

    @property
    def state(self) -> RunState:
        """How the run stands, in the word that is shown everywhere, such as "timed out"."""
        return self.view.state

    @property
    def progress(self) -> RunProgress:
        """The current round or step, their number, and a message."""
        return progress_of(self.view, time.time())

    @property
    def logs(self) -> list[str]:
        """The log so far, a line for each event; `%agents log` shows it."""
        return log_lines(read_journal(self._paths.journal).events)

    @property
    def result(self) -> Any:
        """The final answer, or a recipe's outputs by name; None when it ended without one.

        Of a recipe without outputs it is the text of its last step.

        Raises:
            RunNotFinished: The run still works.
        """
        if not (self.view.is_over or self.is_over):
            raise RunNotFinished(self.id)
        return result_of(self.view)

    @property
    def receipt(self) -> Receipt:
        """What was finished, what was stopped, and the cost; complete once the run is over."""
        return receipt(self.view, str(self.path), still_runs)

    @property
    def preview(self) -> Preview | None:
        """What `resume` would do with a run that is over; None when there is nothing to resume.

        It is computed at the first access, which takes a while for a long recipe.
        """
        if self._preview is None and self.view.is_over:
            self._preview = self.resumer.preview_of(self.view, self._paths)
        return self._preview

    @property
    def timeline(self) -> Timeline:
        """The timeline so far, including that of the turns that this one resumed."""
        return self._turn.timeline

    def to_frame(self) -> Any:
        """Return the timeline as a pandas DataFrame: a row for each span and mark.

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
        """Block until the run ends. An interrupt stops the run, and the wait goes on.

        Args:
            timeout: Seconds after which to give up waiting; the run goes on. None means never.
            raise_on_stop: Whether to raise when there is no final answer.

        Returns:
            The final answer; "" when there is none.

        Raises:
            RunCancelled: The run was stopped; has the partial answers and the receipt.
            RunFailed: No agent submitted an answer.
            TimeoutError: ``timeout`` passed.
        """
        wait_interruptibly(self._turn.done, self.press, timeout)
        return self._outcome() if raise_on_stop else self.view.answer

    def __await__(self) -> Generator[Any, None, str]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> str:
        with interrupt_calls(self.press):
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
        kept = (self.id, _words(view), self.receipt, self.path)
        if not view.recipe:
            raise RunCancelled(*kept)
        hard = view.stop is not None and view.stop.level == "immediate"
        step = view.current_step or next(iter(view.next), "")
        raise CancellationRequestedError(*kept, self.session, hard, step)

    # Follow-up texts ------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Add a follow-up text to the task while the agents work on it.

        Each agent gets it with its next model request, and earlier votes no longer count. If the
        turn ends first, the text stays in the conversation.

        Args:
            text: At most `MAX_SAID` characters.

        Raises:
            UserError: The text is empty or too long, or the run is over.

        Example:
            run.say("Leave out the appendix, and write in British English")
        """
        if self.is_over or not self._turn.send(Say(checked_words(text))):
            raise UserError(
                f"Run {self.id} is over. "
                f"`%%agents --continue --session {self.session}` asks its agents something new."
            )

    # Gates ----------------------------------------------------------------------------------

    def approve(self, message: str = "", by: str = "") -> None:
        """Approve the gate that has waited longest.

        Args:
            message: A message for a recipe's later steps, as ``{{_approval_message}}``.
            by: The user who approves, for the record.

        Raises:
            UserError: No gate is waiting; for a question that wants a text see `answer`.
        """
        self.decide(True, message, by)

    def deny(self, message: str = "", by: str = "") -> None:
        """Deny the gate that has waited longest, which stops a recipe; a resume asks again.

        Args:
            message: The reason, for the record.
            by: The user who denies, for the record.

        Raises:
            UserError: No gate is waiting.
        """
        self.decide(False, message, by)

    def decide(self, approved: bool, message: str = "", by: str = "", gate: str = "") -> str:
        """Approve or deny; see `approve` and `deny`.

        Args:
            approved: Whether to approve.
            message: A message for a recipe's later steps.
            by: The user who decides; by default the user of this process.
            gate: Address of the gate; "" means the one that has waited longest. A question that
                wants a text is denied only when nothing else waits, and never approved.

        Returns:
            The gate's address.

        Raises:
            UserError: The gate is not waiting, or none is.
        """
        asked = Decide(approved, message, by, gate, wants="" if gate else "approval")
        chosen = self._decide(asked)
        if not chosen and not approved and not gate:
            chosen = self._decide(replace(asked, wants=""))
        if chosen:
            return chosen
        # The gates of a stopped run stay open for a resume.
        if not gate and self.view.gates and not self.is_over:
            raise UserError(
                f"Run {self.id} asks for a text: run.answer(text), or "
                f"`%agents answer {self.id} TEXT`, gives it."
            )
        what = f"at no gate {gate!r}" if gate else "for no approval"
        raise UserError(f"Run {self.id} waits {what}; it is {self.view.standing}.")

    def _decide(self, decision: Decide) -> str:
        """Send a decision; return the address of the gate that was waiting for it, or ""."""
        said, who = well_formed(decision.message), decision.by or getuser()
        sent = replace(decision, message=said, by=who)
        return "" if self.is_over else str(self._turn.send(sent) or "")

    def wait_for_approval(
        self, message: str | None = None, timeout: float | None = None
    ) -> ApprovalView:
        """Block until the user decides. The run itself goes on.

        Args:
            message: A question to ask at a gate of its own. Without it, this waits for the next
                decision at any other gate.
            timeout: Seconds after which to give up waiting. None means never.

        Returns:
            The decision.

        Raises:
            UserError: The run ended without a decision.
            TimeoutError: ``timeout`` passed.
        """
        if message is None:
            return self._next_approval(timeout)
        gate = self._answer_to(lambda turn: turn.approvals.ask_whether(message), timeout)
        return next(given for given in self.view.approvals if given.address == gate)

    def _next_approval(self, timeout: float | None) -> ApprovalView:
        seen, changed = len(self.view.approvals), Future[None]()

        def look(view: RunView) -> None:
            if (len(view.approvals) > seen or view.is_over) and not changed.done():
                changed.set_result(None)

        end = self.subscribe(look)
        look(self.view)
        try:
            wait_interruptibly(changed, self.press, timeout)
        finally:
            end()
        if len(self.view.approvals) == seen:
            raise UserError(f"Run {self.id} ended without asking; it is {self.view.standing}.")
        return self.view.approvals[seen]

    def wait_for_input(self, prompt: str, timeout: float | None = None) -> str:
        """Ask the user who watches the run for a text, and block until it is given.

        Args:
            prompt: The question; the panel shows it.
            timeout: Seconds after which to give up waiting. None means never.

        Returns:
            The user's text.

        Raises:
            UserError: The user refuses to answer, or the run ended first.
            TimeoutError: ``timeout`` passed.
        """
        asked = self._answer_to(lambda turn: turn.approvals.ask_for_text(prompt), timeout)
        return text_of(asked)

    def answer(self, text: str, by: str = "") -> None:
        """Answer the question for a text that has waited longest.

        Args:
            text: The answer.
            by: The user who answers, for the record.

        Raises:
            UserError: No question is waiting.
        """
        if not self._decide(Decide(True, text, by, wants="input")):
            raise UserError(f"Run {self.id} asks for no text; it is {self.view.standing}.")

    def _answer_to(
        self, question: Callable[[TurnWriter], Awaitable[_Answer]], timeout: float | None
    ) -> _Answer:
        turn = self._turn
        if not isinstance(turn, TurnWriter):
            what = f"lives in {self.where}" if self.where else "is over"
            raise UserError(f"Run {self.id} {what}: code here can't ask its person.")
        asked = turn.ask_outside(lambda: question(turn))
        try:
            answer = wait_interruptibly(asked, self.press, timeout)
        finally:
            # After a time-out, the question is withdrawn.
            asked.cancel()
        if answer is None:
            raise UserError(f"Run {self.id} ended without an answer; it is {self.view.standing}.")
        return answer

    # Tools ----------------------------------------------------------------------------------

    def offer(self, tools: Sequence[Callable[..., Any]]) -> None:
        """Offer functions of this process to a run in another process.

        From now on, and while this process lives, the run calls them instead of the functions that
        it was started with: after a restart of the kernel that started a detached run, or when a
        function has changed.

        Args:
            tools: Functions with the names that the run was started with.

        Raises:
            UserError: The run is in this process or over, or was started without such a tool.
        """
        if not self.where or self.is_over:
            state = "is over" if self.is_over else "lives in this process"
            raise UserError(f"Run {self.id} {state}: only one that goes on elsewhere takes tools.")
        offering = Offering(tools, self._paths.root)
        names = tuple(function.name for function in offering.functions)
        try:
            self._turn.send(
                OfferTools(offering.id, names, f"{place_of_this_process()} (pid {os.getpid()})")
            )
        except BaseException:
            offering.withdraw()
            raise
        offering.serve(self.path)

    # Pausing --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause at the next boundary: open calls finish, and no more are started.

        Meanwhile the status is "awaiting", the timeout's clock is stopped, and a stop works as
        usual.

        Raises:
            UserError: The run is over or stopping.
        """
        if self.is_over or not self._turn.send(Pause()):
            state = "over" if self.is_over else "stopping"
            raise UserError(f"Run {self.id} can't be paused: it is {state}.")

    def unpause(self) -> None:
        """Continue after a pause.

        Raises:
            UserError: The run is not paused.
        """
        if not self._goes_on():
            raise UserError(f"Run {self.id} is not paused; it is {self.view.standing}.")

    def _goes_on(self) -> bool:
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
        """Request a stop of the run or of one agent, without waiting for it; idempotent.

        Args:
            now: Whether to interrupt work in progress instead of letting it finish.
            agent: Id of the one agent to stop; the others go on.
            reason: The reason, for the record.
            source: The interface that the request came from, for the record.

        Returns:
            Whether this changed anything, and the run's state.

        Raises:
            UserError: The run has no such agent.
        """
        if self.is_over:
            return StopResult(False, "finished")
        level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
        if agent != "":  # which is no agent, and not the run either
            result: StopResult = self._turn.send(StopRequest(level, source, reason, agent or ""))
            if result.status != "unknown":
                return result
        known = ", ".join(self._turn.agents)
        raise UserError(f"Run {self.id} has no agent {agent!r}. It has: {known}.")

    async def cancel(self, reason: str | None = None) -> StopResult:
        """Stop the run according to its CancelPolicy, and wait until it is stopped and saved.

        Args:
            reason: The reason, for the record; by default the policy's.

        Returns:
            Whether this changed anything, and the run's state afterwards.
        """
        now, why = not self.policy.graceful, reason or self.policy.reason
        result = await asyncio.to_thread(self.stop, now, None, why)
        if result.status == "vetoed":
            return result
        await asyncio.wrap_future(self._turn.done)
        return StopResult(result.changed, "finished")

    def press(self) -> None:
        """Handle an interrupt: the first stops gracefully, the next immediately.

        Does not block, for signal handlers.
        """
        # Decided here, as by the time the loop runs, this interrupt may have stopped the sweep.
        now = self._was_pressed or self._turn.is_stopping
        self._was_pressed = True
        post(partial(self.stop, now, reason="interrupted", source=interrupt_source()))

    def resume(
        self,
        config: str | os.PathLike[str] | TeamSpec | None = None,
        *,
        agent: str = "",
        recipe: str | os.PathLike[str] | Recipe | None = None,
        context: Mapping[str, Any] | None = None,
        from_step: str = "",
        tools: Sequence[Callable[..., Any]] | None = None,
        options: RunOptions | None = None,
    ) -> Run:
        """Continue after a pause, if no arguments are given; else resume the turn as a new one.

        Args:
            config: The team; by default the run's own.
            agent: Id of an agent that failed or was stopped alone and is to take part again.
            recipe: A recipe that replaces the run's own.
            context: Values that are added to a recipe's context, or outputs of its steps.
            from_step: Id of a recipe's step that runs again, with all that comes after it.
            tools: Functions that all agents may call; by default the run's own.
            options: The options; by default the run's own. The session root stays the same.

        Returns:
            This run after a pause; else a new one; see `nb_agents.resume`.

        Raises:
            UserError: The turn is complete, or is not the session's last.
        """
        given = (config, agent, recipe, context, from_step, tools, options)
        if not any(given) and self._goes_on():
            return self
        last = turns_of(self.path.parent)[-1].number
        if last != self.turn:
            raise UserError(
                f"Turn {self.session}/{self.turn} is not the last of its session any more: "
                f"turn {last} is. `%agents resume {self.session}` goes on with that one."
            )
        return self.resumer.resume(
            self.session,
            self._team if config is None else config,
            agent=agent,
            recipe=recipe,
            context=context,
            from_step=from_step,
            tools=self.functions if tools is None else tools,
            options=replace(options or self.options, session_root=self.path.parent.parent),
        )

    @overload
    def rewind(
        self,
        to: str | int,
        say: str = "",
        *,
        agent: str = "",
        config: str | os.PathLike[str] | TeamSpec | None = None,
        model: str = "",
        times: None = None,
        now: bool = False,
        tools: Sequence[Callable[..., Any]] | None = None,
        options: RunOptions | None = None,
    ) -> Run: ...

    @overload
    def rewind(
        self,
        to: str | int,
        say: str = "",
        *,
        agent: str = "",
        config: str | os.PathLike[str] | TeamSpec | None = None,
        model: str = "",
        times: int,
        now: bool = False,
        tools: Sequence[Callable[..., Any]] | None = None,
        options: RunOptions | None = None,
    ) -> Any: ...

    def rewind(
        self,
        to: str | int,
        say: str = "",
        *,
        agent: str = "",
        config: str | os.PathLike[str] | TeamSpec | None = None,
        model: str = "",
        times: int | None = None,
        now: bool = False,
        tools: Sequence[Callable[..., Any]] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Go back to a point of this turn, and on from there in a new turn; this one stays.

        Args:
            to: The point; see `nb_agents.rewind`.
            say: A text for the agents.
            agent: The one agent that it is for; by default all.
            config: A team with the same agents; by default the run's own.
            model: The model that all agents ask from then on, as ``openai:gpt-5-mini``.
            times: How often to go on from there; see `nb_agents.rewind`.
            now: Whether to cut what is in flight, if the run is live.
            tools: Functions that all agents may call; by default the run's own.
            options: The options; by default the run's own. The session root stays the same.

        Returns:
            The new run; with ``times`` a sweep of them.

        Raises:
            UserError: There is no such point.

        Example:
            run.rewind(to="before ben's 2nd answer", say="Think of the cost, too.")
        """
        return self.resumer.rewind(
            f"{self.session}/{self.turn}",
            to,
            self._team if config is None else config,
            say=say,
            agent=agent,
            model=model,
            times=times,
            now=now,
            tools=self.functions if tools is None else tools,
            options=replace(options or self.options, session_root=self.path.parent.parent),
        )

    def preview_rewind(
        self,
        to: str | int,
        say: str = "",
        *,
        agent: str = "",
        config: str | os.PathLike[str] | TeamSpec | None = None,
        model: str = "",
        times: int | None = None,
        options: RunOptions | None = None,
    ) -> RewindPreview:
        """Return what `rewind` would keep, leave out and change, without doing it.

        Args:
            to: The point.
            say: A text for the agents.
            agent: The one agent that it is for; by default all.
            config: A team with the same agents; by default the run's own.
            model: The model that all agents would ask from then on, if another.
            times: How often to go on from there.
            options: The options; by default the run's own.

        Raises:
            UserError: `rewind` would refuse it, as when there is no such point or agent.
        """
        config = self._team if config is None else config
        given = {"config": config, "model": model, "options": options or self.options}
        return self.resumer.preview_rewind(self._paths, to, say, agent, times, **given)

    # Watching -------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[RunView], None]) -> Callable[[], None]:
        """Call a function with the view on changes, at most ten times a second, and at the end.

        Args:
            callback: Called in a worker thread, one call at a time.

        Returns:
            A function that unsubscribes it.
        """
        if self.is_over:
            return lambda: None
        return self._turn.subscribers.add(callback)

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a function once the run is over and everything is written, or now if it is.

        Args:
            callback: Called in the loop's thread or in this one; it must not block.
        """
        self._turn.done.add_done_callback(lambda _: callback())

    def events(self) -> AsyncIterator[Event]:
        """Yield all events of the turn: the past ones, then new ones until the turn ends.

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
            timeout: Seconds after which to give up waiting for the disk. None means never.

        Raises:
            StorageError: It fails again; everything stays in memory.
            TimeoutError: ``timeout`` passed.
        """
        if not isinstance(self._turn, TurnWriter):
            return
        # On the loop: the journal has one writer.
        error = submit(self._turn.save).result(timeout)
        if error is not None:
            raise StorageError(str(self.path), error.strerror or str(error))

    def save_elsewhere(self, root: str | os.PathLike[str]) -> Path:
        """Write the session below another directory, when its own disk does not take it.

        Args:
            root: A session root.

        Returns:
            The session's directory there.

        Raises:
            StorageError: It can't be written there, or is there already.
            UserError: The run is not over, or was not started in this process.
        """
        if not isinstance(self._turn, TurnWriter) or not self.is_over:
            raise UserError(
                f"Run {self.id} is {self.view.standing}: only one that has ended here can be."
            )
        with as_storage_error(root):
            return self._turn.save_elsewhere(Path(root).expanduser().absolute())

    async def execute(self) -> None:
        """Do the work; called once, on the loop, by `nb_agents.launch.here`."""
        assert isinstance(self._turn, TurnWriter)
        if (task := asyncio.current_task()) is not None:
            task.set_name(f"run {self.id}")
        await self._turn.run()

    def release(self) -> None:
        """Release the memory of a run that is over and saved; its files stay."""
        if isinstance(self._turn, TurnWriter) and self.is_over and self.view.is_saved:
            self._turn = TurnReader(self._paths, self._turn.crash)


def checked_words(text: str) -> str:
    """Return what a person says to agents as it is sent.

    Raises:
        UserError: It is empty or longer than `MAX_SAID`.
    """
    text = well_formed(text.strip())
    if not text:
        raise UserError("The text is empty. Write what the agents should know.")
    if len(text) > MAX_SAID:
        raise UserError(
            f"The text has {len(text)} characters; at most {MAX_SAID} are taken. Shorten it, "
            "or let the agents read it from a file."
        )
    return text


def _words(view: RunView) -> dict[str, str]:
    """Return each agent's latest answer, else the text that it never submitted, if any."""
    texts = {a.id: a.answer or a.unsubmitted for a in view.agents.values()}
    return {agent: text for agent, text in texts.items() if text}
