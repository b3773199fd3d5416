"""Every error that nb_agents raises, as one tree.

    NbAgentsError
    ├── UserError                a person's mistake: one sentence, no traceback
    │   ├── ConfigError          a team file, with file, line and column
    │   ├── MissingKeyError      a provider's key is not set
    │   ├── TaskError            an empty task, or an unknown {{name}} in it
    │   ├── RecipeError          a recipe's condition, template or command can't be used
    │   ├── UnknownRunError      no such run in this process
    │   ├── UnknownSessionError  no such session or turn on disk
    │   ├── SessionBusyError     another process (or run) is working in that session
    │   │   ├── SessionChangedError  another run has had a turn of it meanwhile
    │   │   └── SweepBusyError   a sweep is at work already
    │   ├── NotYoursError        a session that another user, or another machine, made
    │   ├── SessionUnreadableError   a session's directory can't be read
    │   ├── RunNotFinished       a result was asked for while the run works
    │   ├── StorageError         the session root can't be written
    │   ├── ClusterLostError     a cluster's scheduler does not answer
    │   │   └── NoWorkersError   a cluster has had no worker for too long
    │   └── ServerError          a Jupyter server can't be asked
    ├── ModelCallError           a model server failed, after retries
    ├── ReplyTooLongError        a model server sent more than a limit allows
    ├── RunFailed                a run ended without any answer
    └── RunCancelled             a run was stopped; carries all that was kept
        └── CancellationRequestedError   a recipe's, with the step that it was at

`nb_agents.cancel.AgentStopped` is not here: it is a BaseException, so that a tool's
``except Exception`` can't swallow a stop.

What they say may hold a server's or a model's words: it is said as a terminal may show it.

This module imports nothing of nb_agents but `nb_agents.unicode`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    "leaves_of",
    "said_by",
]


def leaves_of(exc: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions in a group and in its groups, in order; of any other, itself.

    A task group wraps what is raised inside it, and says of itself no more than "unhandled errors
    in a TaskGroup (1 sub-exception)": nobody is told that.
    """
    if not isinstance(exc, BaseExceptionGroup):
        return (exc,)
    return tuple(leaf for each in exc.exceptions for leaf in leaves_of(each))


def said_by(exc: BaseException, *, named: bool = False) -> str:
    """Return what an exception says; of a group, what each of its leaves says, once.

    Args:
        exc: The exception.
        named: Whether to name the class of each, as Python does.
    """
    return "; ".join(dict.fromkeys(_said(leaf, named) for leaf in leaves_of(exc)))


def _said(exc: BaseException, named: bool) -> str:
    name = type(exc).__name__
    try:
        said = str(exc)
    except Exception:  # somebody's class
        return name
    if isinstance(exc, OSError) and exc.strerror:
        said = exc.strerror if exc.filename is None else f"{exc.strerror}: {str(exc.filename)!r}"
    return (f"{name}: {said}" if named and said else said) or name


class NbAgentsError(Exception):
    """Base of every error that nb_agents raises."""

    def __post_init__(self) -> None:
        """Keep the fields as arguments too, with which pickle calls the class."""
        self.args = tuple(vars(self).values())


class UserError(NbAgentsError):
    """A user's mistake, shown as one sentence without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return the message alone; IPython calls this instead of drawing a traceback."""
        return [without_controls(f"{type(self).__name__}: {self}")]


