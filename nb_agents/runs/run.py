"""A run: the handle of one turn that is being worked on, from any thread.

The work happens on the background loop (`nb_agents.runs.turn`); all that reaches it from here is a
command.
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
from typing import TYPE_CHECKING, Any, TypeVar

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
    StorageError,
    UserError,
)
from nb_agents.events import Event
from nb_agents.events.turn_events import Continue, Decide, OfferTools, Pause, Say
from nb_agents.options import RunOptions
from nb_agents.runs.approvals import text_of
from nb_agents.runs.live_turns import place_of_this_process
from nb_agents.runs.loop import interrupt_calls, post, submit
from nb_agents.runs.offering import Offering
from nb_agents.runs.reader import TurnReader
from nb_agents.runs.resumption import Preview, preview_of
from nb_agents.runs.status import Progress, failure_of, log_lines, progress_of, result_of
from nb_agents.runs.turn import Turn
from nb_agents.runs.turn_spec import TurnSpec
from nb_agents.session.journal import follow, read_journal
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.tools.threads import still_runs
from nb_agents.unicode import well_formed
from nb_agents.view.receipt import Receipt, receipt
from nb_agents.view.run_view import RunStatus, RunView
from nb_agents.view.steps import ApprovalView
from nb_agents.view.timeline import COLUMNS, Timeline

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

__all__ = ["Run"]

_Answer = TypeVar("_Answer")

MAX_SAID = 20_000
"""Characters of one follow-up text: every agent reads it again in each of its rounds."""


class Run:
    """Handle of a run: watch it, stop it, wait for its result. Made by `nb_agents.start`.

    ``await run`` and `wait` give the final answer. All methods may be called from any thread.

    Args:
        run_id: Its name in this process, such as "r1".
        turn: Writes the turn here, or reads what another process writes.
        paths: Where the turn is.
        resume: Goes on with a session's last turn; see `nb_agents.resume`.
        spec: Of a run of this process: what it does.
        where: Of a run of another process: where it lives, in words.

    Attributes:
        id: As given.
        policy: How `cancel` stops it.
        options: How it goes.
        where: As given; "" for a run of this process.
        functions: Those of this process that its agents may call.
    """

    def __init__(
        self,
        run_id: str,
        turn: Turn | TurnReader,
        paths: TurnPaths,
        resume: Callable[..., Run],
        spec: TurnSpec | None = None,
        where: str = "",
    ) -> None:
        self.id = run_id
        self.where = where
        self.policy = spec.cancel if spec else CancelPolicy()
        self.options = spec.options if spec else RunOptions()
        self._turn: Turn | TurnReader = turn
        self._paths = paths
        self._resume = resume
        # A team from a file is read anew: its keys are there. Another has them in memory alone.
        self._team = None if spec is None or spec.config else spec.team
        self.functions = spec.functions if spec else ()
        self._was_pressed = False
        self._preview: Preview | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.session}/{self.turn}: {self.status}>"

    # What it is -----------------------------------------------------------------------------

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
    def view(self) -> RunView:
        """The turn's current state: answers, votes, calls; `timeline` has their times."""
        return self._turn.view

    @property
    def status(self) -> RunStatus:
        """The run's status, in OS Protocol's words; people are shown "stopped" for "cancelled"."""
        return self.view.status

    @property
    def progress(self) -> Progress:
        """The current round or step, of how many, with a message."""
        return progress_of(self.view, time.time())

    @property
    def logs(self) -> list[str]:
        """What happened so far, one line an event; `%agents log` shows it."""
        return log_lines(read_journal(self._paths.journal).events)

    @property
    def result(self) -> Any:
        """The final answer, or a recipe's outputs by name; None while there is none."""
        return result_of(self.view)

    @property
    def receipt(self) -> Receipt:
        """What finished, what was stopped, what it cost; complete once the run is over."""
        return receipt(self.view, str(self.path), still_runs)

    @property
    def preview(self) -> Preview | None:
        """Of a run that is over: what `resume` would do; None when there is nothing to resume.

        Found out when it is first asked for, which takes its time for a long recipe.
        """
        if self._preview is None and self.view.is_over:
            self._preview = preview_of(self.view, self._paths)
        return self._preview

    @property
    def timeline(self) -> Timeline:
        """What happened and when, of the turns that this one resumed too; grows while it runs."""
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
        """Whether it has ended and everything is written."""
        return self._turn.is_over

    # Waiting --------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None, *, raise_on_stop: bool = True) -> str:
        """Wait for the end, blocking. An interrupt stops the run, and the wait goes on.

        Args:
            timeout: Seconds after which to give up waiting; the run goes on. None means never.
            raise_on_stop: Whether to raise when there is no final answer.

        Returns:
            The final answer; "" when there is none.

        Raises:
            RunCancelled: It was stopped; carries what was kept.
            RunFailed: No agent gave an answer.
            TimeoutError: ``timeout`` passed.
        """
        with interrupt_calls(self.press):
            self._turn.done.result(timeout)
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
        step = view.current_step or self._turn.next_step
        raise CancellationRequestedError(*kept, self.session, hard, step)

    # Saying ---------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Add a follow-up text to the task while the agents work on it.

        Each agent reads it with its next model request, and what was voted before does not count.
        When the turn ends before, the text stays in the conversation.

        Args:
            text: At most `MAX_SAID` characters.

        Raises:
            UserError: The text is empty or too long, or the run is over.

        Example:
            run.say("Leave out the appendix, and write in British English")
        """
        text = well_formed(text.strip())
        if not text:
            raise UserError("The text is empty. Write what the agents are to know.")
        if len(text) > MAX_SAID:
            raise UserError(
                f"The text has {len(text)} characters; at most {MAX_SAID} are taken. Shorten it, "
                "or let the agents read it from a file."
            )
        if self.is_over or not self._turn.send(Say(text)):
            raise UserError(
                f"Run {self.id} is over. "
                f"`%%agents --continue --session {self.session}` asks its agents something new."
            )

    # Gates ----------------------------------------------------------------------------------

    def approve(self, message: str = "", by: str = "") -> None:
        """Approve what has waited longest: a recipe goes on at its gate.

        Args:
            message: What later steps are told, as ``{{_approval_message}}``.
            by: Who says so, for the record.

        Raises:
            UserError: No gate is waiting; for a question for a text see `answer`.
        """
        # A stopped run keeps its gates for a resume.
        gates = () if self.is_over else self.view.gates.values()
        gate = next((g.address for g in gates if g.wants == "approval"), "")
        if gates and not gate:
            raise UserError(f"Run {self.id} asks for a text: run.answer(text) gives it.")
        self.decide(True, message, by, gate)

    def deny(self, message: str = "", by: str = "") -> None:
        """Stop a recipe at the gate that has waited longest; a resume asks again.

        Args:
            message: Why, for the record.
            by: Who says so, for the record.

        Raises:
            UserError: No gate is waiting.
        """
        self.decide(False, message, by)

    def decide(self, approved: bool, message: str = "", by: str = "", gate: str = "") -> None:
        """Approve or deny; see `approve` and `deny`.

        Args:
            approved: Whether the recipe goes on.
            message: What later steps are told.
            by: Who says so; by default the user who runs this process.
            gate: Address of the gate; "" is the one that has waited longest.

        Raises:
            UserError: The gate is not waiting, or none is.
        """
        who = by or getuser()
        said = well_formed(message)
        if self.is_over or not self._turn.send(Decide(approved, said, who, gate)):
            what = f"at no gate {gate!r}" if gate else "for no approval"
            raise UserError(f"Run {self.id} waits {what}; it is {self.status}.")

    def wait_for_approval(
        self, message: str | None = None, timeout: float | None = None
    ) -> ApprovalView:
        """Wait, blocking, for a person's decision. The run itself goes on.

        Args:
            message: What to ask, at a gate of its own. Without it, the next decision at any other
                gate is waited for.
            timeout: Seconds after which to give up waiting. None means never.

        Returns:
            The decision.

        Raises:
            UserError: The run ended without one.
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
            with interrupt_calls(self.press):
                changed.result(timeout)
        finally:
            end()
        if len(self.view.approvals) == seen:
            raise UserError(f"Run {self.id} ended without asking; it is {self.status}.")
        return self.view.approvals[seen]

    def wait_for_input(self, prompt: str, timeout: float | None = None) -> str:
        """Ask the person who watches the run for a text, and wait, blocking.

        Args:
            prompt: The question; the panel shows it.
            timeout: Seconds after which to give up waiting. None means never.

        Returns:
            What the person wrote.

        Raises:
            UserError: The person refuses to answer, or the run ended before.
            TimeoutError: ``timeout`` passed.
        """
        asked = self._answer_to(lambda turn: turn.approvals.ask_for_text(prompt), timeout)
        return text_of(asked)

    def answer(self, text: str, by: str = "") -> None:
        """Answer the question for a text that has waited longest.

        Args:
            text: The answer.
            by: Who says so, for the record.

        Raises:
            UserError: No question is waiting.
        """
        gates = self.view.gates.values()
        gate = next((g.address for g in gates if g.wants == "input"), "")
        if not gate:
            raise UserError(f"Run {self.id} asks for no text; it is {self.status}.")
        self.decide(True, text, by, gate)

    def _answer_to(
        self, question: Callable[[Turn], Awaitable[_Answer]], timeout: float | None
    ) -> _Answer:
        turn = self._turn
        if not isinstance(turn, Turn):
            what = f"lives in {self.where}" if self.where else "is over"
            raise UserError(f"Run {self.id} {what}: code here can't ask its person.")
        asked = turn.ask_outside(lambda: question(turn))
        try:
            with interrupt_calls(self.press):
                answer = asked.result(timeout)
        finally:
            # Whoever has given up waiting asks nobody any more.
            asked.cancel()
        if answer is None:
            raise UserError(f"Run {self.id} ended without an answer; it is {self.status}.")
        return answer

    # Tools ----------------------------------------------------------------------------------

    def offer(self, tools: Sequence[Callable[..., Any]]) -> None:
        """Offer functions of this process to a run that lives elsewhere, by the names it knows.

        Its calls of them come here from now on, as long as this process lives: after a restart of
        the kernel that a detached run was started from, or when a function has changed.

        Args:
            tools: Functions of the names that the run was started with.

        Raises:
            UserError: The run lives here or is over, or was started without such a tool.
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
        """Pause at the next boundary: calls in flight finish, none begins.

        The status is "awaiting" meanwhile. The time does not count, and a stop works as ever.

        Raises:
            UserError: The run is over or stopping.
        """
        if self.is_over or not self._turn.send(Pause()):
            state = "over" if self.is_over else "stopping"
            raise UserError(f"Run {self.id} can't be paused: it is {state}.")

    # Stopping -------------------------------------------------------------------------------

    def stop(
        self,
        now: bool = False,
        agent: str | None = None,
        reason: str = "",
        *,
        source: StopSource = "api",
    ) -> StopResult:
        """Ask the run, or one agent of it, to stop. Returns at once; idempotent.

        Args:
            now: Cut the work in hand instead of letting it finish.
            agent: Id of the one agent to stop; the others go on.
            reason: Why, for the record.
            source: The door that it came through, for the record.

        Returns:
            Whether this changed anything, and where the run stands.

        Raises:
            UserError: No agent of that id.
        """
        turn = self._turn
        if agent is not None and agent not in turn.agents:
            known = ", ".join(turn.agents)
            raise UserError(f"Run {self.id} has no agent {agent!r}. It has: {known}.")
        if turn.view.is_over or self.is_over:
            return StopResult(False, "finished")
        level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
        return turn.send(StopRequest(level, source, reason, agent or ""))  # type: ignore[no-any-return]

    async def cancel(self, reason: str | None = None) -> StopResult:
        """Stop the run as its CancelPolicy says, and wait until it is stopped and saved.

        Args:
            reason: Why, for the record; by default the policy's.

        Returns:
            Whether this changed anything, and where the run stands afterwards.
        """
        now, why = not self.policy.graceful, reason or self.policy.reason
        result = await asyncio.to_thread(self.stop, now, None, why)
        if result.status == "vetoed":
            return result
        await asyncio.wrap_future(self._turn.done)
        return StopResult(result.changed, "finished")

    def press(self) -> None:
        """Take one interrupt: graceful first, then immediate. Only posts; for signal handlers."""
        # Decided here: once the loop comes to it, the same interrupt may have stopped its sweep.
        now = self._was_pressed or self.view.stop is not None
        self._was_pressed = True
        post(partial(self.stop, now, reason="interrupted", source="interrupt"))

    def resume(
        self,
        config: str | os.PathLike[str] | TeamSpec | None = None,
        *,
        agent: str = "",
        recipe: str | os.PathLike[str] | Recipe | None = None,
        context: Mapping[str, Any] | None = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        options: RunOptions | None = None,
    ) -> Run:
        """Go on with this run's turn: after a pause if nothing is given, else as a new turn.

        Args:
            config: The team; by default the run's own.
            agent: Id of an agent that failed or was stopped alone and takes part again.
            recipe: Takes the place of the run's own.
            context: Values that a recipe goes on with besides.
            tools: Functions that all agents may call; by default the run's own.
            options: How it goes; by default as the run did. The session stays where it is.

        Returns:
            This run after a pause; else a new one; see `nb_agents.resume`.

        Raises:
            UserError: The turn is complete, or is not the session's last.
        """
        given = (config, agent, recipe, context, tools, options)
        if self.view.is_paused and not any(given) and self._turn.send(Continue()):
            return self
        last = turns_of(self.path.parent)[-1].number
        if last != self.turn:
            raise UserError(
                f"Turn {self.session}/{self.turn} is not the last of its session any more: "
                f"turn {last} is. `%agents resume {self.session}` goes on with that one."
            )
        return self._resume(
            self.session,
            self._team if config is None else config,
            agent=agent,
            recipe=recipe,
            context=context,
            tools=self.functions if tools is None else tools,
            options=replace(options or self.options, session_root=self.path.parent.parent),
        )

    # Watching -------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[RunView], None]) -> Callable[[], None]:
        """Call back with the view at most ten times a second while there is news, and at the end.

        Args:
            callback: Called in a worker thread, never twice at a time.

        Returns:
            A function that ends it.
        """
        if self.is_over:
            return lambda: None
        return self._turn.subscribers.add(callback)

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call back once the run is over and everything is written; at once if it is.

        Args:
            callback: Called in the loop's thread or this one: it must not block.
        """
        self._turn.done.add_done_callback(lambda _: callback())

    def events(self) -> AsyncIterator[Event]:
        """Give all events of the turn: those so far, then each that comes, to the turn's end.

        Example:
            async for event in run.events():
                print(event.kind)
        """
        return follow(self.path)

    @property
    def is_unsaved(self) -> bool:
        """Whether it is over and only memory has all of it, because saving failed."""
        return isinstance(self._turn, Turn) and self.is_over and not self.view.is_saved

    def save(self, timeout: float | None = None) -> None:
        """Write all files again after saving failed.

        Args:
            timeout: Seconds after which to give up waiting for the disk. None means never.

        Raises:
            StorageError: It still fails; memory keeps it.
            TimeoutError: ``timeout`` passed.
        """
        if not isinstance(self._turn, Turn):
            return
        # On the loop: the journal has one writer.
        error = submit(self._turn.save).result(timeout)
        if error is not None:
            raise StorageError(str(self.path), error.strerror or str(error))

    async def execute(self) -> None:
        """Do the work; called once, on the loop, by `nb_agents.runs.live_runs`."""
        assert isinstance(self._turn, Turn)
        if (task := asyncio.current_task()) is not None:
            task.set_name(f"run {self.id}")
        await self._turn.run()

    def release(self) -> None:
        """Drop from memory a run that is over and saved; its files stay."""
        if isinstance(self._turn, Turn) and self.is_over and self.view.is_saved:
            self._turn = TurnReader(self._paths, self._turn.crash)


def _words(view: RunView) -> dict[str, str]:
    """For each agent with words to show: its latest answer, else all that it wrote."""
    texts = {a.id: a.answer or a.unsubmitted for a in view.agents.values()}
    return {agent: text for agent, text in texts.items() if text}
