"""The budget of a task: its limits on cost and tokens, which all turns of the task share."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import NamedTuple, cast, get_args

from nb_agents.config.orchestrator import OnBudget
from nb_agents.config.team import TeamSpec
from nb_agents.context import within
from nb_agents.errors import UserError
from nb_agents.models.usage import REPORT_STEP
from nb_agents.nouns import amount_in_dollars, token_count
from nb_agents.options import RunOptions
from nb_agents.view.run_view import RunView, doubled

MAX_COST = "NB_AGENTS_MAX_COST"
"""The environment variable with the highest cost of a task in US dollars."""

CHOICES = get_args(OnBudget)

_AMOUNT = re.compile(r"\$? ?(\d[\d_,]{0,18}(?:\.\d{1,9})?)(?: ?(?:tokens|USD|dollars))?")

STEP_SHARE = 0.0005
"""The share of a budget in tokens that one open call may use before it is journalled again."""

COST_STEP = 50
"""The same in tokens, for a budget in US dollars."""


class Budget(NamedTuple):
    """The limits on the total cost and tokens of all turns of a task.

    Attributes:
        max_cost: US dollars. None means no limit.
        max_tokens: Tokens. None means no limit.
    """

    max_cost: float | None = None
    max_tokens: int | None = None


class Spent(NamedTuple):
    """What a task or a turn has used.

    Attributes:
        tokens: The number of tokens.
        cost: US dollars, excluding calls whose price is unknown.
    """

    tokens: int = 0
    cost: float = 0.0


def usage_of_task(view: RunView) -> Spent:
    """Return what a turn and the turns that it resumes have used."""
    return Spent(view.task_tokens, view.task_cost)


def usage_of_turn(view: RunView) -> Spent:
    """Return what a turn has used."""
    return Spent(view.tokens, cost_of_turn(view))


def budget_of(team: TeamSpec, options: RunOptions) -> Budget:
    """Return the budget of a task from its options or, by default, its team file.

    The environment variable `MAX_COST` can only lower the cost.

    Raises:
        UserError: The environment variable is not a number above 0.
    """
    limits = team.orchestrator
    chosen = limits.max_cost if options.max_cost is None else options.max_cost
    costs = [each for each in (chosen, dollars_in_environment(MAX_COST)) if each is not None]
    return Budget(
        min(costs, default=None),
        limits.max_tokens if options.max_tokens is None else options.max_tokens,
    )


def asks_at_budget(team: TeamSpec, options: RunOptions) -> bool:
    """Return whether a task that uses up its budget asks the user to raise it."""
    return (options.on_budget or team.orchestrator.on_budget) == "ask"


def with_budget_of(view: RunView, options: RunOptions) -> RunOptions:
    """Return the options of a resume. If they set no budget, the budget of the task applies.

    Args:
        view: The turn to resume.
        options: The options of the resume.
    """
    on_budget = options.on_budget or (view.on_budget if view.on_budget in CHOICES else None)
    return replace(
        options,
        max_cost=view.max_cost if options.max_cost is None else options.max_cost,
        max_tokens=view.max_tokens if options.max_tokens is None else options.max_tokens,
        on_budget=cast(OnBudget | None, on_budget),
    )


def next_budget(used: Spent, budget: Budget) -> Budget:
    """Return the doubled limits of those that a task has used up, and None for the others.

    Args:
        used: What the task has used.
        budget: The limits.
    """
    proposed = propose_raise(used, budget)
    if proposed is None:
        return Budget()
    pairs = zip(budget, proposed.budget, strict=True)
    return Budget(*(new if new != old else None for old, new in pairs))  # type: ignore[arg-type]


class Raise(NamedTuple):
    """A proposal to raise a used-up budget.

    Attributes:
        budget: The budget after the raise.
        question: The question to the user.
    """

    budget: Budget
    question: str


def propose_raise(used: Spent, budget: Budget) -> Raise | None:
    """Return a proposal to double a used-up budget. None if the environment doesn't allow it.

    Args:
        used: What the task has used.
        budget: The limits, of which at least one is used up.
    """
    tokens, cost = used
    spent, amounts = [], []
    if budget.max_tokens is not None and tokens >= budget.max_tokens:
        raised_tokens = int(doubled(budget.max_tokens, tokens))
        budget = budget._replace(max_tokens=raised_tokens)
        spent.append(token_count(tokens))
        amounts.append(token_count(raised_tokens))
    if budget.max_cost is not None and cost >= budget.max_cost:
        budget = _limited(budget._replace(max_cost=doubled(budget.max_cost, cost)))
        if budget.max_cost is None or budget.max_cost <= cost:
            return None
        spent.append(amount_in_dollars(cost))
        amounts.append(amount_in_dollars(budget.max_cost))
    raised = " and ".join(amounts)
    hint = "" if len(amounts) > 1 else " Approve with a number as the message for another amount."
    return Raise(budget, f"{' and '.join(spent)} used. Raise the budget to {raised}?{hint}")


def chosen_raise(old: Budget, proposed: Budget, message: str) -> Budget:
    """Return the budget after a user has approved a raise.

    Args:
        old: The used-up budget.
        proposed: The proposed budget.
        message: The user's message, which may be another amount, such as "3.50" or "$3.50".
    """
    amount = _amount(message)
    changed = [name for name in Budget._fields if getattr(old, name) != getattr(proposed, name)]
    if amount is None or len(changed) != 1:
        return proposed
    if changed == ["max_tokens"]:
        return proposed._replace(max_tokens=int(amount))
    return _limited(proposed._replace(max_cost=amount))


def _limited(budget: Budget) -> Budget:
    """Return the budget with at most the cost that the environment allows."""
    most = dollars_in_environment(MAX_COST)
    costs = [each for each in (budget.max_cost, most) if each is not None]
    return budget._replace(max_cost=min(costs, default=None))


def _amount(message: str) -> float | None:
    match = _AMOUNT.fullmatch(message.strip())
    value = float(match[1].replace(",", "").replace("_", "")) if match else 0.0
    return value if 0 < value < math.inf else None


def dollars_in_environment(name: str) -> float | None:
    """Return the US dollars in an environment variable. None if it is not set or empty.

    Raises:
        UserError: The value is not a number above 0.
    """
    return dollars_from(os.environ.get(name, ""), name)


def dollars_from(text: str, name: str) -> float | None:
    """Return the US dollars in a text. None if it is empty.

    Args:
        text: The text, such as "0.5" or "$0.5".
        name: Where the text comes from, for the error message.

    Raises:
        UserError: The text is not a number above 0.
    """
    if not (text := text.strip()):
        return None
    try:
        value = float(text.removeprefix("$"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"{name} is {text!r}. Use a number above 0, in US dollars.")
    return value


_process_limit: ContextVar[float | None] = ContextVar("nb_agents_process_limit", default=None)


def with_process_limit(max_cost: float | None) -> AbstractContextManager[None]:
    """Limit the cost of a task that the block starts in another process.

    The limit applies only in that process. It is not recorded as the task's budget.

    Args:
        max_cost: US dollars, including the earlier turns of the task. None means no limit.
    """
    return within(_process_limit, max_cost)


def process_limit_variable() -> Mapping[str, str]:
    """Return the environment variable that applies `with_process_limit` in another process."""
    if (limit := _process_limit.get()) is None:
        return {}
    most = dollars_in_environment(MAX_COST)
    return {MAX_COST: repr(limit if most is None else min(limit, most))}


def rest_of_budget(options: RunOptions, views: Sequence[RunView]) -> RunOptions:
    """Return options whose budget is what earlier tasks have left of it.

    Args:
        options: The options, with the budget of all tasks together.
        views: The views of the earlier tasks.

    Raises:
        UserError: Nothing is left.
    """
    whole = Budget(options.max_cost, options.max_tokens)
    tokens, cost = sum(each.tokens for each in views), sum(map(cost_of_turn, views))
    if reason := used_up(Spent(tokens, cost), whole):
        raise UserError(
            f"Nothing more can be started: the budget is used up ({reason.removesuffix(' used')})."
        )
    return replace(
        options,
        max_cost=None if whole.max_cost is None else whole.max_cost - cost,
        max_tokens=None if whole.max_tokens is None else whole.max_tokens - tokens,
    )


def left_of_budget(used: Spent, budget: Budget) -> Budget:
    """Return what a task has left of its budget. The numbers can be 0 or less.

    Args:
        used: What the task has used.
        budget: The limits.
    """
    return Budget(
        None if budget.max_cost is None else budget.max_cost - used.cost,
        None if budget.max_tokens is None else budget.max_tokens - used.tokens,
    )


def cost_of_turn(view: RunView) -> float:
    """Return the cost of a turn in US dollars, without calls whose price is unknown."""
    return view.task_cost - view.cost_before


def used_up(used: Spent, budget: Budget) -> str:
    """Return a description of the limit that is used up, or "".

    Agents without a known price count towards the tokens only.
    """
    if budget.max_tokens is not None and used.tokens >= budget.max_tokens:
        return f"{used.tokens:,} of {token_count(budget.max_tokens)} used"
    if budget.max_cost is not None and used.cost >= budget.max_cost:
        return f"${used.cost:.4g} of ${budget.max_cost:.4g} used"
    return ""


def used_share(used: Spent, budget: Budget) -> float:
    """Return the share of a task's budget that is used, from 0 on; 0 without a budget."""
    return max(
        used.tokens / budget.max_tokens if budget.max_tokens else 0.0,
        used.cost / budget.max_cost if budget.max_cost else 0.0,
    )


