"""Traces of turns, live and afterwards: teams, recipes, stops, resumes and external agents."""

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from nb_agents.turns.telemetry import exporting_provider, trace_events
from tests import processes
from tests.kit.runs import Run
from tests.kit.sessions import TurnPaths, past_events, read_journal
from tests.strategies import EVENTS, STARTED
from tests.team_kit import finish

CONVENTIONS = {
    value
    for module in (gen_ai_attributes, error_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}


def memory() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def traced(events: Iterable[ev.Event]) -> list[ReadableSpan]:
    provider, exporter = memory()
    trace_events(events, provider)
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def spans_of(run: Run) -> list[ReadableSpan]:
    return traced(past_events(TurnPaths(run.path)))


def assert_is_tree(spans: list[ReadableSpan]) -> None:
    """Check that spans form one tree: one root, unique ids, and existing parents."""
    ids = [span.context.span_id for span in spans]
    assert len({*ids}) == len(ids)
    assert len({span.context.trace_id for span in spans}) == 1
    assert len([span for span in spans if span.parent is None]) == 1
    for span in spans:
        if span.parent is not None:
            assert span.parent.span_id in ids
            assert span.parent.span_id != span.context.span_id


def named(spans: list[ReadableSpan], operation: str) -> list[ReadableSpan]:
    return [s for s in spans if (s.attributes or {})["gen_ai.operation.name"] == operation]


def start(root: Path, team: TeamSpec, **more: Any) -> Run:
    return nb_agents.start("t", team, options=RunOptions(session_root=root), **more)


WRITES = Turn(calls=(Call("write_file", {"path": "a.md", "content": "x"}),))


def test_turn_is_a_trace_that_follows_the_conventions(tmp_path: Path) -> None:
    ada, ben = ScriptedModel(WRITES, Answer("A")), ScriptedModel(Answer("B"))
    run = finish(
        start(
            tmp_path,
            TeamSpec.model_validate(
                {
                    **dict(scripted_team(None, ada=ada, ben=ben)),
                    "orchestrator": {"skip_voting": True},
                }
            ),
        )
    )
    spans = spans_of(run)
    [root] = named(spans, "invoke_workflow")
    assert root.name == "invoke_workflow team"
    assert root.parent is None
    assert {s.context.trace_id for s in spans} == {root.context.trace_id}
    agents = named(spans, "invoke_agent")
    assert {s.parent.span_id for s in agents if s.parent} == {root.context.span_id}
    ids = {s.context.span_id for s in agents}
    chats, [tool] = named(spans, "chat"), named(spans, "execute_tool")
    assert {s.parent.span_id for s in [*chats, tool] if s.parent} <= ids
    assert (tool.name, (tool.attributes or {})["gen_ai.tool.name"]) == (
        "execute_tool write_file",
        "write_file",
    )
    used = [(s.attributes or {})["gen_ai.usage.output_tokens"] for s in chats]
    assert len(used) == sum(agent.calls for agent in run.view.agents.values())
    assert sum(map(int, used)) == sum(a.output_tokens for a in run.view.agents.values())  # type: ignore[arg-type]
    kinds = {name for span in spans for name in span.attributes or {}}
    assert {name for name in kinds if not name.startswith("nb_agents.")} <= CONVENTIONS
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert {(s.attributes or {})["gen_ai.operation.name"] for s in spans} <= operations
    assert not any((s.attributes or {}).get("error.type") for s in spans)
    for span in spans:
        assert (span.start_time or 0) <= (span.end_time or 0)


def test_stop_is_not_an_error_and_a_resumed_turn_has_a_link(
    tmp_path: Path,
) -> None:
    gate = Gate()
    model = ScriptedModel(WRITES, Turn("some words ", gate=gate), Answer("A"))
    run = start(tmp_path, scripted_team(None, ada=model))
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    spans = spans_of(run)
    [root] = named(spans, "invoke_workflow")
    assert (root.attributes or {})["nb_agents.status"] == "stopped"
    assert root.status.is_unset
    assert (named(spans, "chat")[-1].attributes or {})["nb_agents.outcome"] == "cut"
    options = RunOptions(session_root=tmp_path)
    team = scripted_team(None, ada=ScriptedModel(Answer("A")))
    resumed = spans_of(finish(nb_agents.resume(run.session, team, options=options)))
    [later] = named(resumed, "invoke_workflow")
    assert [link.context.span_id for link in later.links] == [root.context.span_id]
    assert [link.context.trace_id for link in later.links] == [root.context.trace_id]
    assert later.context.trace_id != root.context.trace_id


def test_a_failure_is_an_error_with_its_type(tmp_path: Path) -> None:
    model = ScriptedModel(Turn(error=ValueError("no luck")))
    spans = spans_of(finish(start(tmp_path, scripted_team(None, ada=model))))
    [agent] = named(spans, "invoke_agent")
    assert (agent.attributes or {})["error.type"] == "AgentFailed"
    assert {(s.attributes or {})["error.type"] for s in named(spans, "chat")} == {
        "model_call_failed"
    }
    assert (named(spans, "invoke_workflow")[0].attributes or {})["error.type"] == "turn_failed"


def test_sub_agent_is_one_span_within_its_call() -> None:
    """Its first round is part of the call; so its model calls are within the same span."""
    called: dict[str, Any] = {"name": "bio", "model": "m", "workspace": "w", "input": "i"}
    usage = ev.Usage(input_tokens=1, output_tokens=1)
    events: list[ev.Event] = [
        STARTED,
        ev.RoundStarted(agent="ada", number=1),
        ev.ToolStarted(agent="ada", call_id="1.0", tool="call_agent"),
        ev.AgentCalled(agent="ada/bio#1", caller="ada", call_id="1.0", **called),
        ev.RoundStarted(agent="ada/bio#1", number=1),
        ev.ModelStarted(agent="ada/bio#1", call=1),
        ev.ModelFinished(agent="ada/bio#1", call=1, response={}, usage=usage),
        ev.AgentEnded(agent="ada/bio#1", outcome="finished"),
    ]
    spans = traced([replace(e, seq=n, at=100.0 + n) for n, e in enumerate(events, 1)])
    [call], [agent] = named(spans, "execute_tool"), named(spans, "invoke_agent")[1:]
    [chat] = named(spans, "chat")
    assert agent.parent and agent.parent.span_id == call.context.span_id
    assert chat.parent and chat.parent.span_id == agent.context.span_id


def test_calls_within_a_tool_are_nested_below_it(tmp_path: Path) -> None:
    model = ScriptedModel(Turn("thought"))

    async def think(task: str, ctx: Any) -> str:
        return str(await ctx.step("deep", lambda: ctx.model("Think.", model)))

    spans = spans_of(finish(start(tmp_path, TeamSpec(agents=[think]))))
    [step], [chat] = named(spans, "execute_tool"), named(spans, "chat")
    assert chat.parent and chat.parent.span_id == step.context.span_id


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    made, exporter = memory()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made)
    yield exporter


