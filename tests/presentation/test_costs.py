"""Costs as they are shown: known, unknown, known in part, and nothing."""

import re
from pathlib import Path

import pytest

from nb_agents import events as ev
from tests.kit.cards import card_bundle, panel_state, text
from tests.kit.cells import receipt as _receipt
from tests.kit.cells import view as _view
from tests.kit.texts import price
from tests.kit.views import RunView, fold, receipt

PACKAGE = Path(text.__file__).parents[1]


def view_of(*costs: float | None) -> RunView:
    """A completed turn whose agents' calls cost this much each; None for an unknown price."""
    names = [f"a{number}" for number in range(len(costs))]
    agents = tuple(ev.AgentInfo(id=name, model="m") for name in names)
    events: list[ev.Event] = [
        ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=0.0)
    ]
    for name, cost in zip(names, costs, strict=True):
        usage = ev.Usage(input_tokens=900, output_tokens=100, cost=cost)
        events += [
            ev.ModelStarted(agent=name, call=1),
            ev.ModelFinished(agent=name, call=1, response="", usage=usage),
        ]
    events.append(ev.TurnEnded(status="completed", phase="presenting"))
    return fold(events)


CASES = pytest.mark.parametrize(
    ("costs", "shown"),
    [
        ((0.5, 0.25), "$0.750"),
        ((0.0002, 0.0002), "<$0.001"),
        ((None, None), ""),
        ((0.5, None), ""),
        ((0.0, 0.0), "$0"),
        ((0.0, 0.5), "$0.500"),
    ],
    ids=["known", "tiny", "unknown", "partial", "zero", "free and paid"],
)


@CASES
def test_a_cost_is_the_same_wherever_it_is_shown(
    costs: tuple[float | None, ...], shown: str
) -> None:
    view = view_of(*costs)
    total = receipt(view, "/s/turn_1")
    assert price(2000, total.cost) == shown
    assert panel_state(view, "r1", 0.0)["cost"] == shown
    for words in (
        text.spent(view),
        card_bundle(view, "p")["text/plain"],
        _receipt(total)["text/html"].rpartition("<tr>")[2],
    ):
        assert re.findall(r"(?:<|&lt;)?\$[\d.]+", words.replace("&lt;", "<")) == [shown] * bool(
            shown
        )
        assert "2,000 tokens" in words


@CASES
def test_no_unknown_cost_is_shown_as_a_price_of_zero(
    costs: tuple[float | None, ...], shown: str
) -> None:
    for words in (_view(view_of(*costs))["text/html"], text.spent(view_of(*costs))):
        assert "$0.000" not in words


def test_only_one_function_writes_prices() -> None:
    written = re.compile(r"\$\{[^}]*:\.\df")
    found = [
        path.name for path in sorted(PACKAGE.rglob("*.py")) if written.search(path.read_text())
    ]
    assert found == ["nouns.py"]
