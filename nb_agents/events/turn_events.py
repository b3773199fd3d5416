"""The events of a turn: its start, the commands sent to it, and its end.

A command is first recorded as an event and then carried out, whichever interface it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nb_agents.cancel import StopRequest
from nb_agents.events.base_event import Count, Dollars, Event, Seconds
from nb_agents.events.work_kinds import work_kind as _work_kind

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message from the user to the agents."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the turn at its next boundary."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Continue a paused turn."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Decide a gate.

    Attributes:
        approved: Whether to approve it.
        message: The user's message, or the answer to a question.
        by: The name of the user who decides.
        gate: The gate's address. "" means the gate that has been waiting longest.
        wants: The kind of gate to decide if ``gate`` is "". "" means any kind.
    """

    approved: bool
    message: str = ""
    by: str = ""
    gate: str = ""
    wants: Literal["", "approval", "input"] = ""


@dataclass(frozen=True, slots=True)
class OfferTools:
    """Route future calls of functions to another process.

    Attributes:
        offer: The id of that process's offer.
        names: The names of the functions.
        by: A description of the process.
    """

    offer: str
    names: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True)
class FoldContext:
    """Fold an agent's conversation before its next model request.

    Attributes:
        agent: The agent's id.
        keep: What the summary must keep, for the model; "" for nothing in particular.
    """

    agent: str
    keep: str = ""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Journal an event of an extension that records what a user did.

    Attributes:
        fields: The event as JSON values, with its ``kind``. The writer sets ``seq`` and ``at``.
    """

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SetTimeLimit:
    """Change the time limit of a turn.

    Attributes:
        timeout_s: The new limit in seconds of work, counted from the start of the turn.
    """

    timeout_s: float


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Change how a group of runs continues, such as the limits of a sweep.

    Attributes:
        fields: The change as JSON values, which the group's kind defines.
    """

    fields: dict[str, Any]


Command = (
    StopRequest
    | Say
    | Pause
    | Continue
    | Decide
    | OfferTools
    | FoldContext
    | RecordEvent
    | SetTimeLimit
    | ChangeGroup
)


