"""Masking of events before they are journalled, including text that arrives in chunks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.turns.hiding import EventMask
from tests.kit.secrets import Mask, Secret
from tests.kit.views import fold
from tests.masking.test_mask import as_stream
from tests.samples import some_or_all
from tests.strategies import EVENT_CLASSES, STARTED, of_class

KEY = "sk-1f9Qz7LmX02pABCDEFGH"
HALVES = (KEY[:9], KEY[9:])
MASK = Mask([Secret(KEY, ("api_key",))])
END = ev.TurnEnded(status="cancelled", phase="coordinating")


def hidden(*given_: ev.Event) -> list[Any]:
    """What is written of these events."""
    hiding = EventMask(MASK)
    return [event for each in given_ for event in hiding.hide(each)]


def with_keys(value: Any, hint: Any = str) -> Any:
    """Put the key into every text of a value that may be any text."""
    if isinstance(value, str):
        return f"its {KEY}!" if hint is str else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        changes = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **{k: with_keys(v, hints[k]) for k, v in changes.items()})
    if isinstance(value, dict):
        return {with_keys(k): with_keys(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        hints = get_type_hints(type(value))
        return type(value)(
            *(with_keys(v, hints[k]) for k, v in zip(value._fields, value, strict=True))
        )
    if isinstance(value, list | tuple):
        return type(value)(map(with_keys, value))
    return value


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda c: c.__name__)
@settings(max_examples=some_or_all(10, 50))
@given(data=st.data())
def test_no_text_of_any_event_shows_a_key(cls: type[Any], data: st.DataObject) -> None:
    event = with_keys(data.draw(of_class(cls)))
    written = [ev.EVENT.dump_json(each).decode() for each in hidden(event, END)]
    assert not [line for line in written if KEY in line]
    assert len(written) == 2


# Texts in pieces


def words(text: str, agent: str = "ada", call: int = 1, channel: Any = "text") -> ev.TextStreamed:
    return ev.TextStreamed(agent=agent, call=call, channel=channel, text=text)


def told(text: str) -> ev.ToolNotice:
    return ev.ToolNotice(agent="ada", text=text)


def wrote(text: str) -> ev.OutputStreamed:
    return ev.OutputStreamed(step="ada", text=text)


ENDS: list[Any] = [
    ev.ModelFinished(agent="ada", call=1, response={}, usage=ev.Usage()),
    ev.ModelFailed(agent="ada", call=1, error="dropped"),
    ev.ModelCut(agent="ada", call=1),
    ev.ToolFinished(agent="ada", call_id="1", tool="t", outcome="cut"),
    ev.StepFinished(step="ada", outcome="ok"),
    ev.StepFailed(step="ada", attempt=1, error="no"),
    ev.AgentEnded(agent="ada", outcome="killed"),
    ev.AgentFailed(agent="ada", error="no"),
    ev.RoundTimedOut(agent="ada", limit_s=1, grace_s=1),
    END,
]


@pytest.mark.parametrize("piece", [words, told, wrote], ids=lambda p: p.__name__)
@pytest.mark.parametrize("end", ENDS, ids=lambda e: e.kind)
def test_held_back_text_is_recorded_before_the_end_of_its_call(piece: Any, end: ev.Event) -> None:
    """At every way in which a call, a tool or a step may end: no word is lost."""
    found = hidden(piece("a sk-1"), end)
    assert [getattr(e, "text", "") for e in found] == ["a ", "sk-1", ""]
    assert (found[0].kind, found[-1]) == (found[1].kind, end)


@pytest.mark.parametrize("piece", [words, told, wrote], ids=lambda p: p.__name__)
def test_key_in_pieces_is_masked(piece: Any) -> None:
    found = hidden(piece(f"a {HALVES[0]}"), piece(f"{HALVES[1]} b"), END)
    assert "".join(e.text for e in found[:-1]) == "a [key] b"


def test_texts_of_agents_calls_and_channels_are_masked_separately() -> None:
    first, second = HALVES
    others = [words(second, agent="ben"), words(second, channel="thinking"), words(second, call=2)]
    found = [e for e in hidden(words(first), *others, END) if e.kind == "text_streamed"]
    assert [(e.agent, e.channel, e.call, e.text) for e in found] == [
        ("ben", "text", 1, second),
        ("ada", "thinking", 1, second),
        ("ada", "text", 1, first),
        ("ada", "text", 2, second),
    ]


def test_a_stop_of_the_agent_within_a_key_shows_no_more_than_a_few_letters() -> None:
    stop = ev.StopRequested(level="requested", source="widget", agent="ada")
    found = hidden(words(HALVES[0]), stop, words(HALVES[1]), END)
    assert "".join(getattr(e, "text", "") for e in found) == f"{HALVES[0]}[key]"


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    at = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    return [text[a:b] for a, b in zip(at, at[1:], strict=False)]


CUTS = st.lists(st.integers(0, 90))


@given(
    st.lists(st.sampled_from([KEY, "word ", "sk-", "a", KEY[:14]]), max_size=8).map("".join),
    CUTS,
    CUTS,
)
@example(f"a {KEY}", [5], [])
def test_view_of_streams_equals_the_masked_whole_text(
    text: str, mine: list[int], theirs: list[int]
) -> None:
    """Of two agents whose words come by turns."""
    ada = [words(each) for each in pieces_of(text, mine)]
    ben = [words(each, "ben") for each in pieces_of(text, theirs)]
    mixed = [each for pair in zip(ada, ben, strict=False) for each in pair]
    mixed += ada[len(ben) :] + ben[len(ada) :]
    view = fold(hidden(STARTED, *mixed, END))
    for agent in view.agents.values():
        assert as_stream(MASK, text).fullmatch(agent.partial)


# Arguments


@pytest.mark.parametrize("args", [{"password": "pw", "n": [1]}, '{"password": "pw", "n": [1]}'])
def test_arguments_with_a_secret_name_are_not_shown(args: Any) -> None:
    event = ev.ToolStarted(agent="ada", call_id="1", tool="t", args=args, summary="pw")
    [found] = hidden(event)
    shown = json.loads(found.args) if isinstance(args, str) else found.args
    assert (shown, found.summary) == ({"password": "[key]", "n": [1]}, "[key]")
