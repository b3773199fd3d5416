"""The commands for new projects: ``init`` creates a file, ``schema`` prints a JSON schema."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nb_agents.cli.application import CliCommand, app
from nb_agents.cli.printing import print_text, say_json
from nb_agents.config.new_team import models_with_keys, new_notebook, new_team
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.launch.team_kind import file_schema

SCHEMA = Path(".nb_agents", "team.schema.json")
"""Path of the schema, relative to a new team file's directory."""


class Kind(StrEnum):
    """A kind of file that has a JSON schema."""

    team = "team"
    recipe = "recipe"


@app.command("schema", cls=CliCommand)
def schema(
    kind: Annotated[Kind, typer.Argument(help="The kind of file.")] = Kind.team,
) -> None:
    """Print the JSON schema of team files or recipes, for validation in an editor."""
    say_json(file_schema(kind.value))


@app.command("init", cls=CliCommand)
def init(
    file: Annotated[
        Path, typer.Argument(help="File to write: a team file, or a notebook (.ipynb).")
    ] = Path("team.yaml"),
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Model of an agent, such as openai:gpt-5-mini. Repeat the option for each agent. "
            "By default, one model for each provider with an API key.",
        ),
    ] = None,
) -> None:
    """Write a new team file or notebook for the providers whose API keys are set."""
    names = models or models_with_keys()
    is_notebook = file.suffix == ".ipynb"
    agents = list(names) * 3 if len(names) == 1 else names
    text = new_notebook(names) if is_notebook else new_team(agents, SCHEMA.as_posix())
    for each in names:
        TeamSpec.from_model(each)  # reports an invalid name before a file is written
    _write(file, text)
    if not is_notebook:
        path = file.parent / SCHEMA
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(file_schema("team"), indent=1, ensure_ascii=False) + "\n")
    used = ", ".join(names) if names else "the demo model, because no API key is set"
    then = "open it" if is_notebook else f'nb-agents run "…" -c {file}'
    print_text(f"Wrote {file}, with {used}. Next: {then}")


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as new:
            new.write(text)
    except FileExistsError:
        raise UserError(f"{file} already exists. Choose another file name.") from None
    except OSError as exc:
        raise UserError(f"{file} can't be written: {exc.strerror}.") from exc
