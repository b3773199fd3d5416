"""What answers the calls of a turn in place of its models, tools and commands, as a replay does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from nb_agents.context import within

if TYPE_CHECKING:
    from nb_agents.agents.runner import AgentRunner
    from nb_agents.config.team import AgentSpec
    from nb_agents.events import Event
    from nb_agents.events.turn_events import Command
    from nb_agents.models.retry import Wait
    from nb_agents.process.command import Finished


class StandIn(Protocol):
    """Answers the calls of one turn. All methods are called on the loop, except `runner`."""

    def attach(self, take: Callable[[Command], object], emit: Callable[[Event], None]) -> None:
        """Receive the functions of the turn before it starts to work.

        Args:
            take: Carries out a command.
            emit: Records an event.
        """
        ...

    def observe(self, event: Event) -> None:
        """Receive an event that the turn has recorded."""
        ...

    def runner(self, agent: AgentSpec) -> AgentRunner:
        """Return the runner of an agent."""
        ...

    def is_usable(self, agent: AgentSpec) -> bool:
        """Return whether an agent's model can be called."""
        ...

    async def retry_after(
        self, error: Exception, attempt: int, waited_s: float = 0.0
    ) -> Wait | None:
        """Return the delay before a failed model call is tried again, or None to give up."""
        ...

    def error(self) -> Exception | None:
        """Return the error to raise to those who wait for the turn, or None."""
        ...

    def recipe(self, address: str) -> Event | None:
        """Return the event with the recipe that a step calls, or None to read its file.

        Args:
            address: The step's address.

        Raises:
            UserError: The step called no recipe.
        """
        ...

    async def command(self, address: str, attempt: int, write: Callable[[str], None]) -> Finished:
        """Return the result of a step's command.

        Args:
            address: The step's address.
            attempt: The number of the attempt, starting at 1.
            write: Receives the output.

        Raises:
            OSError: The command failed.
        """
        ...


_current: ContextVar[StandIn | None] = ContextVar("nb_agents_stand_in", default=None)


def standing_in(stand_in: StandIn) -> AbstractContextManager[None]:
    """Let ``stand_in`` answer the calls of the turns that are started in the block."""
    return within(_current, stand_in)


def current_stand_in() -> StandIn | None:
    """Return what answers the calls of a turn that is started now, or None for the real ones."""
    return _current.get()
