"""A turn that is over and that memory has let go of: read anew from its files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property

from nb_agents.session.history import load_turn, past_events
from nb_agents.session.layout import TurnPaths
from nb_agents.timeline import Timeline, TimelineFold
from nb_agents.view import RunView

__all__ = ["PastTurn"]


class PastTurn:
    """What a handle needs of such a turn.

    Args:
        paths: Where it is.
        agents: Ids of its agents.
        crash: A defect that ended it, or None.
    """

    def __init__(self, paths: TurnPaths, agents: Sequence[str], crash: Exception | None) -> None:
        self._paths = paths
        self.agents = agents
        self.crash = crash
        self.done: Future[None] = Future()
        self.done.set_result(None)

    @cached_property
    def view(self) -> RunView:
        """The turn as it ended."""
        return load_turn(self._paths).view

    @cached_property
    def timeline(self) -> Timeline:
        """What happened, and when."""
        fold = TimelineFold()
        for event in past_events(self._paths):
            fold.add(event)
        return fold.timeline()

    @property
    def next_step(self) -> str:
        """Of a stopped recipe: the step that comes next; else ""."""
        return next(iter(self.view.next), "")
