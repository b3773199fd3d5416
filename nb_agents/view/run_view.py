"""The state of a turn, as journal, panel and card show it.

`nb_agents.view.fold` makes it from the events of the turn. Nothing here reads a clock or a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pydantic_core import from_json

from nb_agents import events as ev
from nb_agents.view.steps import ApprovalView, GateView, StepView

AgentPhase = Literal[
    "waiting", "thinking", "writing", "tool", "answered", "voted", "failed", "stopped"
]
RunStatus = Literal["pending", "in-progress", "awaiting", "completed", "failed", "cancelled"]
"""Words of OS Protocol's handle; people are shown a `RunState`."""
RunState = Literal["running", "stopping", "complete", "stopped", "failed", "timed out"]
"""The one word for how a run stands, wherever it is shown."""
Ending = Literal["", "complete", "failed", "stopped", "timed out", "killed", "cancelled"]


@dataclass(frozen=True, slots=True)
class ToolView:
    """The state of one tool call.

    Attributes:
        outcome: "running" until it is over.
        summary: A few words on its arguments.
        size: Characters of the result that the model was given.
        seconds: How long it took.
        thread: Number, in its process, of the thread that it was left running in; 0 for none.
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
class Learned:
    """A result that a tool gave an agent.

    Attributes:
        call: The tool, and in a few words what it was asked.
        result: The beginning of what it said.
    """

    call: str
    result: str


@dataclass(frozen=True, slots=True)
class VoteView:
    """A vote that counts now."""

    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnsubmittedText:
    """What a model call that is over wrote and no answer contains.

    Attributes:
        text: Its text, and the arguments of a tool call that never became one.
        thinking: Its reasoning.
    """

    text: str = ""
    thinking: str = ""


def call_so_far(arguments: str) -> str:
    """Return the values of a tool call's JSON arguments as far as they have come."""
    try:
        known = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    return " · ".join(str(v) for v in known.values()) if isinstance(known, dict) else ""


@dataclass(frozen=True)
class AgentView:
    """The state of one agent.

    Attributes:
        id: The agent's id.
        model: Its model's name.
        phase: What it is doing.
        tool: The tool that runs now, or "".
        tool_tail: The end of that tool's output.
        round: Rounds begun.
        answers: Its answers, oldest first.
        vote: Its vote, or None.
        partial: Text of the model call that is open or was cut: not yet an answer.
        kept: The answer so far of a reply that was cut off; the next one goes on with it.
        partial_call: JSON of another tool's arguments as far as it had come.
        thinking: Reasoning of that model call.
        drafts: What earlier calls wrote and no answer contains, oldest first.
        learned: The last results of its tools since its last answer, oldest first.
        heard: How many of the follow-up texts it has read.
        calls: Model requests begun.
        in_flight: Whether a model request is open.
        streamed_at: When the last words of that request came, or it began; Unix seconds.
        was_cut: Whether its last model request was cut, so that a resume sends it again.
        is_throttled: Whether its last model request was refused as one too many, and is retried.
        input_tokens, output_tokens: Used so far.
        cost: US dollars so far, or None when a model's price is unknown.
        error: Why it failed, or "".
        outcome: How its work ended, or None while it goes on.
        stop: The level of a stop of this agent alone, or "".
        caller: Of an agent that another one called: that one's id; else "".
        workspace: Of such an agent: the name of its workspace.
        returned: Of such an agent: its result for the caller.
        depth: How many agents called one another until this one.
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
    learned: tuple[Learned, ...] = ()
    calls: int = 0
    in_flight: bool = False
    streamed_at: float = 0.0
    was_cut: bool = False
    is_throttled: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0
    heard: int = 0
    error: str = ""
    outcome: ev.Outcome | None = None
    stop: Literal["", "requested", "immediate"] = ""
    caller: str = ""
    workspace: str = ""
    returned: str = ""
    depth: int = 0

    @property
    def answer(self) -> str:
        """The latest answer, or ""."""
        return self.answers[-1] if self.answers else ""

    @property
    def texts(self) -> tuple[str, ...]:
        """What each model call of this turn wrote and no answer contains, oldest first."""
        last = (self.partial, call_so_far(self.partial_call))
        texts = [*(draft.text for draft in self.drafts), *last]
        return tuple(text for text in texts if text.strip())

    @property
    def unsubmitted(self) -> str:
        """All words that it wrote in this turn and that no answer contains, oldest first."""
        return "\n\n".join(self.texts)

    @property
    def thoughts(self) -> str:
        """All of its reasoning in this turn, oldest first."""
        thoughts = [*(draft.thinking for draft in self.drafts), self.thinking]
        return "\n\n".join(filter(None, map(str.strip, thoughts)))

    @property
    def tokens(self) -> int:
        """Tokens in and out so far."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class StopView:
    """The stop of the run: who asked first, and its level now.

    Attributes:
        gate: Address of the gate whose denial it is, or "".
    """

    level: Literal["requested", "immediate"]
    source: str
    reason: str
    requested_at: float
    grace_s: float | None
    gate: str = ""

    @property
    def given_reason(self) -> str:
        """The reason that somebody gave; "" for those that stand for a key or a button."""
        return "" if self.reason in ("interrupted", "stopped in the panel") else self.reason


