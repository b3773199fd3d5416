"""Lets the agents of a replay work in the recorded order, and ends the replay at a difference."""

from __future__ import annotations

import anyio

from nb_agents.extensions.replays.differences import Difference, Rule, first_difference
from nb_agents.extensions.replays.recording import Recording
from nb_agents.extensions.replays.script import Mark, script_of

STUCK_S = 20.0
"""Seconds without progress after which a replay fails, because a recorded step does not happen."""


class Stage:
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
        self._rules: tuple[Rule, ...] = recording.rules
        self._positions = {mark: number for number, mark in enumerate(self.script.order)}
        self._done: set[Mark] = set()
        self._first_open = 0
        self._changed: anyio.Event | None = None

    def mark(self, mark: Mark) -> None:
        """Record that a step has happened."""
        self._done.add(mark)
        order = self.script.order
        while self._first_open < len(order) and order[self._first_open] in self._done:
            self._first_open += 1
        self._notify()

    def fail(self, message: str) -> None:
        """End the replay. Only the first difference counts."""
        self.failure = self.failure or message
        self._notify()

    def check(self, agent: str, call: int, messages: list[object]) -> None:
        """Compare a request with the recorded one."""
        self.requests += 1
        recorded = self.script.requests.get((agent, call))
        if recorded is None:
            self.fail(
                f"Agent {agent} makes request {call}, which the recording does not contain. "
                "Record the turn again if this is intended."
            )
            return
        difference = first_difference(recorded, messages, self._rules)  # type: ignore[arg-type]
        if difference is not None:
            self.fail(_describe(agent, call, len(recorded), difference))

    async def until_failure(self) -> None:
        """Wait until the replay fails."""
        while not self.failure:
            await self._wait()

    async def turn_of(self, mark: Mark) -> bool:
        """Wait until all steps before this one have happened. Return whether the replay goes on."""
        position = self._positions.get(mark, 0)
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


def _describe(agent: str, call: int, count: int, difference: Difference) -> str:
    return (
        f"Request {call} of {agent} differs from the recording in message {difference.message} "
        f"of {count}. Record the turn again if this is intended.\n{difference.text}"
    )
