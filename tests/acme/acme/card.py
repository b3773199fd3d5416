"""A part of a run's card, which the extension adds."""

from nb_agents.extend import RunView


def mood_card(view: RunView) -> str:
    """Return the agents' moods."""
    moods = view.extension_state.get("acme", {})
    return "\n".join(f"- **{agent}** is {mood}" for agent, mood in moods.items())
