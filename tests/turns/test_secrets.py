"""Secrets are masked on disk, in views and cards and in logs, whatever their source."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError, NbAgentsError
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.cards import card_bundle
from tests.kit.runs import Run, TurnWriter
from tests.kit.secrets import is_distinctive
from tests.kit.sessions import export_session
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.recipes.live import write
from tests.team_kit import events, finish, outcome, prompt

KEY = "sk-live-8f3Kq0ZrTn6WbXy2Vd5Lm1Pc"
TOKEN = 'tk"9\\x7Gh2/Qw+E4rT='  # JSON, Python and addresses write it in other words
MCP_SERVER = Path(__file__).parent.parent / "tools" / "mcp_server.py"
FORMS = [KEY, TOKEN, json.dumps(TOKEN)[1:-1], json.dumps(json.dumps(TOKEN)[1:-1])[1:-1]]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nb_agents")


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", TOKEN)


def start(root: Path, *turns: Any, tools: Any = (), **keys: Any) -> tuple[Run, ScriptedModel]:
    """Start one agent that has the key, plays these turns, and then answers."""
    model = ScriptedModel(*turns, Answer("done"))
    backend = {"type": "python", "instance": model, "api_key": KEY, **keys}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    run = nb_agents.start(
        "t", team, options=RunOptions(session_root=root / "s", debug=True), tools=list(tools)
    )
    return run, model


def start_real(root: Path, server: ModelServer, *replies: Reply, **keys: Any) -> Run:
    """Start one agent whose model is behind a server, which is given the key."""
    server.script("m", *replies)
    backend = {"type": "openai", "model": "m", "base_url": server.url, "api_key": KEY, **keys}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    return nb_agents.start("t", team, options=RunOptions(session_root=root / "s", debug=True))


def assert_nowhere(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that no secret is in anything that a run leaves or shows."""
    told = outcome(run)
    shown = {
        "outcome": f"{told!r} {told} {vars(told) if isinstance(told, Exception) else ''}",
        "view": repr(run.view),
        "receipt": repr(run.receipt),
        "timeline": repr(run.timeline),
        "logs": "\n".join(run.logs),
        "card": json.dumps(card_bundle(run.view, str(run.path), run.timeline), default=str),
        "log": caplog.text,
    }
    export_session(run.path.parent, run.path.parent.parent / "export.zip")
    shown |= {
        str(p): p.read_text(errors="replace") for p in run.path.parent.rglob("*") if p.is_file()
    }
    assert (run.path / "debug.log").stat().st_size
    assert [(name, form) for name, text in shown.items() for form in FORMS if form in text] == []
    assert any("[key]" in text for text in shown.values())


def calls(*made: Call) -> Turn:
    return Turn(calls=made)


def repeat(text: str) -> str:
    """Say it again."""
    return text


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(f"can't use {text}")


SAID = {
    "in its words": Turn(text=f"I have {KEY} and {TOKEN}."),
    "in its answer": Answer(f"{KEY}, {TOKEN}"),
    "in a call": calls(Call("repeat", {"text": f"{KEY} {TOKEN}", KEY: [TOKEN]})),
    "in a call of a tool that fails": calls(Call("fail", {"text": f"{KEY} {TOKEN}"})),
    "in a call of no tool": calls(Call(KEY, {"x": TOKEN})),
    "in a vote": calls(Call("vote", {"agent_id": KEY, "reason": TOKEN})),
    "in a command": calls(Call("run_command", {"command": f"echo '{KEY}' '{TOKEN}' >&2; exit 3"})),
    "in a cell": calls(
        Call("run_python", {"code": f"print({KEY!r})\nraise ValueError({TOKEN!r})"})
    ),
}


@pytest.mark.parametrize("turn", SAID.values(), ids=SAID.keys())
def test_key_repeated_by_a_model_is_stored_nowhere(
    tmp_path: Path, turn: Turn, caplog: pytest.LogCaptureFixture
) -> None:
    run, _ = start(tmp_path, turn, tools=[repeat, fail], enable_mcp_command_line=True)
    finish(run)
    assert_nowhere(run, caplog)


def test_model_and_resume_receive_tool_results_without_the_key(
    tmp_path: Path,
) -> None:
    run, model = start(
        tmp_path, calls(Call("repeat", {"text": f"it is {KEY}"})), Turn(hang=True), tools=[repeat]
    )
    wait_until(lambda: len(model.requests) == 2)
    assert f"it is {KEY}" in prompt(model, 1)
    run.stop(now=True)
    finish(run)
    assert run.resume().wait(200) == "done"
    assert "it is [key]" in prompt(model, 2) and KEY not in prompt(model, 2)


# Keys in pieces


