"""A turn as a trace of OpenTelemetry, made from its journal: live, or afterwards.

Names and attributes are those of the conventions for generative AI. What models were sent and said
is left out, as the conventions have it by default; all else is masked as the journal is.

Ids follow from the session, the turn and the number of an event, so that a turn has the same trace
whenever it is made, and a resumed turn can link to the one that it goes on with.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents import events as ev
from nb_agents.agents.placed_calls import WORDS
from nb_agents.errors import UserError
from nb_agents.view.fold import apply
from nb_agents.view.run_view import RunView

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

PROVIDERS = {
    "azure_openai": "azure.ai.openai",
    "chatcompletion": "openai",
    "claude": "anthropic",
    "gemini": "gcp.gemini",
    "grok": "x_ai",
    "moonshot": "moonshot_ai",
}
"""The conventions' names of providers, by backend type, where they differ."""

NEEDS_SDK = "Traces need OpenTelemetry's SDK: `pip install 'nb_agents[otel]'`."

_ENDINGS = (
    ev.AnswerGiven,
    ev.VoteCast,
    ev.VoteIgnored,
    ev.Abstained,
    ev.RoundTimedOut,
    ev.AgentFailed,
    ev.AgentEnded,
    ev.FinalAnswerGiven,
    ev.OrchestrationRestarted,
    ev.StepFinished,
    ev.StepFailed,
)
_FAILURES = (ev.AgentFailed, ev.RoundTimedOut, ev.StepFailed)

Key = tuple[str, ...]
"""What a span is of: () is the turn, (agent,) its round, (agent, "model" or "tool", id) a call."""


class _Ids(NamedTuple):
    """An `IdGenerator` of OpenTelemetry's SDK that gives one span's ids."""

    trace_id: int
    span_id: int

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id

    def is_trace_id_random(self) -> bool:
        return False


def _number(size: int, *parts: object) -> int:
    """Return a number of so many bytes that follows from some values; never 0."""
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


