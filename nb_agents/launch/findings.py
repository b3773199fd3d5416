"""What is wrong with the text of a team file or a recipe, for an editor that checks as one types.

Nothing of it runs: no module is imported that it names, no program or server is started or asked.
What a file says beyond that, a check of the file tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from nb_agents.config.recipe import Recipe, is_recipe_text
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, MissingKeyError, UserError
from nb_agents.launch.start import demo_team
from nb_agents.masking import Mask
from nb_agents.models.fit import fit_of
from nb_agents.models.providers import refusals

MAX_FINDINGS = 100

Severity = Literal["error", "warning", "info"]
"""The file can't be read, it can't start here, or there is something to know of it."""


class TextFinding(NamedTuple):
    """A sentence about a place in a text.

    Attributes:
        severity: How bad it is.
        what: The sentence.
        line: From 1; the first one for what has no place.
        column: From 1.
    """

    severity: Severity
    what: str
    line: int = 1
    column: int = 1


def findings(text: str, file: str) -> list[TextFinding]:
    """Return what a check finds in a text, without running anything.

    Args:
        text: Source of a team file or a recipe.
        file: Its path, from which its relative paths are taken; it need not be there.
    """
    try:
        found = _of_recipe(text, file) if is_recipe_text(text) else _of_team(text, file)
        made = list(islice(dict.fromkeys(found), MAX_FINDINGS))
    except ConfigError as exc:
        made = [_placed("error", each, file) for each in (exc, *exc.others)]
    mask = Mask(secrets_of_environment())
    return [each._replace(what=mask.text(each.what)) for each in made]


def _of_recipe(text: str, file: str) -> Iterator[TextFinding]:
    from nb_agents.recipes.check import check  # what no team needs

    recipe = Recipe.from_text(text, file, path=Path(file).absolute())
    found = check(recipe, demo_team())
    yield from (_placed("error", each, file) for each in found.faults)
    yield from (_placed("warning", each, file) for each in (*recipe.warnings, *found.warnings))


def _of_team(text: str, file: str) -> Iterator[TextFinding]:
    team = TeamSpec.from_text(text, file)
    for exc in (*refusals(team), *team.missing_paths):
        yield _placed("warning", _at_agent(exc, team), file)
    fit = fit_of(team)
    yield from (_placed("warning", each, file) for each in fit.refusals)
    yield from (TextFinding("info", each) for each in (*team.notices, *fit.notices))


def _at_agent(error: UserError, team: TeamSpec) -> ConfigError:
    if isinstance(error, MissingKeyError):
        return team.fault(str(error), "agents", error.agent, "backend", "type")
    return error if isinstance(error, ConfigError) else ConfigError(str(error))


def _placed(severity: Severity, found: ConfigError, file: str) -> TextFinding:
    if found.file not in (None, file):  # of a recipe that it calls
        return TextFinding(severity, f"{found.file}: {found.message}")
    return TextFinding(severity, found.message, found.line or 1, found.column or 1)
