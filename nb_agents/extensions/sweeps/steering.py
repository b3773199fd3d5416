"""What the user can change about a sweep while it runs. Pure decisions.

A change is a note of the sweep (`Steered`) before it takes effect. So a sweep whose process died
continues with the same limits, pauses and requeued rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, NamedTuple

from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.notes import RowResult, Steered, SweepBegan
from nb_agents.nouns import did_you_mean
from nb_agents.signatures import described

ALL_FAILED = "failed"
"""Requeues all failed rows. No row has this name, because each name ends with a hash or number."""

MAX_LIMIT = 1000
"""Maximum number of rows that run at the same time."""


@dataclass(frozen=True)
class SteerRequest:
    """The arguments of `Sweep.steer`, which describes them.

    Raises:
        UserError: An argument is invalid, or nothing is to change.
    """

    sweep: str = field(metadata=described("the sweep"))
    _: KW_ONLY
    limit: int | None = field(
        default=None,
        metadata=described("maximum number of rows that run at the same time", metavar="N"),
    )
    max_cost: float | None = field(
        default=None,
        metadata=described("budget of all rows together in US dollars", metavar="USD"),
    )
    timeout: float | None = field(
        default=None,
        metadata=described(
            "time limit of each row in seconds, counted from its start", metavar="SECONDS"
        ),
    )
    pause_model: str = field(
        default="",
        metadata=described(
            "a model or provider, such as openai:gpt-5-mini or openai, whose rows to pause",
            metavar="MODEL",
        ),
    )
    unpause_model: str = field(
        default="",
        metadata=described("a model or provider whose rows to unpause", metavar="MODEL"),
    )
    requeue: str = field(
        default="",
        metadata=described(
            f"a row to run again, by its name or title, or {ALL_FAILED} for all failed rows",
            metavar="ROW",
        ),
    )
    score: bool = field(
        default=False, metadata=described("score what the running rows have written so far")
    )

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.limit is not None and not 1 <= self.limit <= MAX_LIMIT:
            raise UserError(f"The limit is {self.limit}. Use 1 to {MAX_LIMIT}.")
        for name, value, unit in (
            ("max_cost", self.max_cost, "US dollars"),
            ("timeout", self.timeout, "seconds"),
        ):
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} is {value!r} {unit}. Use a number greater than 0.")
        if not self.changes:
            flags = ", ".join(
                f"--{each.name.replace('_', '-')}" for each in fields(self) if each.name != "sweep"
            )
            raise UserError(f"Nothing is to be changed. Give one of {flags}.")

    @property
    def changes(self) -> dict[str, Any]:
        """The arguments that are given, by name, as JSON values."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        del given["sweep"]
        return {name: value for name, value in given.items() if value not in (None, "", False)}


class Steering(NamedTuple):
    """The current limits of a sweep, and the models whose rows are paused.

    Attributes:
        limit: Maximum number of rows that run at the same time.
        max_cost: Budget of all rows together in US dollars. None means no limit.
        timeout: Time limit of each row in seconds. None means the limit of its team.
        paused: The models and providers whose rows are paused.
    """

    limit: int = 0
    max_cost: float | None = None
    timeout: float | None = None
    paused: tuple[str, ...] = ()

    def after(self, note: Steered) -> Steering:
        """Return the state after a change."""
        paused = dict.fromkeys(self.paused)
        if note.unpause_model:
            paused.pop(note.unpause_model, None)
        if note.pause_model:
            paused[note.pause_model] = None
        return Steering(
            self.limit if note.limit is None else note.limit,
            self.max_cost if note.max_cost is None else note.max_cost,
            self.timeout if note.timeout is None else note.timeout,
            tuple(paused),
        )

    def at_start(self, before: SweepBegan, began: SweepBegan) -> Steering:
        """Return the state when a process starts the sweep again.

        A limit that the user changed remains, unless the new call has another one than before.

        Args:
            before: The previous start.
            began: The new start, with the limits of the call.
        """
        return Steering(
            began.limit if began.limit != before.limit else self.limit,
            began.max_cost if began.max_cost != before.max_cost else self.max_cost,
            began.timeout if began.timeout != before.timeout else self.timeout,
            self.paused,
        )


def names_of_models(models: Iterable[str]) -> tuple[str, ...]:
    """Return the names by which models can be paused: providers, then each model.

    Args:
        models: The models as "provider:model", or "provider" if it has only one.
    """
    names = dict.fromkeys(models)
    return tuple(dict.fromkeys([*(name.partition(":")[0] for name in names), *names]))


def pausable(models: Collection[str]) -> tuple[str, ...]:
    """Return the names that a panel offers: no provider with one model, nor the only model."""
    if len(models) < 2:
        return ()
    providers = [name.partition(":")[0] for name in models]
    several = (name for name in dict.fromkeys(providers) if providers.count(name) > 1)
    return (*several, *models)


def uses_paused(models: Iterable[str], paused: Collection[str]) -> bool:
    """Return whether a row uses a paused model.

    Args:
        models: The row's models, as for `names_of_models`.
        paused: The paused models, as "provider:model", "provider" or "model".
    """
    return any(
        {name, name.partition(":")[0], name.partition(":")[2]} & {*paused} for name in models
    )


def check_model(name: str, models: Iterable[str]) -> None:
    """Check the name of a model to pause.

    Raises:
        UserError: The sweep does not use the model.
    """
    known = names_of_models(models)
    if known and not uses_paused(known, {name}):
        raise UserError(
            f"No row of the sweep uses {name!r}.{did_you_mean(name, known)} "
            f"The rows use: {', '.join(known)}."
        )


def rows_named(
    name: str, results: Mapping[str, RowResult], titles: Mapping[str, str], live: Collection[str]
) -> list[str]:
    """Return the rows to requeue.

    Args:
        name: A row's name or title, or `ALL_FAILED`.
        results: The results of rows by name.
        titles: Titles of rows by name.
        live: The names of the running rows.

    Raises:
        UserError: No row has the name, several have the title, or the row is complete or has not
            started yet.
    """
    if name == ALL_FAILED:
        failed = [row for row, each in results.items() if each.status == "failed"]
        rows = [row for row in failed if row not in live]
        if not rows:
            raise UserError("No row has failed, so none can run again.")
        return rows
    if name in results or name in live:
        rows = [name]
    else:
        rows = [row for row, title in titles.items() if title == name]
    if not rows:
        raise UserError(
            f"No row {name!r} has started. A row that has not started yet is in the queue already."
        )
    if len(rows) > 1:
        raise UserError(f"Several rows are titled {name!r}: {', '.join(rows)}. Use a row's name.")
    [row] = rows
    if row not in live and (row not in results or results[row].status == "completed"):
        state = "complete" if row in results else "not started yet"
        raise UserError(f"Row {row!r} is {state}. Only a running or failed row can be requeued.")
    return rows


def position_of_next(waiting: Iterable[Any], is_paused: Callable[[Any], bool]) -> int | None:
    """Return the position of the first waiting row that may start, or None."""
    return next((at for at, row in enumerate(waiting) if not is_paused(row)), None)
