"""An event of the extension, and the state that a turn's view folds from it."""

from dataclasses import replace

from nb_agents.extend import VIEW, Event, RunView


class MoodChanged(Event):
    """The mood of an agent changed."""

    agent: str
    mood: str


@VIEW.on(MoodChanged)
def _mood_changed(view: RunView, event: MoodChanged) -> RunView:
    moods = {**view.extension_state.get("acme", {}), event.agent: event.mood}
    return replace(view, extension_state={**view.extension_state, "acme": moods})
