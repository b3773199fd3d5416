"""The interface of a kind of work. The core has one kind, a task for a team.

An extension adds a kind with `nb_agents.plugins.Extension.work_kinds`.
`nb_agents.turns.turn_spec.TurnWork` is the interface that a turn uses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from nb_agents.agents.replay import Past
from nb_agents.config.file_findings import Finding
from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec
from nb_agents.events import Event
from nb_agents.launch.estimate import Estimate
from nb_agents.launch.team_report import AgentReport
from nb_agents.turns.drivers import DriverMaker
from nb_agents.turns.turn_spec import TurnWork

WorkSource = str | os.PathLike[str] | Spec
"""The file that describes the work, or the work as an object."""


class LoadedWork(NamedTuple):
    """Work that is ready to start.

    Attributes:
        title: A title for the turn, shown in place of a task, or "".
        notices: Notices for the user.
    """

    work: TurnWork
    title: str = ""
    notices: tuple[str, ...] = ()


class StepsPreview(NamedTuple):
    """The steps of a stopped turn that a resume keeps or runs again.

    Attributes:
        finished: The number of finished agent and command steps, which are kept.
        open: Addresses of agent steps that continue where they were.
        failed: Addresses of agent steps that failed and start again.
        cut: Addresses of interrupted commands that run again.
        to_ask: Addresses of interrupted commands that run again only if the user agrees.
        tried: Addresses of commands that failed and run again.
        gates: Addresses of gates that were not approved.
        next: Addresses of the first steps to run, in order.
        again: Addresses of ended steps that run again.
        stuck: Why the work would fail before anything runs, or "".
    """

    finished: int
    open: tuple[str, ...]
    failed: tuple[str, ...]
    cut: tuple[str, ...]
    to_ask: tuple[str, ...]
    tried: tuple[str, ...]
    gates: tuple[str, ...]
    next: tuple[str, ...]
    again: tuple[str, ...] = ()
    stuck: str = ""


@dataclass(frozen=True)
class ResumeArguments:
    """The arguments of a resume.

    Attributes:
        events: The events of the turn, preceded by those of the turns that it resumed.
        again: Agents that the user wants to restart.
        team: The team that continues, or None if unknown.
        changed: Work that replaces the turn's work, or None.
        given: Values to add to those of the work.
        from_step: Id of the step that runs again with everything after it, or "".
    """

    events: Sequence[Event]
    again: Sequence[str] = ()
    team: TeamSpec | None = None
    changed: WorkSource | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    from_step: str = ""


@dataclass(frozen=True)
class WorkResume:
    """The state from which a resumed turn continues.

    Attributes:
        past: The state of the turn's agents.
        to_call: The agents whose rounds continue.
        next: The agents, or addresses of steps, that work first.
        steps: Which of its steps are kept and which run again, or None if it has no steps.
        notices: Notices for the user.
        revised: New outputs of ended steps, by address. None for steps that run again.
        would_run: Lines about everything that it would run, for a user to check.
    """

    work: TurnWork
    past: Past
    to_call: tuple[str, ...]
    next: tuple[str, ...]
    steps: StepsPreview | None = None
    notices: tuple[str, ...] = ()
    revised: Mapping[str, str | None] = field(default_factory=dict)
    would_run: tuple[str, ...] = ()

    @property
    def stuck(self) -> str:
        """Why the work would fail before anything runs, or ""."""
        return self.steps.stuck if self.steps else ""


@dataclass(frozen=True)
class FileReport:
    """A report on a team file, or on the file of another kind of work.

    Attributes:
        agents: The team's agents, if there is a team.
        lines: Lines for the user. The last one says whether it can start.
        can_start: Whether it can start.
        findings: The problems in the file, and notices.
        estimate: What is known about the cost of a run, if there is a team.
    """

    agents: tuple[AgentReport, ...]
    lines: tuple[str, ...]
    can_start: bool
    findings: tuple[Finding, ...] = ()
    estimate: Estimate | None = None


class CheckArguments(NamedTuple):
    """The arguments of a check of a file.

    Attributes:
        config: The team file, or None.
        bundles: Directories of bundles, each as ``NAME=DIR``.
        connects: Whether to load custom tools and start MCP servers, to test them.
        root: The session root with earlier runs, on which the estimate is based. None means the
            default one.
    """

    file: str
    config: str | None = None
    bundles: Sequence[str] = ()
    connects: bool = False
    root: str | os.PathLike[str] | None = None


class Diagram(NamedTuple):
    """A preview of the work, as lines of text and as a Mermaid diagram."""

    lines: tuple[str, ...]
    mermaid: str


@runtime_checkable
class StoresSource(Protocol):
    """A kind of work whose source is in the events of its turns, so that a replay can start it."""

    def stored_source(self, events: Sequence[Event]) -> Spec:
        """Return the work that a turn was started with.

        Args:
            events: The turn's events.

        Raises:
            UserError: The events don't contain it.
        """
        ...


class WorkKind(DriverMaker, Protocol):
    """A kind of work that a turn can do, such as a task for a team or a recipe."""

    def reads(self, text: str) -> bool:
        """Return whether text describes work of this kind."""
        ...

    def read(self, source: WorkSource) -> Spec:
        """Return the work as an object.

        Raises:
            ConfigError: Its file is not valid.
        """
        ...

    def load(
        self, source: WorkSource | None, given: Mapping[str, Any], team: TeamSpec
    ) -> LoadedWork:
        """Load the work and check that it can start.

        Args:
            source: The work. Only a task for a team has none.
            given: Its initial values.
            team: The team that does it.

        Raises:
            UserError: It can't start.
        """
        ...

    def would_run(self, source: WorkSource | None) -> tuple[str, ...]:
        """Return descriptions of what the work would run, for a user to check; see `load`."""
        ...

    def project(self, source: WorkSource | None) -> Path | None:
        """Return the user's directory in which the work would be done, if any."""
        ...

    def past_project(self, events: Sequence[Event]) -> Path | None:
        """Return the user's directory in which a turn's work was done, if any."""
        ...

    def plan_resume(self, arguments: ResumeArguments) -> WorkResume:
        """Return the state from which a stopped turn continues. Runs nothing.

        Raises:
            UserError: It can't be resumed, or not with these arguments.
        """
        ...

    def report(self, arguments: CheckArguments) -> FileReport:
        """Return everything that starting a file would report, without starting it.

        Raises:
            UserError: A file is invalid.
        """
        ...

    def findings(self, text: str, file: str) -> Iterator[Finding]:
        """Yield the problems in a text that is being edited, without running anything.

        Args:
            file: The path of the text's file, which need not exist.

        Raises:
            ConfigError: The text is invalid. Further errors are in its ``others``.
        """
        ...

    def diagram(self, file: str) -> Diagram:
        """Return what the work in a file would do, without running it.

        Raises:
            UserError: The file is invalid, or such work has no plan.
        """
        ...

    def schema_class(self) -> type[Spec]:
        """Return the class of the file, for the JSON schema of its keys."""
        ...

    def models(
        self, source: WorkSource, team: TeamSpec, values: Mapping[str, Any]
    ) -> frozenset[str]:
        """Return the models that the work uses, as `TeamSpec.models` does, as far as is known.

        Args:
            source: The work.
            team: The team.
            values: The values that the work is started with.
        """
        ...


class InWorkspaces:
    """The methods of a `WorkKind` that runs only its team, and only in workspaces."""

    def models(
        self, source: WorkSource, team: TeamSpec, values: Mapping[str, Any]
    ) -> frozenset[str]:
        """Return the models of the team."""
        return team.models

    def would_run(self, source: WorkSource | None) -> tuple[str, ...]:
        """Return (), because the team is listed separately."""
        return ()

    def project(self, source: WorkSource | None) -> Path | None:
        """Return None, because the work is done in workspaces."""
        return None

    def past_project(self, events: Sequence[Event]) -> Path | None:
        """Return None, like `project`."""
        return None
