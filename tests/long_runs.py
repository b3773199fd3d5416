"""Runs whose work is many times as long as the context window, at a strict stub.

The model decides from the conversation alone, as a real one does: it asks for the first document
that it does not see, whether in a result, a call or the ledger of a fold. If a fold lost track of
the work, it would ask for a document again. The final answer contains a code from the first
document, which has been folded by then, so the model has to read it back.
"""

from __future__ import annotations

import base64
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from tests.hard_window import refusal, tokens_of
from tests.kit.runs import Run
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, Request, ToolCall

__all__ = [
    "FORMATS",
    "SHAPES",
    "TIMES",
    "WINDOW",
    "LongRun",
    "Play",
    "make_lookup",
    "play",
    "rewind_faults",
]

FORMATS = {"vllm": "chat", "responses": "responses", "claude": "anthropic", "gemini": "google"}
"""The API of each backend type."""
SHAPES = ("team", "sub-agent", "recipe")
WINDOW = 6000
TIMES = 10
"""How many windows an agent reads."""
DOCUMENT_TOKENS = 540
"""The size of a document, and its smallest fraction of the window (`DOCUMENTS_PER_WINDOW`)."""
DOCUMENTS_PER_WINDOW = 24
PER_REPLY = 3
RULE = "RULE-17: answer in one line."
CANARIES = ("CANARY-ONE", "CANARY-TWO", "CANARY-THREE")
TASK = "Read all documents of CANARY-ONE. Use CANARY-TWO only. End with the code of CANARY-THREE."
CODE = "C1X"
SUMMARY = "SUMMARY"

RECIPE = """\
name: reads
description: d
version: 1.0.0
steps:
- {id: read, agent: a, prompt: "%s", output: code}
- {id: end, agent: a, prompt: "%s The code is {{code}}.", output: ended}
"""


