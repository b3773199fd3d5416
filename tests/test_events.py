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


KINDS_ON_DISK = """
abstained agent_called agent_ended agent_failed answer_given approval_asked approval_given
command_answered context_changed continued end_checked files_kept files_listed final_answer_given
model_cut model_failed model_finished model_started noticed orchestration_restarted
output_streamed own_files_kept paused presentation_started program_saved recipe_loaded reply_cut
round_started round_timed_out said session_bound step_failed step_finished step_started
stop_requested text_streamed told tool_finished tool_started tool_told turn_ended turn_rejected
turn_started vote_cast vote_ignored worktree_based
"""


def test_every_kind_that_a_journal_on_disk_may_have_is_read() -> None:
    assert set(KINDS_ON_DISK.split()) <= set(ev.KINDS)


UNTYPED = {"response", "args", "request", "team", "context", "output", "outputs"}
"""Fields that may hold any JSON."""

NUMBERS = [1e308, -1e308, math.nan, math.inf, -math.inf, -1, -0.5, 2**53 + 1, 10**400]


def with_numbers(value: Any, number: float) -> Any:
    """Give an event's JSON with another number in the place of each."""
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
def test_no_number_that_is_read_is_beyond_what_can_be(
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
def test_an_event_with_a_time_that_can_not_be_keeps_its_words(at: str) -> None:
    mended: list[str] = []
    line = f'{{"kind": "said", "text": "hello", "at": {at}}}'
    assert ev.EVENT.validate_json(line, context=mended) == ev.Said(text="hello", at=0.0)
    assert mended == ["at"]


@pytest.mark.parametrize("kind", ["from_the_future", "", None, 7])
def test_an_unknown_kind_is_refused(kind: object) -> None:
    with pytest.raises(ValidationError):
        ev.EVENT.validate_python({"kind": kind, "agent": "ada"})


def test_a_field_of_a_newer_version_does_not_matter() -> None:
    event = ev.EVENT.validate_json('{"kind": "noticed", "text": "hello", "colour": "red"}')
    assert event == ev.Noticed(text="hello")


@given(EVENTS)
def test_events_can_not_be_changed(event: ev.Event) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.seq = 7  # type: ignore[misc]


def test_a_stop_that_was_journalled_without_its_gate_is_read() -> None:
    line = {"kind": "stop_requested", "level": "requested", "source": "approval", "seq": 1, "at": 1}
    event = ev.EVENT.validate_python(line)
    assert isinstance(event, ev.StopRequested) and event.gate == ""


def test_the_first_event_carries_the_schema_version() -> None:
    event = ev.TurnStarted(session="s", turn=1, task="t", agents=(), timeout_s=1)
    assert ev.EVENT.dump_python(event)["schema_version"] == ev.SCHEMA_VERSION
