"""Finds the problems of a team: errors that prevent its start, and notices for the user.

Nothing is run. Files of agents and tools are imported only on request.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from nb_agents.agents.python_objects import check_objects
from nb_agents.config.document import TEAM_FILE, read_source
from nb_agents.config.file_findings import Finding, combined, distinct, errors_in, finding_of
from nb_agents.config.team import TeamSpec, valid_part
from nb_agents.errors import ConfigError, MissingKeyError, UserError
from nb_agents.models.fit import check_models
from nb_agents.models.providers import error_raised_by, start_errors


def load_team(file: str | os.PathLike[str]) -> TeamSpec:
    """Read a team file.

    Raises:
        ConfigError: The file is invalid. The error's ``others`` include the reasons why its valid
            agents can't start, such as missing keys.
    """
    return parse_team(read_source(file, TEAM_FILE), str(file))


def parse_team(text: str, file: str) -> TeamSpec:
    """Parse the text of a team file; see `load_team`."""
    try:
        return TeamSpec.from_text(text, file)
    except ConfigError as exc:
        if (part := valid_part(text, file)) is not None:
            known_messages = {each.message for each in (exc, *exc.others)}
            more = (_with_position(each, part) for each in distinct(_cheap_errors(part)))
            exc.others += tuple(each for each in more if each.message not in known_messages)
        raise


def check_start(team: TeamSpec) -> None:
    """Raise an error that reports everything that prevents a team from starting.

    Raises:
        ConfigError: A backend type is not supported, a restriction can't be enforced, a path or a
            model is missing, or there are several errors.
        MissingKeyError: The environment variable of an API key is not set.
    """
    errors = distinct([*_cheap_errors(team), *error_raised_by(check_objects, team)])
    if errors:
        raise combined_errors(team, distinct([*errors, *errors_in(check_models(team))]))


def errors_of(team: TeamSpec, *, imports: bool) -> list[UserError]:
    """Return all errors that prevent a team from starting.

    Args:
        imports: Whether to import the Python objects that are agents, to check them.
    """
    objects = error_raised_by(check_objects, team) if imports else ()
    return distinct([*_cheap_errors(team), *objects, *errors_in(check_models(team))])


def combined_errors(team: TeamSpec, errors: list[UserError]) -> UserError:
    """Return one error that reports all errors of a team, with their positions."""
    if len(errors) == 1:
        return errors[0]
    placed = [_with_position(each, team) for each in errors]
    return combined(placed, next((each.file for each in placed if each.file), None))


def findings_of_team(team: TeamSpec, *, imports: bool = False) -> Iterator[Finding]:
    """Yield the findings of a valid team file, without running anything.

    Args:
        team: The team.
        imports: Whether to import the Python objects that are agents, to check them.
    """
    yield from findings_and_notices(team, errors_of(team, imports=imports))


def findings_and_notices(team: TeamSpec, errors: Iterable[UserError]) -> Iterator[Finding]:
    """Yield the errors of `errors_of` as findings, and the notices about a team."""
    for error in errors:
        yield finding_of(_with_position(error, team), "warning")
    yield from (Finding("info", "notice", notice) for notice in team.notices)
    yield from (each for each in check_models(team) if each.severity == "info")


def _cheap_errors(team: TeamSpec) -> Iterator[UserError]:
    """Yield the errors that are found without importing the SDKs of models."""
    yield from start_errors(team)
    yield from team.missing_paths


def _with_position(error: UserError, team: TeamSpec) -> ConfigError:
    if isinstance(error, ConfigError):
        return error
    placed = ConfigError(str(error))
    if isinstance(error, MissingKeyError):
        placed = team.fault(str(error), "agents", error.agent, "backend", "type")
    placed.code, placed.remedy = error.code, error.remedy
    return placed
