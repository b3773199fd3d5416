"""Model servers that fail: the text of the card, and the requests to the server."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest

from tests.kernel.notebook import (
    HELD,
    TURN_MIME,
    WORDS,
    Notebook,
    Turn,
    play,
    write_team,
)
from tests.model_server import Reply


def card_of(notebook: Notebook, turn: Turn) -> dict[str, Any]:
    turn.wait_over()
    notebook.kernel.run(f"%agents wait {turn.run}")  # until the data of its card is complete
    result = notebook.kernel.run(f"%agents show {turn.run}")
    assert len(result.displays) == 1, result
    return result.displays[0].data


REFUSED = {
    "key refused": (Reply(status=401), "The server refused the key; check it (HTTP 401)."),
    "unknown model": (Reply(status=404), "doesn't know this model or address (HTTP 404)."),
    "wrong request": (Reply(status=400), "(HTTP 400)"),
    "a long wait asked for": (
        Reply(status=429, headers={"Retry-After": "3600"}),
        "too many requests (HTTP 429)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_card_explains_a_refusal(notebook: Notebook, name: str) -> None:
    reply, words = REFUSED[name]
    notebook.server.default = reply
    turn = notebook.start("--out run")
    card = card_of(notebook, turn)
    assert notebook.server.count() == 3  # one request each, not repeated
    assert card[TURN_MIME]["state"] == "failed"
    assert card["text/plain"].count(words) == 3
    assert words in unescape(card["text/html"])
    assert "runs again: 3 model calls" in card["text/plain"]
    assert (
        "3 model calls"
        in notebook.kernel.run("%agents resume --preview").displays[0].data["text/plain"]
    )
    result = notebook.kernel.run("run.wait()")
    assert result.error
    assert result.error.ename == "RunFailed"
    assert len(result.error.traceback) == 1
    assert words in result.error.traceback[0]
    assert turn.metadata["reason"] == "failed"


PASSING = {
    "too many requests": Reply(status=429, headers={"Retry-After": "0"}),
    "server error": Reply(status=500),
    "dropped before the headers": Reply(text=WORDS, drop_after=0),
    "dropped in mid-stream": Reply(text=WORDS, drop_after=3),
    "error frame in the stream": Reply(text=HELD, error="overloaded"),
}


@pytest.mark.parametrize("name", PASSING)
def test_temporary_fault_is_retried(notebook: Notebook, name: str) -> None:
    notebook.server.script("m1", PASSING[name], play)
    turn = notebook.start()
    card = card_of(notebook, turn)
    assert card[TURN_MIME]["state"] == "complete"
    assert "The team's final answer." in card["text/markdown"]
    [failed] = turn.events("model_failed")
    assert (failed["agent"], failed["retry_in_s"] is not None) == ("ada", True)


def test_malformed_chunks_fail_only_one_agent(notebook: Notebook) -> None:
    """Four attempts with their waits take 3.5 s; the other agents answer before."""
    notebook.server.script("m1", Reply(text=WORDS, malformed=True))
    turn = notebook.start()
    card = card_of(notebook, turn)
    assert card[TURN_MIME]["state"] == "complete"
    assert "malformed stream" in card["text/html"], card["text/html"]
    assert len(turn.events("model_failed")) == 4


def test_unreachable_server_is_named(notebook: Notebook) -> None:
    write_team(notebook.team, notebook.server, "retry: {delay: 50}")
    notebook.server.stop()
    turn = notebook.start()
    notebook.kernel.wait_until(lambda: turn.events("model_failed"), 60, "a failed call")
    assert "refused the connection" in turn.events("model_failed")[0]["error"]
    # Stopped while it waits for a retry: even a graceful stop is immediate.
    notebook.kernel.run("%agents stop")
    turn.wait_over()
    assert turn.metadata["reason"] == "cancelled"


@pytest.mark.parametrize("after", [0, 3])
def test_user_stops_a_run_with_a_silent_server(notebook: Notebook, after: int) -> None:
    notebook.server.default = Reply(text=WORDS, hang_after=after)
    turn = notebook.start()
    notebook.server.wait_open(3)
    if after:
        turn.wait_streamed()
    notebook.press(turn)
    turn.wait_stop("requested")
    assert not turn.is_over
    notebook.press(turn, now=True)
    turn.wait_over()
    assert notebook.server.endings() == ["client"] * 3
    card = card_of(notebook, turn)
    assert card[TURN_MIME]["state"] == "stopped"
    assert (HELD in card["text/plain"]) is bool(after)


def test_stop_during_a_retry_wait_is_immediate(notebook: Notebook) -> None:
    notebook.server.default = Reply(status=429, headers={"Retry-After": "50"})
    turn = notebook.start()
    notebook.kernel.wait_until(lambda: len(turn.events("model_failed")) == 3, 60, "three refusals")
    notebook.press(turn)
    turn.wait_over()  # within 15 s, not 50
    assert notebook.server.count() == 3
    assert turn.metadata["reason"] == "cancelled"
