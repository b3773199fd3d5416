"""The commands for those who begin: a new team file or notebook, and schemas for an editor."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nb_agents.cli.application import app
from nb_agents.cli.printing import say, say_json
from nb_agents.config.json_schema import json_schema
from nb_agents.config.new_team import found_models, new_notebook, new_team
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError

SCHEMA = Path(".nb_agents", "team.schema.json")
"""Where the schema of a new team file is, beside it."""


class Kind(StrEnum):
    """A kind of file."""

    team = "team"
    recipe = "recipe"


@app.command("schema")
def schema(
    kind: Annotated[Kind, typer.Argument(help="team or recipe.")] = Kind.team,
) -> None:
    """Print the JSON schema of team files or of recipes, for an editor that checks as you type."""
    say_json(json_schema(kind.value))


@app.command("init")
def init(
    file: Annotated[Path, typer.Argument(help="Team file, or a notebook: .ipynb.")] = Path(
        "team.yaml"
    ),
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="openai:gpt-5-mini, again for each agent (default: what it finds)"
        ),
    ] = None,
) -> None:
    """Write a new team file or notebook, for the providers whose key is in the environment."""
    wanted = models or found_models()
    is_notebook = file.suffix == ".ipynb"
    agents = list(wanted) * 3 if len(wanted) == 1 else wanted
    text = new_notebook(wanted) if is_notebook else new_team(agents, SCHEMA.as_posix())
    for each in wanted:
        TeamSpec.from_model(each)  # a mistake in it is told before a file has it
    _write(file, text)
    if not is_notebook:
        path = file.parent / SCHEMA
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(json_schema("team"), indent=1, ensure_ascii=False) + "\n")
    with_what = ", ".join(wanted) if wanted else "the demo model, as no provider's key is set"
    then = "open it" if is_notebook else f'nb-agents run "…" -c {file}'
    say(f"Wrote {file}, with {with_what}. Next: {then}")


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        raise UserError(f"{file} exists. Name another file.") from None
    except OSError as exc:
        raise UserError(f"{file} can't be written: {exc.strerror}.") from exc
