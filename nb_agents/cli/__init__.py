"""The command line: ``nb-agents``, with the options and words of the cells.

Exit codes: 0 complete, 1 failed, 2 usage, 3 incomplete. What models, tools and files wrote goes out
by `nb_agents.cli.printing` alone.
"""

from nb_agents.cli import (  # each adds its commands
    beginning,
    starting,
    tabled,
    team_agent,
    team_server,
    tracing,
)
from nb_agents.cli.application import app, main

__all__ = ["app", "beginning", "main", "starting", "tabled", "team_agent", "team_server", "tracing"]
