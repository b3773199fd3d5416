"""Half of a surrogate pair becomes U+FFFD everywhere: for models, files, panels and cards."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.cards import card_bundle
from tests.kit.runs import Run
from tests.kit.texts import well_formed
from tests.kit.tools import ToolContext
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.recipes.live import over, write
from tests.team_kit import WAIT_S, events, finish, prompt

HALF = "\ud83d"
OTHER_HALF = "\ude00"
DONE = Answer("done")
ALONE = scripted_team(a=ScriptedModel(DONE))


def shown(run: Run, *models: ScriptedModel) -> str:
    """All that a run shows, keeps and has sent, which every reader must be able to take."""
    view = run.view
    assert well_formed(view) is view
    assert well_formed(run.timeline.rows()) == run.timeline.rows()
    requests = [model.requests for model in models]
    assert well_formed(requests) is requests
    kept = [p.read_bytes().decode() for p in run.path.glob("*") if p.is_file()]
    bundle = json.dumps(card_bundle(view, str(run.path)), ensure_ascii=False)
    return "\n".join([bundle, *run.logs, *kept, *map(str, requests)]).encode().decode()


@pytest.mark.parametrize("kind", ["vllm", "responses", "claude", "gemini"])
def test_model_text_is_made_well_formed(tmp_path: Path, server: ModelServer, kind: str) -> None:
    noted = ToolCall("write_file", {"path": f"{HALF}.md", "content": f"x{HALF}"})
    odd = ToolCall(f"odd{HALF}", {f"k{HALF}": [HALF]})
    answer = ToolCall("new_answer", {"content": f"the answer {HALF}!"})
    server.script(
        "m", Reply(f"half {HALF} a pair {HALF}", (noted, odd)), Reply(tool_calls=(answer,))
    )
    backend = server.backend(kind, model="m")
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.result == "the answer \ufffd!"
    assert "half \ufffd a pair" in shown(run)
    assert "\ufffd" in server.requests[1].prompt
    assert well_formed(server.requests[1].body) is server.requests[1].body


def test_surrogate_pair_in_two_pieces_is_one_character(tmp_path: Path, server: ModelServer) -> None:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        data = {"id": "x", "object": "chat.completion.chunk", "created": 0, "choices": [choice]}
        return b"data: " + json.dumps(data).encode() + b"\n\n"

    def call(arguments: str, **first: str) -> dict[str, Any]:
        function = {"arguments": arguments, **first}
        known = {"id": "c", "type": "function"} if first else {}
        return {"tool_calls": [{"index": 0, **known, "function": function}]}

    pieces = [{"reasoning": HALF}, {"reasoning": OTHER_HALF}, {"content": f"smile {HALF}"}]
    pieces += [{"content": f"{OTHER_HALF} and {HALF}"}]
    pieces += [
        call(f'{{"content": "{HALF}', name="new_answer"),
        call(f'{OTHER_HALF} done {HALF}"}}'),
    ]
    body = [*map(chunk, pieces), chunk({}, "tool_calls")]
    server.script("m", Reply(body=lambda: body))
    backend = {"type": "vllm", "model": "m", "base_url": server.url}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.result == "😀 done \ufffd"
    said: dict[str, str] = {}
    for each in events(run, ev.TextStreamed):
        said[each.channel] = said.get(each.channel, "") + each.text
    assert said == {"thinking": "😀", "text": "smile 😀 and ", "answer": "😀 done \ufffd"}
    [finished] = events(run, ev.ModelFinished)
    assert [p.get("content") for p in finished.response["parts"]][:2] == [
        "😀",
        "smile 😀 and \ufffd",
    ]
    shown(run)


def test_tool_calls_and_results_are_made_well_formed(tmp_path: Path) -> None:
    def look(context: ToolContext) -> str:
        context.tell(f"looking {HALF}")
        (context.workspace / os.fsdecode(b"not utf-8: \xff")).touch()
        return f"seen {HALF}{OTHER_HALF} {HALF}"

    def fail() -> str:
        raise ValueError(f"failed {HALF}")

    look.__doc__ = f"Look {HALF}."
    calls = Turn(calls=(Call("look"), Call("fail"), Call("list_files")))
    model = ScriptedModel(calls, DONE)
    run = nb_agents.start(
        "t", scripted_team(a=model), options=RunOptions(session_root=tmp_path), tools=[look, fail]
    )
    finish(run)
    assert "seen 😀 \ufffd" in prompt(model, 1)
    assert "failed \ufffd" in prompt(model, 1)
    assert "not utf-8: " in prompt(model, 1)
    assert "not utf-8: " in str(run.view.files)
    shown(run, model)


def test_user_messages_are_made_well_formed(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(Turn("Hm. ", gate=gate), Turn("Hm."), DONE)
    run = nb_agents.start(
        f"the task {HALF}", scripted_team(a=model), options=RunOptions(session_root=tmp_path)
    )
    gate.wait_reached()
    run.say(f"and {HALF}{OTHER_HALF}, {HALF}")
    gate.open()
    finish(run)
    assert "the task \ufffd" in prompt(model, 0)
    assert "and 😀, \ufffd" in prompt(model, 1)
    assert run.view.task == "the task \ufffd"
    shown(run, model)


def test_reason_of_a_stop_is_made_well_formed(tmp_path: Path) -> None:
    model = ScriptedModel(Turn("one two ", hang=True))
    run = nb_agents.start("t", scripted_team(a=model), options=RunOptions(session_root=tmp_path))
    wait_until(lambda: "two" in run.view.agents["a"].partial, WAIT_S, "words")
    run.stop(now=True, reason=f"enough {HALF}")
    finish(run)
    assert run.view.stop is not None and run.view.stop.reason == "enough \ufffd"
    shown(run, model)


def test_recipes_and_their_values_are_made_well_formed(tmp_path: Path) -> None:
    steps = r"""
context: {given: x}
stages:
- name: one
  steps:
  - {id: shell, type: bash, command: 'printf "%s" {{given}}; printf "\xff"', output: said}
  - {id: model, agent: a, prompt: "about \ud83d, {{given}} and {{said}}"}
  approval: {required: true, prompt: "go \ud83d?"}
- name: two
  steps:
  - {id: last, agent: a, prompt: "as they said: {{_approval_message}}"}
"""
    model = ScriptedModel(Turn("fine"))
    run = nb_agents.start(
        recipe=write(tmp_path, steps),
        config=scripted_team(a=model),
        options=RunOptions(session_root=tmp_path / "sessions"),
        context={"given": f"v{HALF}{OTHER_HALF}{HALF}"},
    )
    wait_until(lambda: run.view.gates or run.is_over, WAIT_S, "the gate")
    run.approve(f"yes {HALF}")
    over(run)
    assert run.status == "completed", run.view
    assert "about \ufffd, v😀\ufffd and v😀\ufffd\ufffd" in prompt(model, 0)
    assert "as they said: yes \ufffd" in prompt(model, 1)
    shown(run, model)


def test_team_files_are_made_well_formed(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text(
        'agents: [{id: a, backend: {type: demo}, system_message: "be \\ud83d\\ude00 \\ud83d"}]'
    )
    assert TeamSpec.from_file(path).agents[0].system_message == "be 😀 \ufffd"
