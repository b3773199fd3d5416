"""All runs of this process: start them, find them, stop them. Every door ends here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from nb_agents.cancel import CancelPolicy, StopResult, StopSource
from nb_agents.config.recipe import Recipe
from nb_agents.config.team import TeamSpec
from nb_agents.errors import (
    SessionBusyError,
    TaskError,
    UnknownRunError,
    UserError,
)
from nb_agents.masking import safe_errors
from nb_agents.models.providers import check_team, load
from nb_agents.runs.live_runs import (
    config_path,
    launch,
    live_runs,
    owner,
    owner_of,
    runs,
    timeout_of,
    wait_until_saved,
)
from nb_agents.runs.loop import at_shutdown
from nb_agents.runs.options import RunOptions, chosen_options
from nb_agents.runs.recipes import given_values, keep_recipe, read_recipe, title
from nb_agents.runs.resume import resume
from nb_agents.runs.run import Run
from nb_agents.runs.turn_spec import Work, checked_functions, mask_for, writable_places
from nb_agents.session import layout
from nb_agents.session.copying import not_copied
from nb_agents.session.history import Session, load_session
from nb_agents.session.layout import TurnPaths
from nb_agents.session.manage import fork_session
from nb_agents.unicode import well_formed

__all__ = [
    "find_run",
    "live_runs",
    "runs",
    "start",
    "stop",
    "stop_all",
]

SHUTDOWN_S = 2.0
"""ipykernel gets SIGTERM 2.5 s after a shutdown request. Source: jupyter_client manager.py."""

READ_ONLY_IN_A_RECIPE = "Context paths are only read in a recipe: none of its agents presents."

DEMO_NOTICE = (
    "Demo model: offline, free, nobody's key is used. For real models: "
    "%%agents --config team.yaml (see the README)."
)


@safe_errors
def start(
    task: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    session: str | None = None,
    continue_: bool = False,
    session_root: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    from_turn: int | None = None,
    skip_unsupported: bool = False,
    policy: CancelPolicy | None = None,
    options: RunOptions | None = None,
    debug: bool = False,
) -> Run:
    """Start a team on a task, or on a recipe, in the background.

    Args:
        task: What is asked; a recipe asks for itself.
        config: A team file, or a TeamSpec, such as ``TeamSpec.from_model("openai:gpt-5-mini")``;
            by default three demo agents that need no key.
        session: The session's id: goes on in it when it exists, else begins it. By default a new
            session of its own, or with ``continue_`` the one used last.
        continue_: Go on in a session that must exist.
        recipe: A recipe file, or a Recipe, for the agents to work through.
        context: The values that the recipe starts with.
        tools: Functions that all agents may call; see `nb_agents.tool`.
        from_turn: With ``continue_``: leave that session as it is, and go on from this turn of it
            in a new one.
        session_root: Where sessions are; by default NB_AGENTS_SESSIONS or .nb_agents/sessions.
        timeout: Orchestrator timeout in seconds; by default the config's, else 1800, and none for a
            recipe, whose steps have their own.
        skip_unsupported: Whether to run a team without its agents that can't run here.
        policy: Grace time and hooks of a stop.
        options: Time, retries, stop, approvals and callbacks at once; in the place of ``timeout``
            and ``policy``.
        debug: Whether to write debug.log into the turn's directory.

    Returns:
        The run, at once. Its turn is on disk already, marked incomplete.

    Raises:
        TaskError: The task is empty, or there is a recipe besides.
        RecipeError: The recipe needs a value that is not given.
        ConfigError: The team can't be used.
        MissingKeyError: A provider's key is not set.
        UnknownSessionError: There is no such session to continue.
        SessionBusyError: The session is being run already.
        StorageError: The session root can't be written.

    Example:
        run = nb_agents.start("Compare three ways to cache embeddings")
        run.stop(reason="wrong path")
    """
    task = _task(task, recipe)
    spec, notices = _team(config, skip_unsupported)
    functions = checked_functions(tools)
    given = given_values(context or {}) if recipe is not None else {}
    read = None if recipe is None else read_recipe(recipe, given, spec)
    readable = spec.context_paths
    if read is not None and spec.writable_paths:
        notices += (READ_ONLY_IN_A_RECIPE,)
    chosen = chosen_options(options, timeout, policy, spec)
    timeout_s = timeout_of(chosen.timeout_s, spec, is_recipe=read is not None)
    load({agent.backend.type for agent in spec.everyone})
    past, left_out = _open_session(session_root, session, continue_, from_turn)
    mask = mask_for(spec)

    def make(paths: TurnPaths) -> Work:
        if read is not None:
            keep_recipe(paths, read, mask)
        return Work(
            task=title(read) if read else task,
            spec=spec,
            paths=paths,
            history=past.messages,
            context=(*readable, *past.context_paths),
            writable=() if read else writable_places(spec, paths.path.parents[1]),
            timeout_s=timeout_s,
            notices=(*notices, *past.restored(), *left_out),
            owner=owner(),
            config=config_path(config),
            recipe=read,
            given=given,
            functions=functions,
            options=chosen.options,
            mask=mask,
        )

    return launch(past.path, make, chosen.policy, debug, resume)


def find_run(name: str = "") -> Run:
    """Find a run of this process.

    Args:
        name: Its id, its session's id, or "session/turn"; "" means the latest live one, else the
            latest.

    Returns:
        The run.

    Raises:
        UnknownRunError: There is none.
    """
    if not name and runs():
        return (live_runs() or runs())[-1]
    for run in reversed(runs()):
        if name in (run.id, run.session, f"{run.session}/{run.turn}"):
            return run
    raise UnknownRunError(name, tuple(run.id for run in runs()))


def stop(
    run_id: str,
    now: bool,
    source: StopSource,
    reason: str = "",
    agent: str | None = None,
) -> StopResult:
    """Stop a run by its id; what every door calls.

    Args:
        run_id: As for `find_run`.
        now: Whether it is immediate.
        source: The door.
        reason: Why.
        agent: Id of the one agent to stop, or None.

    Returns:
        Whether this changed anything, and where the run stands: an unknown run is told apart from
        a finished one and from one that is stopping already.
    """
    try:
        run = find_run(run_id)
    except UnknownRunError:
        return StopResult(False, "unknown")
    return run.stop(now, agent, reason, source=source)


def _task(task: str, recipe: object) -> str:
    task = well_formed(task.strip())
    if task and recipe is not None:
        raise TaskError("A task and a recipe are both given. A recipe asks for itself.")
    if not task and recipe is None:
        raise TaskError("The task is empty. Write what the agents are to do below the first line.")
    return task


def _skipping(spec: TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    """Leave out the agents that can't run here, and say which."""
    gone = spec.unsupported
    if not gone:
        return spec, ()
    named = ", ".join(f"{each.agent} ({each.type})" for each in gone)
    return spec.without_unsupported(), (f"Skipped, not supported here: {named}",)


