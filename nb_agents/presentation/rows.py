"""Builds the rows of agents, and the tree of a recipe's units, for panels and cards.

The tree contains known future units. For a loop, only the number of finished iterations is shown,
because there may be thousands. An agent that was called by another one is nested below its caller.
Pure functions of the view.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from getpass import getuser

from nb_agents.config.decision_tools import VOTE
from nb_agents.events import PlannedUnit
from nb_agents.nouns import price, token_count
from nb_agents.presentation import text
from nb_agents.presentation.panel_types import AgentRow, Asked, RowStop, Tone
from nb_agents.tools.policy import ApprovalDecision
from nb_agents.view.run_view import AgentView, RunView, call_so_far
from nb_agents.view.steps import ApprovalView, GateView, StepView, parent_of

MAX_SAYS = 160
"""Maximum length of the latest text on a row, in characters."""

_TONES: dict[str, Tone] = {
    "answered": "ok",
    "voted": "ok",
    "failed": "err",
    "stopped": "cut",
    "waiting": "ing",
}

_ACTIVITIES = (
    "writing",
    "thinking",
    "using tools",
    "waiting",
    "voted",
    "answered",
    "stopped",
    "failed",
)
"""The order of activities in a summary."""

SILENT_AFTER_S = 30.0
"""Seconds without output from a model after which its row says so."""

MAX_ITERATIONS = 8
"""Maximum number of rows for the iterations of a loop."""
MAX_DEPTH = 100
"""Maximum nesting depth of rows."""
MAX_ASKS = 300
"""Maximum length of a prompt or command, in characters."""

_INDEX = re.compile(r"\[([0-9]{1,9})\]$")


def agent_row(agent: AgentView, view: RunView, now: float) -> AgentRow:
    """Return the row of a team's agent."""
    silent = silence(agent, now)
    is_idle = bool(silent) or is_waiting(agent, view) or _gate_of(agent, view) is not None
    row: AgentRow = {
        "id": agent.id,
        "model": agent.model,
        "chip": silent or activity(agent, view),
        "tone": "ing" if is_idle else _TONES.get(agent.phase, "run"),
        "says": says(agent),
        "writing": agent.in_flight and agent.phase == "writing",
        "numbers": _with_folds(agent, numbers(agent.tokens, agent.cost, agent.is_estimated)),
        "stop": stop_offer(agent, view),
    }
    # Depths are shown only if an agent has called another one.
    if any(each.caller for each in view.agents.values()):
        row |= {"depth": agent.depth, "name": agent.id.rpartition("/")[2]}
    return row


def team_rows(view: RunView, now: float) -> list[AgentRow]:
    """Return the rows of a team's agents. Failed agents come first, unless rows are nested."""
    agents = list(view.agents.values())
    if not any(agent.caller for agent in agents):
        agents.sort(key=lambda agent: agent.phase != "failed")
    return [agent_row(agent, view, now) for agent in agents]


def summary(view: RunView) -> str:
    """Return the numbers of agents by activity, such as "4 writing · 7 answered · 1 failed"."""
    counts = Counter(_activity_kind(agent, view) for agent in view.agents.values())
    return " · ".join(f"{counts[kind]} {kind}" for kind in _ACTIVITIES if counts[kind])


def _activity_kind(agent: AgentView, view: RunView) -> str:
    if is_waiting(agent, view):
        return "waiting"
    return "using tools" if agent.phase == "tool" else agent.phase


def _with_folds(agent: AgentView, used: str) -> str:
    return " · ".join(filter(None, [used, text.folds(agent)]))


def stop_offer(agent: AgentView, view: RunView) -> RowStop | None:
    """Return the stop that a row's Stop button requests, or None if the row has no button."""
    is_live = agent.outcome is None and agent.phase not in ("voted", "failed", "stopped")
    if view.ending or view.stop or len(view.agents) == 1 or not is_live:
        return None
    return None if agent.stop == "immediate" else {"now": agent.stop == "requested"}


def numbers(tokens: int, cost: float | None, is_estimated: bool = False) -> str:
    """Return tokens and cost as text, or "" if there are no tokens. An unknown cost is left out."""
    used = token_count(tokens, is_estimated)
    return " · ".join(filter(None, [used, price(tokens, cost)])) if tokens else ""


def is_waiting(agent: AgentView, view: RunView) -> bool:
    """Return whether an agent of a live turn waits for the provider of its model."""
    return agent.is_waiting and not view.ending


