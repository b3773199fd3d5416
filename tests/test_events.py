"""Events: each one is a JSON line that reads back as itself."""

import dataclasses
import json
import math
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nb_agents import events as ev
from tests.strategies import EVENT_CLASSES, EVENTS, of_class


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda c: c.__name__)
@given(data=st.data())
def test_every_event_comes_back_from_json_as_itself(cls: type[Any], data: st.DataObject) -> None:
    event = data.draw(of_class(cls))
    again = ev.EVENT.validate_json(ev.EVENT.dump_json(event))
    assert type(again) is cls
    assert again == event


UNTYPED = {"response", "args", "request", "team", "context", "output", "outputs"}
"""Fields that may hold any JSON."""

NUMBERS = [1e308, -1e308, math.nan, math.inf, -math.inf, -1, -0.5, 2**53 + 1, 10**400]


def with_numbers(value: Any, number: float) -> Any:
    """Return an event's JSON with each number replaced."""
    match value:
        case dict():
            kept = {k: v for k, v in value.items() if k in UNTYPED}
            return {k: with_numbers(v, number) for k, v in value.items()} | kept
        case list() | tuple():
            return [with_numbers(v, number) for v in value]
        case bool():
            return value
        case int() | float():
            return number
    return value


def numbers_of(value: Any) -> list[float]:
    match value:
        case dict():
            inner = (numbers_of(v) for k, v in value.items() if k not in UNTYPED)
            return [number for each in inner for number in each]
        case list() | tuple():
            return [number for each in value for number in numbers_of(each)]
        case int() | float() if not isinstance(value, bool):
            return [value]
    return []


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda c: c.__name__)
@given(data=st.data(), number=st.sampled_from(NUMBERS))
def test_event_numbers_are_limited_when_read(
    cls: type[Any], data: st.DataObject, number: float
) -> None:
    event = with_numbers(ev.EVENT.dump_python(data.draw(of_class(cls))), number)
    try:
        read = ev.EVENT.validate_json(json.dumps(event))
    except ValidationError:
        assert not isinstance(number, int) or abs(number) > 2**53  # 1e308 is no count at all
        return
    assert all(-(2**31) <= each <= 2**53 for each in numbers_of(ev.EVENT.dump_python(read)))
    datetime.fromtimestamp(read.at)


@pytest.mark.parametrize("at", ["1e308", "NaN", "-Infinity", "-1", "253402300800", "1e999"])
def test_event_with_an_invalid_time_keeps_its_text(at: str) -> None:
    mended: list[str] = []
    line = f'{{"kind": "said", "text": "hello", "at": {at}}}'
    assert ev.EVENT.validate_json(line, context=mended) == ev.UserMessage(text="hello", at=0.0)
    assert mended == ["at"]


@pytest.mark.parametrize("kind", ["From the future", "x" * 100, "", None, 7])
def test_invalid_kind_is_rejected(kind: object) -> None:
    with pytest.raises(ValidationError):
        ev.EVENT.validate_python({"kind": kind, "agent": "ada"})


def test_field_of_a_newer_version_is_ignored() -> None:
    event = ev.EVENT.validate_json('{"kind": "noticed", "text": "hello", "colour": "red"}')
    assert event == ev.Noticed(text="hello")


@given(EVENTS)
def test_events_cannot_be_changed(event: ev.Event) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.seq = 7  # type: ignore[misc]


def test_stop_journalled_without_its_gate_is_read() -> None:
    line = {"kind": "stop_requested", "level": "requested", "source": "approval", "seq": 1, "at": 1}
    event = ev.EVENT.validate_python(line)
    assert isinstance(event, ev.StopRequested) and event.gate == ""


def test_first_event_has_the_schema_version() -> None:
    event = ev.TurnStarted(session="s", turn=1, task="t", agents=(), timeout_s=1)
    assert ev.EVENT.dump_python(event)["schema_version"] == ev.SCHEMA_VERSION
