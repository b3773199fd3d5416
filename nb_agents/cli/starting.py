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
from nb_agents.cli.printing import say
from nb_agents.cli.run_end import begin_and_wait, card_of
from nb_agents.cli.saving import save
from nb_agents.config.team import TeamSpec, chosen_team
from nb_agents.config.uploads import Mentions, mentions
from nb_agents.launch.api import start
from nb_agents.presentation.arguments import context_of
from nb_agents.runs.live_runs import begun_runs
from nb_agents.runs.run import Run
from nb_agents.verbs.parameters import RUN, of_run
from nb_agents.verbs.resuming import begin_of, options_of
from nb_agents.verbs.verb import Parameter

_EXAMPLES = (
    "Examples:",
    'nb-agents run "Compare three caches" -m openai:gpt-5-mini',
    'nb-agents run "Review @src for races" -c team.yaml --orchestrator-timeout 600',
    "git diff | nb-agents run - -c team.yaml --json",
    "nb-agents run -r review.yaml --set depth=3",
    'nb-agents run --continue "Now as a table"',
)


_TASK = Parameter("task", "what is asked; @path lets it be read, - takes the input")


def run(
    task: str,
    recipe: str | None,
    settings: Sequence[str],
    root: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Start a team on a task, or on a recipe, and wait for it. Ctrl+C stops it; twice: at once."""
    # Nobody has typed what is piped in.
    named = Mentions(sys.stdin.read(), ()) if task == "-" else mentions(task)
    context = context_of("", settings, {}) if recipe or settings else None
    begin = begin_of({**given, "recipe": recipe, "session_root": root}, named, context, {})
    begin_and_wait(lambda: begin().run, as_json, is_detached=given["detach"])


def chat(
    config: str | None,
    model: str | None,
    session: str | None,
    continue_: bool,
    root: Path | None,
    **flags: Any,
) -> None:
    """Talk with a team, turn by turn. What is typed while it works is said to it; /quit ends."""
    team = chosen_team(config, model)
    if isinstance(team, str):
        TeamSpec.from_file(team)  # reports a mistake in it before the first prompt
    begun: list[str] = []

    def begin(task: str) -> Run:
        named = mentions(task)
        options = options_of({**flags, "session_root": root}, {})
        options = replace(options, context_paths=named.paths)
        name = begun[-1] if begun else session
        run = start(named.task, team, name, continue_ and not begun, options=options)
        begun.append(run.session)
        return run

    def ending(run: Run) -> str:
        is_text = run.status == "completed" and isinstance(run.result, str)
        return str(run.result) if is_text else card_of(run)

    Chat(begin, ending, say).talk(sys.stdin)
    if not all(save(run, asks=False) for run in begun_runs()):
        raise typer.Exit(FAILED)


def demo(detach: bool, root: Path | None, as_json: bool) -> None:
    """Let three demo agents answer: offline, free, no key needed."""
    options = options_of({"detach": detach, "session_root": root}, {})
    begin = partial(start, "Compare three ways to cache embeddings.", options=options)
    begin_and_wait(begin, as_json, is_detached=detach)


_CHAT = of_run("config", "model", "session", "continue_", "timeout", "trust")

add_command("run", run, (_TASK, *RUN, ROOT, JSON), "\n\n".join(_EXAMPLES))
add_command("chat", chat, (*_CHAT, ROOT))
add_command("demo", demo, (*of_run("detach"), ROOT, JSON))