def _team(
    config: str | os.PathLike[str] | TeamSpec | None, skip_unsupported: bool
) -> tuple[TeamSpec, tuple[str, ...]]:
    """Give the team that can start, and what a person should know of it."""
    spec, notices = _demo_team() if config is None else _own_team(config)
    if skip_unsupported:
        spec, skipped = _skipping(spec)
        notices += skipped
    check_team(spec)
    return spec, notices


def _demo_team() -> tuple[TeamSpec, tuple[str, ...]]:
    agents = [{"id": name, "backend": {"type": "demo"}} for name in ("ada", "ben", "cleo")]
    return TeamSpec.model_validate({"agents": agents}), (DEMO_NOTICE,)


def _own_team(config: str | os.PathLike[str] | TeamSpec) -> tuple[TeamSpec, tuple[str, ...]]:
    spec = config if isinstance(config, TeamSpec) else TeamSpec.from_file(config)
    return spec, spec.notices


def _open_session(
    root: str | os.PathLike[str] | None, session: str | None, continue_: bool, turn: int | None
) -> tuple[Session, tuple[str, ...]]:
    """Find or make the session that a run goes into; say what could not be taken along."""
    where, now = layout.session_root(root), datetime.now()
    if turn is not None and not continue_:
        raise UserError("--from names a turn to go on from: it goes with --continue.")
    if continue_:
        path = layout.find_session(where, session or "")
        if turn is not None:
            fork = fork_session(path, turn, now)
            return load_session(fork.path), not_copied(fork.left_out)
    elif session:
        path = layout.named_session(where, session)
    else:
        path = layout.new_session(where, now)
    wait_until_saved(path)
    if any(turn.is_live() for turn in layout.turns_of(path)[-1:]):
        raise SessionBusyError(path.name, owner_of(path))
    return load_session(path), ()


def stop_all() -> None:
    """Stop every run at once, for good: the process is ending. Waits until all is saved.

    Returns after `SHUTDOWN_S` at the latest; a run's journal is on disk in any case.
    """
    live = live_runs()
    for run in live:
        run.stop(True, reason="the kernel or process is shutting down", source="parent")
    deadline = time.monotonic() + SHUTDOWN_S
    for run in live:
        with suppress(TimeoutError):
            run.wait(max(0.0, deadline - time.monotonic()), raise_on_stop=False)


at_shutdown(stop_all)
