"""Follow-up texts on panel and card, and that a panel's two messages are one text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nb_agents import events as ev
from nb_agents.jupyter.kernel import do_as_asked
from nb_agents.presentation.cards import card_bundle
from nb_agents.presentation.panel_state import panel_state
from nb_agents.testing import Answer, Gate, ScriptedModel
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView
from tests.team_kit import finish, start

SAID = ev.Said(text="And <b>briefly</b>.")


def view_of(*events: ev.Event) -> RunView:
    agents = tuple(ev.AgentInfo(id=a, model="m") for a in ("ada", "ben", "cleo"))
    started = ev.TurnStarted(
        session="s", turn=2, task="t", agents=agents, timeout_s=1800, seq=1, at=1000.0
    )
    return fold([started, *events])


def hears(agent: str, heard: int = 1) -> ev.Event:
    return ev.Told(agent=agent, text="t", heard=heard)


def state(*events: ev.Event) -> dict[str, object]:
    shown = panel_state(view_of(*events), "r1", 1001.0)
    return {name: shown[name] for name in ("can_say", "said")}


def test_a_running_panel_takes_a_text_and_shows_who_has_read_the_last() -> None:
    assert state() == {"can_say": True, "said": None}
    text = "And <b>briefly</b>."
    assert state(SAID)["said"] == {"text": text, "read": "read by 0 of 3"}
    assert state(SAID, hears("ben"))["said"] == {"text": text, "read": "read by 1 of 3"}
    assert state(SAID, *map(hears, ("ada", "ben", "cleo")))["said"] == {
        "text": text,
        "read": "read by all",
    }
    later = state(SAID, hears("ben"), ev.Said(text="Two."), hears("ada", 2))
    assert later["said"] == {"text": "Two.", "read": "read by 1 of 3"}


def test_one_that_is_out_is_not_waited_for_to_read_it() -> None:
    out = ev.AgentFailed(agent="cleo", error="e")
    read = [SAID, hears("ada"), hears("ben"), out]
    assert state(*read)["said"] == {"text": "And <b>briefly</b>.", "read": "read by all"}


def test_one_that_is_called_is_not_waited_for_to_read_it() -> None:
    fields = {"name": "critic", "model": "m", "workspace": "w", "input": "i"}
    called = ev.AgentCalled(agent="ada/critic#1", caller="ada", **fields)
    read = [called, SAID, *map(hears, ("ada", "ben", "cleo"))]
    assert state(*read)["said"] == {"text": "And <b>briefly</b>.", "read": "read by all"}


def test_while_presenting_the_presenter_alone_is_to_read_it() -> None:
    presents = ev.PresentationStarted(agent="ben")
    assert state(presents, SAID)["said"] == {
        "text": "And <b>briefly</b>.",
        "read": "read by 0 of 1",
    }


def test_a_panel_that_is_stopping_or_over_takes_no_text() -> None:
    stop = ev.StopRequested(level="requested", source="widget")
    assert state(stop)["can_say"] is False
    over = ev.TurnEnded(status="completed", phase="presenting", winner="ada", answer="x")
    assert state(over)["can_say"] is False


def test_a_text_clears_the_votes_and_shows_nobody_as_having_voted() -> None:
    given = ev.AnswerGiven(agent="ada", answer="x")
    vote = ev.VoteCast(agent="ben", target="ada", reason="best", seen={"ada": 1})
    view = view_of(given, vote, SAID)
    assert view.votes == {}
    assert view.agents["ben"].phase == "waiting"
    presented = view_of(given, vote, ev.PresentationStarted(agent="ada"), SAID)
    assert presented.votes == {"ada": 1}


def test_the_card_names_the_texts_that_nobody_had_read_and_no_other() -> None:
    ended = ev.TurnEnded(status="cancelled", phase="coordinating", at=1010.0)
    stop = ev.StopRequested(level="immediate", source="widget")
    read, late = ev.Said(text="Read."), ev.Said(text="Late <i>one</i>.")
    card = card_bundle(view_of(read, hears("ada"), late, stop, ended), "p")
    line = "No agent had read this yet; the next turn has it: “Late <i>one</i>.”"
    assert f"> {line}" in card["text/plain"]
    assert line.replace("<", "&lt;").replace(">", "&gt;") in card["text/html"]
    assert "“Read.”" not in card["text/plain"]


def refusal(run: str, text: str, message_id: str) -> str:
    return do_as_asked("say", {"run": run, "text": text, "id": message_id}).refusal


def test_a_panels_two_messages_are_one_text_and_two_texts_are_two(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate), Answer("B")))
    gate.wait_reached()
    with ThreadPoolExecutor(4) as pool:
        sent = [("One.", "id-1"), ("One.", "id-1"), ("One.", "id-2"), ("One.", "id-2")]
        assert list(pool.map(lambda each: refusal(run.id, *each), sent)) == [""] * 4
    assert run.view.said == ("One.", "One.")
    gate.open()
    finish(run)


def test_a_text_that_is_refused_is_so_in_a_sentence_and_may_be_sent_again(tmp_path: Path) -> None:
    assert "No run" in refusal("nobody", "x", "id-3")
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate), Answer("B")))
    gate.wait_reached()
    assert refusal(run.id, "  ", "id-4") == (
        "The text is empty. Write what the agents should know."
    )
    assert refusal(run.id, "x", "id-4") == ""
    gate.open()
    finish(run)
    assert f"Run {run.id} is over." in refusal(run.id, "y", "id-5")
    assert run.view.said == ("x",)
