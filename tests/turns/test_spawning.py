"""Sub-agents that an agent spawns: concurrency, limits, stops and resumes."""

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn
from tests.kit import runs as resume
from tests.kit.agents import replay
from tests.kit.models import check_start, team_messages
from tests.kit.runs import Run
from tests.kit.teams import CoordinationSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import events, finish, prompt
from tests.turns.team_files import killed_at, options, write_team

FILE = """\
agents:
  - id: "agent_a"
    backend:
      type: "chatcompletion"
      model: "m"
      base_url: SERVER
      api_key: "k"
orchestrator:
  coordination:
    enable_subagents: true
    subagent_default_timeout: 300
    subagent_max_concurrent: 3
    subagent_orchestrator:
      enabled: true
      agents:
        - backend: {type: "openai", model: "gpt-5-mini"}
    background_subagents:
      enabled: true
      injection_strategy: "tool_result"
"""
BIO = {"task": "Write the biography.", "subagent_id": "bio"}
SONGS = {"task": "List the songs.", "subagent_id": "songs"}


def spawn(*tasks: dict[str, str], background: bool = False) -> Call:
    return Call("spawn_subagents", {"tasks": list(tasks), "background": background})


class Play:
    """One model for an agent and its sub-agents, distinguished by their requests."""

    def __init__(self, own: list[Turn], **theirs: list[Turn]) -> None:
        self._turns = {"": own, **theirs}
        self.asked: list[str] = []
        self.model = ScriptedModel(self._next)

    def _next(self, messages: list[Any]) -> Turn:
        asked = str(messages[0].parts[-1].content)
        who = next((w for w in self._turns if w and w in asked), "")
        self.asked.append(who)
        turns = self._turns[who]
        return turns.pop(0) if len(turns) > 1 else turns[0]


def start(root: Path, play: Play, **coordination: Any) -> Run:
    team = {
        "agent": {"id": "ada", "backend": {"type": "python", "instance": play.model}},
        "orchestrator": {"coordination": {"enable_subagents": True, **coordination}},
    }
    return nb_agents.start("the task", TeamSpec.model_validate(team), options=options(root))


def results(run: Run) -> list[Any]:
    return [
        json.loads(e.result)["subagents"] if e.outcome == "ok" else e.result
        for e in events(run, ev.ToolFinished)
        if e.agent == "ada" and e.tool != "list_files"
    ]


def test_agent_receives_sub_agent_results_and_each_has_its_row(tmp_path: Path) -> None:
    play = Play(
        [Turn(calls=(spawn(BIO, SONGS),)), Answer("both")],
        biography=[Turn(text="Born 1941.")],
        songs=[Turn(text="Many.")],
    )
    run = finish(start(tmp_path, play))
    assert run.result == "both"
    assert results(run) == [
        [
            {"subagent_id": "ada/bio#1", "status": "completed", "answer": "Born 1941."},
            {"subagent_id": "ada/songs#1", "status": "completed", "answer": "Many."},
        ]
    ]
    assert list(run.view.agents) == ["ada", "ada/bio#1", "ada/songs#1"]
    assert "spawn_subagents" in prompt(play.model, 0) and "at most 3\nat a time" in prompt(
        play.model, 0
    )
    assert "spawn_subagents" not in prompt(play.model, 1)  # a sub-agent spawns none


def test_background_sub_agents_can_be_awaited_listed_and_cancelled(tmp_path: Path) -> None:
    gate, born, never = Gate(), Gate(), Gate()
    play = Play(
        [
            Turn(calls=(spawn(BIO, SONGS, background=True), Call("list_subagents"))),
            Turn(text="meanwhile", gate=gate, calls=(Call("list_files"),)),
            Turn(
                calls=(
                    Call("cancel_subagent", {"subagent_id": "ada/songs#1"}),
                    Call("wait_for_subagents"),
                    Call("wait_for_subagents", {"subagent_ids": ["ada/bio#1", "x"]}),
                    Call("list_subagents"),
                )
            ),
            Answer("done"),
        ],
        biography=[Turn(text="Born 1941.", gate=born)],
        songs=[Turn(text="so far ", gate=never)],
    )
    run = start(tmp_path, play)
    gate.wait_reached()
    never.wait_reached()
    born.open()
    wait_until(lambda: run.view.agents["ada/bio#1"].outcome == "finished")
    gate.open()
    finish(run)
    spawned, listed, _, cancelled, waited, wrong, last = [
        e.result for e in events(run, ev.ToolFinished) if e.agent == "ada"
    ]
    assert [s["status"] for s in json.loads(spawned)["subagents"]] == ["running", "running"]
    assert len(json.loads(listed)["subagents"]) == 2
    assert json.loads(cancelled)["subagents"][0]["error"] == "you cancelled it"
    assert json.loads(waited)["subagents"] == []
    assert "no sub-agent 'x'. Your sub-agents: ada/bio#1, ada/songs#1" in wrong
    assert [s["status"] for s in json.loads(last)["subagents"]] == ["completed", "error"]
    assert run.view.agents["ada/songs#1"].outcome == "killed"


