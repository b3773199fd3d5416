"""The base class for the kinds of work of extensions that do their work in steps."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from nb_agents.agents.replay import readable, replay
from nb_agents.agents.runner import Runners
from nb_agents.agents.subagents import SubAgents
from nb_agents.config.document import FileKind, read_source
from nb_agents.config.file_findings import Finding
from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.events import Event, StepFinished, StepStarted
from nb_agents.launch.team_kind import started_of
from nb_agents.launch.team_report import CAN_START
from nb_agents.launch.work_kind import (
    CheckArguments,
    Diagram,
    FileReport,
    InWorkspaces,
    LoadedWork,
    ResumeArguments,
    StepsPreview,
    WorkResume,
    WorkSource,
)
from nb_agents.tools.run_tools import RunTools
from nb_agents.turns.drivers import DriverDeps
from nb_agents.turns.steps_driver import StepsDriver, StepsWork

_FILE = FileKind("file", "", expands=False)
_S = TypeVar("_S", bound=Spec)


class StepsKind(InWorkspaces, ABC, Generic[_S]):
    """A kind of work in steps; see `nb_agents.launch.work_kind.WorkKind`.

    Attributes:
        spec_class: The class that files of this kind are loaded as.
        driver_class: The class of the drivers that run the steps.
    """

    spec_class: type[_S]
    driver_class: type[StepsDriver]

    @abstractmethod
    def reads(self, text: str) -> bool:
        """Return whether the text of a file describes work of this kind."""

    @abstractmethod
    def parse(self, text: str) -> _S:
        """Return the work that a file's text describes.

        Raises:
            ConfigError: The text is invalid.
        """

    @abstractmethod
    def work(self, spec: _S, given: Mapping[str, Any]) -> StepsWork:
        """Return the work of a turn.

        Args:
            spec: The work, from its file.
            given: The values that the user has set.

        Raises:
            UserError: The work can't start.
        """

    def read(self, source: WorkSource | None) -> _S:
        """Return the work as an object, loading it from its file if necessary."""
        if isinstance(source, str | os.PathLike):
            return self.parse(read_source(source, _FILE))
        if not isinstance(source, self.spec_class):
            raise UserError(f"{source!r} is not of the type {self.spec_class.__name__!r}.")
        return source

    def load(
        self, source: WorkSource | None, given: Mapping[str, Any], team: TeamSpec
    ) -> LoadedWork:
        """Load the work. Its name is the title of the turn."""
        work = self.work(self.read(source), given)
        return LoadedWork(work, work.name)

    async def driver(
        self, deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
    ) -> StepsDriver:
        """Return a new driver, which runs the steps."""
        return self.driver_class(deps, runners, run_tools, children)

    def schema_class(self) -> type[_S]:
        """Return the class whose fields become the JSON schema of the files."""
        return self.spec_class

    def plan_resume(self, arguments: ResumeArguments) -> WorkResume:
        """Return the same work, and the agents of the steps that were interrupted."""
        useless = {
            "--agent": arguments.again,
            "--set": arguments.given,
            "--from": arguments.from_step,
            "--recipe": arguments.changed,
        }
        started = started_of(arguments.events)
        if used := [key for key, value in useless.items() if value]:
            raise UserError(f"A resume of {started.work_kind!r} can't use {used[0]}. Leave it out.")
        ends = _ends(arguments.events)
        finished = {step for step, outcome in ends.items() if outcome == "ok"}
        past = readable(replay((), arguments.events))
        rounds = {step: each for step, each in past.rounds.items() if step not in ends}
        failed = tuple(step for step in ends if step not in finished)
        steps = StepsPreview(len(finished), tuple(rounds), failed, (), (), (), (), tuple(rounds))
        work = StepsWork(started.work_kind, started.recipe, started.context)
        return WorkResume(work, replace(past, rounds=rounds), steps.open, steps.next, steps)

    def report(self, arguments: CheckArguments) -> FileReport:
        """Report that a file can start, if it can be read."""
        self.read(arguments.file)
        return FileReport((), (arguments.file, CAN_START), can_start=True)

    def findings(self, text: str, file: str) -> Iterator[Finding]:
        """Yield nothing, but raise the errors of `parse`."""
        self.parse(text)
        yield from ()

    def diagram(self, file: str) -> Diagram:
        """Raise an error, because there is no plan. Errors in the file come first."""
        self.read(file)
        raise UserError(f"The work in {file} has no plan.")


def _ends(events: Sequence[Event]) -> dict[str, str]:
    """Return the outcome of each step that has ended, and has not started again since."""
    ends: dict[str, str] = {}
    for event in events:
        match event:
            case StepStarted(step=step):
                ends.pop(step, None)
            case StepFinished(step=step, outcome=outcome):
                ends[step] = outcome
    return ends
