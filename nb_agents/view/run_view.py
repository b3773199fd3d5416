"""The state of a turn.

`nb_agents.view.fold` computes it from the events of the turn. Nothing here reads a clock or a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic_core import from_json

from nb_agents import events as ev
from nb_agents.nouns import count
from nb_agents.view.steps import ApprovalView, GateView, StepView

AgentPhase = Literal[
    "waiting", "thinking", "writing", "tool", "answered", "voted", "failed", "stopped"
]
RunStatus = Literal["pending", "in-progress", "awaiting", "completed", "failed", "cancelled"]
"""The status values of OS Protocol's handle. Users see a `RunState` instead."""
RunState = Literal["running", "stopping", "complete", "stopped", "failed", "timed out"]
"""The state of a run as shown by every user interface."""
Ending = Literal["", "complete", "failed", "stopped", "timed out", "killed", "cancelled"]


@dataclass(frozen=True, slots=True)
class ToolView:
    """The state of one tool call.

    Attributes:
        outcome: "running" until the call ends.
        summary: A short description of the arguments.
        size: Length of the result that the model received, in characters.
        seconds: Duration of the call.
        thread: Number of the thread in which a stop left the call running. 0 means none.
    """

    agent: str
    call_id: str
    tool: str
    outcome: Literal["running", "ok", "error", "cut", "cancelled"] = "running"
    summary: str = ""
    size: int = 0
    seconds: float = 0.0
    thread: int = 0


@dataclass(frozen=True, slots=True)
class ReceivedResult:
    """A tool result that an agent received.

    Attributes:
        call: The tool, and a short description of its arguments.
        result: The beginning of the result.
    """

    call: str
    result: str


@dataclass(frozen=True, slots=True)
class VoteView:
    """A vote that counts."""

    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnsubmittedText:
    """Text of a finished model call that is not part of an answer.

    Attributes:
        text: The text, including the arguments of an unfinished tool call.
        thinking: The reasoning.
    """

    text: str = ""
    thinking: str = ""


def call_so_far(arguments: str) -> str:
    """Return the values in a tool call's incomplete JSON arguments, as text."""
    try:
        values = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    return " · ".join(str(v) for v in values.values()) if isinstance(values, dict) else ""


class FoldView(NamedTuple):
    """A fold of an agent's conversation.

    Attributes:
        level: "results" for tool results, "summary" for whole exchanges.
        parts: The number of folded tool results.
        before, after: The estimated tokens of the conversation before and after.
        summary: The model's summary, or "".
        cost: The cost of the summary in dollars. None if there is none or it is unknown.
        ledger: The calls of the folded exchanges or tool results, one per line.
    """

    level: str
    parts: int
    before: int
    after: int
    summary: str = ""
    cost: float | None = None
    ledger: str = ""


BATCH_LOOK_S = 900.0
"""Seconds after the sending of a batch at which a turn whose process ended is resumed."""


@dataclass(frozen=True)
class ProviderWait:
    """An agent's wait for the provider of its model.

    Attributes:
        reason: "quota" for the end of a rate limit or quota, "server" for a server that is down,
            "batch" for the end of a batch.
        until: The time of the next attempt, in Unix seconds. For a batch, when it ends at the
            latest.
        limit_s: The longest time in seconds that the call may wait in total.
        error: The provider's error.
        sent_at: When the batch was sent, in Unix seconds. None before that, and without a batch.
    """

    reason: Literal["quota", "server", "batch"]
    until: float
    limit_s: float
    error: str
    sent_at: float | None = None

    @property
    def due(self) -> float:
        """When a turn whose process ended should be resumed, in Unix seconds.

        This is the time of the next attempt. A batch may end early, so its turn is resumed soon,
        and then asks for its state as before.
        """
        if self.reason != "batch":
            return self.until
        return self.until - self.limit_s if self.sent_at is None else self.sent_at + BATCH_LOOK_S

    def describe(self, now: float) -> str:
        """Return what the agent waits for, and when its model is called again.

        Args:
            now: The current time in Unix seconds. The date is left out if it is today's.
        """
        if self.reason == "batch" and self.sent_at is None:
            return "waiting to be sent in a batch"
        at = datetime.fromtimestamp(self.until if self.sent_at is None else self.sent_at)
        is_today = at.date() == datetime.fromtimestamp(now).date()
        time = f"{at:%H:%M:%S}" if is_today else f"{at:%H:%M on %Y-%m-%d}"
        if self.reason == "batch":
            return f"in a batch, sent {time}"
        return f"waiting for {self.reason} until {time}"


