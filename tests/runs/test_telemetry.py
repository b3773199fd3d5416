"""A turn as a trace: live and afterwards, of teams, recipes, stops, resumes and users' programs."""

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.runs.run import Run
from nb_agents.runs.telemetry import trace_events
from nb_agents.session.journal import read_journal
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests import processes
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


def spans_of(run: Run) -> list[ReadableSpan]:
    provider, exporter = memory()
    trace_events(read_journal(run.path / "events.jsonl").events, provider)
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def named(spans: list[ReadableSpan], operation: str) -> list[ReadableSpan]:
    return [s for s in spans if (s.attributes or {})["gen_ai.operation.name"] == operation]


def start(root: Path, team: TeamSpec, **more: Any) -> Run:
    return nb_agents.start("t", team, options=RunOptions(session_root=root), **more)


WRITES = Turn(calls=(Call("write_file", {"path": "a.md", "content": "x"}),))


def test_a_turn_is_a_trace_of_agents_calls_and_tools_by_the_conventions(tmp_path: Path) -> None:
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


def test_a_stop_is_no_error_and_a_resumed_turn_links_to_the_one_it_goes_on_with(
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


def test_what_a_program_calls_within_a_tool_is_below_that_tool(tmp_path: Path) -> None:
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


def test_a_run_is_traced_live_where_the_process_has_set_up_a_provider(
    tmp_path: Path, provider: InMemorySpanExporter
) -> None:
    run = finish(start(tmp_path, scripted_team(None, ada=ScriptedModel(Answer("A")))))
    live = {s.context.span_id: s.name for s in provider.get_finished_spans()}
    assert live == {s.context.span_id: s.name for s in spans_of(run)}
    assert "invoke_workflow team" in live.values()


def test_nb_agents_trace_prints_the_spans_of_a_turn(tmp_path: Path) -> None:
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
