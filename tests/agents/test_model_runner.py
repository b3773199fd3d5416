"""Tests of a model's round: tools, answers, votes, and messages about mistakes."""

import json
import re
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)

from nb_agents import events as ev
from nb_agents.agents import model_runner
from nb_agents.agents.model_runner import ModelRound
from nb_agents.errors import ModelCallError
from nb_agents.options import Retry
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, Vote
from tests.kit.agents import (
    Abstention,
    Answered,
    Exchange,
    Note,
    Offer,
    Opening,
    PastRound,
    Stale,
    StopScope,
    Verdict,
    Voted,
    decision_tools,
    prompts,
    runner,
    stream_buffer,
    voting,
)
from tests.kit.models import retry
from tests.kit.runs import AgentStopped, CancelToken
from tests.kit.tools import Tool, Toolbox

pytestmark = pytest.mark.anyio


OPENING = Opening("", ("go",))


class RoundContext:
    """A context in which votes for `agent2` are stale and the answer `refused` is rejected."""

    def __init__(self, offer: Offer, notes: Sequence[str] = ()) -> None:
        self.offers = [offer]
        self.notes = list(notes)
        self.texts: list[str] = []
        self.refused: list[bool] = []

    def offer(self) -> Offer:
        return self.offers[0] if len(self.offers) == 1 else self.offers.pop(0)

    def judge_answer(self, answer: str) -> str:
        return "That is refused." if answer == "refused" else ""

    def judge_vote(self, label: str) -> Verdict:
        judged = {"agent1": Verdict("a", ""), "agent2": Verdict("b", voting.STALE)}
        return judged.get(label, Verdict("", "Nobody of that name."))

    def note(self, *, was_refused: bool) -> Note:
        self.refused.append(was_refused)
        return Note(self.notes.pop(0) if self.notes else "")

    def take_messages(self) -> str:
        return self.texts.pop(0) if self.texts else ""


