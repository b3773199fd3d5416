"""What the tests themselves stand on."""

import pytest

from tests.conftest import LOADED
from tests.processes import python, read_line


def test_what_takes_long_to_load_is_loaded_by_the_tests_that_need_it_alone(
    pytestconfig: pytest.Config,
) -> None:
    assert pytestconfig.stash[LOADED] == []


def test_a_line_that_was_read_keeps_nothing_of_the_rest_from_communicate() -> None:
    with python("print('first\\nsecond')") as process:
        process.wait()
        assert read_line(process) == "first\n"
        assert process.communicate()[0] == "second\n"
