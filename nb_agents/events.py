"""Everything that can happen in a turn, as frozen dataclasses.

Drivers emit events; the journal, the live panel and the final card are three readers of one fold
over them (`nb_agents.view`). An event is one JSON line of ``events.jsonl``; its ``kind`` names the
class, so the union parses itself. Fields may be added with a default; a field is never renamed
or re-used for something else.

Versions of the journal (the first event carries it):
    1: first release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, TypeAdapter

__all__ = [
    "AgentCalled",
    "AgentEnded",
    "AgentFailed",
    "AgentInfo",
    "AnswerGiven",
    "ApprovalAsked",
    "ApprovalGiven",
    "Channel",
    "Continued",
    "EVENT",
    "Event",
    "FileInfo",
    "FilesListed",
    "ModelCut",
    "ModelFailed",
    "ModelFinished",
    "ModelStarted",
    "Noticed",
    "Outcome",
    "OutputStreamed",
    "Paused",
    "Phase",
    "PlannedUnit",
    "PresentationStarted",
    "RecipeLoaded",
    "RoundStarted",
    "RoundTimedOut",
    "SCHEMA_VERSION",
    "Said",
    "StepFailed",
    "StepFinished",
    "StepKind",
    "StepStarted",
    "StopRequested",
    "TextStreamed",
    "Told",
    "ToolFinished",
    "ToolStarted",
    "ToolTold",
    "TurnEnded",
    "TurnRejected",
    "TurnStarted",
    "Usage",
    "VoteCast",
    "VoteIgnored",
]

SCHEMA_VERSION = 1

Phase = Literal["coordinating", "presenting"]
Outcome = Literal["finished", "stopped", "killed", "failed", "never started"]
Channel = Literal["text", "thinking", "answer", "call"]
"""What streamed words are: plain text, reasoning, an answer, or the JSON of another tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What every event has.

    Attributes:
        seq: Position in the journal, from 1; stamped on emission.
        at: Unix time in seconds; stamped on emission.
    """

    seq: int = 0
    at: float = 0.0


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
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a model call used.

    Attributes:
        input_tokens: Tokens sent.
        output_tokens: Tokens received.
        cost: US dollars, or None when no price is known for the model.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(_Event):
    """A turn began; first line of every journal.

    Attributes:
        resumes: Number of the turn that this one goes on with, or 0: its events come before ours.
        team: The team as it was, without keys, so that a resume needs no file; None for a team
            with models made in Python.
        config: The team file's path, or "".
        recipe: Name of the recipe that this runs, or "".
        context: The values that a recipe was started with.
        again: Of a resume: agents that had been stopped alone and take part again.
    """

    session: str
    turn: int
    task: str
    agents: tuple[AgentInfo, ...]
    timeout_s: float
    notices: tuple[str, ...] = ()
    resumes: int = 0
    team: dict[str, Any] | None = None
    config: str = ""
    recipe: str = ""
    context: dict[str, Any] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
    kind: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(_Event):
    """An agent began a round: a fresh conversation over the answers it then saw.

    Attributes:
        agent: Whose round.
        number: From 1.
        seen: For each agent with answers, how many of them were shown.
        request: The first messages, as pydantic-ai's JSON.
        heard: How many of the follow-up texts are among them.
    """

    agent: str
    number: int
    seen: dict[str, int] = field(default_factory=dict)
    request: list[Any] = field(default_factory=list)
    heard: int = 0
    kind: Literal["round_started"] = "round_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStarted(_Event):
    """A model request is about to be sent; ``call`` counts the agent's requests from 1."""

    agent: str
    call: int
    attempt: int = 1
    kind: Literal["model_started"] = "model_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(_Event):
    """Words that arrived since the last such event of this call and channel."""

    agent: str
    call: int
    channel: Channel
    text: str
    tool: str = ""
    kind: Literal["text_streamed"] = "text_streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFinished(_Event):
    """A model request ended well; ``response`` is pydantic-ai's JSON of the whole message."""

    agent: str
    call: int
    response: Any
    usage: Usage
    kind: Literal["model_finished"] = "model_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed(_Event):
    """An attempt failed; ``retry_in_s`` is None when it was the last."""

    agent: str
    call: int
    error: str
    retry_in_s: float | None = None
    kind: Literal["model_failed"] = "model_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCut(_Event):
    """A model request was cut by an immediate stop; its words so far are kept."""

    agent: str
    call: int
    kind: Literal["model_cut"] = "model_cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(_Event):
    """A tool call is about to run.

    Attributes:
        args: What it is given; keys are masked in the journal.
        summary: What it is about, in a few words.
    """

    agent: str
    call_id: str
    tool: str
    args: Any = None
    summary: str = ""
    kind: Literal["tool_started"] = "tool_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTold(_Event):
    """The last of what an agent's running tool wrote; the tool keeps all of it."""

    agent: str
    text: str
    kind: Literal["tool_told"] = "tool_told"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(_Event):
    """A tool call is over.

    Attributes:
        outcome: "ok", "error" (the model is told why), "cut" by an immediate stop (it may have
            happened in part), or "cancelled": never run, and answered so, because providers refuse
            a history in which a call has no return.
        result: What the model is told.
        size: Characters of it.
        seconds: How long the call took, what it waited for a person included.
    """

    agent: str
    call_id: str
    tool: str
    outcome: Literal["ok", "error", "cut", "cancelled"]
    result: str = ""
    size: int = 0
    seconds: float = 0.0
    kind: Literal["tool_finished"] = "tool_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRejected(_Event):
    """A model turn ended in neither a valid answer nor a valid vote; the agent is told why."""

    agent: str
    why: str
    attempt: int
    kind: Literal["turn_rejected"] = "turn_rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(_Event):
    """An agent was told something between two calls: new answers, follow-up texts, time left.

    Attributes:
        text: What it reads with its next request, after the tools' results.
        seen: With new answers, what it has seen from now on, as in RoundStarted; else None.
        heard: With follow-up texts, how many it has heard from now on; else None.
    """

    agent: str
    text: str
    seen: dict[str, int] | None = None
    heard: int | None = None
    kind: Literal["told"] = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimedOut(_Event):
    """A round was cut when its time and the time to wrap up were over.

    An agent that has answered rests: its answer stands. Another is out.

    Attributes:
        limit_s: Seconds that the round had.
        grace_s: Seconds that it had to wrap up.
    """

    agent: str
    limit_s: float
    grace_s: float
    kind: Literal["round_timed_out"] = "round_timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGiven(_Event):
    """An agent submitted an answer; it clears all votes."""

    agent: str
    answer: str
    kind: Literal["answer_given"] = "answer_given"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCast(_Event):
    """An agent voted for another's latest answer (or its own).

    Attributes:
        agent: The voter.
        target: The agent voted for.
        reason: The voter's words.
        seen: What the voter had seen, as in RoundStarted: a vote cast over older answers is stale.
    """

    agent: str
    target: str
    reason: str
    seen: dict[str, int] = field(default_factory=dict)
    kind: Literal["vote_cast"] = "vote_cast"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteIgnored(_Event):
    """A vote did not count because a newer answer had come; the agent looks again."""

    agent: str
    target: str
    kind: Literal["vote_ignored"] = "vote_ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFailed(_Event):
    """An agent is out because of an error; the others go on."""

    agent: str
    error: str
    kind: Literal["agent_failed"] = "agent_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnded(_Event):
    """An agent's work was ended by a stop, of itself alone or of the run."""

    agent: str
    outcome: Outcome
    kind: Literal["agent_ended"] = "agent_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCalled(_Event):
    """An agent called another one, which begins to work; `AgentEnded` or `AgentFailed` ends that.

    Attributes:
        agent: Id of the one that is called, such as ``ada/critic#1``.
        caller: Id of the one that called.
        name: The name that it was called by.
        model: Its model's name.
        workspace: Name of its workspace.
        input: What it is asked.
    """

    agent: str
    caller: str
    name: str
    model: str
    workspace: str
    input: str
    kind: Literal["agent_called"] = "agent_called"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentationStarted(_Event):
    """All have voted; the winner presents."""

    agent: str
    votes: dict[str, int] = field(default_factory=dict)
    kind: Literal["presentation_started"] = "presentation_started"


