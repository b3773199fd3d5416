"""The team's driver: does what the coordination machine says, and tells it what happened.

Thin by design: it starts rounds, waits for one of them to end, asks the machine again. A stop of
the run ends all rounds; a stop of one agent ends that one alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from nb_agents import events as ev
from nb_agents.agents import coordination as co
from nb_agents.agents import prompts
from nb_agents.agents.agent import AgentTurn, Answered, Decision, Stale, Voted
from nb_agents.agents.boundary import Boundary
from nb_agents.agents.replay import OpenRound, Past, dump_messages, load_messages, load_round
from nb_agents.cancel import AgentStopped, CancelToken
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ModelCallError
from nb_agents.models.backend import Backend
from nb_agents.session.history import Message
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.base import Toolbox
from nb_agents.tools.workspace import Workspace

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

__all__ = ["Result", "Team"]

logger = logging.getLogger("nb_agents")


@dataclass(frozen=True)
class Result:
    """How a team's work ended by itself.

    Attributes:
        winner: The agent whose answer it is, or "" when there is none.
        answer: The final answer, or "".
    """

    winner: str = ""
    answer: str = ""


class Team:
    """Drives a team through one turn; make it on the loop.

    Args:
        spec: The team.
        backends: For each agent id, its model.
        paths: The turn's files.
        task: What was asked.
        history: The conversation before.
        context: Read-only files and directories for all agents.
        token: The run's token.
        tokens: For each agent id, its own, below the run's.
        emit: Takes what happens.
        past: Where an earlier turn had come to, when this one resumes it.
    """

    def __init__(
        self,
        spec: TeamSpec,
        backends: Mapping[str, Backend],
        paths: TurnPaths,
        task: str,
        history: Sequence[Message],
        context: Sequence[Path],
        token: CancelToken,
        tokens: Mapping[str, CancelToken],
        emit: Callable[[ev.Event], None],
        past: Past | None = None,
    ) -> None:
        self._agents = {agent.id: agent for agent in spec.agents}
        self._backends = backends
        self._paths = paths
        self._task = task
        self._history = history
        self._context = list(context)
        self._token = token
        self._tokens = tokens
        self._publish = emit
        past = past or Past(co.begin(list(self._agents)))
        self._state = past.state
        self._rounds = {a: past.round_numbers.get(a, 0) for a in self._agents}
        self._calls = {a: past.calls.get(a, 0) for a in self._agents}
        self._open_rounds = dict(past.rounds)
        self._presenter = past.presenter
        self._active: dict[str, AgentTurn] = {}
        self._running: set[str] = set()
        self._changed = anyio.Event()

    def flush(self) -> None:
        """Emit the words that have arrived in all open model calls."""
        for turn in tuple(self._active.values()):
            turn.flush()

    async def run(self) -> Result:
        """Work until there is a final answer, or none can come.

        Returns:
            The result.

        Raises:
            AgentStopped: The run was stopped; every round has ended by then.
        """
        async with anyio.create_task_group() as group:
            while isinstance(step := co.next_step(self._state), co.Work):
                if self._token.is_stopping and not self._running:
                    break
                if not self._token.is_stopping:
                    self._start(step.agents, group)
                self._changed = anyio.Event()
                await self._changed.wait()
        match step:
            case co.Present(winner=winner):
                return await self._present(winner)
            case co.Finish(winner=winner) if self._ended_by_itself(winner):
                return Result(winner, self._state.answers[winner][-1])
            case co.NoAnswer() if not self._token.is_stopping:
                return Result()
        self._token.checkpoint()
        raise AssertionError(f"no way on from {step}")

    def _ended_by_itself(self, winner: str) -> bool:
        """Whether a finish is one: a stopped team of answers is not, a lone agent's answer is."""
        return not self._token.is_stopping or winner in self._state.live

    def _start(self, agents: Sequence[str], group: anyio.abc.TaskGroup) -> None:
        for agent in agents:
            if agent not in self._running:
                self._running.add(agent)
                group.start_soon(self._round, agent, name=f"agent {agent}")

    def _emit(self, event: ev.Event) -> None:
        if isinstance(event, ev.ModelStarted):
            self._calls[event.agent] = event.call
        self._state = co.apply(self._state, event)
        self._publish(event)

    async def _round(self, agent: str) -> None:
        try:
            await self._work(agent)
        finally:
            self._running.discard(agent)
            self._changed.set()

    async def _work(self, agent: str) -> None:
        past = self._open_rounds.pop(agent, None)
        known = past.seen if past else co.seen(self._state)
        boundary = Boundary(self._tokens[agent])
        turn: AgentTurn | None = None
        with boundary:
            try:
                boundary.checkpoint()
                turn = self._make_turn(agent, known, boundary)
                answers, own = self._answers_for(agent)
                prompt = prompts.coordination_prompt(self._task, self._history, answers, own)
                decision = await self._run_turn(
                    agent, turn, self._opening(agent, prompt), known, past
                )
                self._record(agent, decision, known)
            except AgentStopped:
                self._end(agent, "stopped")
            except Exception as exc:
                self._emit(ev.AgentFailed(agent=agent, error=self._why(agent, exc)))
        if boundary.was_cut:
            if turn is not None and turn.decision is not None:
                # It was cut among other tools of the response that carried its answer or vote.
                self._record(agent, turn.decision, known)
            self._end(agent, "killed")

    def _why(self, agent: str, exc: Exception) -> str:
        """Say why an agent failed: a defect of ours costs one agent, never the team."""
        if isinstance(exc, ModelCallError):
            return str(exc)
        logger.error("agent %s crashed", agent, exc_info=exc)
        return f"An unexpected error ended its work: {type(exc).__name__}: {exc}"

    def _end(self, agent: str, outcome: ev.Outcome) -> None:
        if not self._calls[agent]:
            outcome = "never started"
        self._emit(ev.AgentEnded(agent=agent, outcome=outcome))

    def _record(self, agent: str, decision: Decision, known: Mapping[str, int]) -> None:
        match decision:
            case Answered(answer=answer):
                self._emit(ev.AnswerGiven(agent=agent, answer=answer))
            case Voted(target=target) if co.judge_vote(self._state, target, known) == co.STALE:
                # A newer answer came while other tools of the same response ran.
                self._emit(ev.VoteIgnored(agent=agent, target=target))
            case Voted(target=target, reason=reason):
                self._emit(ev.VoteCast(agent=agent, target=target, reason=reason, seen=dict(known)))
            case Stale(target=target):
                self._emit(ev.VoteIgnored(agent=agent, target=target))

    def _make_turn(
        self, agent: str, known: Mapping[str, int], boundary: Boundary, *, presenting: bool = False
    ) -> AgentTurn:
        labels = co.labels(self._state)
        solo = len(self._agents) == 1
        can_vote = not (solo or presenting)
        voters = [label for label, a in labels.items() if a in known]

        def judge(label: str) -> tuple[str, str]:
            if not can_vote:
                return "", co.NO_VOTING
            target = labels.get(label, "")
            return target, co.judge_vote(self._state, target, known)

        return AgentTurn(
            agent,
            self._backends[agent],
            self._toolbox(agent),
            self._emit,
            judge,
            boundary,
            voters if can_vote else (),
            accept_text=not can_vote,
            calls=self._calls[agent],
        )

    async def _run_turn(
        self,
        agent: str,
        turn: AgentTurn,
        opening: list[ModelMessage],
        known: dict[str, int],
        past: OpenRound | None,
    ) -> Decision:
        if past is not None:
            opening, past = load_messages(past.request), load_round(past)
        else:
            self._rounds[agent] += 1
            number, request = self._rounds[agent], dump_messages(opening)
            self._emit(ev.RoundStarted(agent=agent, number=number, seen=known, request=request))
        self._active[agent] = turn
        try:
            return await turn.run(opening, past)
        finally:
            del self._active[agent]

    async def _present(self, winner: str) -> Result:
        """Let the winner present; its stored answer stands in when it can't."""
        self._token.checkpoint()
        stored = self._state.answers[winner][-1]
        labels = {agent: label for label, agent in co.labels(self._state).items()}
        votes = {a: list(self._state.votes.values()).count(a) for a in self._state.answers}
        past = self._open_rounds.pop(winner, None)
        if self._presenter != winner:
            self._emit(ev.PresentationStarted(agent=winner, votes=votes))
        answers, own = self._answers_for(winner)
        tally = {labels[a]: n for a, n in votes.items()}
        prompt = prompts.presentation_prompt(self._task, self._history, answers, own, tally)
        known = co.seen(self._state)
        with Boundary(self._tokens[winner]) as boundary:
            try:
                turn = self._make_turn(winner, known, boundary, presenting=True)
                opening = self._opening(winner, prompt, presenting=True)
                decision = await self._run_turn(winner, turn, opening, known, past)
            except AgentStopped:
                self._end(winner, "stopped")
                return self._after_cut(winner, stored)
            except Exception as exc:
                why = self._why(winner, exc)
                self._emit(
                    ev.Noticed(text=f"{winner} could not present ({why}); its answer stands.")
                )
                return Result(winner, stored)
            return Result(winner, decision.answer if isinstance(decision, Answered) else stored)
        self._end(winner, "killed")
        return self._after_cut(winner, stored)

    def _after_cut(self, winner: str, stored: str) -> Result:
        """The presenter was stopped: with the run, or alone, and then its answer stands."""
        self._token.checkpoint()
        return Result(winner, stored)

    def _answers_for(self, agent: str) -> tuple[dict[str, str], str]:
        """The latest answers by anonymous name, and which name is the agent's own."""
        labels = co.labels(self._state)
        answers = {
            label: self._state.answers[a][-1]
            for label, a in labels.items()
            if a in self._state.answers
        }
        return answers, next(label for label, a in labels.items() if a == agent)

    def _toolbox(self, agent: str) -> Toolbox:
        peers = {
            label: self._paths.workspaces / a
            for label, a in co.labels(self._state).items()
            if a != agent
        }
        return Toolbox(Workspace(self._paths.workspaces / agent, peers, self._context).tools())

    def _opening(self, agent: str, prompt: str, *, presenting: bool = False) -> list[ModelMessage]:
        from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

        spec: AgentSpec = self._agents[agent]
        system = prompts.system_prompt(
            spec.system_message,
            solo=len(self._agents) == 1,
            presenting=presenting,
            context=self._context,
        )
        return [ModelRequest(parts=[SystemPromptPart(system), UserPromptPart(prompt)])]
