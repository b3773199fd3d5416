"""A turn: how it begins, what is asked of it meanwhile, how it ends.

A command, by whatever door it comes, is journalled as an event of its own first, and acted on then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nb_agents.cancel import StopRequest
from nb_agents.events.base_event import Count, Event, Seconds

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Say:
    """Add a follow-up text to the task."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Pauses the turn at its next boundary."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Continues a paused turn."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Approve or deny what waits for a person, or answer a question.

    Attributes:
        approved: Whether it may be.
        message: What the person says; to a question, the answer.
        by: Who decides.
        gate: Address of the gate; "" is the one that has waited longest.
        wants: With no gate: only gates for an approval, or for an input; "" means any.
    """

    approved: bool
    message: str = ""
    by: str = ""
    gate: str = ""
    wants: Literal["", "approval", "input"] = ""


@dataclass(frozen=True, slots=True)
class OfferTools:
    """Routes calls of functions to another process from now on.

    Attributes:
        offer: Id of its offer.
        names: The functions.
        by: Which process that is, in words.
    """

    offer: str
    names: tuple[str, ...]
    by: str


Command = StopRequest | Say | Pause | Continue | Decide | OfferTools


Phase = Literal["coordinating", "presenting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """An agent as the turn starts.

    Attributes:
        id: The agent's id, safe as a file name.
        model: The model's name as a person knows it.
        backend: The backend's type, such as "openai" or "demo".
    """

    id: str
    model: str
    backend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file in an agent's workspace.

    Attributes:
        agent: Whose workspace.
        path: Relative to it, with forward slashes.
        size: Bytes.
    """

    agent: str
    path: str
    size: Count


class TurnStarted(Event):
    """A turn began; first line of every journal.

    Attributes:
        session: The session's id.
        turn: The turn's number, from 1.
        task: What the agents are asked.
        agents: Who takes part, in order.
        timeout_s: The time limit.
        notices: Notices for the user before any agent works.
        schema_version: Version of the journal.
        resumes: Number of the turn that this one goes on with, or 0: its events come before ours.
        point: Of a rewind: number of the last event of that turn that counts; 0 means all do.
        team: The team as it was, without keys, so that a resume needs no file; None for a team
            with models made in Python.
        config: The team file's path, or "".
        origin: The notebook or terminal that it was begun in; "" in older journals.
        digest: Tells whether the same is asked for again; "" when nobody is to know.
        recipe: Name of the recipe that this runs, or "".
        context: The values that a recipe was started with.
        again: Of a resume: agents that had been stopped alone and take part again.
        revised: Of a resume: steps, by address, whose output is another one from now on; None for
            those that run again, with all that lies within them.
    """

    session: str
    turn: Count
    task: str
    agents: tuple[AgentInfo, ...]
    timeout_s: Seconds
    notices: tuple[str, ...] = ()
    resumes: Count = 0
    point: Count = 0
    team: dict[str, Any] | None = None
    config: str = ""
    origin: str = ""
    digest: str = ""
    recipe: str = ""
    context: dict[str, Any] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    revised: dict[str, str | None] = field(default_factory=dict)
    schema_version: Count = SCHEMA_VERSION


class StopRequested(Event):
    """Somebody asked for a stop, or raised its level.

    Attributes:
        source: By which way it was asked for, such as "widget" or "timeout".
        reason: Why, as the requester says it.
        level: "requested" (graceful) or "immediate".
        agent: The one agent that is stopped, or "" for the run.
        gate: Address of the gate whose denial this is, or "".
        grace_s: Seconds until a graceful stop becomes immediate, or None.
    """

    level: Literal["requested", "immediate"]
    source: str
    reason: str = ""
    agent: str = ""
    gate: str = ""
    grace_s: Seconds | None = None


class Paused(Event):
    """Somebody paused the run: work holds still at its next boundary."""


class Continued(Event):
    """A paused run goes on."""


class Said(Event):
    """The person put a follow-up text into the running turn; it makes all votes stale.

    Attributes:
        text: The text.
        to: The one agent that it is for, or "" for all.
    """

    text: str
    to: str = ""


class Noticed(Event):
    """Something a person should know: a hook failed, or saving failed.

    Attributes:
        is_saved: Of a notice about saving: whether all is on disk now; else None.
    """

    text: str
    is_saved: bool | None = None


class CommandAnswered(Event):
    """What became of a command that came from another process.

    Attributes:
        command: Its id.
        changed: Whether it could be followed; of a stop, whether that raised the level.
        status: Of a stop, `StopResult.status`; of a decision, the gate's address.
        error: Why it was refused, in a sentence; else "".
    """

    command: str
    changed: bool = False
    status: str = ""
    error: str = ""


class EndChecked(Event):
    """Something that worked for the run outside of its process has ended, or was told to.

    Attributes:
        what: Whose program or which MCP server; what that had at work itself, after a colon.
        is_confirmed: Whether its end is known, and not only asked for.
        how: How it is known, or what was done.
    """

    what: str
    is_confirmed: bool
    how: str

    @classmethod
    def of_processes(cls, what: str, is_gone: bool) -> EndChecked:
        """Return what is known of a program, of which a supervisor has seen the end or has not."""
        how = "None of its processes is left." if is_gone else "Processes of it may be left."
        return cls(what=what, is_confirmed=is_gone, how=how)


class TurnEnded(Event):
    """The turn is over; the journal's last line but for `FilesListed`.

    Attributes:
        status: How it ended.
        phase: Where it was when it ended.
        winner: The presenter, or "".
        answer: The final answer of a completed turn, else "".
        outputs: The outputs of a completed recipe by name.
        next: Of a recipe that has not come to its end: addresses of the first steps and gates that
            a resume does next.
        files: What the workspaces hold, in a journal that has no `FilesListed`.
    """

    status: Literal["completed", "cancelled", "failed"]
    phase: Phase
    winner: str = ""
    answer: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    files: tuple[FileInfo, ...] = ()


class FilesListed(Event):
    """The workspaces were listed; it comes behind `TurnEnded`, which must not wait for it.

    Attributes:
        files: The first files of each workspace: it may hold more than a line can.
        count: How many files there are in all.
        size: Bytes in all.
        left_out: What is no file and no link there, the first of it, in words.
    """

    files: tuple[FileInfo, ...]
    count: Count
    size: Count
    left_out: str = ""
