"""The panel's row of an agent. Pure functions of the view."""

from __future__ import annotations

from typing import Any

from nb_agents.jupyter import text
from nb_agents.view import AgentView, RunView, call_so_far

__all__ = ["MAX_SAYS", "agent_row", "doing", "numbers", "says", "stop_offer"]

MAX_SAYS = 160
"""Characters of the last words on a row."""

_TONES = {"answered": "ok", "voted": "ok", "failed": "err", "stopped": "cut", "waiting": "ing"}


def agent_row(agent: AgentView, view: RunView) -> dict[str, Any]:
    """Make the row of a team's agent; its shape is ``AgentRow`` in js/src/state.ts."""
    return {
        "id": agent.id,
        "model": agent.model,
        "chip": doing(agent, view),
        "tone": _TONES.get(agent.phase, "run"),
        "says": says(agent),
        "writing": agent.in_flight and agent.phase == "writing",
        "numbers": numbers(agent.tokens, agent.cost),
        "stop": stop_offer(agent, view),
        **_place(agent, view),
    }


def _place(agent: AgentView, view: RunView) -> dict[str, Any]:
    """Say how deep a row stands below those that call; nothing while nobody calls."""
    if not any(each.caller for each in view.agents.values()):
        return {}
    return {"depth": agent.depth, "name": agent.id.rpartition("/")[2]}


def stop_offer(agent: AgentView, view: RunView) -> dict[str, bool] | None:
    """Say what its own button asks for; None where it would stop nothing, or everything."""
    is_live = agent.outcome is None and agent.phase not in ("voted", "failed", "stopped")
    if view.ending or view.stop or len(view.agents) == 1 or not is_live:
        return None
    return None if agent.stop == "immediate" else {"now": agent.stop == "requested"}


def numbers(tokens: int, cost: float | None) -> str:
    """Say what was used, or "" when nothing was; an unknown price is left out."""
    return " · ".join(filter(None, [text.tokens(tokens), text.cost(cost)])) if tokens else ""


def doing(agent: AgentView, view: RunView) -> str:
    """Say in a word what an agent does."""
    match agent.phase:
        case "answered":
            return "answered" if len(agent.answers) <= 1 else f"answered ×{len(agent.answers)}"
        case "voted":
            return f"voted for {agent.vote.target}" if agent.vote else "voted"
        case "tool":
            return agent.tool
        case "writing" if agent.partial_call:
            return "voting" if agent.tool == "vote" else agent.tool
        case _:
            if view.winner == agent.id and not view.is_over and agent.phase != "stopped":
                return "presenting"
            return agent.phase


def says(agent: AgentView) -> str:
    """Give an agent's last words."""
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
