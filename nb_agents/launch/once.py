"""Finds the turn of an identical earlier request, so that it does not have to run again.

A request is identified by a digest of the task with its values filled in, the team, the recipe and
its values, the code of the functions, and the options that can change an answer. The digest is
stored in the first event of the turn. All turns in the session root are searched, including those
of other kernels and notebooks.

Only journals are read, because their lines are authenticated, while any program can write the other
files. With a lock per request, only one of several callers starts a turn and the others find it.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import Timeout

from nb_agents.config.secrets import snapshot
from nb_agents.config.team import TeamSpec
from nb_agents.disk.names import as_on_disk
from nb_agents.disk.private import make_folder, private_lock
from nb_agents.errors import UserError, as_storage_error
from nb_agents.launch import api
from nb_agents.launch.finding import find_run
from nb_agents.launch.run import Run, begin
from nb_agents.launch.start import StartRequest
from nb_agents.launch.trust import is_yours
from nb_agents.launch.work_kind import WorkSource
from nb_agents.masking import safe_errors
from nb_agents.options import RunOptions
from nb_agents.session.history import load_turn
from nb_agents.session.journal import first_event
from nb_agents.session.layout import TurnPaths, make_root, session_root, sessions_in, turns_of
from nb_agents.session.lookup import find_session, parse_session_reference
from nb_agents.signatures import takes
from nb_agents.turns.live_runs import wait_until_saved

if TYPE_CHECKING:
    pass

MAX_READ = 10_000_000
"""Context files up to this many bytes are compared by content, larger ones by size."""

REQUESTS = ".requests"
"""Directory in a session root with locks, which are held while a request's turn is started."""

START_S = 300.0
"""Seconds to wait for another caller that is starting the same request, which may be slow."""


class CachedRun(NamedTuple):
    """The run that `once` found or started for a request.

    Attributes:
        run: The run. It has already ended if an earlier turn is complete.
        is_earlier: Whether no run was started, because the turn is complete or still live.
    """

    run: Run
    is_earlier: bool


@dataclass(frozen=True)
class OnceRequest(StartRequest):
    """The arguments of `nb_agents.once`, which describes them."""

    _: KW_ONLY
    fresh: bool = False


@safe_errors
@takes(OnceRequest)
def once(request: OnceRequest) -> Run:
    """Return the run of an identical earlier request, or start the request.

    A complete turn is returned at no cost, a live one is followed, and an incomplete one resumed.
    Requests are identical if the task, team, recipe, values, functions and options are.

    Args:
        task: As for `nb_agents.start`.
        config: As for `nb_agents.start`.
        session: As for `nb_agents.start`.
        continue_: As for `nb_agents.start`.
        recipe: As for `nb_agents.start`.
        context: As for `nb_agents.start`.
        tools: As for `nb_agents.start`. Their code is compared.
        options: As for `nb_agents.start`. The timeout and the readable files are compared.
        fresh: Whether to start a new turn in any case.

    Returns:
        The run. ``run.wait()`` returns the answer.

    Raises:
        UserError: As for `nb_agents.start` and `nb_agents.resume`.

    Example:
        answer = nb_agents.once("Compare three ways to cache embeddings").wait()
    """
    return run_once(request.reading_mentions(), fresh=request.fresh).run


def start_new(request: StartRequest) -> CachedRun:
    """Start a new run for a request."""
    return CachedRun(begin(request), False)


_default: list[bool] = []


def make_once_default(is_default: bool) -> None:
    """Set whether cells of this process use `once` by default."""
    _default[:] = [is_default]


def once_is_default() -> bool:
    """Return whether cells and terminals use `once` by default."""
    return _default[0] if _default else os.environ.get("NB_AGENTS_ONCE") == "1"


@safe_errors
def run_once(request: StartRequest, *, fresh: bool = False) -> CachedRun:
    """Return the run of an identical earlier request or start it; see `once`.

    Args:
        fresh: Whether to start a new turn in any case.
    """
    request = request.changed(digest=digest_of(request))
    if fresh:
        return start_new(request)
    root = session_root(request.options.session_root)
    if earlier := _earlier(_find(root, request.digest)):
        return earlier
    with _claimed(root, request.digest):
        turn = _find(root, request.digest)
        return _earlier(turn) or _start(request, turn)