class TurnTrace:
    """Makes the spans of a turn from its events, in order.

    Args:
        provider: Where they go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer: Any = provider.get_tracer("nb_agents")
        self._key: tuple[Any, ...] = ()
        self._open: dict[Key, Span] = {}
        self._infos: dict[str, ev.AgentInfo] = {}
        self._stop = RunView()  # of the stops alone, by which a turn's end has its name

    def take(self, event: ev.Event) -> None:
        """Take an event of the turn."""
        match event:
            case ev.TurnStarted():
                self._begin(event)
            case ev.RoundStarted(agent=agent):
                self._end_agent(agent, event)
                self._agent(agent, event)
            case ev.AgentCalled(agent=agent):
                self._infos[agent] = ev.AgentInfo(id=agent, model=event.model)
                self._agent(agent, event, self._around(event.caller, event.call_id))
            case ev.ModelStarted(place=place) if place != WORDS:
                self._model(event)
            case ev.ModelFinished() | ev.ModelFailed() | ev.ModelCut():
                self._end_model(event, (event.agent, "model", str(event.call)))
            case ev.ToolStarted():
                self._tool(event)
            case ev.ToolFinished(agent=agent, call_id=id, outcome=outcome):
                error = "tool_error" if outcome == "error" else ""
                self._finish((agent, "tool", id), event, error, {"nb_agents.outcome": outcome})
            case ev.StopRequested():
                self._stop = apply(self._stop, event)
            case ev.TurnEnded(status=status):
                for key in [*self._open][:0:-1]:
                    self._finish(key, event)
                error = "turn_failed" if status == "failed" else ""  # a stop is no error
                state = apply(self._stop, event).state
                self._finish((), event, error, {"nb_agents.status": state})
        if isinstance(event, _ENDINGS):
            failure = type(event).__name__ if isinstance(event, _FAILURES) else ""
            who = event.step if isinstance(event, ev.StepFinished | ev.StepFailed) else event.agent
            self._end_agent(who, event, failure)

    def _begin(self, event: ev.TurnStarted) -> None:
        from opentelemetry.trace import Link, SpanContext, TraceFlags

        def ids(turn: int) -> _Ids:
            key = (event.session, turn, event.task)
            return _Ids(_number(16, *key), _number(8, *key))

        self._key = (event.session, event.turn, event.task)
        self._infos = {each.id: each for each in event.agents}
        before = [SpanContext(*ids(event.resumes), True, TraceFlags(1))] * bool(event.resumes)
        name = event.recipe or "team"
        more = {"gen_ai.workflow.name": name, "nb_agents.turn": event.turn}
        self._tracer.id_generator = ids(event.turn)
        self._start((), "invoke_workflow", name, event, more, links=[*map(Link, before)])

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

        if around is not None:
            trace_id = self._tracer.id_generator.trace_id
            self._tracer.id_generator = _Ids(trace_id, _number(8, *self._key, event.seq))
        parent = None if around is None else self._open.get(around) or self._open.get(())
        known = {k: v for k, v in attributes.items() if v not in ("", None)}
        self._open[key] = self._tracer.start_span(
            f"{operation} {name}".strip(),
            set_span_in_context(parent, Context()) if parent else Context(),
            SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL,
            {"gen_ai.operation.name": operation, "gen_ai.conversation.id": self._key[0]} | known,
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

    def _agent(self, agent: str, event: ev.Event, around: Key = ()) -> None:
        """Begin the span of an agent's round, if it is not open."""
        if (agent,) not in self._open:
            more = {"gen_ai.agent.id": agent, "gen_ai.agent.name": agent}
            more |= self._model_of(agent)
            self._start((agent,), "invoke_agent", agent, event, more, around)

    def _end_agent(self, agent: str, event: ev.Event, error: str = "") -> None:
        for key in [key for key in self._open if key[:1] == (agent,) and len(key) > 1]:
            self._finish(key, event)
        self._finish((agent,), event, error)

    def _model_of(self, agent: str) -> dict[str, str]:
        info = self._infos.get(agent) or ev.AgentInfo(id=agent, model="")
        provider = PROVIDERS.get(info.backend, info.backend)
        return {"gen_ai.request.model": info.model, "gen_ai.provider.name": provider}

    def _around(self, agent: str, place: str) -> Key:
        """Return the tool's span that a place is in, else the agent's."""
        while place and (agent, "tool", place) not in self._open:
            place = place.rpartition("/")[0]
        return (agent, "tool", place) if place else (agent,)

    def _model(self, event: ev.ModelStarted) -> None:
        self._agent(event.agent, event)
        more: dict[str, Any] = self._model_of(event.agent)
        more |= {"gen_ai.request.model": event.model} if event.model else {}
        more |= {"gen_ai.request.stream": True, "nb_agents.place": event.place}
        key, around = (
            (event.agent, "model", str(event.call)),
            self._around(event.agent, event.place),
        )
        self._start(key, "chat", more["gen_ai.request.model"], event, more, around)

    def _end_model(self, event: ev.ModelFinished | ev.ModelFailed | ev.ModelCut, key: Key) -> None:
        if not isinstance(event, ev.ModelFinished):
            error = "model_call_failed" if isinstance(event, ev.ModelFailed) else ""
            self._finish(key, event, error, {"nb_agents.outcome": "" if error else "cut"})
            return
        said, used = event.response if isinstance(event.response, dict) else {}, event.usage
        tokens = {"input": used.input_tokens, "output": used.output_tokens}
        more: dict[str, Any] = {f"gen_ai.usage.{k}_tokens": n for k, n in tokens.items()}
        more["gen_ai.response.model"] = str(said.get("model_name") or said.get("model") or "")
        self._finish(key, event, "", more | {"nb_agents.cost": used.cost})

    def _tool(self, event: ev.ToolStarted) -> None:
        self._agent(event.agent, event)
        more = {"gen_ai.tool.name": event.tool, "gen_ai.tool.call.id": event.call_id}
        around = self._around(event.agent, event.call_id.rpartition("/")[0])
        key = (event.agent, "tool", event.call_id)
        self._start(key, "execute_tool", event.tool, event, more, around)


def live_trace() -> TurnTrace | None:
    """Return what traces a run that begins now, if this process has set up OpenTelemetry's SDK."""
    if (sdk := sys.modules.get("opentelemetry.sdk.trace")) is None:
        return None
    from opentelemetry.trace import get_tracer_provider

    provider = get_tracer_provider()
    return TurnTrace(provider) if isinstance(provider, sdk.TracerProvider) else None


def trace_events(events: Iterable[ev.Event], provider: TracerProvider) -> None:
    """Make the trace of a turn, also of one that has not come to its end."""
    trace, last = TurnTrace(provider), None
    for last in events:
        trace.take(last)
    if last is not None:
        trace.take(ev.TurnEnded(at=last.at, status="cancelled", phase="coordinating"))


def exporting_provider(endpoint: str = "") -> TracerProvider:
    """Return a provider that sends traces to a collector, or prints them where none is named.

    Args:
        endpoint: The collector's address, as ``http://localhost:4318/v1/traces``; by default that
            of the environment, as ``OTEL_EXPORTER_OTLP_ENDPOINT``.

    Raises:
        UserError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.sdk.trace import TracerProvider, export

        exporter: Any = export.ConsoleSpanExporter()
        if endpoint or any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=endpoint or None)
    except ImportError:
        raise UserError(NEEDS_SDK) from None
    provider = TracerProvider()
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider
