"""The events of agents: rounds, model requests, tool calls, decisions and files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nb_agents.events.base_event import Count, Dollars, Event, Ratio, Seconds

Channel = Literal["text", "thinking", "answer", "call"]
"""The kind of streamed text: plain text, reasoning, an answer, or the JSON of another tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens and cost of a model call.

    Attributes:
        input_tokens: Tokens sent.
        output_tokens: Tokens received.
        cost: The cost in US dollars, or None if the model's price is unknown.
        estimated: Whether some of it is estimated from the text, because the call ended before the
            provider reported all usage.
    """

    input_tokens: Count = 0
    output_tokens: Count = 0
    cost: Dollars | None = None
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        """Return the sum. Its cost is unknown if either cost is unknown."""
        is_known = self.cost is not None and other.cost is not None
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=(self.cost or 0.0) + (other.cost or 0.0) if is_known else None,
            estimated=self.estimated or other.estimated,
        )


class AgentEvent(Event, is_kind=False):
    """The base class of events about an agent.

    Attributes:
        agent: The agent's id, or the address of its step.
    """

    agent: str


class CallEvent(AgentEvent, is_kind=False, ignored_by=("voting",)):
    """The base class of events about a model request.

    Attributes:
        call: The number of the agent's request, starting at 1.
    """

    call: Count


class ModelStarted(CallEvent):
    """A model request is about to be sent.

    Attributes:
        attempt: The number of the attempt, starting at 1.
        place: The address of the call within an agent function, such as ``/r1/m2``, or "".
        digest: A digest of the messages that an agent function sends, to detect changes.
        model: The model's name, if the agent chooses it itself, or "".
        purpose: "fold" if the request summarizes the conversation; "" for the agent's work.
    """

    attempt: Count = 1
    place: str = ""
    digest: str = ""
    model: str = ""
    purpose: str = ""


class TextStreamed(CallEvent):
    """Text received since the last such event of this call and channel."""

    channel: Channel
    text: str
    tool: str = ""


class UsageUpdated(CallEvent):
    """The usage of a call so far, which replaces earlier values.

    Written to the journal while a call is open, so that the usage is known if the process is
    killed.
    """

    usage: Usage


class ModelFinished(CallEvent):
    """A model request, or a prompt to an external agent, succeeded.

    Attributes:
        response: The complete response, in a format of the agent's runner.
        usage: The tokens and cost.
        form: The format of the response. "" means a message in pydantic-ai's JSON.
        place: As in ModelStarted.
        purpose: As in ModelStarted.
    """

    response: Any
    usage: Usage
    form: str = ""
    place: str = ""
    purpose: str = ""


class ModelFailed(CallEvent):
    """An attempt at a model request failed.

    Attributes:
        error: The error message for the user.
        retry_in_s: Seconds until the next attempt. None after the last one.
        is_throttled: Whether the server rejected it because of too many requests.
        usage: The usage of the call. None if no reply had started.
        is_too_long: Whether the conversation exceeds the model's context window.
        waits_for: What the agent waits for before the next attempt: "quota" for the end of a rate
            limit or quota, "server" for a server that is down, or "" if this is an ordinary retry.
        retry_at: If it waits, the time of the next attempt in Unix seconds.
        wait_limit_s: If it waits, the longest time in seconds that the call may wait in total.
        waited_s: If it waits, the seconds since the call first failed. Pauses don't count.
        window: The context window in tokens that the agent has learned from the error, or 0.
        model: If there is such a window, the name of the model that has it.
        place: As in ModelStarted.
    """

    error: str
    retry_in_s: Seconds | None = None
    is_throttled: bool = False
    usage: Usage | None = None
    is_too_long: bool = False
    waits_for: Literal["", "quota", "server"] = ""
    retry_at: Seconds | None = None
    wait_limit_s: Seconds | None = None
    waited_s: Seconds | None = None
    window: Count = 0
    model: str = ""
    place: str = ""


class ModelBatched(CallEvent):
    """A model request waits to be sent in a batch, or was sent in a batch.

    Attributes:
        custom_id: The id of the request within its batch. "" if it is not in a batch (any more).
        batch: The provider's id of the batch. "" while the batch is being sent.
        sent_at: When the batch was sent, in Unix seconds. None before that.
        model: The name of the model, which may be another one after a resume.
    """

    custom_id: str = ""
    batch: str = ""
    sent_at: Seconds | None = None
    model: str = ""


class ModelCut(CallEvent):
    """An immediate stop interrupted a model request. The text received so far is in the journal.

    Attributes:
        usage: The usage until then. None if no reply had started.
    """

    usage: Usage | None = None


class FoldRequested(AgentEvent):
    """The user asked to fold an agent's conversation before its next model request.

    Attributes:
        keep: What the summary must keep, or "".
    """

    keep: str = ""


class ContextFolded(AgentEvent):
    """Older parts of an agent's conversation were folded, so that it fits the context window.

    Later requests contain less. The journal keeps the full text, which the agent can read with the
    tool ``read_back``.

    Attributes:
        level: "results", if tool results were replaced by a line each; "summary", if whole
            exchanges were replaced by a ledger and a summary.
        why: "near", if the conversation was close to the limit; "refused", if the server refused
            it; "cut", if the server dropped a part of it; "asked", if the user asked for the fold.
        until: The number of the round's last exchange that was replaced as a whole; 0 for none.
        references: The replaced tool results, such as "7.1" for the first call of exchange 7.
        excerpts: Those of them whose beginning and end are still shown.
        ledger: The calls of the replaced exchanges or tool results, one per line.
        summary: The model's summary of them, or "".
        before, after: The estimated tokens of the conversation before and after.
        window: The model's context window in tokens. 0 if unknown.
        tokens_per_byte: The measured ratio with which the sizes were estimated. 0 if unknown.
        summary_usage: The usage of the summary, which its `ModelFinished` also contains. None
            without a summary.
    """

    level: Literal["results", "summary"]
    why: Literal["near", "refused", "cut", "asked"]
    until: Count = 0
    references: tuple[str, ...] = ()
    excerpts: tuple[str, ...] = ()
    ledger: str = ""
    summary: str = ""
    before: Count = 0
    after: Count = 0
    window: Count = 0
    tokens_per_byte: Ratio = 0.0
    summary_usage: Usage | None = None


class ToolStarted(AgentEvent):
    """A tool call is about to run.

    Attributes:
        args: The arguments. Secrets are masked in the journal.
        summary: A short summary of the arguments.
        is_repeatable: Whether a resume repeats the call after an interruption; see
            `nb_agents.tool`.
        digest: A digest of the arguments that an agent function passes, to detect changes.
    """

    call_id: str
    tool: str
    args: Any = None
    summary: str = ""
    is_repeatable: bool = False
    digest: str = ""


class ToolNotice(AgentEvent, kind="tool_told"):
    """The latest output of an agent's running tool."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolImage:
    """An image in the result of a tool call.

    Attributes:
        file: The image's file, relative to the session's directory.
        media_type: The media type, such as ``image/png``.
        size: The size in bytes.
    """

    file: str
    media_type: str
    size: Count = 0


