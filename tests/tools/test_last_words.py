"""The last output of a program: of limited length, on one line, and without secrets."""

import pytest

from tests.kit.processes import OutputTail
from tests.kit.secrets import Mask, Secret

SECRET = "sk-canary-0123456789abcdef"


def said(*chunks: str) -> str:
    words = OutputTail()
    for chunk in chunks:
        words.add(chunk.encode())
    return words.text(Mask([Secret(SECRET)]).text)


def test_last_three_lines_are_joined() -> None:
    assert said("one\ntwo\n", "three\nfo", "ur\n") == "two / three / four"


def test_control_characters_are_removed() -> None:
    assert said("\x1b[2J\x1b]52;c;cm0gLXJm\x07done\r\x00!\n") == "done / !"


@pytest.mark.parametrize("length", range(1_960, 2_040, 3))
def test_no_part_of_a_secret_remains_after_a_cut(length: int) -> None:
    told = said(f"say {SECRET} ", "x " * (length // 2), "end\n")
    assert told.endswith("end")
    assert not any(SECRET[at : at + 6] in told for at in range(len(SECRET) - 6))


def test_length_is_limited() -> None:
    assert len(said("x" * 10_000_000, "\nend\n")) < 2_000
