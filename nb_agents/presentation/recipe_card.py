"""The content of a recipe's card: its outputs, finished and interrupted steps, and what is next.

Pure functions of the view; none has markup but the Markdown of `recipe_text`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from nb_agents.launch.resume_plan import Preview
from nb_agents.presentation import text
from nb_agents.presentation.markdown import marked
from nb_agents.presentation.rows import UnitRow, called_by, decided, standing_of, to_do, units
from nb_agents.view.run_view import AgentView, RunView
from nb_agents.view.steps import StepView, holders_of, parent_of

MAX_FINAL = 20_000
"""Characters of the first output; the turn's files have all of it."""
MAX_VALUE = 4_000
"""Characters of another value."""
MAX_VALUES = 30
MAX_ROWS = 60
MAX_UNHEARD = 10
"""Agents' steps of a completed recipe whose words are shown though no output holds them."""


@dataclass(frozen=True)
class Value:
    """A value with its name: an output, what a step gave, or what is left of one that was cut.

    Attributes:
        name: Of the output or the step.
        text: The value, cut.
        kind: Markdown for what agents wrote, code for JSON and what commands wrote.
        note: What else is to be said, or "".
    """

    name: str
    text: str
    kind: Literal["markdown", "code"] = "markdown"
    note: str = ""

    @property
    def brief(self) -> str:
        """Its beginning, on one line."""
        return text.clip(self.text, 90)

    def cut(self, limit: int) -> Value:
        """Return it with its text cut to so many characters."""
        return replace(self, text=text.cut(self.text, limit))

    @property
    def is_thinking(self) -> bool:
        """Whether it is an agent's reasoning."""
        return self.note == "thinking"


@dataclass(frozen=True)
class RecipeCard:
    """A card's content.

    Attributes:
        outputs: Of a completed recipe; the one that stands for all is first.
        gates: What was decided, a sentence each.
        failed: The steps whose failure ended it.
        cut: The steps that were in hand when it ended, with what is left of them; behind each the
            words of the agents that were called in it.
        next: What a resume does first, a line each.
        later: How many units come after that.
        asked: The gates that a resume asks again, a sentence each.
        done: What the latest of the finished steps gave.
        done_count: How many have finished.
        aside: What agents wrote beside their steps' outputs, and their reasoning.
        heading: What there is to say of the steps before one looks at them.
        rows: All units.
    """

    outputs: tuple[Value, ...]
    gates: tuple[str, ...]
    failed: tuple[Value, ...]
    cut: tuple[Value, ...]
    next: tuple[str, ...]
    later: int
    asked: tuple[str, ...]
    done: tuple[Value, ...]
    done_count: int
    aside: tuple[Value, ...]
    heading: str
    rows: tuple[UnitRow, ...]


def recipe_card(view: RunView, again: Preview | None = None) -> RecipeCard:
    """Return what became of a recipe.

    Args:
        view: The turn.
        again: What a resume would do; None when it is not known, or there is nothing to resume.

    Returns:
        The card's content.
    """
    next_, later = _next(view, again)
    return RecipeCard(
        outputs=tuple(islice(_outputs(view), MAX_VALUES)),
        gates=tuple(
            f"The gate of {a.address} was {text.clip(decided(a), 400)}" for a in view.approvals
        ),
        failed=tuple(_failure(step) for step in _fatal(view)[:MAX_VALUES]),
        cut=tuple(islice(_left(view), MAX_VALUES)),
        next=next_,
        later=later,
        asked=tuple(_asked(view, again)),
        done=tuple(_given(step) for step in _done(view)[-MAX_VALUES:]),
        done_count=len(_done(view)),
        aside=tuple(islice(_aside(view), MAX_VALUES)),
        heading=f"What happened · {_counted(view)}",
        rows=tuple(units(view, view.last_at, MAX_ROWS)),
    )


def kept(view: RunView) -> list[str]:
    """Return what of an incomplete turn is kept: its steps and words, in numbers."""
    words = sum(bool(_left_of(step, view).text) for step in _cut_steps(view))
    words += sum(bool(agent.unsubmitted) for agent in view.agents.values() if agent.caller)
    return [
        text.count_any(len(_done(view)), "finished step"),
        text.count_any(words, "partial text"),
    ]


def where(view: RunView) -> str:
    """Return where an incomplete turn ended, or ""."""
    if view.gates:
        return f", at the gate of {', '.join(view.gates)}"
    cut = [step.address for step in _cut_steps(view)]
    more = f" and {len(cut) - 3} more" if len(cut) > 3 else ""
    return f", during {', '.join(cut[:3])}{more}" if cut else ""


