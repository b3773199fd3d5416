"""How runs, receipts, sweeps and views look at the end of a cell; in a terminal by their repr.

Sweeps are known by name, so that nothing of theirs is loaded before the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import table_bundle
from nb_agents.jupyter.panel import show_run, show_sweep
from nb_agents.nouns import count
from nb_agents.presentation import text
from nb_agents.presentation.markdown import harmless
from nb_agents.presentation.sweep_card import counts, score_of, spent, sweep_chip
from nb_agents.runs.run import Run
from nb_agents.view.receipt import Receipt
from nb_agents.view.run_view import AgentView, RunView

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nb_agents.sweeps.sweep_fold import SweepView

_SWEEPS = "nb_agents.sweeps"


def register(ip: InteractiveShell) -> None:
    """Register the displays of a shell with a front end: panels, cards and tables."""
    if not kernel.has_front_end(ip):
        return
    shown: Any = ip.display_formatter
    shown.ipython_display_formatter.for_type(Run, show_run)
    shown.mimebundle_formatter.for_type(Receipt, _receipt)
    shown.mimebundle_formatter.for_type(RunView, _view)
    shown.ipython_display_formatter.for_type_by_name(f"{_SWEEPS}.sweep", "Sweep", show_sweep)
    shown.mimebundle_formatter.for_type_by_name(f"{_SWEEPS}.sweep_fold", "SweepView", _sweep)


def unregister(ip: InteractiveShell) -> None:
    """Unregister them, so that reprs are shown again."""
    shown: Any = ip.display_formatter
    shown.ipython_display_formatter.type_printers.pop(Run, None)
    for kind in (Receipt, RunView):
        shown.mimebundle_formatter.type_printers.pop(kind, None)
    shown.ipython_display_formatter.pop(f"{_SWEEPS}.sweep.Sweep", None)
    shown.mimebundle_formatter.pop(f"{_SWEEPS}.sweep_fold.SweepView", None)


def _receipt(receipt: Receipt, **_: object) -> dict[str, Any]:
    heads = ("", "what became of it", "answers", "words kept", "tokens", "cost")
    rows = [
        (
            name,
            agent.outcome,
            str(agent.answers),
            str(agent.words_kept),
            text.tokens(agent.tokens),
            text.cost(agent.cost),
        )
        for name, agent in receipt.agents.items()
    ]
    others = [(name, outcome, "", "", "", "") for name, outcome in receipt.steps + receipt.tools]
    total = (
        repr(receipt).strip("<>"),
        receipt.reason,
        "",
        "",
        text.tokens(receipt.tokens),
        text.cost(receipt.cost),
    )
    return harmless(table_bundle(heads, [*rows, *others, total]))


def _view(view: RunView, **_: object) -> dict[str, Any]:
    heads = ("agent", "model", "does", "answers", "vote", "words", "tokens", "cost")
    return harmless(table_bundle(heads, [_agent(agent) for agent in view.agents.values()]))


def _agent(agent: AgentView) -> tuple[str, ...]:
    return (
        agent.id,
        agent.model,
        agent.outcome or agent.phase,
        str(len(agent.answers)),
        agent.vote.target if agent.vote else "",
        text.clip(agent.partial or "".join(agent.answers[-1:]), 80, tail=bool(agent.partial)),
        text.tokens(agent.tokens),
        text.cost(agent.cost),
    )


def _sweep(view: SweepView, **_: object) -> dict[str, Any]:
    heads = ("sweep", "status", "rows", "how they stand", "used", "score")
    rows = ", ".join(words for words, _ in counts(view))
    cells = (
        view.name,
        sweep_chip(view),
        count(view.total, "row"),
        rows,
        spent(view),
        score_of(view),
    )
    return harmless(table_bundle(heads, [cells]))
