"""The calls of a turn that may change files, with their tools, models and prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nb_agents import events as ev
from nb_agents.launch.agent_prompts import Prompts
from nb_agents.session.layout import TurnPaths


class FileCall(NamedTuple):
    """A call that changed a file.

    Attributes:
        agent: The agent's id, or a step's address.
        call: The call's id.
        tool: The tool's name, or "".
        model: The agent's model, or "".
        at: When the call started, in Unix seconds.
        session: The session's name.
        turn: The turn's number.
        prompt: The beginning of what the agent was working on: the last message of the user to it,
            the task of the turn, the input of a sub-agent, or the prompt of a step.
    """

    agent: str
    call: str
    tool: str = ""
    model: str = ""
    at: float = 0.0
    session: str = ""
    turn: int = 0
    prompt: str = ""


class FileCalls:
    """The calls of a turn.

    Args:
        turn: The turn.
        events: The events of its journal.
    """

    def __init__(self, turn: TurnPaths, events: Sequence[ev.Event]) -> None:
        self._turn = turn
        self._tools: dict[str, str] = {}
        self._models: dict[str, str] = {}
        self._prompts = Prompts(events)
        for event in events:
            match event:
                case ev.TurnStarted(agents=agents):
                    self._models |= {each.id: each.model for each in agents}
                case ev.AgentCalled(agent=agent, model=model):
                    self._models[agent] = model
                case ev.StepStarted(step=step, model=model) if model:
                    self._models[step] = model
                case ev.ToolStarted(agent=agent, call_id=call, tool=tool):
                    self._tools[f"{agent} {call}"] = tool

    def of(self, name: str, at: float) -> FileCall:
        """Return the call with a name of the form ``AGENT CALL``, or a step's address."""
        agent, _, call = name.rpartition(" ")
        agent = agent or name
        return FileCall(
            agent,
            call if agent != name else "",
            self._tools.get(name, ""),
            self._models.get(agent, ""),
            at,
            self._turn.path.parent.name,
            self._turn.number,
            self._prompts.of(agent, at),
        )