class Play:
    """Plays one round, and stores its events and requests."""

    def __init__(self, *turns: Turn, notes: Sequence[str] = (), **offer: Any) -> None:
        self.model = ScriptedModel(*turns)
        self.offered: list[list[str]] = []
        self.events: list[ev.Event] = []
        self.messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("go")])]
        self.context = RoundContext(Offer(**{"voters": ("agent1", "agent2"), **offer}), notes)
        self.token = CancelToken("a")

    def stream(self, messages: Any, tools: Any) -> Any:
        self.offered.append([tool.name for tool in tools])
        return self.model.stream(messages, tools)

    name = "scripted"
    server = ""
    calls_tools = True

    async def play(self, *tools: Any, past: PastRound | None = None) -> Any:
        with StopScope(self.token) as boundary:
            round = runner.Round(
                "a",
                1,
                OPENING,
                Toolbox([Tool(each) for each in tools]),
                self.context,
                self.events.append,
                boundary,
            )
            return await ModelRound(self, round).run(self.messages, past)

    def told(self, request: int) -> list[str]:
        """Return the new tool results and messages in a request."""
        parts = [
            p for p in self.model.requests[request][-1].parts if p.part_kind != "system-prompt"
        ]
        told = [str(part.content) for part in parts]  # type: ignore[union-attr]
        return [
            *(text.partition("\n\n<TEAM_MESSAGE>")[0] for text in told[:-1]),
            *re.split(r"\n\n(?!<)|\n\n<TEAM_MESSAGE>\n", told[-1].replace("\n</TEAM_MESSAGE>", "")),
        ]

    def of(self, kind: type[Any]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


async def test_an_answer_ends_the_round() -> None:
    played = Play(Answer("  the answer\n"))
    assert await played.play() == Answered("the answer")
    kinds = [type(e) for e in played.events if not isinstance(e, ev.TextStreamed)]
    assert kinds == [ev.ModelStarted, ev.ModelFinished]
    assert "".join(e.text for e in played.of(ev.TextStreamed)) == "  the answer\n"


async def test_a_vote_ends_the_round() -> None:
    assert await Play(Vote("agent1", "clear")).play() == Voted("a", "clear")


async def test_vote_without_the_newest_answer_is_stale() -> None:
    assert await Play(Vote("agent2")).play() == Stale("b")


async def test_the_last_of_several_votes_and_answers_counts() -> None:
    two = Turn(calls=(*Vote("nobody").calls, *Vote("agent1").calls))
    assert await Play(two).play() == Voted("a", "best")
    two = Turn(calls=(*Answer("first").calls, *Answer("second").calls))
    assert await Play(two).play() == Answered("second")


@pytest.mark.parametrize(
    ("turn", "complaint"),
    [
        (Turn(text="I think so"), prompts.REMINDER.format(tools="new_answer or vote")),
        (Answer(""), prompts.EMPTY),
        (Turn(calls=(Call("new_answer"),)), prompts.EMPTY),
        (Vote("agent9"), "Nobody of that name."),
        (Answer("refused"), "That is refused."),
        (Turn(calls=(*Answer("x").calls, *Vote("agent1").calls)), prompts.BOTH),
    ],
)
async def test_reply_without_decision_gets_a_reason(turn: Turn, complaint: str) -> None:
    played = Play(turn, Answer("better"))
    assert await played.play() == Answered("better")
    assert [e.why for e in played.of(ev.TurnRejected)] == [complaint]
    assert played.context.refused == [turn == Answer("refused")]
    assert all(complaint in each for each in played.told(1))
    assert len(played.told(1)) == max(1, len(turn.calls))


async def test_answer_with_truncated_json_gets_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", lambda args, **_: '{"content": "cut o')
    played = Play(Answer("x"), Turn(text="plain"), text_counts=True)
    assert await played.play() == Answered("plain")
    assert played.of(ev.TurnRejected)[0].why == prompts.UNREADABLE


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        (Turn(text="hm"), "it wrote plain text and called no tool."),
        (Answer(""), "its answer was empty."),
        (
            Answer("refused"),
            "its answer exceeded the limit of answers or resembled an existing answer.",
        ),
        (Vote("agent9"), "its vote came too early or named an agent without an answer."),
        (
            Turn(calls=(*Answer("x").calls, *Vote("agent1").calls)),
            "it answered and voted in one turn.",
        ),
    ],
)
async def test_agent_fails_after_three_replies_without_decision(turn: Turn, fault: str) -> None:
    played = Play(turn)
    with pytest.raises(ModelCallError) as caught:
        await played.play()
    said = f"scripted: It submitted no valid answer in 3 attempts. The last time {fault}"
    assert str(caught.value) == said
    assert [e.attempt for e in played.of(ev.TurnRejected)] == [1, 2, 3]
    assert len(played.model.requests) == 3


async def test_plain_text_counts_after_two_rejections() -> None:
    played = Play(Turn(text="hm"), Turn(text="hm hm"), Turn(text="all"), text_stands_for="answer")
    assert await played.play() == Answered("all")
    reminder = prompts.REMINDER.format(tools="new_answer or vote")
    assert played.told(1) == [reminder]
    assert played.told(2) == [f"{reminder} {prompts.TEXT_COUNTS_NOTE}"]
    assert [e.attempt for e in played.of(ev.TurnRejected)] == [1, 2]
    assert [e.text for e in played.of(ev.Noticed)] == [
        "The model of a calls no tools. Its text counts as its answer."
    ]


async def test_plain_text_answer_is_checked_like_any_answer() -> None:
    played = Play(Turn(text="refused"), text_stands_for="answer")
    with pytest.raises(ModelCallError, match="resembled an existing answer"):
        await played.play()
    assert [e.why for e in played.of(ev.TurnRejected)][2] == "That is refused."


async def test_plain_text_of_an_agent_with_an_answer_is_an_abstention() -> None:
    played = Play(Turn(text="hm"), text_stands_for="no vote")
    assert await played.play() == Abstention()
    assert len(played.model.requests) == 3
    assert [e.text for e in played.of(ev.Noticed)] == [
        "The model of a calls no tools, so it does not vote. Its answer still counts."
    ]


async def test_tool_call_after_plain_text_counts() -> None:
    played = Play(Turn(text="hm"), Turn(text="hm"), Vote("agent1"), text_stands_for="answer")
    assert await played.play() == Voted("a", "best")
    assert played.of(ev.Noticed) == []


