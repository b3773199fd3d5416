"""`map`, which runs a team or a recipe on each row of a source."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nb_agents.config.spec import safe_name
from nb_agents.config.team import TeamSpec
from nb_agents.config.template import FENCED, looks_like_a_name, render, variables
from nb_agents.errors import NotYoursError, TaskError, UserError
from nb_agents.extensions.sweeps.judge import JUDGE_SESSION, JudgeAgent
from nb_agents.extensions.sweeps.scoring import Score
from nb_agents.extensions.sweeps.source import Row, read_rows, source_name
from nb_agents.extensions.sweeps.sweep import Sweep, SweepSpec
from nb_agents.extensions.sweeps.sweep_file import ESTIMATE
from nb_agents.extensions.sweeps.sweep_fold import fold_notes
from nb_agents.extensions.sweeps.sweep_request import SweepRequest
from nb_agents.launch.api import resume
from nb_agents.launch.estimate import start_lines
from nb_agents.launch.past_runs import estimate_of
from nb_agents.launch.resume import would_resume
from nb_agents.launch.run import Run
from nb_agents.launch.run import begin as begin_run
from nb_agents.launch.start import StartRequest, team_for
from nb_agents.launch.team_kind import kind_of_source
from nb_agents.launch.trust import is_yours
from nb_agents.masking import safe_errors
from nb_agents.nouns import did_you_mean
from nb_agents.options import RunOptions, Timeout
from nb_agents.session.layout import session_root, turns_of
from nb_agents.signatures import takes
from nb_agents.turns.budget import Budget
from nb_agents.turns.turn_spec import checked_functions

if TYPE_CHECKING:
    from nb_agents.extensions.recipes.recipe import Recipe


@dataclass(frozen=True)
class MapRequest(SweepRequest):
    """The arguments of `nb_agents.map`, which describes them."""

    task: str = ""
    config: str | os.PathLike[str] | TeamSpec | None = None
    _: KW_ONLY
    recipe: str | os.PathLike[str] | Recipe | None = None
    score: Score | str | None = None


@safe_errors
@takes(MapRequest)
def map(request: MapRequest) -> Sweep:
    """Run a team or a recipe on each row of a source, in the background.

    Repeating the call continues the same sweep: stopped rows are resumed, missing rows started, and
    rows that are still running in another process followed. Finished rows are not repeated.

    Args:
        source: A CSV, JSONL or Parquet file, a DataFrame, a list or a generator; see `read_rows`.
        task: The task. ``{{column}}`` is replaced with the row's value. Leave it empty for a
            recipe. ``@path`` includes a file, as for `nb_agents.start`, but not inside a row's
            value.
        config: As for `nb_agents.start`.
        recipe: As for `nb_agents.start`. A row's values are its initial context.
        name: The sweep's name. By default, it is derived from the source, the task and the team.
            Under one name, the source, team and score can change, but not the task or the recipe.
        limit: Maximum number of rows that run at the same time.
        max_cost: Budget of all rows together in US dollars. Once it is spent, no more rows start,
            and the running ones stop gracefully.
        score: A function that takes a row's task and answer (or a recipe's outputs) and returns a
            number. It can be sync or async and is called in a separate thread. Or the name of one
            of the team's ``callable_agents``, which is used as a judge and whose cost is added to
            the row's cost.
        retry_failed: Whether to run failed rows again.
        tools: As for `nb_agents.start`.
        options: As for `nb_agents.start`, for each row.

    Returns:
        The running sweep.

    Raises:
        UserError: The source can't be read, the task refers to a missing column, or the team, the
            recipe or a tool can't be used.
        SessionBusyError: The sweep is already running.
        NotYoursError: Rows to resume were started by another user or on another machine, and the
            options don't `trust` them.

    Example:
        sweep = nb_agents.map("questions.csv", "Answer in one sentence: {{question}}")
        sweep.wait()
        sweep.to_frame()
    """
    return _begin(request.reading_mentions())


@takes(MapRequest)
def map_verbatim(request: MapRequest) -> Sweep:
    """Run a team on each row like `map`, but without including files for ``@path`` in the task."""
    return _begin(request)


def _begin(request: MapRequest) -> Sweep:
    """Begin or continue a sweep."""
    request.check()
    source, config, recipe, score = request.source, request.config, request.recipe, request.score
    max_cost, retry_failed = request.max_cost, request.retry_failed
    task = request.task.strip()
    if bool(task) is (recipe is not None):
        raise TaskError("Provide either a task that contains {{column}}, or a recipe.")
    rows = read_rows(source)
    check_columns(task, rows)
    options = request.options or RunOptions()
    team, _ = team_for(config, options)
    judge = JudgeAgent(team, score, options) if isinstance(score, str) else None
    loaded = None if recipe is None else cast("Recipe", kind_of_source(recipe).read(recipe))
    about = {
        "source": source_name(source),
        "task": task,
        "config": identity(config),
        "recipe": identity(recipe),
        "rows": len(rows),
    }
    path = session_root(options.session_root) / (
        checked_name(request.name) or derived_name(about, rows)
    )
    functions, options = checked_functions(request.tools), replace(options, session_root=path)
    names = [row.name for row in rows]
    if not options.trust:
        check_owner(path, names, team, retry_failed)
    models_of = models_of_rows(loaded, team)
    fold = fold_notes(path)
    estimate = estimate_of(
        team,
        options,
        [path, path.parent],
        work="" if loaded is None else loaded.name,
        rows=sum(not fold.is_final(name, retry_failed) for name in names),
        budget=Budget(max_cost=max_cost),
        with_prices=max_cost is not None,
    )

    def begin(row: Row, timeout: float | None) -> Run:
        context = None if loaded is None else {**row.values, FENCED: [*row.values]}
        text, own = render(task, row.values), with_timeout(options, timeout)
        start = StartRequest(
            text, team, row.name, recipe=loaded, context=context, tools=functions, options=own
        )
        return begin_row(start, path)

    return Sweep(
        SweepSpec(
            path,
            {**about, ESTIMATE: start_lines(estimate) if estimate.rows else []},
            rows,
            begin,
            limit=request.limit,
            max_cost=max_cost,
            score=None if isinstance(score, str) else score,
            judge=judge,
            task=lambda row: render(task, row.values) or json.dumps(row.values),
            retry_failed=retry_failed,
            tools=functions,
            withdraw=lambda: None if options.cluster is None else withdraw_rows(path),
            timeout=options.timeout_s,
            models=models_of,
        )
    )


def models_of_rows(recipe: Recipe | None, team: TeamSpec) -> Callable[[Row], frozenset[str]]:
    """Return a function that returns the models of a row."""
    if recipe is None:
        models = team.models
        return lambda row: models
    kind, known = kind_of_source(recipe), dict[str, frozenset[str]]()

    def models_of(row: Row) -> frozenset[str]:
        if row.name not in known:
            known[row.name] = kind.models(recipe, team, row.values)
        return known[row.name]

    return models_of


def with_timeout(options: RunOptions, seconds: float | None) -> RunOptions:
    """Return options with another time limit, if any, but the same action at the limit."""
    if seconds is None:
        return options
    timeout: Timeout | float = seconds
    if isinstance(options.timeout, Timeout):
        timeout = replace(options.timeout, seconds=seconds, ms=None)
    return replace(options, timeout=timeout)


def begin_row(request: StartRequest, path: Path) -> Run:
    """Start a row's run, or resume it if it has begun.

    Args:
        request: The request that starts the row. Its session is the row's name.
        path: The sweep's directory.
    """
    name = str(request.session)
    if any(turn.has_begun for turn in turns_of(path / name)):
        return resume(name, request.config, tools=request.tools, options=request.options)
    return start_row(request)


@safe_errors
def start_row(request: StartRequest) -> Run:
    """Start a row's run. The estimate of its cost is shown for all rows together."""
    return begin_run(request.changed(estimates=False))


