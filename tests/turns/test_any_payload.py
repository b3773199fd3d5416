"""Events with any payload are written as valid JSON and read back unchanged."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.events import EVENT
from tests.kit.runs import Recorder
from tests.kit.sessions import Journal, TurnPaths, read_journal, write_views
from tests.kit.texts import TOO_DEEP, json_text, well_formed
from tests.strategies import EVENT_CLASSES, of_class
from tests.test_events import UNTYPED

NUMBERS = [math.nan, math.inf, -math.inf, 10**5_000, -(10**5_000)]


def nested(value: Any, depth: int) -> Any:
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def holding_itself() -> list[Any]:
    value: list[Any] = [1]
    value += [value, {"a": value}]
    return value


ODD = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(NUMBERS).map(lambda number: {"a": [number, (number, 1)], "b": {number: 1}}),
    st.tuples(st.sampled_from(["x", *NUMBERS]), st.sampled_from([99, 101, 400, 970, 5_000])).map(
        lambda given: nested(*given)
    ),
    st.builds(holding_itself),
    st.just({"\ud83d": ["\ude00", object()]}),
)


def strictly(text: str | bytes) -> Any:
    """Read JSON as other languages do."""

    def refuse(number: str) -> None:
        raise AssertionError(f"{number} is no JSON")

    return json.loads(text, parse_constant=refuse)


def with_odd(event: ev.Event, odd: Any, number: float) -> ev.Event:
    """Give an event other arguments and results, and other numbers in its fields."""
    changed: dict[str, Any] = {}
    for each in dataclasses.fields(event):
        if each.name == "outputs" and isinstance(getattr(event, each.name), str | bool):
            continue  # of cells; a recipe's outputs are values
        if each.name in UNTYPED:
            is_mapping = each.name in ("team", "context", "outputs")
            changed[each.name] = {"a": odd} if is_mapping else odd
            if each.name == "request":
                changed[each.name] = [odd]
        elif isinstance(getattr(event, each.name), float):
            changed[each.name] = number
    return dataclasses.replace(event, **changed)


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda c: c.__name__)
@settings(max_examples=8)
@given(data=st.data(), odd=ODD, number=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_events_with_any_payload_survive_a_round_trip_through_json(
    tmp_path_factory: pytest.TempPathFactory,
    cls: type[Any],
    data: st.DataObject,
    odd: Any,
    number: float,
) -> None:
    paths = TurnPaths(tmp_path_factory.mktemp("any") / "s" / "turn_1")
    paths.path.mkdir(parents=True)
    recorder = Recorder(Journal(paths.journal))
    seen: list[ev.Event] = []
    recorder.observe(lambda event, before, after: seen.append(event))
    recorder.emit(with_odd(data.draw(of_class(cls)), odd, number))
    recorder.emit(ev.TurnEnded(status="cancelled", phase="presenting", answer=""))
    recorder.close()
    for line in paths.journal.read_bytes().splitlines():
        strictly(line)
    told = read_journal(paths.journal)
    assert told.warnings == ()
    assert [EVENT.dump_json(event) for event in told.events] == [
        EVENT.dump_json(event) for event in seen
    ]
    write_views(recorder.view, paths)
    for file in (paths.metadata, paths.partial_answers):
        if file.exists():
            strictly(file.read_bytes())


@given(ODD)
def test_all_writers_of_json_accept_any_value(odd: Any) -> None:
    strictly(json_text({"a": [odd]}, default=str))
    whole = well_formed(odd)
    assert well_formed(whole) is whole


def test_only_the_parts_that_are_too_deep_are_replaced() -> None:
    whole = well_formed({"deep": nested(1, 300), "flat": [1, "x"]})
    assert whole["flat"] == [1, "x"] and TOO_DEEP in json.dumps(whole)
    itself = well_formed(holding_itself())
    assert itself == [1, TOO_DEEP, {"a": TOO_DEEP}]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_non_finite_numbers_of_earlier_versions_are_read_as_text(
    tmp_path: Path, number: str
) -> None:
    path = tmp_path / "events.jsonl"
    args = f'{{"x": [{number}]}}'
    path.write_text(
        f'{{"kind": "tool_started", "agent": "a", "call_id": "1", "tool": "t", "args": {args}}}\n'
    )
    [event] = read_journal(path).events
    assert isinstance(event, ev.ToolStarted)
    assert event.args == {"x": [{"1e999": "Infinity"}.get(number, number)]}