def told_of(run: Run) -> list[tuple[str, ...]]:
    return [e.subagents for e in events(run, ev.NoteSent) if e.subagents]


def parts_with(text: str, model: ScriptedModel, request: int) -> list[str]:
    """Return the kinds of a request's parts that contain a text."""
    parts = [part for message in model.requests[request] for part in message.parts]
    return [part.part_kind for part in parts if text in str(getattr(part, "content", ""))]


@pytest.mark.parametrize(
    "given, is_message", [({}, False), ({"injection_strategy": "user_message"}, True)]
)
def test_results_follow_the_configured_strategy_also_after_a_resume(
    tmp_path: Path, given: dict[str, Any], is_message: bool
) -> None:
    gate, held = Gate(), Gate()
    play = Play(
        [
            Turn(calls=(spawn(BIO, background=True),)),
            Turn(text="meanwhile", gate=gate, calls=(Call("list_files"), Call("list_files"))),
            Turn(text="never", gate=held),
            Answer("done"),
        ],
        biography=[Turn(text="Born 1941.")],
    )
    run = start(tmp_path, play, background_subagents=given)
    gate.wait_reached()
    wait_until(lambda: run.view.agents["ada/bio#1"].outcome == "finished")
    gate.open()
    held.wait_reached()
    run.stop(now=True)
    finish(run)
    again = finish(run.resume())
    assert again.result == "done"
    assert parts_with("Born 1941.", play.model, -1) == ["tool-return"]
    messages = team_messages(prompt(play.model, -1))
    assert any("Born 1941." in message for message in messages) is is_message
    cut, resumed = (
        [(p.part_kind, vars(p) | {"timestamp": None}) for m in request for p in m.parts]
        for request in play.model.requests[-2:]
    )
    assert resumed == cut


def test_model_without_calls_also_receives_results(tmp_path: Path) -> None:
    gate = Gate()
    play = Play(
        [Turn(calls=(spawn(BIO, background=True),)), Turn(text=" ", gate=gate), Answer("done")],
        biography=[Turn(text="Born 1941.")],
    )
    run = start(tmp_path, play)
    gate.wait_reached()
    wait_until(lambda: run.view.agents["ada/bio#1"].outcome == "finished")
    gate.open()
    assert finish(run).result == "done"
    # The blank reply is left out of the conversation.
    assert parts_with("Born 1941.", play.model, -1) == ["tool-return"]


def test_background_result_is_reported_once_with_the_next_results(
    tmp_path: Path,
) -> None:
    gate = Gate()
    play = Play(
        [
            Turn(calls=(spawn(BIO, background=True),)),
            Turn(text="meanwhile", gate=gate, calls=(Call("list_files"),)),
            Turn(calls=(Call("list_files"),)),
            Answer("done"),
        ],
        biography=[Turn(text="Born 1941.")],
    )
    run = start(tmp_path, play)
    gate.wait_reached()
    wait_until(lambda: run.view.agents["ada/bio#1"].outcome == "finished")
    gate.open()
    finish(run)
    assert told_of(run) == [("ada/bio#1",)]
    own = [n for n, who in enumerate(play.asked) if not who]
    counts = [prompt(play.model, n).count("Born 1941.") for n in own]
    assert counts == [0, 0, 1, 1]


def test_result_that_a_call_returned_is_not_reported_again(tmp_path: Path) -> None:
    play = Play(
        [
            Turn(calls=(spawn(BIO, background=True), Call("wait_for_subagents"))),
            Turn(calls=(Call("list_files"),)),
            Answer("done"),
        ],
        biography=[Turn(text="Born 1941.")],
    )
    run = finish(start(tmp_path, play))
    assert not told_of(run)
    assert [e.subagents for e in events(run, ev.ToolFinished)] == [(), ("ada/bio#1",), ()]


