"""Starts, resumes and rewinds runs, in this process or another, for all entry points."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from nb_agents.launch.begin import begin_forks, stop_before
from nb_agents.launch.finding import find_run
from nb_agents.launch.resume import ResumeRequest
from nb_agents.launch.rewind import RewindRequest
from nb_agents.launch.run import Run, begin
from nb_agents.launch.start import StartRequest
from nb_agents.masking import safe_errors
from nb_agents.signatures import takes

_P = ParamSpec("_P")
_Rewind = TypeVar("_Rewind", bound=RewindRequest)


@safe_errors
@takes(StartRequest)
def start(request: StartRequest) -> Run:
    r"""Start a team on a task or a recipe, in the background.

    Args:
        task: The task, or "" for a recipe. ``@path`` lets the agents read a file or directory below
            the working directory, except hidden ones. Write ``\@`` for a literal @.
        config: A team file, or a TeamSpec, such as ``TeamSpec.from_model("openai:gpt-5-mini")``.
            By default, three demo agents that need no key.
        session: The session's id or path. An existing session is continued, and a missing one is
            created. By default, a new session or, with ``continue_``, this notebook's last session
            (in a terminal, the last session started in a terminal).
        continue_: Whether to add a turn to an existing session.
        recipe: A recipe file, or a Recipe, for the agents to run.
        context: The recipe's initial values.
        tools: Functions that all agents may call; see `nb_agents.tool`.
        options: Time limit, retries, stop, approvals, callbacks, session root.

    Returns:
        The running run. Its turn is already on disk, marked incomplete.

    Raises:
        TaskError: The task is empty or combined with a recipe, values are given without a recipe,
            or an ``@path`` is missing, hidden or outside the working directory.
        RecipeError: A required value of the recipe is missing.
        ConfigError: The team is invalid.
        MissingKeyError: A provider's API key is not set.
        UnknownSessionError: The session to continue does not exist.
        NotYoursError: The session was created by another user or on another machine, and the
            options don't `trust` it.
        SessionBusyError: The session is already running, or got another turn in the meantime.
        StorageError: The session root can't be written.

    Example:
        run = nb_agents.start("Compare three ways to cache embeddings")
        run.stop(reason="wrong path")
    """
    return begin(request.reading_mentions())


@safe_errors
@takes(StartRequest)
def start_verbatim(request: StartRequest) -> Run:
    """Start a run like `start`, but without reading files for ``@path`` in the task.

    Meant for programs that start runs on behalf of other users, whose tasks must not open files.
    """
    return begin(request)


@safe_errors
@takes(ResumeRequest)
def resume(request: ResumeRequest) -> Run:
    """Resume the incomplete last turn of a session, with the same task and agents.

    Agents that failed are called again. Agents that were stopped individually are not.

    Args:
        session: The session's id, or the path of its directory or of its last turn (`Run.path`).
            "" means this notebook's last session (in a terminal, the last one started there).
        config: The team. By default, the turn's team file or, if it had none, the team in its
            journal.
        agent: Id of an agent to restart, which failed or was stopped individually. The turn may be
            complete in this case. Existing answers and votes are kept, and the vote is
            decided again with the agent's answer.
        recipe: A recipe that replaces the turn's recipe. Finished steps are kept.
        context: Values to add to or replace in the recipe's context, or to use as the output of a
            step that has started. Finished steps are kept.
        from_step: Id of a step of the recipe. It runs again with everything after it. The turn may
            be complete in this case.
        tools: Functions that all agents may call. Pass them again, because they are not stored.
        options: The run's options. The timeout starts again.

    Returns:
        The run, which is the next turn of the session.

    Raises:
        UserError: There is nothing to resume, or the team does not match the turn.
        RecipeError: A value is not plain data.
        SessionBusyError: The session is running, or another run has resumed it in the meantime.
        NotYoursError: The session was created by another user or on another machine, and the
            options don't `trust` it.
        StorageError: The session can't be written.
    """
    return begin(request)


def accepting_times(rewind: Callable[_P, Run]) -> Callable[_P, Run]:
    """Make a rewind accept ``times`` like version 0.1, with a warning."""

    @wraps(rewind)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (times := kwargs.pop("times", None)) is None:
            return rewind(*args, **kwargs)
        message = "rewind(times=) is deprecated. Use nb_agents.fork()."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return begin_forks(RewindRequest(*args, **kwargs), times)

    return call


@accepting_times
@safe_errors
@takes(RewindRequest)
def rewind(request: RewindRequest) -> Run:
    """Go back to a checkpoint of a turn and continue from there in a new turn.

    The old turn does not change. Model calls, tool calls and steps that ended before the checkpoint
    are not repeated. User files are restored if only agents have changed them.

    Args:
        turn: SESSION or SESSION/TURN, or the path of either. "" means the last turn of this
            notebook's last session. A live turn is stopped first.
        to: The checkpoint: the number of an event as in ``%agents log``, a description such as
            "before ben's 2nd answer", or a time ("14:32:05", or "+1:05" since the start).
        config: A team with the same agents, to use instead of the turn's own.
        say: A message for the agents.
        agent: The one agent that gets the message. By default, all agents get it.
        model: The model for all agents from the checkpoint on, such as ``openai:gpt-5-mini``.
        now: Whether to interrupt model and tool calls in a live turn.
        tools: Functions that all agents may call. Pass them again, because they are not stored.
        options: The run's options.

    Returns:
        The run, which is the next turn of the session. See `fork` for several runs.

    Raises:
        UserError: The turn or checkpoint does not exist, or the team does not match the turn.
        SessionBusyError: Another turn of the session is live.
        NotYoursError: As for `resume`.
        StorageError: The session can't be written.

    Example:
        run = nb_agents.rewind(to="before ben's 2nd answer", say="Think of the cost, too.")
    """
    return begin(stop_live_turn(request))


def stop_live_turn(request: _Rewind) -> _Rewind:
    """Stop the turn of a rewind if it is live, and return the request for the stopped turn.

    Raises:
        UserError: The rewind would fail. The turn is not stopped.
    """
    if not request.at.paths.is_live():
        return request
    return stop_before(request, find_run(str(request.at.paths.path)))
