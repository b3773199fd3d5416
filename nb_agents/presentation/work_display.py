"""How panels, live views and cards show a turn: a team's rounds, or the steps of other work.

Steps are shown without the extension that ran them, so both displays are in the core. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from nb_agents.nouns import count
from nb_agents.presentation import steps_card, text
from nb_agents.presentation.panel_types import AgentRow
from nb_agents.presentation.rows import UnitRow, team_rows, units
from nb_agents.view.run_view import AgentView, RunView

MAX_UNITS = 60
"""Maximum number of rows of steps in a panel."""


class WorkDisplay(Protocol):
    """How turns of one kind of work are shown.

    Attributes:
        bar: What the panel's bar measures.
        stop_title, stop_now_title: The tooltips of the panel's stop button, by its level.
        reader: What reads the user's messages.
        next_action: What a user can do with an incomplete turn.
    """

    bar: str
    stop_title: str
    stop_now_title: str
    reader: str
    next_action: str

    def fraction(self, view: RunView, now: float) -> float:
        """Return the length of the panel's bar, from 0 to 1."""
        ...

    def rows(self, view: RunView, now: float) -> list[AgentRow]:
        """Return the rows of the panel."""
        ...

    def lines(self, view: RunView, now: float, limit: int) -> list[tuple[str, str, str]]:
        """Return up to ``limit`` rows of a terminal as (name, state, text)."""
        ...

    def read_by(self, view: RunView) -> str:
        """Return a text about who has read the last message, or "" if nobody can read it."""
        ...

    def states(self, view: RunView) -> list[tuple[str, str]]:
        """Return the agents of a live turn with their states, for a card."""
        ...

    def ended_at(self, view: RunView) -> str:
        """Return where an incomplete turn ended, as a clause, or ""."""
        ...

    def work_counts(self, view: RunView) -> list[str]:
        """Return the numbers of saved results of an incomplete turn, without zeros."""
        ...


class _TeamDisplay:
    """Shows the agents of a team."""

    bar = "Time used"
    stop_title = "Stop after the calls in flight. Answers, files and streamed text are saved."
    stop_now_title = (
        "Interrupt the calls in flight now. Text received so far is saved as partial text."
    )
    reader = "agent"
    next_action = "Resume or continue"

    def fraction(self, view: RunView, now: float) -> float:
        return text.elapsed(view, now)[1]

    def rows(self, view: RunView, now: float) -> list[AgentRow]:
        return team_rows(view, now)

    def lines(self, view: RunView, now: float, limit: int) -> list[tuple[str, str, str]]:
        return [(row["id"], row["chip"], row["says"]) for row in self.rows(view, now)[:limit]]

    def read_by(self, view: RunView) -> str:
        # A called agent receives only its input.
        readers = [a for a in view.agents.values() if a.outcome is None and not a.caller]
        if view.phase == "presenting":
            readers = [a for a in readers if a.id == view.winner]
        number = _have_read(readers, view)
        read = "read by all" if number == len(readers) else f"read by {number} of {len(readers)}"
        return read if readers else ""

    def states(self, view: RunView) -> list[tuple[str, str]]:
        return [(agent.id, text.agent_state(agent)) for agent in view.agents.values()]

    def ended_at(self, view: RunView) -> str:
        return f", while {view.phase}"

    def work_counts(self, view: RunView) -> list[str]:
        answers = sum(1 for a in view.agents.values() if a.answers)
        partials = sum(1 for a in view.agents.values() if a.unsubmitted)
        return [text.count_any(answers, "answer"), text.count_any(partials, "partial text")]


class _StepsDisplay:
    """Shows the steps of a recipe, or of another extension's kind of work."""

    bar = "Steps complete"
    stop_title = "Stop after the current steps. Outputs, files and streamed text are saved."
    stop_now_title = (
        "Interrupt the current steps now. Their text is saved. A resume repeats the steps."
    )
    reader = "step"
    next_action = "Resume"

    def fraction(self, view: RunView, now: float) -> float:
        return text.done(view)

    def rows(self, view: RunView, now: float) -> list[AgentRow]:
        current = view.current_step
        return [
            _unit_row(unit, unit.address == current, _has_words(unit.address, view))
            for unit in units(view, now, MAX_UNITS)
        ]

    def lines(self, view: RunView, now: float, limit: int) -> list[tuple[str, str, str]]:
        return [("  " * u.depth + u.name, u.chip, u.says) for u in units(view, now, limit)]

    def read_by(self, view: RunView) -> str:
        number = _have_read(view.agents.values(), view)
        return f"read in {count(number, 'step')}" if number else "not read yet"

    def states(self, view: RunView) -> list[tuple[str, str]]:
        return []

    def ended_at(self, view: RunView) -> str:
        return steps_card.end_location(view)

    def work_counts(self, view: RunView) -> list[str]:
        return steps_card.work_counts(view)


_TEAM: WorkDisplay = _TeamDisplay()
_STEPS: WorkDisplay = _StepsDisplay()


def display_of(view: RunView) -> WorkDisplay:
    """Return how a turn is shown."""
    return _STEPS if view.has_steps else _TEAM


def _have_read(readers: Iterable[AgentView], view: RunView) -> int:
    return sum(agent.heard >= len(view.said) for agent in readers)


def _has_words(address: str, view: RunView) -> bool:
    step = view.steps.get(address)
    return address in view.agents or (step is not None and step.unit == "bash")


def _unit_row(unit: UnitRow, is_current: bool, opens: bool) -> AgentRow:
    return {
        "id": unit.address,
        "name": unit.name,
        "depth": unit.depth,
        "model": unit.does,
        "chip": unit.chip,
        "tone": unit.tone,
        "says": unit.says,
        "writing": unit.is_writing,
        "numbers": unit.numbers,
        "stop": unit.stop,
        "title": unit.asks,
        "pending": unit.is_pending,
        "current": is_current,
        "opens": opens,
    }
