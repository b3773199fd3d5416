"""The panel's row of an agent, and a recipe's units as a tree with words, for panel and card.

What is to come is in the tree as far as it is known. Of a loop, the iterations that are over are
shown by their number alone: there may be thousands. An agent that another one called stands below
its caller, as a unit does below what it is in. Pure functions of the view.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nb_agents.config.decision_tools import VOTE
from nb_agents.events import PlannedUnit
from nb_agents.presentation import text
from nb_agents.presentation.panel_types import AgentRow, Asked, RowStop, Tone
from nb_agents.tools.policy import ApprovalDecision
from nb_agents.view.run_view import AgentView, RunView, call_so_far
from nb_agents.view.steps import ApprovalView, GateView, StepView, parent_of

MAX_SAYS = 160
"""Characters of the last words on a row."""

_TONES: dict[str, Tone] = {
    "answered": "ok",
    "voted": "ok",
    "failed": "err",
    "stopped": "cut",
    "waiting": "ing",
}

SILENT_AFTER_S = 30.0
"""Silence of a model from which on its row says so."""

MAX_ITERATIONS = 8
"""Iterations of one loop that have a row."""
MAX_DEPTH = 100
"""Units within each other that have a row."""
MAX_ASKS = 300
"""Characters of a prompt or a command."""

_INDEX = re.compile(r"\[([0-9]{1,9})\]$")


def agent_row(agent: AgentView, view: RunView, now: float) -> AgentRow:
    """Return the row of a team's agent."""
    silent = silence(agent, now)
    row: AgentRow = {
        "id": agent.id,
        "model": agent.model,
        "chip": silent or doing(agent, view),
        "tone": "ing" if silent else _TONES.get(agent.phase, "run"),
        "says": says(agent),
        "writing": agent.in_flight and agent.phase == "writing",
        "numbers": numbers(agent.tokens, agent.cost),
        "stop": stop_offer(agent, view),
    }
    # No agent has a depth while none calls another.
    if any(each.caller for each in view.agents.values()):
        row |= {"depth": agent.depth, "name": agent.id.rpartition("/")[2]}
    return row


def stop_offer(agent: AgentView, view: RunView) -> RowStop | None:
    """Return what the row's own Stop button asks for; None for a row without one."""
    is_live = agent.outcome is None and agent.phase not in ("voted", "failed", "stopped")
    if view.ending or view.stop or len(view.agents) == 1 or not is_live:
        return None
    return None if agent.stop == "immediate" else {"now": agent.stop == "requested"}


def numbers(tokens: int, cost: float | None) -> str:
    """Return tokens and cost in words, "" for none; an unknown price is left out."""
    return " · ".join(filter(None, [text.tokens(tokens), text.cost(cost)])) if tokens else ""


def doing(agent: AgentView, view: RunView) -> str:
    """Return an agent's activity in a word."""
    match agent.phase:
        case "answered":
            return "answered" if len(agent.answers) <= 1 else f"answered ×{len(agent.answers)}"
        case "voted":
            return f"voted for {agent.vote.target}" if agent.vote else "voted"
        case "tool":
            return agent.tool
        case "writing" if agent.partial_call:
            return "voting" if agent.tool == VOTE.name else agent.tool
        case _:
            if view.winner == agent.id and not view.is_over and agent.phase != "stopped":
                return "presenting"
            return agent.phase


def silence(agent: AgentView, now: float) -> str:
    """Return how long an agent's model has been silent, once that is long; else ""."""
    silent_s = now - agent.streamed_at
    if not (agent.in_flight and agent.streamed_at) or silent_s < SILENT_AFTER_S:
        return ""
    return f"silent for {text.seconds(silent_s)}"


