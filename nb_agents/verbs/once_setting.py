"""The verb that makes later cells behave as if they had --once."""

from __future__ import annotations

from pathlib import Path

from nb_agents.errors import UserError
from nb_agents.launch.once import make_once_default, once_is_default
from nb_agents.verbs.outcome import Reply
from nb_agents.verbs.verb import Caller


def once(root: Path, caller: Caller, *, switch: str = "") -> Reply:
    """Set whether every %%agents cell of this kernel behaves as if it had --once.

    Args:
        root: The session root.
        caller: The user interface that makes the request.
        switch: "on", "off", or "" to show the current setting.

    Raises:
        UserError: `switch` has another value.
    """
    if switch not in ("", "on", "off"):
        raise UserError(
            f"Unknown setting {switch!r}. Write `%agents once on` or `%agents once off`."
        )
    if switch:
        make_once_default(switch == "on")
    if once_is_default():
        return Reply(
            "Unchanged %%agents cells show their earlier result. --fresh starts a new turn."
        )
    return Reply("Every %%agents cell without --once starts a new turn.")
