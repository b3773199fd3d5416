"""Tests of the tests' helpers."""

import pytest

from tests import samples
from tests.conftest import LOADED
from tests.processes import python, read_line


def test_slow_imports_are_loaded_only_by_tests_that_need_them(
    pytestconfig: pytest.Config,
) -> None:
    assert pytestconfig.stash[LOADED] == []


def test_reading_a_line_leaves_the_rest_for_communicate() -> None:
    with python("print('first\\nsecond')") as process:
        process.wait()
        assert read_line(process) == "first\n"
        assert process.communicate()[0] == "second\n"


def test_sample_is_spread_over_all_cases_and_full_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = range(100)
    few = samples.sample(cases, 4)
    assert few == samples.sample(cases, 4)
    assert [case // 25 for case in few] == [0, 1, 2, 3]
    assert samples.sample(range(3), 4) == [0, 1, 2]
    monkeypatch.setattr(samples, "IS_FULL", True)
    assert samples.sample(cases, 4) == [*cases]
    assert samples.some_or_all(4, 100) == 100
