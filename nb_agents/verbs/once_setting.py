"""The verb that changes how later cells are taken."""

from __future__ import annotations

from pathlib import Path

from nb_agents.errors import UserError
from nb_agents.launch.once import make_once_default, once_is_default
from nb_agents.verbs.verb import Caller, Outcome


def once(root: Path, caller: Caller, *, switch: str = "") -> Outcome:
    """Have every %%agents cell of this kernel pay once, as with --once, or no longer.

    Args:
        root: The session root.
        caller: Who asks.
        switch: "on", "off", or "" to say which it is.

    Raises:
        UserError: It is another word.
    """
    if switch not in ("", "on", "off"):
        raise UserError(f"It can't be {switch!r}. Write `%agents once on` or `%agents once off`.")
    if switch:
        make_once_default(switch == "on")
    if once_is_default():
        return Outcome(
            "Unchanged %%agents cells show the turn that they have had; --fresh starts a new one."
        )
    return Outcome("Every %%agents cell starts a new turn, but for those with --once.")