class ToolFinished(AgentEvent):
    """A tool call ended.

    Attributes:
        outcome: "ok"; "error"; "cut", if an immediate stop interrupted it and it may have taken
            effect in part; or "cancelled", if it never ran. A cancelled call still has a result,
            because providers require one for each call.
        result: The result for the model. "" for a cut call, until a resume tells the model that the
            call is not repeated.
        size: The length of the result in characters.
        seconds: The duration of the call, including waits for the user.
        thread: The number of the thread in which a cut call is still running, because a synchronous
            function can't be ended. 0 means none.
        subagents: The ids of the sub-agents with results in it.
        form: "json" for a value that an agent function received, "raised" for an exception, or "".
        images: The images in it, for models that take images.
    """

    call_id: str
    tool: str
    outcome: Literal["ok", "error", "cut", "cancelled"]
    result: str = ""
    size: Count = 0
    seconds: Seconds = 0.0
    thread: Count = 0
    subagents: tuple[str, ...] = ()
    form: str = ""
    images: tuple[ToolImage, ...] = ()


class AgentStateSaved(AgentEvent, kind="program_saved"):
    """An agent function saved part of its state, such as a graph's checkpoint.

    Attributes:
        place: The address in the function, such as ``/r1/graph``.
        form: The format of the data, for the framework.
        data: The bytes, decoded as Latin-1.
    """

    place: str
    form: str
    data: str


