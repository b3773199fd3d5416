"""Shown text contains no terminal control sequences."""

import logging
import unicodedata
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents  # noqa: F401  its import sets up the log
from tests.kit.texts import without_controls

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
def test_terminal_controls_are_removed(what: str) -> None:
    assert without_controls(f"before {HOSTILE[what]}after\tit\n") == "before after\tit\n"


@pytest.mark.parametrize("start", ["\x1b]52;c;", "\x1b[", "\x1bP", "\x9d", "\x1b"])
def test_incomplete_sequence_does_not_hide_text(start: str) -> None:
    assert without_controls(f"one {start}\ntwo").replace("52;c;", "") == "one \ntwo"


def test_carriage_return_does_not_overwrite_its_line() -> None:
    assert without_controls("rm -rf ~\rls -l\r\nnext\x85line") == "rm -rf ~\nls -l\nnext\nline"


_ANY = st.text(st.characters() | st.sampled_from("\x1b\x9b\x9d[]();?0123456789mJH\x07\\\r\x9c"))


@given(_ANY)
def test_displayed_text_has_no_control_characters_except_newlines_and_tabs(text: str) -> None:
    shown = without_controls(text)
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert without_controls(shown) == shown


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t")))
def test_other_text_is_shown_unchanged(text: str) -> None:
    assert without_controls(text) == text


def test_incomplete_sequences_take_linear_time() -> None:
    for start in ("\x1b]", "\x9d", "\x1b[", "\x1b[0;0;0", "\x1b "):
        assert "\x1b" not in without_controls(start * 300_000)


@pytest.fixture
def logged() -> StringIO:
    """Return the output of a user's log handler."""
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
