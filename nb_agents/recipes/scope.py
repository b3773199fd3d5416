"""The variables that the steps of a recipe see, while a walk goes through them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Scope"]


@dataclass
class Scope:
    """What the steps of one list see.

    Attributes:
        values: The context variables.
        set_by_steps: Those that steps have set, in the order in which they did so last.
        missing: The steps that others can't depend on, by id: what became of them.
        last: What the last step gave.
    """

    values: dict[str, Any]
    set_by_steps: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    last: Any = None

    def set(self, name: str | None, value: Any) -> None:
        """Set a variable, as a step's output, if the step names one."""
        if name:
            self.values[name] = value
            self.set_by_steps.pop(name, None)
            self.set_by_steps[name] = value

    def copy(self, **more: Any) -> Scope:
        """Give a scope that sees the same, and whose changes stay in it."""
        return Scope({**self.values, **more}, {}, dict(self.missing))

    @contextmanager
    def bound(self, **values: Any) -> Iterator[None]:
        """Set variables within a block; a nested loop gives the outer one its own back."""
        hidden = {name: self.values[name] for name in values if name in self.values}
        self.values |= values
        try:
            yield
        finally:
            for name in values:
                self.values.pop(name, None)
            self.values |= hidden
