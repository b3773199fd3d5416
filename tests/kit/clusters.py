"""Runs on a Dask cluster. Only tests of clusters import it, because it loads Dask."""

from nb_agents.launch.tickets import Ticket

__all__ = [
    "Ticket",
]