def activity(agent: AgentView, view: RunView) -> str:
    """Return an agent's activity, such as "writing" or the name of a tool."""
    if agent.wait is not None and is_waiting(agent, view):
        return agent.wait.describe(time.time())
    match agent.phase:
        case "answered":
            return "answered" if len(agent.answers) <= 1 else f"answered ×{len(agent.answers)}"
        case "voted":
            return f"voted for {agent.vote.target}" if agent.vote else "voted"
        case "tool":
            gate = _gate_of(agent, view)
            return text.awaits(gate.wants) if gate else agent.tool
        case "writing" if agent.partial_call:
            return "voting" if agent.tool == VOTE.name else agent.tool
        case _:
            if view.winner == agent.id and not view.is_over and agent.phase != "stopped":
                return "presenting"
            return agent.phase


def _gate_of(agent: AgentView, view: RunView) -> GateView | None:
    """Return the gate at which a call of the agent waits for the user, or None."""
    gates = view.gates.values() if agent.phase == "tool" else ()
    return next((gate for gate in gates if gate.address.startswith(f"{agent.id}: ")), None)


def silence(agent: AgentView, now: float) -> str:
    """Return text about a model that has been silent for long, or ""."""
    silent_s = now - agent.streamed_at
    if not (agent.in_flight and agent.streamed_at) or silent_s < SILENT_AFTER_S:
        return ""
    return f"silent for {text.seconds(silent_s)}"


def says(agent: AgentView) -> str:
    """Return an agent's latest text: an error, tool output, streamed text, a vote or an answer."""
    if agent.error:
        return text.clip(agent.error, MAX_SAYS)
    if agent.wait is not None and agent.is_waiting:
        return text.clip(agent.wait.error, MAX_SAYS)
    if agent.phase == "tool":
        return text.clip(agent.tool_tail, MAX_SAYS, tail=True) or agent.tool_summary
    if agent.phase == "writing" and agent.partial_call:
        return text.clip(call_so_far(agent.partial_call), MAX_SAYS, tail=True)
    if agent.partial:
        return text.without_markdown(agent.partial, MAX_SAYS, tail=True)
    if agent.vote:
        return text.without_markdown(agent.vote.reason, MAX_SAYS)
    return text.without_markdown(agent.returned or agent.answer, MAX_SAYS)


