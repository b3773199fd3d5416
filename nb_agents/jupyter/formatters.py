"""Registers display formatters for runs, receipts, groups and views.

A terminal shows their repr. The classes of groups are registered by name, so their modules are
loaded only when a group is first used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import table_bundle
from nb_agents.jupyter.panel import cells_of, show_group, show_run
from nb_agents.launch.run import Run
from nb_agents.nouns import price, token_count
from nb_agents.presentation import text
from nb_agents.presentation.markdown import sanitize
from nb_agents.turns.groups import GroupKind, kinds
from nb_agents.view.receipt import Receipt
from nb_agents.view.run_view import AgentView, RunView

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def register(ip: InteractiveShell) -> None:
    """Register panels, cards and tables with a shell that has a front end."""
    if not kernel.has_front_end(ip):
        return
    formatter: Any = ip.display_formatter
    formatter.ipython_display_formatter.for_type(Run, show_run)
    formatter.mimebundle_formatter.for_type(Receipt, _receipt)
    formatter.mimebundle_formatter.for_type(RunView, _view)
    for kind in kinds():
        handle, view = kind.handle_type.split(":"), kind.view_type.split(":")
        formatter.ipython_display_formatter.for_type_by_name(*handle, show_group)
        formatter.mimebundle_formatter.for_type_by_name(*view, partial(_table, kind))


def unregister(ip: InteractiveShell) -> None:
    """Unregister the formatters, so that reprs are shown again."""
    formatter: Any = ip.display_formatter
    formatter.ipython_display_formatter.type_printers.pop(Run, None)
    for shown_type in (Receipt, RunView):
        formatter.mimebundle_formatter.type_printers.pop(shown_type, None)
    for kind in kinds():
        formatter.ipython_display_formatter.pop(kind.handle_type.replace(":", "."), None)
        formatter.mimebundle_formatter.pop(kind.view_type.replace(":", "."), None)


def _table(kind: GroupKind, view: Any, **_: object) -> dict[str, Any]:
    return cells_of(kind).table(view)


def _shown(outcome: str) -> str:
    """Return an outcome as all user interfaces show it: work that a stop ended is "stopped"."""
    return "stopped" if outcome == "killed" else outcome


def _receipt(receipt: Receipt, **_: object) -> dict[str, Any]:
    heads = ("", "outcome", "answers", "words saved", "tokens", "cost")
    rows = [
        (
            name,
            _shown(agent.outcome),
            str(agent.answers),
            str(agent.words_kept),
            token_count(agent.tokens, agent.is_estimated),
            price(agent.tokens, agent.cost),
        )
        for name, agent in receipt.agents.items()
    ]
    other_rows = [
        (name, _shown(outcome), "", "", "", "") for name, outcome in receipt.steps + receipt.tools
    ]
    total = (
        repr(receipt).strip("<>"),
        receipt.reason,
        "",
        "",
        token_count(receipt.tokens, receipt.is_estimated),
        price(receipt.tokens, receipt.cost),
    )
    return sanitize(table_bundle(heads, [*rows, *other_rows, total]))


def _view(view: RunView, **_: object) -> dict[str, Any]:
    heads = ("agent", "model", "activity", "answers", "vote", "text", "tokens", "cost")
    return sanitize(table_bundle(heads, [_agent(agent) for agent in view.agents.values()]))


def _agent(agent: AgentView) -> tuple[str, ...]:
    return (
        agent.id,
        agent.model,
        _shown(agent.outcome or agent.phase),
        str(len(agent.answers)),
        agent.vote.target if agent.vote else "",
        text.clip(agent.partial or "".join(agent.answers[-1:]), 80, tail=bool(agent.partial)),
        token_count(agent.tokens, agent.is_estimated),
        price(agent.tokens, agent.cost),
    )
