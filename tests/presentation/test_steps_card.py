"""The card of a recipe: outputs, finished, interrupted and next steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.presentation.steps_card import MAX_VALUES, steps_card
from nb_agents.testing import Call, Gate, ScriptedModel, Turn
from tests.cli.calls import call_here
from tests.kit.cards import answers_of, as_html, card_bundle, units
from tests.kit.runs import Preview
from tests.kit.teams import TeamSpec
from tests.kit.views import RunView, Timeline, fold, fold_timeline
from tests.presentation.recipe_views import (
    OUTLINE,
    again,
    asked,
    began,
    called,
    finished,
    over,
    recipe,
    wrote,
)
from tests.presentation.test_cards import EVIL, Page
from tests.recipes.live import answering, begin, write
from tests.team_kit import WAIT_S, finish

GATHERED = (
    began("gather", "stage"),
    *wrote("gather/draft", "the **draft**"),
    finished("gather/draft", "the **draft**"),
    began("gather/each", "foreach", total=2),
    began("gather/each[0]", "bash"),
    finished("gather/each[0]", "one"),
    began("gather/each[1]", "bash"),
    finished("gather/each[1]", "two"),
    finished("gather/each"),
    asked("gather", "Use it?"),
)
APPROVED = (
    ev.ApprovalGiven(step="gather", approved=True, message="go on", by="ada", at=1011.0),
    finished("gather", at=1011.0),
    began("publish", "stage"),
    began("publish/send", "bash", asks="make all"),
)
OUTPUTS = {
    "draft": "the **draft**",
    "final_output": "It **is** done",
    "figures": {"pages": 3},
}
STOP = ev.StopRequested(level="immediate", source="widget")
WRITES = ev.OutputStreamed(step="publish/send", text="page 1 of 3\n")

COMPLETE = recipe(
    *GATHERED, *APPROVED, finished("publish/send", "sent"), over("completed", outputs=OUTPUTS)
)
CUT = recipe(*GATHERED, *APPROVED, WRITES, STOP, over("cancelled", next=("publish/send",)))
AT_GATE = recipe(*GATHERED, STOP, over("cancelled", next=("gather",)))
FAILED = recipe(
    *GATHERED,
    *APPROVED,
    ev.StepFailed(step="publish/send", attempt=2, error="no network", attempts=2),
    finished("publish/send", outcome="failed", why="no network"),
    finished("publish", outcome="failed", why="no network"),
    ev.Noticed(text="The recipe failed at publish/send: no network"),
    over("failed"),
)
DIED = replace(recipe(*GATHERED, *APPROVED, WRITES), status="cancelled")
"""A turn whose process died: cancelled, and without an end."""
CRITIC, SECOND, EXPERT = (
    f"gather/draft/{name}" for name in ("critic#1", "critic#2", "critic#2/expert#1")
)
ASKING = (
    began("gather", "stage"),
    *wrote("gather/draft", "I ask."),
    ev.ModelFinished(agent="gather/draft", call=1, response={}, usage=ev.Usage()),
    *called(CRITIC, "It is **too long**"),
    ev.AgentEnded(agent=CRITIC, outcome="finished"),
    *called(SECOND, "half a sen"),
    *called(EXPERT, "a quarter"),
)
CUT_ASKING = recipe(
    *ASKING,
    STOP,
    ev.AgentEnded(agent=EXPERT, outcome="killed"),
    ev.AgentEnded(agent=SECOND, outcome="killed"),
    ev.ToolFinished(agent="gather/draft", call_id="1", tool="call_agent", outcome="cut"),
    over("cancelled", next=("gather/draft",)),
)
EVERY = {
    "complete": COMPLETE,
    "cut": CUT,
    "gate": AT_GATE,
    "failed": FAILED,
    "died": DIED,
    "running": recipe(*GATHERED),
    "calling": CUT_ASKING,
    "bare": recipe(over("completed"), outline=()),
}


def html(view: RunView, timeline: Timeline | None = None, preview: Preview | None = None) -> str:
    return str(card_bundle(view, "p", timeline, preview)["text/html"])


def plain(view: RunView, preview: Preview | None = None) -> str:
    return str(card_bundle(view, "p", None, preview)["text/plain"])


@pytest.mark.parametrize("state", EVERY)
def test_recipe_card_is_valid_html_without_scripts(state: str) -> None:
    page = Page(html(EVERY[state]))
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}


@pytest.mark.parametrize("state", EVERY)
def test_recipe_card_has_no_wording_of_teams(state: str) -> None:
    timeline = fold_timeline([*GATHERED, *APPROVED, over("cancelled")])
    drawn = html(EVERY[state], timeline).replace("nb-answer", "")
    for shown in (drawn, plain(EVERY[state])):
        assert not [word for word in ("answer", "vote", "presented") if word in shown.lower()]


@pytest.mark.parametrize("state", EVERY)
def test_display_data_lists_answers_in_the_order_of_the_card(
    state: str,
) -> None:
    bundle = card_bundle(EVERY[state], "p")
    places = bundle["text/html"].split("<div class=nb-answer")[1:]
    answers = answers_of(bundle)
    assert len(places) == len(answers)
    for place, written in zip(places, answers, strict=True):
        assert place.partition(">")[2].startswith(str(as_html(written))[:40].partition(" ")[0])
        assert written.split()[-1].strip("*") in place


def test_complete_card_shows_the_final_output_first() -> None:
    text = plain(COMPLETE)
    places = [text.index(name) for name in ("**final_output**", "**draft**", "**figures**")]
    assert places == sorted(places)
    shown = html(COMPLETE)
    assert "It <strong>is</strong> done" in shown
    assert "&#34;pages&#34;: 3" in shown


def test_last_output_is_first_without_a_final_output() -> None:
    view = recipe(over("completed", outputs={"a": "first", "b": "last"}))
    assert plain(view).index("**b**") < plain(view).index("**a**")


def test_result_of_a_recipe_without_outputs_is_shown_everywhere(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: [{id: ask, agent: worker, prompt: 'Why?'}]\n")
    run = finish(begin(path, answering("Forty-two *words*.")))
    assert run.result == (run.path / "answer.txt").read_text() == "Forty-two *words*."
    bundle = card_bundle(run.view, str(run.path))
    assert "Forty-two <em>words</em>." in bundle["text/html"]
    assert "no outputs" not in bundle["text/html"]
    printed = call_here("show", "s", "--session-root", str(tmp_path / "sessions"))
    for told in (bundle["text/plain"], printed):
        assert told.count("Forty-two *words*.") == 1


def test_complete_card_shows_text_that_is_not_in_an_output() -> None:
    view = recipe(
        *wrote("gather/draft", "A draft."),
        finished("gather/draft", "A draft."),
        *wrote("gather/each", "In one list."),
        finished("gather/each", "In one list."),
        *wrote("publish/send", 'Here: {"sent": "yes"}'),
        finished("publish/send", 'Here: {"sent": "yes"}'),
        over("completed", outputs={"sent": {"sent": "yes"}, "all": ["In one list."]}),
    )
    assert [(v.name, v.text) for v in steps_card(view).aside] == [("gather/draft", "A draft.")]


def test_complete_card_lists_steps_and_decisions() -> None:
    text = plain(COMPLETE)
    assert "  - draft · writer · gpt-5-mini · complete · 2.0 s" in text
    assert "  - each · for each · bash · complete · 2.0 s" in text
    assert "The gate of gather was approved by ada: go on" in text
    assert "The gate of gather was approved by ada: go on" in html(COMPLETE)


def test_stopped_card_lists_complete_interrupted_and_next_steps() -> None:
    does = again("publish/send", cut=("publish/send",))
    text = plain(CUT, does)
    assert "Stopped by you after 20 s, during publish/send. Nothing was lost: " in text
    assert "3 finished steps and 1 partial text were saved." in text
    for part in (
        "#### Cut off",
        "    page 1 of 3",
        "- publish/send again",
        "#### Complete",
        "    two",
    ):
        assert part in text
    assert f"runs again: {does.runs_again}\n" in text
    assert "%agents resume s" in text
    assert "--continue" not in text + html(CUT)
    for part in ("page 1 of 3", "publish/send again", "Resume</button>"):
        assert part in html(CUT, preview=does)


def test_card_shows_text_of_an_interrupted_agent() -> None:
    words = wrote("gather/draft", "half a **sen")
    view = recipe(
        began("gather", "stage"),
        *words,
        STOP,
        ev.ModelCut(agent="gather/draft", call=1),
        over("cancelled", next=("gather/draft",)),
    )
    does = again("gather/draft", asked=("gather/draft",))
    assert "half a **sen" in plain(view, does)
    assert "runs again: 1 model call interrupted or failed (gather/draft)\n" in plain(view, does)
    assert "then 2 more" in html(view, preview=does)


def test_card_of_a_stop_at_a_gate_says_that_it_is_asked_again() -> None:
    does = again("gather", gates=("gather",))
    text = plain(AT_GATE, does)
    assert "at the gate of gather" in text
    assert "- the gate of gather" in text
    assert "#### A resume asks again\n\n- gather: Use it?" in text
    assert "A resume asks again" in html(AT_GATE, preview=does)


def test_gate_of_an_earlier_turn_is_asked_again() -> None:
    resumed = recipe(*GATHERED[:-1], STOP, over("cancelled"))
    text = plain(resumed, again("gather", gates=("gather",)))
    assert "#### A resume asks again\n\n- gather\n" in text


def test_resume_does_not_ask_again_for_a_denied_tool_call() -> None:
    call = "writer: drop #1"
    denied = ev.ApprovalGiven(step=call, approved=False, message="", by="ada")
    events = (began("gather", "stage"), *wrote("gather/draft", "x"), asked(call, "May it?"), denied)
    text = plain(recipe(*events, STOP, over("cancelled")))
    assert "A resume asks again" not in text
    assert f"the gate of {call}" not in text
    assert "writer's call of drop was denied by ada" in text
    why = f"{call} was denied by ada"
    stop = ev.StopRequested(level="requested", source="approval", reason=why, gate=call)
    text = plain(recipe(*events, stop, over("cancelled")))
    assert "#### A resume asks again\n\n- writer's call of drop, which was denied" in text


def test_card_of_a_denied_gate_says_that_it_is_asked_again() -> None:
    given = ev.ApprovalGiven(step="gather", approved=False, message="too short", by="ada")
    stop = ev.StopRequested(
        level="requested", source="approval", reason="the gate of 'gather' was denied: too short"
    )
    denied = recipe(*GATHERED, given, stop, over("cancelled"))
    text = plain(denied, again("gather", gates=("gather",)))
    assert "Stopped by an approval gate (the gate of 'gather' was denied: too short)" in text
    assert "The gate of gather was denied by ada: too short" in text
    assert "#### Next\n\n- the gate of gather\n" in text
    assert "#### A resume asks again\n\n- gather, which was denied" in text


def test_failed_card_shows_the_failed_step_its_reason_and_the_retry() -> None:
    does = again("publish/send", tried=("publish/send",))
    text = plain(FAILED, does)
    assert "**Failed.**" in text
    assert "**publish/send** (tried 2 times)\n\n    no network" in text
    assert "runs again: the command of publish/send (it failed)\n" in text
    assert "#### Next\n\n- publish/send again\n" in text
    assert "No agent gave" not in html(FAILED)


def test_tolerated_failure_is_not_shown_as_fatal() -> None:
    outline = (*OUTLINE, ev.PlannedUnit("last", "bash", "bash"))
    tolerated = finished("gather/draft", outcome="failed", why="never mind", at=1002.0)
    view = recipe(
        began("gather", "stage"),
        tolerated,
        finished("gather"),
        began("last", "bash"),
        finished("last", outcome="failed", why="no disk", at=1009.0),
        over("failed"),
        outline=outline,
    )
    assert "**last**" in plain(view)
    assert "**gather/draft**" not in plain(view)


def test_card_of_a_dead_kernel_shows_interrupted_steps() -> None:
    assert "Cut off when the kernel died" in plain(DIED)
    does = again("publish/send", cut=("publish/send",))
    assert "#### Next\n\n- publish/send again\n" in plain(DIED, does)
    # Without its journal's events it is not known what a resume does.
    assert "runs again" not in plain(DIED) and "Next" not in plain(DIED)
    [row] = [each for each in units(DIED, 1020.0, 60) if each.address == "publish/send"]
    assert (row.chip, row.tone) == ("cut", "cut")


def test_step_stopped_while_waiting_for_a_retry_is_shown_as_stopped() -> None:
    failed = ev.StepFailed(step="publish/send", attempt=1, error="no luck", attempts=3)
    view = recipe(*GATHERED, *APPROVED, failed, STOP, over("cancelled"))
    [row] = [each for each in units(view, 1020.0, 60) if each.address == "publish/send"]
    assert (row.chip, row.tone, row.says) == ("stopped", "cut", "no luck")
    assert "waited for a retry" in plain(view)


def test_unit_that_ended_before_its_start_has_no_duration() -> None:
    view = recipe(began("publish", "stage"), began("publish/send", "bash", at=1009.0))
    view = fold([finished("publish/send", "x", at=1001.0), over("cancelled")], view)
    [row] = [each for each in units(view, 1020.0, 60) if each.address == "publish/send"]
    assert row.seconds == 0.0


@pytest.mark.parametrize("unit", ["group", "bash"])
def test_endlessly_nested_units_of_a_damaged_journal_make_a_card(
    unit: Any,
) -> None:
    deep = [began("/".join(["a"] * depth), unit) for depth in range(1, 1500)]
    view = recipe(*deep, began("", unit), began("/", unit), began("[0]", unit), over("cancelled"))
    assert html(view)


# Agents that a step's agent called


def test_called_agents_are_nested_below_their_step_with_their_outcome() -> None:
    lines = plain(CUT_ASKING).splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("  - draft"))
    assert lines[place + 1 : place + 4] == [
        "    - critic#1 · gpt-4o · complete",
        "    - critic#2 · gpt-4o · cut",
        "      - expert#1 · gpt-4o · cut",
    ]
    for part in ("critic#1", "critic#2", "expert#1"):
        assert f"<b>{part}</b>" in html(CUT_ASKING)


def test_text_of_agents_called_by_an_interrupted_step_is_complete() -> None:
    text = plain(CUT_ASKING)
    begins = ("**gather/draft** (", f"**{CRITIC}** (", f"**{SECOND}** (", f"**{EXPERT}** (")
    places = [text.index(begin) for begin in begins]
    assert places == sorted(places)
    assert f"**{CRITIC}** (gpt-4o · complete)\n\nIt is **too long**" in text
    assert f"**{EXPERT}** (gpt-4o · cut)\n\na quarter" in text
    assert "It is <strong>too long</strong>" in html(CUT_ASKING)
    assert "Nothing was lost: 3 partial texts were saved." in text


def test_step_of_a_stopped_agent_is_complete_and_its_text_is_shown() -> None:
    stopped = (
        ev.StopRequested(level="requested", source="widget", agent=SECOND),
        ev.AgentEnded(agent=SECOND, outcome="stopped"),
        finished("gather/draft", "the draft"),
    )
    done = recipe(*ASKING[:-3], *stopped, over("completed"))
    assert "    - critic#2 · gpt-4o · stopped" in plain(done)
    cut = recipe(*ASKING[:-3], *stopped, STOP, over("cancelled"))
    assert f"**{SECOND}** (gpt-4o · stopped)\n\nhalf a sen" in plain(cut)
    assert "Nothing was lost: 1 finished step and 1 partial text were saved." in plain(cut)
    assert f"**{CRITIC}**" not in plain(cut)


def test_card_with_many_called_agents_is_small() -> None:
    events = [e for n in range(500) for e in called(f"gather/draft/critic#{n}", "z" * 9000)]
    view = recipe(*ASKING[:5], *events, STOP, over("cancelled"))
    assert len(html(view)) < 400_000
    assert plain(view).count("\n**gather/draft") == MAX_VALUES


def test_resume_repeats_the_calls_named_on_the_card(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: [{id: draft, agent: a, prompt: write it}]\n")
    gate = Gate()
    ask = Call("call_agent", {"name": "critic", "input": "what is wrong?"})
    critic = ScriptedModel(
        Turn(text="it is long"), Turn(text="half a ", gate=gate), Turn(text="whole")
    )
    a = ScriptedModel(Turn(calls=(ask, ask)), Turn(text="A's"))
    models = {"a": a, "critic": critic}
    agents = [
        {"id": k, "backend": {"type": "python", "instance": m, "can_call": "*"}}
        for k, m in models.items()
    ]
    team = TeamSpec.model_validate({"agents": agents})
    run = nb_agents.start(
        recipe=path, config=team, session="s", options=RunOptions(session_root=tmp_path / "s")
    )
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    again = "runs again: 1 model call interrupted or failed (draft/critic#2)"
    assert again in plain(run.view, run.preview)
    resumed = run.resume()
    resumed.wait(WAIT_S, raise_on_stop=False)
    assert (resumed.status, len(a.requests), len(critic.requests)) == ("completed", 2, 3)
    assert "  - critic#2 · python · complete" in plain(resumed.view)


@pytest.mark.parametrize(
    "place",
    ["name", "asks", "output", "tail", "why", "gate", "message", "outputs", "partial", "called"],
)
def test_untrusted_text_on_a_card_is_escaped(place: str) -> None:
    begun = began("gather", "stage")
    made: dict[str, tuple[ev.Event, ...]] = {
        "name": (began(EVIL, "bash", asks="x"), over("cancelled", next=(EVIL,))),
        "asks": (began("a", "bash", asks=EVIL), over("cancelled")),
        "output": (began("a", "agent"), finished("a", EVIL), over("cancelled")),
        "tail": (
            began("a", "bash"),
            ev.OutputStreamed(step="a", text=EVIL),
            over("cancelled"),
        ),
        "why": (began("a", "bash"), finished("a", outcome="failed", why=EVIL), over("failed")),
        "gate": (begun, asked("gather", EVIL), over("cancelled")),
        "message": (
            begun,
            asked("gather", "?"),
            ev.ApprovalGiven(step="gather", approved=True, message=EVIL, by=EVIL),
            over("completed"),
        ),
        "outputs": (over("completed", outputs={EVIL: EVIL, "b": {EVIL: EVIL}}),),
        "partial": (*wrote("a", EVIL), over("cancelled")),
        "called": (*wrote("a", "x"), *called("a/critic#1", EVIL), over("cancelled")),
    }
    page = Page(html(recipe(*made[place])))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert "javascript" not in str(attributes.get("href"))
        assert not any(name.startswith("on") for name in attributes)


def test_card_of_a_loop_with_thousands_of_iterations_is_small() -> None:
    loop = [began("gather", "stage"), began("gather/each", "foreach", total=2000)]
    for number in range(2000):
        address = f"gather/each[{number}]"
        loop += [began(address, "bash", asks="y" * 500), finished(address, "z" * 2000)]
    view = recipe(*loop, over("cancelled"))
    assert "2000 steps with their outputs (the last 30)" in html(view)
    assert len(html(view)) < 200_000
    assert len(plain(view)) < 100_000


# Saving

FAILING = ev.Noticed(
    text="Saving failed: No space left on device. All is kept in memory.", is_saved=False
)
WORKS: Any = ev.Noticed(text="Saving works again; everything is on disk.", is_saved=True)


def test_card_of_an_unsaved_turn_does_not_say_that_it_is_saved() -> None:
    view = recipe(*GATHERED, *APPROVED, FAILING, STOP, over("cancelled"))
    for shown in (plain(view), html(view)):
        assert "Nothing was lost" not in shown
        assert "even after a restart" not in shown
        assert "run.save()" in shown
    assert "Resume</button>" not in html(view)


def test_card_of_a_turn_saved_later_says_so() -> None:
    view = recipe(*GATHERED, *APPROVED, FAILING, WORKS, STOP, over("cancelled"))
    assert "Nothing was lost" in plain(view)
    assert "Resume</button>" in html(view)
