"""Random events, which Hypothesis generates from the fields of each class."""

import dataclasses
from pkgutil import resolve_name
from typing import Any

from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.extend import extensions

for _extension in extensions():
    for _reference in _extension.events.values():
        resolve_name(_reference)
EVENT_CLASSES: tuple[type[Any], ...] = tuple(
    cls for _, cls in sorted(ev.KINDS.items()) if cls.__module__.startswith("nb_agents.")
)
"""All events, those of the extensions included, so that every process lists the same tests."""

AGENTS = st.sampled_from(["ada", "ben", "stranger"])
STEPS = st.sampled_from(["ada", "b", "b[0]", "b[0]/c", "stranger", "", "/", "[0]"])
TEXT = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
_NUMBERS = st.floats(0, 1e9, allow_nan=False)
_COUNTS = st.integers(0, 2**53)
_ANY_NUMBERED = {"response": JSON, "args": JSON, "request": st.lists(JSON, max_size=2)}


def _field(name: str) -> st.SearchStrategy[Any] | None:
    if name in ("agent", "target", "winner", "caller"):
        return AGENTS | st.just("")
    if name == "step":
        return STEPS
    return _ANY_NUMBERED.get(name)


def of_class(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Give instances of one event class."""
    chosen = {f.name: s for f in dataclasses.fields(cls) if (s := _field(f.name)) is not None}
    return st.builds(cls, **{**chosen, "seq": st.integers(0, 99), "at": _NUMBERS})


st.register_type_strategy(float, _NUMBERS)
st.register_type_strategy(int, _COUNTS)
st.register_type_strategy(str, TEXT)

EVENTS = st.one_of([of_class(cls) for cls in EVENT_CLASSES])

STARTED = ev.TurnStarted(
    session="session_1",
    turn=1,
    task="Why?",
    agents=(ev.AgentInfo(id="ada", model="m1"), ev.AgentInfo(id="ben", model="m2")),
    timeout_s=60,
    seq=1,
    at=100.0,
)