class ConfigError(UserError):
    """A team file can't be used.

    Attributes:
        message: What is wrong, with the remedy.
        file: The file's path, or None for a spec made in Python.
        line: Line of the fault, from 1, or None when it has no place.
        column: Column of the fault, from 1, or None when it has no place.
        others: Further faults of the same file, in its order.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        # The message alone: pickle calls the class with these, and the places are by keyword.
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.others: tuple[ConfigError, ...] = ()

    def __str__(self) -> str:
        place = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        said = f"{place}: {self.message}" if place else self.message
        return "\n".join([said, *map(str, self.others)])


@dataclass(eq=False, repr=False)
class MissingKeyError(UserError):
    """A provider needs a key, or an address, that is not set.

    Attributes:
        agent: Id of the agent that needs it.
        variable: The environment variable to set.
        provider: The agent's backend type.
        needs: What the variable would give.
    """

    agent: str
    variable: str
    provider: str
    needs: str = "a key"

    def __str__(self) -> str:
        said = (
            f"Agent {self.agent!r} uses {self.provider!r}, which needs {self.needs}, and "
            f"{self.variable} is not set. Set it in the environment before Jupyter starts"
        )
        if self.needs != "a key":
            return f"{said}."
        typed = f"`import getpass, os; os.environ[{self.variable!r}] = getpass.getpass()`"
        return (
            f"{said}, name in the team's file what has it (`env_file: .env`, `keyring: "
            f"nb_agents`), or type it at {typed}. Written in a cell it is saved with the notebook."
        )


class TaskError(UserError):
    """The task's text can't be used."""


class RecipeError(UserError):
    """A recipe's condition, template or command can't be used."""


@dataclass(eq=False, repr=False)
class UnknownRunError(UserError):
    """No run of that name lives in this process.

    Attributes:
        name: What was asked for; "" for "the latest".
        known: The names that exist.
    """

    name: str
    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f"No run named {self.name!r}." if self.name else "No run is live."
        have = f" Known here: {', '.join(self.known)}." if self.known else " None was started here."
        return f"{what}{have} `%agents` lists the runs, `%agents sessions` what is on disk."


@dataclass(eq=False, repr=False)
class UnknownSessionError(UserError):
    """No session or turn of that name is on disk.

    Attributes:
        name: What was asked for; "" for "the latest".
        root: Where it was looked for.
        nearest: A close name that exists, or "".
    """

    name: str
    root: str
    nearest: str = ""

    def __str__(self) -> str:
        what = f"No session {self.name!r}" if self.name else "No session to continue"
        hint = f" Did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{what} in {self.root}.{hint} `%agents sessions` lists them."


@dataclass(eq=False, repr=False)
class SessionBusyError(UserError):
    """A session is being run already, here or by another process.

    Attributes:
        session: The session's id.
        owner: Who runs it, in words.
    """

    session: str
    owner: str

    def __str__(self) -> str:
        return (
            f"Session {self.session!r} is running already ({self.owner}). Stop that run or wait "
            f"for it, or start without --session for a new one."
        )


class SessionChangedError(SessionBusyError):
    """A session got another turn while a run read it, to go on from what it held.

    Attributes:
        turn: Number of the turn that it has got.
    """

    def __init__(self, session: str, turn: int) -> None:
        super().__init__(session, "another run")
        self.args = session, turn
        self.turn = turn

    def __str__(self) -> str:
        return (
            f"Session {self.session!r} has got turn {self.turn} from another run meanwhile. Look "
            f"at it (`%agents show {self.session}/{self.turn}`), and go on from there."
        )


class SweepBusyError(SessionBusyError):
    """A sweep is at work already, here or in another process."""

    def __str__(self) -> str:
        return (
            f"Sweep {self.session} is at work already. Wait for it or stop it "
            f"(`%agents stop {self.session}`), or give this one a name of its own."
        )


@dataclass(eq=False, repr=False)
class NotYoursError(UserError):
    """A session is gone on with that this user has neither made here nor trusted.

    Attributes:
        session_id: The session's id.
        would_run: What it would run, and whom it would ask, in lines.
    """

    session_id: str
    would_run: tuple[str, ...] = ()

    def __str__(self) -> str:
        would = "".join(f"\n  {line}" for line in self.would_run) or " nothing."
        return without_controls(
            f"{self.session_id!r} was not made by you, or not on this machine. Nothing was begun. "
            f"It would run:{would}\nIf you trust it, say so once: --trust in a cell and in a "
            'terminal, RunOptions(trust=True) in Python, {"trust": true} over HTTP.'
        )


@dataclass(eq=False, repr=False)
class SessionUnreadableError(UserError):
    """A session's directory, or the root of all, can't be read; the others can.

    Attributes:
        path: The directory.
        why: What the system said.
    """

    path: str
    why: str

    def __str__(self) -> str:
        return f"Can't read {self.path!r}: {self.why}. Fix its permissions, or move it away."


@dataclass(eq=False, repr=False)
class ClusterLostError(UserError):
    """A cluster's scheduler does not answer, or not any more.

    Attributes:
        address: The scheduler's.
        why: What the network said.
    """

    address: str
    why: str

    def __str__(self) -> str:
        return (
            f"No Dask scheduler answers at {self.address!r}: {self.why.rstrip('.')}. Give "
            "tcp://HOST:PORT, or local:N for N workers on this machine."
        )


class NoWorkersError(ClusterLostError):
    """A cluster has had no worker for too long."""

    def __str__(self) -> str:
        return (
            f"The cluster at {self.address!r} has had no worker {self.why}. Start workers, and "
            "give the same command again."
        )


@dataclass(eq=False, repr=False)
class StorageError(UserError):
    """The session directory can't be written.

    Attributes:
        path: Where writing failed.
        why: What the system said.
    """

    path: str
    why: str

    def __str__(self) -> str:
        return (
            f"Can't write to {self.path!r}: {self.why}. Choose another place with --session-root "
            f"or NB_AGENTS_SESSIONS."
        )


@contextmanager
def as_storage_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise `StorageError` for an OSError of the block.

    Args:
        path: What the block writes.
    """
    try:
        yield
    except OSError as exc:
        raise StorageError(str(path), exc.strerror or str(exc)) from None


