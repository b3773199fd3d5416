"""The rules of a team's work, as one frozen value made from its spec. Pure; no clock.

The coordination machine (`nb_agents.agents.voting`) is driven by it: who may answer, when
votes count, where the final answer comes from, how long a round may take.

Source: MassGen's orchestrator section and timeout settings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nb_agents.config.orchestrator import FinalAnswerStrategy, Sensitivity
from nb_agents.config.team import TeamSpec

__all__ = ["Rules", "rules_of", "similarity"]

MAX_SIMILARITY = {"lenient": None, "balanced": 0.70, "strict": 0.50}
"""Share of words in common above which an answer is not new. Source: MassGen (Jaccard)."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Rules:
    """How a team works together; by default as MassGen does.

    Attributes:
        max_answers_each: Answers after which an agent can only vote, or None.
        max_answers_all: Answers of all agents after which all can only vote, or None.
        max_similarity: Share of words in common with a current answer above which a new one is
            refused, or None.
        votes_after_all_answered: Whether nobody votes before everybody has answered.
        lead_cap: How many answers an agent may be ahead of the slowest at work, or None.
        sensitivity: How demanding voters are.
        skips_voting: Whether the team is done when all have answered.
        final: Where the final answer comes from.
        plans_first: Whether only the presenter may change anything.
        turn_limit_s: Seconds for the whole turn.
        first_round_s, later_round_s: Seconds for an agent's first and each later round, or None.
        round_grace_s: Seconds from a round's limit to its end.
    """

    max_answers_each: int | None = None
    max_answers_all: int | None = None
    max_similarity: float | None = None
    votes_after_all_answered: bool = False
    lead_cap: int | None = 2
    sensitivity: Sensitivity = "lenient"
    skips_voting: bool = False
    final: FinalAnswerStrategy = "winner_present"
    plans_first: bool = False
    turn_limit_s: float = 1800.0
    first_round_s: float | None = None
    later_round_s: float | None = None
    round_grace_s: float = 120.0

    def round_limit_s(self, number: int) -> float | None:
        """Seconds that an agent's round may take before it must wrap up, or None.

        Args:
            number: The round, from 1.
        """
        return self.first_round_s if number == 1 else self.later_round_s


def rules_of(spec: TeamSpec, turn_limit_s: float) -> Rules:
    """Make the rules of a team.

    Args:
        spec: The team.
        turn_limit_s: The orchestrator timeout that holds, seconds.

    Returns:
        The rules. A team of one has nobody to plan with: it acts at once.
    """
    team, times = spec.orchestrator, spec.timeout_settings
    reuse_or_present = "winner_reuse" if team.skip_final_presentation else "winner_present"
    final: FinalAnswerStrategy = team.final_answer_strategy or reuse_or_present  # type: ignore[assignment]
    if final == "winner_reuse" and team.writes_context_paths:
        # Source: MassGen; only who presents may write there.
        final = "winner_present"
    return Rules(
        max_answers_each=team.max_new_answers_per_agent,
        max_answers_all=team.max_new_answers_global,
        max_similarity=MAX_SIMILARITY[team.answer_novelty_requirement],
        votes_after_all_answered=team.defer_voting_until_all_answered,
        lead_cap=team.fairness_lead_cap_answers if team.fairness_enabled else None,
        sensitivity=team.voting_criteria,
        # Source: MassGen, which asks for no votes either when all answers are put together.
        skips_voting=team.skip_voting or final == "synthesize",
        final=final,
        plans_first=team.coordination.enable_planning_mode and len(spec.agents) > 1,
        turn_limit_s=turn_limit_s,
        first_round_s=times.initial_round_timeout_seconds,
        later_round_s=times.subsequent_round_timeout_seconds,
        round_grace_s=times.round_timeout_grace_seconds,
    )


def similarity(one: str, other: str) -> float:
    """Say how much two texts have in common: the Jaccard index of their words, from 0 to 1.

    Example:
        >>> similarity("Red and blue", "blue and red!")
        1.0
    """
    words, others = set(_WORD.findall(one.lower())), set(_WORD.findall(other.lower()))
    return len(words & others) / len(words | others) if words | others else 1.0
