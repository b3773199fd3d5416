"""The day budget of a user, which all runs of the user on a machine share.

    the user's configuration directory    config.toml, with `day_budget` in US dollars
    the user's state directory            spending/2026-11-28.json, one entry per turn
                                          spending/lock

A run reserves a part of the budget before it spends it; see `nb_agents.turns.ledger`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path

from platformdirs import user_config_path, user_state_path

from nb_agents.errors import UserError
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.budget import cost_of_turn, dollars_from
from nb_agents.turns.ledger import Ledger, LedgerError
from nb_agents.view.fold import fold

DAY_BUDGET = "NB_AGENTS_DAY_BUDGET"
"""The environment variable with the highest day budget of the user, in US dollars."""


def day_limit() -> float | None:
    """Return the user's day budget in US dollars: the stricter of configuration and environment.

    The environment with which the process started counts, too, so that code in a notebook can't
    raise the limit of a hub.

    Raises:
        UserError: A limit is not a number above 0.
    """
    path = user_config_path("nb_agents") / "config.toml"
    limits = [
        _configured(path),
        dollars_from(os.environ.get(DAY_BUDGET, ""), DAY_BUDGET),
        dollars_from(_initial_value(), DAY_BUDGET),
    ]
    return min((each for each in limits if each is not None), default=None)


def _configured(path: Path) -> float | None:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as exc:
        raise UserError(f"{path} can't be read: {exc}.") from None
    try:
        value = tomllib.loads(text).get("day_budget")
    except tomllib.TOMLDecodeError as exc:
        raise UserError(f"{path} is not valid TOML: {exc}.") from None
    return None if value is None else dollars_from(str(value), f"`day_budget` in {path}")


@cache
def _initial_value() -> str:
    """Return the variable's value when the process started, or "" if that is unknown."""
    try:
        variables = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # not Linux
        return ""
    prefix = f"{DAY_BUDGET}=".encode()
    amounts = (each.removeprefix(prefix) for each in variables if each.startswith(prefix))
    return next(amounts, b"").decode("utf-8", "replace")


def cost_if_over(turn: str) -> float | None:
    """Return the cost of a turn whose process has ended, or None if it is live or unreadable."""
    paths = TurnPaths(Path(turn))
    if paths.is_live():
        return None
    return cost_of_turn(fold(past_events(paths)))


class DayLedger(Ledger):
    """The cost of a user's turns on each day, in US dollars. The keys are the turns' paths.

    Args:
        folder: The directory of the ledger. By default, it is in the user's state directory.
        final_cost: Returns the cost of a turn whose process has ended, and None for a live one.
        today: Returns the day.
    """

    def __init__(
        self,
        folder: Path | None = None,
        final_cost: Callable[[str], float | None] = cost_if_over,
        today: Callable[[], date] = date.today,
    ) -> None:
        super().__init__(folder or user_state_path("nb_agents") / "spending", final_cost)
        self._today = today

    @property
    def path(self) -> Path:
        """The file of the day."""
        return self._folder / f"{self._today().isoformat()}.json"

    @property
    def remedy(self) -> str:
        """A sentence that says what to do with a damaged file."""
        return "Delete it to count the day from 0 again."

    def before(self, key: str) -> float:
        """Return the cost of a turn on earlier days. The last earlier ledger has the total."""
        earlier = sorted(path for path in self._folder.glob("*.json") if path < self.path)
        entry = self.read(earlier[-1]).get(key) if earlier else None
        return entry.before + entry.spent if entry else 0.0


def check_day_budget() -> None:
    """Check that something is left of the user's day budget.

    Raises:
        UserError: The budget of the day is used up, or can't be checked.
    """
    limit = day_limit()
    if limit is None:
        return
    try:
        spent = DayLedger().total()
    except LedgerError as exc:
        raise UserError(f"The day budget can't be checked: {exc}") from exc
    if spent >= limit:
        raise UserError(
            f"{used_up_today(spent, limit)}. It starts again at midnight. It is set by "
            f"`day_budget` in {user_config_path('nb_agents') / 'config.toml'}, or by {DAY_BUDGET}."
        )


def used_up_today(spent: float, limit: float) -> str:
    """Return a description of a used-up day budget."""
    return f"The day budget is used up (${spent:.4g} of ${limit:.4g})"
