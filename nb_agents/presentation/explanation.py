"""Explains a turn from its journal, without a model: why it ended, its costs, its votes, and next.

The explanation is a pure function of the turn's view and events. Causes, remedies and commands are
the texts that the journal and the turn's card contain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest

from nb_agents import events as ev
from nb_agents.agents.voting import Coordination, apply, begin
from nb_agents.launch.resume_plan import Preview
from nb_agents.launch.run import Run
from nb_agents.nouns import dollars, token_count
from nb_agents.presentation import steps_card, text
from nb_agents.presentation.asking import CELL, EntryPoint, how_to_answer, question
from nb_agents.presentation.cards import next_commands, notes
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import TimelineEntry, fold_timeline

MAX_CAUSES = 10
MAX_SHOWN = 20
"""Maximum number of agents, and of answers whose votes are folded again."""
MAX_CHARS = 600
"""Maximum length of a cause, in characters."""

_DECIDING = (
    ev.AnswerGiven, ev.VoteCast, ev.UserMessage, ev.AgentFailed, ev.AgentEnded, ev.RoundTimedOut,
    ev.Abstained, ev.RoundStarted, ev.NoteSent, ev.PresentationStarted, ev.FinalAnswerGiven,
    ev.OrchestrationRestarted,
)  # fmt: skip
"""The events that a team's coordination depends on."""
_SPENDING = frozenset(
    {
        *(ev.TurnStarted, ev.ModelStarted, ev.UsageUpdated, ev.ModelFinished, ev.ModelFailed),
        *(ev.ModelCut, ev.ToolStarted, ev.ToolFinished, ev.TurnEnded),
    }
)
"""The events that start and end calls."""


@dataclass(frozen=True)
class AgentSpending:
    """Where an agent's time and money went.

    Attributes:
        agent: The agent.
        cost: US dollars, or None if the price of a model is unknown.
        tokens: The number of tokens.
        model_s: Seconds in model calls, including waits for the provider.
        tool_s: Seconds in tool calls.
        longest: The longest call, with its duration, or "".
    """

    agent: str
    cost: float | None
    tokens: int
    model_s: float
    tool_s: float
    longest: str


@dataclass(frozen=True)
class MovedVote:
    """A vote that changed after an answer.

    Attributes:
        voter: The agent that voted.
        before: The agent that it had voted for when the answer was given.
        after: The agent that it voted for later, or "" if it did not vote again.
        agent: The agent that gave the answer.
        number: The number of that agent's answer, starting at 1.
    """

    voter: str
    before: str
    after: str
    agent: str
    number: int

    def __str__(self) -> str:
        after = f"to {self.after}" if self.after else "and was not cast again"
        return (
            f"Answer {self.number} of {self.agent} moved the vote of {self.voter} from "
            f"{self.before} {after}."
        )


@dataclass(frozen=True)
class Explanation:
    """Why a turn ended as it did.

    Attributes:
        turn: The turn, as session/turn.
        state: The turn's state.
        causes: Sentences on why it ended or what it waits for, the most important first.
        spending: Where time and money went, the most expensive agent first.
        moved_votes: The votes that changed after an answer, in order.
        commands: Lines that continue, resume or decide, each with a comment or a command.
    """

    turn: str
    state: str
    causes: tuple[str, ...]
    spending: tuple[AgentSpending, ...] = ()
    moved_votes: tuple[MovedVote, ...] = ()
    commands: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        sections = {
            "": [f"{self.turn}: {self.state}"],
            "Why": self.causes,
            "Time and money": [_spending_line(each) for each in self.spending],
            "Votes": [str(each) for each in self.moved_votes],
            "Next": self.commands,
        }
        return "\n".join(
            line
            for title, lines in sections.items()
            for line in ([title] if title and lines else []) + [_indent(title, x) for x in lines]
        )


def _indent(title: str, line: str) -> str:
    return f"  {line}" if title else line


def _spending_line(each: AgentSpending) -> str:
    parts = [
        token_count(each.tokens),
        dollars(each.cost),
        f"models {text.seconds(each.model_s)}",
        f"tools {text.seconds(each.tool_s)}" if each.tool_s else "",
        f"longest: {each.longest}" if each.longest else "",
    ]
    return f"{each.agent}: {' · '.join(filter(None, parts))}"


