"""A mapping that grows: the same as a dict, old states stay, and one more entry costs little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nb_agents.view.growing import Growing, grown

ENTRIES = st.lists(st.tuples(st.sampled_from([f"k{n}" for n in range(30)]), st.integers()))


@given(ENTRIES, st.sets(st.integers(0, 50)))
def test_it_is_what_a_dict_would_be_and_what_was_handed_out_stays(
    entries: list[tuple[str, int]], looked_at: set[int]
) -> None:
    known: dict[str, int] = {}
    mapping: Growing[int] = Growing({})
    handed_out = []
    for number, (key, value) in enumerate(entries):
        known = {**known, key: value}
        mapping = grown(mapping, key, value)
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


def test_one_can_go_on_in_two_ways() -> None:
    base = grown({"a": 1}, "b", 2)

    assert dict(grown(base, "c", 3)) == {"a": 1, "b": 2, "c": 3}
    assert dict(grown(base, "d", 4)) == {"a": 1, "b": 2, "d": 4}
    assert dict(base) == {"a": 1, "b": 2}


def test_the_layers_are_few_however_many_entries_there_are() -> None:
    mapping: Growing[int] = Growing({})
    copied = 0
    for number in range(20_000):
        before = {id(layer) for layer in mapping._layers}
        mapping = grown(mapping, f"k{number % 15_000}", number)
        copied += sum(len(layer) for layer in mapping._layers if id(layer) not in before)

    assert len(mapping._layers) <= 15
    assert copied < 20_000 * 30  # a copy for each would be 20,000 * 10,000
