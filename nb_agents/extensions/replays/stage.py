"""Lets the agents of a replay work in the recorded order, and ends the replay at a difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from nb_agents.extensions.replays.differences import Difference, Replacement, first_difference
from nb_agents.extensions.replays.recording import Recording
from nb_agents.extensions.replays.script import ReplayStep, script_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

STUCK_S = 20.0
"""Seconds without progress after which a replay fails, because a recorded step does not happen."""


class ReplayStage:
    """The state of one replay, which its agents share. Used on the loop's thread.

    Args:
        recording: The recording.

    Attributes:
        script: The recorded requests, replies and results.
        requests: The number of requests that were answered from the recording.
        failure: How the replay differs from the recording, or "".
    """

    def __init__(self, recording: Recording) -> None:
        self.script = script_of(recording.events)
        self.requests = 0
        self.failure = ""
        self._failed = ""
        self._rules: tuple[Replacement, ...] = recording.rules
        self._positions = {step: number for number, step in enumerate(self.script.order)}
        self._next = _next_of_same_agent(self.script.order)
        self._done: set[ReplayStep] = set()
        self._first_open = 0
        self._changed: anyio.Event | None = None

    async def take(self, step: ReplayStep) -> bool:
        """Wait until it is the turn of a step, record it, and wait until its agent may continue.

        An agent may continue when all steps before its next one have happened, so it sees the same
        answers of other agents as in the recording.

        Returns:
            Whether the replay may continue.
        """
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
        self._notify()

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
        recorded = self.script.requests.get((agent, call))
        if recorded is None:
            self.fail(
                f"Agent {agent} makes request {call}, which the recording does not contain. "
                "Record the turn again if this is intended.",
                agent,
            )
            return
        difference = first_difference(recorded, messages, self._rules)
        if difference is not None:
            self.fail(_describe(agent, call, len(recorded), difference), agent)

    async def until_failure(self) -> None:
        """Wait until the replay fails."""
        while not self.failure:
            await self._wait()

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

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


def _next_of_same_agent(order: Sequence[ReplayStep]) -> dict[ReplayStep, ReplayStep]:
    found, following = dict[ReplayStep, ReplayStep](), dict[str, ReplayStep]()
    for step in reversed(order):
        if step.agent in following:
            found[step] = following[step.agent]
        following[step.agent] = step
    return found


def _describe(agent: str, call: int, count: int, difference: Difference) -> str:
    return (
        f"Request {call} of {agent} differs from the recording in message {difference.message} "
        f"of {count}. Record the turn again if this is intended.\n{difference.text}"
    )
