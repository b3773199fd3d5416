"""Computes the card of a turn with steps: outputs, finished and interrupted steps, next steps.

Pure functions of the view. Only `steps_text` returns markup.
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
from nb_agents.presentation.rows import (
    UnitRow,
    called_agent_chip,
    called_by,
    decision_text,
    planned_text,
    units,
)
from nb_agents.view.run_view import AgentView, RunView
from nb_agents.view.step_values import value_of
from nb_agents.view.steps import (
    GateView,
    StepView,
    gate_title,
    holders_of,
    is_stage_gate,
    parent_of,
)

MAX_FINAL = 20_000
"""Maximum length of the first output, in characters. The turn's files have all of it."""
MAX_VALUE = 4_000
"""Maximum length of other values, in characters."""
MAX_VALUES = 30
MAX_ROWS = 60
MAX_UNUSED_STEPS = 10
"""Maximum number of agent steps to show whose text is in none of its outputs."""


@dataclass(frozen=True)
class Value:
    """A named value: an output of the turn, or the output or partial text of a step.

    Attributes:
        name: The name of the output or the address of the step.
        text: The value, truncated to its limit.
        kind: "markdown" for text from agents, "code" for JSON and output of commands.
        note: A remark, or "".
    """

    name: str
    text: str
    kind: Literal["markdown", "code"] = "markdown"
    note: str = ""

    @property
    def brief(self) -> str:
        """The beginning of the value, on one line."""
        return text.clip(self.text, 90)

    def cut(self, limit: int) -> Value:
        """Return a copy with its text truncated to a number of characters."""
        return replace(self, text=text.cut(self.text, limit))

    @property
    def is_thinking(self) -> bool:
        """Whether the value is an agent's reasoning."""
        return self.note == "thinking"


@dataclass(frozen=True)
class StepsCard:
    """The content of the card of a turn with steps.

    Attributes:
        outputs: The outputs of a complete turn. The main output comes first.
        gates: The decisions about gates, one sentence each.
        failed: The steps that made the turn fail.
        cut: The steps that were interrupted, with their partial text. Each is followed by the text
            of the agents called in it.
        next: What a resume does first, one line per unit.
        later: Number of units after that.
        asked: The gates that ask again when the run is resumed, one sentence each.
        done: The outputs of the latest finished steps.
        done_count: Number of finished steps.
        aside: Text from agents that is not part of an output, and their reasoning.
        heading: A summary of the steps.
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


def steps_card(view: RunView, again: Preview | None = None) -> StepsCard:
    """Return the content of the card of a turn with steps.

    Args:
        view: The view of the turn.
        again: The preview of a resume, or None if unknown, or if there is nothing to resume.
    """
    next_, later = _next(view, again)
    return StepsCard(
        outputs=tuple(islice(_outputs(view), MAX_VALUES)),
        gates=tuple(
            f"{_sentence(gate_title(a.address))} was {text.clip(decision_text(a), 400)}"
            for a in view.approvals
        ),
        failed=tuple(_failure(step) for step in _fatal(view)[:MAX_VALUES]),
        cut=tuple(islice(_partial_values(view), MAX_VALUES)),
        next=next_,
        later=later,
        asked=tuple(_gates_to_ask(view, again)),
        done=tuple(_output_of(step) for step in _finished_steps(view)[-MAX_VALUES:]),
        done_count=len(_finished_steps(view)),
        aside=tuple(islice(_other_text(view), MAX_VALUES)),
        heading=f"What happened · {_step_counts(view)}",
        rows=tuple(units(view, view.last_at, MAX_ROWS)),
    )


def work_counts(view: RunView) -> list[str]:
    """Return the numbers of finished steps and partial texts of an incomplete turn."""
    partials = sum(bool(_partial_value(step, view).text) for step in _cut_steps(view))
    partials += sum(bool(agent.unsubmitted) for agent in view.agents.values() if agent.caller)
    return [
        text.count_any(len(_finished_steps(view)), "finished step"),
        text.count_any(partials, "partial text"),
    ]


def end_location(view: RunView) -> str:
    """Return the gate or steps at which an incomplete turn ended, as a clause, or ""."""
    if view.gates:
        return f", at the gate of {', '.join(view.gates)}"
    cut = [step.address for step in _cut_steps(view)]
    more = f" and {len(cut) - 3} more" if len(cut) > 3 else ""
    return f", during {', '.join(cut[:3])}{more}" if cut else ""


def steps_text(
    view: RunView, again: Preview | None = None, limit: int = MAX_FINAL, mark: str = ""
) -> str:
    """Return the card of a turn with steps as Markdown that is readable as plain text.

    Args:
        view: The view of the turn.
        again: The preview of a resume, or None if unknown, or if there is nothing to resume.
        limit: Maximum length of a value, in characters.
        mark: A separator to insert before and after each agent's text, in the order of the HTML.
    """
    card = steps_card(view, again)

    def value_lines(title: str, values: Sequence[Value]) -> list[str]:
        return _list_values(title, [each.cut(limit) for each in values], mark)

    if view.status == "completed":
        body = value_lines("", card.outputs)
    else:
        body = value_lines("Failed", card.failed) + value_lines("Cut off", card.cut)
        body += _bullets("Next", [*card.next, *([f"and {card.later} more"] * bool(card.later))])
        body += _bullets("A resume asks again", card.asked)
        left_out_count = card.done_count - len(card.done)
        body += value_lines(
            f"Complete (the last {len(card.done)})" if left_out_count else "Complete", card.done
        )
    body += value_lines("Also written", [each for each in card.aside if not each.is_thinking])
    body += _bullets("Gates", card.gates)
    return "\n".join([*body, f"{card.heading}:", "", *map(_row_line, card.rows), ""])


def _list_values(title: str, values: Sequence[Value], mark: str) -> list[str]:
    lines = [f"#### {title}", ""] if title and values else []
    for value in values:
        note = f" ({value.note})" if value.note else ""
        lines += [f"**{value.name}**{note}", "", *_value_lines(value, mark), ""]
    return lines


def _value_lines(value: Value, mark: str) -> list[str]:
    if value.kind == "markdown":
        return [marked(value.text, mark)] if value.text else []
    return [f"    {line}" for line in value.text.splitlines()]


def _bullets(title: str, lines: Sequence[str]) -> list[str]:
    return [f"#### {title}", "", *(f"- {line}" for line in lines), ""] if lines else []


def _row_line(row: UnitRow) -> str:
    chip = "to come" if row.is_pending else row.chip
    parts = [row.name, row.does, chip, duration_text(row), row.numbers]
    return f"{'  ' * row.depth}- {' · '.join(filter(None, parts))}"


def duration_text(row: UnitRow) -> str:
    """Return a unit's duration as text, or ""."""
    if row.seconds is None:
        return ""
    return f"{row.seconds:.1f} s" if row.seconds < 10 else text.seconds(row.seconds)


