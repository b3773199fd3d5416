"""Calls of tools that wait for a person; the gates of recipes are their driver's."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from nb_agents import events as ev
from nb_agents.agents.boundary import Boundary
from nb_agents.cancel import CancellationStatus, CancelToken, StopRequest
from nb_agents.tools.policy import Answer

__all__ = ["Approvals"]


class Approvals:
    """Asks a person about calls of tools, one gate a call. Lives on the loop.

    Args:
        token: The run's: a stop ends the waiting.
        emit: Takes what happens.
        stop: Stops the run.
    """

    def __init__(
        self,
        token: CancelToken,
        emit: Callable[[ev.Event], None],
        stop: Callable[[StopRequest], None],
    ) -> None:
        self._token = token
        self._emit = emit
        self._stop = stop
        self._waiting: dict[str, anyio.Event] = {}
        self._answers: dict[str, Answer] = {}
        self._asked = 0

    async def ask(self, agent: str, tool: str, about: str, stops: bool) -> Answer:
        """Ask whether a call may be made, and wait.

        Args:
            agent: Whose call.
            tool: The tool.
            about: Its arguments, in a few words.
            stops: Whether a denial stops the run.

        Raises:
            AgentStopped: A stop was asked for meanwhile.
        """
        self._asked += 1
        gate = f"{agent}: {tool} #{self._asked}"
        decided = self._waiting[gate] = anyio.Event()
        what = f"{tool}: {about}" if about else tool
        self._emit(ev.ApprovalAsked(step=gate, prompt=f"May {agent} call {what}?"))
        try:
            with Boundary(self._token) as boundary:
                await boundary.until(decided.wait)
        finally:
            del self._waiting[gate]
        answer = self._answers.pop(gate)
        if stops and not answer.approved:
            why = f"{gate} was denied"
            self._stop(StopRequest(CancellationStatus.REQUESTED, "approval", why))
        self._token.checkpoint()
        return answer

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Decide a call.

        Args:
            approved: Whether it may be made.
            message: What the person says to the model.
            by: Who decides.
            gate: Which one, or "" for the one that has waited longest.

        Returns:
            The gate, or "" when it does not wait.
        """
        open_ = [name for name in self._waiting if name not in self._answers]
        chosen = gate or (open_[0] if open_ else "")
        if chosen not in open_:
            return ""
        self._answers[chosen] = Answer(approved, message)
        self._emit(ev.ApprovalGiven(step=chosen, approved=approved, message=message, by=by))
        self._waiting[chosen].set()
        return chosen
