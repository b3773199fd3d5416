"""An agent's place in its team for one round: what it may do, what it knows, what it is told.

It asks the pure machines (`coordination`, `timing`) with the state and the seconds of the moment.
What an agent is told is an event, so that a resume gives it the same words again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nb_agents import events as ev
from nb_agents.agents import prompts, timing, voting
from nb_agents.agents.decisions import Offer, Verdict
from nb_agents.agents.rules import Rules

__all__ = ["TeamContext"]

MAX_NEWS = 2
"""Times a round in which a working agent is shown new answers. Source: MassGen."""


@dataclass
class TeamContext:
    """A working agent's seat.

    Attributes:
        agent: Whose seat.
        rules: What is allowed.
        state: Gives where the team stands.
        elapsed: Gives where the agent is in its time.
        emit: Takes what happens.
        known: For each agent with answers, how many of them this one has seen.
        news: How often it was shown new answers in this round.
        is_presenting: Whether it presents.
    """

    agent: str
    rules: Rules
    state: Callable[[], voting.Coordination]
    elapsed: Callable[[], timing.Elapsed]
    emit: Callable[[ev.Event], None]
    known: dict[str, int]
    news: int = 0
    is_presenting: bool = False
    _wraps_up: bool = False

    def offer(self) -> Offer:
        """Say what it may do with its next request."""
        late = timing.round_is_over(self.elapsed())
        state = self.state()
        if not self._can_vote():
            counts = self.is_presenting or self._is_alone()
            return Offer(
                text_counts=counts, text_stands_for="" if counts else "answer", must_decide=late
            )
        is_open = voting.voting_is_open(state, self.rules)
        voters = [label for label, a in voting.labels(state).items() if is_open and a in self.known]
        answers = voting.may_answer(state, self.rules, self.agent)
        # Who could do neither answers, is refused, and is shown what there is to vote on.
        return Offer(
            answers or not voters,
            tuple(voters),
            text_stands_for=self._text_stands_for(answers),
            must_decide=late,
        )

    def _text_stands_for(self, may_answer: bool) -> Literal["", "answer", "no vote"]:
        """Say what the text of a model is that calls no tool: once it has answered, no vote."""
        state = self.state()
        if state.replies.get(self.agent) and not state.unheard(self.agent):
            return "no vote"
        return "answer" if may_answer else ""

    def judge_answer(self, answer: str) -> str:
        """Judge an answer; the presenter's is always taken."""
        if self.is_presenting:
            return ""
        return voting.judge_answer(self.state(), self.rules, self.agent, answer)

    def judge_vote(self, label: str) -> Verdict:
        """Judge a vote over what it has seen."""
        if not self._can_vote():
            return Verdict("", voting.NO_VOTING)
        state = self.state()
        target = voting.labels(state).get(label, "")
        if state.answers and not voting.voting_is_open(state, self.rules):
            return Verdict(target, voting.TOO_EARLY)
        return Verdict(target, voting.judge_vote(state, self.agent, target, self.known))

    def opening_note(self) -> str:
        """Say what it is told as its round opens: nothing, unless the time comes to its end."""
        self._wraps_up = timing.is_late(self.elapsed())
        return timing.WRAP_UP if self._wraps_up else ""

    def note(self, *, was_refused: bool) -> str:
        """Say what it is told with its next request: new answers, and how much time is left.

        Args:
            was_refused: Whether an answer of its was just refused.
        """
        news = self._take_news(was_refused)
        elapsed = self.elapsed()
        late = timing.is_late(elapsed) and not self._wraps_up
        self._wraps_up |= late
        note = timing.time_note(elapsed, self.offer().names, wraps_up=late)
        text = f"{news}\n\n{note}" if news else note
        self.emit(ev.Told(agent=self.agent, text=text, seen=dict(self.known) if news else None))
        return text

    def hear(self) -> str:
        """Say which follow-up texts it is told now, or "" when it has heard them all."""
        state = self.state()
        texts = state.unheard(self.agent)
        if not texts:
            return ""
        text = prompts.follow_up(texts)
        self.emit(ev.Told(agent=self.agent, text=text, heard=len(state.said)))
        return text

    def _take_news(self, was_refused: bool) -> str:
        state = self.state()
        now = voting.seen(state)
        fresh = [a for a in now if now[a] != self.known.get(a) and a != self.agent]
        if not fresh or not self._may_be_shown(state, was_refused):
            return ""
        self.news += 1
        self.known = now
        names = {agent: label for label, agent in voting.labels(state).items()}
        return prompts.news({names[a]: state.answers[a][-1] for a in sorted(fresh)})

    def _may_be_shown(self, state: voting.Coordination, was_refused: bool) -> bool:
        """Whether it is shown new answers now.

        One that has not answered yet is left to its own thoughts, as long as it can answer: a
        refused answer, or a limit that was reached meanwhile, leaves it only a vote.
        """
        if self.is_presenting or (self.news >= MAX_NEWS and self.known):
            return False
        has_answered = self.agent in state.answers
        return has_answered or was_refused or not voting.may_answer(state, self.rules, self.agent)

    def _can_vote(self) -> bool:
        return not (self.is_presenting or self._is_alone() or self.rules.skips_voting)

    def _is_alone(self) -> bool:
        return voting.is_alone(self.state())
