"""Lets the agents of a replay work in the recorded order, and ends the replay at a difference."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from nb_agents import events as ev
from nb_agents.cancel import checkpoint
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.spec import start_directory
from nb_agents.config.team import AgentSpec
from nb_agents.errors import UserError
from nb_agents.events.turn_events import Command
from nb_agents.extensions.replays.differences import Difference, Replacement, first_difference
from nb_agents.extensions.replays.recording import Recording, ReplayError
from nb_agents.extensions.replays.script import ReplayStep, StepNumbers, script_of
from nb_agents.masking import Mask
from nb_agents.models.backend import BrokenReplyError
from nb_agents.models.retry import Wait
from nb_agents.process.command import Finished

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from nb_agents.agents.runner import AgentRunner

STUCK_S = 20.0
"""Seconds without progress after which a replay fails, because a recorded step does not happen."""


class RecordedFailureError(BrokenReplyError):
    """Raised in a request whose recorded attempt failed, or that differs from the recorded one.

    Attributes:
        is_retried: Whether the request was sent again.
    """

    def __init__(self, text: str, *, is_retried: bool = False) -> None:
        super().__init__(text)
        self.is_retried = is_retried


class ReplayStage:
    """The state of one replay, which its agents share. Used on the loop's thread.

    It is an `nb_agents.turns.stand_in.StandIn`.

    Args:
        recording: The recording.
        runner: Returns the runner of an agent.
        has_recipes: Whether the recipes that steps call come from the recording.

    Attributes:
        script: The recorded requests, replies and results.
        requests: The number of requests that were answered from the recording.
        failure: How the replay differs from the recording, or "".
    """

    def __init__(
        self,
        recording: Recording,
        runner: Callable[[ReplayStage, AgentSpec], AgentRunner],
        has_recipes: bool = True,
    ) -> None:
        self.script = script_of(recording.events, recording.past)
        self.requests = 0
        self.failure = ""
        self._failed = ""
        self._runner, self._has_recipes = runner, has_recipes
        self._rules = (*recording.rules, *_directories(recording))
        self._positions = {step: number for number, step in enumerate(self.script.order)}
        sent = self.script.commands.keys() | self.script.verbatim.keys()
        self._next = _next_of_same_agent([s for s in self.script.order if s not in sent])
        self._seen = StepNumbers()
        self._done: set[ReplayStep] = set()
        self._first_open = 0
        self._sent = -1
        self._sending: set[asyncio.Task[None]] = set()
        self._changed: anyio.Event | None = None
        self._take: Callable[[Command], object] | None = None
        self._emit: Callable[[ev.Event], None] = lambda event: None

    # What the turn calls ---------------------------------------------------------------------

    def attach(self, take: Callable[[Command], object], emit: Callable[[ev.Event], None]) -> None:
        """Receive the functions of the turn; see `StandIn`."""
        self._take, self._emit = take, emit
        self._send_commands()

    def observe(self, event: ev.Event) -> None:
        """Note a step that the turn has recorded."""
        if (step := self._seen.step_of(event)) is None:
            return
        if step in self._positions:
            self.done(step)
        elif isinstance(event, ev.StopRequested):
            self.fail("The replay was stopped.")

    def runner(self, agent: AgentSpec) -> AgentRunner:
        """Return the runner of an agent."""
        return self._runner(self, agent)

    def is_usable(self, agent: AgentSpec) -> bool:
        """Return whether the recorded turn used an agent's model."""
        return (agent.backend.model or agent.backend.type) in self.script.models

    async def retry_after(
        self, error: Exception, attempt: int, waited_s: float = 0.0
    ) -> Wait | None:
        """Return no delay if the recorded request was sent again, and None otherwise."""
        return Wait(0.0) if isinstance(error, RecordedFailureError) and error.is_retried else None

    def error(self) -> ReplayError | None:
        """Return the difference from the recording as an error, or None."""
        return ReplayError(self.failure) if self.failure else None

    def recipe(self, address: str) -> ev.Event | None:
        """Return the recorded recipe that a step calls; see `StandIn`."""
        if not self._has_recipes:
            return None
        if (loaded := self.script.recipes.get(address)) is None:
            raise UserError("The recording does not contain the recipe that this step calls.")
        return replace(loaded, seq=0, at=0.0)

    async def command(self, address: str, attempt: int, write: Callable[[str], None]) -> Finished:
        """Return the recorded result of a step's command; see `StandIn`."""
        self.done(ReplayStep("start of command", address, attempt))
        recorded = self.script.outputs.get((address, attempt))
        if recorded is None:
            await self.until_stop()
        await self.take(ReplayStep("end of command", address, attempt))
        if self.failure or recorded is None:
            raise OSError(self.reason_of(address))
        if isinstance(recorded, ev.StepFailed):
            raise OSError(recorded.error)
        write(str(recorded.output))
        return Finished(recorded.exit_code, str(recorded.output), "", "finished")

    # What the agents call --------------------------------------------------------------------

    async def take(self, step: ReplayStep) -> bool:
        """Wait until it is the turn of a step, record it, and wait until its agent may continue.

        An agent may continue when all steps before its next one have happened, so it sees the same
        answers of other agents as in the recording.

        Returns:
            Whether the replay may continue.
        """
        # The recorded call ended by itself, even if an immediate stop came just before that.
        with anyio.CancelScope(shield=True):
            if await self.turn_of(step):
                self.done(step)
                if (then := self._next.get(step)) is not None:
                    await self.turn_of(then)
        return not self.failure

    def done(self, step: ReplayStep) -> None:
        """Record that a step has happened."""
        self._done.add(step)
        order = self.script.order
        while self._first_open < len(order) and order[self._first_open] in self._done:
            self._first_open += 1
        self._send_commands()
        self._notify()

    def upcoming(self, agent: str) -> ReplayStep | None:
        """Return the next step of an agent that has not happened."""
        steps = (step for step in self.script.order[self._first_open :] if step.agent == agent)
        return next((step for step in steps if step not in self._done), None)

    def is_summary(self, step: ReplayStep) -> bool:
        """Return whether a request asks for a summary."""
        return (step.agent, int(str(step.name).partition(".")[0])) in self.script.summaries

    def ends_undecided(self, agent: str, number: int) -> bool:
        """Return whether a stop ended a recorded round before its last reply was read."""
        step = self.upcoming(agent)
        is_end = step is not None and step.kind == "agent ended"
        return is_end and (agent, number) not in self.script.decisions

    def fail(self, message: str, agent: str = "") -> None:
        """End the replay. Only the first difference counts."""
        if not self.failure:
            self.failure, self._failed = message, agent
        self._notify()

    def reason_of(self, agent: str) -> str:
        """Return why an agent ends: the difference, if its request differs."""
        if self._failed in ("", agent):
            return self.failure
        return f"The replay ended, because {self._failed} differs from the recording."

    def check(self, agent: str, call: int, messages: Sequence[ModelMessage]) -> None:
        """Compare a request with the recorded one."""
        self.requests += 1
        if (agent, call) in self.script.summaries:
            return  # the next request contains the recorded summary
        recorded = self.script.requests.get((agent, call))
        if recorded is None:
            self.fail(
                f"Agent {agent} makes request {call}, which the recording does not contain. "
                "Record it again if this is intended.",
                agent,
            )
            return
        self._compare(f"Request {call}", agent, recorded, messages)

    def check_opening(
        self,
        agent: str,
        number: int,
        recorded: Sequence[ModelMessage],
        sent: Sequence[ModelMessage],
    ) -> None:
        """Compare the first messages of a round whose runner is not simulated."""
        self._compare(f"Round {number}", agent, recorded, sent)

    def _compare(
        self,
        what: str,
        agent: str,
        recorded: Sequence[ModelMessage],
        sent: Sequence[ModelMessage],
    ) -> None:
        hide = Mask(secrets_of_environment()).text
        difference = first_difference(recorded, sent, self._rules, hide)
        if difference is not None:
            self.fail(_describe(f"{what} of {agent}", len(recorded), difference), agent)

    async def until_failure(self) -> None:
        """Wait until the replay fails."""
        while not self.failure:
            await self._wait()

    async def until_stop(self, step: ReplayStep | None = None) -> None:
        """Wait until a recorded stop ends the current call, or the replay fails.

        Args:
            step: The recorded end of the call, if it has one.

        Raises:
            AgentStopped: A graceful stop ends the call.
        """
        if step is not None and step in self._positions:
            await self.turn_of(step)
            await anyio.lowlevel.checkpoint()  # an immediate stop cancels the call
            checkpoint()
        await self.until_failure()

    async def until_stop_before(self, round: ReplayStep) -> None:
        """Wait for the stop that ended an agent before a round, if any.

        Raises:
            AgentStopped: The stop ends the agent.
        """
        stop = self.script.stops_between_rounds.get(round.agent)
        if stop is None or round in self._positions:
            return
        while stop not in self._done and not self.failure:
            await self._wait()
        checkpoint()

    async def turn_of(self, step: ReplayStep) -> bool:
        """Wait until all earlier steps have happened. Return whether it may continue."""
        position = self._positions.get(step, 0)
        while not self.failure and self._first_open < position:
            before = self._first_open
            with anyio.move_on_after(STUCK_S):
                await self._wait()
                continue
            if before == self._first_open:
                missing = self.script.order[before]
                self.fail(f"The replay does not reach a recorded step: {missing}.")
        return not self.failure

    # Commands --------------------------------------------------------------------------------

    def _send_commands(self) -> None:
        """Send the command that the recording has at this point, if any."""
        order, position = self.script.order, self._first_open
        if self._take is None or position in (self._sent, len(order)):
            return
        step = order[position]
        if step in self.script.commands or step in self.script.verbatim:
            self._sent = position
            # Not now: this is called while another event is recorded.
            task = asyncio.get_running_loop().create_task(self._send(step))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, step: ReplayStep) -> None:
        if step in self._done:  # the turn did it without a command, as when all agents stopped
            return
        if (event := self.script.verbatim.get(step)) is not None:
            self._emit(replace(event, seq=0, at=0.0))
            return
        assert self._take is not None
        try:
            self._take(self.script.commands[step])
        except UserError as exc:
            self.fail(f"The replay can't repeat a recorded step: {step}. {exc}")
        # A command without an effect, such as a stop that has already been requested.
        self.done(step)

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


def _directories(recording: Recording) -> Iterator[Replacement]:
    """Yield rules for the directories in which a recipe was started then and now."""
    recorded = recording.started.context.get("_project")
    for path in (recorded, str(start_directory())) if isinstance(recorded, str) else ():
        yield Replacement(rf"{re.escape(path)}(?![\w-])", "<project>")


def _next_of_same_agent(order: Sequence[ReplayStep]) -> dict[ReplayStep, ReplayStep]:
    found, following = dict[ReplayStep, ReplayStep](), dict[str, ReplayStep]()
    for step in reversed(order):
        if step.agent in following:
            found[step] = following[step.agent]
        following[step.agent] = step
    return found


def _describe(what: str, count: int, difference: Difference) -> str:
    return (
        f"{what} differs from the recording in message {difference.message} of {count}. "
        f"Record it again if this is intended.\n{difference.text}"
    )
