"""The rounds of agents, their requests to models, and their calls of tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from nb_agents.events.base_event import Count, Dollars, Event, Seconds

Channel = Literal["text", "thinking", "answer", "call"]
"""What streamed words are: plain text, reasoning, an answer, or the JSON of another tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a model call used.

    Attributes:
        input_tokens: Tokens sent.
        output_tokens: Tokens received.
        cost: US dollars, or None when no price is known for the model.
    """

    input_tokens: Count = 0
    output_tokens: Count = 0
    cost: Dollars | None = None


class AgentEvent(Event, is_kind=False):
    """Something that an agent did, or that happened to it.

    Attributes:
        agent: Its id, or the address of its step.
    """

    agent: str


class CallEvent(AgentEvent, is_kind=False):
    """Something about one of an agent's requests to its model.

    Attributes:
        call: Which one, from 1.
    """

    call: Count


class ModelStarted(CallEvent):
    """A model request is about to be sent; ``call`` counts the agent's requests from 1.

    Attributes:
        place: Where in a program of the user's it is made, such as ``/r1/m2``; "" for our loop.
        digest: Of the conversation that the program sends; tells whether it has changed.
        model: The model's name, of a program that chooses it itself; else "".
    """

    attempt: Count = 1
    place: str = ""
    digest: str = ""
    model: str = ""


class TextStreamed(CallEvent):
    """Words that arrived since the last such event of this call and channel."""

    channel: Channel
    text: str
    tool: str = ""


class ModelFinished(CallEvent):
    """A call of a model, or of a program behind an agent, ended well.

    Attributes:
        response: All that came, in a form of the agent's runner.
        form: Which form that is; "" is a message in pydantic-ai's JSON.
        place: As in ModelStarted.
    """

    response: Any
    usage: Usage
    form: str = ""
    place: str = ""


class ModelFailed(CallEvent):
    """An attempt failed.

    Attributes:
        error: Why, for people.
        retry_in_s: Seconds until the next attempt; None when this was the last.
        is_throttled: Whether the server refused it because there are too many requests.
    """

    error: str
    retry_in_s: Seconds | None = None
    is_throttled: bool = False


class ModelCut(CallEvent):
    """A model request was cut by an immediate stop; its words so far are kept."""


class ToolStarted(AgentEvent):
    """A tool call is about to run.

    Attributes:
        args: What it is given; keys are masked in the journal.
        summary: What it is about, in a few words.
        is_repeatable: Whether a resume makes it again when it is cut; see `nb_agents.tool`.
        digest: Of the arguments, in a program of the user's; tells whether it has changed.
    """

    call_id: str
    tool: str
    args: Any = None
    summary: str = ""
    is_repeatable: bool = False
    digest: str = ""


class ToolTold(AgentEvent):
    """The last of what an agent's running tool wrote; the tool keeps all of it."""

    text: str