@dataclass(frozen=True)
class AgentView:
    """The state of one agent.

    Attributes:
        id: The agent's id.
        model: The name of its model.
        phase: Its current activity.
        tool: The running tool, or "".
        tool_summary: A short description of the running tool's arguments.
        tool_tail: The end of the running tool's output.
        round: Number of started rounds.
        answers: Its answers, oldest first.
        vote: Its vote, or None.
        partial: Text of the latest model call that is not an answer yet.
        kept: The answer so far, if a reply was cut off. The next reply continues it.
        partial_call: Incomplete JSON arguments of a tool call that is being streamed.
        thinking: Reasoning of the latest model call.
        drafts: Text of earlier calls that is not part of an answer, oldest first.
        learned: The latest tool results since its last answer, oldest first.
        heard: Number of the user's messages that it has read.
        calls: Number of started model requests.
        in_flight: Whether a model request is open.
        streamed_at: When that request started or last received text, in Unix seconds.
        was_cut: Whether its last model request was interrupted. A resume repeats the request.
        is_throttled: Whether its last model request hit a rate limit and is being retried.
        input_tokens, output_tokens: Number of tokens used so far.
        cost: Cost so far in US dollars, or None if the price of a model is unknown.
        is_estimated: Whether the tokens and cost are partly estimated.
        ended_usage: The usage of the calls that have ended.
        open_usage: The usage so far of each open call, by its number.
        uncounted_calls: Number of interrupted calls with unknown usage.
        error: Why it failed, or "".
        outcome: How its work ended. None until then.
        stop: The level of a stop that affects only this agent, or "".
        caller: The id of the agent that called this one, or "".
        workspace: The name of a called agent's workspace, or "".
        returned: The result of a called agent for its caller, or "".
        depth: Number of its direct and indirect callers.
        is_too_long: Whether its last model request failed because the conversation is too long.
        folds: How its conversation was folded to fit the context window, oldest first.
        wait: Its wait for the provider of its model, or None. If the turn ends meanwhile, it stays.
    """

    id: str
    model: str = ""
    phase: AgentPhase = "waiting"
    tool: str = ""
    tool_summary: str = ""
    tool_tail: str = ""
    round: int = 0
    answers: tuple[str, ...] = ()
    vote: VoteView | None = None
    partial: str = ""
    kept: str = ""
    partial_call: str = ""
    thinking: str = ""
    drafts: tuple[UnsubmittedText, ...] = ()
    learned: tuple[ReceivedResult, ...] = ()
    calls: int = 0
    in_flight: bool = False
    streamed_at: float = 0.0
    was_cut: bool = False
    is_throttled: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0
    is_estimated: bool = False
    ended_usage: ev.Usage = ev.Usage(cost=0.0)
    open_usage: Mapping[int, ev.Usage] = field(default_factory=lambda: MappingProxyType({}))
    uncounted_calls: int = 0
    heard: int = 0
    error: str = ""
    outcome: ev.Outcome | None = None
    stop: Literal["", "requested", "immediate"] = ""
    caller: str = ""
    workspace: str = ""
    returned: str = ""
    depth: int = 0
    is_too_long: bool = False
    folds: tuple[FoldView, ...] = ()
    wait: ProviderWait | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it is waiting for the provider of its model."""
        return self.wait is not None and self.outcome is None

    @property
    def answer(self) -> str:
        """The latest answer, or ""."""
        return self.answers[-1] if self.answers else ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each model call in this turn that is not part of an answer, oldest first."""
        last = (self.partial, call_so_far(self.partial_call))
        texts = [*(draft.text for draft in self.drafts), *last]
        return tuple(text for text in texts if text.strip())

    @property
    def unsubmitted(self) -> str:
        """All text of this turn that is not part of an answer, oldest first."""
        return "\n\n".join(self.texts)

    @property
    def thoughts(self) -> str:
        """All reasoning of this turn, oldest first."""
        thoughts = [*(draft.thinking for draft in self.drafts), self.thinking]
        return "\n\n".join(filter(None, map(str.strip, thoughts)))

    @property
    def tokens(self) -> int:
        """Number of input and output tokens so far."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class StopView:
    """The stop of a run: its first requester, and its current level.

    Attributes:
        level: The current level.
        source: The interface or limit that requested it first.
        reason: The reason given with the first request.
        requested_at: When it was first requested, in Unix seconds.
        grace_s: Seconds after which it becomes immediate. None means never.
        gate: Address of the gate whose denial caused the stop, or "".
    """

    level: Literal["requested", "immediate"]
    source: str
    reason: str
    requested_at: float
    grace_s: float | None
    gate: str = ""

    @property
    def given_reason(self) -> str:
        """The reason that the user gave, or "" if a key or button supplied it."""
        return "" if self.reason in ("interrupted", "stopped in the panel") else self.reason


@dataclass(frozen=True, repr=False)
class RunView:
    """State of a turn, folded from its events.

    Attributes:
        session, turn: The session id and the number of the turn.
        task: The task.
        status: The status, in the terms of the OS Protocol.
        phase: "coordinating" or "presenting".
        agents: The agents by id, in registration order. Called agents come after their caller.
        tools: All tool calls, in order.
        stop: The stop, or None.
        winner: The presenter, or "".
        attempt: Number of the team's attempt, starting at 1. The team starts again if it judges its
            final answer insufficient.
        answer: The final answer of a complete turn.
        started_at, ended_at: Unix seconds. `ended_at` is None until the turn ends.
        last_at: Time of the last event, in Unix seconds.
        timeout_s: The orchestrator timeout, in seconds.
        notices: One-line notices for the user.
        context_changes: Changes by agents to files outside their workspaces, in order.
        worktrees: Agents' copies of files outside their workspaces, one per path.
        ends: Whether processes and servers are confirmed to have ended, by name.
        said: The user's messages to the agents, oldest first.
        files: The first files of each workspace at the end of the turn.
        file_count: Number of all files, or None before they are listed.
        file_bytes: Size of all files, in bytes.
        resumes: Number of the turn that this turn resumes or rewinds, or 0.
        tokens_before: Tokens used by the earlier turns of the same task; for a rewind, up to its
            checkpoint.
        cost_before: Cost of those turns in US dollars, excluding calls whose price is unknown.
        max_cost: Budget of the task in US dollars that the user has set by an option or raised at a
            gate. None means that of the team file.
        max_tokens: The same in tokens.
        next_max_cost: Limit in US dollars with which a task that has used up its budget could
            continue, or None.
        next_max_tokens: The same in tokens.
        on_budget: What the user chose to happen at the budget, or "" for the team file's choice.
        point: For a rewind, the number of the last event kept from that turn; otherwise 0.
        recipe: Name of the recipe, or "" for a team.
        origin: The notebook or terminal that started the turn, or "" if unknown.
        digest: The digest of the request, or "".
        steps: A recipe's units by address, in the order of their start.
        gates: The open gates by address, oldest first.
        approvals: The decided gates, in order.
        outputs: The outputs of a complete recipe, by name.
        outlines: The planned units of each recipe, by the address of the step that calls it. "" is
            the address of the main recipe.
        next: If a recipe ended early, the addresses of the units that a resume runs first.
        is_paused: Whether the run is paused.
        is_saved: Whether everything is on disk, as far as known.
        extension_state: The state that each extension folds from its events, by the extension's
            name.
        seq: The journal position of this view.
    """

    session: str = ""
    turn: int = 0
    task: str = ""
    status: RunStatus = "pending"
    phase: ev.Phase = "coordinating"
    agents: Mapping[str, AgentView] = field(default_factory=lambda: MappingProxyType({}))
    tools: tuple[ToolView, ...] = ()
    stop: StopView | None = None
    winner: str = ""
    attempt: int = 1
    answer: str = ""
    started_at: float = 0.0
    ended_at: float | None = None
    last_at: float = 0.0
    timeout_s: float = 0.0
    notices: tuple[str, ...] = ()
    context_changes: tuple[ev.ContextChanged, ...] = ()
    worktrees: tuple[ev.WorktreeBased, ...] = ()
    ends: Mapping[str, ev.ProcessExitChecked] = field(default_factory=lambda: MappingProxyType({}))
    said: tuple[str, ...] = ()
    files: tuple[ev.FileInfo, ...] = ()
    file_count: int | None = None
    file_bytes: int = 0
    resumes: int = 0
    tokens_before: int = 0
    cost_before: float = 0.0
    max_cost: float | None = None
    max_tokens: int | None = None
    next_max_cost: float | None = None
    next_max_tokens: int | None = None
    on_budget: str = ""
    point: int = 0
    recipe: str = ""
    origin: str = ""
    digest: str = ""
    steps: Mapping[str, StepView] = field(default_factory=lambda: MappingProxyType({}))
    gates: Mapping[str, GateView] = field(default_factory=lambda: MappingProxyType({}))
    approvals: tuple[ApprovalView, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    outlines: Mapping[str, tuple[ev.PlannedUnit, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    next: tuple[str, ...] = ()
    is_paused: bool = False
    is_saved: bool = True
    extension_state: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    seq: int = 0

    def __repr__(self) -> str:
        """Return a summary on one line."""
        agents = count(len(self.agents), "agent")
        return f"<RunView {self.session}/{self.turn}: {self.state}, {agents}>"

    @property
    def round(self) -> int:
        """The latest round that an agent has started, at least 1."""
        return max([1, *(a.round for a in self.agents.values())])

    @property
    def votes(self) -> dict[str, int]:
        """The number of votes that each agent has received."""
        return dict(Counter(a.vote.target for a in self.agents.values() if a.vote))

    @property
    def best_agent(self) -> str:
        """The agent with the best available answer.

        That is the winner, the agent with the most votes, or the one with the longest answer.

        Source: MassGen's save_partial_turn uses the selected agent or the longest answer. Ties go
        to the first agent. Its rule for timeouts uses votes.
        """
        answered = [a for a in self.agents.values() if a.answers]
        if any(a.id == self.winner for a in answered):
            return self.winner
        votes = self.votes
        best = max(answered, key=lambda a: (votes.get(a.id, 0), len(a.answer)), default=None)
        return best.id if best else ""

    @property
    def unheard(self) -> tuple[str, ...]:
        """The user's messages that no agent has read yet."""
        return self.said[max((a.heard for a in self.agents.values()), default=0) :]

    @property
    def tokens(self) -> int:
        """Number of tokens that all agents have used."""
        return sum(agent.tokens for agent in self.agents.values())

    @property
    def task_tokens(self) -> int:
        """Number of tokens used by all turns of the task."""
        return self.tokens_before + self.tokens

    @property
    def task_cost(self) -> float:
        """Cost of all turns of the task in US dollars, excluding calls whose price is unknown."""
        return self.cost_before + sum(agent.cost or 0.0 for agent in self.agents.values())

    @property
    def raised_limits(self) -> tuple[float | None, int | None]:
        """Limits in US dollars and tokens with which a task could continue.

        Calls that were in flight when the budget was used up may have used up the limits that were
        proposed then. None if a limit is not the reason.
        """
        cost, tokens = self.next_max_cost, self.next_max_tokens
        return (
            None if cost is None else doubled(cost, self.task_cost),
            None if tokens is None else int(doubled(tokens, self.task_tokens)),
        )

    @property
    def too_long(self) -> list[str]:
        """Ids of agents that failed because their conversations are too long for their models."""
        return [agent.id for agent in self.agents.values() if agent.is_too_long and agent.error]

    @property
    def is_estimated(self) -> bool:
        """Whether the tokens and cost are partly estimated."""
        return any(agent.is_estimated for agent in self.agents.values())

    @property
    def wait(self) -> ProviderWait | None:
        """The wait that ends first, if all agents that are not done wait. Otherwise None."""
        if self.ending:
            return None
        waiting = [agent for agent in self.agents.values() if agent.is_waiting]
        if not waiting:
            return None
        is_busy = any(
            agent.in_flight
            or (agent.outcome is None and agent.phase in ("thinking", "tool", "writing"))
            for agent in self.agents.values()
            # An agent that has called a waiting one waits, too. Ids start with the caller's id.
            if not any(f"{each.id}/".startswith(f"{agent.id}/") for each in waiting)
        )
        if is_busy or any(s.unit == "bash" and not s.is_over for s in self.steps.values()):
            return None
        waits = [agent.wait for agent in waiting if agent.wait is not None]
        return min(waits, key=lambda wait: wait.until)

    @property
    def has_steps(self) -> bool:
        """Whether the turn works in steps, as a recipe does, and not in a team's rounds."""
        return bool(self.recipe)

    @property
    def current_step(self) -> str:
        """The address of the innermost open unit of a recipe, or "". Of several, the latest."""
        open_ = [step for step in self.steps.values() if not step.is_over]
        return max(open_, key=lambda step: (step.depth, step.started_at)).address if open_ else ""

    @property
    def pending(self) -> tuple[ev.PlannedUnit, ...]:
        """The planned units of a recipe that have not started, in order."""
        planned = (unit for outline in self.outlines.values() for unit in outline)
        return tuple(unit for unit in planned if unit.address not in self.steps)

    @property
    def workspaces(self) -> tuple[str, ...]:
        """Names of the turn's workspaces: one for a recipe, or one per team member.

        Workspaces of called agents come last.
        """
        own = (self.recipe,) if self.recipe else (k for k, a in self.agents.items() if not a.caller)
        return (*own, *(a.workspace for a in self.agents.values() if a.caller))

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended."""
        return self.ended_at is not None

    @property
    def ending(self) -> Ending:
        """How the turn ended, or "" while it is live.

        "killed" means that its process died without recording an end. "cancelled" is used for turns
        of another program, such as MassGen, which records no details.
        """
        if self.status == "completed":
            return "complete"
        if self.status not in ("failed", "cancelled"):
            return ""
        if self.status == "cancelled" and self.ended_at is None:
            return "killed"
        if self.stop is not None and self.stop.source == "timeout":
            return "timed out"
        if self.status == "failed":
            return "failed"
        return "cancelled" if self.stop is None else "stopped"

    @property
    def standing(self) -> str:
        """The state, or "awaiting" while the turn waits for a user."""
        return "awaiting" if self.status == "awaiting" else self.state

    @property
    def state(self) -> RunState:
        """The state of the turn as shown by every user interface."""
        match self.ending:
            case "":
                return "stopping" if self.stop else "running"
            case "killed" | "cancelled":
                return "stopped"
            case ending:
                return ending


def doubled(limit: float, used: float) -> float:
    """Return a limit, doubled until it is higher than what is used.

    Args:
        limit: The limit, above 0.
        used: What is used.
    """
    while limit <= used:
        limit *= 2
    return limit
