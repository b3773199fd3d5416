"""A run whose request was refused for its length: each offer of its card works when followed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from nb_agents import events as ev
from tests.cli.calls import call_here
from tests.cli.conftest import write_team
from tests.hard_window import HardWindow
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, Request, ToolCall

WINDOW = 6000
FAILED = 1
TASK = "Read all documents."
OFF = "context: {fold: off}\n"
DOCUMENTS = 12
TOOLS = '''def lookup(n: int) -> str:
    """Return a document.

    Args:
        n: Its number.
    """
    return f"Document {n} has the code C{n}X. " + "so on " * 330
'''


def lookups(place: Path) -> list[int]:
    """Return the documents that the agent has read in all turns, in order."""
    journals = sorted(place.glob(".nb_agents/sessions/session_*/turn_*/events.jsonl"))
    events = [event for path in journals for event in read_journal(path).events]
    return [json.loads(e.args)["n"] for e in events if isinstance(e, ev.ToolStarted)]


def reads(window: int) -> HardWindow:
    """Return a model that reads the first document that it has not seen, and then answers."""

    def reply(request: Request) -> Reply:
        if "Write the summary now" in request.prompt[-2000:]:
            return Reply("All documents so far are about caches.")
        text = request.prompt.replace("\\\\", "").replace('\\"', '"')
        last = max(map(int, re.findall(r'"n":\s*(\d+)', text)), default=0)
        if last < DOCUMENTS:
            call = ToolCall("custom_tool__lookup", {"n": last + 1})
            return Reply("", (call,))
        return Reply("", (ToolCall("new_answer", {"content": "All read."}),))

    return HardWindow(window, reply)


@pytest.fixture
def card(place: Path, server: ModelServer) -> str:
    """The card of a run whose request was refused, because folding is off."""
    (place / "tools.py").write_text(TOOLS)
    write_team(place, server, keys=", custom_tools: [{path: tools.py, function: lookup}]")
    with (place / "team.yaml").open("a") as file:
        file.write(OFF)
    server.script("m", reads(WINDOW))
    server.script("large", reads(10 * WINDOW))
    return call_here("run", "-c", "team.yaml", TASK, code=FAILED)


def offers(card: str) -> dict[str, list[str]]:
    """Return the arguments of the commands in the advice of a card."""
    (advice,) = [line for line in card.splitlines() if "is too long for its model" in line]
    fold, model, start, log = re.findall(r"`nb-agents ([^`]*)`", advice)
    return {
        "fold": shlex.split(fold.replace("FILE", "team.yaml")),
        "model": shlex.split(model.replace("PROVIDER:MODEL", "vllm:large")),
        "rewind": shlex.split(start),
        "log": shlex.split(log),
    }


def test_card_of_a_refused_request_offers_no_resume(card: str) -> None:
    assert "nb-agents resume" not in card
    assert [words[0] for words in offers(card).values()] == ["rewind"] * 3 + ["log"]
    assert "nb-agents resume" not in call_here("show")


def test_session_list_offers_the_same_as_the_card(card: str) -> None:
    (session,) = json.loads(call_here("sessions", "--json"))
    (turn,) = session["turns"]
    assert turn["instead"] in " ".join(card.split())


def test_offered_fold_continues_the_refused_turn(
    place: Path, server: ModelServer, card: str
) -> None:
    team = place / "team.yaml"
    team.write_text(team.read_text().replace(OFF, "context: {fold: summary}\n"))
    assert "All read." in call_here(*offers(card)["fold"])
    assert lookups(place) == list(range(1, DOCUMENTS + 1))


def test_offered_model_continues_the_refused_turn(
    place: Path, server: ModelServer, card: str
) -> None:
    assert "All read." in call_here(*offers(card)["model"])
    assert lookups(place) == list(range(1, DOCUMENTS + 1))
    assert server.requests[-1].body["model"] == "large"


def test_offered_rewind_starts_at_a_listed_checkpoint(server: ModelServer, card: str) -> None:
    log = call_here(*offers(card)["log"])
    assert "custom_tool__lookup" in log
    server.script("m", Reply("", (ToolCall("new_answer", {"content": "Read less."}),)))
    assert "Read less." in call_here(*offers(card)["rewind"])
