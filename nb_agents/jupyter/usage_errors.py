"""How our exceptions look in a cell: a stopped run is its card, a person's mistake a sentence."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import RunCancelled, UserError
from nb_agents.jupyter.cards import show_turn
from nb_agents.jupyter.ipython import UsageError
from nb_agents.masking import Mask
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.terminal import without_controls

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["as_usage_error", "show_cancelled_as_cards"]


def show_cancelled_as_cards(ip: Any) -> None:
    """Show RunCancelled, where it ends a cell, as the turn's card instead of a traceback.

    The cell still counts as ended by an exception, so cells queued behind it don't run on.
    """
    previous, others = ip.CustomTB, ip.custom_exceptions

    def show(
        shell: InteractiveShell,
        kind: type[BaseException],
        exc: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None = None,
    ) -> list[str]:
        if not isinstance(exc, RunCancelled):
            return list(previous(kind, exc, trace, tb_offset=tb_offset) or [])
        show_turn(load_turn(TurnPaths(exc.path)))
        return []

    if RunCancelled not in others:
        ip.set_custom_exc((*others, RunCancelled), show)


def as_usage_error(exc: UserError) -> UsageError:
    """Give a mistake in a magic the form that IPython prints as one line, without secrets."""
    return UsageError(without_controls(Mask(secrets_of_environment()).text(str(exc))))
