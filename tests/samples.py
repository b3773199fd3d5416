"""Samples of long enumerations.

CI runs a few cases of each enumeration. All cases run if `TESTS_FULL` is 1:

    make py-test ARGS=tests/turns/test_resume_stopped.py TESTS_FULL=1
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import TypeVar

__all__ = ["IS_FULL", "sample", "some_or_all"]

T = TypeVar("T")

IS_FULL = os.environ.get("TESTS_FULL") == "1"
"""Whether all cases run."""


def sample(cases: Iterable[T], count: int) -> list[T]:
    """Return this number of cases, spread over all, in their order. Return all if `TESTS_FULL`.

    The same cases are chosen each time.
    """
    found = list(cases)
    if IS_FULL or len(found) <= count:
        return found
    random = Random(0)
    bounds = [len(found) * part // count for part in range(count + 1)]
    return [found[random.randrange(first, end)] for first, end in pairwise(bounds)]


def some_or_all(some: int, all_: int) -> int:
    """Return the first number in CI, the second if `TESTS_FULL`."""
    return all_ if IS_FULL else some
