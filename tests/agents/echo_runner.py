"""A minimal agent runner: the text of an async generator is the answer."""

from collections.abc import AsyncIterator, Callable

from tests.kit.agents import Answered, Ballot, Decision, PastRound, Promise, Round
from tests.kit.tools import ToolError


class EchoRunner:
    """Answers with the text of a generator, and votes for the first existing answer.

    Args:
        words: Yields words, given what is asked and what had come before a stop.
    """

    resumes: Promise = "goes on"

    def __init__(self, words: Callable[[str, str], AsyncIterator[str]]) -> None:
        self.name = "echo"
        self._words = words

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        await round.scope.wait_if_paused()
        offer = round.context.offer()
        if offer.voters:
            try:
                Ballot(round).take("vote", {"agent_id": offer.voters[0], "reason": "first"})
            except ToolError:  # it may not vote yet
                pass
        if round.decision is None:
            before = past.words if past else ""
            async with round.call() as call:
                call.write(before)
                async for word in self._words(round.opening.asks[0], before):
                    call.write(word)
            round.decision = Answered(call.text)
        return round.decision

    async def close(self) -> None: ...