def resume_once(
    session: str | os.PathLike[str],
    options: RunOptions,
    begin: Callable[[], Run],
    *,
    is_new: bool = False,
) -> CachedRun:
    """Resume a session, or return the run of its last turn if that is complete or live.

    Args:
        session: The session's id or path. "" means this notebook's last session.
        begin: Resumes the session.
        is_new: Whether to resume in any case, because the request changes something.
    """
    if is_new:
        return CachedRun(begin(), False)
    location = parse_session_reference(session, options.session_root)
    path = find_session(session_root(location.root), location.name)
    if earlier := _earlier(turns_of(path)[-1]):
        return earlier
    with _claimed(path.parent, sha256(os.fsencode(path.name)).hexdigest()):
        return _earlier(turns_of(path)[-1]) or CachedRun(begin(), False)


@contextmanager
def _claimed(root: Path, digest: str) -> Iterator[None]:
    """Hold the lock of a request, so that only one caller at a time starts its run.

    Args:
        root: The session root.
        digest: The request's digest. Requests share 256 locks, so locks need not be removed.

    Raises:
        UserError: Another caller has been starting the run for too long.
        StorageError: The root can't be written.
    """
    path = root / REQUESTS / f"{digest[:2]}.lock"
    with as_storage_error(root):
        make_root(root)
        make_folder(path.parent)
        lock = private_lock(path)
        try:
            lock.acquire(timeout=START_S)
        except Timeout:
            raise UserError(
                f"Another process has been starting this request for {START_S:g} s. Wait for it, "
                "end that process, or add --fresh to start another run."
            ) from None
    try:
        yield
    finally:
        lock.release()


def _earlier(turn: TurnPaths | None) -> CachedRun | None:
    """Return the run of a turn that is live or complete, or None for other turns."""
    if turn is None:
        return None
    wait_until_saved(turn.path.parent)
    if not turn.is_live() and load_turn(turn).view.status != "completed":
        return None
    return CachedRun(find_run(str(turn.path)), True)


def _start(request: StartRequest, turn: TurnPaths | None) -> CachedRun:
    """Resume a request's incomplete turn, or start a new one if the session has a later turn."""
    if turn is None or turns_of(turn.path.parent)[-1] != turn:
        return start_new(request)
    return CachedRun(_resume(request, turn), False)


def _resume(request: StartRequest, turn: TurnPaths) -> Run:
    return api.resume(
        turn.session,
        request.config if isinstance(request.config, TeamSpec) else None,
        tools=request.tools,
        options=replace(request.options, session_root=turn.root, from_turn=None),
    )


def _find(root: Path, digest: str) -> TurnPaths | None:
    """Return the turn with a digest from the most recently used session that contains one."""
    for session in sessions_in(root).by_use:
        for turn in reversed(turns_of(session)):
            if first_event(turn.journal).get("digest") == digest and is_yours(session):
                return turn
    return None


def digest_of(request: StartRequest) -> str:
    """Return the digest of a request. It does not reveal secrets."""
    options = request.options
    content = {
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
    plain = json.dumps(content, sort_keys=True, default=_canonical_text, ensure_ascii=True)
    return sha256(plain.encode()).hexdigest()[:32]


def _team(config: str | os.PathLike[str] | TeamSpec | None) -> object:
    if config is None:
        return "demo"
    team = config if isinstance(config, TeamSpec) else TeamSpec.from_file(config)
    # A model that was created in Python is identified only by its agent's name and type.
    return snapshot(team) or [(a.id, a.backend.type, a.backend.model) for a in team.everyone]


def _recipe(recipe: WorkSource | None) -> object:
    if isinstance(recipe, str | os.PathLike):
        return _file(Path(recipe))
    return recipe and recipe.model_dump(mode="json")


def _file(path: Path) -> list[object]:
    """Return a file's path and the hash of its content. For a directory, return only the path."""
    path = as_on_disk(path.expanduser())
    if not path.is_file():
        return [str(path)]
    size = path.stat().st_size
    return [str(path), sha256(path.read_bytes()).hexdigest() if size <= MAX_READ else size]


def _code(function: Callable[..., Any]) -> list[str]:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        return [name, inspect.getsource(function)]
    except (OSError, TypeError):  # the source is unavailable, or it is not a function
        return [name]


def _canonical_text(value: object) -> str:
    """Represent a value from a notebook as text that is the same in every kernel."""
    return value.hex() if isinstance(value, bytes) else f"{type(value).__qualname__}: {value}"