@dataclass(frozen=True, repr=False)
class RunView:
    """State of a turn, folded from its events.

    Attributes:
        session, turn: Its address on disk.
        task: What was asked.
        status: OS Protocol's word.
        phase: "coordinating" or "presenting".
        agents: By id, in registration order; those that one called come right behind it.
        tools: All tool calls, in order.
        stop: The stop, or None.
        winner: The presenter, or "".
        attempt: How often the team has begun, from 1: it begins again where it finds that its final
            answer will not do.
        answer: The final answer of a completed turn.
        started_at, ended_at: Unix seconds; ended_at is None while it goes on.
        timeout_s: The orchestrator timeout, seconds.
        notices: One-line notes for a person.
        context_changes: What agents changed outside their workspaces, in order.
        worktrees: Copies that agents have of files outside their workspaces, one a path.
        ends: What is known of the end of what worked elsewhere, by what it was.
        said: Follow-up texts that the person put into the turn, oldest first.
        files: The first files of each workspace, as they were at the end.
        file_count: How many files there are in all, or None before they are listed.
        file_bytes: Their size together.
        resumes: Number of the turn that this one went on with, or 0.
        point: Of a rewind: number of the last event of that turn that counts; else 0.
        recipe: Name of the recipe that this runs, or "" for a team.
        origin: The notebook or terminal that it was begun in, or "" where it is not known.
        digest: The digest of what was asked for, or "".
        steps: Of a recipe: its units by address, in the order in which they began.
        gates: Of a recipe: the open gates by address, oldest first.
        approvals: Of a recipe: the gates that were decided, in order.
        outputs: Of a completed recipe: its outputs by name.
        outlines: Of a recipe: the units that are known before they begin, by the address of the
            step that called it; "" is the run's own.
        next: Of a recipe that ended early: addresses of what a resume does first.
        is_paused: Whether the run is paused.
        is_saved: Whether all of it is on disk, as far as is known.
        seq: Journal position that this shows.
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
    ends: Mapping[str, ev.EndChecked] = field(default_factory=lambda: MappingProxyType({}))
    said: tuple[str, ...] = ()
    files: tuple[ev.FileInfo, ...] = ()
    file_count: int | None = None
    file_bytes: int = 0
    resumes: int = 0
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
    seq: int = 0

    def __repr__(self) -> str:
        """Return one line, however much was said."""
        return f"<RunView {self.session}/{self.turn}: {self.state}, {len(self.agents)} agents>"

    @property
    def round(self) -> int:
        """The furthest round that any agent has begun, at least 1."""
        return max([1, *(a.round for a in self.agents.values())])

    @property
    def votes(self) -> dict[str, int]:
        """Votes that count now, by agent voted for."""
        return dict(Counter(a.vote.target for a in self.agents.values() if a.vote))

    @property
    def best_agent(self) -> str:
        """The agent whose answer is the best available: the winner, else most votes, else longest.

        Source: MassGen's save_partial_turn (selected agent, else the longest answer, first wins
        ties); votes in between are its rule for timeouts.
        """
        answered = [a for a in self.agents.values() if a.answers]
        if any(a.id == self.winner for a in answered):
            return self.winner
        votes = self.votes
        best = max(answered, key=lambda a: (votes.get(a.id, 0), len(a.answer)), default=None)
        return best.id if best else ""

    @property
    def unheard(self) -> tuple[str, ...]:
        """Follow-up texts that no agent has read yet."""
        return self.said[max((a.heard for a in self.agents.values()), default=0) :]

    @property
    def tokens(self) -> int:
        """The tokens that all agents have used."""
        return sum(agent.tokens for agent in self.agents.values())

    @property
    def current_step(self) -> str:
        """The innermost and latest unit of a recipe that is running, or ""."""
        open_ = [step for step in self.steps.values() if not step.is_over]
        return max(open_, key=lambda step: (step.depth, step.started_at)).address if open_ else ""

    @property
    def pending(self) -> tuple[ev.PlannedUnit, ...]:
        """The units of a recipe that are known and have not begun, in order."""
        known = (unit for outline in self.outlines.values() for unit in outline)
        return tuple(unit for unit in known if unit.address not in self.steps)

    @property
    def workspaces(self) -> tuple[str, ...]:
        """Names of the turn's workspaces: a recipe has one, else each member of the team has.

        Those of agents that others called come behind.
        """
        own = (self.recipe,) if self.recipe else (k for k, a in self.agents.items() if not a.caller)
        return (*own, *(a.workspace for a in self.agents.values() if a.caller))

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended."""
        return self.ended_at is not None

    @property
    def ending(self) -> Ending:
        """How it ended; "" while it goes on.

        A turn is killed when its process ended without a word, whatever it was doing; "cancelled"
        is one of which no more is known: another program's.
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
        """Its state, or "awaiting" while it waits for a person."""
        return "awaiting" if self.status == "awaiting" else self.state

    @property
    def state(self) -> RunState:
        """How it stands, in the word that is shown everywhere."""
        match self.ending:
            case "":
                return "stopping" if self.stop else "running"
            case "killed" | "cancelled":
                return "stopped"
            case ending:
                return ending