def recipe_text(
    view: RunView, again: Preview | None = None, limit: int = MAX_FINAL, mark: str = ""
) -> str:
    """Return a recipe's card as Markdown that is readable as plain text; see `recipe_card`.

    Args:
        view: As for `recipe_card`, and so is the other.
        again: What a resume would do.
        limit: Characters of a value.
        mark: Stands before and after each value that agents wrote, in the order of the HTML.
    """
    card = recipe_card(view, again)

    def listed(title: str, values: Sequence[Value]) -> list[str]:
        return _listed(title, [each.cut(limit) for each in values], mark)

    if view.status == "completed":
        body = listed("", card.outputs)
    else:
        body = listed("Failed", card.failed) + listed("Cut off", card.cut)
        body += _bullets("Next", [*card.next, *([f"and {card.later} more"] * bool(card.later))])
        body += _bullets("A resume asks again", card.asked)
        left = card.done_count - len(card.done)
        body += listed(f"Complete (the last {len(card.done)})" if left else "Complete", card.done)
    body += listed("Also written", [each for each in card.aside if not each.is_thinking])
    body += _bullets("Gates", card.gates)
    return "\n".join([*body, f"{card.heading}:", "", *map(_row_line, card.rows), ""])


def _listed(title: str, values: Sequence[Value], mark: str) -> list[str]:
    lines = [f"#### {title}", ""] if title and values else []
    for value in values:
        note = f" ({value.note})" if value.note else ""
        lines += [f"**{value.name}**{note}", "", *_shown(value, mark), ""]
    return lines


def _shown(value: Value, mark: str) -> list[str]:
    if value.kind == "markdown":
        return [marked(value.text, mark)] if value.text else []
    return [f"    {line}" for line in value.text.splitlines()]


def _bullets(title: str, lines: Sequence[str]) -> list[str]:
    return [f"#### {title}", "", *(f"- {line}" for line in lines), ""] if lines else []


def _row_line(row: UnitRow) -> str:
    chip = "to come" if row.is_pending else row.chip
    parts = [row.name, row.does, chip, took(row), row.numbers]
    return f"{'  ' * row.depth}- {' · '.join(filter(None, parts))}"


def took(row: UnitRow) -> str:
    """Return how long a unit took, or ""."""
    if row.seconds is None:
        return ""
    return f"{row.seconds:.1f} s" if row.seconds < 10 else text.seconds(row.seconds)


# What a unit gave and what is left of it --------------------------------------------------------


def _outputs(view: RunView) -> Iterator[Value]:
    if not view.outputs and (given := [step for step in _done(view) if step.output]):
        yield replace(_given(given[-1]), text=text.cut(view.answer, MAX_FINAL))
    # As in `nb_agents.recipes.output.final_text`: without that name, the last one stands for all.
    first = ["final_output"] if "final_output" in view.outputs else list(view.outputs)[-1:]
    names = sorted(view.outputs, key=lambda name: name not in first)
    for place, name in enumerate(names):
        yield _value(name, view.outputs[name], MAX_FINAL if place == 0 else MAX_VALUE)


def _value(name: str, value: Any, limit: int) -> Value:
    if isinstance(value, str):
        return Value(name, text.cut(value, limit))
    shown = json.dumps(value, ensure_ascii=False, indent=2)
    return Value(name, text.cut(shown, limit), "code")


def _given(step: StepView) -> Value:
    is_text = step.unit == "agent" and not str(step.output or "").lstrip().startswith(("{", "["))
    words = text.cut(str(step.output or "").strip("\n"), MAX_VALUE)
    code = f"exit code {step.exit_code}" if step.exit_code else ""
    return Value(step.address, words, "markdown" if is_text else "code", code)


def _failure(step: StepView) -> Value:
    tries = f"tried {step.attempt} times" if step.attempt > 1 else ""
    return Value(step.address, text.cut(step.why, MAX_VALUE), "code", tries)


def _left(view: RunView) -> Iterator[Value]:
    """Yield what is left of the steps that were cut, and of agents that any step called."""
    called = called_by(view)
    for step in _leaves(view):
        if not step.is_over:
            yield _left_of(step, view)
        for agent in _below(step.address, called):
            # What a step that is over was given is in what it gave itself.
            words = agent.unsubmitted or ("" if step.is_over else agent.returned)
            if words:
                note = f"{agent.model} · {standing_of(agent, view, view.last_at)[0]}"
                yield Value(agent.id, text.cut(words, MAX_VALUE), "markdown", note)


def _aside(view: RunView) -> Iterator[Value]:
    """Yield what agents wrote and no output holds, and their reasoning."""
    yield from map(_given, _unheard(view))
    for agent in view.agents.values():
        step = view.steps.get(agent.id)
        if step is not None and step.is_over and agent.unsubmitted:
            yield Value(agent.id, text.cut(agent.unsubmitted, MAX_VALUE), "markdown", "not used")
        if agent.thoughts:
            yield Value(agent.id, text.cut(agent.thoughts, MAX_VALUE), "markdown", "thinking")


