"""The exceptions that nb_agents raises.

    NbAgentsError
    ├── UserError                a mistake to show as one sentence, without a traceback
    │   ├── ConfigError          an invalid team file, with file, line and column
    │   ├── MissingKeyError      a provider's key is not set
    │   ├── TaskError            an empty task, or an unknown {{name}} in it
    │   ├── RecipeError          an invalid condition, template or command of a recipe
    │   ├── UnknownRunError      no such run in this process
    │   ├── UnknownSessionError  no such session or turn on disk
    │   ├── SessionBusyError     another run or process is using the session
    │   │   ├── SessionChangedError  another run has added a turn in the meantime
    │   │   └── SweepBusyError   the sweep is already running
    │   ├── NotYoursError        a session of another user or machine that is not trusted
    │   ├── SessionUnreadableError   a session's directory can't be read
    │   ├── RunNotFinished       a result was requested before the run ended
    │   ├── StorageError         the session root can't be written
    │   ├── ClusterLostError     a cluster's scheduler does not answer
    │   │   └── NoWorkersError   a cluster has had no worker for too long
    │   └── ServerError          a request to a Jupyter server failed
    ├── ModelCallError           a model call failed, after retries
    ├── ReplyTooLongError        a model server sent more than a limit allows
    ├── RunFailed                a run ended without any answer
    └── RunCancelled             a run was stopped; has its partial answers and receipt
        └── CancellationRequestedError   a recipe was stopped; also names the step

`nb_agents.cancel.AgentStopped` is not in this tree. It is a BaseException, so that a tool's
``except Exception`` can't swallow a stop.

Messages may quote a server or a model, so terminal control sequences are removed from them.

This module imports no other modules of nb_agents than `nb_agents.unicode` and `nb_agents.nouns`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_agents.nouns import count
from nb_agents.unicode import without_controls

if TYPE_CHECKING:
    from nb_agents.view.receipt import Receipt

__all__ = [
    "CancellationRequestedError",
    "ClusterLostError",
    "ConfigError",
    "MissingKeyError",
    "ModelCallError",
    "NbAgentsError",
    "NoWorkersError",
    "NotYoursError",
    "RecipeError",
    "ReplyTooLongError",
    "RunCancelled",
    "RunFailed",
    "RunNotFinished",
    "ServerError",
    "SessionBusyError",
    "SessionChangedError",
    "SessionUnreadableError",
    "StorageError",
    "SweepBusyError",
    "TaskError",
    "UnknownRunError",
    "UnknownSessionError",
    "UserError",
    "as_storage_error",
    "error_message",
    "leaf_exceptions",
]


def leaf_exceptions(exc: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions in a group and its nested groups, in order.

    An exception that is not a group is returned as the only element. A task group wraps the errors
    of its tasks, and its own message, "unhandled errors in a TaskGroup (1 sub-exception)", does not
    help a user.
    """
    if not isinstance(exc, BaseExceptionGroup):
        return (exc,)
    return tuple(leaf for each in exc.exceptions for leaf in leaf_exceptions(each))


def error_message(exc: BaseException, *, named: bool = False) -> str:
    """Return the message of an exception. For a group, return the distinct messages in it.

    Args:
        exc: The exception.
        named: Whether to put the class name before each message, as Python does.
    """
    return "; ".join(dict.fromkeys(_message(leaf, named) for leaf in leaf_exceptions(exc)))


def _message(exc: BaseException, named: bool) -> str:
    name = type(exc).__name__
    try:
        message = str(exc)
    except Exception:  # a user-defined class with a broken __str__
        return name
    if isinstance(exc, OSError) and exc.strerror:
        message = exc.strerror if exc.filename is None else f"{exc.strerror}: {str(exc.filename)!r}"
    return (f"{name}: {message}" if named and message else message) or name


