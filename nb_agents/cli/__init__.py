"""The command line ``nb-agents``, with the same verbs and options as the cells.

Exit codes: 0 complete, 1 failed, 2 usage error, 3 incomplete. All output from models, tools and
files is printed by `nb_agents.cli.printing`.
"""

from nb_agents.cli import (  # each module adds its commands
    beginning,
    quota_waiting,
    starting,
    tabled,
    tracing,
)
from nb_agents.cli.application import app, main

__all__ = ["app", "beginning", "main", "quota_waiting", "starting", "tabled", "tracing"]
