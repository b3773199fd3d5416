"""Messages to agents on panel and card. A panel's message that arrives twice counts once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nb_agents import events as ev
from nb_agents.testing import Answer, Gate, ScriptedModel
from tests.kit.cards import card_bundle, panel_state
from tests.kit.cells import handle_page_request
from tests.kit.views import RunView, fold
from tests.team_kit import finish, start

SAID = ev.UserMessage(text="And <b>briefly</b>.")


def view_of(*events: ev.Event) -> RunView:
    agents = tuple(ev.AgentInfo(id=a, model="m") for a in ("ada", "ben", "cleo"))
    started = ev.TurnStarted(
        session="s", turn=2, task="t", agents=agents, timeout_s=1800, seq=1, at=1000.0
    )
    return fold([started, *events])


def hears(agent: str, heard: int = 1) -> ev.Event:
    return ev.NoteSent(agent=agent, text="t", heard=heard)


def state(*events: ev.Event) -> dict[str, object]:
    shown = panel_state(view_of(*events), "r1", 1001.0)
    return {name: shown[name] for name in ("can_say", "said")}


def test_running_panel_accepts_messages_and_shows_who_read_the_last() -> None:
    assert state() == {"can_say": True, "said": None}
    text = "And <b>briefly</b>."
    assert state(SAID)["said"] == {"text": text, "read": "read by 0 of 3"}
    assert state(SAID, hears("ben"))["said"] == {"text": text, "read": "read by 1 of 3"}
    assert state(SAID, *map(hears, ("ada", "ben", "cleo")))["said"] == {
        "text": text,
        "read": "read by all",
    }
    later = state(SAID, hears("ben"), ev.UserMessage(text="Two."), hears("ada", 2))
    assert later["said"] == {"text": "Two.", "read": "read by 1 of 3"}


def test_finished_agent_does_not_count_as_reader() -> None:
    out = ev.AgentFailed(agent="cleo", error="e")
    read = [SAID, hears("ada"), hears("ben"), out]
    assert state(*read)["said"] == {"text": "And <b>briefly</b>.", "read": "read by all"}


def test_called_agent_does_not_count_as_reader() -> None:
    fields = {"name": "critic", "model": "m", "workspace": "w", "input": "i"}
    called = ev.AgentCalled(agent="ada/critic#1", caller="ada", **fields)
    read = [called, SAID, *map(hears, ("ada", "ben", "cleo"))]
    assert state(*read)["said"] == {"text": "And <b>briefly</b>.", "read": "read by all"}


def test_only_the_presenter_counts_as_reader_while_presenting() -> None:
    presents = ev.PresentationStarted(agent="ben")
    assert state(presents, SAID)["said"] == {
        "text": "And <b>briefly</b>.",
        "read": "read by 0 of 1",
    }


def test_stopping_or_finished_panel_accepts_no_message() -> None:
    stop = ev.StopRequested(level="requested", source="widget")
    assert state(stop)["can_say"] is False
    over = ev.TurnEnded(status="completed", phase="presenting", winner="ada", answer="x")
    assert state(over)["can_say"] is False


def test_message_clears_votes() -> None:
    given = ev.AnswerGiven(agent="ada", answer="x")
    vote = ev.VoteCast(agent="ben", target="ada", reason="best", seen={"ada": 1})
    view = view_of(given, vote, SAID)
    assert view.votes == {}
    assert view.agents["ben"].phase == "waiting"
    presented = view_of(given, vote, ev.PresentationStarted(agent="ada"), SAID)
    assert presented.votes == {"ada": 1}


def test_card_lists_only_unread_messages() -> None:
    ended = ev.TurnEnded(status="cancelled", phase="coordinating", at=1010.0)
    stop = ev.StopRequested(level="immediate", source="widget")
    read, late = ev.UserMessage(text="Read."), ev.UserMessage(text="Late <i>one</i>.")
    card = card_bundle(view_of(read, hears("ada"), late, stop, ended), "p")
    line = "No agent has read this message yet. The next turn includes it: “Late <i>one</i>.”"
    assert f"> {line}" in card["text/plain"]
    assert line.replace("<", "&lt;").replace(">", "&gt;") in card["text/html"]
    assert "“Read.”" not in card["text/plain"]


def refusal(run: str, text: str, message_id: str) -> str:
    return handle_page_request("say", {"run": run, "text": text, "id": message_id}).refusal


def test_message_sent_twice_counts_once_and_two_messages_count_twice(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate), Answer("B")))
    gate.wait_reached()
    with ThreadPoolExecutor(4) as pool:
        sent = [("One.", "id-1"), ("One.", "id-1"), ("One.", "id-2"), ("One.", "id-2")]
        assert list(pool.map(lambda each: refusal(run.id, *each), sent)) == [""] * 4
    assert run.view.said == ("One.", "One.")
    gate.open()
    finish(run)


def test_refused_message_has_a_reason_and_can_be_sent_again(tmp_path: Path) -> None:
    assert "No run" in refusal("nobody", "x", "id-3")
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate), Answer("B")))
    gate.wait_reached()
    assert refusal(run.id, "  ", "id-4") == (
        "The message is empty. Write what the agents should know."
    )
    assert refusal(run.id, "x", "id-4") == ""
    gate.open()
    finish(run)
    assert f"Run {run.id} is over." in refusal(run.id, "y", "id-5")
    assert run.view.said == ("x",)