async def test_rejections_before_a_resume_count() -> None:
    said = [ModelResponse(parts=[TextPart("hm")]) for _ in range(2)]
    past = PastRound(
        1, {}, OPENING, tuple(Exchange(n, r, complaint="No.") for n, r in enumerate(said))
    )
    played = Play(Turn(text="all"), text_stands_for="answer")
    assert await played.play(past=past) == Answered("all")
    assert len(played.model.requests) == 1


async def test_tools_run_in_order_and_their_results_are_sent() -> None:
    calls = tuple(Call("note", {"text": n}) for n in "12")
    played = Play(Turn(text="first ", calls=calls), Answer("done"))
    assert await played.play(note) == Answered("done")
    assert played.told(1) == ["noted 1", "noted 2"]
    steps = [e for e in played.events if isinstance(e, ev.ToolStarted | ev.ToolFinished)]
    assert [(type(e), e.call_id) for e in steps] == [
        (kind, steps[at].call_id) for at in (0, 2) for kind in (ev.ToolStarted, ev.ToolFinished)
    ]
    assert [e.outcome for e in played.of(ev.ToolFinished)] == ["ok", "ok"]
    assert len({e.call_id for e in played.of(ev.ToolStarted)}) == 2


async def test_unknown_tool_returns_an_error() -> None:
    played = Play(Turn(calls=(Call("fly"),)), Answer("done"))
    await played.play(note)
    assert played.told(1) == ["Error: no tool 'fly'. Your tools: note."]
    assert [e.outcome for e in played.of(ev.ToolFinished)] == ["error"]


async def test_other_tools_of_a_reply_run_before_its_answer_counts() -> None:
    played = Play(Turn(calls=(Call("note", {"text": "x"}), *Answer("done").calls)))
    assert await played.play(note) == Answered("done")
    assert [e.outcome for e in played.of(ev.ToolFinished)] == ["ok"]


async def test_tool_calls_do_not_count_as_rejected_turns() -> None:
    noting = Turn(calls=(Call("note", {"text": "x"}),))
    played = Play(*[noting] * 10, Answer("done"))
    assert await played.play(note) == Answered("done")
    assert played.of(ev.TurnRejected) == []


async def test_number_of_model_calls_in_a_round_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_runner, "MAX_MODEL_CALLS", 4)
    played = Play(Turn(calls=(Call("note", {"text": "x"}),)))
    with pytest.raises(ModelCallError, match="No answer or vote within 4 model calls"):
        await played.play(note)
    assert len(played.model.requests) == 4


async def test_every_call_of_a_history_has_its_return() -> None:
    calls = (Call("note", {"text": "x"}), *Vote("nobody").calls, Call("fly"))
    played = Play(Turn(calls=calls), Turn(text="hm"), Answer("done"))
    await played.play(note)
    responses = [m for m in played.messages if isinstance(m, ModelResponse)]
    asked = [c.tool_call_id for m in responses[:-1] for c in m.tool_calls]
    returns = [
        part.tool_call_id
        for m in played.messages
        for part in m.parts
        if part.part_kind == "tool-return"
    ]
    assert returns == asked


async def test_failed_requests_are_retried_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "DEFAULT_RETRY", Retry(delay=0.0))
    down = Turn(text="so far ", error=ModelHTTPError(503, "m"))
    played = Play(down, down, Answer("done"))
    assert await played.play() == Answered("done")
    assert [(e.call, e.attempt) for e in played.of(ev.ModelStarted)] == [(1, 1), (1, 2), (1, 3)]
    assert [e.retry_in_s for e in played.of(ev.ModelFailed)] == [0, 0]
    assert played.of(ev.TextStreamed)[0].text == "so far "


async def test_permanent_failure_ends_the_agent() -> None:
    played = Play(Turn(error=ModelHTTPError(401, "m")))
    with pytest.raises(ModelCallError, match=r"scripted: The server refused the key.*HTTP 401"):
        await played.play()
    assert len(played.model.requests) == 1


async def test_empty_response_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "DEFAULT_RETRY", Retry(delay=0.0))
    played = Play(Turn(text=""), Answer("done"))
    assert await played.play() == Answered("done")
    assert len(played.of(ev.ModelFailed)) + len(played.of(ev.TurnRejected)) == 1


