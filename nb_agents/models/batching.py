"""Sends model requests through a provider's batch API, which is cheaper and takes minutes to hours.

Requests of all runs in this process that are made within a short time are sent as one batch. Each
call then waits until the batch has ended and takes its own result. A caller records each
`BatchTicket` in its journal, so that another process can wait for the same batch and nothing is
paid twice.

There are no background tasks, because the HTTP client of a run is closed at the end of the run.
One of the waiting calls sends the batch, or asks for its state, with its own client. If it is
stopped, another one continues.

The requests are encoded, and the results decoded, by pydantic-ai's models.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import anyio

from nb_agents.models.backend import BatchEndedError, BrokenReplyError
from nb_agents.models.expected_files import expecting_file
from nb_agents.models.failures import status_of
from nb_agents.models.retry import is_transient

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

QUIET_S = 2.0
"""A batch is sent when no request has been added for this many seconds."""

MAX_COLLECT_S = 30.0
"""Seconds after its first request at which a batch is sent in any case."""

MIN_POLL_S = 1.0
MAX_POLL_S = 60.0
"""The shortest and longest time in seconds between two requests for the state of a batch."""

MAX_FAILED_POLLS = 10
"""Number of failed requests for the state of a batch in a row after which the call fails."""

SENDING_S = 2.0
"""Seconds for which a stop waits for the id of a batch that is being sent."""

CLOCK_SKEW_S = 300.0
"""The greatest difference in seconds between our clock and the provider's."""


class BatchTicket(NamedTuple):
    """What identifies a request that was sent in a batch.

    Attributes:
        custom_id: The id of the request within its batch.
        batch: The provider's id of the batch. "" if the batch was being sent and its id is unknown.
        at: When the batch was sent, in Unix seconds.
    """

    custom_id: str
    batch: str
    at: float


RecordTicket = Callable[[BatchTicket | None], None]
"""Called when the ticket of a request changes. None means that the request is not in a batch."""


@dataclass(eq=False)
class _Entry:
    """A request that waits for its batch to be sent."""

    encoded: EncodedBatchRequest
    record: RecordTicket
    sent_at: float = 0.0
    batch: Batch | None = None
    error: Exception | None = None
    done: anyio.Event = field(default_factory=anyio.Event)

    def fail(self, error: Exception) -> None:
        self.error = error
        # Without an answer from the provider, the batch may exist.
        if (status_of(error) or 500) < 500:
            self.record(None)
        self.done.set()

    def finish(self, batch: Batch) -> None:
        self.batch = batch
        self.record(BatchTicket(self.encoded.custom_id, batch.id, self.sent_at))
        self.done.set()


class _Collector:
    """Collects the requests that can be sent in one batch."""

    def __init__(self) -> None:
        self._waiting: list[_Entry] = []
        self._lock = anyio.Lock()
        self._first_at = self._last_at = 0.0

    async def submit(
        self, model: Model, encoded: EncodedBatchRequest, record: RecordTicket
    ) -> Batch:
        """Send a request with others, and return the batch.

        If the caller is cancelled before the request is sent, it is not sent.
        """
        entry = _Entry(encoded, record)
        self._last_at = anyio.current_time()
        if not self._waiting:
            self._first_at = self._last_at
        self._waiting.append(entry)
        try:
            async with self._lock:  # one of the callers sends the requests of all
                while not entry.sent_at:
                    await self._collect()
                    await self._send(model)
        finally:
            if not entry.sent_at:
                self._waiting.remove(entry)
            elif not entry.done.is_set():
                with anyio.move_on_after(SENDING_S, shield=True):
                    await entry.done.wait()
        if entry.batch is None:
            assert entry.error is not None
            raise entry.error
        return entry.batch

    async def _collect(self) -> None:
        while True:
            due = min(self._last_at + QUIET_S, self._first_at + MAX_COLLECT_S)
            if (left_s := due - anyio.current_time()) <= 0:
                return
            await anyio.sleep(left_s)

    async def _send(self, model: Model) -> None:
        entries = _that_fit(model, self._waiting)
        del self._waiting[: len(entries)]
        self._first_at = anyio.current_time()
        for entry in entries:
            entry.sent_at = time.time()
            entry.record(BatchTicket(entry.encoded.custom_id, "", entry.sent_at))
        sending = asyncio.ensure_future(model.batch_create([each.encoded for each in entries]))
        sending.add_done_callback(lambda task: _distribute(task, entries))
        try:
            await asyncio.wait([sending])
        except asyncio.CancelledError:
            with anyio.move_on_after(SENDING_S, shield=True):
                await asyncio.wait([sending])
            sending.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([sending])
            raise
        with anyio.CancelScope(shield=True):
            await entries[-1].done.wait()


def _distribute(sending: asyncio.Future[Batch], entries: Sequence[_Entry]) -> None:
    """Give the calls their batch, or the error of sending it."""
    error = None if sending.cancelled() else sending.exception()
    for entry in entries:
        if sending.cancelled():
            entry.fail(BrokenReplyError("Sending the batch was interrupted."))
        elif error is not None:
            entry.fail(error if isinstance(error, Exception) else BrokenReplyError(repr(error)))
        else:
            entry.finish(sending.result())


def _that_fit(model: Model, entries: Sequence[_Entry]) -> list[_Entry]:
    """Return the first entries that fit into one batch, at least one."""
    max_bytes, size = model.batch_max_bytes, 0
    fitting: list[_Entry] = []
    for entry in entries[: model.batch_max_requests or 1]:
        size += model.batch_request_size(entry.encoded)
        if fitting and max_bytes is not None and size > max_bytes:
            break
        fitting.append(entry)
    return fitting


