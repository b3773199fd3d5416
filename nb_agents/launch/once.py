"""Showing a turn that an unchanged request has had before, instead of paying for it again.

A request is identified by a digest, which each turn keeps: the task with the values that
were put into it, the team, the recipe and its values, the functions' code, and those options that
can change an answer. The turn of a digest is looked for in the session root, whatever kernel or
notebook began it.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.config.secrets import snapshot
from nb_agents.config.team import TeamSpec
from nb_agents.launch import api
from nb_agents.launch.start import StartRequest
from nb_agents.launch.trust import is_yours
from nb_agents.masking import safe_errors
from nb_agents.options import RunOptions
from nb_agents.runs.finding import find_known
from nb_agents.runs.live_runs import wait_until_saved
from nb_agents.runs.run import Run
from nb_agents.session.layout import TurnPaths, session_root, sessions_in, turns_of
from nb_agents.session.lookup import find_session
from nb_agents.session.views import read_json

if TYPE_CHECKING:
    from nb_agents.config.recipe import Recipe

MAX_READ = 10_000_000
"""Bytes up to which a file that agents may read counts by its content; else by its size."""


class EarlierOrNew(NamedTuple):
    """The run of a request.

    Attributes:
        run: The run; it is over when an earlier turn is complete.
        is_earlier: Whether nothing was begun, as the turn is complete or still live.
    """

    run: Run
    is_earlier: bool


@safe_errors
def once(
    task: str = "",
    config: str | os.PathLike[str] | TeamSpec | None = None,
    session: str | None = None,
    continue_: bool = False,
    *,
    recipe: str | os.PathLike[str] | Recipe | None = None,
    context: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    options: RunOptions | None = None,
    fresh: bool = False,
) -> Run:
    """Return the run of the same request if there was one, else start it.

    A complete turn is returned as it is, at no cost; a live one is followed; an incomplete one is
    resumed. The request is the same while task, team, recipe, values, functions and options are.

    Args:
        task: As for `nb_agents.start`, and so are all but the last.
        config: A team file or a team.
        session: The session's id.
        continue_: Whether to add a turn to a session.
        recipe: A recipe.
        context: The values that the recipe starts with.
        tools: Functions that all agents may call; their code counts.
        options: Of these count the timeout and what agents may read.
        fresh: Whether to start a new turn in any case.

    Returns:
        The run; ``run.wait()`` returns the answer.

    Raises:
        UserError: As for `nb_agents.start` and `nb_agents.resume`.

    Example:
        answer = nb_agents.once("Compare three ways to cache embeddings").wait()
    """
    request = StartRequest(
        task=task,
        config=config,
        session=session,
        continue_=continue_,
        recipe=recipe,
        context=context,
        tools=tools,
        options=options or RunOptions(),
    )
    return run_once(request, fresh=fresh).run


def begin_new(request: StartRequest) -> EarlierOrNew:
    """Start the run of a request."""
    return EarlierOrNew(api.begin(request), False)


_chosen: list[bool] = []


def make_once_default(is_default: bool) -> None:
    """Choose for this process whether every request of a cell is made once."""
    _chosen[:] = [is_default]


def once_is_default() -> bool:
    """Return whether every request of a cell or a terminal is made once."""
    return _chosen[0] if _chosen else os.environ.get("NB_AGENTS_ONCE") == "1"


@safe_errors
def run_once(request: StartRequest, *, fresh: bool = False) -> EarlierOrNew:
    """Carry out a request as `once` does.

    Args:
        request: The request.
        fresh: Whether to start a new turn in any case.
    """
    request = replace(request, digest=digest_of(request))
    turn = None if fresh else _find(session_root(request.options.session_root), request.digest)
    if turn is None:
        return begin_new(request)
    wait_until_saved(turn.path.parent)
    if _has_run(turn):
        return EarlierOrNew(find_known(str(turn.path)), True)
    if turns_of(turn.path.parent)[-1] != turn:  # a later turn went on with what there was
        return begin_new(request)
    return EarlierOrNew(_resume(request, turn), False)


def resume_once(
    session: str, options: RunOptions, begin: Callable[[], Run], *, is_new: bool = False
) -> EarlierOrNew:
    """Resume a session, unless its last turn is complete or live: then return that.

    Args:
        session: The session's id; "" means the last one of this notebook.
        options: The options.
        begin: Resumes it.
        is_new: Whether something else is asked for than to come to its end.
    """
    if is_new:
        return EarlierOrNew(begin(), False)
    path = find_session(session_root(options.session_root), session)
    wait_until_saved(path)
    last = turns_of(path)[-1]
    if _has_run(last):
        return EarlierOrNew(find_known(str(last.path)), True)
    return EarlierOrNew(begin(), False)


def _has_run(turn: TurnPaths) -> bool:
    return turn.is_live() or read_json(turn.metadata).get("run_status") == "completed"


def _resume(request: StartRequest, turn: TurnPaths) -> Run:
    return api.resume(
        turn.session,
        request.config if isinstance(request.config, TeamSpec) else None,
        tools=request.tools,
        options=replace(request.options, session_root=turn.root, from_turn=None),
    )


def _find(root: Path, digest: str) -> TurnPaths | None:
    """Return the last turn of a digest, of the session that was used last; not a stranger's."""
    for session in sessions_in(root).by_use:
        for turn in reversed(turns_of(session)):
            # Anybody can copy a digest, and an answer beside it.
            if read_json(turn.metadata).get("digest") == digest and is_yours(session):
                return turn
    return None


def digest_of(request: StartRequest) -> str:
    """Return the digest of what a request asks for; it holds no secret."""
    options = request.options
    said = {
        "task": request.task.strip(),
        "session": request.session or "",
        "continue": request.continue_,
        "team": _team(request.config),
        "recipe": _recipe(request.recipe),
        "values": dict(request.context or {}),
        "tools": [_code(function) for function in request.tools],
        "paths": [_file(Path(path)) for path in options.context_paths],
        "options": [options.timeout_s, options.from_turn, options.skip_unsupported],
    }
    plain = json.dumps(said, sort_keys=True, default=_plain, ensure_ascii=True)
    return sha256(plain.encode()).hexdigest()[:32]


def _team(config: str | os.PathLike[str] | TeamSpec | None) -> object:
    if config is None:
        return "demo"
    team = config if isinstance(config, TeamSpec) else TeamSpec.from_file(config)
    # A model made in Python is known by its agent's name alone.
    return snapshot(team) or [(a.id, a.backend.type, a.backend.model) for a in team.everyone]


def _recipe(recipe: str | os.PathLike[str] | Recipe | None) -> object:
    if isinstance(recipe, str | os.PathLike):
        return _file(Path(recipe))
    return recipe and recipe.model_dump(mode="json")


def _file(path: Path) -> list[object]:
    """Return a file's path and content; of a directory only its path."""
    path = path.expanduser()
    if not path.is_file():
        return [str(path)]
    size = path.stat().st_size
    return [str(path), sha256(path.read_bytes()).hexdigest() if size <= MAX_READ else size]


def _code(function: Callable[..., Any]) -> list[str]:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        return [name, inspect.getsource(function)]
    except (OSError, TypeError):  # written nowhere, or no function
        return [name]


def _plain(value: object) -> str:
    """Return a value of a notebook in words that are the same in another kernel."""
    return value.hex() if isinstance(value, bytes) else f"{type(value).__qualname__}: {value}"
