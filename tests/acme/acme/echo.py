"""A backend type: an agent that answers with its task, in capital letters."""

from acme.mood import MoodChanged
from nb_agents.extend import (
    AgentSpec,
    Answered,
    BackendType,
    Decision,
    PastRound,
    Promise,
    Round,
    RunnerType,
)

ECHO = BackendType(format=None)


class EchoRunner:
    """Plays the rounds of an agent of the type ``acme_echo``."""

    name = "echo"
    resumes: Promise = "starts again"

    async def play(self, round: Round, past: PastRound | None) -> Decision:
        round.scope.checkpoint()
        round.emit(MoodChanged(agent=round.agent, mood="loud"))
        async with round.call() as call:
            call.write(round.task.upper())
        round.decision = Answered(call.text)
        return round.decision

    async def close(self) -> None:
        """Nothing is open."""


def _make(agent: AgentSpec) -> EchoRunner:
    return EchoRunner()


ECHO_RUNNER = RunnerType(_make, EchoRunner.resumes)