def test_key_received_in_pieces_is_stored_nowhere(
    tmp_path: Path, server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ToolCall("new_answer", {"content": f"It is {KEY}, or {TOKEN}; so much for that."})
    run = start_real(tmp_path, server, Reply(tool_calls=(answer,), words_per_second=8))
    finish(run)
    assert run.result == "It is [key], or [key]; so much for that."
    told = [e.text for e in events(run, ev.TextStreamed)]
    assert len(told) > 2 and "".join(told) == run.result
    assert_nowhere(run, caplog)


def test_stop_within_a_key_keeps_the_text_before_it_without_the_key(
    tmp_path: Path, server: ModelServer
) -> None:
    before = "Words that come before it: "
    answer = ToolCall("new_answer", {"content": f"{before}{KEY}"})
    for chunks in (6, 7, 8):  # of eight characters: they end within the key
        server.hold(after=chunks)
        run = start_real(tmp_path, server, Reply(tool_calls=(answer,)))
        server.wait_chunks(chunks)
        wait_until(lambda: before in run.view.agents["a"].partial)  # noqa: B023
        run.stop(now=True)
        kept = finish(run).view.agents["a"].partial.removeprefix(before)
        assert kept == "[key]" or (KEY.startswith(kept) and not is_distinctive(kept))


def test_secret_in_pieces_of_command_output_is_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    halves = f"printf %s '{KEY[:17]}'; sleep 0.3; printf '%s\\n' '{KEY[17:]}'; echo after"
    run, model = start(tmp_path, calls(Call("run_command", {"command": halves})),
                       enable_mcp_command_line=True)  # fmt: skip
    finish(run)
    assert f"{KEY}\nafter" in prompt(model, 1)
    told = "".join(e.text for e in events(run, ev.ToolNotice))
    # A half that is told alone, as a busy machine may, is hidden alone.
    assert told.startswith("[key]")
    assert "[key]\nafter\n".startswith(told.replace("[key][key]", "[key]"))
    assert KEY[:17] not in str(events(run))
    assert_nowhere(run, caplog)


def test_secret_in_output_of_a_recipe_step_is_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("B_TOKEN", KEY)
    body = (
        "outputs: [said]\nsteps:\n"
        f"- {{id: a, type: bash, command: 'printf %s {KEY[:17]}; sleep 0.3; echo {KEY[17:]}; "
        f"echo {KEY}', output: said}}\n"
        "- {id: b, type: bash, command: 'echo {{said}} >&2; exit 4'}\n"
    )
    run = nb_agents.start(
        recipe=write(tmp_path, body), options=RunOptions(session_root=tmp_path / "s", debug=True)
    )
    finish(run)
    assert "".join(e.text for e in events(run, ev.OutputStreamed)).startswith("[key]\n[key]\n")
    assert "[key]" in (run.path / "recipe.yaml").read_text()
    assert_nowhere(run, caplog)


# Servers


@pytest.mark.parametrize("status", [400, 401, 500])
def test_key_in_a_rejection_by_a_server_is_stored_nowhere(
    tmp_path: Path, server: ModelServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    reply = Reply(
        status=status, error=f"bad key {KEY}", headers={"X-Key": KEY, "Retry-After": "99"}
    )
    run = start_real(tmp_path, server, reply)
    finish(run)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    told = [str(outcome(run)), caplog.text, repr(run.view)]
    told += [p.read_text(errors="replace") for p in run.path.rglob("*") if p.is_file()]
    assert not [text for text in told if KEY in text]


def test_key_that_is_set_during_the_run_is_masked(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare() -> str:
        """Prepare."""
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        return "ready"

    server.script("m", Reply(text=f"My key is {KEY}."))
    model = ScriptedModel(
        calls(Call("prepare")), calls(Call("call_agent", {"name": "b", "input": "hi"})), Answer("a")
    )
    team = TeamSpec.model_validate(
        {
            "agents": [
                {"id": "a", "backend": {"type": "python", "instance": model, "can_call": "*"}}
            ],
            "callable_agents": [
                {"id": "b", "backend": {"type": "openai", "model": "m", "base_url": server.url}}
            ],
        }
    )
    run = finish(
        nb_agents.start("t", team, options=RunOptions(session_root=tmp_path / "s"), tools=[prepare])
    )
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert f"My key is {KEY}." in prompt(model, 2)  # only what is written down is masked
    written = (run.path / "events.jsonl").read_text()
    assert "My key is [key]." in written and KEY not in written


def test_variables_echoed_by_a_tool_server_are_stored_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "alive").touch()
    keys = {
        "name": "t",
        "command": [sys.executable, str(MCP_SERVER), str(tmp_path / "alive")],
        "env": {"A_TOKEN": "${A_TOKEN}", "DATABASE": "sales-9f3x7q2", "MODE": "test"},
    }
    asked = [Call("mcp__t__variable", {"name": name}) for name in ("A_TOKEN", "DATABASE", "MODE")]
    failing = Call("mcp__t__fail", {"why": f"{TOKEN} and {KEY}"})
    run, model = start(tmp_path, calls(*asked, failing), mcp_servers=[keys])
    finish(run)
    told = prompt(model, 1)
    assert "it is [key]" in told and "it is sales-9f3x7q2" in told and "it is test" in told
    written = [each.result for each in events(run, ev.ToolFinished)]
    assert written[:3] == ["it is [key]", "it is [key]", "it is test"]
    assert_nowhere(run, caplog)


def test_error_of_a_tool_server_that_does_not_start_lacks_its_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "alive").touch()
    command = [sys.executable, str(MCP_SERVER), str(tmp_path / "alive"), "broken"]
    keys = {"name": "t", "command": command, "env": {"A_TOKEN": "${A_TOKEN}"}}
    run, _ = start(tmp_path, mcp_servers=[keys])
    finish(run)
    assert any("did not start" in notice and "[key]" in notice for notice in run.view.notices)
    assert_nowhere(run, caplog)


# Errors and logs


def test_hook_error_is_reported_without_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(*_: Any) -> None:
        raise ValueError(f"its {KEY}")

    model = ScriptedModel(Turn(hang=True))
    backend = {"type": "python", "instance": model, "api_key": KEY}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    policy = CancelPolicy(before_cancel=hook, after_cancel=hook)
    run = nb_agents.start(
        "t", team, options=RunOptions(session_root=tmp_path / "s", cancel=policy, debug=True)
    )
    run.stop(reason=f"it says {KEY}")
    run.stop(now=True)
    run.wait(200, raise_on_stop=False)
    assert sum("its [key]" in notice for notice in run.view.notices) == 2
    assert_nowhere(run, caplog)


def test_defect_is_reported_and_raised_without_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: TurnWriter) -> None:
        try:
            raise KeyError(f"inner {TOKEN}")
        except KeyError as exc:
            raise RuntimeError(f"defect of {KEY}") from exc

    monkeypatch.setattr(TurnWriter, "_run_driver", broken)
    run, _ = start(tmp_path)
    run.wait(200, raise_on_stop=False)
    with pytest.raises(RuntimeError, match=r"defect of \[key\]") as caught:
        run.wait()
    assert TOKEN not in repr(caught.value.__cause__)
    assert "Traceback" in caplog.text and "defect of [key]" in caplog.text
    monkeypatch.setattr(run, "wait", lambda *_: "")
    assert_nowhere(run, caplog)


