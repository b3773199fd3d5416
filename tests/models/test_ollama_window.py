"""Ollama drops the beginning of a long conversation without an error. Nothing is lost unseen."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.models.ollama_window import ollama_window
from tests.kit.runs import Run
from tests.kit.sessions import read_journal

NUM_CTX = 4000
BYTES_PER_TOKEN = 4
RULE = "Obey RULE-17 always."
TASK = "Read TASK-CANARY documents."


def lookup(n: int) -> str:
    """Return a document.

    Args:
        n: Its number.
    """
    return f"Document {n}. {'so on ' * 330}"


class Ollama:
    """A server that behaves like Ollama.

    Attributes:
        is_loaded: Whether a model is loaded. Otherwise its first request loads it.
        from_file: Whether the model's file contains the window.
        read: What the model has read of each conversation.
    """

    def __init__(self) -> None:
        self.is_loaded = False
        self.from_file = False
        self.read: list[str] = []
        self.cut = 0
        self.documents = 8
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner._send(self, owner._running())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/api/show":
                    parameters = f"stop  x\nnum_ctx    {NUM_CTX}" if owner.from_file else ""
                    owner._send(self, {"parameters": parameters})
                else:
                    owner._reply(self, body)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Ollama:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _running(self) -> dict[str, Any]:
        model = {"name": "m:latest", "model": "m:latest", "context_length": NUM_CTX}
        return {"models": [model] if self.is_loaded else []}

    def _send(self, handler: BaseHTTPRequestHandler, value: Any) -> None:
        data = json.dumps(value).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _reply(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.is_loaded = True
        text = json.dumps([body.get("tools"), body["messages"]])
        tokens = len(text) // BYTES_PER_TOKEN
        if tokens > NUM_CTX:  # keeps the end, and reports its size
            self.cut += 1
            tokens = NUM_CTX // 2 + 2
            text = text[-tokens * BYTES_PER_TOKEN :]
        self.read.append(text)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for frame in self._frames(body["messages"], tokens):
            handler.wfile.write(b"data: " + json.dumps(frame).encode() + b"\n\n")
        handler.wfile.write(b"data: [DONE]\n\n")

    def _frames(self, messages: list[dict[str, Any]], tokens: int) -> Iterator[dict[str, Any]]:
        head = {"id": "r", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        delta: dict[str, Any] = {"role": "assistant", "content": "A summary."}
        if "Write the summary now" not in str(messages[-1]["content"]):
            number = sum("lookup" in str(m.get("tool_calls")) for m in messages) + 1
            number = max(number, len(self.read))
            name, args = "lookup", {"n": number}
            if number > self.documents:
                name, args = "new_answer", {"content": "All read."}  # type: ignore[dict-item]
            function = {"name": name, "arguments": json.dumps(args)}
            call = {"index": 0, "id": f"c{len(self.read)}", "type": "function"}
            delta = {"role": "assistant", "tool_calls": [{**call, "function": function}]}
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        usage = {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
        yield {**head, "choices": [], "usage": usage}


@pytest.fixture
def ollama() -> Iterator[Ollama]:
    with Ollama() as running:
        yield running


def begin(ollama: Ollama, root: Path, task: str = TASK) -> Run:
    backend = {"type": "ollama", "model": "m", "base_url": ollama.url}
    team = {"agents": [{"id": "a", "system_message": RULE, "backend": backend}]}
    spec = nb_agents.TeamSpec.model_validate(team)
    run = nb_agents.start(task, spec, tools=[lookup], options=RunOptions(session_root=root))
    run.wait(200, raise_on_stop=False)
    return run


def folds(run: Run) -> list[ev.ContextFolded]:
    events = read_journal(run.path / "events.jsonl").events
    return [event for event in events if isinstance(event, ev.ContextFolded)]


@pytest.mark.parametrize(("is_loaded", "from_file"), [(True, False), (False, True), (False, False)])
def test_conversation_is_folded_before_ollama_cuts_it(
    ollama: Ollama, tmp_path: Path, is_loaded: bool, from_file: bool
) -> None:
    ollama.is_loaded, ollama.from_file = is_loaded, from_file
    run = begin(ollama, tmp_path)
    assert run.status == "completed"
    assert ollama.cut == 0
    assert {(fold.why, fold.window) for fold in folds(run)} == {("near", NUM_CTX)}
    assert [text for text in ollama.read if RULE not in text or "TASK-CANARY" not in text] == []


def test_task_longer_than_the_window_of_ollama_is_refused(ollama: Ollama, tmp_path: Path) -> None:
    ollama.is_loaded = True
    run = begin(ollama, tmp_path, "word " * 2 * NUM_CTX)
    assert run.status == "failed"
    assert ollama.read == []
    error = run.view.agents["a"].error
    assert f"the context window has {NUM_CTX:,}" in error
    assert "OLLAMA_CONTEXT_LENGTH" in error


def test_first_reply_to_a_conversation_that_ollama_has_cut_is_not_used(
    ollama: Ollama, tmp_path: Path
) -> None:
    """The window is unknown until the model is loaded."""
    run = begin(ollama, tmp_path, "word " * int(1.2 * NUM_CTX))
    assert run.status == "failed"
    assert ollama.cut == 1
    error = run.view.agents["a"].error
    assert f"The server read only {NUM_CTX // 2 + 2:,}" in error
    assert f"the context window has {NUM_CTX:,}" in error


@pytest.mark.anyio
async def test_server_without_these_routes_reports_no_window() -> None:
    def missing(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(404, text="not found")

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(missing)) as client:
        assert await ollama_window(client, "http://localhost/v1", "m") == 0
