"""What waits for a person: calls of tools, and questions of code; a recipe has its own gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

import anyio

from nb_agents import events as ev
from nb_agents.agents.stop_scope import StopScope, person_asked
from nb_agents.cancel import CancellationStatus, CancelToken, StopRequest, current_token
from nb_agents.errors import UserError
from nb_agents.runs.loop import post
from nb_agents.tools.base import current_call
from nb_agents.tools.policy import ApprovalConfig, Decision, Tally

__all__ = ["Approvals", "ask", "bind_asker", "denial", "text_of"]

_current: ContextVar[Callable[[str], str] | None] = ContextVar("nb_agents_asker", default=None)


@dataclass
class _Question:
    """What is asked at a gate, and what came so far."""

    wants: Literal["approval", "input"]
    tally: Tally
    decided: anyio.Event = field(default_factory=anyio.Event)
    answer: Decision | None = None


class Approvals:
    """Asks a person, one gate a question. Lives on the loop.

    Args:
        token: The run's: a stop ends the waiting.
        emit: Takes what happens.
        stop: Stops the run.
        config: Who approves, and how long is waited.
    """

    def __init__(
        self,
        token: CancelToken,
        emit: Callable[[ev.Event], None],
        stop: Callable[[StopRequest], None],
        config: ApprovalConfig | None = None,
    ) -> None:
        self._token = token
        self._emit = emit
        self._stop = stop
        self._config = config or ApprovalConfig()
        self._waiting: dict[str, _Question] = {}
        self._asked = 0

    async def ask(self, agent: str, tool: str, about: str, stops: bool) -> Decision:
        """Ask whether a call may be made, and wait.

        Args:
            agent: Whose call.
            tool: The tool.
            about: Its arguments, in a few words.
            stops: Whether a denial stops the run.

        Raises:
            AgentStopped: A stop was asked for meanwhile.
        """
        gate = self._gate(f"{agent}: {tool}")
        what = f"{tool}: {about}" if about else tool
        # Its caller may be stopped alone.
        answer = await self._wait(gate, f"May {agent} call {what}?", "approval", current_token())
        if stops and not answer.approved:
            self._stop(denial(gate, gate, answer))
        self._token.checkpoint()
        return answer

    async def ask_whether(self, message: str) -> str:
        """Ask for an approval, and wait; `RunView.approvals` has the decision.

        Args:
            message: The question.

        Returns:
            The gate.

        Raises:
            AgentStopped: A stop was asked for meanwhile.
        """
        gate = self._gate("approval")
        await self._wait(gate, message, "approval")
        return gate

    async def ask_for_text(self, prompt: str) -> Decision:
        """Ask for a text, and wait.

        Args:
            prompt: The question.

        Returns:
            The text as its message; not approved when the person refused to answer.

        Raises:
            AgentStopped: A stop was asked for meanwhile.
        """
        # Whose tool asks, if one does: while it waits, it does nothing else.
        agent = current_call().agent
        return await self._wait(
            self._gate(f"{agent}: input" if agent else "input"), prompt, "input"
        )

    def close(self) -> None:
        """Deny what waits when the run is over; a stopped one leaves it open for a resume."""
        for gate, question in self._waiting.items():
            if question.answer is None and not self._token.is_stopping:
                self._conclude(gate, False, "the run is over", "")

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Decide a question, or count towards it.

        Args:
            approved: Whether it may be.
            message: What the person says.
            by: Who decides.
            gate: Which one, or "" for the one that has waited longest.

        Returns:
            The gate, or "" when it does not wait.

        Raises:
            UserError: This person is not among the approvers.
        """
        chosen = self._chosen(gate)
        if not chosen:
            return ""
        question = self._waiting[chosen]
        decision: Decision | None = Decision(approved, message, by)
        if question.wants == "approval":
            decision = question.tally.take(approved, message, by)
        if decision is None:
            self._emit(ev.Noticed(text=f"{chosen}: {question.tally}."))
        else:
            self._conclude(chosen, *decision)
        return chosen

    def _gate(self, name: str) -> str:
        self._asked += 1
        return f"{name} #{self._asked}"

    def _chosen(self, gate: str) -> str:
        open_ = [name for name, each in self._waiting.items() if each.answer is None]
        chosen = gate or (open_[0] if open_ else "")
        return chosen if chosen in open_ else ""

    async def _wait(
        self,
        gate: str,
        prompt: str,
        wants: Literal["approval", "input"],
        caller: CancelToken | None = None,
    ) -> Decision:
        question = self._waiting[gate] = _Question(wants, Tally(self._config))
        own = caller or self._token
        timeout_s = self._config.timeout if wants == "approval" else None
        self._emit(
            ev.ApprovalAsked(
                step=gate,
                prompt=prompt,
                timeout_s=timeout_s or 0.0,
                default=self._config.default,
                wants=wants,
            )
        )
        unsubscribe = own.on_request(lambda _: post(question.decided.set))
        try:
            with (
                person_asked(),
                StopScope(self._token) as boundary,
                anyio.move_on_after(timeout_s),
            ):
                await boundary.wait_or_stop(question.decided.wait)
            if question.answer is None:
                self._token.checkpoint()
                own.checkpoint()
                self._conclude(gate, self._config.auto_approve_on_timeout, "", "timeout")
        finally:
            unsubscribe()
            if question.answer is None and not self._token.is_stopping:
                self._conclude(gate, False, "nobody waits for it any more", "")
            del self._waiting[gate]
        assert question.answer is not None
        return question.answer

    def _conclude(self, gate: str, approved: bool, message: str, by: str) -> None:
        question = self._waiting[gate]
        question.answer = Decision(approved, message, by)
        self._emit(ev.ApprovalGiven(step=gate, approved=approved, message=message, by=by))
        question.decided.set()


def denial(gate: str, named: str, decision: Decision) -> StopRequest:
    """Return the stop that the denial of a gate asks for."""
    why = f"{named} was {decision}"
    return StopRequest(CancellationStatus.REQUESTED, "approval", why, gate=gate)


def text_of(answer: Decision) -> str:
    """Return the text that was asked for.

    Args:
        answer: What the person said to `Approvals.ask_for_text`.

    Raises:
        UserError: The person refused.
    """
    if not answer.approved:
        why = f": {answer.message}" if answer.message else "."
        raise UserError(f"The person does not answer{why}")
    return answer.message


def ask(prompt: str) -> str:
    """Ask the person who watches this code's run a question, and wait for the answer.

    For plain functions given as tools; in an async one it would hold up the others.

    Args:
        prompt: The question; it is shown on the panel, and `Run.answer` answers it.

    Returns:
        What the person wrote.

    Raises:
        UserError: There is no run here, or the person refuses to answer.
        AgentStopped: The run is being stopped. Let it pass.

    Example:
        @nb_agents.tool
        def choose(options: list[str]) -> str:
            "Let the person choose."
            return nb_agents.ask(f"Which of {options}?")
    """
    asker = _current.get()
    if asker is None:
        raise UserError("nb_agents.ask asks for a run: call it in a function given as a tool.")
    return asker(prompt)


@contextmanager
def bind_asker(asker: Callable[[str], str]) -> Iterator[None]:
    """Make ``asker`` what `ask` uses, within the block and the tasks that it starts."""
    reset = _current.set(asker)
    try:
        yield
    finally:
        _current.reset(reset)