def says(agent: AgentView) -> str:
    """Return an agent's last words."""
    if agent.error:
        return text.clip(agent.error, MAX_SAYS)
    if agent.phase == "tool":
        return text.clip(agent.tool_tail, MAX_SAYS, tail=True) or agent.tool_summary
    if agent.phase == "writing" and agent.partial_call:
        return text.clip(call_so_far(agent.partial_call), MAX_SAYS, tail=True)
    if agent.partial:
        return text.clip(agent.partial, MAX_SAYS, tail=True)
    if agent.vote:
        return text.clip(agent.vote.reason, MAX_SAYS)
    return text.clip(agent.returned or agent.answer, MAX_SAYS)


@dataclass(frozen=True)
class UnitRow:
    """A row of the tree: a unit, or an agent that another one called.

    Attributes:
        address: Its address.
        name: Its name among its siblings.
        depth: The number of rows that it is nested in.
        does: Who or what does it.
        chip: Its status in words.
        tone: Its status as a colour.
        says: Its last words: streamed, written by its command, given, or why it failed.
        is_writing: Whether the words are being written.
        numbers: Tokens and cost, of all that is in it.
        asks: Its prompt or command, cut.
        is_pending: Whether it has not begun.
        seconds: How long it took, or None.
        stop: What its own Stop button asks for, or None; an agent that was called may have one.
    """

    address: str
    name: str
    depth: int
    does: str = ""
    chip: str = ""
    tone: Tone = "run"
    says: str = ""
    is_writing: bool = False
    numbers: str = ""
    asks: str = ""
    is_pending: bool = False
    seconds: float | None = None
    stop: RowStop | None = None


def units(view: RunView, now: float, limit: int) -> list[UnitRow]:
    """List a recipe's units as they stand, each before those in it.

    Args:
        view: The turn.
        now: Unix seconds.
        limit: How many at most; those that are done with all in them are left out first, the
            innermost before the others, then the last.

    Returns:
        The units; the last row says how many were left out.
    """
    rows = list(_UnitRows(view, now).rows())
    if len(rows) <= limit:
        return rows
    dropped = set(_done(rows)[: len(rows) - limit + 1])
    kept = [row for row in rows if row.address not in dropped][: limit - 1]
    return [*kept, _more("", 0, f"{len(rows) - len(kept)} more are not shown")]


def _done(rows: Sequence[UnitRow]) -> list[str]:
    """Return the addresses of what is done with everything in it, the innermost first."""
    around: list[str] = []
    open_: set[str] = set()
    for row in rows:
        around[row.depth :] = [row.address]
        if row.chip not in ("complete", "skipped"):
            open_.update(around)
    done = [row for row in rows if row.depth and row.address not in open_]
    return [row.address for row in sorted(done, key=lambda row: -row.depth)]


def name_of(address: str) -> str:
    """Return the last part of an address; an iteration's has its number, from 1.

    Example:
        >>> name_of("checks/review[2]"), name_of("checks/review[2]/sum")
        ('review 3', 'sum')
    """
    last = address.rpartition("/")[2]
    return _INDEX.sub(lambda found: f" {int(found[1]) + 1}", last)


