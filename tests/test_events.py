"""Events: each one is a JSON line that reads back as itself."""

import dataclasses
import inspect
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


def test_each_kind_names_one_class() -> None:
    kinds = [cls.__dataclass_fields__["kind"].default for cls in EVENT_CLASSES]
    assert len(set(kinds)) == len(kinds)


def test_the_union_has_every_event_class() -> None:
    with_kind = {
        c
        for _, c in inspect.getmembers(ev, dataclasses.is_dataclass)
        if "kind" in {f.name for f in dataclasses.fields(c)}
    }
    assert with_kind == set(EVENT_CLASSES)


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


def test_the_first_event_carries_the_schema_version() -> None:
    event = ev.TurnStarted(session="s", turn=1, task="t", agents=(), timeout_s=1)
    assert ev.EVENT.dump_python(event)["schema_version"] == ev.SCHEMA_VERSION