class NbAgentsError(Exception):
    """Base class of the exceptions that nb_agents raises."""

    def __post_init__(self) -> None:
        """Copy the dataclass fields to ``args``, from which pickle restores the exception."""
        self.args = tuple(vars(self).values())


class UserError(NbAgentsError):
    """A user's mistake, shown as one sentence without a traceback.

    Attributes:
        code: What kind of mistake it is, for programs.
        remedy: The last part of the message: what to do. "" if the message has no such part.
    """

    code: str = "invalid"
    remedy: str = ""

    def _render_traceback_(self) -> list[str]:
        """Return only the message, which IPython shows instead of a traceback."""
        return [without_controls(f"{type(self).__name__}: {self}")]


class ConfigError(UserError):
    """A team file, recipe or spec is invalid.

    Attributes:
        message: What is wrong, and how to correct it.
        file: The file's path, or None for a spec created in Python.
        line: Line of the mistake, starting at 1. None if it has no position.
        column: Column of the mistake, starting at 1. None if it has no position.
        others: Additional mistakes in the same file, in the order of the file.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        # Only the message, because pickle passes `args` by position and the other parameters are
        # keyword-only.
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.others: tuple[ConfigError, ...] = ()

    def __str__(self) -> str:
        position = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        text = f"{position}: {self.message}" if position else self.message
        return "\n".join([text, *map(str, self.others)])


@dataclass(eq=False, repr=False)
class MissingKeyError(UserError):
    """An environment variable with a provider's key or address is not set.

    Attributes:
        agent: Id of the agent that needs it.
        variable: The environment variable to set.
        provider: The agent's backend type.
        needs: The kind of value that is missing, such as "a key" or "an address".
    """

    agent: str
    variable: str
    provider: str
    needs: str = "a key"
    code = "missing-key"

    def __post_init__(self) -> None:
        self.remedy = "Set it in the environment before Jupyter starts."
        if self.needs == "a key":
            prompt = f"`import getpass, os; os.environ[{self.variable!r}] = getpass.getpass()`"
            self.remedy = (
                f"{self.remedy[:-1]}, set its source in the team file (`env_file: .env` or "
                f"`keyring: nb_agents`), or enter it with {prompt}. Do not write a key into a "
                "cell: it would be saved with the notebook."
            )

    def __str__(self) -> str:
        return (
            f"Agent {self.agent!r} uses {self.provider!r}, which needs {self.needs}, but "
            f"{self.variable} is not set. {self.remedy}"
        )


class TaskError(UserError):
    """A task is empty or refers to an unknown variable."""


class RecipeError(UserError):
    """A condition, template or command of a recipe is invalid."""


@dataclass(eq=False, repr=False)
class UnknownRunError(UserError):
    """There is no run with that name in this process.

    Attributes:
        name: The requested name, or "" for the latest run.
        known: The names of the runs that exist.
    """

    name: str
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        problem = f"No run named {self.name!r}." if self.name else "No run is live."
        runs = f" Known runs: {', '.join(self.known)}." if self.known else " None was started here."
        return (
            f"{problem}{runs} `%agents` lists the runs; `%agents sessions` lists the sessions on "
            "disk."
        )


@dataclass(eq=False, repr=False)
class UnknownSessionError(UserError):
    """There is no session or turn with that name on disk.

    Attributes:
        name: The requested name, or "" for the latest session.
        root: The session root that was searched.
        nearest: A similar name that exists, or "".
    """

    name: str
    root: str
    nearest: str = ""

    def __str__(self) -> str:
        problem = f"No session {self.name!r}" if self.name else "No session to continue"
        hint = f" Did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{problem} in {self.root}.{hint} `%agents sessions` lists the sessions."


@dataclass(eq=False, repr=False)
class SessionBusyError(UserError):
    """A run in this or another process is already using the session.

    Attributes:
        session: The session's id.
        owner: A description of the run or process for users.
    """

    session: str
    owner: str

    def __str__(self) -> str:
        return (
            f"Session {self.session!r} is already running ({self.owner}). Stop that run or wait "
            f"for it, or start without --session to create a new session."
        )


class SessionChangedError(SessionBusyError):
    """Another run added a turn to a session that was about to be continued.

    Attributes:
        turn: Number of the new turn.
    """

    def __init__(self, session: str, turn: int) -> None:
        super().__init__(session, "another run")
        self.args = session, turn
        self.turn = turn

    def __str__(self) -> str:
        return (
            f"Another run has added turn {self.turn} to session {self.session!r}. Read it first "
            f"(`%agents show {self.session}/{self.turn}`), then continue the session again."
        )


class SweepBusyError(SessionBusyError):
    """The sweep is already running, in this or another process."""

    def __str__(self) -> str:
        return (
            f"Sweep {self.session} is already running. Wait for it, stop it "
            f"(`%agents stop {self.session}`), or give the new sweep another name."
        )


@dataclass(eq=False, repr=False)
class NotYoursError(UserError):
    """A session from another user or machine would be used without being trusted.

    Attributes:
        session_id: The session's id.
        would_run: Lines about the commands, models and external agents that it would use.
    """

    session_id: str
    would_run: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = "".join(f"\n  {line}" for line in self.would_run) or " nothing."
        return without_controls(
            f"{self.session_id!r} was not created by you on this machine, so it was not started. "
            f"It would run:{lines}\nIf you trust it, confirm this once: --trust in a cell or "
            'terminal, RunOptions(trust=True) in Python, {"trust": true} over HTTP.'
        )


@dataclass(eq=False, repr=False)
class SessionUnreadableError(UserError):
    """The directory of a session, or the session root, can't be read.

    Attributes:
        path: The directory.
        why: The operating system's message.
    """

    path: str
    why: str

    def __str__(self) -> str:
        return f"Can't read {self.path!r}: {self.why}. Fix its permissions or move it elsewhere."


@dataclass(eq=False, repr=False)
class ClusterLostError(UserError):
    """A cluster's scheduler can't be reached, or the connection to it was lost.

    Attributes:
        address: The scheduler's address.
        why: The network error.
    """

    address: str
    why: str

    def __str__(self) -> str:
        return (
            f"No Dask scheduler answers at {self.address!r}: {self.why.rstrip('.')}. Pass "
            f"tcp://HOST:PORT, or local:N for N workers on this machine."
        )


class NoWorkersError(ClusterLostError):
    """A cluster has had no worker for too long."""

    def __str__(self) -> str:
        return (
            f"The cluster at {self.address!r} has had no worker {self.why}. Start workers, then "
            "repeat the command."
        )


@dataclass(eq=False, repr=False)
class StorageError(UserError):
    """A file or directory of the session root can't be written.

    Attributes:
        path: The file or directory.
        why: The operating system's message.
    """

    path: str
    why: str

    def __str__(self) -> str:
        return (
            f"Can't write to {self.path!r}: {self.why}. Choose another directory with "
            f"--session-root or NB_AGENTS_SESSIONS."
        )


@contextmanager
def as_storage_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise `StorageError` instead of an OSError in the block.

    Args:
        path: The file or directory that the block writes.
    """
    try:
        yield
    except OSError as exc:
        raise StorageError(str(path), exc.strerror or str(exc)) from None


