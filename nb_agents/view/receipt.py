"""The receipt of a run: what finished, what was stopped, what it cost, where its files are.

A pure function of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nb_agents import events as ev
from nb_agents.view.run_view import AgentView, RunState, RunView, ToolView
from nb_agents.view.steps import StepView


@dataclass(frozen=True, slots=True)
class AgentReceipt:
    """The outcome of one agent's work.

    Attributes:
        outcome: How its work ended.
        answers: How many it gave.
        words_kept: Words that it wrote and that no answer contains.
        words_thought: Words of its reasoning.
        tokens: Tokens used.
        cost: US dollars, or None when a model's price is unknown.
    """

    outcome: ev.Outcome
    answers: int
    words_kept: int
    words_thought: int
    tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """What finished, what was stopped and what it cost, for each agent, step and tool.

    Attributes:
        status: How it ended: `RunView.state`.
        agents: The receipt of each agent.
        tools: For each tool call, "agent: tool" and its outcome.
        steps: The address and outcome of each step and open gate of a recipe; those inside loops
            and called recipes are known once these begin.
        tokens: Tokens used, all agents.
        cost: US dollars, or None when any model's price is unknown.
        path: The turn's directory.
        context_changes: For each file outside the workspaces that agents made, changed or deleted,
            its absolute name and which of these; the first hundred of each.
        ends: For each program and MCP server that worked for the run, and for what a team among
            them had at work: its name, whether its end is confirmed, and how that is known.
        source: The door of the stop, or "".
        reason: Its reason, or "".
    """

    status: RunState
    agents: Mapping[str, AgentReceipt]
    tools: tuple[tuple[str, str], ...]
    tokens: int
    cost: float | None
    path: str
    source: str = ""
    reason: str = ""
    steps: tuple[tuple[str, str], ...] = ()
    context_changes: tuple[tuple[str, str], ...] = ()
    ends: tuple[tuple[str, bool, str], ...] = ()

    def __repr__(self) -> str:
        """Return one line, however many agents there are."""
        stop = f" by {self.source}" if self.source else ""
        return f"<Receipt {self.status}{stop}: {len(self.agents)} agents, {self.tokens} tokens>"


_OPEN = ("running", "cut")
_TOOL_OUTCOMES = {
    "ok": "finished",
    "error": "finished",
    "running": "killed",
    "cut": "killed",
    "cancelled": "never started",
}

_STEP_OUTCOMES = {"ok": "finished", "failed": "failed", "skipped": "skipped"}


def receipt(view: RunView, path: str, still_runs: Callable[[int], bool] | None = None) -> Receipt:
    """Return the receipt of a turn.

    Args:
        view: The turn.
        path: Where its files are.
        still_runs: Returns whether the thread of that number still runs a call that a stop has
            left there; None where that can't be known.

    Returns:
        The receipt; `agents` without an outcome of their own count as finished when they had
        voted, their step is over or the turn completed, else as never started or stopped.
    """
    agents = {
        a.id: AgentReceipt(
            _outcome(a, view),
            len(a.answers),
            len(a.unsubmitted.split()),
            len(a.thoughts.split()),
            a.tokens,
            a.cost,
        )
        for a in view.agents.values()
    }
    tools = tuple((f"{t.agent}: {t.tool}", _tool(t, still_runs)) for t in view.tools)
    stop = view.stop
    return Receipt(
        view.state,
        agents,
        tools,
        view.tokens,
        total_cost(view),
        path,
        stop.source if stop else "",
        stop.reason if stop else "",
        _steps(view),
        tuple(
            (name, what)
            for each in view.context_changes
            for what in ("made", "changed", "deleted")
            for name in getattr(each, what)
        ),
        tuple((each.what, each.is_confirmed, each.how) for each in view.ends.values()),
    )


def _tool(tool: ToolView, still_runs: Callable[[int], bool] | None) -> str:
    if tool.thread and still_runs is None:
        return "still running in its thread when it was cut"
    if tool.thread and still_runs is not None and still_runs(tool.thread):
        return "still running in its thread"
    return _TOOL_OUTCOMES[tool.outcome]


def _steps(view: RunView) -> tuple[tuple[str, str], ...]:
    """Return the state of each of a recipe's leaf steps."""
    begun = [
        (step.address, _STEP_OUTCOMES.get(step.status) or _open_outcome(step, view))
        for step in view.steps.values()
        # A step that failed or was skipped before it began is a group to the view.
        if step.unit in ("agent", "bash") or (step.unit == "group" and step.status not in _OPEN)
    ]
    gates = [(address, "stopped") for address in view.gates]
    rest = [(u.address, "never started") for u in view.pending if u.unit != "stage"]
    return (*begun, *gates, *rest)


def _open_outcome(step: StepView, view: RunView) -> str:
    if step.address in view.agents:
        return _outcome(view.agents[step.address], view)
    # A graceful stop lets a command finish.
    return "killed" if step.status in _OPEN else "stopped"


def total_cost(view: RunView) -> float | None:
    """US dollars spent by all agents, or None when any model's price is unknown."""
    costs = [a.cost for a in view.agents.values()]
    return None if any(c is None for c in costs) else sum(c for c in costs if c is not None)


def _outcome(agent: AgentView, view: RunView) -> ev.Outcome:
    if agent.outcome:
        return agent.outcome
    step = view.steps.get(agent.id)
    if view.status == "completed" or agent.vote or (step is not None and step.status == "ok"):
        return "finished"
    return "stopped" if agent.calls else "never started"