@dataclass(frozen=True)
class UnitRow:
    """A row of the tree: a unit, or an agent that another one called.

    Attributes:
        address: The address of the unit, or the agent's id.
        name: The name among its siblings.
        depth: The level of nesting, starting with 0.
        does: The agent with its model, or the kind of unit.
        chip: The status as text.
        tone: The status as a colour.
        says: The latest text: streamed text, output of a command, the result, or an error.
        is_writing: Whether `says` is being written.
        numbers: Tokens and cost, including nested units.
        asks: The prompt or command, truncated.
        is_pending: Whether it has not started.
        seconds: The duration, or None.
        stop: The stop that its Stop button requests, or None. Only called agents may have one.
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
    """Return a recipe's units as rows, each before the units nested in it.

    Args:
        view: The view of the turn.
        now: The current time, in Unix seconds.
        limit: Maximum number of rows. Finished units without unfinished ones inside are left out
            first, starting with the innermost, and then the last rows.

    Returns:
        The rows. If some were left out, the last row contains their number.
    """
    rows = list(_UnitRows(view, now).rows())
    if len(rows) <= limit:
        return rows
    dropped = set(_finished(rows)[: len(rows) - limit + 1])
    visible_rows = [row for row in rows if row.address not in dropped][: limit - 1]
    return [*visible_rows, _more("", 0, f"{len(rows) - len(visible_rows)} more are not shown")]


def _finished(rows: Sequence[UnitRow]) -> list[str]:
    """Return the addresses of units that are finished with all nested units, innermost first."""
    path: list[str] = []
    open_: set[str] = set()
    for row in rows:
        path[row.depth :] = [row.address]
        if row.chip not in ("complete", "skipped"):
            open_.update(path)
    done = [row for row in rows if row.depth and row.address not in open_]
    return [row.address for row in sorted(done, key=lambda row: -row.depth)]


def name_of(address: str) -> str:
    """Return the last part of an address. Iterations are numbered starting at 1.

    Example:
        >>> name_of("checks/review[2]"), name_of("checks/review[2]/sum")
        ('review 3', 'sum')
    """
    last = address.rpartition("/")[2]
    return _INDEX.sub(lambda match: f" {int(match[1]) + 1}", last)


class _UnitRows:
    def __init__(self, view: RunView, now: float) -> None:
        self._view = view
        self._now = now
        self._planned = {u.address: u for units in view.outlines.values() for u in units}
        self._children = _children([*self._planned, *view.steps])
        self._called_agents = called_by(view)
        self._spent = _spent(view)
        self._approvals = {approval.address: approval for approval in view.approvals}

    def rows(self, address: str = "", depth: int = 0) -> Iterator[UnitRow]:
        """Yield the rows of all units below an address."""
        if depth > MAX_DEPTH and self._children.get(address):
            yield _more(address, depth, "deeper levels are not shown")
            return
        children, left_out_count = self._children.get(address, []), 0
        within = self._view.steps.get(address)
        if within is not None and within.unit in ("foreach", "while"):
            visible = self._open_or_failed(children)
            children, left_out_count = (
                sorted(visible[:MAX_ITERATIONS], key=_index),
                len(visible) - MAX_ITERATIONS,
            )
        elif within is not None and within.is_over:
            # Units inside a finished unit that have not started never will.
            children = [child for child in children if child in self._view.steps]
        for child in children:
            yield self._row(child, depth)
            yield from self._called_rows(child, depth + 1)
            yield from self.rows(child, depth + 1)
        if left_out_count > 0:
            yield _more(address, depth, f"{left_out_count} more running or failed")

    def _called_rows(self, caller: str, depth: int) -> Iterator[UnitRow]:
        for agent in self._called_agents.get(caller, ()):
            yield UnitRow(
                agent.id,
                name_of(agent.id),
                depth,
                agent.model,
                *called_agent_chip(agent, self._view, self._now),
                says=says(agent),
                is_writing=agent.in_flight and agent.phase == "writing",
                numbers=numbers(*self._spent.get(agent.id, (0, 0.0, False))),
                stop=stop_offer(agent, self._view),
            )
            if depth < MAX_DEPTH:
                yield from self._called_rows(agent.id, depth + 1)

    def _open_or_failed(self, iterations: list[str]) -> list[str]:
        steps = self._view.steps
        return [i for i in iterations if steps[i].status not in ("ok", "skipped")]

    def _row(self, address: str, depth: int) -> UnitRow:
        step, planned = self._view.steps.get(address), self._planned.get(address)
        spent = self._spent.get(address, (0, 0.0, False))
        if step is None:
            assert planned is not None
            return UnitRow(
                address, name_of(address), depth, planned_text(planned), tone="cut", is_pending=True
            )
        return UnitRow(
            address,
            name_of(address),
            depth,
            _does(step, planned),
            *self._chip(step),
            says=self._latest_text(step),
            is_writing=self._is_writing(step),
            numbers=numbers(*spent),
            asks=text.clip(step.asks, MAX_ASKS),
            seconds=max(0.0, step.ended_at - step.started_at)
            if step.ended_at and step.started_at
            else None,
        )

    def _chip(self, step: StepView) -> tuple[str, Tone]:
        """Return the text and tone of a unit's status chip."""
        if step.status == "ok":
            return "complete", "ok"
        if step.status == "failed":
            return "failed", "err"
        if step.status == "skipped":
            return "skipped", "cut"
        if self._view.ending:
            return self._chip_of_unfinished(step), "cut"
        if step.address in self._view.gates:
            return "awaiting approval", "ing"
        if step.status == "retrying":
            return self._retry_text(step), "ing"
        again = f" ({step.attempt} of {step.attempts})" if step.attempt > 1 else ""
        agent = self._view.agents.get(step.address)
        if agent and (silent := silence(agent, self._now)):
            return silent + again, "ing"
        if agent and is_waiting(agent, self._view):
            return activity(agent, self._view) + again, "ing"
        return self._activity(step) + again, "run"

    def _chip_of_unfinished(self, step: StepView) -> str:
        approval = self._approvals.get(step.address)
        if approval is not None and not approval.approved:
            return "denied"
        if step.unit not in ("agent", "bash"):
            return "not finished"
        return "stopped" if step.status == "stopped" else "cut"

    def _retry_text(self, step: StepView) -> str:
        tries = f"({step.attempt + 1} of {step.attempts})"
        if step.retry_at is None or step.retry_at <= self._now:
            return f"retrying {tries}"
        return f"retry in {step.retry_at - self._now:.0f} s {tries}"

    def _activity(self, step: StepView) -> str:
        if step.unit == "foreach" and step.total is not None:
            return f"{self._counts(step)['ok']} of {step.total}"
        agent = self._view.agents.get(step.address)
        if agent is None or agent.phase in ("answered", "failed", "stopped"):
            return "running"
        return activity(agent, self._view)

    def _counts(self, step: StepView) -> Counter[str]:
        steps = self._view.steps
        return Counter(steps[each].status for each in self._children.get(step.address, []))

    def _is_writing(self, step: StepView) -> bool:
        agent = self._view.agents.get(step.address)
        return bool(agent and agent.in_flight and agent.phase == "writing")

    def _latest_text(self, step: StepView) -> str:
        if step.unit in ("foreach", "while") and step.status != "skipped":
            return step.why and text.clip(step.why, MAX_SAYS) or _counts_text(self._counts(step))
        if step.why and step.status not in ("running", "cut"):
            return text.clip(step.why, MAX_SAYS)
        if step.address in self._view.gates:
            return text.clip(self._view.gates[step.address].prompt, MAX_SAYS)
        if approval := self._approvals.get(step.address):
            return text.clip(decision_text(approval), MAX_SAYS)
        if step.is_over:
            code = f"exit code {step.exit_code} · " * bool(step.exit_code)
            return text.clip(f"{code}{step.output or ''}", MAX_SAYS)
        agent = self._view.agents.get(step.address)
        return says(agent) if agent else text.clip(step.tail, MAX_SAYS, tail=True)