class _UnitRows:
    def __init__(self, view: RunView, now: float) -> None:
        self._view = view
        self._now = now
        self._planned = {u.address: u for units in view.outlines.values() for u in units}
        self._children = _children([*self._planned, *view.steps])
        self._called = called_by(view)
        self._spent = _spent(view)
        self._approvals = {given.address: given for given in view.approvals}

    def rows(self, address: str = "", depth: int = 0) -> Iterator[UnitRow]:
        """Yield the rows below an address."""
        if depth > MAX_DEPTH and self._children.get(address):
            yield _more(address, depth, "what is in here is not shown")
            return
        children, left = self._children.get(address, []), 0
        within = self._view.steps.get(address)
        if within is not None and within.unit in ("foreach", "while"):
            shown = self._open_or_failed(children)
            children, left = sorted(shown[:MAX_ITERATIONS], key=_index), len(shown) - MAX_ITERATIONS
        elif within is not None and within.is_over:
            # What has not begun in it never will.
            children = [child for child in children if child in self._view.steps]
        for child in children:
            yield self._row(child, depth)
            yield from self._called_rows(child, depth + 1)
            yield from self.rows(child, depth + 1)
        if left > 0:
            yield _more(address, depth, f"{left} more under way or failed")

    def _called_rows(self, caller: str, depth: int) -> Iterator[UnitRow]:
        for agent in self._called.get(caller, ()):
            yield UnitRow(
                agent.id,
                name_of(agent.id),
                depth,
                agent.model,
                *standing_of(agent, self._view, self._now),
                says=says(agent),
                is_writing=agent.in_flight and agent.phase == "writing",
                numbers=numbers(*self._spent.get(agent.id, (0, 0.0))),
                stop=stop_offer(agent, self._view),
            )
            if depth < MAX_DEPTH:
                yield from self._called_rows(agent.id, depth + 1)

    def _open_or_failed(self, iterations: list[str]) -> list[str]:
        steps = self._view.steps
        return [i for i in iterations if steps[i].status not in ("ok", "skipped")]

    def _row(self, address: str, depth: int) -> UnitRow:
        step, planned = self._view.steps.get(address), self._planned.get(address)
        tokens, cost = self._spent.get(address, (0, 0.0))
        if step is None:
            assert planned is not None
            return UnitRow(
                address, name_of(address), depth, to_do(planned), tone="cut", is_pending=True
            )
        return UnitRow(
            address,
            name_of(address),
            depth,
            _does(step, planned),
            *self._standing(step),
            says=self._says(step),
            is_writing=self._is_writing(step),
            numbers=numbers(tokens, cost),
            asks=text.clip(step.asks, MAX_ASKS),
            seconds=max(0.0, step.ended_at - step.started_at)
            if step.ended_at and step.started_at
            else None,
        )

    def _standing(self, step: StepView) -> tuple[str, Tone]:
        """Return the chip's words and tone."""
        if step.status == "ok":
            return "complete", "ok"
        if step.status == "failed":
            return "failed", "err"
        if step.status == "skipped":
            return "skipped", "cut"
        if self._view.ending:
            return self._cut(step), "cut"
        if step.address in self._view.gates:
            return "awaiting approval", "ing"
        if step.status == "retrying":
            return self._waiting(step), "ing"
        again = f" ({step.attempt} of {step.attempts})" if step.attempt > 1 else ""
        agent = self._view.agents.get(step.address)
        if agent and (silent := silence(agent, self._now)):
            return silent + again, "ing"
        return self._doing(step) + again, "run"

    def _cut(self, step: StepView) -> str:
        given = self._approvals.get(step.address)
        if given is not None and not given.approved:
            return "denied"
        if step.unit not in ("agent", "bash"):
            return "not finished"
        return "stopped" if step.status == "stopped" else "cut"

    def _waiting(self, step: StepView) -> str:
        tries = f"({step.attempt + 1} of {step.attempts})"
        if step.retry_at is None or step.retry_at <= self._now:
            return f"tries again {tries}"
        return f"retry in {step.retry_at - self._now:.0f} s {tries}"

    def _doing(self, step: StepView) -> str:
        if step.unit == "foreach" and step.total is not None:
            return f"{self._counts(step)['ok']} of {step.total}"
        agent = self._view.agents.get(step.address)
        if agent is None or agent.phase in ("answered", "failed", "stopped"):
            return "running"
        return doing(agent, self._view)

    def _counts(self, step: StepView) -> Counter[str]:
        known = self._view.steps
        return Counter(known[each].status for each in self._children.get(step.address, []))

    def _is_writing(self, step: StepView) -> bool:
        agent = self._view.agents.get(step.address)
        return bool(agent and agent.in_flight and agent.phase == "writing")

    def _says(self, step: StepView) -> str:
        if step.unit in ("foreach", "while") and step.status != "skipped":
            return step.why and text.clip(step.why, MAX_SAYS) or _counted(self._counts(step))
        if step.why and step.status not in ("running", "cut"):
            return text.clip(step.why, MAX_SAYS)
        if step.address in self._view.gates:
            return text.clip(self._view.gates[step.address].prompt, MAX_SAYS)
        if given := self._approvals.get(step.address):
            return text.clip(decided(given), MAX_SAYS)
        if step.is_over:
            code = f"exit code {step.exit_code} · " * bool(step.exit_code)
            return text.clip(f"{code}{step.output or ''}", MAX_SAYS)
        agent = self._view.agents.get(step.address)
        return says(agent) if agent else text.clip(step.tail, MAX_SAYS, tail=True)


