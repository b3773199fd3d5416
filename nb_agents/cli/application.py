"""The application that each command is added to, and what several commands share."""

from __future__ import annotations

import atexit
import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from nb_agents.cli.printing import complain, replace_what_is_lacking
from nb_agents.errors import UserError
from nb_agents.presentation.arguments import files_at, session_names
from nb_agents.runs.finding import runs

COMPLETE, FAILED, USAGE, INCOMPLETE = 0, 1, 2, 3

app = typer.Typer(
    help="Teams of LLM agents that you can stop at any moment without losing anything.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; a person's mistake is one sentence and no traceback."""
    # A search for cycles in all that was loaded would be a quarter of a short command's time.
    atexit.register(gc.freeze)
    replace_what_is_lacking()
    try:
        app()
    except UserError as exc:
        complain(exc)
        sys.exit(USAGE)


def live_names() -> list[str]:
    """Return the names of the live runs."""
    return [f"{run.session}/{run.turn}" for run in runs()]


def _runs() -> list[str]:
    return [*live_names(), *session_names()]


def _files(incomplete: str) -> list[str]:
    found = files_at(incomplete)
    # A shell ends the word when one is left, so that directory's files would be out of reach.
    while len(found) == 1 and found[0].endswith("/") and (inside := files_at(found[0])):
        found = inside
    return found


LiveRun = Annotated[
    str,
    typer.Argument(
        help="Run, session or session/turn; by default the only one of here.",
        autocompletion=live_names,
    ),
]
SomeLiveRun = Annotated[
    str, typer.Argument(help="Session or session/turn.", autocompletion=live_names)
]
SomeRun = Annotated[
    str,
    typer.Argument(
        help="Run, session or session/turn; by default the only one of here.", autocompletion=_runs
    ),
]
Message = Annotated[str, typer.Argument(help="What is said about it.")]
Root = Annotated[Path | None, typer.Option("--session-root", help="Where sessions are.")]
Config = Annotated[
    str | None,
    typer.Option("--config", "-c", "--agents-config", help="Team file.", autocompletion=_files),
]
RecipeFile = Annotated[
    str | None, typer.Option("--recipe", "-r", help="Recipe file.", autocompletion=_files)
]
File = Annotated[str, typer.Argument(help="Team file or recipe.", autocompletion=_files)]
Model = Annotated[str | None, typer.Option("--model", "-m", help="openai:gpt-5-mini")]
Bundles = Annotated[list[str] | None, typer.Option("--bundle", help="NAME=DIR")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE")]
Session = Annotated[
    str | None,
    typer.Option("--session", "-s", help="Its id.", autocompletion=session_names),
]
SomeSession = Annotated[
    str, typer.Argument(help="By default the last one of a terminal.", autocompletion=session_names)
]
StoredSession = Annotated[str, typer.Argument(help="Its id.", autocompletion=session_names)]
Continue = Annotated[bool, typer.Option("--continue", help="Next turn of a session.")]
Timeout = Annotated[float | None, typer.Option("--orchestrator-timeout", help="Seconds.")]
Detach = Annotated[bool, typer.Option("--detach", help="In a process of its own; returns at once.")]
ClusterAddress = Annotated[
    str | None, typer.Option("--cluster", help="Scheduler of a Dask cluster, or local:N.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Go on with a session that you have not made here.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