def withdraw_rows(path: Path) -> None:
    """Withdraw the rows that are waiting for a worker of the cluster."""
    from nb_agents.launch.cluster import withdraw

    withdraw(path)


def check_owner(
    path: Path,
    rows: Sequence[str],
    team: TeamSpec,
    retry_failed: bool,
    judges: Sequence[str] = (JUDGE_SESSION,),
) -> None:
    """Raise a single `NotYoursError` if another user started rows that would be resumed.

    Args:
        path: The sweep's directory.
        rows: The names of the rows.
        team: The team that would resume them.
        retry_failed: Whether failed rows run again.
        judges: The names of the judges' sessions in the session of a row.
    """
    fold = fold_notes(path)
    scored = {row for row, result in fold.results.items() if result.score is not None}
    unfinished = [path / row for row in rows if not fold.is_final(row, retry_failed)]
    unfinished += [path / row / judge for row in rows if row not in scored for judge in judges]
    if strangers := [session for session in unfinished if not is_yours(session)]:
        lines = (line for session in strangers for line in would_resume(session, team))
        raise NotYoursError(path.name, tuple(dict.fromkeys(lines)))


def check_columns(task: str, rows: Sequence[Row]) -> None:
    """Raise `TaskError` if the task refers to a column that a row does not have."""
    for path in filter(looks_like_a_name, variables(task)):
        column = path.partition(".")[0]
        for number, row in enumerate(rows, 1):
            if not {column, path} & row.values.keys():
                hint = did_you_mean(path, row.values)
                columns = ", ".join(row.values)
                raise TaskError(
                    f"The task uses {{{{{path}}}}}, but row {number} has no such column.{hint} "
                    f"It has: {columns}. To use the same value for all rows, add a column with it. "
                    f"For literal braces, write \\{{{{{path}}}}}."
                )


def identity(source: object) -> str:
    """Return an identity of a team or recipe. A file is identified by its path, not its content."""
    if source is None:
        return ""
    if isinstance(source, str | os.PathLike):
        return str(Path(source).expanduser().absolute())
    dump = getattr(source, "model_dump_json", None)
    text = dump() if dump is not None else repr(source)
    return sha256(text.encode()).hexdigest()[:16]


def checked_name(name: str) -> str:
    """Return the name of a sweep, or raise `UserError` if it is invalid."""
    if not name:
        return ""
    with suppress(ValueError):
        return safe_name(name)
    raise UserError(f"Invalid sweep name {name!r}. Use letters, digits, '_', '-' and '.'.")


def derived_name(about: Mapping[str, Any], rows: Sequence[Row], prefix: str = "sweep") -> str:
    """Return the name of a sweep for which the user gave none."""
    source = str(about["source"])
    is_file = os.path.isabs(source)
    # A source in memory is identified by its rows.
    identity = {key: value for key, value in about.items() if key != "rows"}
    names = [] if is_file else [row.name for row in rows]
    digest = sha256(json.dumps([identity, names], sort_keys=True).encode()).hexdigest()[:8]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(source).stem if is_file else "rows").strip("-")
    return f"{prefix}_{stem[:40] or 'rows'}_{digest}"
