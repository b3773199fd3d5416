"""The core's kind of work, a task for a team, and functions that find other kinds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from nb_agents.agents import voting
from nb_agents.agents.replay import Past, readable, replay
from nb_agents.agents.voting import Rules, rules_of
from nb_agents.config.document import FileKind, read_source
from nb_agents.config.file_findings import Finding
from nb_agents.config.json_schema import json_schema
from nb_agents.config.spec import Spec
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, TaskError, UserError
from nb_agents.events import Event, TurnStarted
from nb_agents.events.work_kinds import RECIPE, TEAM
from nb_agents.launch.estimate import check_lines
from nb_agents.launch.past_runs import estimate_of
from nb_agents.launch.team_findings import findings_of_team, load_team, parse_team
from nb_agents.launch.team_report import report_on
from nb_agents.launch.work_kind import (
    CheckArguments,
    Diagram,
    FileReport,
    InWorkspaces,
    LoadedWork,
    ResumeArguments,
    WorkKind,
    WorkResume,
    WorkSource,
)
from nb_agents.options import RunOptions
from nb_agents.plugins import ExtensionPoint
from nb_agents.turns.drivers import TeamDrivers
from nb_agents.turns.turn_spec import TaskWork

_ANY_FILE = FileKind("file", "", expands=False)


class TeamKind(TeamDrivers, InWorkspaces):
    """Tasks for teams; see `nb_agents.launch.work_kind.WorkKind`."""

    def reads(self, text: str) -> bool:
        """Return True, because a file that no other kind reads is treated as a team file."""
        return True

    def read(self, source: WorkSource) -> Spec:
        """Load and return the team in a file."""
        return source if isinstance(source, Spec) else TeamSpec.from_file(source)

    def load(
        self, source: WorkSource | None, given: Mapping[str, Any], team: TeamSpec
    ) -> LoadedWork:
        """Return the work of a turn, which consists of only the task."""
        return LoadedWork(TaskWork())

    def plan_resume(self, arguments: ResumeArguments) -> WorkResume:
        """Return the state of the agents, and which of them work next."""
        useless = {
            "--set": arguments.given,
            "--from": arguments.from_step,
            "--recipe": arguments.changed,
        }
        if used := [key for key, value in useless.items() if value]:
            raise UserError(f"The turn did not run a recipe. Leave out {used[0]}.")
        events = arguments.events
        started = started_of(events)
        for agent in arguments.again:
            _check_again(agent, events)
        past = readable(replay(_ids(started), events, arguments.again))
        to_call = _agents_to_call(past, _rules(arguments.team, started))
        return WorkResume(TaskWork(), past, to_call, to_call)

    def report(self, arguments: CheckArguments) -> FileReport:
        """Return the report on a team file."""
        file = arguments.file
        if arguments.bundles:
            raise TaskError("--bundle can only be used with a recipe.")
        team = load_team(file)
        report = report_on(team, connects=arguments.connects)
        estimate = estimate_of(team, RunOptions(session_root=arguments.root))
        lines = (file, *report.lines, *check_lines(estimate), report.verdict)
        return FileReport(report.agents, lines, report.can_start, report.findings, estimate)

    def findings(self, text: str, file: str) -> Iterator[Finding]:
        """Yield the problems of a team; see `nb_agents.launch.team_findings`."""
        yield from findings_of_team(parse_team(text, file))

    def diagram(self, file: str) -> Diagram:
        """Raise an error, because a team has no plan. Errors in the file come first."""
        TeamSpec.from_file(file)
        raise UserError(
            f"{file} is a team file. A team has no plan, because it decides itself what to do."
        )

    def schema_class(self) -> type[TeamSpec]:
        """Return the class whose fields become the JSON schema of team files."""
        return TeamSpec


KINDS = ExtensionPoint[WorkKind]("work_kinds", {TEAM: TeamKind()})
"""All kinds of work by name."""


def kind_named(name: str) -> WorkKind:
    """Return a kind of work.

    Raises:
        UserError: Its extension is not installed.
    """
    try:
        return KINDS[name]
    except KeyError:
        raise UserError(
            f"There is no extension for work of the kind {name!r}. Install it to start, check or "
            f"resume a {name}."
        ) from None


def kind_of(started: TurnStarted) -> WorkKind:
    """Return the kind of a turn's work. Raises the same errors as `kind_named`."""
    return kind_named(started.work_kind)


