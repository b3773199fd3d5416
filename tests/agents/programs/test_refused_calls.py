"""Agents of other frameworks wait if their provider refuses a call, and repeat only that call."""

import json
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import httpx2
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.agents.programs.frameworks import FRAMEWORKS
from tests.agents.programs.members import MODEL_URL
from tests.kit.agents import TEXT_PLACE, replay
from tests.kit.programs import refusal_in
from tests.kit.runs import Run, find_run, live_turns, resume_due_turns
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import events, finish, kill_writers

Make = Callable[..., Any]
all_frameworks = pytest.mark.parametrize("make", FRAMEWORKS.values(), ids=FRAMEWORKS)
HOUR = Reply(status=429, headers={"Retry-After": "3600"}, error="Out of quota.")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


class Provider:
    """A model that writes two files and then answers. Its third call is refused at first.

    Args:
        refusal: The reply to the third call.
        times: The number of refusals. None means until `accepts` is set.
    """

    def __init__(self, server: ModelServer, refusal: Reply, times: int | None = None) -> None:
        self.accepts = threading.Event()
        self._server, self._refusal, self._left = server, refusal, times
        server.script("m", self._reply)

    def _reply(self, request: Request) -> Reply:
        number = sum(each.get("role") == "tool" for each in request.messages)
        if number < 2:
            args = {"path": f"{number}.md", "content": "text"}
            return Reply(tool_calls=(ToolCall("write_file", args, f"c{number}"),))
        if self._left == 0 or self.accepts.is_set():
            return Reply("Two files.")
        if self._left is not None:
            self._left -= 1
        return self._refusal

    @property
    def calls(self) -> list[int]:
        """How often the first, second and third call were requested."""
        bodies = Counter(json.dumps(each.messages) for each in self._server.requests)
        return [*bodies.values()]


def start(root: Path, agent: Any, limit_s: float = 4000) -> Run:
    spec = TeamSpec(agents=[agent], wait_for_quota=limit_s)
    return nb_agents.start("t", spec, options=RunOptions(session_root=root))


def again(run: Run, agent: Any) -> Run:
    options = RunOptions(session_root=run.path.parents[1])
    return finish(nb_agents.resume(run.session, TeamSpec(agents=[agent]), options=options))


def waits(run: Run) -> list[ev.ModelFailed]:
    return [each for each in events(run, ev.ModelFailed) if each.waits_for]