Outcome = Literal["finished", "stopped", "killed", "failed", "never started"]


class RoundStarted(AgentEvent):
    """An agent began a round: a new conversation with the current answers.

    Attributes:
        number: The round's number, starting at 1.
        seen: The number of answers of each agent that were shown.
        system: The agent's role and rules.
        asks: The first messages to the agent.
        heard: The number of user messages in them.
        resumes: What the runner guarantees about a resume: "exactly", "in steps", "goes on" or
            "starts again".
        request: The system prompt and messages as pydantic-ai's JSON, in journals of version 0.1.
    """

    number: Count
    seen: dict[str, Count] = field(default_factory=dict)
    system: str = ""
    asks: tuple[str, ...] = ()
    heard: Count = 0
    resumes: str = "exactly"
    request: list[Any] = field(default_factory=list)


class SessionBound(AgentEvent):
    """An external agent opened its own session, in which a resume continues.

    Attributes:
        session: The session's id in the external agent.
    """

    session: str


class TurnRejected(AgentEvent):
    """A model's reply contained neither a valid answer nor a valid vote.

    Attributes:
        why: The reason, for the agent.
        attempt: The number of such replies in this round, starting at 1.
        fault: The reason, for the user, as part of a sentence.
    """

    why: str
    attempt: Count
    fault: str = ""


class ReplyCut(CallEvent):
    """A reply was cut off by a token limit or by its server. The agent continues it.

    Attributes:
        by: The cause, phrased to follow "cut off".
        told: The message to the agent, or "" if it is in a tool result.
        kept: The part of the answer received so far, which the next reply continues.
    """

    by: str
    told: str = ""
    kept: str = ""


class NoteSent(AgentEvent, kind="told"):
    """An agent got a note between two calls: new answers, the user's messages, the time left.

    Attributes:
        text: The text in its next request, after the tool results.
        seen: If the note shows new answers, all answers seen by now, as in RoundStarted, or None.
        heard: If the note contains user messages, the number received by now, or None.
        subagents: The ids of the sub-agents with results in the note.
        in_result: The text at the end of the last tool result, before ``text``.
    """

    text: str
    seen: dict[str, Count] | None = None
    heard: Count | None = None
    subagents: tuple[str, ...] = ()
    in_result: str = ""


class RoundTimedOut(AgentEvent):
    """A round was ended after its time limit and grace time.

    If the agent has answered, its answer still counts, but it gets no more rounds. Otherwise it
    no longer takes part.

    Attributes:
        limit_s: The round's time limit in seconds.
        grace_s: The additional time to finish, in seconds.
    """

    limit_s: Seconds
    grace_s: Seconds


class AnswerGiven(AgentEvent):
    """An agent submitted an answer, which clears all votes."""

    answer: str


class VoteCast(AgentEvent):
    """An agent voted for the latest answer of an agent, possibly itself.

    Attributes:
        agent: The voter.
        target: The agent voted for.
        reason: The voter's reason.
        seen: The answers that the voter had seen, as in RoundStarted. A vote does not count if
            there were newer answers.
    """

    target: str
    reason: str
    seen: dict[str, Count] = field(default_factory=dict)