def kind_of_text(text: str, default: str = TEAM) -> str:
    """Return the name of the kind of work that a file's text describes.

    Args:
        default: The kind to return for text that no extension's kind reads.
    """
    kinds = KINDS.all()
    reading = (name for name, kind in kinds.items() if name != TEAM and kind.reads(text))
    return next(reading, default)


def kind_of_file(file: str | os.PathLike[str], default: str = TEAM) -> str:
    """Return the name of the kind of work that a file describes; see `kind_of_text`."""
    try:
        return kind_of_text(read_source(file, _ANY_FILE), default)
    except ConfigError:
        return default


def kind_of_source(source: WorkSource | None) -> WorkKind:
    """Return the kind of work of a source, such as a recipe. None means a task for a team.

    Raises:
        UserError: Its extension is not installed.
    """
    return kind_named(TEAM if source is None else _name_of_kind(source))


def _name_of_kind(source: WorkSource) -> str:
    if isinstance(source, str | os.PathLike):
        return kind_of_file(source, RECIPE)
    classes = {name: kind.schema_class() for name, kind in KINDS.all().items() if name != TEAM}
    return next((name for name, model in classes.items() if isinstance(source, model)), RECIPE)


def file_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of the files of a kind of work.

    Args:
        kind: "team", or the name of another kind.

    Raises:
        UserError: Its extension is not installed.
    """
    model = kind_named(TEAM if kind == "team" else kind).schema_class()
    return json_schema(kind, model)


def started_of(events: Sequence[Event]) -> TurnStarted:
    """Return the event that started a turn, or the last of several turns that resumed one another.

    Raises:
        UserError: The journal does not contain it.
    """
    started = [e for e in events if isinstance(e, TurnStarted)]
    if not started:
        raise UserError(
            "The journal of this turn has no start event, so there is nothing to resume."
        )
    return started[-1]


def stored_team(started: TurnStarted) -> TeamSpec | None:
    """Return the team in a turn's first event, or None if it is missing or invalid."""
    try:
        return None if started.team is None else TeamSpec.model_validate(started.team)
    except ValidationError:  # written by a newer nb_agents, or damaged
        return None


def _check_again(agent: str, events: Sequence[Event]) -> None:
    """Raise `UserError` unless the agent failed or was stopped, so that it can be restarted."""
    agents = _ids(started_of(events))
    if agent not in agents:
        raise UserError(f"The turn has no agent {agent!r}. It has: {', '.join(agents)}.")
    past = replay(agents, events)
    if agent not in past.state.out and agent not in past.failed:
        raise UserError(
            f"Agent {agent!r} has not failed and was not stopped individually, so it can't be "
            "resumed alone."
        )


def _ids(started: TurnStarted) -> list[str]:
    return [agent.id for agent in started.agents]


def _rules(team: TeamSpec | None, started: TurnStarted) -> Rules:
    rules_team = team or stored_team(started)
    return (
        rules_of(rules_team, started.timeout_s)
        if rules_team
        else Rules(turn_limit_s=started.timeout_s)
    )


def _agents_to_call(past: Past, rules: Rules) -> tuple[str, ...]:
    """Return the agents that a resumed team will call next, in registration order."""
    match voting.next_step(past.state, rules):
        case voting.Coordinate():
            return voting.agents_to_wait_for(past.state, rules)
        case voting.Present(winner=winner) | voting.Judge(winner=winner):
            return (winner,)
        case _:
            return ()
