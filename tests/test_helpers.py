"""What the tests themselves stand on."""

from tests.processes import python, read_line


def test_a_line_that_was_read_keeps_nothing_of_the_rest_from_communicate() -> None:
    with python("print('first\\nsecond')") as process:
        process.wait()
        assert read_line(process) == "first\n"
        assert process.communicate()[0] == "second\n"