def called_by(view: RunView) -> Mapping[str, Sequence[AgentView]]:
    """Return the agents that others called, by their callers, in the order of the calls."""
    called: dict[str, list[AgentView]] = {}
    for agent in view.agents.values():
        # A caller's id is the beginning of its own: also what a damaged journal says ends.
        if agent.caller and agent.id.startswith(f"{agent.caller}/"):
            called.setdefault(agent.caller, []).append(agent)
    return called


def standing_of(agent: AgentView, view: RunView, now: float) -> tuple[str, Tone]:
    """Return the chip's words and tone of an agent that another one called."""
    match agent.outcome:
        case None if not view.ending:
            silent = silence(agent, now)
            return silent or doing(agent, view), "ing" if silent else "run"
        case "finished":
            return "complete", "ok"
        case "failed":
            return "failed", "err"
        case "stopped" | "never started":
            return agent.outcome, "cut"
        case _:
            return "cut", "cut"


def asked_for(gate: GateView, view: RunView) -> Asked:
    """Return what an open gate asks for: to go on with a stage, an approval, or a text."""
    if gate.wants == "input":
        return "text"
    # Of a call of a tool, and of a question of code, the address is none of a unit's.
    return "stage" if gate.address in view.steps else "approval"


def decided(given: ApprovalView) -> str:
    """Return how a gate was decided, by whom and why."""
    return str(ApprovalDecision(given.approved, given.message, given.by))


def _children(addresses: list[str]) -> Mapping[str, list[str]]:
    """Order all addresses by what they are in; what is planned keeps the recipe's order."""
    children: dict[str, list[str]] = {}
    for address in dict.fromkeys(filter(None, addresses)):
        children.setdefault(parent_of(address), []).append(address)
    return children


def _spent(view: RunView) -> Mapping[str, tuple[int, float | None]]:
    """Add up tokens and cost of each unit with all that is in it."""
    spent: dict[str, tuple[int, float | None]] = {}
    for agent in view.agents.values():
        address = agent.id
        while address and agent.tokens:
            tokens, cost = spent.get(address, (0, 0.0))
            known = None if cost is None or agent.cost is None else cost + agent.cost
            spent[address] = (tokens + agent.tokens, known)
            address = parent_of(address)
    return spent


def _index(address: str) -> int:
    found = _INDEX.search(address)
    return int(found[1]) if found else 0


def _does(step: StepView, planned: PlannedUnit | None) -> str:
    match step.unit:
        case "agent":
            return " · ".join(filter(None, [step.worker, step.model]))
        case "iteration" | "group":
            return to_do(planned) if planned else ""
        case "stage":
            return "stage"
        case _:
            return to_do(planned) if planned else step.unit


def to_do(planned: PlannedUnit) -> str:
    """Return what a unit will do that has not begun."""
    kinds = {"stage": "stage", "foreach": "for each", "while": "while"}
    return " · ".join(filter(None, [kinds.get(planned.unit, ""), planned.label]))


def _counted(counts: Counter[str]) -> str:
    words = {"ok": "complete", "failed": "failed", "skipped": "skipped", "running": "under way"}
    counts["running"] += counts.pop("retrying", 0)
    return " · ".join(f"{counts[k]} {word}" for k, word in words.items() if counts[k])


def _more(base: str, depth: int, said: str) -> UnitRow:
    return UnitRow(f"{base}/…", "…", depth, tone="cut", says=said, is_pending=True)