def test_run_is_traced_live_if_the_process_has_a_tracer_provider(
    tmp_path: Path, provider: InMemorySpanExporter
) -> None:
    run = finish(start(tmp_path, scripted_team(None, ada=ScriptedModel(Answer("A")))))
    live = {s.context.span_id: s.name for s in provider.get_finished_spans()}
    assert live == {s.context.span_id: s.name for s in spans_of(run)}
    assert "invoke_workflow team" in live.values()


def test_live_trace_of_a_resumed_run_links_to_the_resumed_turn(
    tmp_path: Path, provider: InMemorySpanExporter
) -> None:
    gate = Gate()
    run = start(tmp_path, scripted_team(None, ada=ScriptedModel(Turn("some words ", gate=gate))))
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    team = scripted_team(None, ada=ScriptedModel(Answer("A")))
    finish(nb_agents.resume(run.session, team, options=RunOptions(session_root=tmp_path)))
    first, later = [s for s in provider.get_finished_spans() if s.parent is None]
    assert [link.context.span_id for link in later.links] == [first.context.span_id]


def test_trace_command_prints_the_spans_of_a_turn(tmp_path: Path) -> None:
    run = finish(start(tmp_path, scripted_team(None, ada=ScriptedModel(Answer("A")))))
    command = [sys.executable, "-m", "nb_agents.cli", "trace", run.session]
    told = subprocess.run(
        [*command, "--session-root", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert '"name": "invoke_agent ada"' in told.stdout
    assert told.stderr == ""


class Collector(HTTPServer):
    """Takes traces by OTLP over HTTP, and decodes them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1/traces"
        self.bodies: list[bytes] = []

    def spans(self) -> list[Any]:
        asked = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        scopes = [s for a in asked for r in a.resource_spans for s in r.scope_spans]
        return [span for scope in scopes for span in scope.spans]


class CollectorHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_collector_gets_linked_turns_without_keys(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-proj-0123456789abcdefghijklmnop"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    gate = Gate()
    writes = Turn(calls=(Call("write_file", {"path": f"{secret}.md", "content": "x"}),))
    run = start(tmp_path, scripted_team(None, ada=ScriptedModel(writes, Turn(secret, gate=gate))))
    gate.wait_reached()
    run.stop(now=True, reason=f"it wrote {secret}")
    finish(run)
    options = RunOptions(session_root=tmp_path)
    team = scripted_team(None, ada=ScriptedModel(Answer("A")))
    finish(nb_agents.resume(run.session, team, options=options))
    for turn in ("1", "2"):
        command = [sys.executable, "-m", "nb_agents.cli", "trace", f"{run.session}/{turn}"]
        options_given = ["--session-root", str(tmp_path), "--endpoint", collector.url]
        assert processes.run([*command, *options_given]).returncode == 0
    first, later = [s for s in collector.spans() if s.name.startswith("invoke_workflow")]
    [link] = later.links
    assert (link.trace_id, link.span_id) == (first.trace_id, first.span_id)
    assert "execute_tool write_file" in {span.name for span in collector.spans()}
    assert secret.encode() not in b"".join(collector.bodies)


def test_spans_of_all_stored_journals_form_trees() -> None:
    journals = [*Path("tests/session/journals").rglob("events.jsonl")]
    assert journals
    for journal in journals:
        assert_is_tree(traced(read_journal(journal).events))


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_spans_of_any_events_form_one_tree(events: list[ev.Event]) -> None:
    """A resumed turn, or a damaged one, may begin with any event after its first."""
    starts = [n for n, event in enumerate(events) if isinstance(event, ev.TurnStarted)]
    own = [STARTED, *events] if not starts else events
    begins = starts[-1] if starts else 0
    numbered = [replace(e, seq=max(1, n - begins + 1)) for n, e in enumerate(own)]
    assert_is_tree(traced(numbered))


def test_no_span_is_made_without_the_start_of_a_turn() -> None:
    assert traced([ev.ModelStarted(agent="ada", call=1, seq=1)]) == []


def test_turns_that_resume_each_other_are_separate_trees(tmp_path: Path) -> None:
    """A resumed round has no event of its start: its first call opens the agent's span."""
    gates = [Gate() for _ in range(4)]
    turns = [Turn("word ", gate=gate, calls=WRITES.calls) for gate in gates]
    model = ScriptedModel(WRITES, *turns[:1])
    run = start(tmp_path, scripted_team(None, ada=model))
    options = RunOptions(session_root=tmp_path)
    found: list[ReadableSpan] = []
    for n in range(1, 4):
        gates[n - 1].wait_reached()
        run.stop(now=True)
        finish(run)
        found += (spans := spans_of(run))
        assert_is_tree(spans)
        team = scripted_team(None, ada=ScriptedModel(WRITES, turns[n]))
        run = nb_agents.resume(run.session, team, options=options)
    gates[3].open()
    run.stop(now=True)
    finish(run)
    found += (spans := spans_of(run))
    assert_is_tree(spans)
    assert len({span.context.span_id for span in found}) == len(found)
    roots = {s.context.span_id: s.links for s in found if s.parent is None}
    linked = [link.context.span_id for links in roots.values() for link in links]
    assert linked == [*roots][:-1]


def test_rows_of_two_sweeps_with_the_same_name_have_different_ids(tmp_path: Path) -> None:
    found: list[int] = []
    for root in ("one", "two"):
        team = scripted_team(None, ada=ScriptedModel(Answer("A")))
        options = RunOptions(session_root=tmp_path / root)
        run = finish(nb_agents.start("t", team, options=options))
        (tmp_path / root / run.session).rename(tmp_path / root / "row_1")
        events = read_journal(tmp_path / root / "row_1" / "turn_1" / "events.jsonl").events
        named = [
            replace(e, session="row_1") if isinstance(e, ev.TurnStarted) else e for e in events
        ]
        found += [span.context.span_id for span in traced(named)]
    assert len({*found}) == len(found)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "nb_agents"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=ours"}, "ours"),
    ],
)
def test_service_name_is_set_unless_the_environment_sets_it(
    variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    provider = exporting_provider("http://127.0.0.1:1/v1/traces")
    assert provider.resource.attributes["service.name"] == name