async def test_endless_reply_is_cut_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_buffer, "MAX_REPLY_CHARS", 20)
    played = Play(Turn(text="on and on and on and on and on"))
    with pytest.raises(ModelCallError, match="The reply exceeded the limit of 20 characters"):
        await played.play()
    assert "".join(e.text for e in played.of(ev.TextStreamed)).startswith("on and on")
    assert played.model.open_streams == 0


async def test_notes_follow_tool_results() -> None:
    noting = Turn(calls=(Call("note", {"text": "x"}),))
    played = Play(noting, Turn(text="hm"), Answer("done"), notes=["[1 s left]", "hurry"])
    await played.play(note)
    reminder = prompts.REMINDER.format(tools="new_answer or vote")
    assert [played.told(1), played.told(2)] == [["noted x", "[1 s left]"], [reminder, "hurry"]]


async def test_after_the_time_limit_only_decision_tools_work() -> None:
    noting = Turn(calls=(Call("note", {"text": "x"}),))
    played = Play(noting, noting, Answer("done"))
    played.context.offers.append(Offer(must_decide=True))
    assert await played.play(note) == Answered("done")
    assert played.told(1) == ["noted x"]
    assert played.told(2) == [prompts.NO_TOOLS.format(tools="new_answer")]
    assert [e.outcome for e in played.of(ev.ToolFinished)] == ["ok", "error"]
    assert played.offered == [["note", "new_answer", "vote"], ["new_answer"], ["new_answer"]]


WRITTEN = '<tool_call>{"name": "note", "arguments": {"text": "x"}}</tool_call>'


@pytest.mark.parametrize("offer", [{}, {"text_counts": True}, {"answers": False, "judges": True}])
async def test_call_written_as_text_is_not_run_and_not_an_answer(offer: dict[str, Any]) -> None:
    played = Play(Turn(WRITTEN), Turn(calls=(Call("note", {"text": "y"}),)), Turn(WRITTEN), **offer)
    with pytest.raises(
        ModelCallError, match="in 3 attempts. The last time it wrote a tool call as"
    ):
        await played.play(note)
    made = [e for e in played.of(ev.ToolFinished)]
    assert [(e.tool, e.outcome, e.result) for e in made] == [("note", "ok", "noted y")]
    assert prompts.WRITTEN_CALL.format(tool="note") in played.told(1)[0]
    assert [e.attempt for e in played.of(ev.TurnRejected)] == [1, 2, 3]


async def test_agent_makes_the_call_after_writing_it_as_text() -> None:
    played = Play(Turn('{"name": "new_answer", "arguments": {"content": "x"}}'), Answer("x"))
    assert await played.play() == Answered("x")


async def test_a_model_that_calls_no_tools_is_asked_for_its_result() -> None:
    played = Play(Turn(WRITTEN), Turn("the result"), text_counts=True)
    played.calls_tools = False
    assert await played.play(note) == Answered("the result")
    assert played.told(1) == [prompts.WRITTEN_WITHOUT_TOOLS.format(tool="note")]


async def test_rejected_written_call_stays_rejected_after_a_resume() -> None:
    response = ModelResponse(parts=[TextPart(WRITTEN)])
    past = PastRound(1, {}, OPENING, (Exchange(1, response, complaint="No call."),))
    played = Play(Turn("the answer"), text_counts=True)
    assert await played.play(note, past=past) == Answered("the answer")
    assert played.told(0) == ["No call."]


@pytest.mark.parametrize(
    ("offer", "names"),
    [
        (Offer(), ["new_answer"]),
        (Offer(voters=("agent1",)), ["new_answer", "vote"]),
        (Offer(answers=False, voters=("agent1", "agent3")), ["vote"]),
    ],
)
def test_only_allowed_decisions_are_offered(offer: Offer, names: list[str]) -> None:
    tools = decision_tools(offer)
    assert [t.name for t in tools] == names
    assert offer.names == " or ".join(names)
    if offer.voters:
        known = tools[-1].parameters_json_schema["properties"]["agent_id"]["enum"]
        assert tuple(known) == offer.voters


