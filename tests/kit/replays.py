"""Replays of recorded turns."""

from nb_agents.extensions.replays.testing import replayed_run

__all__ = ["replayed_run"]