def document_tokens(window: int) -> int:
    """Return the size of a document for models with this window."""
    return max(DOCUMENT_TOKENS, window // DOCUMENTS_PER_WINDOW)


def make_lookup(window: int) -> Callable[[int], str]:
    """Return the tool with which models with this window read documents."""
    words = "so on " * (document_tokens(window) * 4 // 6)

    @nb_agents.tool(repeatable=True)
    def lookup(n: int) -> str:
        """Return a document.

        Args:
            n: Its number.
        """
        return f"Document {n} has the code C{n}X. {words}"

    return lookup


@dataclass
class LongRun:
    """The models of one run, and what they received.

    Attributes:
        window: The number of tokens that they accept.
        documents: The number of documents that an agent reads.
        text: Text that each reply contains.
        answers_now: Whether they answer as soon as their conversation is folded.
        requests: The accepted requests for work.
        summaries: The accepted requests for summaries.
        refused: The sizes of the refused requests.
        tokens: The tokens of all requests and replies, by their purpose.
        faults: What a provider or user would have complained about.
    """

    window: int = WINDOW
    documents: int = TIMES * WINDOW // DOCUMENT_TOKENS
    text: str = ""
    answers_now: bool = False
    requests: list[Request] = field(default_factory=list)
    summaries: list[Request] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        with self._lock:
            return self._reply(request)

    def _reply(self, request: Request) -> Reply:
        sent = tokens_of(request)
        self.faults += faults_of(request)
        if sent > self.window:
            self.refused.append(sent)
            self.tokens["refused"] += sent
            return refusal(request.protocol, sent, self.window)
        is_summary = "Write the summary now" in request.prompt[-3000:]
        (self.summaries if is_summary else self.requests).append(request)
        reply = self._summary(request) if is_summary else self._work(request)
        size = sum(len(json.dumps(call.args)) for call in reply.tool_calls) + len(reply.text)
        kind = "summaries" if is_summary else "reading back" if _reads_back(reply) else "work"
        self.tokens[kind] += sent + size // 4
        return Reply(
            reply.text,
            reply.tool_calls,
            input_tokens=sent,
            output_tokens=size // 4,
            thoughts="Think first.",
        )

    def _summary(self, request: Request) -> Reply:
        return Reply(f"{SUMMARY}: read up to document {max(_seen(request), default=0)}.")

    def _work(self, request: Request) -> Reply:
        names, text = request.tool_names, request.prompt
        if self.answers_now and "read_back" in names:
            return _answer(request)
        if "call_agent" in names and "All read" not in text:
            return Reply(tool_calls=(ToolCall("call_agent", {"name": "sub", "input": TASK}),))
        if "vote" in names and "All read" in text:
            return _answer(request)
        has_read = "All read" in text and not _seen(request)  # in an earlier round
        if not (has_read or "The code is" in text or "call_agent" in names) and (
            calls := self._reading(request)
        ):
            return Reply(self.text, calls)
        return _answer(request)

    def _reading(self, request: Request) -> tuple[ToolCall, ...]:
        last = max(_seen(request), default=0)
        more = range(last + 1, min(last + PER_REPLY, self.documents) + 1)
        if more:
            return tuple(ToolCall("lookup", {"n": n}) for n in more)
        if f"the code {CODE}" in request.prompt:
            return ()
        known = re.search(r'(\d+\.\d+) lookup \{\s*"n":\s*1\s*\}', _plain(request))
        known = known or re.search(r'read_back\("(1\.1)"\)', _plain(request))
        return (ToolCall("read_back", {"reference": known[1] if known else "ledger"}),)


def _answer(request: Request) -> Reply:
    answer = f"All read: {CODE}"
    if "vote" in request.tool_names:
        return Reply(tool_calls=(ToolCall("vote", {"agent_id": "agent1", "reason": "r"}),))
    if "new_answer" in request.tool_names:
        return Reply(tool_calls=(ToolCall("new_answer", {"content": answer}),))
    return Reply(answer)


def _reads_back(reply: Reply) -> bool:
    return any(call.name == "read_back" for call in reply.tool_calls)


def _plain(request: Request) -> str:
    return request.prompt.replace('\\"', '"')


def _seen(request: Request) -> set[int]:
    """Return the numbers of the documents of which the conversation contains a call."""
    calls = re.findall(r'"n":\s*(\d+)', json.dumps(request.messages).replace('\\"', '"'))
    return set(map(int, calls))


def faults_of(request: Request) -> Iterator[str]:
    """Yield the canaries that a request lacks, and signed thoughts that were changed."""
    if RULE not in request.prompt:
        yield f"request {request.number} lacks the rule"
    for canary in CANARIES:
        if canary not in request.prompt:
            yield f"request {request.number} lacks {canary}"
    for block in _thoughts(request.messages):
        if "Think first." not in block:
            yield f"request {request.number} has changed thoughts: {block[:80]}"


def _thoughts(value: Any) -> Iterator[str]:
    """Yield the signed texts in a conversation in any API."""
    if isinstance(value, list):
        for each in value:
            yield from _thoughts(each)
    elif isinstance(value, dict):
        if value.get("type") == "thinking":
            yield value["thinking"] if value["signature"].endswith(value["thinking"]) else "other"
        elif value.get("type") == "reasoning":
            yield str(value.get("encrypted_content"))
        elif "thoughtSignature" in value:
            yield base64.b64decode(value["thoughtSignature"]).decode()
        for each in value.values():
            yield from _thoughts(each)


@dataclass(frozen=True)
class Play:
    """A finished run and its models."""

    name: str
    run: Run
    model: LongRun
    team: nb_agents.TeamSpec

    @property
    def events(self) -> list[Any]:
        """The events of the run."""
        return list(read_journal(self.run.path / "events.jsonl").events)

    @property
    def folds(self) -> list[ev.ContextFolded]:
        """The folds of all its agents."""
        return [event for event in self.events if isinstance(event, ev.ContextFolded)]

    @property
    def repeated_calls(self) -> list[str]:
        """The documents that an agent has asked for more than once."""
        started = [e for e in self.events if isinstance(e, ev.ToolStarted) and e.tool == "lookup"]
        count = Counter(f"{event.agent} {event.args}" for event in started)
        return [call for call, number in count.items() if number > 1]

    @property
    def faults(self) -> list[str]:
        """What went wrong."""
        status = self.run.status
        failed = [f"{status}: {self.run.view.error}"] if status != "completed" else []
        answer = str(self.run.view.outputs.get("ended", self.run.view.answer))
        wrong = [] if CODE in answer else [f"wrong answer: {answer[:80]}"]
        again = [f"asked again: {each}" for each in self.repeated_calls]
        late = [f"refused {len(self.model.refused)} times"] * (len(self.model.refused) > 2)
        return [*failed, *wrong, *again, *late, *self.model.faults]


def rewind_faults(server: ModelServer, played: Play) -> Iterator[str]:
    """Rewind to before each fold. Yield how the conversation differs from the original run's.

    With the same window, the fold is made again, so the next request is the same. With a large
    window, nothing is folded, so a conversation that was folded for the first time is whole.
    """
    known = {_worded(request) for request in played.model.requests}
    folds = played.folds
    for number, fold in enumerate(folds):
        model = LongRun(answers_now=True)
        server.script(played.name, model)
        played.run.rewind(fold.seq - 1, config=played.team).wait(500, raise_on_stop=False)
        folded = [r for r in model.requests if "read_back" in r.tool_names]
        # Another agent of the team may have answered first, which is news for this one.
        if not any(_worded(each) in known for each in folded):
            yield f"another request after a rewind to before fold {number}"
    model = LongRun(100 * WINDOW, played.model.documents)
    server.script(played.name, model)
    whole = _with_window(played.team, 100 * WINDOW)
    played.run.rewind(folds[0].seq - 1, config=whole).wait(500, raise_on_stop=False)
    text = "\n".join(each.prompt for each in model.requests)
    lost = [each for each in folds[0].references if _code(each) not in text]
    yield from (f"{each} is missing after a rewind" for each in lost)


def _code(reference: str) -> str:
    reply, _, call = reference.partition(".")
    return f"code C{(int(reply) - 1) * PER_REPLY + int(call)}X"


_PLACES = re.compile(r"session_[0-9]+_[0-9]+(_[0-9]+)?|(turn|task)_[0-9]+|Time left: [^\]]*")


def _worded(request: Request) -> str:
    return _PLACES.sub("PLACE", json.dumps(request.messages))


def _with_window(team: nb_agents.TeamSpec, window: int) -> nb_agents.TeamSpec:
    values = team.model_dump(exclude_unset=True)
    return nb_agents.TeamSpec.model_validate(values | {"context": {"window": window}})


def play(
    server: ModelServer,
    root: Path,
    shape: str,
    kind: str,
    seed: int = 0,
    times: int = TIMES,
    window: int = WINDOW,
) -> Play:
    """Play one run and return it when it has ended.

    Args:
        server: The stub.
        root: The directory for its session.
        shape: One of `SHAPES`.
        kind: One of `FORMATS`.
        seed: Varies the texts, and whether the window is known.
        times: How many windows each agent reads.
        window: The number of tokens that the models accept.
    """
    chance = random.Random(f"{shape} {kind} {seed}")
    text = "I take a note. " * chance.choice((0, 1, 8))
    documents = times * window // document_tokens(window)
    model = LongRun(window, documents, text)
    tools = [make_lookup(window)]
    name = f"{shape}-{kind}-{seed}-{window}"
    server.script(name, model)
    known = {"context_window": window} if chance.random() < 0.7 else {}
    team = _team({**server.backend(kind), "model": name, **known}, shape)
    options = RunOptions(session_root=root)
    if shape == "recipe":
        recipe = root / "recipe.yaml"
        recipe.write_text(RECIPE % (TASK, TASK))
        run = nb_agents.start("", team, tools=tools, recipe=recipe, options=options)
    else:
        run = nb_agents.start(TASK, team, tools=tools, options=options)
    run.wait(500, raise_on_stop=False)
    return Play(name, run, model, team)


def _team(backend: dict[str, Any], shape: str) -> nb_agents.TeamSpec:
    agent = {"id": "a", "system_message": RULE, "backend": backend}
    team: dict[str, Any] = {"agents": [agent]}
    if shape == "team":
        team["agents"] = [agent, {**agent, "id": "b"}]
        team["orchestrator"] = {"defer_voting_until_all_answered": True}
    if shape == "sub-agent":
        agent["backend"] = {**backend, "can_call": "*"}
        sub = {"id": "sub", "system_message": RULE, "backend": backend}
        team["callable_agents"] = [sub]
    return nb_agents.TeamSpec.model_validate(team)