# Outputs and partial text of units --------------------------------------------------------------


def _outputs(view: RunView) -> Iterator[Value]:
    if not view.outputs and (steps := [step for step in _finished_steps(view) if step.output]):
        yield replace(_output_of(steps[-1]), text=text.cut(view.answer, MAX_FINAL))
    # The one named "final_output", or else the last one, is first.
    first = ["final_output"] if "final_output" in view.outputs else list(view.outputs)[-1:]
    names = sorted(view.outputs, key=lambda name: name not in first)
    for index, name in enumerate(names):
        yield _value(name, view.outputs[name], MAX_FINAL if index == 0 else MAX_VALUE)


def _value(name: str, value: Any, limit: int) -> Value:
    if isinstance(value, str):
        return Value(name, text.cut(value, limit))
    value_text = json.dumps(value, ensure_ascii=False, indent=2)
    return Value(name, text.cut(value_text, limit), "code")


def _output_of(step: StepView) -> Value:
    is_text = step.unit == "agent" and not str(step.output or "").lstrip().startswith(("{", "["))
    words = text.cut(str(step.output or "").strip("\n"), MAX_VALUE)
    code = f"exit code {step.exit_code}" if step.exit_code else ""
    return Value(step.address, words, "markdown" if is_text else "code", code)


def _failure(step: StepView) -> Value:
    tries = f"tried {step.attempt} times" if step.attempt > 1 else ""
    return Value(step.address, text.cut(step.why, MAX_VALUE), "code", tries)


def _partial_values(view: RunView) -> Iterator[Value]:
    """Yield the partial text of interrupted steps, and the text of agents called in any step."""
    sub_agents = called_by(view)
    for step in _leaves(view):
        if not step.is_over:
            yield _partial_value(step, view)
        for agent in _nested_agents(step.address, sub_agents):
            # Results returned to a finished step are part of that step's output.
            words = agent.unsubmitted or ("" if step.is_over else agent.returned)
            if words:
                note = f"{agent.model} · {called_agent_chip(agent, view, view.last_at)[0]}"
                yield Value(agent.id, text.cut(words, MAX_VALUE), "markdown", note)


def _other_text(view: RunView) -> Iterator[Value]:
    """Yield text from agents that is not part of an output, and their reasoning."""
    yield from map(_output_of, _unused_steps(view))
    for agent in view.agents.values():
        step = view.steps.get(agent.id)
        if step is not None and step.is_over and agent.unsubmitted:
            yield Value(agent.id, text.cut(agent.unsubmitted, MAX_VALUE), "markdown", "not used")
        if agent.thoughts:
            yield Value(agent.id, text.cut(agent.thoughts, MAX_VALUE), "markdown", "thinking")


def _unused_steps(view: RunView) -> Iterator[StepView]:
    """Yield the last agent steps whose text is not part of the outputs.

    Yields nothing unless the turn is complete.
    """
    used = {*_parts(view.outputs)} if view.outputs else {json.dumps(view.answer.strip())}
    wrote = [s for s in _finished_steps(view) if s.unit == "agent" and str(s.output or "").strip()]
    for step in wrote[-MAX_UNUSED_STEPS:]:
        values = (value_of(str(step.output), parses) for parses in (False, True))
        if view.status == "completed" and used.isdisjoint(map(_canonical, values)):
            yield step


