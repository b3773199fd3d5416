"""The arguments that `nb_agents.map` and `nb_agents.compare` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.manifest import DEFAULT_LIMIT
from nb_agents.launch.start import named_in
from nb_agents.options import RunOptions


@dataclass(frozen=True)
class SweepRequest:
    """The arguments of `nb_agents.map` that `nb_agents.compare` also has."""

    source: Any
    task: str
    _: KW_ONLY
    name: str = ""
    limit: int = DEFAULT_LIMIT
    max_cost: float | None = None
    retry_failed: bool = False
    tools: Sequence[Callable[..., Any]] = ()
    options: RunOptions | None = None

    def reading_mentions(self) -> Self:
        """Return the request without the @ marks of the task. Agents may read the marked files.

        Raises:
            TaskError: As for `named_in`.
        """
        task, options = named_in(self.task, self.options or RunOptions())
        return replace(self, task=task, options=options)

    def check(self) -> None:
        """Raise `UserError` for an invalid argument."""
        if self.limit < 1:
            raise UserError(f"The limit is {self.limit}. Use 1 or more.")
        if self.max_cost is not None and not self.max_cost > 0:
            raise UserError(
                f"max_cost is {self.max_cost!r} US dollars. Use a number greater than 0."
            )
