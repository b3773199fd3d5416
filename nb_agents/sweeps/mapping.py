"""`map`: run a team or a recipe on each row of a source."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_values import FENCED
from nb_agents.config.spec import safe_name
from nb_agents.config.team import TeamSpec
from nb_agents.errors import NotYoursError, TaskError, UserError
from nb_agents.launch.api import resume, start
from nb_agents.launch.resume import would_resume
from nb_agents.launch.start import team_for
from nb_agents.launch.trust import is_yours
from nb_agents.masking import safe_errors
from nb_agents.nouns import did_you_mean
from nb_agents.options import RunOptions
from nb_agents.recipes.template import looks_like_a_name, render, variables
from nb_agents.runs.run import Run
from nb_agents.runs.turn_spec import checked_functions
from nb_agents.session.layout import session_root, turns_of
from nb_agents.sweeps.judge import JUDGE_SESSION, JudgeAgent
from nb_agents.sweeps.source import Row, read_rows, source_name
from nb_agents.sweeps.sweep import Score, Sweep, SweepSpec
from nb_agents.sweeps.sweep_fold import fold_notes

DEFAULT_LIMIT = 8
"""Rows that run at a time."""


@safe_errors
def map(
    source: Any,
    task: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    name: str = "",
    limit: int = DEFAULT_LIMIT,
    max_cost: float | None = None,
    score: Score | str | None = None,
    retry_failed: bool = False,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Sweep:
    """Run a team or a recipe on each row of a source, in the background.

    Repeating the call continues the same sweep: stopped rows are resumed, missing ones started,
    those that still run in another process followed, and finished ones kept.

    Args:
        source: A CSV, JSONL or Parquet file, a DataFrame, a list or a generator; see `read_rows`.
        task: The task; ``{{column}}`` is replaced by the row's value. Leave it empty for a recipe.
        config: As for `nb_agents.start`.
        recipe: As for `nb_agents.start`; a row's values are its initial context.
        name: The sweep's name; by default derived from the source, the task and the team. Under one
            name the source, the team and the score may change, but not the task or the recipe.
        limit: Maximum number of rows that run at a time.
        max_cost: Budget of all rows together in US dollars; once it is spent, no more rows start
            and the running ones stop gracefully.
        score: A function that takes a row's task and answer (a recipe's outputs) and returns a
            number; sync or async, called in a thread of its own. Or the name of one of the team's
            ``callable_agents`` that gives the score; its cost is included in the row's.
        retry_failed: Whether to run rows again that failed before.
        tools: As for `nb_agents.start`.
        options: As for `nb_agents.start`, for each row.

    Returns:
        The sweep, without waiting for it.

    Raises:
        UserError: The source can't be read, the task names a column that it lacks, or the team,
            the recipe or a tool can't be used.
        SessionBusyError: The sweep is being worked on already.
        NotYoursError: Rows that go on were begun by another user or on another machine, and the
            options don't `trust` them.

    Example:
        sweep = nb_agents.map("questions.csv", "Answer in one sentence: {{question}}")
        sweep.wait()
        sweep.to_frame()
    """
    if limit < 1:
        raise UserError(f"The limit is {limit}; give 1 or more.")
    if max_cost is not None and not max_cost > 0:
        raise UserError(f"max_cost is {max_cost!r} US dollars; give a number over 0.")
    task = task.strip()
    if bool(task) is (recipe is not None):
        raise TaskError("Give a task with {{column}} in it, or a recipe, and not both.")
    rows = read_rows(source)
    _check_columns(task, rows)
    options = options or RunOptions()
    team, _ = team_for(config, options)
    judge = JudgeAgent(team, score, options) if isinstance(score, str) else None
    read = Recipe.from_file(recipe) if isinstance(recipe, str | os.PathLike) else recipe
    about = {
        "source": source_name(source),
        "task": task,
        "config": _identity(config),
        "recipe": _identity(recipe),
        "rows": len(rows),
    }
    path = session_root(options.session_root) / (_checked_name(name) or _derived_name(about, rows))
    functions, options = checked_functions(tools), replace(options, session_root=path)
    if not options.trust:
        _check_owner(path, [row.name for row in rows], team, retry_failed)

    def begin(row: Row) -> Run:
        context = None if read is None else {**row.values, FENCED: [*row.values]}
        if any(turn.has_begun for turn in turns_of(path / row.name)):
            return resume(row.name, team, tools=functions, options=options)
        asked = render(task, row.values)
        return start(
            asked, team, row.name, recipe=read, context=context, tools=functions, options=options
        )

    return Sweep(
        SweepSpec(
            path,
            about,
            rows,
            begin,
            limit=limit,
            max_cost=max_cost,
            score=None if isinstance(score, str) else score,
            judge=judge,
            task=lambda row: render(task, row.values) or json.dumps(row.values),
            retry_failed=retry_failed,
            tools=functions,
            withdraw=lambda: None if options.cluster is None else _withdraw(path),
        )
    )


def _withdraw(path: Path) -> None:
    """Withdraw the rows that wait for a place on a cluster."""
    from nb_agents.launch.cluster import withdraw

    withdraw(path)


def _check_owner(path: Path, rows: Sequence[str], team: TeamSpec, retry_failed: bool) -> None:
    """Raise `NotYoursError`, once for all rows, if one that goes on is another user's."""
    fold = fold_notes(path)
    judged = {row for row, result in fold.results.items() if result.score is not None}
    left = [path / row for row in rows if not fold.is_final(row, retry_failed)]
    left += [path / row / JUDGE_SESSION for row in rows if row not in judged]
    if strangers := [session for session in left if not is_yours(session)]:
        lines = (line for session in strangers for line in would_resume(session, team))
        raise NotYoursError(path.name, tuple(dict.fromkeys(lines)))


def _check_columns(task: str, rows: Sequence[Row]) -> None:
    """Raise `TaskError` if the task names a column that a row lacks, before anything is run."""
    for path in filter(looks_like_a_name, variables(task)):
        column = path.partition(".")[0]
        for number, row in enumerate(rows, 1):
            if not {column, path} & row.values.keys():
                hint = did_you_mean(path, row.values)
                has = ", ".join(row.values)
                raise TaskError(
                    f"The task uses {{{{{path}}}}}, and row {number} has no such column.{hint} "
                    f"It has: {has}. What is the same for all rows goes into a column, too; "
                    f"\\{{{{{path}}}}} stands for the braces themselves."
                )


def _identity(given: object) -> str:
    """Return what identifies a team or recipe: a file's path, so that its content may change."""
    if given is None:
        return ""
    if isinstance(given, str | os.PathLike):
        return str(Path(given).expanduser().absolute())
    dump = getattr(given, "model_dump_json", None)
    text = dump() if dump is not None else repr(given)
    return sha256(text.encode()).hexdigest()[:16]


def _checked_name(name: str) -> str:
    if not name:
        return ""
    with suppress(ValueError):
        return safe_name(name)
    raise UserError(f"A sweep can't be called {name!r}. Use letters, digits, '_', '-' and '.'.")


def _derived_name(about: Mapping[str, Any], rows: Sequence[Row]) -> str:
    source = str(about["source"])
    is_file = os.path.isabs(source)
    # A source in memory is identified by its rows.
    known = {key: value for key, value in about.items() if key != "rows"}
    names = [] if is_file else [row.name for row in rows]
    digest = sha256(json.dumps([known, names], sort_keys=True).encode()).hexdigest()[:8]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(source).stem if is_file else "rows").strip("-")
    return f"sweep_{stem[:40] or 'rows'}_{digest}"
