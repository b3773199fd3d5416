"""Conversations that are longer than a context window: when they are folded, and what is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.usage import RequestUsage

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.agents.context_folding import ContextFolder, Folding, Summary
from tests.hard_window import HardWindow, tokens_of
from tests.kit.agents import Exchange, History, Opening, PastRound, Segment, ledger_lines
from tests.kit.cards import read_transcript
from tests.kit.runs import Run
from tests.kit.sessions import TurnPaths, read_journal
from tests.kit.teams import ContextSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.samples import sample

WINDOW = 6000
DOCUMENTS = 12
RULE = "Obey RULE-17 always."
TASK = "Read TASK-CANARY documents."
WORDS = "so on " * 330


def lookup(n: int) -> str:
    """Return a document.

    Args:
        n: Its number.
    """
    return f"Document {n} has the code C{n}X. {WORDS}"


def is_summary(request: Request) -> bool:
    return "Write the summary now" in request.prompt[-2000:]


class Reader:
    """Reads one document after the other, and counts them itself."""

    def __init__(self, text: str = "", last: Reply | None = None) -> None:
        self.text = text
        self.last = last or Reply(tool_calls=(ToolCall("new_answer", {"content": "All read."}),))
        self.summaries: list[Request] = []
        self.count = 0

    def __call__(self, request: Request) -> Reply:
        if is_summary(request):
            self.summaries.append(request)
            return Reply(text="SUMMARY-CANARY: documents read so far.")
        self.count += 1
        if self.count > DOCUMENTS:
            return self.last
        call = ToolCall("lookup", {"n": self.count})
        return Reply(text=f"Document {self.count}. {self.text}", tool_calls=(call,))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(strict=True) as running:
        yield running


def begin(
    server: ModelServer,
    tmp_path: Path,
    model: Any,
    kind: str = "vllm",
    context: dict[str, Any] | None = None,
    **backend: Any,
) -> Run:
    server.script("m", *([model] * 100))
    team = team_of(server, kind, context, **backend)
    options = RunOptions(session_root=tmp_path)
    return nb_agents.start(TASK, team, tools=[lookup], options=options)


def team_of(
    server: ModelServer,
    kind: str,
    context: dict[str, Any] | None = None,
    others: tuple[str, ...] = (),
    orchestrator: dict[str, Any] | None = None,
    **backend: Any,
) -> nb_agents.TeamSpec:
    model = {**server.backend(kind), "model": "m", **backend}
    agents = [
        {"id": "a", "system_message": RULE, "backend": model},
        *({"id": each, "backend": model} for each in others),
    ]
    return nb_agents.TeamSpec.model_validate(
        {"agents": agents, "context": context or {}, "orchestrator": orchestrator or {}}
    )


def folds(run: Run) -> list[ev.ContextFolded]:
    events = read_journal(run.path / "events.jsonl").events
    return [event for event in events if isinstance(event, ev.ContextFolded)]


KINDS = ("vllm", "responses", "claude", "gemini")
WORK = [*((kind, "") for kind in KINDS), *((kind, "long " * 600) for kind in sample(KINDS, 2))]


@pytest.mark.parametrize(("kind", "text"), WORK)
def test_work_longer_than_a_known_window_completes_without_a_refusal(
    server: ModelServer, tmp_path: Path, kind: str, text: str
) -> None:
    model = HardWindow(WINDOW, Reader(text))
    run = begin(server, tmp_path, model, kind, context_window=WINDOW)
    assert run.wait(200) == "All read."
    assert model.refused == []
    assert {each.level for each in folds(run)} == {"summary" if text else "results"}
    for request in model.requests:
        assert RULE in request.prompt
        assert TASK in request.prompt


def test_card_and_transcript_name_the_folded_results(server: ModelServer, tmp_path: Path) -> None:
    run = begin(server, tmp_path, HardWindow(WINDOW, Reader()), context_window=WINDOW)
    run.wait(200)
    card = run._repr_mimebundle_()["text/html"]
    transcript = read_transcript(TurnPaths(run.path), "a")["pieces"]
    parts = [each for each in transcript if "Conversation folded" in each["title"]]
    for fold, part in zip(folds(run), parts, strict=True):
        assert fold.level == "results"
        lines = fold.ledger.splitlines()
        assert tuple(line.partition(" ")[0] for line in lines) == fold.references
        assert part["text"] == fold.ledger
        assert all(line.replace('"', "&#34;") in card for line in lines)


def test_ledger_shows_the_end_of_a_long_path() -> None:
    args = [{"path": f"/{'folder/' * 40}chapter_{n}.md"} for n in (1, 2)]
    calls = [ToolCallPart("read_file", each) for each in args]
    first, second = ledger_lines([Segment(1, (ModelResponse(calls),))])
    assert "chapter_1.md" in first
    assert "chapter_2.md" in second
    assert len(first) < 200


@pytest.mark.parametrize("kind", KINDS)
def test_window_is_learned_from_the_first_refusal(
    server: ModelServer, tmp_path: Path, kind: str
) -> None:
    model = HardWindow(WINDOW, Reader())
    run = begin(server, tmp_path, model, kind)
    assert run.wait(200) == "All read."
    assert len(model.refused) == 1
    first, *others = folds(run)
    assert (first.why, first.window) == ("refused", WINDOW)
    assert {each.why for each in others} <= {"near"}


def test_learned_window_is_still_known_to_other_agents_after_a_resume(
    server: ModelServer, tmp_path: Path
) -> None:
    answer = ToolCall("new_answer", {"content": "Nothing else was found."})
    other = Reader(last=Reply(tool_calls=(answer,)))
    first, second = HardWindow(WINDOW, Reader()), HardWindow(WINDOW, other)
    is_resumed = False

    def reply(request: Request) -> Reply:
        if RULE in request.prompt:
            return first(request)
        return second(request) if is_resumed else Reply(hang_after=0)

    server.script("m", *([reply] * 100))
    team = team_of(server, "vllm", orchestrator={"skip_voting": True}, others=("b",))
    run = nb_agents.start(TASK, team, tools=[lookup], options=RunOptions(session_root=tmp_path))
    wait_until(lambda: run.view.agents["a"].answers)
    run.stop(now=True)
    wait_until(lambda: run.is_over)
    is_resumed = True
    again = run.resume(tools=[lookup])
    again.wait(200)
    assert again.view.agents["b"].answers
    assert (len(first.refused), second.refused) == (1, [])
    assert {(each.agent, each.window) for each in folds(again)} == {("b", WINDOW)}


def test_no_finished_call_is_made_again(server: ModelServer, tmp_path: Path) -> None:
    run = begin(server, tmp_path, HardWindow(WINDOW, Reader()), context_window=WINDOW)
    run.wait(200)
    events = read_journal(run.path / "events.jsonl").events
    args = [str(event.args) for event in events if isinstance(event, ev.ToolStarted)]
    assert len(args) == len(set(args)) == DOCUMENTS


def test_agent_reads_a_folded_result_back(server: ModelServer, tmp_path: Path) -> None:
    reader = Reader(last=Reply(tool_calls=(ToolCall("read_back", {"reference": "1.1"}),)))

    def replies(request: Request) -> Reply:
        if "C1X" in request.prompt and reader.count > DOCUMENTS:
            return Reply(tool_calls=(ToolCall("new_answer", {"content": "C1X"}),))
        return reader(request)

    model = HardWindow(WINDOW, replies)
    run = begin(server, tmp_path, model, context_window=WINDOW)
    assert run.wait(200) == "C1X"
    asked = next(r for r in model.requests if "read_back" in r.tool_names)
    assert 'read_back("1.1")' in asked.prompt
    assert "C1X" not in asked.prompt


def test_without_folding_a_refusal_ends_the_run(server: ModelServer, tmp_path: Path) -> None:
    model = HardWindow(WINDOW, Reader())
    run = begin(server, tmp_path, model, context={"fold": False})
    run.wait(200, raise_on_stop=False)
    assert run.status == "failed"
    assert len(model.refused) == 1
    assert folds(run) == []
    card = run._repr_mimebundle_()["text/markdown"]
    assert "%agents resume" not in card
    assert "`%agents rewind" in card
    assert "Folding is off" in run.view.agents["a"].error
    assert f"the context window has {WINDOW:,}" in run.view.agents["a"].error


def test_task_larger_than_the_window_is_an_error_with_both_sizes(
    server: ModelServer, tmp_path: Path
) -> None:
    model = HardWindow(WINDOW, Reader())
    server.script("m", model)
    options = RunOptions(session_root=tmp_path)
    task = "word " * WINDOW
    run = nb_agents.start(task, team_of(server, "vllm"), tools=[lookup], options=options)
    run.wait(200, raise_on_stop=False)
    assert run.status == "failed"
    error = run.view.agents["a"].error
    assert f"about {model.refused[0]:,} tokens, and the context window has {WINDOW:,}" in error
    assert "are never folded" in error
    assert "larger context window" in error
    assert len(model.refused) == 1


def test_single_result_larger_than_the_window_is_shortened(
    server: ModelServer, tmp_path: Path
) -> None:
    def much() -> str:
        """Return much text."""
        return f"BEGIN {'x' * 5 * WINDOW} END"

    model = HardWindow(
        WINDOW,
        lambda request: (
            Reply(tool_calls=(ToolCall("new_answer", {"content": "Done."}),))
            if "BEGIN" in request.prompt
            else Reply(tool_calls=(ToolCall("much"),))
        ),
    )
    server.script("m", *([model] * 10))
    backend = {**server.backend("vllm"), "model": "m"}
    team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("Look.", team, tools=[much], options=options)
    assert run.wait(200) == "Done."
    assert len(model.refused) == 1
    assert "BEGIN" in model.requests[-1].prompt
    assert "END" in model.requests[-1].prompt


def test_server_that_drops_the_beginning_is_noticed(server: ModelServer, tmp_path: Path) -> None:
    """Ollama keeps only the end of a long conversation, and reports its size after the cut."""
    reader, kept = Reader(), WINDOW // 2

    def replies(request: Request) -> Reply:
        reply = reader(request)
        tokens = min(tokens_of(request), kept)
        return Reply(reply.text, reply.tool_calls, input_tokens=tokens)

    run = begin(server, tmp_path, replies)
    run.wait(200)
    assert folds(run)[0].why == "cut"
    sizes = [tokens_of(request) for request in server.requests]
    assert max(sizes[-5:]) <= kept


def test_user_folds_a_conversation(server: ModelServer, tmp_path: Path) -> None:
    reader = Reader("long " * 100)

    def slow(request: Request) -> Reply:
        reply = reader(request)
        delay = 0.0 if is_summary(request) else 0.3
        return Reply(reply.text, reply.tool_calls, delay_s=delay)

    run = begin(server, tmp_path, slow)
    wait_until(lambda: run.view.agents["a"].calls > 5, 200, "some calls")
    run.fold("a", keep="the codes")
    assert run.wait(200) == "All read."
    (fold,) = folds(run)
    assert (fold.level, fold.why) == ("summary", "asked")
    assert fold.summary.startswith("SUMMARY-CANARY")
    assert "The user adds: the codes" in reader.summaries[0].prompt
    assert run.view.agents["a"].folds[0].summary == fold.summary
    card = run._repr_mimebundle_()["text/html"]
    assert fold.summary in card
    assert f"{fold.before:,} → {fold.after:,} tokens" in card
    (part,) = [
        each
        for each in read_transcript(TurnPaths(run.path), "a")["pieces"]
        if "folded" in each["title"]
    ]
    assert f"{fold.before:,} → {fold.after:,} tokens" in part["title"]
    assert fold.summary in part["text"]
    assert fold.ledger in part["text"]


@pytest.mark.parametrize(
    ("mode", "why"), [("summary", "its latest reply"), ("results", "`fold: results`")]
)
def test_fold_that_finds_nothing_to_fold_says_so(
    server: ModelServer, tmp_path: Path, mode: str, why: str
) -> None:
    may_reply = threading.Event()

    def held(request: Request) -> Reply:
        if len(server.requests) == 1:
            may_reply.wait(200)
            return Reply("", [ToolCall("lookup", {"n": 1})])
        return Reply("Done.")

    run = begin(server, tmp_path, held, context={"fold": mode})
    wait_until(lambda: server.requests)
    run.fold("a")
    may_reply.set()
    run.wait(200)
    assert not folds(run)
    [notice] = [text for text in run.view.notices if "not folded" in text]
    assert "The conversation of a" in notice and why in notice


def test_another_agent_of_the_team_writes_the_summary(server: ModelServer, tmp_path: Path) -> None:
    model, summaries = HardWindow(WINDOW, Reader("long " * 600)), list[Request]()
    server.script("m", *([model] * 100))
    server.script("small", *([lambda r: summaries.append(r) or Reply(text="Short.")] * 100))
    backend = server.backend("vllm")
    team = {
        "agents": [{"id": "a", "backend": {**backend, "model": "m", "context_window": WINDOW}}],
        "callable_agents": [{"id": "scribe", "backend": {**backend, "model": "small"}}],
        "context": {"summarize_with": "scribe"},
    }
    run = nb_agents.start(
        TASK,
        nb_agents.TeamSpec.model_validate(team),
        tools=[lookup],
        options=RunOptions(session_root=tmp_path),
    )
    assert run.wait(200) == "All read."
    assert summaries
    assert {each.summary for each in folds(run)} == {"Short."}


SUMMARIES = {
    "garbage": Reply("\ufffd\x00 }}{{ ]]> <|im_end|>" * 20),
    "empty": Reply(""),
    "huge": Reply("long_summary_" * 2400),
    "refused": Reply("I can't help with that."),
    "tool call": Reply("", (ToolCall("lookup", {"n": 1}),)),
    "fails": Reply(status=500, error="Broken."),
    "rejected": Reply(status=400, error="Blocked by a content filter."),
    "cut": Reply("The first docu", drop_after=1),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_work_continues_after_any_reply_to_the_request_for_a_summary(
    server: ModelServer, tmp_path: Path, name: str
) -> None:
    reader = Reader("long " * 600)

    def replies(request: Request) -> Reply:
        reply = reader(request)
        return SUMMARIES[name] if is_summary(request) else reply

    model = HardWindow(WINDOW, replies)
    run = begin(server, tmp_path, model, context_window=WINDOW)
    assert run.wait(200) == "All read."
    assert model.refused == []
    assert reader.summaries
    events = read_journal(run.path / "events.jsonl").events
    called = [event.args for event in events if isinstance(event, ev.ToolStarted)]
    assert len(called) == len(set(called)) == DOCUMENTS
    assert all(RULE in each.prompt and TASK in each.prompt for each in model.requests)


def test_stop_during_a_summary_is_resumed(server: ModelServer, tmp_path: Path) -> None:
    reader = Reader("long " * 600)
    is_stopped = False

    def replies(request: Request) -> Reply:
        reply = reader(request)
        return Reply("All ", hang_after=1) if is_summary(request) and not is_stopped else reply

    model = HardWindow(WINDOW, replies)
    run = begin(server, tmp_path, model, context_window=WINDOW)
    wait_until(lambda: reader.summaries, 200, "a request for a summary")
    run.stop(now=True)
    wait_until(lambda: run.is_over)
    is_stopped = True
    again = run.resume(tools=[lookup])
    assert again.wait(200) == "All read."
    assert {fold.level for fold in folds(again)} == {"summary"}
    assert model.refused == []


def test_agent_that_always_reads_the_same_part_is_told_and_ends(
    server: ModelServer, tmp_path: Path
) -> None:
    """Read the same folded result until a notice says to write it down."""
    reader = Reader()

    def replies(request: Request) -> Reply:
        if "Write down what you need" in request.prompt:
            return Reply(tool_calls=(ToolCall("new_answer", {"content": "C1X"}),))
        if reader.count < DOCUMENTS:
            return reader(request)
        return Reply(tool_calls=(ToolCall("read_back", {"reference": "1.1"}),))

    model = HardWindow(WINDOW, replies)
    run = begin(server, tmp_path, model, context_window=WINDOW)
    assert run.wait(200) == "C1X"
    assert model.refused == []
    (notice,) = [text for text in run.view.notices if "folded part" in text]
    assert notice == "a has read the folded part 1.1 3 times."


def test_rewind_to_before_a_fold_has_the_whole_conversation(
    server: ModelServer, tmp_path: Path
) -> None:
    model = HardWindow(WINDOW, Reader())
    run = begin(server, tmp_path, model, context_window=WINDOW)
    run.wait(200)
    first = folds(run)[0]
    again = HardWindow(10 * WINDOW, Reader())
    server.script("m", *([again] * 100))
    run.rewind(first.seq - 1, config=team_of(server, "vllm")).wait(200)
    asked = again.requests[0].prompt
    folded = [f"C{reference.partition('.')[0]}X" for reference in first.references]
    assert folded
    assert [code for code in folded if code not in asked] == []
    assert "[Folded:" not in asked


def exchange(number: int, size: int) -> list[Any]:
    """Return a reply with a tool call, and the result of the call."""
    reply = ModelResponse(
        [ToolCallPart("lookup", {"n": number}, f"c{number}")],
        usage=RequestUsage(input_tokens=2400, output_tokens=10),
    )
    return [reply, ModelRequest([ToolReturnPart("lookup", "x" * size, f"c{number}")])]


@pytest.mark.anyio
async def test_resumed_round_estimates_its_folded_conversation_as_the_interrupted_one_did() -> None:
    emitted: list[Any] = []
    toolbox = SimpleNamespace(definitions=[])
    round: Any = SimpleNamespace(agent="a", toolbox=toolbox, emit=emitted.append, fold_request=None)

    async def summarize(other: object, messages: object) -> Summary:
        return Summary("SUMMARY")

    def folder() -> ContextFolder:
        return ContextFolder(Folding(ContextSpec(), window=4000), round, summarize)

    opening = [ModelRequest.user_text_prompt("t" * 5700)]
    first, last = exchange(1, 3900), exchange(2, 3900)
    history, before = History(opening), folder()
    history.add(first, [])
    before.measure(history.shown(), last[0])
    history.add(last, [])
    await before.fold_if_needed(history)
    assert [event.kind for event in emitted] == ["context_folded"]

    resumed, after = History(opening, emitted), folder()
    resumed.add(first, [])
    exchanges = (Exchange(1, first[0]), Exchange(2, last[0]))
    past = PastRound(1, {}, Opening("", ()), exchanges, folds=tuple(emitted), folded_at=2)
    after.recall(resumed, past, last[0])
    resumed.add(last, [])
    await after.fold_if_needed(resumed)
    assert [event.kind for event in emitted] == ["context_folded"]
    assert resumed.shown() == history.shown()