class VoteIgnored(AgentEvent):
    """A vote did not count because of a newer answer. The agent decides again."""

    target: str


class Abstained(AgentEvent):
    """An agent with an answer does not vote, because its model calls no tools."""


class AgentFailed(AgentEvent):
    """An agent failed and no longer takes part. The other agents continue."""

    error: str


class AgentEnded(AgentEvent):
    """An agent's work was stopped, or a sub-agent has ended.

    Attributes:
        outcome: How it ended.
        text: The result of a finished sub-agent, or "".
    """

    outcome: Outcome
    text: str = ""


class AgentCalled(AgentEvent):
    """An agent called a sub-agent, which works until `AgentEnded` or `AgentFailed`.

    In a resumed turn, the sub-agent continues its interrupted work.

    Attributes:
        agent: The sub-agent's id, such as ``ada/critic#1``.
        caller: The id of the calling agent.
        name: The name that the caller used.
        model: The name of its model.
        workspace: The name of its workspace.
        input: The input.
        spawned: For a spawned sub-agent, the id that the caller uses. "" for a called one.
        call_id: The id of the caller's tool call.
    """

    caller: str
    name: str
    model: str
    workspace: str
    input: str
    spawned: str = ""
    call_id: str = ""


class PresentationStarted(AgentEvent):
    """The vote is over, and the winner presents the final answer."""

    votes: dict[str, Count] = field(default_factory=dict)


class FinalAnswerGiven(AgentEvent):
    """The team has a final answer, and the agent that gave it judges it."""

    answer: str


class OrchestrationRestarted(AgentEvent):
    """The final answer was rejected, and the team starts again without answers and votes.

    Attributes:
        agent: The agent that judged the answer.
        reason: What is wrong with the answer.
        instructions: Instructions for the next attempt.
        attempt: The number of the next attempt. The first attempt is 1.
    """

    reason: str
    instructions: str
    attempt: Count


class ContextChanged(AgentEvent):
    """Files outside the workspaces changed while an agent could write there.

    Attributes:
        agent: The agent that could write there.
        made, changed, deleted: Absolute paths of new, changed and deleted files, up to a limit.
        count: The total number of paths.
    """

    made: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    count: Count


class WorktreeBased(AgentEvent):
    """The base commit of an agent's worktree was set. Changes are compared with it.

    Attributes:
        path: The absolute path of the original.
        place: The path of the worktree in the agent's workspace.
        base: The commit's id.
    """

    path: str
    place: str
    base: str


class FilesSaved(Event, kind="files_kept"):
    """A snapshot of a workspace was saved before a call that may write to it.

    Attributes:
        workspace: The workspace's name.
        call: The agent and its call, or the step's address.
        tree: The snapshot's id in the session's ``snapshots``.
        changed: Paths that changed since the previous snapshot, up to a limit.
        count: The total number of these paths.
        not_kept: New paths that were not saved, with the reason, up to a limit.
    """

    workspace: str
    call: str
    tree: str
    changed: tuple[str, ...] = ()
    count: Count = 0
    not_kept: tuple[str, ...] = ()


class UserFilesSaved(Event, kind="own_files_kept"):
    """A snapshot of the user files that a call changed was saved after the call.

    Attributes:
        place: The absolute path of the directory with the files.
        call: As in FilesSaved, or "" for a rewind that restored them.
        before: The id of a snapshot of the changed paths before the call, in the session's
            ``snapshots``. Paths that are not in it did not exist.
        after: The id of a snapshot of the same paths after the call.
        changed: Changed paths, up to a limit.
        count: The total number of changed paths.
        is_sure: Whether the changes are certainly due to the call. False if its process died,
            because something else may have changed the files since.
        why_not: Why no snapshot could be saved, or "".
    """

    place: str
    call: str = ""
    before: str = ""
    after: str = ""
    changed: tuple[str, ...] = ()
    count: Count = 0
    is_sure: bool = True
    why_not: str = ""