def called_by(view: RunView) -> Mapping[str, Sequence[AgentView]]:
    """Return the agents that others called, by caller, in the order of the calls."""
    sub_agents: dict[str, list[AgentView]] = {}
    for agent in view.agents.values():
        # Ids start with the caller's id. The check avoids endless loops with damaged journals.
        if agent.caller and agent.id.startswith(f"{agent.caller}/"):
            sub_agents.setdefault(agent.caller, []).append(agent)
    return sub_agents


def called_agent_chip(agent: AgentView, view: RunView, now: float) -> tuple[str, Tone]:
    """Return the text and tone of the chip of an agent that another one called."""
    match agent.outcome:
        case None if not view.ending:
            silent = silence(agent, now)
            is_idle = bool(silent) or is_waiting(agent, view)
            return silent or activity(agent, view), "ing" if is_idle else "run"
        case "finished":
            return "complete", "ok"
        case "failed":
            return "failed", "err"
        case "stopped" | "never started":
            return agent.outcome, "cut"
        case _:
            return "cut", "cut"


def question_kind(gate: GateView, view: RunView) -> Asked:
    """Return what an open gate asks for: to continue a recipe, approve, give text, or raise."""
    if gate.wants == "input":
        return "text"
    if gate.about == "budget":
        return "budget"
    # The address of a tool call's gate, or of a question from code, is not a unit's.
    return "stage" if gate.address in view.steps else "approval"


def decision_text(approval: ApprovalView) -> str:
    """Return a gate's decision, who made it, and why."""
    by = "you" if approval.by == user_name() else approval.by
    return str(ApprovalDecision(approval.approved, approval.message, by))


@cache
def user_name() -> str:
    """Return the name of the user whose process this is, as decisions record it."""
    try:
        return getuser()
    except (OSError, KeyError):  # a container's user without a name
        return ""


def _children(addresses: list[str]) -> Mapping[str, list[str]]:
    """Group addresses by their parent. The order of the planned units comes first."""
    children: dict[str, list[str]] = {}
    for address in dict.fromkeys(filter(None, addresses)):
        children.setdefault(parent_of(address), []).append(address)
    return children


def _spent(view: RunView) -> Mapping[str, tuple[int, float | None, bool]]:
    """Return the tokens and cost of each unit with its nested units, and whether estimated."""
    spent: dict[str, tuple[int, float | None, bool]] = {}
    for agent in view.agents.values():
        address = agent.id
        while address and agent.tokens:
            tokens, cost, is_estimated = spent.get(address, (0, 0.0, False))
            total = None if cost is None or agent.cost is None else cost + agent.cost
            is_estimated |= agent.is_estimated
            spent[address] = (tokens + agent.tokens, total, is_estimated)
            address = parent_of(address)
    return spent


def _index(address: str) -> int:
    match = _INDEX.search(address)
    return int(match[1]) if match else 0


def _does(step: StepView, planned: PlannedUnit | None) -> str:
    match step.unit:
        case "agent":
            return " · ".join(filter(None, [step.worker, step.model]))
        case "iteration" | "group":
            return planned_text(planned) if planned else ""
        case "stage":
            return "stage"
        case _:
            return planned_text(planned) if planned else step.unit


def planned_text(planned: PlannedUnit) -> str:
    """Return a description of a unit that has not started."""
    kinds = {"stage": "stage", "foreach": "for each", "while": "while"}
    return " · ".join(filter(None, [kinds.get(planned.unit, ""), planned.label]))


def _counts_text(counts: Counter[str]) -> str:
    words = {"ok": "complete", "failed": "failed", "skipped": "skipped", "running": "running"}
    counts["running"] += counts.pop("retrying", 0)
    return " · ".join(f"{counts[k]} {word}" for k, word in words.items() if counts[k])


def _more(base: str, depth: int, says: str) -> UnitRow:
    return UnitRow(f"{base}/…", "…", depth, tone="cut", says=says, is_pending=True)
