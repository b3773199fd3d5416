"""The functions that run the stored turns, by the name of the session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.kit.runs import Run
from tests.team_kit import WAIT_S

__all__ = ["PLAYERS", "over", "player"]

Player = Callable[[Path, str], object]
PLAYERS: dict[str, Player] = {}


def player(play: Player) -> Player:
    """Register a function that plays one session: it gets the session root and the session's id."""
    PLAYERS[play.__name__.replace("_", "-")] = play
    return play


def over(run: Run) -> Run:
    """Wait for a run's end, whatever it is."""
    run.wait(WAIT_S, raise_on_stop=False)
    return run