async def test_answer_rejected_in_the_past_stays_rejected_with_the_same_note() -> None:
    response = ModelResponse(parts=[ToolCallPart("new_answer", {"content": "taken now"}, "c1")])
    past = PastRound(
        1, {}, OPENING, (Exchange(1, response, complaint="No.", notes=("[9 s left]",)),)
    )
    played = Play(Answer("better"), notes=["another note"])
    assert await played.play(past=past) == Answered("better")
    assert played.told(0) == ["Error: No.", "[9 s left]"]
    assert played.of(ev.TurnRejected) == []


async def test_resume_sends_a_rejection_that_a_stop_held_back() -> None:
    response = ModelResponse(parts=[ToolCallPart("new_answer", {"content": "copy"}, "c1")])
    past = PastRound(1, {}, OPENING, (Exchange(1, response, complaint="A copy."),))
    played = Play(Vote("agent1"), notes=["what there is"])
    await played.play(past=past)
    assert played.context.refused == [True]
    assert played.told(0) == ["Error: A copy.", "what there is"]


async def test_user_message_is_the_last_part_of_the_next_request() -> None:
    played = Play(Turn("Hm."), Answer("mine"), notes=["9 s left"])
    played.context.texts = ["first", "second"]
    await played.play()
    assert played.told(0) == ["go", "first"]
    assert played.told(1)[1:] == ["9 s left", "second"]


async def test_user_message_during_a_retry_wait_is_in_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "DEFAULT_RETRY", Retry(delay=0.0))
    played = Play(Turn(error=httpx2.ReadError("gone")), Answer("mine"))
    played.context.texts = ["", "late"]
    await played.play()
    assert [played.told(n) for n in (0, 1)] == [["go"], ["go", "late"]]


async def test_resume_repeats_user_messages_at_their_position() -> None:
    response = ModelResponse(parts=[ToolCallPart("note", {"text": "x"}, "c1")])
    done = Exchange(1, response, {0: ("noted x", False)}, notes=("9 s left", "second"))
    past = PastRound(1, {}, OPENING, (done,), was_asking=True, notes=("first",))
    played = Play(Answer("mine"))
    played.context.texts = ["third"]
    await played.play(note, past=past)
    sent = played.model.requests[0]
    assert [part.content for part in sent[0].parts] == ["go\n\nfirst"]
    assert played.told(0) == ["noted x", "9 s left", "second", "third"]


async def test_copy_of_an_answer_given_meanwhile_is_rejected() -> None:
    played = Play(Turn(calls=(Call("wait"), *Answer("mine").calls)), Answer("other"))

    async def wait() -> str:
        """Let another task run first."""
        played.context.judge_answer = lambda text: "Too late." if text == "mine" else ""  # type: ignore[method-assign]
        return "waited"

    assert await played.play(wait) == Answered("other")
    assert played.told(1) == ["waited", "Error: Too late."]


async def test_stop_between_tools_emits_no_note() -> None:
    played = Play(Turn(calls=(Call("stop"),)), notes=["9 s left"])

    async def stop() -> str:
        """Stop the agent."""
        played.token.request(1, "api")  # type: ignore[arg-type]
        return "stopped"

    with pytest.raises(AgentStopped):
        await played.play(stop)
    assert played.context.notes == ["9 s left"]


async def test_earlier_stop_request_raises_before_any_call() -> None:
    played = Play(Answer("x"))
    played.token.request(1, "api")  # type: ignore[arg-type]
    with pytest.raises(AgentStopped):
        await played.play()
    assert (played.events, played.model.requests) == ([], [])


async def test_scope_suppresses_only_its_own_cancellation() -> None:
    import anyio

    token, inner = CancelToken("a"), []
    with anyio.CancelScope() as outer:
        with StopScope(token) as boundary:
            outer.cancel()
            await anyio.sleep_forever()
        inner.append("went on")
    assert outer.cancelled_caught and not boundary.was_cut and not inner


async def test_stop_after_leaving_a_scope_cancels_nothing() -> None:
    import anyio

    token = CancelToken("a")
    with StopScope(token) as boundary:
        token.request(2, "api")  # type: ignore[arg-type]
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert not boundary.was_cut
