"""Starting and resuming runs, here or in another process, for all user interfaces."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.launch.detach import begin_elsewhere, is_detached
from nb_agents.launch.here import RunRequest
from nb_agents.launch.resume import ResumeRequest
from nb_agents.launch.resume_plan import preview_of
from nb_agents.launch.rewind import RewindRequest
from nb_agents.launch.rewind_plan import RewindPreview, TurnPrefix, preview_rewind
from nb_agents.launch.start import StartRequest
from nb_agents.masking import safe_errors
from nb_agents.options import RunOptions
from nb_agents.runs.finding import find_known
from nb_agents.runs.run import Resumer, Run, checked_words
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import find_turn

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

MAX_TIMES = 100
"""Times that a turn can go on from one point by one call."""


@safe_errors
def start(
    task: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    session: str | None = None,
    continue_: bool = False,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Run:
    """Start a team on a task or a recipe, in the background.

    Args:
        task: The task; leave it empty for a recipe.
        config: A team file, or a TeamSpec, such as ``TeamSpec.from_model("openai:gpt-5-mini")``;
            by default three demo agents that need no key.
        session: The session's id: continues it when it exists, else creates it. By default a new
            session, or with ``continue_`` the last one of this notebook, else of a terminal.
        continue_: Whether to add a turn to a session, which must exist.
        recipe: A recipe file, or a Recipe, for the agents to run.
        context: The values that the recipe starts with.
        tools: Functions that all agents may call; see `nb_agents.tool`.
        options: Time limit, retries, stop, approvals, callbacks, session root.

    Returns:
        The run, without waiting for it. Its turn is on disk already, marked incomplete.

    Raises:
        TaskError: The task is empty or given with a recipe, or values are given without a recipe.
        RecipeError: A value that the recipe requires is missing.
        ConfigError: The team is not valid.
        MissingKeyError: A provider's key is not set.
        UnknownSessionError: There is no such session to continue.
        NotYoursError: The session was made by another user or on another machine, and the options
            don't `trust` it.
        SessionBusyError: The session is already running, or got another turn in the meantime.
        StorageError: The session root can't be written.

    Example:
        run = nb_agents.start("Compare three ways to cache embeddings")
        run.stop(reason="wrong path")
    """
    return begin(
        StartRequest(
            task=task,
            config=config,
            session=session,
            continue_=continue_,
            recipe=recipe,
            context=context,
            tools=tools,
            options=options or RunOptions(),
        )
    )


@safe_errors
def resume(
    session: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    agent: str = "",
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    from_step: str = "",
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Run:
    """Resume the incomplete last turn of a session, with the same task and agents.

    Agents that failed are called again; those that were stopped alone stay out.

    Args:
        session: The session's id; "" means the last one of this notebook, else of a
            terminal.
        config: The team; by default that of the turn's team file, else the one in its journal.
        agent: Id of an agent that failed or was stopped alone and is to take part again; then the
            turn may also be complete. Existing answers and votes are kept, and the vote is decided
            again with the agent's answer.
        recipe: A recipe that replaces the turn's; finished steps are kept.
        context: Values that are added to the recipe's context or replace values there, or the
            output of a step that has begun; finished steps are kept.
        from_step: Id of the recipe's step that runs again, with all that comes after it; then the
            turn may also be complete.
        tools: Functions that all agents may call, as the turn's own are not stored.
        options: The run's options; the timeout starts again.

    Returns:
        The run, which is the next turn of the session.

    Raises:
        UserError: There is nothing to resume, or the team is not the turn's.
        RecipeError: A value is not plain data.
        SessionBusyError: The session is running, or another run has resumed it in the meantime.
        NotYoursError: The session was made by another user or on another machine, and the options
            don't `trust` it.
        StorageError: The session can't be written.
    """
    return begin(
        ResumeRequest(
            session=session,
            config=config,
            agent=agent,
            recipe=recipe,
            context=context,
            from_step=from_step,
            tools=tools,
            options=options or RunOptions(),
        )
    )


@overload
def rewind(
    turn: str = "",
    to: str | int = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    say: str = "",
    agent: str = "",
    model: str = "",
    times: None = None,
    now: bool = False,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Run: ...


@overload
def rewind(
    turn: str = "",
    to: str | int = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    say: str = "",
    agent: str = "",
    model: str = "",
    times: int,
    now: bool = False,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Any: ...


@safe_errors
def rewind(
    turn: str = "",
    to: str | int = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    *,
    say: str = "",
    agent: str = "",
    model: str = "",
    times: int | None = None,
    now: bool = False,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
) -> Any:
    """Go back to a point of a turn, and on from there in a new turn; the old one stays as it is.

    No model call, tool call or step that had ended by then runs again. Files of the person's own
    go back where only agents have changed them.

    Args:
        turn: SESSION or SESSION/TURN; "" means the last turn of this notebook's last session. One
            that is live is stopped first.
        to: The point: the number of an event as in ``%agents log``; or words such as "before ben's
            2nd answer"; or a time, "14:32:05" or "+1:05" since the start.
        config: A team with the same agents, which goes on in the place of the turn's own.
        say: A text for the agents.
        agent: The one agent that the text is for; by default all.
        model: The model that all agents ask from then on, as ``openai:gpt-5-mini``.
        times: How often to go on from there, each time in a session of its own, as a row of a
            sweep. Repeating the call goes on with the same sweep; a higher number adds to it.
        now: Whether to cut what is in flight in a live turn.
        tools: Functions that all agents may call, as the turn's own are not stored.
        options: The run's options.

    Returns:
        The run, which is the next turn of the session; with ``times`` a `Sweep`.

    Raises:
        UserError: There is no such turn or point, or the team is not the turn's.
        SessionBusyError: Another turn of the session is live.
        NotYoursError: As for `resume`.
        StorageError: The session can't be written.

    Example:
        run = nb_agents.rewind(to="before ben's 2nd answer", say="Think of the cost, too.")
        sweep = nb_agents.rewind(to="before ben's 2nd answer", times=5)
    """
    options = options or RunOptions()
    paths = find_turn(session_root(options.session_root), turn)
    given = {"config": config, "model": model, "tools": tools, "options": options}
    request = _rewind_request(paths, to, say, agent, times, **given)
    if paths.is_live():
        request.check()  # before the turn is stopped
        live = find_known(str(paths.path))
        live.stop(now, reason="to go back to an earlier point")
        live.wait(raise_on_stop=False)
        request = replace(request, at=TurnPrefix(paths, str(request.at.point.seq)))
    return begin(request) if times is None else Run.resumer.try_again(request, times)


def _rewind_request(
    paths: TurnPaths, to: str | int, say: str, agent: str, times: int | None, **given: Any
) -> RewindRequest:
    at = TurnPrefix(paths, str(to))
    if agent and not say:
        raise UserError(f"A text is given to {agent!r} alone, but no text: add say=, or --say.")
    if times is not None and not 1 <= times <= MAX_TIMES:
        raise UserError(f"A turn can't go on {times} times from a point. Give 1 to {MAX_TIMES}.")
    options = replace(given.pop("options"), session_root=paths.root)
    return RewindRequest(
        session=paths.session,
        at=at,
        say=checked_words(say) if say else "",
        say_to=agent,
        agent="",
        recipe=None,
        context=None,
        from_step="",
        options=options,
        **given,
    )


def _preview_rewind(
    paths: TurnPaths, to: str | int, say: str, agent: str, times: int | None, **given: Any
) -> RewindPreview:
    request = _rewind_request(paths, to, say, agent, times, tools=(), **given)
    request.check()
    return preview_rewind(request.at, request.model)


def begin(request: RunRequest) -> Run:
    """Begin the run of a request, here or in another process."""
    loaded = request.load()
    if is_detached(request.options, loaded.team):
        return begin_elsewhere(request, loaded)
    return loaded.begin()


def _try_again(request: RewindRequest, times: int) -> Any:
    raise NotImplementedError  # set by `nb_agents`, as sweeps are above this module


Run.resumer = Resumer(resume, preview_of, rewind, _preview_rewind, _try_again)
