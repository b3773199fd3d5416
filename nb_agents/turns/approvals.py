"""Asks the user to approve tool calls, and asks questions. Recipes implement their own gates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

import anyio

from nb_agents import events as ev
from nb_agents.agents.stop_scope import StopScope, clocks_stopped
from nb_agents.cancel import CancellationStatus, CancelToken, StopRequest, current_token
from nb_agents.context import within
from nb_agents.errors import UserError
from nb_agents.loop import post
from nb_agents.tools.base import ToolCall, current_call
from nb_agents.tools.policy import ApprovalConfig, ApprovalDecision, Tally
from nb_agents.view.steps import gate_title

_current: ContextVar[Callable[[str], str] | None] = ContextVar("nb_agents_asker", default=None)


@dataclass
class _Question:
    """An open question at a gate, with the decisions so far."""

    wants: Literal["approval", "input"]
    tally: Tally
    call: ToolCall
    decided: anyio.Event = field(default_factory=anyio.Event)
    answer: ApprovalDecision | None = None


class Approvals:
    """Asks the user questions. Each question is a gate. Runs on the loop thread.

    Args:
        token: The run's token. A stop ends the waiting.
        emit: Called with each event.
        stop: Stops the run.
        config: The approvers and the timeout.
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
        self._question_count = 0

    async def ask(self, agent: str, tool: str, call: str, stops: bool) -> ApprovalDecision:
        """Ask whether a tool call is allowed, and wait for the answer.

        Args:
            agent: The calling agent.
            call: The call with its arguments, as text.
            stops: Whether a denial stops the run.

        Raises:
            AgentStopped: A stop was requested while waiting.
        """
        gate = self._new_gate(f"{agent}: {tool}")
        prompt = f"{agent} wants to call {call}"
        # With the agent's own token, because the agent may be stopped individually.
        answer = await self._wait(gate, prompt, "approval", current_token(), current_call())
        if stops and not answer.approved:
            self._stop(denial(gate, gate_title(gate), answer))
        self._token.checkpoint()
        return answer

    async def ask_about(self, gate_name: str, question: str) -> ApprovalDecision:
        """Ask the user to approve a step and wait for the decision.

        Args:
            gate_name: The name of the gate, such as the step's address.

        Raises:
            AgentStopped: A stop was requested while waiting.
        """
        gate = self._new_gate(gate_name)
        return await self._wait(gate, question, "approval", current_token())

    async def ask_about_budget(self, question: str) -> ApprovalDecision:
        """Ask the user whether to raise the budget, and wait for the decision without a time limit.

        Args:
            question: The question.

        Raises:
            AgentStopped: A stop was requested while waiting.
        """
        return await self._wait(self._new_gate("budget"), question, "approval", about="budget")

    async def ask_whether(self, message: str) -> str:
        """Ask the user for an approval and wait for the decision.

        Args:
            message: The question.

        Returns:
            The gate's address. `RunView.approvals` has the decision.

        Raises:
            AgentStopped: A stop was requested while waiting.
        """
        gate = self._new_gate("approval")
        await self._wait(gate, message, "approval")
        return gate

    async def ask_for_text(self, prompt: str) -> ApprovalDecision:
        """Ask the user for text and wait for it.

        Args:
            prompt: The question.

        Returns:
            A decision with the text as its message. It is not approved if the user refused to
                answer.

        Raises:
            AgentStopped: A stop was requested while waiting.
        """
        # The agent whose tool asks, if any. It is shown as waiting.
        agent = current_call().agent
        return await self._wait(
            self._new_gate(f"{agent}: input" if agent else "input"), prompt, "input"
        )

    def close(self) -> None:
        """Deny the open questions at the end of the run. After a stop, leave them for a resume."""
        for gate, question in self._waiting.items():
            if question.answer is None and not self._token.is_stopping:
                self._conclude(gate, False, "the run is over", "")

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Record a decision on a question. Once there are enough decisions, the question is closed.

        Args:
            approved: Whether the user approves.
            message: The user's message.
            by: The name of the user.
            gate: The gate's address. "" means the oldest open question.

        Returns:
            The gate's address, or "" if it is not open.

        Raises:
            UserError: This user is not among the approvers.
        """
        chosen = self._choose(gate)
        if not chosen:
            return ""
        question = self._waiting[chosen]
        decision: ApprovalDecision | None = ApprovalDecision(approved, message, by)
        if question.wants == "approval":
            decision = question.tally.take(approved, message, by)
        if decision is None:
            self._emit(ev.Noticed(text=f"{gate_title(chosen)}: {question.tally}."))
        else:
            self._conclude(chosen, *decision)
        return chosen

    def _new_gate(self, name: str) -> str:
        self._question_count += 1
        return f"{name} #{self._question_count}"

    def _choose(self, gate: str) -> str:
        open_ = [name for name, each in self._waiting.items() if each.answer is None]
        chosen = gate or (open_[0] if open_ else "")
        return chosen if chosen in open_ else ""

    async def _wait(
        self,
        gate: str,
        prompt: str,
        wants: Literal["approval", "input"],
        own: CancelToken | None = None,
        call: ToolCall | None = None,
        about: Literal["", "budget"] = "",
    ) -> ApprovalDecision:
        question = self._waiting[gate] = _Question(wants, Tally(self._config), call or ToolCall())
        own = own or self._token
        timeout_s = self._config.timeout if wants == "approval" and not about else None
        self._emit(
            ev.ApprovalAsked(
                step=gate,
                prompt=prompt,
                timeout_s=timeout_s or 0.0,
                default=self._config.default,
                wants=wants,
                caller=question.call.agent,
                call_id=question.call.id,
                about=about,
            )
        )
        unsubscribe = own.on_request(lambda _: post(question.decided.set))
        try:
            with (
                clocks_stopped(),
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
                self._conclude(gate, False, "the question was withdrawn", "")
            del self._waiting[gate]
        assert question.answer is not None
        return question.answer

    def _conclude(self, gate: str, approved: bool, message: str, by: str) -> None:
        question = self._waiting[gate]
        question.answer = ApprovalDecision(approved, message, by)
        call = question.call
        self._emit(
            ev.ApprovalGiven(
                step=gate,
                approved=approved,
                message=message,
                by=by,
                caller=call.agent,
                call_id=call.id,
            )
        )
        question.decided.set()


def denial(gate: str, named: str, decision: ApprovalDecision) -> StopRequest:
    """Return the stop request that follows from a denial.

    Args:
        gate: The gate's address.
        named: The gate's description for the reason.
        decision: The denial.
    """
    why = f"{named} was {decision}"
    return StopRequest(CancellationStatus.REQUESTED, "approval", why, gate=gate)


def text_of(answer: ApprovalDecision) -> str:
    """Return the text that a user entered for `Approvals.ask_for_text`.

    Raises:
        UserError: The user refused to answer.
    """
    if not answer.approved:
        why = f": {answer.message}" if answer.message else "."
        raise UserError(f"The user refused to answer{why}")
    return answer.message


def ask(prompt: str) -> str:
    """Ask the user of the current run a question, and block until they answer.

    Call this only in synchronous tools. In an async tool, it would block the other agents.

    Args:
        prompt: The question, which the panel shows. `Run.answer` answers it too.

    Returns:
        The user's text.

    Raises:
        UserError: The caller is not in a run, or the user refuses to answer.
        AgentStopped: The run is being stopped. Do not catch it.

    Example::

        @nb_agents.tool
        def choose(options: list[str]) -> str:
            "Let the user choose."
            return nb_agents.ask(f"Which of {options}?")
    """
    asker = _current.get()
    if asker is None:
        raise UserError("nb_agents.ask works only in a run. Call it in a function used as a tool.")
    return asker(prompt)


def bind_asker(asker: Callable[[str], str]) -> AbstractContextManager[None]:
    """Make `ask` use ``asker`` within the block and the tasks started there."""
    return within(_current, asker)