@dataclass(eq=False, repr=False)
class ServerError(UserError):
    """A request to a Jupyter server failed.

    Attributes:
        url: The server's address.
        why: The reason, as a clause for the message.
    """

    url: str
    why: str

    def __str__(self) -> str:
        problem = f"A request to the server {self.url!r} failed: {self.why}."
        return without_controls(f"{problem} `jupyter server list` shows addresses and tokens.")


@dataclass(eq=False, repr=False)
class ModelCallError(NbAgentsError):
    """A model call failed and is not retried again.

    Attributes:
        model: Name of the model.
        message: The server's or connection's error, as one sentence without secrets.
    """

    model: str
    message: str

    def __str__(self) -> str:
        return without_controls(f"{self.model}: {self.message}")


@dataclass(eq=False, repr=False)
class ReplyTooLongError(NbAgentsError):
    """A model server sent more than a limit allows. The rest is not read.

    Attributes:
        what: What was too long, phrased as the subject of a sentence.
        limit: The limit, in ``unit``.
        unit: The unit of the limit, such as "bytes".
        status_code: The HTTP status if an error page was too long, or None.
    """

    what: str
    limit: int
    unit: str
    status_code: int | None = None

    def __str__(self) -> str:
        return f"{self.what} exceeded the limit of {self.limit} {self.unit} and was cut off."