Phase = Literal["coordinating", "presenting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """An agent at the start of a turn.

    Attributes:
        id: The agent's id, which is safe as a file name.
        model: The model's display name.
        backend: The backend's type, such as "openai" or "demo".
    """

    id: str
    model: str
    backend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    """How tool calls and the gates of recipes are approved; see `nb_agents.options.ApprovalConfig`.

    Attributes:
        timeout: Seconds to wait for a decision. None means no limit.
        auto_approve_on_timeout: Whether a timeout approves instead of denying.
        approvers: Names of the users who may decide; empty means everybody.
        required_approvals: Number of approvals needed.
    """

    timeout: Seconds | None = None
    auto_approve_on_timeout: bool = False
    approvers: tuple[str, ...] = ()
    required_approvals: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file in an agent's workspace.

    Attributes:
        agent: The agent's id.
        path: The path relative to the workspace, with forward slashes.
        size: The size in bytes.
    """

    agent: str
    path: str
    size: Count


class TurnStarted(Event):
    """A turn began. This is the first line of every journal.

    Attributes:
        session: The session's id.
        turn: The turn's number, starting at 1.
        task: The task.
        agents: The agents of the team, in order.
        timeout_s: The time limit in seconds.
        notices: Notices for the user before any agent works.
        schema_version: The version of the journal's format.
        resumes: The number of the turn that this turn resumes, whose events come first, or 0.
        point: For a rewind, the number of the last event of that turn to keep. 0 means all events.
        team: The team's configuration without API keys, so that a resume needs no file. None for a
            team with models created in Python.
        config: The team file's path, or "".
        origin: The notebook or terminal that started the turn. "" in older journals.
        digest: A digest of the request, to recognize identical requests, or "".
        work: The kind of work of an extension; "" for a team or a recipe.
        recipe: The name of the recipe, or of other work; or "".
        context: The values that the work was started with.
        again: For a resume, agents that the user had stopped and now restarts.
        revised: For a resume, new step outputs by address. None means that the step runs again,
            with all steps inside it.
        max_cost: The budget in US dollars that the user chose for the task in addition to its team
            file, or None.
        max_tokens: The same in tokens.
        on_budget: What the user chose to happen at the budget: "stop", "ask", or "" for the team
            file's.
        notebook: The access to the notebook that the user gave all agents in addition to the team
            file: "read", "propose", "run" or "".
        notebook_file: The file of the notebook that the user named for the agents, or "".
        context_paths: Files and directories that the user let the agents read in addition to the
            team file, as absolute paths.
        wait_for_quota: The seconds that the user chose that a model call may wait for its provider,
            or None for the team file's.
        approval: How the user chose that calls are approved, or None for the team file's rules.
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
    work: str = ""
    recipe: str = ""
    context: dict[str, Any] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    revised: dict[str, str | None] = field(default_factory=dict)
    max_cost: Dollars | None = None
    max_tokens: Count | None = None
    on_budget: str = ""
    notebook: str = ""
    notebook_file: str = ""
    context_paths: tuple[str, ...] = ()
    wait_for_quota: Seconds | None = None
    approval: ApprovalRules | None = None
    schema_version: Count = SCHEMA_VERSION

    @property
    def work_kind(self) -> str:
        """The name of the kind of work; "" for a team."""
        return _work_kind(self.work, self.recipe)


class StopRequested(Event):
    """A stop was requested, or its level was raised.

    Attributes:
        source: The source of the request, such as "widget" or "timeout".
        reason: The reason that the requester gave, or "".
        level: "requested" (graceful) or "immediate".
        agent: The agent to stop, or "" for the run.
        gate: The address of the gate, if a denial causes the stop, or "".
        grace_s: Seconds until a graceful stop becomes immediate, or None.
    """

    level: Literal["requested", "immediate"]
    source: str
    reason: str = ""
    agent: str = ""
    gate: str = ""
    grace_s: Seconds | None = None


class Paused(Event):
    """The run was paused. Work waits at its next boundary."""


class Continued(Event):
    """A paused run was unpaused."""


class TimeLimitChanged(Event, ignored_by=("replay", "spans", "transcript")):
    """The time limit of the turn was changed.

    Attributes:
        timeout_s: The new limit in seconds of work, counted from the start of the turn.
    """

    timeout_s: Seconds


class BudgetReached(Event, ignored_by=("replay", "spans", "transcript")):
    """The task has used up its budget. The run asks for a higher one, or stops.

    Attributes:
        max_cost: The limit in US dollars with which the task could continue, or None if its cost
            is not the reason or the limit can't be raised.
        max_tokens: The same in tokens.
    """

    max_cost: Dollars | None = None
    max_tokens: Count | None = None


class BudgetRaised(Event, ignored_by=("replay", "spans", "transcript")):
    """The budget of the task was raised, because a user approved it at a gate.

    Attributes:
        max_cost: The new limit in US dollars, or None if there is none.
        max_tokens: The new limit in tokens, or None if there is none.
    """

    max_cost: Dollars | None
    max_tokens: Count | None


class UserMessage(Event, kind="said"):
    """The user sent a message to the running turn. It clears the votes.

    Attributes:
        text: The message.
        to: The id of the agent that it is for, or "" for all agents.
    """

    text: str
    to: str = ""


class Noticed(Event):
    """A notice for the user, such as that a hook or saving failed.

    Attributes:
        is_saved: For a notice about saving, whether everything is on disk now, or None.
    """

    text: str
    is_saved: bool | None = None


class CommandAnswered(Event):
    """The result of a command from another process.

    Attributes:
        command: The command's id.
        changed: Whether the command had an effect. For a stop, whether it raised the level.
        status: For a stop, `StopResult.status`. For a decision, the gate's address.
        error: Why the command was refused, as a sentence, or "".
    """

    command: str
    changed: bool = False
    status: str = ""
    error: str = ""


class ProcessExitChecked(Event, kind="end_checked"):
    """A process or MCP server of the run has ended, or was told to end.

    Attributes:
        what: The process or server. A child process follows after a colon.
        is_confirmed: Whether its end is confirmed.
        how: How the end was confirmed, or what was done to end the process.
    """

    what: str
    is_confirmed: bool
    how: str

    @classmethod
    def of_processes(cls, subject: str, is_gone: bool) -> ProcessExitChecked:
        """Return the event that reports whether a supervised program's processes have ended."""
        how = "None of its processes is left." if is_gone else "Processes of it may be left."
        return cls(what=subject, is_confirmed=is_gone, how=how)


class TurnEnded(Event):
    """The turn ended. Only `FilesListed` may follow in the journal.

    Attributes:
        status: The status of the turn.
        phase: The phase in which it ended.
        winner: The agent that gave the final answer, or "".
        answer: The final answer of a completed turn, or "".
        outputs: The outputs of a completed recipe by name.
        next: For an incomplete recipe, the addresses of the steps and gates that a resume begins
            with.
        files: The files of the workspaces, in older journals without `FilesListed`.
    """

    status: Literal["completed", "cancelled", "failed"]
    phase: Phase
    winner: str = ""
    answer: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    files: tuple[FileInfo, ...] = ()


class FilesListed(Event):
    """The files of the workspaces. It follows `TurnEnded`, which must not wait for the listing.

    Attributes:
        files: The first files of each workspace.
        count: The total number of files.
        size: The total size in bytes.
        left_out: Descriptions of entries that are neither files nor links, up to a limit.
    """

    files: tuple[FileInfo, ...]
    count: Count
    size: Count
    left_out: str = ""