def report_step(budget: Budget) -> int:
    """Return the number of tokens after which the usage of an open call is journalled again."""
    if budget.max_tokens is None:
        return REPORT_STEP if budget.max_cost is None else COST_STEP
    return min(REPORT_STEP, max(1, int(budget.max_tokens * STEP_SHARE)))


def check_used(view: RunView, used: Spent, budget: Budget) -> None:
    """Check that a turn can be resumed within its task's budget.

    Args:
        view: The turn.
        used: What the task has used.
        budget: The limits of the resume.

    Raises:
        UserError: The budget is used up.
    """
    if not (reason := used_up(used, budget)):
        return
    reason = reason.removesuffix(" used")
    if budget.max_tokens is not None and used.tokens >= budget.max_tokens:
        name, number = "max_tokens", f"{doubled(budget.max_tokens, used.tokens):.0f}"
    else:
        name, number = "max_cost", f"{doubled(budget.max_cost or 0.01, used.cost):.4g}"
    flag = "--" + name.replace("_", "-")
    fixed = _fixed_by_environment(budget) if name == "max_cost" else ""
    raise UserError(
        f"Turn {view.session}/{view.turn} can't be resumed: its budget is used up "
        f"({reason}). Raise the limit{fixed}: `{flag} {number}` at the resume, "
        f"RunOptions({name}={number}) in Python, `{name}` in the body of an HTTP request, or "
        f"`orchestrator.{name}` in the team file."
    )


def _fixed_by_environment(budget: Budget) -> str:
    is_fixed = budget.max_cost is not None and budget.max_cost == dollars_in_environment(MAX_COST)
    return f", which {MAX_COST} sets to at most ${budget.max_cost:.4g}" if is_fixed else ""


def unpriced(view: RunView) -> tuple[str, ...]:
    """Return the distinct models of agents without a known price."""
    return tuple(dict.fromkeys(a.model for a in view.agents.values() if a.cost is None))


def unpriced_notice(models: Sequence[str], effect: str = "does not count towards max_cost") -> str:
    """Return a notice about models without a known price.

    Args:
        models: The models.
        effect: What is not done with their cost.
    """
    if len(models) == 1:
        return f"The price of {models[0]} is unknown. Its cost {effect}."
    return f"The prices of {', '.join(models)} are unknown. Their cost {effect}."
