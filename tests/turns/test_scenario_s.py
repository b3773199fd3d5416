"""Three concurrent agents are stopped or killed without loss, and resumed in a new process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.turns.scenario import ANSWERS, UNTIL_GO, Resumed, Stopped, ToolKind, scenario

WORDS = 60
"""Number of b's words after two seconds, at 30 ms per word."""

each_tool = pytest.mark.parametrize("tool", ["run_command", "tidy"])


def assert_kept(left: Stopped) -> None:
    """All that the models had said is on disk: a's answer, and b's words to the last."""
    assert left.answers == {"a": ANSWERS["a"]}
    assert len(left.sent) == WORDS
    assert left.kept == left.sent


def assert_goes_on(done: Resumed) -> None:
    """Only the interrupted model call is repeated.

    The model is told about the interrupted tool call.
    """
    assert (done.status, done.answers) == ("completed", ANSWERS)
    assert (done.finished, done.sent_again, done.open_again) == (2, [], ["b"])
    assert done.asked == {"a": 1, "b": 2, "c": 2}
    assert done.tool_runs == 1


@each_tool
def test_immediate_stop_loses_no_text_and_repeats_no_request(
    tmp_path: Path, tool: ToolKind
) -> None:
    with scenario(tmp_path, tool) as s:
        s.server.hold(WORDS, "b")
        with s.started() as process:
            s.wait_words_in_memory(process, WORDS)
            asked = s.stop(process, "now")
            left = s.stopped(process, asked)
            assert process.poll() is None  # the streams were closed by the stop, not by an exit
        assert (left.state, left.closed_by) == ("stopped", "client")
        assert left.alive == []
        assert_kept(left)
        assert_goes_on(s.resumed())


@each_tool
def test_graceful_stop_finishes_current_work_and_saves_it(tmp_path: Path, tool: ToolKind) -> None:
    with scenario(tmp_path, tool, words=2 * WORDS, work=UNTIL_GO) as s:
        s.server.hold(WORDS, "b")
        with s.started() as process:
            s.wait_words_in_memory(process, WORDS)
            asked = s.stop(process, "graceful")
            s.wait_on_disk(lambda view: view.stop, "the stop")
            assert s.server.open_count == 1 and s.alive()
            s.server.release("b")
            s.let_tool_go()
            left = s.stopped(process, asked)
            assert process.poll() is None
        assert (left.state, left.closed_by) == ("stopped", "server")
        assert left.alive == []
        assert left.answers == {name: ANSWERS[name] for name in "ab"}
        assert len(left.sent) == 2 * WORDS and left.kept == left.sent
        done = s.resumed()
        assert (done.status, done.answers) == ("completed", ANSWERS)
        assert (done.finished, done.sent_again, done.open_again) == (3, [], [])
        assert (done.asked, done.tool_runs) == ({"a": 1, "b": 1, "c": 2}, 1)


@each_tool
def test_killed_process_loses_no_journalled_text_and_repeats_no_request(
    tmp_path: Path, tool: ToolKind
) -> None:
    with scenario(tmp_path, tool) as s:
        s.server.hold(WORDS, "b")
        with s.started() as process:
            # The words go to disk while they come: nothing ends here, and nobody asks for it.
            s.wait_words_on_disk(WORDS)
            left = s.stopped(process, s.stop(process, "kill"))
        assert (left.state, left.closed_by) == ("stopped", "client")
        # A function's own child is its own: nobody is left to end it.
        assert bool(left.alive) == (tool != "run_command")
        assert_kept(left)
        assert_goes_on(s.resumed())