class ToolFinished(AgentEvent):
    """A tool call is over.

    Attributes:
        outcome: "ok", "error" (the model is told why), "cut" by an immediate stop (it may have
            happened in part), or "cancelled": never run, and answered so, because providers refuse
            a history in which a call has no return.
        result: What the model is told; of a cut call "" until a resume decides that it is not made
            again, and tells the model so.
        size: Characters of it.
        seconds: How long the call took, what it waited for a person included.
        thread: Number, in its process, of the thread that a cut call was left running in: a plain
            function can't be ended; 0 for none.
        subagents: The ids of those sub-agents whose results it holds.
        form: "json" for a value of a program's tool, and "raised" for what it raised; else "".
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


class ProgramSaved(AgentEvent):
    """A user's program saved a part of its state, such as a graph its checkpoint.

    Attributes:
        place: Where in the program, such as ``/r1/graph``.
        form: The form of the data, for the program's framework.
        data: Bytes, each as the character of its number.
    """

    place: str
    form: str
    data: str


Outcome = Literal["finished", "stopped", "killed", "failed", "never started"]


class RoundStarted(AgentEvent):
    """An agent began a round: a fresh conversation over the answers it then saw.

    Attributes:
        number: From 1.
        seen: For each agent with answers, how many of them were shown.
        system: The agent's role and rules.
        asks: The first messages of the user.
        heard: How many of the follow-up texts are among them.
        resumes: What a resume of the round promises: "exactly", "in steps", "goes on" or
            "starts again".
        request: Both as pydantic-ai's JSON, in journals of version 0.1.
    """

    number: Count
    seen: dict[str, Count] = field(default_factory=dict)
    system: str = ""
    asks: tuple[str, ...] = ()
    heard: Count = 0
    resumes: str = "exactly"
    request: list[Any] = field(default_factory=list)


class SessionBound(AgentEvent):
    """A program that is an agent opened a session of its own, with which a resume goes on.

    Attributes:
        session: The session's id, in the program's words.
    """

    session: str


class TurnRejected(AgentEvent):
    """A model turn ended in neither a valid answer nor a valid vote.

    Attributes:
        why: The reason, for the agent.
        attempt: How many of its turns did so in this round.
        fault: The same for a person, as a part of a sentence.
    """

    why: str
    attempt: Count
    fault: str = ""


class ReplyCut(CallEvent):
    """A reply broke off, at a limit of tokens or by its server; the agent goes on.

    Attributes:
        by: What cut it, in words.
        told: The message to the agent; "" if it is in a tool's result.
        kept: The answer so far, which its next reply goes on with.
    """

    by: str
    told: str = ""
    kept: str = ""


class Told(AgentEvent):
    """An agent got a note between two calls: new answers, follow-up texts, time left.

    Attributes:
        text: What it reads with its next request, after the tools' results.
        seen: With new answers, what it has seen from now on, as in RoundStarted; else None.
        heard: With follow-up texts, how many it has heard from now on; else None.
        subagents: The ids of those sub-agents whose results it holds.
        in_result: What it reads at the end of the last tool's result, before the text.
    """

    text: str
    seen: dict[str, Count] | None = None
    heard: Count | None = None
    subagents: tuple[str, ...] = ()
    in_result: str = ""


class RoundTimedOut(AgentEvent):
    """A round was cut when its time and the time to wrap up were over.

    An agent that has answered rests: its answer stands. Another is out.

    Attributes:
        limit_s: Seconds that the round had.
        grace_s: Seconds that it had to wrap up.
    """

    limit_s: Seconds
    grace_s: Seconds


class AnswerGiven(AgentEvent):
    """An agent submitted an answer; it clears all votes."""

    answer: str


class VoteCast(AgentEvent):
    """An agent voted for another's latest answer (or its own).

    Attributes:
        agent: The voter.
        target: The agent voted for.
        reason: The voter's words.
        seen: What the voter had seen, as in RoundStarted: a vote cast over older answers is stale.
    """

    target: str
    reason: str
    seen: dict[str, Count] = field(default_factory=dict)


class VoteIgnored(AgentEvent):
    """A vote did not count because a newer answer had come; the agent looks again."""

    target: str


class Abstained(AgentEvent):
    """An agent whose answer stands was asked for a vote and calls no tool; it is asked no more."""


class AgentFailed(AgentEvent):
    """An agent is out because of an error; the others go on."""

    error: str


class AgentEnded(AgentEvent):
    """An agent's work was ended by a stop, of itself alone or of the run.

    Attributes:
        outcome: How.
        text: Of one that another agent called and that has finished: its result.
    """

    outcome: Outcome
    text: str = ""


class AgentCalled(AgentEvent):
    """An agent called another one, which works until `AgentEnded` or `AgentFailed`.

    In a resumed turn it goes on with its own work of before.

    Attributes:
        agent: Id of the one that is called, such as ``ada/critic#1``.
        caller: Id of the one that called.
        name: The name that it was called by.
        model: Its model's name.
        workspace: Name of its workspace.
        input: What it is asked.
        spawned: Id by which its caller asks for it later; "" when the caller waits for it.
        call_id: The caller's tool call in which it was called.
    """

    caller: str
    name: str
    model: str
    workspace: str
    input: str
    spawned: str = ""
    call_id: str = ""


class PresentationStarted(AgentEvent):
    """All have voted; the winner presents."""

    votes: dict[str, Count] = field(default_factory=dict)


class FinalAnswerGiven(AgentEvent):
    """The team's final answer is there, and the agent that gave it judges whether it will do."""

    answer: str


class OrchestrationRestarted(AgentEvent):
    """The final answer will not do: the team begins again, without answers or votes.

    Attributes:
        agent: Who says so.
        reason: What is wrong with the answer.
        instructions: What the next attempt is to do.
        attempt: The number of that attempt; the first was 1.
    """

    reason: str
    instructions: str
    attempt: Count


class ContextChanged(AgentEvent):
    """Files outside the workspaces changed while an agent might change them.

    Attributes:
        agent: Who might.
        made, changed, deleted: Absolute names, the first of each.
        count: How many there are in all.
    """

    made: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    count: Count


class WorktreeBased(AgentEvent):
    """A worktree of an agent holds a commit, and what it changes counts from there.

    Attributes:
        path: What it is a copy of, absolute.
        place: Where it is in the agent's workspace.
        base: The commit.
    """

    path: str
    place: str
    base: str


class FilesKept(Event):
    """A writer is about to begin, and what its workspace holds was kept.

    Attributes:
        workspace: The workspace's name.
        call: Whose writer: an agent and its call, or a step's address.
        tree: The id of what it holds, in the session's ``snapshots``.
        changed: What is different since it was kept before, the first of it.
        count: How many paths that are.
        not_kept: What is new and not kept, with the reason; the first of it.
    """

    workspace: str
    call: str
    tree: str
    changed: tuple[str, ...] = ()
    count: Count = 0
    not_kept: tuple[str, ...] = ()


class OwnFilesKept(Event):
    """A writer has ended, and what it changed of the person's own files was kept.

    Attributes:
        place: The directory below which they are, absolute.
        call: Whose writer, as in FilesKept; "" for a rewind, which put them back.
        before: The id of what the changed paths held before, in the session's ``snapshots``; a
            path that is not there was not there.
        after: The id of what they hold since.
        changed: The changed paths, the first of them.
        count: How many there are.
        is_sure: Whether the writer changed them: False where its process died, and another may
            have changed them since.
        why_not: Why nothing could be kept, whatever the writer changed; else "".
    """

    place: str
    call: str = ""
    before: str = ""
    after: str = ""
    changed: tuple[str, ...] = ()
    count: Count = 0
    is_sure: bool = True
    why_not: str = ""