@dataclass(eq=False, repr=False)
class ServerError(UserError):
    """A Jupyter server can't be reached, or does not do what it is asked.

    Attributes:
        url: The server's address.
        why: What is wrong.
    """

    url: str
    why: str

    def __str__(self) -> str:
        said = f"The server {self.url!r} can't be asked: {self.why}."
        return without_controls(f"{said} `jupyter server list` shows addresses and tokens.")


@dataclass(eq=False, repr=False)
class ModelCallError(NbAgentsError):
    """A model call failed for good: not retryable, or retried in vain.

    Attributes:
        model: Name of the model.
        message: What the server or the connection did, one sentence, without secrets.
    """

    model: str
    message: str

    def __str__(self) -> str:
        return without_controls(f"{self.model}: {self.message}")


@dataclass(eq=False, repr=False)
class ReplyTooLongError(NbAgentsError):
    """A model's server sent more than a limit allows; the rest is not read.

    Attributes:
        what: What was too long, as a sentence begins.
        limit: How much of it is allowed.
        unit: Of what.
        status_code: Of an HTTP error whose text was too long; else None.
    """

    what: str
    limit: int
    unit: str
    status_code: int | None = None

    def __str__(self) -> str:
        return f"{self.what} went over the limit of {self.limit} {self.unit} and was cut."


@dataclass(eq=False, repr=False)
class RunNotFinished(UserError):
    """The result of a run was asked for while the run still works.

    Attributes:
        run: The run's id.
    """

    run: str

    def __str__(self) -> str:
        return (
            f"{self.run} is still working, so it has no result yet. `await run` or `run.wait()` "
            "waits for it; run.view.agents has the answers so far."
        )


@dataclass(eq=False, repr=False)
class RunFailed(NbAgentsError):
    """A run ended without any answer.

    Attributes:
        run: The run's id.
        reasons: For each agent, why it failed.
        path: The turn's directory.
        state: The run's state: "failed", or "timed out".
    """

    run: str
    reasons: Mapping[str, str]
    path: Path
    state: str = "failed"

    def __str__(self) -> str:
        why = "; ".join(f"{a}: {reason.rstrip('.')}" for a, reason in self.reasons.items())
        said = f"Run {self.run} {self.state}: {why}. What it did is kept in {self.path}."
        return without_controls(said)

    def _render_traceback_(self) -> list[str]:
        return [f"RunFailed: {self}"]


def _ended(receipt: Receipt) -> str:
    return receipt.status if receipt.status == "timed out" else "was stopped"


@dataclass(eq=False, repr=False)
class RunCancelled(NbAgentsError):
    """A run was stopped. Nothing was lost: all that was kept comes with it.

    Attributes:
        run: The run's id.
        partial_answers: For each agent with words to show, its latest answer or partial text.
        receipt: What finished, what was stopped, what it cost.
        path: The turn's directory.
    """

    run: str
    partial_answers: Mapping[str, str]
    receipt: Receipt
    path: Path

    def __str__(self) -> str:
        return (
            f"Run {self.run} {_ended(self.receipt)}. Kept: text of "
            f"{count(len(self.partial_answers), 'agent')} in {self.path}. "
            "Go on with `%%agents --continue`."
        )

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(eq=False, repr=False)
class CancellationRequestedError(RunCancelled):
    """A recipe was stopped; by the name that Amplifier gives it.

    Attributes:
        session_id: The session.
        is_immediate: Whether the work in hand was cut.
        current_step: Address of the step that was in hand, or was next, or "".
    """

    session_id: str = ""
    is_immediate: bool = False
    current_step: str = ""

    def __str__(self) -> str:
        level = "immediate" if self.is_immediate else "graceful"
        where = f" at step {self.current_step!r}" if self.current_step else ""
        return (
            f"Recipe {self.session_id} {_ended(self.receipt)} ({level}){where}. All is kept in "
            f"{self.path}. Go on with `%agents resume {self.session_id}`."
        )