def _parts(value: Any) -> Iterator[str]:
    """Yield a value and everything nested in it, as JSON."""
    yield _canonical(value)
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(each)


def _canonical(value: Any) -> str:
    plain = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain, sort_keys=True)


def _nested_agents(
    caller: str, sub_agents: Mapping[str, Sequence[AgentView]]
) -> Iterator[AgentView]:
    for agent in sub_agents.get(caller, ()):
        yield agent
        yield from _nested_agents(agent.id, sub_agents)


def _partial_value(step: StepView, view: RunView) -> Value:
    if step.status == "stopped":
        return Value(step.address, text.cut(step.why, MAX_VALUE), "code", "waited for a retry")
    agent = view.agents.get(step.address)
    if agent is None:
        return Value(step.address, text.cut(step.tail.strip("\n"), MAX_VALUE), "code", "command")
    words = agent.unsubmitted
    note = " · ".join(filter(None, [step.worker, step.model]))
    return Value(step.address, text.cut(words, MAX_VALUE), "markdown", note)


# Selections of units ----------------------------------------------------------------------------


def _leaves(view: RunView) -> Iterator[StepView]:
    return (step for step in view.steps.values() if step.unit in ("agent", "bash"))


def _finished_steps(view: RunView) -> list[StepView]:
    return [step for step in _leaves(view) if step.status == "ok"]


def _cut_steps(view: RunView) -> list[StepView]:
    return [step for step in _leaves(view) if not step.is_over]


def _fatal(view: RunView) -> list[StepView]:
    """Return the steps that made a turn fail. All units around them have failed as well."""
    if view.status != "failed":
        return []
    failed = {address for address, step in view.steps.items() if step.status == "failed"}
    holders = {parent_of(address) for address in failed}
    ends = [view.steps[a] for a in failed - holders if failed.issuperset(holders_of(a))]
    # Tolerated failures came earlier. Of the steps outside stages, the last one was fatal.
    last = max((step.ended_at or 0.0 for step in ends), default=0.0)
    return [step for step in ends if parent_of(step.address) or step.ended_at == last]


def _denied(view: RunView) -> list[str]:
    """Return the denied gates that ended the turn, or that a resume reaches again."""
    denied = [approval.address for approval in view.approvals if not approval.approved]
    stopping_gate = view.stop.gate if view.stop else ""
    return [gate for gate in denied if gate in view.steps or gate == stopping_gate]


def _next(view: RunView, again: Preview | None) -> tuple[tuple[str, ...], int]:
    """Return what a resume does first, and the number of known units after that."""
    if view.status == "completed":
        return (), 0
    to_come = {
        u.address: f"{u.address} ({planned_text(u)})" for u in view.pending if u.unit != "stage"
    }
    first = again.recipe.next[:MAX_VALUES] if again and again.recipe else view.next
    lines = tuple(to_come.get(address) or _resumed_unit(view, address) for address in first)
    return lines, len(set(to_come) - set(first))


def _resumed_unit(view: RunView, address: str) -> str:
    """Return what a resume does with a unit that had started."""
    step = view.steps.get(address)
    if step is not None and step.unit == "stage":
        return f"the gate of {address}"
    return f"{address} again" if step is not None and step.unit in ("agent", "bash") else address


def _gates_to_ask(view: RunView, again: Preview | None) -> Iterator[str]:
    """Yield the gates of stages and calls that ask again when the run is resumed."""
    stages = again.recipe.gates if again and again.recipe else None
    lines = {g.address: _open_gate(g) for g in view.gates.values()}
    lines |= {each: f"{_gate_name(each)}, which was denied" for each in _denied(view)}
    for address, line in lines.items():
        if stages is None or address in stages or address not in view.steps:
            yield line
    yield from (address for address in stages or () if address not in lines)


def _open_gate(gate: GateView) -> str:
    prompt = text.clip(gate.prompt, 400)
    return f"{gate.address}: {prompt}" if is_stage_gate(gate.address) else prompt


def _gate_name(address: str) -> str:
    return address if is_stage_gate(address) else gate_title(address)


def _sentence(title: str) -> str:
    return f"The {title[4:]}" if title.startswith("the ") else title


def _step_counts(view: RunView) -> str:
    words = {"ok": "complete", "failed": "failed", "skipped": "skipped"}
    steps = [s for s in view.steps.values() if s.unit in ("agent", "bash") or s.status == "skipped"]
    counts = [(sum(s.status == status for s in steps), word) for status, word in words.items()]
    counts.append((len(_cut_steps(view)), "cut"))
    counts_text = ", ".join(f"{number} {word}" for number, word in counts if number)
    return f"steps: {counts_text}" if counts_text else "no step started"