def test_handler_of_another_library_receives_no_key(tmp_path: Path) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("nb_agents").addHandler(handler)
    try:
        run, _ = start(tmp_path, calls(Call("fail", {"text": f"{KEY} {TOKEN}"})), tools=[fail])
        finish(run)
    finally:
        logging.getLogger("nb_agents").removeHandler(handler)
    told = "".join(f"{vars(record)}{record.getMessage()}" for record in records)
    assert "can't use [key] [key]" in told
    assert [form for form in FORMS if form in told] == []


def test_error_about_a_misplaced_secret_variable_does_not_contain_its_value(
    tmp_path: Path,
) -> None:
    for given in ("type: '${A_TOKEN}'", "type: openai, model: m, can_call: '${A_TOKEN}'"):
        file = tmp_path / "team.yaml"
        file.write_text(f"agents: [{{id: a, backend: {{{given}}}}}]")
        with pytest.raises(ConfigError) as caught:
            nb_agents.start("t", str(file), options=RunOptions(session_root=tmp_path / "s"))
        assert not [form for form in FORMS if form in f"{caught.value}{caught.value!r}"]


def test_specs_show_no_passwords_of_addresses() -> None:
    keys = {"name": "s", "url": f"https://ann:{KEY}@h/?key={KEY}"}
    word = {"name": "w", "command": "run", "args": ["--token", KEY]}
    backend = {"type": "openai", "base_url": f"https://ann:{KEY}@h", "mcp_servers": [keys, word]}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    assert KEY not in repr(team)


def test_ordinary_words_used_as_keys_are_not_masked(tmp_path: Path) -> None:
    run, _ = start(
        tmp_path, Turn(text="I run on lm-studio. api_key=lm-studio"), api_key="lm-studio"
    )
    finish(run)
    told = "".join(e.text for e in events(run, ev.TextStreamed))
    assert told.startswith("I run on lm-studio. api_key=[key]")


def test_masked_errors_keep_their_types(tmp_path: Path) -> None:
    with pytest.raises(NbAgentsError, match="The task is empty"):
        nb_agents.start("", options=RunOptions(session_root=tmp_path))


HEADER = "Qz7-9fX02p-vT31kLm8"


@pytest.mark.parametrize(
    "keys",
    [
        {"extra_headers": {"X-Gateway": f"Bearer {HEADER}"}},
        {"extra_body": {"gateway": {"auth_token": HEADER}}},
    ],
    ids=["a header", "a part of the body"],
)
def test_secrets_sent_with_a_request_are_stored_nowhere_even_if_echoed(
    tmp_path: Path, server: ModelServer, keys: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Reply(status=400, error=f"The token {HEADER} is not known.")
    run = finish(start_real(tmp_path, server, refusal, **keys))
    (request,) = server.requests
    assert HEADER in f"{request.headers} {request.body}"
    assert "The token [key] is not known." in str(run.view.agents["a"].error)
    assert_nowhere(run, caplog)
    saved = [p.read_text(errors="replace") for p in tmp_path.rglob("*") if p.is_file()]
    shown = [*saved, repr(run.view), repr(run.receipt), caplog.text, str(outcome(run))]
    assert not [text for text in shown if HEADER in text]