def why(run: Run) -> Explanation:
    """Explain a run from its journal, without a model.

    Args:
        run: A run, live or over.

    Returns:
        Why it ended, where time and money went, which answer moved which vote, and the commands to
        continue. ``str()`` of it is the text of ``%agents why``.
    """
    return explain_run(run, CELL)


def explain_run(run: Run, entry_point: EntryPoint) -> Explanation:
    """Return the explanation of a run, with the commands of a user interface.

    Args:
        run: A run, live or over.
        entry_point: The syntax of the commands.
    """
    events = past_events(TurnPaths(run.path))
    return explain(run.view, events, text.shown_path(run.path), entry_point, run.preview)


def explain(
    view: RunView,
    events: Sequence[ev.Event],
    path: str,
    entry_point: EntryPoint = CELL,
    again: Preview | None = None,
) -> Explanation:
    """Return the explanation of a turn.

    Args:
        view: The view of the turn.
        events: The turn's events, preceded by those of the turns that it resumed.
        path: The turn's directory, as shown to the user.
        entry_point: The syntax of the commands.
        again: The preview of a resume, or None if it is unknown or there is nothing to resume.
    """
    calls = _calls(events)
    causes = dict.fromkeys(
        text.clip(each, MAX_CHARS) for each in _causes(view, calls, entry_point) if each.strip()
    )
    return Explanation(
        f"{view.session}/{view.turn}",
        view.state,
        tuple(causes)[:MAX_CAUSES],
        tuple(_spending(view, calls))[:MAX_SHOWN],
        () if view.has_steps else tuple(moved_votes(view, events)),
        tuple(_commands(view, path, entry_point, again)),
    )


# Why ----------------------------------------------------------------------------------------------


def _causes(
    view: RunView, calls: Sequence[TimelineEntry], entry_point: EntryPoint
) -> Iterator[str]:
    if not view.ending:
        yield from _waits(view)
    elif view.ending == "complete":
        winner = f" {view.winner} gave the final answer." if view.winner else ""
        yield f"It is complete.{winner} {_votes(view)}".strip()
    elif view.stop is not None or view.ending != "failed":
        yield f"{text.stopped_by(view, entry_point.writer)}{_during(calls)}."
    yield from (f"{each.name}: {each.text}" for each in _failed_steps(view))
    yield from _agent_errors(view)
    if view.ending == "failed" and view.stop is None and not view.has_steps:
        yield "No agent gave an answer."
    yield from (_waiting_agent(view) if view.ending else ())
    yield from notes(view, entry_point)


def _votes(view: RunView) -> str:
    return f"It got {text.votes(view)}." if view.votes else ""


def _waits(view: RunView) -> Iterator[str]:
    """Yield what a live turn waits for."""
    yield from (question(gate) for gate in view.gates.values())
    if view.stop is not None:
        yield text.waits_for(view)
    elif view.is_paused:
        yield "It is paused."
    elif view.wait is not None:
        yield f"{view.wait.describe(view.last_at).capitalize()}. {view.wait.error}"
    elif not view.gates:
        yield f"It is running. {text.progress(view)}"


def _during(calls: Sequence[TimelineEntry]) -> str:
    """Return the call that had been open longest when the turn ended, as a clause, or ""."""
    if not calls:
        return ""
    end = max(call.end for call in calls)
    cut = [call for call in calls if call.outcome == "cut" and call.end == end]
    longest = max(cut, key=lambda call: call.seconds, default=None)
    return f" during {_call(longest)}" if longest else ""


def _call(entry: TimelineEntry) -> str:
    noun = f"model call {entry.name}" if entry.kind == "model" else entry.name
    return f"{noun} of {entry.agent} ({text.seconds(entry.seconds)})"


def _failed_steps(view: RunView) -> tuple[steps_card.Value, ...]:
    return steps_card.steps_card(view).failed if view.has_steps and view.ending else ()


def _agent_errors(view: RunView) -> Iterator[str]:
    """Yield the errors of agents. The error of most agents comes first."""
    agents = defaultdict[str, list[str]](list)
    for agent in view.agents.values():
        if agent.error and not view.has_steps:
            agents[agent.error].append(agent.id)
    for error, names in sorted(agents.items(), key=lambda each: -len(each[1])):
        yield f"{text.clip(', '.join(names), 100)}: {error}"


