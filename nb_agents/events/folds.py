"""Folds over events. A fold must handle or ignore every kind of event explicitly.

A fold declares a function for a kind of event (`Fold.on`). If it has none, either the fold ignores
the kind (`Fold.ignore`), or the event class names the fold in ``ignored_by``. A kind of nb_agents
with none of these is an error when the fold's module is imported. A fold can be limited to some
classes of events (``of``), and ignores all others. A kind of another package that a fold doesn't
mention does not change it, unless the package calls `register_events`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from nb_agents.events.base_event import KINDS, Event

__all__ = ["Fold", "register_events"]

_State = TypeVar("_State")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_OURS = f"{__package__.partition('.')[0]}."

FOLDS: dict[str, Fold[Any]] = {}
"""The folds whose modules are imported, by name."""


class Fold(Generic[_State]):
    """A fold, with a function for each kind of event.

    Args:
        name: The fold's name, for error messages and for ``ignored_by`` of events.
        of: The event classes, or their base classes, that can change the state.
    """

    def __init__(self, name: str, of: tuple[type[Event], ...] = (Event,)) -> None:
        self.name = name
        self._of = of
        self._functions: dict[str, Callable[[_State, Any], _State] | None] = {}
        FOLDS[name] = self

    def on(self, *kinds: type[Event]) -> Callable[[_Function], _Function]:
        """Declare the function that handles some kinds of events.

        Args:
            kinds: The event classes.

        Returns:
            A decorator for a function of the state and an event, which returns the new state.
        """

        def declare(function: _Function) -> _Function:
            self._functions.update((kind.kind, function) for kind in kinds)
            return function

        return declare

    def ignore(self, *kinds: type[Event]) -> None:
        """Declare that some kinds of events do not change the state."""
        self._functions.update((kind.kind, None) for kind in kinds)

    def forget(self, *kinds: type[Event]) -> None:
        """Remove the declarations for the events of an extension that was unregistered."""
        for kind in kinds:
            self._functions.pop(kind.kind, None)

    def apply(self, state: _State, event: Event) -> _State:
        """Return the state after an event. Events of unknown kinds do not change it."""
        function = self._functions.get(event.kind)
        return state if function is None else function(state, event)

    def check(self, kinds: Iterable[str] | None = None) -> None:
        """Check that each kind has a function or is ignored, and not both.

        Args:
            kinds: The kinds to check. Default: all registered kinds of nb_agents.

        Raises:
            NotImplementedError: A kind has no function and is not ignored.
            TypeError: A kind has a function, but its class or the fold's ``of`` ignores it.
        """
        if kinds is None:
            kinds = (k for k, event in KINDS.items() if event.__module__.startswith(_OURS))
        classes = [KINDS[kind] for kind in kinds]
        missing = [each for each in classes if not self._mentions(each)]
        if missing:
            raise NotImplementedError(
                f"The fold {self.name!r} does not handle {_names(missing)}. Declare a function "
                f"with @{self.name.upper()}.on, or ignored_by=({self.name!r},) in the event class."
            )
        both = [e for e in classes if self._functions.get(e.kind) and self._is_outside(e)]
        if both:
            raise TypeError(f"The fold {self.name!r} both ignores and handles {_names(both)}.")

    def _mentions(self, event: type[Event]) -> bool:
        return event.kind in self._functions or self._is_outside(event)

    def _is_outside(self, event: type[Event]) -> bool:
        return self.name in event.ignored_by or not issubclass(event, self._of)


def _names(classes: Iterable[type[Event]]) -> str:
    return ", ".join(each.__name__ for each in classes)


def register_events(*classes: type[Event]) -> None:
    """Register the events of an extension.

    Args:
        classes: The event classes. Each imported fold must handle or ignore them.

    Raises:
        NotImplementedError: A fold does not handle or ignore a class.
    """
    for fold in FOLDS.values():
        fold.check([each.kind for each in classes])
