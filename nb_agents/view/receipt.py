"""The receipt of a run: how agents, tools and processes ended, the cost, and the files.

A pure function of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nb_agents import events as ev
from nb_agents.nouns import count
from nb_agents.view.run_view import AgentView, RunState, RunView, ToolView
from nb_agents.view.steps import StepView


@dataclass(frozen=True, slots=True)
class AgentReceipt:
    """The outcome of one agent's work.

    Attributes:
        outcome: How its work ended.
        answers: Number of its answers.
        words_kept: Number of words that it wrote but did not submit as an answer.
        words_thought: Number of words of its reasoning.
        tokens: Number of tokens used.
        cost: US dollars, or None if the price of a model is unknown.
        is_estimated: Whether the tokens and cost are partly estimated, because a call was
            interrupted.
    """

    outcome: ev.Outcome
    answers: int
    words_kept: int
    words_thought: int
    tokens: int
    cost: float | None
    is_estimated: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """How each agent, step and tool call of a turn ended, and what it cost.

    Attributes:
        status: The state of the turn: `RunView.state`.
        agents: The receipt of each agent.
        tools: "agent: tool" and the outcome of each tool call.
        steps: The address and outcome of each step and open gate of a recipe. Steps in loops and
            called recipes are included once these have started.
        tokens: Number of tokens that all agents used.
        cost: US dollars, or None if the price of a model is unknown.
        path: The turn's directory.
        context_changes: The absolute path of each file outside the workspaces that agents changed,
            with "made", "changed" or "deleted"; the first hundred of each kind.
        ends: The external agents and MCP servers of the run and of inner teams: the name of each,
            whether its end is confirmed, and how that is known.
        source: The interface or limit that stopped the turn, or "".
        reason: The reason for the stop, or "".
        is_estimated: Whether the tokens and cost are partly estimated.
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
    is_estimated: bool = False

    def __repr__(self) -> str:
        """Return a summary on one line."""
        stop = f" by {self.source}" if self.source else ""
        agents, tokens = count(len(self.agents), "agent"), count(self.tokens, "token")
        return f"<Receipt {self.status}{stop}: {agents}, {tokens}>"


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

    Agents without a recorded outcome count as finished if they have voted, their step has ended or
    the turn is complete. Otherwise they count as stopped, or as never started.

    Args:
        view: The view of the turn.
        path: The turn's directory.
        still_runs: Returns whether the thread with a number is still busy with a call that a stop
            left running, or None if that can't be known.
    """
    agents = {
        a.id: AgentReceipt(
            _outcome(a, view),
            len(a.answers),
            len(a.unsubmitted.split()),
            len(a.thoughts.split()),
            a.tokens,
            a.cost,
            a.is_estimated,
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
            (name, kind)
            for each in view.context_changes
            for kind in ("made", "changed", "deleted")
            for name in getattr(each, kind)
        ),
        tuple((each.what, each.is_confirmed, each.how) for each in view.ends.values()),
        view.is_estimated,
    )


def _tool(tool: ToolView, still_runs: Callable[[int], bool] | None) -> str:
    if tool.thread and still_runs is None:
        return "still running in its thread when it was cut"
    if tool.thread and still_runs is not None and still_runs(tool.thread):
        return "still running in its thread"
    return _TOOL_OUTCOMES[tool.outcome]


def _steps(view: RunView) -> tuple[tuple[str, str], ...]:
    """Return the outcome of each leaf step and open gate of a recipe."""
    started = [
        (step.address, _STEP_OUTCOMES.get(step.status) or _open_outcome(step, view))
        for step in view.steps.values()
        # In the view, a step that failed or was skipped before it started is a group.
        if step.unit in ("agent", "bash") or (step.unit == "group" and step.status not in _OPEN)
    ]
    gates = [(address, "stopped") for address in view.gates]
    rest = [(u.address, "never started") for u in view.pending if u.unit != "stage"]
    return (*started, *gates, *rest)


def _open_outcome(step: StepView, view: RunView) -> str:
    if step.address in view.agents:
        return _outcome(view.agents[step.address], view)
    # A graceful stop lets a command finish.
    return "killed" if step.status in _OPEN else "stopped"


def total_cost(view: RunView) -> float | None:
    """Return the cost of all agents in US dollars, or None if the price of a model is unknown."""
    costs = [a.cost for a in view.agents.values()]
    return None if any(c is None for c in costs) else sum(c for c in costs if c is not None)


def _outcome(agent: AgentView, view: RunView) -> ev.Outcome:
    if agent.outcome:
        return agent.outcome
    step = view.steps.get(agent.id)
    if view.status == "completed" or agent.vote or (step is not None and step.status == "ok"):
        return "finished"
    return "stopped" if agent.calls else "never started"
