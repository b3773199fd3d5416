"""A growing mapping equals a dict, is immutable, and adds entries at low cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nb_agents.view.growing import LayeredMapping, with_entry

ENTRIES = st.lists(st.tuples(st.sampled_from([f"k{n}" for n in range(30)]), st.integers()))


@given(ENTRIES, st.sets(st.integers(0, 50)))
def test_growing_equals_a_dict_and_older_states_do_not_change(
    entries: list[tuple[str, int]], looked_at: set[int]
) -> None:
    known: dict[str, int] = {}
    mapping: LayeredMapping[int] = LayeredMapping({})
    handed_out = []
    for number, (key, value) in enumerate(entries):
        known = {**known, key: value}
        mapping = with_entry(mapping, key, value)
        handed_out.append((mapping, known))
        if number in looked_at:  # which makes its layers one
            assert list(mapping.items()) == list(known.items())

    for old, then in handed_out:
        assert [old.get(f"k{n}") for n in range(30)] == [then.get(f"k{n}") for n in range(30)]
        assert all((f"k{n}" in old) == (f"k{n}" in then) for n in range(30))
        assert (list(old), list(old.values()), len(old)) == (
            list(then),
            list(then.values()),
            len(then),
        )
        assert old == then and repr(old) == repr(then)


def test_two_mappings_can_grow_from_the_same_state() -> None:
    base = with_entry({"a": 1}, "b", 2)

    assert dict(with_entry(base, "c", 3)) == {"a": 1, "b": 2, "c": 3}
    assert dict(with_entry(base, "d", 4)) == {"a": 1, "b": 2, "d": 4}
    assert dict(base) == {"a": 1, "b": 2}


def test_number_of_layers_is_logarithmic() -> None:
    mapping: LayeredMapping[int] = LayeredMapping({})
    copied = 0
    for number in range(20_000):
        before = {id(layer) for layer in mapping._layers}
        mapping = with_entry(mapping, f"k{number % 15_000}", number)
        copied += sum(len(layer) for layer in mapping._layers if id(layer) not in before)

    assert len(mapping._layers) <= 15
    assert copied < 20_000 * 30  # a copy for each would be 20,000 * 10,000