class _Watch:
    """The results of a batch that several calls wait for."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._results: dict[str, BatchResult] | None = None

    async def results(self, model: Model, batch: Batch) -> dict[str, BatchResult]:
        """Wait until the batch has ended, and return its results by the requests' ids."""
        async with self._lock:  # one of the callers asks the provider
            if self._results is None:
                self._results = await _poll(model, batch)
        return self._results


async def _poll(model: Model, batch: Batch) -> dict[str, BatchResult]:
    began, failed = anyio.current_time(), 0
    while True:
        try:
            with expecting_file():
                batch = await model.batch_status(batch)
                if batch.status == "ended":
                    return {each.custom_id: each for each in await model.batch_results(batch)}
            failed = 0
        except Exception as exc:
            failed += 1
            if failed > MAX_FAILED_POLLS or not is_transient(exc):
                raise
        age_s = anyio.current_time() - began
        await anyio.sleep(min(max(MIN_POLL_S, age_s / 10), MAX_POLL_S))


_collectors: dict[tuple[str, ...], _Collector] = {}
_watches: WeakValueDictionary[tuple[str, str], _Watch] = WeakValueDictionary()


async def request_in_batch(
    model: Model, request: BatchRequest, ticket: BatchTicket | None, record: RecordTicket
) -> ModelResponse:
    """Send a request in a batch and wait for its result, or wait for that of an earlier request.

    Args:
        model: A model with a batch API.
        request: The request. Its id is replaced.
        ticket: The ticket of the same request, if it was sent before.
        record: Called with each new ticket, before and after the batch is sent.

    Raises:
        BatchEndedError: The batch or the result doesn't exist or was cancelled.
        BrokenReplyError: The provider did not run the request in time. It can be sent again.
    """
    request = replace(request, custom_id=ticket.custom_id if ticket else uuid.uuid4().hex)
    encoded = await model.batch_encode(request)
    batch = None
    if ticket is not None:
        batch = await _known_batch(model, encoded, ticket)
        if batch is not None and batch.id != ticket.batch:
            record(ticket._replace(batch=batch.id))
    if batch is None:
        collector = _collectors.setdefault(_account_of(model, encoded), _Collector())
        batch = await collector.submit(model, encoded, record)
    key = (str(model.base_url), batch.id)
    watch = _watches.get(key) or _watches.setdefault(key, _Watch())
    try:
        results = await watch.results(model, batch)
    except Exception as exc:
        if status_of(exc) != 404:
            raise
        record(None)
        raise BatchEndedError(f"The provider no longer has batch {batch.id}.") from exc
    return _decoded(model, request, batch, results, record)


def _account_of(model: Model, encoded: EncodedBatchRequest) -> tuple[str, ...]:
    """Return what requests of one batch have in common. The key, so that each user pays theirs."""
    key = getattr(_client_of(model), "api_key", "")
    return str(model.base_url), str(key), encoded.group


def _client_of(model: Model) -> Any:
    """Return the SDK's client, which only models with a batch API have."""
    return getattr(model, "client", None)


def _decoded(
    model: Model,
    request: BatchRequest,
    batch: Batch,
    results: dict[str, BatchResult],
    record: RecordTicket,
) -> ModelResponse:
    result = results.get(request.custom_id)
    status = result.status if result is not None else "missing"
    try:
        if result is not None and status in ("succeeded", "errored"):
            return model.batch_decode(result, request)
    except Exception:
        record(None)
        raise
    record(None)
    if status == "expired":
        raise BrokenReplyError(f"Batch {batch.id} expired before the provider ran the request.")
    message = "was cancelled before it ran the request" if result else "has no result for the call"
    raise BatchEndedError(f"Batch {batch.id} {message}.")


async def _known_batch(
    model: Model, encoded: EncodedBatchRequest, ticket: BatchTicket
) -> Batch | None:
    """Return the batch of a request that was sent before, or None if it was not received."""
    if ticket.batch:
        return _handle(model, encoded, ticket.batch, ticket.at)
    async for batch_id, created_at, input_file in _created_since(model, ticket.at - CLOCK_SKEW_S):
        batch = _handle(model, encoded, batch_id, created_at)
        if created_at <= ticket.at + MAX_COLLECT_S + CLOCK_SKEW_S and await _contains(
            model, batch, input_file, ticket.custom_id
        ):
            return batch
    return None


def _handle(model: Model, encoded: EncodedBatchRequest, batch: str, created_at: float) -> Batch:
    from pydantic_ai.models.batch import Batch

    return Batch(
        id=batch,
        model_name=model.model_name,
        provider_name=model.system,
        group=encoded.group,
        status="in_progress",
        created_at=datetime.fromtimestamp(created_at, UTC),
        request_count=1,
    )


async def _created_since(model: Model, at: float) -> AsyncIterator[tuple[str, float, str]]:
    """Yield the account's batches since a time: id, time and, if there is one, input file."""
    client = _client_of(model)
    if model.system == "anthropic":
        async for each in client.beta.messages.batches.list(limit=100):
            if each.created_at.timestamp() < at:
                return
            yield each.id, each.created_at.timestamp(), ""
        return
    async for each in client.batches.list(limit=100):
        if each.created_at < at:
            return
        yield each.id, float(each.created_at), each.input_file_id


async def _contains(model: Model, batch: Batch, input_file: str, custom_id: str) -> bool:
    """Return whether a batch contains a request. Anthropic only tells when the batch has ended."""
    if not input_file:
        return custom_id in await _poll(model, batch)
    client = _client_of(model)
    with expecting_file():
        return custom_id in (await client.files.content(input_file)).text
