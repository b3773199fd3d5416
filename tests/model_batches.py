"""The batch APIs of `tests.model_server`: OpenAI's (of responses) and Anthropic's.

The requests of a batch are run when the client asks for its state and batches are not held. Each is
a `Request` of the server then, and gets the reply of its model's script. So the server's number of
requests is the number that a provider charges for.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Kind = Literal["responses", "anthropic"]
Run = Callable[[Kind, dict[str, Any]], tuple[int, dict[str, Any]]]
"""Runs a request, and returns the HTTP status and the body of the reply."""


@dataclass
class Batch:
    """A batch.

    Attributes:
        requests: The body of each request by its custom id.
        results: The status and body of each reply by its custom id. A status of 0 means that the
            request expired. Empty until the batch has ended.
        polls: How many times the client has asked for its state.
    """

    id: str
    kind: Kind
    requests: dict[str, dict[str, Any]]
    created_at: float = field(default_factory=time.time)
    results: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    is_cancelled: bool = False
    polls: int = 0


class Batches:
    """The batches of a server.

    Args:
        run: Runs a request of a batch.

    Attributes:
        all: The batches, oldest first.
        are_held: Whether batches stay in progress.
        expire_next: The number of requests that expire from now on, before others are run.
        drop_next: Whether the connection is closed without a reply when a batch is created.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.all: list[Batch] = []
        self.are_held = False
        self.expire_next = 0
        self.drop_next = False
        self._files: dict[str, dict[str, dict[str, Any]]] = {}

    def answer(self, method: str, path: str, raw: bytes, base: str) -> tuple[int, Any] | None:
        """Return the status and body of a reply: JSON, or a list of lines. None for other paths."""
        path = path.partition("?")[0]
        if method == "POST" and path == "/v1/files":
            return 200, self._upload(raw)
        if match := re.fullmatch(r"/v1/files/(in|out|err)-(\w+)(/content)?", path):
            return self._file(*match.groups())
        if match := re.fullmatch(r"/v1(/messages)?/batches(?:/(\w+))?(/cancel|/results)?", path):
            kind: Kind = "anthropic" if match[1] else "responses"
            if match[2] is None:
                return self._create_or_list(method, kind, raw, base)
            batch = next((b for b in self.all if (b.id, b.kind) == (match[2], kind)), None)
            if batch is None:
                return 404, {"error": {"type": "not_found_error", "message": "No such batch."}}
            if match[3] == "/results":
                return 200, [_anthropic_line(*each) for each in batch.results.items()]
            return 200, self._state(batch, is_cancel=bool(match[3]), base=base)
        return None

    def _upload(self, raw: bytes) -> dict[str, Any]:
        lines = [json.loads(line) for line in raw.splitlines() if line.startswith(b'{"custom_id"')]
        name = f"in-f{len(self._files)}"
        self._files[name] = {each["custom_id"]: each["body"] for each in lines}
        head = {"id": name, "object": "file", "bytes": len(raw), "created_at": 0}
        return {**head, "filename": "batch.jsonl", "purpose": "batch", "status": "processed"}

    def _file(self, part: str, name: str, content: str | None) -> tuple[int, Any]:
        if content is None:
            return 200, {"id": f"{part}-{name}", "object": "file", "deleted": True}
        if part == "in":
            return 200, [{"custom_id": each} for each in self._files[f"in-{name}"]]
        batch = next(each for each in self.all if each.id == name)
        pairs = batch.results.items()
        return 200, [
            _openai_line(*each) for each in pairs if (each[1][0] == 200) == (part == "out")
        ]

    def _create_or_list(self, method: str, kind: Kind, raw: bytes, base: str) -> tuple[int, Any]:
        if method == "GET":
            data = [_shown(each, base) for each in reversed(self.all) if each.kind == kind]
            return 200, {"object": "list", "data": data, "has_more": False}
        body = json.loads(raw)
        if kind == "responses":
            requests = self._files[body["input_file_id"]]
            name = body["input_file_id"].removeprefix("in-")
        else:
            requests = {each["custom_id"]: each["params"] for each in body["requests"]}
            name = f"b{len(self.all)}"
        batch = Batch(name, kind, dict(requests))
        self.all.append(batch)
        if self.drop_next:
            self.drop_next = False
            return 0, None
        return 200, _shown(batch, base)

    def _state(self, batch: Batch, is_cancel: bool, base: str) -> dict[str, Any]:
        batch.polls += 1
        batch.is_cancelled |= is_cancel
        if not self.are_held and not batch.results:
            for custom_id, body in batch.requests.items():
                if self.expire_next:
                    self.expire_next -= 1
                    batch.results[custom_id] = 0, {}
                else:
                    batch.results[custom_id] = self._run(batch.kind, body)
        return _shown(batch, base)


def _openai_line(custom_id: str, result: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    status, body = result
    if not status:
        error = {"code": "batch_expired", "message": "The batch expired."}
        return {"custom_id": custom_id, "response": None, "error": error}
    return {"custom_id": custom_id, "response": {"status_code": status, "body": body}}


def _anthropic_line(custom_id: str, result: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    status, body = result
    shown: dict[str, Any] = {"type": "expired"}
    if status == 200:
        shown = {"type": "succeeded", "message": body}
    elif status:
        shown = {"type": "errored", "error": body}
    return {"custom_id": custom_id, "result": shown}


def _shown(batch: Batch, base: str) -> dict[str, Any]:
    return _openai(batch) if batch.kind == "responses" else _anthropic(batch, base)


def _openai(batch: Batch) -> dict[str, Any]:
    has_expired = any(not status for status, _ in batch.results.values())
    status = "expired" if has_expired else "completed" if batch.results else "in_progress"
    done = {"output_file_id": f"out-{batch.id}", "error_file_id": f"err-{batch.id}"}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": "/v1/responses",
        "input_file_id": f"in-{batch.id}",
        "completion_window": "24h",
        "status": status,
        "created_at": int(batch.created_at),
        "request_counts": {"total": len(batch.requests), "completed": 0, "failed": 0},
        **(done if batch.results else {}),
    }


def _anthropic(batch: Batch, base: str) -> dict[str, Any]:
    kinds = ("processing", "succeeded", "errored", "canceled", "expired")
    created = datetime.fromtimestamp(batch.created_at, UTC).isoformat()
    url = f"{base}/v1/messages/batches/{batch.id}/results"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if batch.results else "in_progress",
        "request_counts": dict.fromkeys(kinds, 0) | {"processing": len(batch.requests)},
        "created_at": created,
        "expires_at": created,
        "ended_at": created if batch.results else None,
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": url if batch.results else None,
    }