def _unheard(view: RunView) -> Iterator[StepView]:
    """Yield the last agents' steps of a completed recipe whose words are in none of its outputs."""
    from nb_agents.recipes.output import value_of  # what a team never needs

    held = {*_parts(view.outputs)} if view.outputs else {json.dumps(view.answer.strip())}
    wrote = [s for s in _done(view) if s.unit == "agent" and str(s.output or "").strip()]
    for step in wrote[-MAX_UNHEARD:]:
        values = (value_of(str(step.output), sought) for sought in (False, True))
        if view.status == "completed" and held.isdisjoint(map(_canonical, values)):
            yield step


def _parts(value: Any) -> Iterator[str]:
    """Yield a value and all that it holds, as JSON."""
    yield _canonical(value)
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(each)


def _canonical(value: Any) -> str:
    plain = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, sort_keys=True)


def _below(caller: str, called: Mapping[str, Sequence[AgentView]]) -> Iterator[AgentView]:
    for agent in called.get(caller, ()):
        yield agent
        yield from _below(agent.id, called)


def _left_of(step: StepView, view: RunView) -> Value:
    if step.status == "stopped":
        return Value(step.address, text.cut(step.why, MAX_VALUE), "code", "waited to try again")
    agent = view.agents.get(step.address)
    if agent is None:
        return Value(step.address, text.cut(step.tail.strip("\n"), MAX_VALUE), "code", "command")
    words = agent.unsubmitted
    note = " · ".join(filter(None, [step.worker, step.model]))
    return Value(step.address, text.cut(words, MAX_VALUE), "markdown", note)


# Which units ------------------------------------------------------------------------------------


def _leaves(view: RunView) -> Iterator[StepView]:
    return (step for step in view.steps.values() if step.unit in ("agent", "bash"))


def _done(view: RunView) -> list[StepView]:
    return [step for step in _leaves(view) if step.status == "ok"]


def _cut_steps(view: RunView) -> list[StepView]:
    return [step for step in _leaves(view) if not step.is_over]


def _fatal(view: RunView) -> list[StepView]:
    """Find the steps that ended a failed recipe: all that holds them has failed with them."""
    if view.status != "failed":
        return []
    failed = {address for address, step in view.steps.items() if step.status == "failed"}
    holders = {parent_of(address) for address in failed}
    ends = [view.steps[a] for a in failed - holders if failed.issuperset(holders_of(a))]
    # What a recipe tolerates has failed before: of steps in no stage, the last one ended it.
    last = max((step.ended_at or 0.0 for step in ends), default=0.0)
    return [step for step in ends if parent_of(step.address) or step.ended_at == last]


def _denied(view: RunView) -> list[str]:
    """Return the denied gates that ended the turn, or that a resume reaches again."""
    denied = [given.address for given in view.approvals if not given.approved]
    ended = view.stop.gate if view.stop else ""
    return [gate for gate in denied if gate in view.steps or gate == ended]


def _next(view: RunView, again: Preview | None) -> tuple[tuple[str, ...], int]:
    """Return what a resume begins with, and how many of the known units come after."""
    if view.status == "completed":
        return (), 0
    to_come = {u.address: f"{u.address} ({to_do(u)})" for u in view.pending if u.unit != "stage"}
    first = again.recipe.next[:MAX_VALUES] if again and again.recipe else view.next
    lines = tuple(to_come.get(address) or _begun(view, address) for address in first)
    return lines, len(set(to_come) - set(first))


def _begun(view: RunView, address: str) -> str:
    """Return what a resume does with a unit that had begun."""
    step = view.steps.get(address)
    if step is not None and step.unit == "stage":
        return f"the gate of {address}"
    return f"{address} again" if step is not None and step.unit in ("agent", "bash") else address


def _asked(view: RunView, again: Preview | None) -> Iterator[str]:
    """Yield the gates that a resume asks again: of stages, and of calls that need approval."""
    stages = again.recipe.gates if again and again.recipe else None
    said = {g.address: f"{g.address}: {text.clip(g.prompt, 400)}" for g in view.gates.values()}
    said |= {address: f"{address}, which was denied" for address in _denied(view)}
    for address, line in said.items():
        if stages is None or address in stages or address not in view.steps:
            yield line
    yield from (address for address in stages or () if address not in said)


def _counted(view: RunView) -> str:
    of = {"ok": "complete", "failed": "failed", "skipped": "skipped"}
    steps = [s for s in view.steps.values() if s.unit in ("agent", "bash") or s.status == "skipped"]
    counts = [(sum(s.status == status for s in steps), word) for status, word in of.items()]
    counts.append((len(_cut_steps(view)), "cut"))
    said = ", ".join(f"{number} {word}" for number, word in counts if number)
    return f"steps: {said}" if said else "no step began"
