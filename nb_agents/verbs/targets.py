"""The targets of verbs: runs and groups of runs. Both accept the same requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nb_agents.cancel import StopResult, StopSource
from nb_agents.errors import UserError
from nb_agents.launch.run import Run
from nb_agents.turns.groups import Group, GroupFacts, kind_of
from nb_agents.verbs.facts import WholeTurnFacts, run_facts
from nb_agents.verbs.outcome import Work


class Target(ABC):
    """The run or group that a verb acts on.

    Attributes:
        name: The name that commands use.
        noun: What it is called, such as "run". Also the JSON key of its name.
        after_stop: What may still happen after a graceful stop, as a phrase.
        while_paused: What does not happen during a pause, as a phrase.
        has_agents: Whether it has agents, which can be stopped alone.
    """

    name: str
    noun: str
    after_stop: str
    while_paused: str
    has_agents: bool

    def __str__(self) -> str:
        return f"{self.noun} {self.name}"

    @property
    def at_start(self) -> str:
        """The noun and the name, such as "Run r1", for the beginning of a sentence."""
        return f"{self}"[:1].upper() + f"{self}"[1:]

    @property
    @abstractmethod
    def status(self) -> str:
        """The current state."""

    @property
    @abstractmethod
    def is_resumable(self) -> bool:
        """Whether the target has ended and could be resumed as a new turn."""

    @property
    @abstractmethod
    def start_facts(self) -> Mapping[str, Any]:
        """The data that a reply contains about a target that has just started."""

    @property
    @abstractmethod
    def run(self) -> Run:
        """The run.

        Raises:
            UserError: It is a group.
        """

    @property
    @abstractmethod
    def facts(self) -> WholeTurnFacts | GroupFacts:
        """All data about a run, or the list entry of a group."""

    @abstractmethod
    def stop(self, now: bool, agent: str | None, reason: str, source: StopSource) -> StopResult:
        """Request a stop of one agent or of everything."""

    @abstractmethod
    def set_paused(self, is_paused: bool) -> None:
        """Pause or unpause the run or group."""


class RunTarget(Target):
    """A run as the target of a verb."""

    noun = "run"
    after_stop = "calls in flight may finish. --now interrupts them."
    while_paused = "no new ones start"
    has_agents = True

    def __init__(self, run: Run) -> None:
        self._run, self.name = run, run.id

    @property
    def status(self) -> str:
        """The current state."""
        return self._run.view.standing

    @property
    def is_resumable(self) -> bool:
        """Whether the run has ended."""
        return self._run.is_over

    @property
    def start_facts(self) -> Mapping[str, Any]:
        """The session, the turn's number, and the state."""
        return {"session": self._run.session, "turn": self._run.turn, "status": self.status}

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    @property
    def facts(self) -> WholeTurnFacts:
        """All data about the run."""
        return run_facts(self._run)

    def stop(self, now: bool, agent: str | None, reason: str, source: StopSource) -> StopResult:
        """Request a stop of the run or of one agent."""
        return self._run.stop(now, agent, reason, source=source)

    def set_paused(self, is_paused: bool) -> None:
        """Pause or unpause the run."""
        if is_paused:
            self._run.pause()
        else:
            self._run.unpause()


class GroupTarget(Target):
    """A group of runs, such as a sweep, as the target of a verb."""

    after_stop = "no further row starts. --now interrupts calls in flight."
    while_paused = "no new row starts"
    has_agents = False

    def __init__(self, group: Group) -> None:
        self._group, self._kind = group, kind_of(group)
        self.name, self.noun = group.name, self._kind.noun

    @property
    def status(self) -> str:
        """The current state."""
        return self._group.view.state

    @property
    def is_resumable(self) -> bool:
        """Return False, because a group is continued by starting it again."""
        return False

    @property
    def start_facts(self) -> Mapping[str, Any]:
        """The group's list entry."""
        return asdict(self.facts)

    @property
    def run(self) -> Run:
        """Raise an error, because a group is not a run."""
        raise UserError(
            f"{self.name} is a {self.noun}, and this needs a single run. Give the name of one of "
            f"its rows instead: each row is a run."
        )

    @property
    def facts(self) -> GroupFacts:
        """The group's list entry."""
        return self._kind.facts_of(self._group)

    def stop(self, now: bool, agent: str | None, reason: str, source: StopSource) -> StopResult:
        """Request a stop of the group."""
        if agent:
            return self.run.stop(now, agent)  # which raises the error
        return self._group.stop(now, reason=reason, source=source)

    def set_paused(self, is_paused: bool) -> None:
        """Pause or unpause the group."""
        if not self._group.hold(is_paused):
            raise UserError(f"{self.at_start} is over ({self.status}).")


def target_of(work: Work) -> Target:
    """Return a run or group as the target of a verb."""
    return RunTarget(work) if isinstance(work, Run) else GroupTarget(work)