@pytest.mark.parametrize("is_told", [False, True])
def test_resume_reports_exactly_the_unreported_results(tmp_path: Path, is_told: bool) -> None:
    first, second = Gate(), Gate()
    play = Play(
        [
            Turn(calls=(spawn(BIO, background=True),)),
            Turn(text="meanwhile", gate=first, calls=(Call("list_files"),)),
            Turn(text="so ", gate=second, calls=(Call("list_files"),)),
            Turn(calls=(Call("list_files"),)),
            Answer("done"),
        ],
        biography=[Turn(text="Born 1941.")],
    )
    run = start(tmp_path, play)
    first.wait_reached()
    wait_until(lambda: run.view.agents["ada/bio#1"].outcome == "finished")
    if is_told:
        first.open()
        second.wait_reached()
    run.stop(now=True)
    first.open()
    second.open()
    finish(run)
    before = len(play.asked)
    again = run.resume()
    again.wait(200, raise_on_stop=False)
    assert again.result == "done" and play.asked.count("biography") == 1
    assert (told_of(run), told_of(again)) == (
        ([("ada/bio#1",)], []) if is_told else ([], [("ada/bio#1",)])
    )
    assert prompt(play.model, len(play.asked) - 1).count("Born 1941.") == 1
    if is_told:  # what the stop cut is asked again with the same words
        assert prompt(play.model, before) == prompt(play.model, before - 1)


def test_number_of_concurrent_sub_agents_is_limited(tmp_path: Path) -> None:
    play = Play(
        [Turn(calls=(spawn(BIO, SONGS),)), Turn(calls=(spawn(BIO, background=True),)), Answer("x")],
        biography=[Turn(text="Born 1941.")],
    )
    run = finish(
        start(tmp_path, play, subagent_max_concurrent=1, background_subagents={"enabled": False})
    )
    too_many, background = results(run)
    assert (
        "at most 1 sub-agents can work at a time; 0 are running, and this call would add 2"
        in too_many
    )
    assert "can't work in the background" in background
    assert "background" not in prompt(play.model, 0)


@pytest.mark.parametrize(
    "given, seconds",
    [
        ({}, 300),
        ({"subagent_default_timeout": 5}, 60),
        ({"subagent_default_timeout": 2000}, 600),
        ({"subagent_default_timeout": 5, "subagent_min_timeout": 1}, 5),
        ({"subagent_max_timeout": 30}, 30),
    ],
)
def test_time_limit_of_a_sub_agent_is_bounded(given: dict[str, Any], seconds: int) -> None:
    assert CoordinationSpec.model_validate(given).subagent_timeout_s == seconds


def test_timed_out_sub_agent_is_stopped_and_its_caller_is_informed(tmp_path: Path) -> None:
    play = Play(
        [Turn(calls=(spawn(BIO),)), Answer("without")],
        biography=[Turn(text="so far ", hang=True)],
    )
    run = finish(start(tmp_path, play, subagent_min_timeout=0.1, subagent_default_timeout=0.2))
    assert run.result == "without"
    ((told,),) = results(run)
    assert told["status"] == "error" and "time limit of 0.2 s" in told["error"]


def test_unsupported_limits_prevent_the_start() -> None:
    team = TeamSpec.model_validate(
        {
            "agent": {"backend": {"type": "demo"}},
            "orchestrator": {"coordination": {"subagent_round_timeouts": {"initial": 5}}},
        }
    )
    with pytest.raises(ConfigError, match="subagent_round_timeouts` restricts how long sub-agents"):
        check_start(team)