StepKind = Literal["stage", "agent", "bash", "recipe", "foreach", "while", "group", "iteration"]
"""What a unit of a recipe is."""


class PlannedUnit(NamedTuple):
    """A unit of a recipe as it is known before it begins.

    Attributes:
        address: Where it will be.
        unit: What it is.
        label: What it does, in a few words.
    """

    address: str
    unit: StepKind
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeLoaded(_Event):
    """A recipe file was read: the run's own (``step`` is "") or one that a step calls.

    Attributes:
        step: Address of the step that calls it, or "".
        path: Where it was read, or "".
        text: The file, whole: a resume goes on with this one, whatever the disk has by then.
        outline: Its first units, in order; none in an older journal.
    """

    step: str
    path: str
    text: str
    outline: tuple[PlannedUnit, ...] = ()
    kind: Literal["recipe_loaded"] = "recipe_loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(_Event):
    """A unit of a recipe began, or an attempt at one.

    Attributes:
        step: Its address: names joined by "/", an iteration as ``[n]`` from 0, such as
            ``checks/review[2]/summarize``.
        unit: What it is.
        attempt: From 1.
        total: Iterations of a foreach; None when it is not known.
        worker: For an agent step, who does it and why that one, such as "critic".
        model: For an agent step, its model's name.
        asks: The prompt or the command as it was sent.
    """

    step: str
    unit: StepKind
    attempt: int = 1
    total: int | None = None
    worker: str = ""
    model: str = ""
    asks: str = ""
    kind: Literal["step_started"] = "step_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStreamed(_Event):
    """What a command wrote since the last such event of its step."""

    step: str
    text: str
    kind: Literal["output_streamed"] = "output_streamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(_Event):
    """An attempt at a step failed; another one follows, or the step is over as failed.

    Attributes:
        step: Its address.
        attempt: From 1.
        error: Why.
        attempts: How many there may be.
        retry_in_s: Seconds until the next one; None when it was the last.
    """

    step: str
    attempt: int
    error: str
    attempts: int = 1
    retry_in_s: float | None = None
    kind: Literal["step_failed"] = "step_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished(_Event):
    """A unit of a recipe is over.

    Attributes:
        step: Its address.
        outcome: How it ended; "failed" is final, and a cut one does not end.
        output: What it gave, as JSON, whole; None for a unit that holds others: its value follows
            from theirs.
        exit_code: Of a command, else None.
        why: Why it failed or was skipped, or "".
    """

    step: str
    outcome: Literal["ok", "failed", "skipped"]
    output: Any = None
    exit_code: int | None = None
    why: str = ""
    kind: Literal["step_finished"] = "step_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(_Event):
    """A recipe waits for a person at the gate of a stage.

    Attributes:
        step: The stage's address.
        prompt: The question.
        timeout_s: Seconds after which ``default`` decides; 0 means never.
        default: What happens then.
        wants: A decision, or a text: then the message of who approves is the answer.
    """

    step: str
    prompt: str
    timeout_s: float = 0.0
    default: Literal["approve", "deny"] = "deny"
    wants: Literal["approval", "input"] = "approval"
    kind: Literal["approval_asked"] = "approval_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalGiven(_Event):
    """A gate was decided.

    Attributes:
        step: The stage's address.
        approved: Whether the recipe goes on.
        message: What the person said, for the steps that follow.
        by: Who decided: a person's name, "timeout", or "auto_approve_if".
    """

    step: str
    approved: bool
    message: str = ""
    by: str = ""
    kind: Literal["approval_given"] = "approval_given"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(_Event):
    """Somebody asked for a stop, or raised its level.

    Attributes:
        level: "requested" (graceful) or "immediate".
        agent: The one agent that is stopped, or "" for the run.
        grace_s: Seconds until a graceful stop becomes immediate, or None.
    """

    level: Literal["requested", "immediate"]
    source: str
    reason: str = ""
    agent: str = ""
    grace_s: float | None = None
    kind: Literal["stop_requested"] = "stop_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(_Event):
    """Somebody paused the run: work holds still at its next boundary."""

    kind: Literal["paused"] = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued(_Event):
    """A paused run goes on."""

    kind: Literal["continued"] = "continued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said(_Event):
    """The person put a follow-up text into the running turn; it makes all votes stale."""

    text: str
    kind: Literal["said"] = "said"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(_Event):
    """Something a person should know: a hook failed, or saving failed."""

    text: str
    kind: Literal["noticed"] = "noticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(_Event):
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
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesListed(_Event):
    """The workspaces were listed; it comes behind `TurnEnded`, which must not wait for it.

    Attributes:
        files: The first files of each workspace: it may hold more than a line can.
        count: How many files there are in all.
        size: Bytes in all.
    """

    files: tuple[FileInfo, ...]
    count: int
    size: int
    kind: Literal["files_listed"] = "files_listed"


Event = (
    TurnStarted
    | RoundStarted
    | ModelStarted
    | TextStreamed
    | ModelFinished
    | ModelFailed
    | ModelCut
    | ToolStarted
    | ToolTold
    | ToolFinished
    | TurnRejected
    | Told
    | RoundTimedOut
    | AnswerGiven
    | VoteCast
    | VoteIgnored
    | AgentFailed
    | AgentEnded
    | AgentCalled
    | PresentationStarted
    | RecipeLoaded
    | StepStarted
    | OutputStreamed
    | StepFailed
    | StepFinished
    | ApprovalAsked
    | ApprovalGiven
    | StopRequested
    | Paused
    | Continued
    | Said
    | Noticed
    | TurnEnded
    | FilesListed
)

EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Discriminator("kind")])
"""Reads and writes an event's JSON."""
