"""No text that we show drives the terminal that it is shown in."""

import logging
import unicodedata
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents  # noqa: F401  its import sets up the log
from nb_agents.unicode import without_controls

HOSTILE = {
    "clears the screen": "\x1b[2J",
    "moves the cursor home": "\x1b[H",
    "hides a line": "\x1b[8m\x1b[1A",
    "fills the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "fills the clipboard, other end": "\x1b]52;c;cm0gLXJmIH4=\x1b\\",
    "renames the window": "\x1b]0;owned\x07",
    "makes a link": "\x1b]8;;http://e/\x07",
    "asks the terminal to type": "\x1bP+q544e\x1b\\",
    "resets the terminal": "\x1bc",
    "takes another character set": "\x1b(0",
    "clears the screen in one byte": "\x9b2J",
    "fills the clipboard in one byte": "\x9d52;c;cm0gLXJmIH4=\x9c",
    "rings": "\x07",
    "steps back": "\x08\x08\x7f",
    "ends the text": "\x00\x04\x1a",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_text_that_drives_the_terminal_is_shown_without_what_does(what: str) -> None:
    assert without_controls(f"before {HOSTILE[what]}after\tit\n") == "before after\tit\n"


@pytest.mark.parametrize("start", ["\x1b]52;c;", "\x1b[", "\x1bP", "\x9d", "\x1b"])
def test_a_sequence_that_never_ends_hides_nothing_of_the_text(start: str) -> None:
    assert without_controls(f"one {start}\ntwo").replace("52;c;", "") == "one \ntwo"


def test_a_carriage_return_does_not_write_over_its_line() -> None:
    assert without_controls("rm -rf ~\rls -l\r\nnext\x85line") == "rm -rf ~\nls -l\nnext\nline"


_ANY = st.text(st.characters() | st.sampled_from("\x1b\x9b\x9d[]();?0123456789mJH\x07\\\r\x9c"))


@given(_ANY)
def test_what_is_shown_has_no_control_character_but_line_ends_and_tabs(text: str) -> None:
    shown = without_controls(text)
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert without_controls(shown) == shown


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t")))
def test_any_other_text_is_shown_as_it_is(text: str) -> None:
    assert without_controls(text) == text


def test_a_long_text_of_beginnings_alone_takes_no_time_that_grows_with_its_square() -> None:
    for start in ("\x1b]", "\x9d", "\x1b[", "\x1b[0;0;0", "\x1b "):
        assert "\x1b" not in without_controls(start * 300_000)


@pytest.fixture
def logged() -> StringIO:
    """What a person's own handler writes of our log."""
    logger, written = logging.getLogger("nb_agents"), StringIO()
    handler = logging.StreamHandler(written)
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def test_the_log_has_no_control_sequence_in_messages_and_tracebacks(logged: StringIO) -> None:
    logger = logging.getLogger("nb_agents")
    logger.warning("agent %s said %s", "ada", "\x1b[2Jhello")
    try:
        raise ValueError("\x1b]52;c;cm0=\x07bad reply")
    except ValueError:
        logger.exception("run %s crashed", "r1")
    assert logged.getvalue().startswith("agent ada said hello\nrun r1 crashed\nTraceback")
    assert "ValueError: bad reply" in logged.getvalue()
    assert "\x1b" not in logged.getvalue()
