"""Which model and tool call made a proposal, from the journal of its turn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nb_agents.events import Event, ModelStarted, ToolStarted, TurnStarted
from nb_agents.events.turn_events import AgentInfo
from nb_agents.extensions.notebook_cells.cell_events import ChangeProposed


class ProposalOrigin(NamedTuple):
    """A proposal, the agent's model or "", and the id of the tool call or ""."""

    change: ChangeProposed
    model: str
    call: str


def proposals_of(events: Sequence[Event]) -> dict[int, ProposalOrigin]:
    """Return the proposals of a turn by number, with the models and calls that made them."""
    proposals, models, calls = dict[int, ProposalOrigin](), dict[str, str](), dict[str, str]()
    for event in events:
        match event:
            case TurnStarted(agents=agents):
                models.update(_models(agents))
            case ModelStarted(agent=agent, model=model) if model:
                models[agent] = model
            case ToolStarted(agent=agent, call_id=call, tool=tool) if "notebook_propose" in tool:
                calls[agent] = call
            case ChangeProposed():
                agent = event.agent
                origin = ProposalOrigin(event, models.get(agent, ""), calls.get(agent, ""))
                proposals[event.number] = origin
    return proposals


def _models(agents: Sequence[AgentInfo]) -> dict[str, str]:
    return {each.id: each.model for each in agents}
