"""The card is whole HTML, says what was kept, and never lets what a model wrote become markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from nb_agents import events as ev
from nb_agents.jupyter.cards import TURN_MIME, card_bundle
from nb_agents.view import RunView, fold

EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> [x](javascript:alert(1)) ![i](http://e)"
)
VOID = {"br", "hr", "img", "input", "meta", "link"}


class Page(HTMLParser):
    """Collects tags, and fails on one that is closed in the wrong order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def turn(*events: ev.Event, task: str = "compare caches") -> RunView:
    agents = (ev.AgentInfo(id="ada", model="m1"), ev.AgentInfo(id="ben", model="m2"))
    started = ev.TurnStarted(
        session="s", turn=2, task=task, agents=agents, timeout_s=1800, seq=1, at=100.0
    )
    return fold([started, *events])


def ended(status: Any, answer: str = "", winner: str = "") -> ev.TurnEnded:
    files = (ev.FileInfo(agent="ben", path="bench/cache.py", size=2100),)
    return ev.TurnEnded(
        status=status, phase="coordinating", answer=answer, winner=winner, files=files, at=342.0
    )


STOPPED = turn(
    ev.AnswerGiven(agent="ada", answer="take the **mmap** store"),
    ev.VoteCast(agent="ada", target="ada", reason="best", seen={"ada": 1}),
    ev.ModelStarted(agent="ben", call=1),
    ev.TextStreamed(agent="ben", call=1, channel="text", text="the benchmark so far "),
    ev.StopRequested(level="immediate", source="widget"),
    ev.ModelCut(agent="ben", call=1),
    ended("cancelled"),
)
COMPLETE = turn(
    ev.AnswerGiven(agent="ada", answer="draft"),
    ev.VoteCast(agent="ada", target="ada", reason="best", seen={"ada": 1}),
    ended("completed", "Use **mmap**.", "ada"),
)
FAILED = turn(ev.AgentFailed(agent="ada", error="m1: refused (HTTP 401)."), ended("failed"))
EVERY = {"stopped": STOPPED, "complete": COMPLETE, "failed": FAILED, "running": turn()}


@pytest.mark.parametrize("state", EVERY)
def test_a_card_is_whole_html_with_no_script_and_no_style_sheet(state: str) -> None:
    page = Page(card_bundle(EVERY[state], "p")["text/html"])
    assert page.open == []
    assert not {"script", "style", "link", "img", "iframe"} & {tag for tag, _ in page.tags}


@pytest.mark.parametrize("state", EVERY)
def test_all_forms_of_a_card_name_the_task_and_the_state(state: str) -> None:
    bundle = card_bundle(EVERY[state], "p")
    for kind in ("text/html", "text/markdown", "text/plain"):
        assert "compare caches" in bundle[kind]
        assert state in bundle[kind]
    assert bundle[TURN_MIME]["state"] == state


def test_an_incomplete_card_says_who_had_what_and_how_to_go_on() -> None:
    text = card_bundle(STOPPED, ".nb_agents/s/turn_2")["text/plain"]
    assert "Stopped by you after 4 min 2 s, while coordinating." in text
    assert "1 answer, 1 partial text and 1 file are kept" in text
    assert "ada: answered · voted for ada · best answer so far" in text
    assert "ben: no answer yet · was writing (4 words kept)" in text
    assert "bench/cache.py 2.1 kB" in text
    assert "runs again: 1 model call (ben)" in text
    assert "%agents resume s" in text
    assert "%%agents --continue --session s" in text


def test_an_answer_is_rendered_as_markdown() -> None:
    html = card_bundle(COMPLETE, "p")["text/html"]
    assert "<strong>mmap</strong>" in html
    assert "1 answer · 1 vote (ada 1) · presented by ada" in html


@pytest.mark.parametrize("place", ["task", "answer", "partial", "reason", "error", "notice", "id"])
def test_nothing_that_was_written_becomes_markup(place: str) -> None:
    view = {
        "task": lambda: turn(ended("cancelled"), task=EVIL),
        "answer": lambda: turn(ev.AnswerGiven(agent="ada", answer=EVIL), ended("cancelled")),
        "partial": lambda: turn(
            ev.TextStreamed(agent="ada", call=1, channel="text", text=EVIL), ended("cancelled")
        ),
        "reason": lambda: turn(
            ev.AnswerGiven(agent="ada", answer="a"),
            ev.VoteCast(agent="ada", target="ada", reason=EVIL, seen={"ada": 1}),
            ended("cancelled"),
        ),
        "error": lambda: turn(ev.AgentFailed(agent="ada", error=EVIL), ended("failed")),
        "notice": lambda: turn(ev.Noticed(text=EVIL), ended("cancelled")),
        "id": lambda: fold(
            [
                ev.TurnStarted(
                    session=EVIL,
                    turn=1,
                    task="t",
                    agents=(ev.AgentInfo(id=EVIL, model=EVIL),),
                    timeout_s=1,
                ),
                ended("cancelled"),
            ]
        ),
    }[place]()
    page = Page(card_bundle(view, EVIL)["text/html"])
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert not str(attributes.get("href") or "").startswith(("javascript:", "data:"))


def test_an_unknown_price_is_never_shown_as_nothing() -> None:
    usage = ev.Usage(input_tokens=10, output_tokens=5, cost=None)
    finished = ev.ModelFinished(agent="ada", call=1, response={}, usage=usage)
    html = card_bundle(turn(finished, ended("cancelled")), "p")["text/html"]
    assert "15 tok" in html.replace("\N{NO-BREAK SPACE}", " ")
    assert "$" not in html


def test_a_huge_answer_is_cut_on_the_card() -> None:
    view = turn(ev.AnswerGiven(agent="ada", answer="x" * 1_000_000), ended("cancelled"))
    assert all(len(str(form)) < 200_000 for form in card_bundle(view, "p").values())