@pytest.mark.parametrize("now", [False, True])
def test_stop_reaches_background_agents_and_resume_repeats_no_request(
    tmp_path: Path, now: bool
) -> None:
    own, held = Gate(), Gate()
    play = Play(
        [
            Turn(calls=(spawn(BIO, SONGS, background=True),)),
            Turn(text="meanwhile ", gate=own, calls=(Call("list_files"),)),
            Turn(calls=(Call("wait_for_subagents", {"subagent_ids": ["ada/bio#1"]}),)),
            Turn(calls=(Call("wait_for_subagents"),)),
            Answer("done"),
        ],
        biography=[Turn(text="Born 1941.")],
        songs=[Turn(text="so far ", gate=held, calls=(Call("list_files"),)), Turn(text="Many.")],
    )
    run = start(tmp_path, play)
    own.wait_reached()
    held.wait_reached()
    wait_until(lambda: run.view.agents["ada/bio#1"].outcome == "finished")
    run.stop(now=now)
    held.open()  # first: what works in the background ends with the one that began it
    wait_until(lambda: run.view.agents["ada/songs#1"].outcome)
    own.open()
    finish(run)
    assert run.view.agents["ada/songs#1"].outcome in ("stopped", "killed")
    preview = resume.preview(run.path.parent.name, session_root=tmp_path)
    assert ("ada/songs#1" in preview.asked_again) is now
    assert ("ada/songs#1: list_files" in preview.tools_again) is not now
    again = run.resume()
    again.wait(200, raise_on_stop=False)
    assert again.result == "done"
    waits = [r for r in results(again) if isinstance(r, list)]
    assert waits[0] == [{"subagent_id": "ada/bio#1", "status": "completed", "answer": "Born 1941."}]
    assert "Many." in prompt(play.model, len(play.asked) - 1)
    assert play.asked.count("songs") == 2
    assert play.asked.count("biography") == 1
    assert [e.spawned for e in events(again, ev.AgentCalled)] == ["ada/songs#1"]


def test_unawaited_sub_agents_end_with_the_run(tmp_path: Path) -> None:
    own, held = Gate(), Gate()
    play = Play(
        [Turn(calls=(spawn(SONGS, background=True),)), Answer("done", gate=own)],
        songs=[Turn(text="so far ", gate=held)],
    )
    run = start(tmp_path, play)
    held.wait_reached()
    own.open()
    finish(run)
    assert (run.status, run.result) == ("completed", "done")
    left = run.view.agents["ada/songs#1"]
    assert (left.outcome, left.partial) == ("killed", "so far ")
    assert play.model.open_streams == 0


def test_resumed_call_uses_the_finished_sub_agents(tmp_path: Path, server: ModelServer) -> None:
    write_team(tmp_path, server, FILE)
    asked: list[str] = []

    def reply(request: Request) -> Reply:
        for who in ("biography", "songs"):
            if f"{who}." in str(request.messages[1]["content"]):
                asked.append(who)
                is_first = asked.count(who) == 1
                hang = 1 if who == "songs" and is_first else None
                return Reply(text=f"about {who}", hang_after=hang)
        if any(m["role"] == "tool" for m in request.messages):
            return Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
        return Reply(tool_calls=(ToolCall("spawn_subagents", {"tasks": [BIO, SONGS]}),))

    server.script("m", reply)

    def is_there() -> bool:
        journals = list((tmp_path / "s").glob("*/turn_1/events.jsonl"))
        text = journals[0].read_text() if journals else ""
        return '"agent_ended"' in text and asked.count("songs") == 1

    run = killed_at(tmp_path, tmp_path / "s", is_there, server)
    assert finish(run).result == "done"
    (told,) = [json.loads(e.result) for e in events(run, ev.ToolFinished)]
    assert [s["answer"] for s in told["subagents"]] == ["about biography", "about songs"]
    assert sorted(asked) == ["biography", "songs", "songs"]
    team = TeamSpec.from_file(tmp_path / "team.yaml")
    assert team.ignored == ("orchestrator.coordination.subagent_orchestrator",)


def test_spawned_agents_are_restored_from_the_journal() -> None:
    def called(agent: str, spawned: str) -> ev.Event:
        return ev.AgentCalled(
            agent=agent, caller="a", name="x", model="m", workspace="w", input="i", spawned=spawned
        )

    past = replay(
        ["a"],
        [
            called("a/x#1", "a/x#1"),
            ev.AgentEnded(agent="a/x#1", outcome="killed"),
            called("a/x#2", "a/x#1"),
            ev.AgentFailed(agent="a/x#2", error="broken"),
            called("a/y#1", ""),
        ],
    )
    spawned, called_once = past.children.values()
    assert (spawned.called.agent, spawned.called.spawned) == ("a/x#2", "a/x#1")
    assert (spawned.text, spawned.refusal) == (None, "x failed: broken")
    assert called_once.is_open
