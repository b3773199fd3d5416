"""The application that each command is added to, its exit codes, and the words of its errors."""

from __future__ import annotations

import atexit
import gc
import sys

import typer

from nb_agents.cli.printing import complain
from nb_agents.errors import UserError

__all__ = ["COMPLETE", "FAILED", "INCOMPLETE", "USAGE", "app", "main"]

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
    try:
        app()
    except UserError as exc:
        complain(exc)
        sys.exit(USAGE)
