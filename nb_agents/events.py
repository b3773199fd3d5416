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
from typing import Annotated, Any, Literal

from pydantic import Discriminator, TypeAdapter

__all__ = [
    "AgentEnded",
    "AgentFailed",
    "AgentInfo",
    "AnswerGiven",
    "Channel",
    "EVENT",
    "Event",
    "FileInfo",
    "ModelCut",
    "ModelFailed",
    "ModelFinished",
    "ModelStarted",
    "Noticed",
    "Outcome",
    "Phase",
    "PresentationStarted",
    "RoundStarted",
    "RoundTimedOut",
    "SCHEMA_VERSION",
    "StopRequested",
    "TextStreamed",
    "Told",
    "ToolFinished",
    "ToolStarted",
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
    """

    agent: str
    number: int
    seen: dict[str, int] = field(default_factory=dict)
    request: list[Any] = field(default_factory=list)
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
    """A tool call is about to run."""

    agent: str
    call_id: str
    tool: str
    args: Any = None
    summary: str = ""
    kind: Literal["tool_started"] = "tool_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(_Event):
    """A tool call is over.

    Attributes:
        outcome: "ok", "error" (the model is told why), "cut" by an immediate stop (it may have
            happened in part), or "cancelled": never run, and answered so, because providers refuse
            a history in which a call has no return.
        result: What the model is told.
    """

    agent: str
    call_id: str
    tool: str
    outcome: Literal["ok", "error", "cut", "cancelled"]
    result: str = ""
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
    """An agent was told something between two calls: new answers of others, how much time is left.

    Attributes:
        text: What it reads with its next request, after the tools' results.
        seen: With new answers, what it has seen from now on, as in RoundStarted; else None.
    """

    agent: str
    text: str
    seen: dict[str, int] | None = None
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
class PresentationStarted(_Event):
    """All have voted; the winner presents."""

    agent: str
    votes: dict[str, int] = field(default_factory=dict)
    kind: Literal["presentation_started"] = "presentation_started"


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
class Noticed(_Event):
    """Something a person should know: a hook failed, or saving failed."""

    text: str
    kind: Literal["noticed"] = "noticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(_Event):
    """The turn is over; last line of a journal that ended by itself.

    Attributes:
        status: How it ended.
        phase: Where it was when it ended.
        winner: The presenter, or "".
        answer: The final answer of a completed turn, else "".
        files: What the workspaces hold.
    """

    status: Literal["completed", "cancelled", "failed"]
    phase: Phase
    winner: str = ""
    answer: str = ""
    files: tuple[FileInfo, ...] = ()
    kind: Literal["turn_ended"] = "turn_ended"


Event = (
    TurnStarted
    | RoundStarted
    | ModelStarted
    | TextStreamed
    | ModelFinished
    | ModelFailed
    | ModelCut
    | ToolStarted
    | ToolFinished
    | TurnRejected
    | Told
    | RoundTimedOut
    | AnswerGiven
    | VoteCast
    | VoteIgnored
    | AgentFailed
    | AgentEnded
    | PresentationStarted
    | StopRequested
    | Noticed
    | TurnEnded
)

EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Discriminator("kind")])
"""Reads and writes an event's JSON."""