@all_frameworks
def test_agent_waits_and_repeats_only_the_refused_call(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    soon = Reply(status=429, headers={"Retry-After": "0.4"}, error="Out of quota.")
    provider = Provider(server, soon, times=3)  # some libraries repeat it themselves
    run = finish(start(tmp_path, make(server)))
    assert (run.status, run.result) == ("completed", "Two files.")
    assert provider.calls == [1, 1, 4]
    first, *_ = waits(run)
    assert (first.waits_for, first.wait_limit_s) == ("quota", 4000)
    begun = [e for e in events(run, ev.ModelStarted) if e.place == first.place]
    assert begun[1].at >= first.retry_at >= begun[0].at
    assert len(events(run, ev.ToolStarted)) == 2
    assert events(run, ev.AgentFailed) == []


@all_frameworks
@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_the_wait_and_a_resume_repeats_only_the_refused_call(
    tmp_path: Path, server: ModelServer, make: Make, now: bool
) -> None:
    provider = Provider(server, HOUR)
    agent = make(server)
    run = start(tmp_path, agent)
    wait_until(lambda: run.view.wait)
    assert run.view.wait is not None and run.view.wait.reason == "quota"
    run.stop(now=now)
    finish(run)
    assert (run.status, events(run, ev.AgentFailed)) == ("cancelled", [])
    refused = provider.calls[2]
    provider.accepts.set()
    resumed = again(run, agent)
    assert (resumed.status, resumed.result) == ("completed", "Two files.")
    assert provider.calls == [1, 1, refused + 1]


def test_killed_wait_is_resumed_when_it_is_over(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODEL_URL, server.url)
    provider = Provider(server, HOUR)
    backend = {"type": "python", "object": "tests.agents.programs.members:writer"}
    spec = TeamSpec.model_validate(
        {"agents": [{"id": "ada", "backend": backend}], "wait_for_quota": 4000}
    )
    options = RunOptions(session_root=tmp_path, detach=True)
    run = nb_agents.start("t", spec, "waits", options=options)
    wait_until(lambda: run.view.wait)
    wait = run.view.wait
    assert wait is not None
    kill_writers(tmp_path)
    wait_until(lambda: not live_turns(root=tmp_path))
    refused = provider.calls[2]
    provider.accepts.set()
    assert [turn.resumed for turn in resume_due_turns(tmp_path, wait.until - 1)] == [""]
    assert [turn.resumed for turn in resume_due_turns(tmp_path, wait.until)] == ["waits/2"]
    resumed = find_run("waits/2", tmp_path)
    resumed.wait(200)
    assert (resumed.status, resumed.result) == ("completed", "Two files.")
    assert provider.calls == [1, 1, refused + 1]


@all_frameworks
@pytest.mark.parametrize(
    ("limit_s", "message"),
    [
        (0, "It asks to wait 3,600 s. To allow that, set `wait_for_quota`."),
        (60, "It asks to wait 3,600 s, but `wait_for_quota` allows only 60 s."),
    ],
)
def test_call_that_is_not_waited_for_fails(
    tmp_path: Path, server: ModelServer, make: Make, limit_s: float, message: str
) -> None:
    Provider(server, HOUR)
    run = finish(start(tmp_path, make(server), limit_s))
    assert (run.status, waits(run)) == ("failed", [])
    [agent] = run.view.agents.values()
    assert message in agent.error


class State(TypedDict):
    task: str
    found: Annotated[list[str], operator.add]
    answer: str


class Refused(Exception):
    """The error of a provider's library."""

    status_code = 429

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Too many requests. Try again in {seconds}s.")


def _graph(done: list[str], errors: list[Exception], **compiled: Any) -> Any:
    """Return a graph of two nodes, the second of which raises the errors first."""
    from langgraph.graph import START, StateGraph

    async def look(state: State) -> dict[str, Any]:
        done.append("look")
        return {"found": ["it"]}

    async def tell(state: State) -> dict[str, Any]:
        if errors:
            raise RuntimeError("The model failed.") from errors.pop()
        done.append("tell")
        return {"answer": "and ".join(state["found"])}

    graph = StateGraph(State)
    graph.add_node("look", look)
    graph.add_node("tell", tell)
    graph.add_edge(START, "look")
    graph.add_edge("look", "tell")
    return graph.compile(**compiled)


def test_graph_waits_and_continues_at_the_node_that_was_refused(tmp_path: Path) -> None:
    done: list[str] = []
    graph = _graph(done, [Refused(0.3), Refused(0.3)])
    run = finish(start(tmp_path, graph))
    assert (run.status, run.result, done) == ("completed", "it", ["look", "tell"])
    first, second = waits(run)
    assert first.waited_s < 0.3 <= second.waited_s


def test_stopped_wait_of_a_graph_is_resumed_at_its_node(tmp_path: Path) -> None:
    done: list[str] = []
    graph = _graph(done, [Refused(3600)])
    run = start(tmp_path, graph)
    wait_until(lambda: run.view.wait)
    run.stop()
    finish(run)
    assert run.status == "cancelled"
    assert again(run, graph).result == "it"
    assert done == ["look", "tell"]


@pytest.mark.parametrize("place", ["/r1/m1", TEXT_PLACE])
def test_limit_counts_from_the_first_refusal_also_in_a_resume(place: str) -> None:
    wait: dict[str, Any] = {
        "waits_for": "quota",
        "retry_at": 200.0,
        "wait_limit_s": 1000.0,
        "waited_s": 5.0,
    }
    past: list[ev.Event] = [
        ev.RoundStarted(agent="a", number=1, seen={}),
        ev.ModelStarted(agent="a", call=1, place=place),
        ev.ModelFailed(agent="a", call=1, error="e", place=place, at=100, **wait),
    ]
    call = replay(("a",), past).rounds["a"].placed[place]
    assert call.wait is not None and call.wait.seconds_at(130) == 35
    past += [
        ev.ModelStarted(agent="a", call=2, place=place),
        ev.ModelFailed(agent="a", call=2, error="e", place=place),
    ]
    assert replay(("a",), past).rounds["a"].placed[place].wait is None


def test_graph_without_checkpoints_does_not_wait(tmp_path: Path) -> None:
    done: list[str] = []
    run = finish(start(tmp_path, _graph(done, [Refused(0.3)], checkpointer=False)))
    assert (run.status, waits(run), done) == ("failed", [], ["look"])


def _caused(error: Exception) -> Exception:
    """Return an error of a framework that was caused by another one."""
    try:
        try:
            raise error
        except Exception:
            raise RuntimeError("The agent failed.")  # noqa: B904
    except RuntimeError as exc:
        return exc


class LibraryError(Exception):
    """An error of a provider's library with attributes."""

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        vars(self).update(attributes)


class Response:
    """A response of an HTTP library."""

    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code, self.headers = status_code, headers


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LibraryError("x", status_code=429), 429),  # openai, anthropic
        (LibraryError("x", code=503), 503),  # google-genai
        (LibraryError("x", response=Response(529)), 529),  # httpx
        (LibraryError("x", status_code=400), None),
        (LibraryError("x", status_code=401), None),
        (LibraryError("x", body={"type": "rate_limit_exceeded", "code": None}), 429),  # in a stream
        (LibraryError("x", body={"error": {"type": "overloaded_error"}}, status_code=200), 529),
        (httpx2.ConnectError("x"), 503),
        (LibraryError("insufficient_quota: check your billing", status_code=429), None),
        (LibraryError("No credit. Try again in 2h.", status_code=402), 429),
        (LibraryError("You wrote about HTTP 429."), None),
        (ExceptionGroup("x", [LibraryError("x", status_code=400), Refused(1)]), 429),
    ],
)
def test_error_is_recognized_by_its_status_or_kind(error: Exception, status: int | None) -> None:
    for each in (error, _caused(error)):
        assert getattr(refusal_in(each), "status_code", None) == status
