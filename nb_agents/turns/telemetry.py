"""OpenTelemetry traces of turns, created from journal events, live or afterwards.

Names and attributes follow the semantic conventions for generative AI. Prompts and replies are
omitted, which is the default in the conventions. All other values are masked as in the journal.

The ids of spans are derived from the turn's first event and from the span's subject. A turn
therefore always has the same trace ids, and a resumed turn can link to the previous one.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents import events as ev
from nb_agents.agents.placed_calls import TEXT_PLACE
from nb_agents.context import within
from nb_agents.errors import UserError
from nb_agents.view.fold import apply
from nb_agents.view.run_view import RunView
from nb_agents.view.spans import Key, Span, Spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

PROVIDERS = {
    "azure_openai": "azure.ai.openai",
    "chatcompletion": "openai",
    "claude": "anthropic",
    "gemini": "gcp.gemini",
    "grok": "x_ai",
    "moonshot": "moonshot_ai",
}
"""Provider names in the conventions, by backend type, where the two differ."""

NEEDS_SDK = "Traces need OpenTelemetry's SDK: `pip install 'nb_agents[otel]'`."


class _Ids(NamedTuple):
    """The trace and span ids of a span that is about to start."""

    trace: int
    span: int


_next_ids: ContextVar[_Ids | None] = ContextVar("nb_agents_span_ids", default=None)
"""Set while a span starts. A context variable, because all runs and threads share the tracer."""


class _IdGenerator(NamedTuple):
    """An `IdGenerator` of OpenTelemetry's SDK that returns the ids in `_next_ids`.

    Attributes:
        others: The generator for spans of other libraries.
    """

    others: Any

    def generate_trace_id(self) -> int:
        ids = _next_ids.get()
        return ids.trace if ids else int(self.others.generate_trace_id())

    def generate_span_id(self) -> int:
        ids = _next_ids.get()
        return ids.span if ids else int(self.others.generate_span_id())

    def is_trace_id_random(self) -> bool:
        return False


def _number(size: int, *parts: object) -> int:
    """Return a hash of some values as a positive integer of ``size`` bytes."""
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


def _ids_of(started: ev.TurnStarted, *parts: object) -> _Ids:
    """Return the ids of a span of a turn.

    Args:
        started: The turn's first event. Its time is included, because rows of sweeps can have the
            same session names.
        parts: The span's key and the number of the event that opens it. Empty for the turn.
    """
    turn = (started.session, started.turn, started.task, started.at)
    return _Ids(_number(16, *turn), _number(8, *turn, *parts))


class TurnTrace:
    """Creates the spans of a turn from its events.

    Args:
        provider: The provider that creates and exports spans.
        past: The first event of the turn that this turn resumes, to link to it.
    """

    def __init__(self, provider: TracerProvider, past: ev.TurnStarted | None = None) -> None:
        tracer: Any = provider.get_tracer("nb_agents")
        ids = getattr(tracer, "id_generator", None)
        if not isinstance(ids, _IdGenerator):
            tracer.id_generator = _IdGenerator(ids)
        self._tracer = tracer
        self._past = past
        self._started: ev.TurnStarted | None = None
        self._open: dict[Key, OtelSpan] = {}
        self._infos: dict[str, ev.AgentInfo] = {}
        self._spans = Spans()
        self._stop = RunView()  # the fold of the stops, which determine the turn's final state

    def take(self, event: ev.Event) -> None:
        """Process the next event. Events before the turn's start or after its end are ignored."""
        if isinstance(event, ev.TurnStarted):
            self._begin(event)
        if () not in self._open:
            return
        for span in self._spans.take(event):
            self._draw(span, event)
        if isinstance(event, ev.StopRequested | ev.TurnEnded):
            self._stop = apply(self._stop, event)
        if isinstance(event, ev.TurnEnded):
            error = "turn_failed" if event.status == "failed" else ""  # a stop is not an error
            self._finish((), event, error, {"nb_agents.status": self._stop.state})

    def _draw(self, span: Span, event: ev.Event) -> None:
        if span.is_instant or getattr(span.began, "place", "") == TEXT_PLACE:
            return
        match span.kind, span.is_open:
            case "agent", True:
                self._begin_agent(span, event)
            case "agent", False:
                self._end_agent(span, event)
            case "model", True:
                self._begin_model(span, event)
            case "model", False:
                self._end_model(span, event)
            case "tool", True:
                self._begin_tool(span, event)
            case "tool", False:
                self._end_tool(span, event)

    def _begin(self, event: ev.TurnStarted) -> None:
        from opentelemetry.trace import Link, SpanContext, TraceFlags

        self._started = event
        self._infos = {each.id: each for each in event.agents}
        past = [_ids_of(self._past)] if self._past is not None and event.resumes else []
        links = [Link(SpanContext(*ids, True, TraceFlags(1))) for ids in past]
        name = event.recipe or "team"
        more = {"gen_ai.workflow.name": name, "nb_agents.turn": event.turn}
        self._start((), "invoke_workflow", name, event, more, links=links)

    def _start(
        self,
        key: Key,
        operation: str,
        name: str,
        event: ev.Event,
        attributes: dict[str, Any],
        around: Key | None = None,
        links: Iterable[Any] = (),
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        assert self._started is not None
        self._finish(key, event)  # a damaged journal may lack its end
        parent = None if around is None else self._open.get(around) or self._open[()]
        set_attributes = {k: v for k, v in attributes.items() if v not in ("", None)}
        session = self._started.session
        # One event may open two spans: its own, and that of a resumed round without a start.
        ids = _ids_of(self._started, *key, event.seq) if key else _ids_of(self._started)
        with within(_next_ids, ids):
            self._open[key] = self._tracer.start_span(
                f"{operation} {name}".strip(),
                Context() if parent is None else set_span_in_context(parent, Context()),
                SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL,
                {"gen_ai.operation.name": operation, "gen_ai.conversation.id": session}
                | set_attributes,
                links,
                int(event.at * 1e9),
            )

    def _finish(
        self, key: Key, event: ev.Event, error: str = "", more: dict[str, Any] | None = None
    ) -> None:
        from opentelemetry.trace import StatusCode

        if (span := self._open.pop(key, None)) is None:
            return
        if error:
            span.set_attribute("error.type", error)
            span.set_status(StatusCode.ERROR, str(getattr(event, "error", "")) or error)
        span.set_attributes({k: v for k, v in (more or {}).items() if v not in ("", None)})
        span.end(int(event.at * 1e9))

    def _begin_agent(self, span: Span, event: ev.Event) -> None:
        agent = span.agent
        if isinstance(event, ev.AgentCalled):
            self._infos[agent] = ev.AgentInfo(id=agent, model=event.model)
        more = {"gen_ai.agent.id": agent, "gen_ai.agent.name": agent} | self._model_of(agent)
        self._start(span.key, "invoke_agent", agent, event, more, span.parent)

    def _end_agent(self, span: Span, event: ev.Event) -> None:
        for key in [key for key in self._open if key[:1] == span.key and len(key) > 1]:
            self._finish(key, event)
        self._finish(span.key, event, type(event).__name__ if span.outcome == "failed" else "")

    def _model_of(self, agent: str) -> dict[str, str]:
        info = self._infos.get(agent) or ev.AgentInfo(id=agent, model="")
        provider = PROVIDERS.get(info.backend, info.backend)
        return {"gen_ai.request.model": info.model, "gen_ai.provider.name": provider}

    def _begin_model(self, span: Span, event: ev.Event) -> None:
        assert isinstance(event, ev.ModelStarted)
        more: dict[str, Any] = self._model_of(span.agent)
        more |= {"gen_ai.request.model": event.model} if event.model else {}
        more |= {"gen_ai.request.stream": True, "nb_agents.place": event.place}
        self._start(span.key, "chat", more["gen_ai.request.model"], event, more, span.parent)

    def _end_model(self, span: Span, event: ev.Event) -> None:
        more = _usage_attributes(span.usage)
        if isinstance(event, ev.ModelFinished):
            response = event.response if isinstance(event.response, dict) else {}
            model = response.get("model_name") or response.get("model") or ""
            more["gen_ai.response.model"] = str(model)
        elif isinstance(event, ev.ModelCut):
            more["nb_agents.outcome"] = "cut"
        self._finish(span.key, event, "model_call_failed" if span.outcome == "failed" else "", more)

    def _begin_tool(self, span: Span, event: ev.Event) -> None:
        more = {"gen_ai.tool.name": span.name, "gen_ai.tool.call.id": span.id}
        self._start(span.key, "execute_tool", span.name, event, more, span.parent)

    def _end_tool(self, span: Span, event: ev.Event) -> None:
        error = "tool_error" if span.outcome == "error" else ""
        outcome = event.outcome if isinstance(event, ev.ToolFinished) else ""
        self._finish(span.key, event, error, {"nb_agents.outcome": outcome})


def _usage_attributes(usage: ev.Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    more: dict[str, Any] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cost is not None:
        more["nb_agents.cost"] = usage.cost
    return more | ({"nb_agents.usage_estimated": True} if usage.estimated else {})


def live_trace(past: ev.TurnStarted | None = None) -> TurnTrace | None:
    """Return a trace for a new run, or None if this process has not set up OpenTelemetry's SDK.

    Args:
        past: The first event of the turn that the run resumes.
    """
    if (sdk := sys.modules.get("opentelemetry.sdk.trace")) is None:
        return None
    from opentelemetry.trace import get_tracer_provider

    provider = get_tracer_provider()
    return TurnTrace(provider, past) if isinstance(provider, sdk.TracerProvider) else None


def trace_events(events: Iterable[ev.Event], provider: TracerProvider) -> None:
    """Create the trace of a turn from its events. The turn may be incomplete.

    Args:
        events: The turn's events, preceded by those of the turns that it resumed.
        provider: The provider that creates and exports spans.
    """
    events = [*events]
    starts = [n for n, event in enumerate(events) if isinstance(event, ev.TurnStarted)]
    if not starts:
        return
    past = next((e for e in reversed(events[: starts[-1]]) if isinstance(e, ev.TurnStarted)), None)
    trace = TurnTrace(provider, past)
    for event in events[starts[-1] :]:
        trace.take(event)
    trace.take(ev.TurnEnded(at=events[-1].at, status="cancelled", phase="coordinating"))


def exporting_provider(endpoint: str = "") -> TracerProvider:
    """Return a provider that sends traces to a collector, or prints them if there is no collector.

    The service name is "nb_agents", unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES``
    has another one.

    Args:
        endpoint: The collector's address, such as ``http://localhost:4318/v1/traces``. The default
            is taken from the environment, such as ``OTEL_EXPORTER_OTLP_ENDPOINT``.

    Raises:
        UserError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider, export

        exporter: Any = export.ConsoleSpanExporter()
        if endpoint or any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=endpoint or None)
    except ImportError:
        raise UserError(NEEDS_SDK) from None
    default = Resource.create({"service.name": "nb_agents"})
    provider = TracerProvider(resource=default.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider
