"""A runner of forty lines: words of an async generator are its answers."""

from collections.abc import AsyncIterator, Callable

from nb_agents.agents.ballot import Ballot
from nb_agents.agents.decisions import Answered, Decision
from nb_agents.agents.replay import PastRound
from nb_agents.agents.runner import Promise, Round
from nb_agents.tools.base import ToolError


class EchoRunner:
    """Says what a generator yields; votes for the first answer that is there.

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