@dataclass(eq=False, repr=False)
class RunNotFinished(UserError):
    """The result of a run was requested before the run ended.

    Attributes:
        run: The run's id.
    """

    run: str

    def __str__(self) -> str:
        return (
            f"{self.run} is still running and has no result yet. Wait for it with `await run` or "
            "`run.wait()`, or read the answers so far in `run.view.agents`."
        )


@dataclass(eq=False, repr=False)
class RunFailed(NbAgentsError):
    """A run ended without any answer.

    Attributes:
        run: The run's id.
        reasons: Why each agent failed, by agent id.
        path: The turn's directory.
        state: "failed" or "timed out".
    """

    run: str
    reasons: Mapping[str, str]
    path: Path
    state: str = "failed"

    def __str__(self) -> str:
        why = "; ".join(f"{a}: {reason.rstrip('.')}" for a, reason in self.reasons.items())
        text = f"Run {self.run} {self.state}: {why}. Its files are saved in {self.path}."
        return without_controls(text)

    def _render_traceback_(self) -> list[str]:
        return [f"RunFailed: {self}"]


def _describe_end(receipt: Receipt) -> str:
    return receipt.status if receipt.status == "timed out" else "was stopped"


@dataclass(eq=False, repr=False)
class RunCancelled(NbAgentsError):
    """A run was stopped. Its partial answers and receipt are attributes of the exception.

    Attributes:
        run: The run's id.
        partial_answers: The latest answer or partial text of each agent that has written any.
        receipt: Summary of the finished and interrupted work, and its cost.
        path: The turn's directory.
    """

    run: str
    partial_answers: Mapping[str, str]
    receipt: Receipt
    path: Path

    def __str__(self) -> str:
        return (
            f"Run {self.run} {_describe_end(self.receipt)}. The text of "
            f"{count(len(self.partial_answers), 'agent')} is saved in {self.path}. "
            "Continue with `%%agents --continue`."
        )

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class CancellationRequestedError(RunCancelled):
    """A recipe was stopped. The class name is Amplifier's.

    Attributes:
        session_id: The session's id.
        is_immediate: Whether the stop interrupted running calls.
        current_step: Address of the interrupted or next step, or "".
    """

    def __init__(
        self,
        session_id: str = "",
        is_immediate: bool = False,
        current_step: str | None = None,
        *,
        run: str = "",
        partial_answers: Mapping[str, str] | None = None,
        receipt: Receipt | None = None,
        path: Path | None = None,
    ) -> None:
        # Code written for Amplifier raises it with only the first three.
        super().__init__(run, partial_answers or {}, receipt, path)  # type: ignore[arg-type]
        self.session_id = session_id
        self.is_immediate = is_immediate
        self.current_step = current_step or ""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.session_id,), vars(self)

    def __str__(self) -> str:
        level = "immediate" if self.is_immediate else "graceful"
        where = f" at step {self.current_step!r}" if self.current_step else ""
        ending = _describe_end(self.receipt) if self.receipt else "was stopped"
        saved = f" Finished work is saved in {self.path}." if self.path else ""
        return (
            f"Recipe {self.session_id} {ending} ({level}){where}.{saved} "
            f"Resume it with `%agents resume {self.session_id}`."
        )
