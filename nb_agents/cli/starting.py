"""The commands that start runs: ``run``, ``chat`` and ``demo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from nb_agents.cli.application import FAILED, JSON, ROOT, add_command
from nb_agents.cli.chat import Chat
from nb_agents.cli.printing import print_text
from nb_agents.cli.run_end import begin_and_wait, card_of
from nb_agents.cli.saving import save
from nb_agents.config.team import TeamSpec, team_from_options
from nb_agents.config.uploads import Mentions, mentions
from nb_agents.errors import TaskError
from nb_agents.launch.api import start_verbatim
from nb_agents.launch.run import Run
from nb_agents.presentation.arguments import recipe_context
from nb_agents.turns.budget import rest_of_budget
from nb_agents.turns.live_runs import started_runs
from nb_agents.verbs.parameters import RUN, run_parameters
from nb_agents.verbs.resuming import run_options, run_starter
from nb_agents.verbs.verb import Command, Parameter

_EXAMPLES = (
    "Examples:",
    'nb-agents run "Compare three caches" -m openai:gpt-5-mini',
    'nb-agents run "Review @src for races" -c team.yaml --orchestrator-timeout 600',
    "git diff | nb-agents run - -c team.yaml --json",
    "nb-agents run -r review.yaml --set depth=3",
    'nb-agents run --continue "Now as a table"',
)


_TASK = Parameter(
    "task",
    "the task; `@path` includes a file, `-` reads stdin; if missing, you are asked in a terminal",
)


def run(
    task: str,
    recipe: str | None,
    settings: Sequence[str],
    root: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a team on a task, or a recipe, and wait for it. Ctrl+C stops it; twice, immediately."""
    if not task.strip() and not recipe:
        task = _asked_task(given["continue_"])
    # Piped input is not searched for @path: the user did not type it.
    named = Mentions(sys.stdin.read(), ()) if task == "-" else mentions(task)
    context = recipe_context("", settings, {}) if recipe or settings else None
    begin = run_starter({**given, "recipe": recipe, "session_root": root}, named, context, {})
    begin_and_wait(lambda: begin().run, as_json, is_detached=given["detach"])


def _asked_task(continues: bool) -> str:
    """Ask for a task in a terminal.

    Raises:
        TaskError: There is no terminal. The message shows how to give a task.
    """
    if sys.stdin.isatty() and sys.stderr.isatty():
        task: str = typer.prompt("Task", err=True)
        return task
    line = "nb-agents run --continue" if continues else "nb-agents run"
    resumes = " `nb-agents resume` resumes an incomplete turn." if continues else ""
    raise TaskError(
        f'There is no task. Write it after the options, as `{line} "…"`, or pipe it into '
        f"`{line} -`.{resumes}"
    )


def chat(
    config: str | None,
    model: str | None,
    backend: str | None,
    session: str | None,
    continue_: bool,
    root: Path | None,
    **flags: Any,
) -> None:
    """Chat with a team. What you type while it works is sent to the agents; /quit ends the chat."""
    team = team_from_options(config, model, backend=backend)
    if isinstance(team, str):
        TeamSpec.from_file(team)  # reports a mistake in it before the first prompt
    chosen = run_options({**flags, "session_root": root}, {})
    started: list[Run] = []

    def begin(task: str) -> Run:
        named = mentions(task)
        options = rest_of_budget(chosen, [run.view for run in started])
        options = replace(options, context_paths=named.paths)
        name = started[-1].session if started else session
        run = start_verbatim(named.task, team, name, continue_ and not started, options=options)
        started.append(run)
        return run

    def ending(run: Run) -> str:
        is_text = run.status == "completed" and isinstance(run.result, str)
        return str(run.result) if is_text else card_of(run)

    Chat(begin, ending, print_text).talk(sys.stdin)
    if not all(save(run, asks=False) for run in started_runs()):
        raise typer.Exit(FAILED)


def demo(detach: bool, root: Path | None, as_json: bool) -> None:
    """Run three demo agents, offline, free and without an API key."""
    options = run_options({"detach": detach, "session_root": root}, {})
    begin = partial(start_verbatim, "Compare three ways to cache embeddings.", options=options)
    begin_and_wait(begin, as_json, is_detached=detach)


_HELP = {
    "max_cost": "budget of all tasks of the chat together, in US dollars",
    "max_tokens": "budget of all tasks of the chat together, in tokens",
}
_CHAT = (
    *run_parameters("config", "model", "backend", "session", "continue_", "timeout", "trust"),
    *(each._replace(help=_HELP[each.name]) for each in run_parameters(*_HELP)),
    *run_parameters("on_budget"),
)

add_command("run", Command(run, (_TASK, *RUN, ROOT, JSON), "\n\n".join(_EXAMPLES)))
add_command("chat", Command(chat, (*_CHAT, ROOT)))
add_command("demo", Command(demo, (*run_parameters("detach"), ROOT, JSON)))
