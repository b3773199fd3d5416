"""The context window: sizes in refusals, estimates, and servers that drop text silently."""

from __future__ import annotations

import pytest

from nb_agents.models.context_window import ContextMeter, RefusedSize, refused_size


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", RefusedSize(200_000, 210_000)),
        ("exceed context limit: 190000 + 32000 > 200000", RefusedSize(200_000, 190_000)),
        (
            "The input token count (70000) exceeds the maximum number of tokens allowed (65536).",
            RefusedSize(65_536, 70_000),
        ),
        ("the request exceeds the available context size (4096 tokens)", RefusedSize(4096)),
        (
            "This model's maximum context length is 8192 tokens. However, your messages resulted "
            "in 9000 tokens.",
            RefusedSize(8192, 9000),
        ),
        ("maximum context length is 8,192 tokens", RefusedSize(8192)),
        ("The prompt is too long.", RefusedSize()),
    ],
)
def test_refusal_names_the_window_and_the_size(message: str, size: RefusedSize) -> None:
    assert refused_size(Exception(message)) == size


def test_first_estimate_counts_three_bytes_as_a_token() -> None:
    assert ContextMeter().estimate(3000) == 1000


def test_estimate_adds_new_text_to_what_the_provider_has_counted() -> None:
    meter = ContextMeter()
    meter.measure(4000, 1000)
    assert meter.estimate(8000) == 2000


@pytest.mark.parametrize(
    ("before", "after", "was_cut"),
    [
        ((12_000, 3000), (20_000, 2900), True),
        ((12_000, 3000), (20_000, 5000), False),
        ((12_000, 3000), (12_100, 3000), False),  # hardly longer
        ((12_000, 50), (20_000, 50), False),  # does not count the input
        ((12_000, 3000), (20_000, 0), False),  # reports nothing
        ((200_000, 1200), (400_000, 1200), False),  # not plausible for this size
    ],
)
def test_server_has_cut_a_longer_conversation_that_it_counts_as_shorter(
    before: tuple[int, int], after: tuple[int, int], was_cut: bool
) -> None:
    meter = ContextMeter()
    meter.was_cut(*before)
    assert meter.was_cut(*after) is was_cut


def test_counts_that_are_too_small_for_the_text_are_not_used() -> None:
    meter = ContextMeter()
    meter.measure(20_000, 50)  # pydantic-ai's FunctionModel always reports 50
    assert not meter.is_measured
    assert meter.estimate(20_000) == ContextMeter().estimate(20_000)