def _waiting_agent(view: RunView) -> Iterator[str]:
    """Yield the waits for providers that were open when the turn ended."""
    for agent in view.agents.values():
        if agent.wait is not None:
            waited = agent.wait.describe(view.last_at)
            yield f"{agent.id} was {waited}: {agent.wait.error}"


# Time and money -----------------------------------------------------------------------------------


def _calls(events: Sequence[ev.Event]) -> list[TimelineEntry]:
    """Return the model and tool calls of a turn. A call that was cut ends with the last event."""
    timeline = fold_timeline(
        event
        for event, after in zip_longest(events, events[1:])
        if type(event) in _SPENDING or after is None or isinstance(after, ev.TurnStarted)
    )
    return [entry for entry in timeline if entry.kind in ("model", "tool")]


def _spending(view: RunView, calls: Sequence[TimelineEntry]) -> list[AgentSpending]:
    by_agent = defaultdict[str, list[TimelineEntry]](list)
    for call in calls:
        by_agent[call.agent].append(call)
    rows = []
    for agent in view.agents.values():
        own = by_agent[agent.id]
        longest = max(own, key=lambda call: call.seconds, default=None)
        model_s, tool_s = (
            sum(call.seconds for call in own if call.kind == kind) for kind in ("model", "tool")
        )
        name = _call(longest) if longest else ""
        rows.append(AgentSpending(agent.id, agent.cost, agent.tokens, model_s, tool_s, name))
    return sorted(rows, key=lambda row: (-(row.cost or 0.0), -row.tokens, -row.model_s))


# Votes --------------------------------------------------------------------------------------------


def moved_votes(view: RunView, events: Iterable[ev.Event]) -> list[MovedVote]:
    """Return the votes that changed after an answer.

    For each of the last `MAX_SHOWN` answers, coordination is folded again without the answer and
    without the votes of agents that had seen it.

    Args:
        view: The view of the turn.
        events: The events of the turn.
    """
    deciding = [event for event in events if isinstance(event, _DECIDING)]
    start = begin([agent.id for agent in view.agents.values() if not agent.caller])
    votes = _last_votes(start, deciding)
    answers = _numbered(deciding)
    moved = []
    for agent, number, index in answers[-MAX_SHOWN:]:
        without = _last_votes(start, _without(deciding, agent, number, index))
        moved += [
            MovedVote(voter, before, votes.get(voter, ""), agent, number)
            for voter, before in without.items()
            if votes.get(voter) != before and _was_open(start, deciding[:index], voter, before)
        ]
    return moved


def _last_votes(start: Coordination, events: Iterable[ev.Event]) -> dict[str, str]:
    return dict(reduce(apply, events, start).votes)


def _was_open(start: Coordination, before: Sequence[ev.Event], voter: str, target: str) -> bool:
    """Return whether a vote counted when the answer was given, so that the answer cleared it."""
    return _last_votes(start, before).get(voter) == target


def _numbered(events: Sequence[ev.Event]) -> list[tuple[str, int, int]]:
    """Return the agent, the number and the position of each answer."""
    numbers = defaultdict[str, int](int)
    answers = []
    for index, event in enumerate(events):
        if isinstance(event, ev.AnswerGiven):
            numbers[event.agent] += 1
            answers.append((event.agent, numbers[event.agent], index))
    return answers


def _without(events: Sequence[ev.Event], agent: str, number: int, index: int) -> Iterator[ev.Event]:
    """Yield the events without an answer, and without the votes of agents that had seen it."""
    for position, event in enumerate(events):
        has_seen = isinstance(event, ev.VoteCast) and event.seen.get(agent, 0) >= number
        if position != index and not (has_seen and position > index):
            yield event


# Next ---------------------------------------------------------------------------------------------


def _commands(
    view: RunView, path: str, entry_point: EntryPoint, again: Preview | None
) -> Iterator[str]:
    if not view.ending:
        for gate in view.gates.values():
            yield how_to_answer(gate, view, view.session, entry_point)
        turn = f"{view.session}/{view.turn}"
        yield entry_point.line("show", [turn])
        return
    yield from next_commands(view, path, again, entry_point)
