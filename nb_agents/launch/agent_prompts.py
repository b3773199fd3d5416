"""What agents were working on when they made a call, from the journal of a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from nb_agents import events as ev

MAX_PROMPT = 200
"""Maximum length of a call's prompt, in characters."""


class Prompts:
    """What the agents of a turn were working on, and when.

    Args:
        events: The events of the turn.
    """

    def __init__(self, events: Iterable[ev.Event]) -> None:
        self._prompts = [(event.at, *found) for event in events if (found := _prompt_in(event))]

    def of(self, agent: str, at: float) -> str:
        """Return the beginning of an agent's prompt at a time in Unix seconds, or ""."""
        texts = [text for since, to, text in self._prompts if to in ("", agent) and since <= at]
        return " ".join(texts[-1][: 2 * MAX_PROMPT].split())[:MAX_PROMPT] if texts else ""


def _prompt_in(event: ev.Event) -> tuple[str, str] | None:
    """Return the agent, or "" for all, and the text of an event that gives agents work."""
    match event:
        case ev.TurnStarted(task=task):
            return "", task
        case ev.UserMessage(text=text, to=to):
            return to, text
        case ev.AgentCalled(agent=agent, input=text):
            return agent, text
        case ev.StepStarted(step=step, asks=asks) if asks:
            return step, asks
    return None
