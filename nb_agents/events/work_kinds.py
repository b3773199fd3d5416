"""The names of the kinds of work in events; see `nb_agents.launch.work_kind`."""

TEAM = ""
"""A task for a team."""
RECIPE = "recipe"
"""A recipe. Older journals contain its name without a kind."""


def work_kind(work: str, recipe: str) -> str:
    """Return the name of a turn's kind of work, based on two fields of its first event."""
    return work or (RECIPE if recipe else TEAM)
