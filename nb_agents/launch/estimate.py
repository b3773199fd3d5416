"""Estimates what a run will cost, from earlier runs of the same team. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nb_agents.models.prices import Price
from nb_agents.nouns import amount_in_dollars, count, token_count
from nb_agents.turns.budget import Budget, unpriced_notice


@dataclass(frozen=True, slots=True)
class PastRun:
    """What an earlier, completed run of the same team has used, with all turns of its task.

    Attributes:
        agents: Number of agents.
        calls: Number of model calls.
        tokens: Number of tokens.
        cost: US dollars, or None if the price of a model is unknown.
    """

    agents: int
    calls: int
    tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known about the cost of a run before its start.

    Attributes:
        agents: Number of agents.
        past: The latest completed runs of the same team.
        prices: The price of each model, or None if it is unknown. Free models are left out.
        budget: The limits of the run, or of all rows together.
        asks: Whether the run asks to raise a budget that is used up.
        rows: Number of rows of a sweep. 0 for a single run.
        is_team: Whether the team works on a task, and not on a recipe or other work.
    """

    agents: int
    past: Sequence[PastRun] = ()
    prices: Mapping[str, Price | None] = field(default_factory=dict)
    budget: Budget = Budget()
    asks: bool = False
    rows: int = 0
    is_team: bool = True

    @property
    def costs(self) -> tuple[float, ...]:
        """The known costs of the earlier runs, in US dollars."""
        return tuple(each.cost for each in self.past if each.cost is not None)

    @property
    def calls_each(self) -> int | None:
        """The average number of model calls of each agent. None without earlier runs."""
        agents = sum(each.agents for each in self.past)
        return max(1, round(sum(each.calls for each in self.past) / agents)) if agents else None

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models without a known price."""
        return tuple(name for name, price in self.prices.items() if price is None)

    def facts(self) -> dict[str, object]:
        """Return the estimate as JSON data, with ranges from the lowest to the highest run."""
        tokens = [each.tokens for each in self.past]
        return {
            "agents": self.agents,
            "calls_each": self.calls_each,
            "runs": len(self.past),
            "cost": [min(self.costs), max(self.costs)] if self.costs else None,
            "tokens": [min(tokens), max(tokens)] if tokens else None,
            "unpriced": list(self.unpriced),
        }


def check_lines(estimate: Estimate) -> list[str]:
    """Return the estimate as lines for a user who checks a team. Empty if all models are free."""
    if not (estimate.prices or estimate.past):
        return []
    parts = [_head(estimate), *(_past(estimate) if estimate.past else _no_past(estimate))]
    return [" ".join(parts), *_unpriced_lines(estimate)]


def start_lines(estimate: Estimate) -> list[str]:
    """Return what a user should know when a run starts: less than `check_lines`.

    Prices that are unknown are left out if the run has no limit that depends on them, and tokens if
    it has no limit on them.
    """
    is_relevant = estimate.costs or (estimate.past and estimate.budget.max_tokens is not None)
    lines = [" ".join([_head(estimate), *_past(estimate)])] if is_relevant else []
    return [*lines, *(_unpriced_lines(estimate) if estimate.budget.max_cost is not None else ())]


def _unpriced_lines(estimate: Estimate) -> list[str]:
    if not estimate.unpriced:
        return []
    if estimate.budget.max_cost is None:
        return [unpriced_notice(estimate.unpriced, "is not shown")]
    if estimate.rows:
        return [unpriced_notice(estimate.unpriced, "can't be limited, so max_cost stops the sweep")]
    return [unpriced_notice(estimate.unpriced)]


def _head(estimate: Estimate) -> str:
    if not estimate.is_team:
        calls = round(sum(each.calls for each in estimate.past) / max(1, len(estimate.past)))
        calls_text = f"about {count(calls, 'model call')}" if calls else ""
    elif (calls_each := estimate.calls_each) is not None:
        calls_text = f"about {count(calls_each, 'model call')}"
    else:
        calls_text = "at least one model call"
    each = " each" if estimate.is_team and estimate.agents > 1 else ""
    agents = count(estimate.agents, "agent")
    rows = f"{count(estimate.rows, 'row')} with {agents}" if estimate.rows else agents
    return f"Estimate: {rows}, {calls_text}{each}." if calls_text else f"Estimate: {rows}."


def _past(estimate: Estimate) -> list[str]:
    """Return sentences about what the earlier runs used, and whether that exceeds the budget."""
    if estimate.costs:
        runs = _runs(len(estimate.costs), estimate.is_team)
        sentence = _ranges(f"{runs} cost", estimate.costs, amount_in_dollars, estimate.rows)
        return [sentence, *_over(estimate, estimate.costs, estimate.budget.max_cost)]
    tokens = [each.tokens for each in estimate.past]
    runs = _runs(len(tokens), estimate.is_team)
    sentence = _ranges(f"{runs} used", tokens, _tokens, estimate.rows)
    return [sentence, *_over(estimate, tokens, estimate.budget.max_tokens, _tokens)]


def _runs(number: int, is_team: bool) -> str:
    runs = "completed run" if number == 1 else f"{number} completed runs"
    return f"The last {runs} of this {'team' if is_team else 'recipe'}"


def _ranges(start: str, values: Sequence[float], show: Callable[[float], str], rows: int) -> str:
    all_rows = [value * rows for value in values]
    total = f", so all rows together about {_range(all_rows, show)}" if rows else ""
    return f"{start} {_range(values, show)}{total}."


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    low, high = show(min(values)), show(max(values))
    if low == high:
        return low
    return f"{low.removesuffix(' tokens')}–{high.removeprefix('$')}"


def _tokens(number: float) -> str:
    return token_count(round(number))


def _over(
    estimate: Estimate,
    values: Sequence[float],
    limit: float | None,
    show: Callable[[float], str] = amount_in_dollars,
) -> list[str]:
    if limit is None or max(values) * (estimate.rows or 1) <= limit:
        return []
    what = "sweep" if estimate.rows else "run"
    effect = "asks you to raise it" if estimate.asks else "stops"
    return [f"That can exceed the budget of {show(limit)}, at which the {what} {effect}."]


def _no_past(estimate: Estimate) -> list[str]:
    """Return sentences for a team without earlier runs: the prices of its models."""
    known = [
        f"{name} {amount_in_dollars(price.input)} for input and "
        f"{amount_in_dollars(price.output)} for output"
        for name, price in estimate.prices.items()
        if price is not None
    ]
    what = "team" if estimate.is_team else "recipe"
    sentences = [f"No completed run of this {what} was found here."]
    if known:
        sentences.append(f"Prices of a million tokens: {'; '.join(known)}.")
    return sentences
