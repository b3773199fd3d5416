"""The driver of a team: carries out the steps of the coordination machine and emits its events.

It starts rounds, waits until one ends, and gets the next step from the machine. A stop of the run
ends all rounds. A stop of one agent ends only that agent's round.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio

from nb_agents import events as ev
from nb_agents.agents import voting
from nb_agents.agents.capabilities import Results
from nb_agents.agents.decisions import (
    Abstention,
    Answered,
    Decision,
    Rejected,
    Stale,
    TeamContext,
    Voted,
)
from nb_agents.agents.message_json import Opening
from nb_agents.agents.prompts import Briefing, Elapsed
from nb_agents.agents.replay import Past, PastRound, emitting_changes
from nb_agents.agents.runner import Round, Runners
from nb_agents.agents.stop_scope import StopScope, current_policy
from nb_agents.agents.turn_result import TurnResult
from nb_agents.cancel import AgentStopped, CancelToken
from nb_agents.errors import ModelCallError, error_message

logger = logging.getLogger("nb_agents")


class Team:
    """Drives a team through one turn. Create it on the loop's thread.

    Args:
        briefing: The team, its task, files and tools.
        runners: The runners of the turn's agents.
        token: The run's token.
        tokens: Each agent's token, a child of the run's, by agent id.
        emit: Called with each event.
        past: The state of the interrupted turn that this one resumes, or None.
    """

    def __init__(
        self,
        briefing: Briefing,
        runners: Runners,
        token: CancelToken,
        tokens: Mapping[str, CancelToken],
        emit: Callable[[ev.Event], None],
        past: Past | None,
    ) -> None:
        self._members = {agent.id: agent for agent in briefing.spec.agents}
        self._agents = list(self._members)
        self._runners = runners
        self._rules = briefing.rules
        self._briefing = briefing
        self._capabilities = briefing.capabilities
        self._started_at = current_policy().hold.clock()
        self._token = token
        self._tokens = tokens
        self._publish = emit
        past = past or Past(voting.begin(self._agents))
        self._state = past.state
        self._rounds = {a: past.round_numbers.get(a, 0) for a in self._agents}
        self._calls = {a: past.calls.get(a, 0) for a in self._agents}
        self._open_rounds = dict(past.rounds)
        self._running: set[str] = set()
        self._was_cut_short = False
        self._changed = anyio.Event()

    def flush(self) -> None:
        """Emit the text received so far in all open model calls."""
        self._runners.flush()

    def add_message(self, event: ev.UserMessage) -> None:
        """Handle a journalled message from the user, and start the agents that must read it."""
        self._state = voting.apply(self._state, event)
        self._changed.set()

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Return "", because a team has no gates."""
        return ""

    def next(self) -> tuple[str, ...]:
        """Return (), because a team's next steps are not known in advance."""
        return ()

    async def run(self) -> TurnResult:
        """Work until there is a final answer or no agent is left.

        Returns:
            The result.

        Raises:
            AgentStopped: The run was stopped. All rounds have ended.
        """
        alone = self._agents[0] if len(self._agents) == 1 else ""
        locations = self._briefing.writable(alone) if alone else ()
        async with emitting_changes(alone, locations, self._emit):
            while True:
                result = await self._work_through()
                if not await self._begins_again(result):
                    break
        for each in self._capabilities:
            await each.at_end(result.winner)
        return result

    async def _begins_again(self, result: TurnResult) -> bool:
        """Have the final answer judged if restarts are left. Return whether to start again."""
        state, winner = self._state, result.winner
        if len(state.restarts) >= self._rules.max_restarts or winner not in state.live:
            return False
        if not state.final:
            self._emit(ev.FinalAnswerGiven(agent=winner, answer=result.answer))
        decision = await self._judge(winner)
        if not isinstance(decision, Rejected):
            return False
        self._emit(
            ev.OrchestrationRestarted(
                agent=winner,
                reason=decision.reason,
                instructions=decision.instructions,
                attempt=len(state.restarts) + 2,
            )
        )
        return True

    async def _work_through(self) -> TurnResult:
        step = await self._coordinate()
        # A user's message may have arrived while the last round ended.
        while isinstance(step, voting.Coordinate) and not self._token.is_stopping:
            step = await self._coordinate()
        match step:
            case voting.Present(winner=winner):
                locations = self._briefing.writable(winner) if len(self._agents) > 1 else ()
                async with emitting_changes(winner, locations, self._emit):
                    return await self._present(winner)
            case voting.Judge(winner=winner):
                return TurnResult(winner, self._state.final)
            case voting.Finish(winner=winner) if not self._was_cut_short:
                return TurnResult(winner, self._state.answers[winner][-1])
            case voting.NoAnswer() if not self._token.is_stopping:
                return TurnResult()
        self._token.checkpoint()
        raise AssertionError(f"unexpected step: {step}")

    async def _coordinate(self) -> voting.Step:
        """Run rounds until no agent has to work, and return the next step."""
        async with anyio.create_task_group() as group:
            while isinstance(step := voting.next_step(self._state, self._rules), voting.Coordinate):
                if self._token.is_stopping and not self._running:
                    break
                if not self._token.is_stopping:
                    self._start(step.agents, group)
                self._changed = anyio.Event()
                await self._changed.wait()
            if self._running and not self._token.is_stopping:
                # All answers exist and the team does not vote, so the remaining rounds have no
                # purpose.
                group.cancel_scope.cancel()
        return voting.next_step(self._state, self._rules)

    def _start(self, agents: Sequence[str], group: anyio.abc.TaskGroup) -> None:
        for agent in agents:
            if agent not in self._running:
                self._running.add(agent)
                group.start_soon(self._round, agent, name=f"agent {agent}")

    def _emit(self, event: ev.Event) -> None:
        if isinstance(event, ev.ModelStarted):
            self._calls[event.agent] = event.call
        self._state = voting.apply(self._state, event)
        self._publish(event)

    async def _round(self, agent: str) -> None:
        try:
            await self._work(agent)
        finally:
            self._running.discard(agent)
            self._changed.set()

    async def _work(self, agent: str) -> None:
        past = self._open_rounds.pop(agent, None)
        boundary = StopScope(self._tokens[agent])
        context = self._context_of(agent, past, boundary)
        limit_s, grace_s = context.elapsed().round_limit_s, self._rules.round_grace_s
        round: Round | None = None
        with (
            boundary,
            boundary.limit(None if limit_s is None else limit_s + grace_s) as clock,
        ):
            try:
                boundary.checkpoint()
                opening = await self._opening(context, past)
                round = self._round_of(context, opening, boundary, past)
                self._record(await self._run_round(round, past), context)
            except AgentStopped:
                self._end(agent, "stopped")
            except Exception as exc:
                self._emit(ev.AgentFailed(agent=agent, error=self._failure_reason(agent, exc)))
        if not (boundary.was_cut or clock.cancelled_caught):
            return
        # A stop may have interrupted the round after its answer or vote was read.
        decision = round.decision if round is not None else None
        is_recorded = decision is not None and self._record(decision, context)
        if boundary.was_cut:
            self._end(agent, "killed")
        elif limit_s is not None and not is_recorded:
            self._emit(ev.RoundTimedOut(agent=agent, limit_s=limit_s, grace_s=grace_s))

    def _failure_reason(self, agent: str, exc: Exception) -> str:
        """Return why an agent failed.

        A bug in nb_agents ends only this agent, not the whole team.
        """
        if isinstance(exc, ModelCallError):
            return str(exc)
        logger.error("agent %s crashed", agent, exc_info=exc)
        return f"An unexpected error ended its work: {error_message(exc, named=True)}"

    def _end(self, agent: str, outcome: ev.Outcome) -> None:
        if not self._calls[agent]:
            outcome = "never started"
        self._was_cut_short |= self._token.is_stopping
        self._emit(ev.AgentEnded(agent=agent, outcome=outcome))

    def _record(self, decision: Decision, context: TeamContext) -> bool:
        """Emit the decision of a round, and return whether it is still valid.

        It is checked again, because the state may have changed while other tool calls of its
        response ran.
        """
        agent, known = context.agent, context.known
        match decision:
            case Answered(answer=answer):
                if context.judge_answer(answer):
                    return False
                self._emit(ev.AnswerGiven(agent=agent, answer=answer))
            case Voted(target=target, reason=reason) if not voting.judge_vote(
                self._state, agent, target, known
            ):
                self._emit(ev.VoteCast(agent=agent, target=target, reason=reason, seen=dict(known)))
            case Voted(target=target) | Stale(target=target):
                self._emit(ev.VoteIgnored(agent=agent, target=target))
            case Abstention():
                self._emit(ev.Abstained(agent=agent))
        return True

    def _context_of(
        self,
        agent: str,
        past: PastRound | None,
        boundary: StopScope,
        *,
        is_presenting: bool = False,
        is_judging: bool = False,
    ) -> TeamContext:
        number = past.number if past else self._rounds[agent] + 1
        limit_s = None if is_presenting else self._rules.round_limit_s(number)
        clock = current_policy().hold.clock
        began = clock()

        def elapsed() -> Elapsed:
            now, rules = clock(), self._rules
            round_s = now - began - boundary.asked_s
            return Elapsed(
                now - self._started_at, rules.turn_limit_s, round_s, limit_s, rules.round_grace_s
            )

        return TeamContext(
            agent,
            self._rules,
            lambda: self._state,
            elapsed,
            self._emit,
            dict(past.seen) if past else voting.seen(self._state),
            past.news if past else 0,
            is_presenting,
            is_judging,
            partial(self._results, agent),
        )

    async def _opening(self, context: TeamContext, past: PastRound | None) -> Opening:
        if past is not None:
            return past.opening
        agent, briefing = context.agent, self._briefing
        await self._runners.before_round(self._members[agent], self._rounds[agent] + 1)
        extra_message = await self._changing_prompt(agent)
        # Other agents may have answered in the meantime.
        context.known = voting.seen(self._state)
        return briefing.opening(self._state, agent, context.opening_note(), extra_message)

    async def _changing_prompt(self, agent: str) -> str:
        labels = voting.labels(self._state)
        prompts = [await each.shown(agent, labels) for each in self._capabilities]
        return "\n\n".join(filter(None, prompts))

    def _results(self, agent: str) -> Results:
        """Return the new results of one capability.

        Results of the other capabilities are added to later requests.
        """
        notes = (each.note(agent) for each in self._capabilities)
        return next((note for note in notes if note.text), Results())

    def _round_of(
        self,
        context: TeamContext,
        opening: Opening,
        boundary: StopScope,
        past: PastRound | None,
    ) -> Round:
        agent = context.agent
        acts = context.is_presenting and not context.is_judging
        return Round(
            agent,
            past.number if past else self._rounds[agent] + 1,
            past.opening if past else opening,
            self._briefing.toolbox(self._state, agent, is_presenting=acts),
            context,
            self._emit,
            boundary,
            self._briefing.workspace(agent),
            self._briefing.task,
            calls=self._calls[agent],
            seen=context.known,
            heard=len(self._state.said),
        )

    async def _run_round(self, round: Round, past: PastRound | None) -> Decision:
        self._rounds[round.agent] = round.number
        return await self._runners.play(self._members[round.agent], round, past)

    async def _present(self, winner: str) -> TurnResult:
        """Have the winner present the final answer. If that fails, use its last answer."""
        self._token.checkpoint()
        stored = self._state.answers[winner][-1]
        votes = {a: list(self._state.votes.values()).count(a) for a in self._state.answers}
        if self._state.presenter != winner:
            self._emit(ev.PresentationStarted(agent=winner, votes=votes))

        async def opening() -> Opening:
            extra_message = await self._changing_prompt(winner)
            return self._briefing.presentation(self._state, winner, votes, extra_message)

        failure = "could not present ({why}). Its last answer becomes the final answer."
        decision = await self._last_round(winner, opening, failure)
        return TurnResult(winner, decision.answer if isinstance(decision, Answered) else stored)

    async def _judge(self, winner: str) -> Decision | None:
        """Ask the presenter to judge its answer. None means that the answer is accepted."""
        self._token.checkpoint()

        async def opening() -> Opening:
            return self._briefing.judging(self._state, winner)

        failure = "could not judge its answer ({why}). The answer is accepted."
        return await self._last_round(winner, opening, failure, is_judging=True)

    async def _last_round(
        self,
        winner: str,
        opening: Callable[[], Awaitable[Opening]],
        failure: str,
        *,
        is_judging: bool = False,
    ) -> Decision | None:
        """Run the presenter's round.

        Returns None if it failed or the user stopped only this agent.
        """
        past = self._open_rounds.pop(winner, None)
        boundary = StopScope(self._tokens[winner])
        context = self._context_of(
            winner, past, boundary, is_presenting=True, is_judging=is_judging
        )
        with boundary:
            try:
                round = self._round_of(context, await opening(), boundary, past)
                return await self._run_round(round, past)
            except AgentStopped:
                self._end(winner, "stopped")
            except Exception as exc:
                why = self._failure_reason(winner, exc)
                self._emit(ev.Noticed(text=f"{winner} {failure.format(why=why)}"))
                return None
        if boundary.was_cut:
            self._end(winner, "killed")
        self._token.checkpoint()
        return None
