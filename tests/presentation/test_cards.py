"""Cards are valid HTML, show the saved work, and escape text of models."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from nb_agents import events as ev
from nb_agents.presentation.cards import TURN_MIME, card_bundle, card_text, timeline_html
from tests.kit.views import AgentView, RunView, StopView, Timeline, fold, fold_timeline
from tests.presentation.recipe_views import again, began, finished, over, recipe

EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> [x](javascript:alert(1)) ![i](http://e)"
)
VOID = {"br", "hr", "img", "input", "meta", "link", "wbr"}


class Page(HTMLParser):
    """Collects tags, and fails if they are closed in the wrong order."""

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
def test_card_is_valid_html_without_scripts_and_with_one_style_element(state: str) -> None:
    page = Page(card_bundle(EVERY[state], "p")["text/html"])
    assert page.open == []
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe"} & {*tags}
    assert tags.count("style") == 1


@pytest.mark.parametrize("state", EVERY)
def test_all_formats_of_a_card_contain_task_and_state(state: str) -> None:
    bundle = card_bundle(EVERY[state], "p")
    for kind in ("text/html", "text/markdown", "text/plain"):
        assert "compare caches" in bundle[kind]
        assert state in bundle[kind]
    assert bundle[TURN_MIME]["state"] == state


def test_incomplete_card_shows_saved_work_and_how_to_continue() -> None:
    text = card_bundle(STOPPED, ".nb_agents/s/turn_2", None, again(asked=("ben",)))["text/plain"]
    assert "Stopped by you after 4 min 2 s, while coordinating." in text
    assert "1 answer, 1 partial text and 1 file were saved" in text
    assert "ada: answered · voted for ada · best answer so far" in text
    assert "ben: no answer yet · was writing (4 words so far)" in text
    assert "bench/cache.py 2.1 kB" in text
    assert "runs again: 1 model call interrupted or failed (ben)\n" in text
    assert "%agents resume s" in text
    assert "%%agents --continue --session s" in text


def team_of(count: int, *events: ev.Event) -> RunView:
    agents = tuple(ev.AgentInfo(id=f"a{n:02}", model="m") for n in range(1, count + 1))
    started = ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=9, seq=1)
    answers = [ev.AnswerGiven(agent=a.id, answer="An answer. " * 200) for a in agents[2:]]
    failure = ev.AgentFailed(agent="a02", error="The server refused the key (HTTP 401).")
    return fold([started, *answers, failure, *events, ended("cancelled")])


def test_stopped_card_shows_all_agents_folded_and_failed_ones_first() -> None:
    bundle = card_bundle(team_of(12), "p")
    html = bundle["text/html"]
    row = r"<details([^>]*)>\s*<summary[^>]*>\s*<b[^>]*>(a\d\d)</b>(.*?)</summary>"
    rows = re.findall(row, html)
    assert [name for _, name, _ in rows][:3] == ["a02", "a03", "a01"] and len(rows) == 12
    assert not [name for attributes, name, _ in rows if "open" in attributes]
    assert "The server refused the key (HTTP 401)." in rows[0][2]
    assert "nb-more" not in html
    assert "1 agent failed: a02." in html and "1 agent failed: a02." in bundle["text/plain"]


def test_stopped_card_of_many_agents_expands_on_request() -> None:
    assert "nb-more" in card_bundle(team_of(40), "p")["text/html"]


def test_stopped_card_of_one_agent_shows_its_text() -> None:
    assert re.search(r"<details open[^>]*>", card_bundle(team_of(1), "p")["text/html"])


def test_answer_is_rendered_as_markdown() -> None:
    html = card_bundle(COMPLETE, "p")["text/html"]
    assert "<strong>mmap</strong>" in html
    assert "1 answer · 1 vote (ada 1) · presented by ada" in html


def test_texts_of_a_card_have_their_own_direction() -> None:
    answer = "# כותרת\n\nשלום.\n\n1. אחד\n\n| א |\n|---|\n| ב |"
    shown = card_bundle(turn(ended("completed", answer, "a"), task="השווה"), "p")["text/html"]
    directed = re.findall(r"<(\w+)(?= [^>]*dir=auto)", shown)
    assert directed[:5] == ["span", "h1", "p", "ol", "table"]


PLACES: dict[str, Callable[[str], RunView]] = {
    "task": lambda words: turn(ended("cancelled"), task=words),
    "answer": lambda words: turn(ev.AnswerGiven(agent="ada", answer=words), ended("cancelled")),
    "final answer": lambda words: turn(ended("completed", words, "ada")),
    "partial": lambda words: turn(
        ev.TextStreamed(agent="ada", call=1, channel="text", text=words), ended("cancelled")
    ),
    "reason": lambda words: turn(
        ev.AnswerGiven(agent="ada", answer="a"),
        ev.VoteCast(agent="ada", target="ada", reason=words, seen={"ada": 1}),
        ended("cancelled"),
    ),
    "error": lambda words: turn(ev.AgentFailed(agent="ada", error=words), ended("failed")),
    "notice": lambda words: turn(ev.Noticed(text=words), ended("cancelled")),
    "id": lambda words: fold(
        [
            ev.TurnStarted(
                session=words,
                turn=1,
                task="t",
                agents=(ev.AgentInfo(id=words, model=words),),
                timeout_s=1,
            ),
            ended("cancelled"),
        ]
    ),
    "output of a recipe": lambda words: recipe(
        began("publish/send", "bash", asks=words), finished("publish/send", words), over("failed")
    ),
    "file": lambda words: fold(
        [ev.FilesListed(files=(ev.FileInfo(agent="ben", path=words, size=1),), count=1, size=1)],
        STOPPED,
    ),
}
"""The parts of a card that show untrusted text."""


@pytest.mark.parametrize("place", PLACES)
def test_untrusted_text_on_a_card_is_escaped(place: str) -> None:
    page = Page(card_bundle(PLACES[place](EVIL), EVIL)["text/html"])
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert not str(attributes.get("href") or "").startswith(("javascript:", "data:"))


@pytest.mark.parametrize("place", PLACES)
def test_markdown_of_a_card_contains_no_untrusted_html_or_image(place: str) -> None:
    for words in (EVIL, f"```\n{EVIL}", f"x\n\n{EVIL}\n~~~", f"`\n{EVIL}`"):
        markdown = card_bundle(PLACES[place](words), EVIL)["text/markdown"]
        reader = MarkdownIt("commonmark", {"html": True})
        every = [e for t in reader.parse(markdown) for e in (t, *(t.children or ()))]
        assert not {"html_block", "html_inline", "image"} & {each.type for each in every}


@pytest.mark.parametrize("place", PLACES)
def test_card_contains_no_terminal_controls(place: str) -> None:
    words = "before \x1b]52;c;cm0=\x07\x1b[2J\x9b2J\r\x08after\ud800"
    bundle = card_bundle(PLACES[place](words), words)
    for mime in ("text/plain", "text/markdown"):
        controls = {c for c in bundle[mime] if unicodedata.category(c) in ("Cc", "Cs")}
        assert controls <= {"\n"}
        assert "cm0=" not in bundle[mime]


def test_unknown_price_is_not_shown_as_zero() -> None:
    usage = ev.Usage(input_tokens=10, output_tokens=5, cost=None)
    finished = ev.ModelFinished(agent="ada", call=1, response={}, usage=usage)
    html = card_bundle(turn(finished, ended("cancelled")), "p")["text/html"]
    assert "15 tokens" in html
    assert "$" not in html


def test_card_of_another_programs_turn_has_no_unknown_time_or_tokens() -> None:
    agents = {"ada": AgentView("ada", answers=("An answer.",))}
    view = RunView("s", 1, "Why?", "cancelled", agents=agents, ended_at=1.8e9)
    bundle = card_bundle(view, "p")
    assert "Stopped, while coordinating. Nothing was lost: 1 answer was saved.\n" in (
        bundle["text/plain"] + "\n"
    )
    for mime in ("text/plain", "text/html"):
        shown = bundle[mime].replace("\N{NO-BREAK SPACE}", " ")
        assert not re.search(r"\d (s|min|tokens)\b", shown)


@pytest.mark.parametrize(
    ("stop", "ended_at", "said"),
    [
        (None, None, "Cut off when the kernel died"),
        (StopView("requested", "widget", "", 1.0, None), None, "Cut off when the kernel died"),
        (StopView("requested", "widget", "", 1.0, None), 2.0, "Stopped by you"),
        (StopView("requested", "rest", "requested by Kim", 1.0, None), 2.0, "Stopped by Kim"),
        (StopView("requested", "timeout", "", 1.0, None), 2.0, "Timed out"),
    ],
)
def test_card_shows_what_ended_the_turn(
    stop: StopView | None, ended_at: float | None, said: str
) -> None:
    view = replace(turn(), status="cancelled", stop=stop, ended_at=ended_at)
    assert f"**Incomplete turn.** {said} after " in card_bundle(view, "p")["text/plain"]


def test_files_that_are_not_listed_are_counted() -> None:
    named = (ev.FileInfo(agent="ben", path="bench/cache.py", size=2100),)
    view = fold([ev.FilesListed(files=named, count=700, size=9000)], STOPPED)
    bundle = card_bundle(view, "/x")
    assert "700 files" in bundle["text/plain"]
    assert "<span>700 files</span>" in bundle["text/html"]


def test_huge_answer_is_cut_on_the_card() -> None:
    view = turn(ev.AnswerGiven(agent="ada", answer="x" * 1_000_000), ended("cancelled"))
    assert all(len(str(form)) < 200_000 for form in card_bundle(view, "p").values())


# What happened


def told(*events: ev.Event) -> tuple[RunView, Timeline]:
    agents = (ev.AgentInfo(id="ada", model="m1"), ev.AgentInfo(id="ben", model="m2"))
    started = ev.TurnStarted(
        session="s", turn=1, task="t", agents=agents, timeout_s=60, seq=1, at=100.0
    )
    return fold([started, *events]), fold_timeline([started, *events])


def happened(words: str = "a reason") -> tuple[RunView, Timeline]:
    return told(
        ev.ModelStarted(agent="ada", call=1, at=101.0),
        ev.ModelFailed(agent="ada", call=1, error=words, at=102.0),
        ev.ToolStarted(agent="ada", call_id="1", tool=words, summary=words, at=103.0),
        ev.AnswerGiven(agent="ada", answer=f"{words} one two three", at=105.0),
        ev.AnswerGiven(agent="ada", answer=f"{words} one two four", at=106.0),
        ev.UserMessage(text=words, at=107.0),
        ev.VoteCast(agent="ben", target="ada", reason=words, seen={"ada": 2}, at=108.0),
        ev.StopRequested(level="immediate", source="widget", reason=words, at=109.0),
        ev.TurnEnded(status="cancelled", phase="coordinating", at=110.0),
    )


def card(view: RunView, timeline: Timeline) -> str:
    html: str = card_bundle(view, "p", timeline)["text/html"]
    return html


def test_timeline_is_drawn_and_has_a_table_for_pages_without_svg() -> None:
    html = card(*happened())
    page = Page(html)
    assert page.open == []
    [label] = [a["aria-label"] for tag, a in page.tags if tag == "svg" and a.get("role") == "img"]
    assert str(label).replace("\N{NO-BREAK SPACE}", " ") == (
        "Timeline of 2 agents over 10 s: 1 model call, 1 tool call, 2 answers, 1 vote, 1 stop"
    )
    # A sanitiser keeps `hidden` and drops the style element; tests/browser has seen it.
    [shown] = re.findall(r"<div hidden=hidden class=(\w+)>", html)
    assert f".{shown}{{display:flow-root}}" in html
    [hidden] = re.findall(r"<div class=(\w+)><?\n?<table", html)[:1]
    assert f".{hidden}{{display:none}}" in html
    assert "5\N{NO-BREAK SPACE}s · answer 1" in html


def test_panel_has_only_the_picture_of_the_timeline() -> None:
    view, timeline = happened("<script>alert(1)</script>")
    drawn = timeline_html(timeline, has_steps=False)
    [picture] = re.findall(r"<svg role=.*?</svg></div>", drawn, re.DOTALL)
    assert picture in card(view, timeline)
    assert "<table" not in drawn
    assert "<script" not in drawn
    assert timeline_html(Timeline(), has_steps=False) == ""


def test_card_shows_votes_and_changes_of_answers() -> None:
    html = card(*happened())
    assert "→ ada" in html
    assert ">three</del>" in html
    assert ">four</ins>" in html


def test_card_without_a_journal_shows_the_answers() -> None:
    html = card(COMPLETE, Timeline())
    assert 'role="img"' not in html
    assert "What happened · 1 answer · 1 vote (ada 1) · presented by ada" in html


def test_untrusted_text_in_the_history_is_escaped() -> None:
    page = Page(card(*happened(f"\"'>{EVIL}</title></svg><svg onload=alert(1)>")))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, a in page.tags for name in a)


def test_card_of_a_long_turn_has_a_limited_size() -> None:
    agents = tuple(ev.AgentInfo(id=f"agent_{n}", model="m") for n in range(10))
    events: list[ev.Event] = [
        ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=9, at=1.0)
    ]
    for n in range(6000):
        agent, at = f"agent_{n % 10}", 1.0 + n
        events += [
            ev.ToolStarted(agent=agent, call_id=str(n), tool="x" * 999, summary="y" * 999, at=at),
            ev.ToolFinished(agent=agent, call_id=str(n), tool="x", outcome="ok", at=at + 1),
            ev.VoteCast(agent=agent, target="agent_0", reason="z" * 999, at=at),
        ]
    # The view's fold is not for so many; the picture is of the timeline alone.
    html = card(fold([events[0], ended("cancelled")]), fold_timeline(events))
    assert len(html) < 300_000


# The buttons


def button(view: RunView, path: str, value: str = "resume") -> dict[str, str | None] | None:
    page = Page(card_bundle(view, path)["text/html"])
    buttons = (attributes for tag, attributes in page.tags if tag == "button")
    return next((each for each in buttons if each["value"] == value), None)


def line_of(view: RunView, path: str) -> str:
    found = button(view, path)
    assert found is not None
    assert found["data-commandlinker-command"] == "apputils:run-all-enabled"
    args = json.loads(str(found["data-commandlinker-args"]))
    assert [name.partition(":")[0] for name in args["commands"]] == ["notebook"] * 3
    load, line = args["args"]["text"].splitlines()
    assert "nb_agents" in load
    return str(line)


def named(session: str) -> RunView:
    return fold(
        [
            ev.TurnStarted(session=session, turn=2, task="t", agents=(), timeout_s=1, seq=1),
            ended("cancelled"),
        ]
    )


def test_button_runs_the_shown_line() -> None:
    path = ".nb_agents/sessions/s/turn_2"
    assert line_of(STOPPED, path) == "%agents resume s"
    assert "\n%agents resume s\n" in card_bundle(STOPPED, path)["text/plain"].replace("    ", "")


@pytest.mark.parametrize("state", ["complete", "running"])
def test_card_that_cannot_be_resumed_has_no_button(state: str) -> None:
    assert button(EVERY[state], "p") is None


def test_continue_button_adds_the_shown_cell_without_a_task() -> None:
    found = button(STOPPED, ".nb_agents/sessions/s/turn_2", "continue")
    assert found is not None
    args = json.loads(str(found["data-commandlinker-args"]))
    assert args["args"]["text"] == "%%agents --continue --session s\n"
    assert "notebook:run-cell" not in args["commands"]
    assert button(EVERY["complete"], "p", "continue") is None


def test_stopped_turn_that_failed_can_be_resumed_from_its_card() -> None:
    assert line_of(FAILED, "p") == "%agents resume s"


@pytest.mark.parametrize("name", ["--trust", '"x" --trust "y'])
def test_session_named_like_an_option_has_no_resume_line(name: str) -> None:
    made = card_bundle(named(name), f".nb_agents/sessions/{name}/turn_2")
    assert "%agents resume" not in str(made)
    assert button(named(name), f".nb_agents/sessions/{name}/turn_2") is None


def test_session_in_another_root_is_named_with_it(tmp_path: Path) -> None:
    root = tmp_path / "my sessions"
    line = line_of(named("a b"), str(root / "a b" / "turn_2"))
    words = shlex.split(line)
    assert words == ["%agents", "resume", "a b", "--session-root", str(root)]


@pytest.mark.parametrize("name", ["{print(1)}", "$HOME", 'a"b', "a'b", "a;b", "a?", "a\nb", "!ls"])
def test_name_that_ipython_would_expand_has_no_button(name: str) -> None:
    assert button(named(name), "p") is None
    assert button(named(name), "p", "continue") is None


# Agents that others called


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_card_shows_text_and_files_of_called_agents(
    status: Any,
) -> None:
    agent = "ada/critic#1"
    started = ev.TurnStarted(
        session="s",
        turn=1,
        task="t",
        agents=(ev.AgentInfo(id="ada", model="m"), ev.AgentInfo(id="ben", model="m")),
        timeout_s=1,
        at=1000.0,
    )
    view = fold(
        [
            started,
            ev.AgentCalled(
                agent=agent, caller="ada", name="critic", model="m", workspace="w", input="?"
            ),
            ev.ModelStarted(agent=agent, call=1),
            ev.TextStreamed(agent=agent, call=1, channel="text", text="It is too long."),
            ev.AgentEnded(agent=agent, outcome="finished"),
            ev.TurnEnded(status=status, phase="coordinating", at=1003.0),
            ev.FilesListed(
                files=(ev.FileInfo(agent="w", path="notes.md", size=3),), count=1, size=3
            ),
        ]
    )
    bundle = card_bundle(view, "p", fold_timeline([started]))
    assert "notes.md" in bundle["text/html"]
    if status == "cancelled":
        assert "It is too long." in bundle["text/html"]
        assert (
            "#### ada/critic#1: complete\nIt is too long.\nFiles: notes.md 3 B"
            in bundle["text/plain"]
        )


def test_card_shows_which_agents_resume_exactly() -> None:
    does = replace(again(asked=("ben",)), goes_on=("ada",))
    for text in card_bundle(STOPPED, "p", None, does)["text/plain"], card_text(STOPPED, "p", does):
        assert "; from their transcript: ada; exactly: ben\n" in text
    assert "exactly" not in card_text(STOPPED, "p", again(asked=("ben",)))


def test_card_shows_what_a_resume_repeats_if_known() -> None:
    does = again(asked=("ada", "ben"))
    for text in card_bundle(STOPPED, "p", None, does)["text/plain"], str(does):
        assert "uns again: 2 model calls interrupted or failed (ada, ben)" in text
    assert "runs again" not in card_bundle(STOPPED, "p")["text/plain"]
    assert "# same task, from here\n" in card_bundle(STOPPED, "p")["text/plain"]


def test_card_of_a_live_turn_shows_its_state_and_how_to_resume() -> None:
    view = turn(
        ev.AnswerGiven(agent="ada", answer="Use *mmap*.", seq=2, at=101.0),
        ev.TextStreamed(agent="ben", text="I think", channel="text", call=1, seq=3, at=102.0),
    )
    bundle = card_bundle(view, "s/turn_2")
    assert bundle[TURN_MIME]["state"] == "running"
    Page(bundle["text/html"])
    for told in (bundle["text/html"], bundle["text/plain"]):
        assert "live when this was written" in told
        assert "%agents show s/2" in told and "%agents resume s" in told
    assert "Use <em>mmap</em>." in bundle["text/html"]
    assert "Being written:" in bundle["text/html"]
