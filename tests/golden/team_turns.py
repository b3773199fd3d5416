"""Turns of teams that are stored: every way to end, tools, sub-agents, rewinds, programs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_ai.exceptions import ModelHTTPError

import nb_agents
from nb_agents import RunOptions, TeamSpec, ToolError
from nb_agents.options import Retry, Timeout
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.golden.players import over, player
from tests.kit.models import Backend
from tests.kit.runs import Run
from tests.model_server import wait_until

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cf"
    "c0000003010100c9fe92ef0000000049454e44ae426082"
)


def _team(models: Mapping[str, Any], **orchestrator: Any) -> TeamSpec:
    agents = [
        {"id": agent, "backend": {"type": "python", "instance": model}}
        for agent, model in models.items()
    ]
    return TeamSpec.model_validate({"agents": agents, "orchestrator": orchestrator})


def _start(
    root: Path, session: str, team: TeamSpec, task: str = "Why is it so?", **more: Any
) -> Run:
    given = {name: more.pop(name) for name in ("tools", "continue_") if name in more}
    options = RunOptions(session_root=root, **more)
    return nb_agents.start(task, team, session, options=options, **given)


def _write(path: str, content: str) -> Call:
    return Call("write_file", {"path": path, "content": content})


@player
def complete(root: Path, session: str) -> None:
    """Two agents answer, vote and present; one writes files, also a picture."""
    ada = ScriptedModel(
        Turn("First a file. ", calls=(_write("notes.md", "one\ntwo\n"),)),
        Answer("Take the **mmap** store:\n\n| it | µs |\n|---|---|\n| mmap | 3 |\n\n![](plot.png)"),
        Vote("agent1", "It has figures."),
        Turn("Use `mmap`, as $x^2$ shows.\n\n```python\nprint(1 < 2)\n```\n"),
    )
    ben = ScriptedModel(Answer("Take SQLite."), Vote("agent1", "Better than mine."))
    run = _start(
        root, session, _team({"ada": ada, "ben": ben}, defer_voting_until_all_answered=True)
    )
    over(run)
    (run.path / "workspaces" / "ada" / "plot.png").write_bytes(PICTURE)


@player
def continued(root: Path, session: str) -> None:
    """A second task in the same session."""
    for number, task in enumerate(("What is it?", "And as a table?")):
        team = _team({"ada": ScriptedModel(Answer(f"Answer {number + 1}."))})
        over(_start(root, session, team, task, continue_=number > 0))


@player
def stopped_gracefully(root: Path, session: str) -> None:
    """One agent has answered, the other one writes a partial answer when the user stops."""
    gate = Gate()
    ada = ScriptedModel(Answer("It is forty-two."), Turn("Let me think again. ", hang=True))
    ben = ScriptedModel(Turn("Some words so far ", gate=gate, calls=(_write("b.md", "x"),)))
    run = _start(root, session, _team({"ada": ada, "ben": ben}))
    wait_until(lambda: len(ada.requests) > 1)
    gate.wait_reached()
    run.stop(reason="that is enough", source="widget")
    run.stop(agent="ada", now=True)
    gate.open()
    over(run)


@player
def stopped_immediately(root: Path, session: str) -> None:
    """Both agents are interrupted: one while it writes, one while it waits for a tool."""
    gate = Gate()

    async def measure(name: str) -> str:
        """Measure something."""
        await gate.wait()
        return name

    ada = ScriptedModel(Turn("Half a sentence ", hang=True))
    ben = ScriptedModel(Turn(calls=(Call("measure", {"name": "cache"}),)))
    run = _start(root, session, _team({"ada": ada, "ben": ben}), tools=[measure])
    gate.wait_reached()
    wait_until(lambda: "sentence" in run.view.agents["ada"].partial)
    run.stop(now=True, source="cli")
    over(run)


@player
def killed(root: Path, session: str) -> None:
    """The process dies while both agents are at work."""
    stopped_immediately(root, session)
    journal = root / session / "turn_1" / "events.jsonl"
    lines = journal.read_text("utf-8").splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if '"kind":"stop_requested"' in line)
    journal.write_text("".join(lines[:end]), "utf-8")


@player
def failed(root: Path, session: str) -> None:
    """The provider refuses both agents' requests."""
    refused = ModelHTTPError(401, "m", {"message": "bad key"})
    models = {name: ScriptedModel(Turn(error=refused)) for name in ("ada", "ben")}
    over(_start(root, session, _team(models)))


@player
def retried(root: Path, session: str) -> None:
    """A request fails, and is sent again."""
    busy = ModelHTTPError(503, "m", {"message": "overloaded"})
    ada = ScriptedModel(Turn("Begun ", error=busy), Answer("Done in the end."))
    retry = Retry(attempts=1, delay=0.01)
    over(_start(root, session, _team({"ada": ada}), retry=retry))


@player
def timed_out(root: Path, session: str) -> None:
    """The time limit ends the turn."""
    ada = ScriptedModel(Answer("An early answer."), Turn("More words ", hang=True))
    ben = ScriptedModel(Turn("Still at it ", hang=True))
    over(_start(root, session, _team({"ada": ada, "ben": ben}), timeout=Timeout(ms=1500)))


@player
def over_budget(root: Path, session: str) -> None:
    """The budget of tokens is used up."""
    ada = ScriptedModel(Answer("A first answer of some length."), Answer("Another one."))
    ben = ScriptedModel(Answer("Mine."), Answer("And more."))
    over(_start(root, session, _team({"ada": ada, "ben": ben}, max_tokens=60)))


@player
def tools(root: Path, session: str) -> None:
    """Tools that succeed, fail and are denied by the user."""

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def divide(a: int, b: int) -> float:
        """Divide a number."""
        raise ToolError(f"can't divide {a} by {b}")

    def send(to: str) -> str:
        """Send a letter."""
        return f"sent to {to}"

    ada = ScriptedModel(
        Turn(calls=(Call("add", {"a": 1, "b": 2}), Call("divide", {"a": 1, "b": 0}))),
        Turn(calls=(_write("a.md", "alpha"), Call("read_file", {"path": "a.md"}))),
        Turn(calls=(Call("edit_file", {"path": "a.md", "old": "alpha", "new": "omega"}),)),
        Turn(calls=(Call("send", {"to": "ann"}),)),
        Turn(calls=(Call("send", {"to": "eve"}),)),
        Turn(calls=(Call("no_such_tool", {}),)),
        Answer("All is tried."),
    )
    policy = {"tool_policy": [{"match": "send", "action": "ask"}]}
    agent = {"id": "ada", "backend": {"type": "python", "instance": ada, **policy}}
    team = TeamSpec.model_validate({"agents": [agent]})
    run = _start(root, session, team, tools=[add, divide, send])
    wait_until(lambda: run.view.gates)
    run.approve("go on", by="ann")
    wait_until(lambda: len(run.view.approvals) == 1 and run.view.gates)
    run.deny("not her", by="ann")
    over(run)


@player
def sub_agents(root: Path, session: str) -> None:
    """An agent spawns sub-agents and calls another agent, which calls one more."""

    def reply(messages: list[Any]) -> Turn:
        asked, said = str(messages[0].parts[-1].content), len(messages) // 2
        if "biography" in asked:
            return Turn("Born in 1941.")
        if "songs" in asked:
            return Turn("There are many.")
        spawn = {
            "tasks": [
                {"task": "Write the biography.", "subagent_id": "bio"},
                {"task": "List the songs.", "subagent_id": "songs"},
            ]
        }
        call = Call("call_agent", {"name": "critic", "input": "Is it good?"})
        return (
            Turn(calls=(Call("spawn_subagents", spawn),)),
            Turn(calls=(call,)),
            Answer("Both."),
        )[said]

    ask = Call("call_agent", {"name": "expert", "input": "And now?"})
    critic = ScriptedModel(Turn(calls=(ask,)), Turn("It is good."))
    models: dict[str, Backend] = {"critic": critic, "expert": ScriptedModel(Turn("Yes."))}
    called = [
        {"id": name, "backend": {"type": "python", "instance": model, "can_call": "*"}}
        for name, model in models.items()
    ]
    team = {
        "agent": {
            "id": "ada",
            "backend": {"type": "python", "instance": ScriptedModel(reply), "can_call": "*"},
        },
        "callable_agents": called,
        "orchestrator": {"coordination": {"enable_subagents": True}},
    }
    over(_start(root, session, TeamSpec.model_validate(team)))


def _in_three_steps() -> TeamSpec:
    ada = ScriptedModel(
        Turn(calls=(_write("work.md", "one two"),)),
        Turn(calls=(Call("edit_file", {"path": "work.md", "old": "two", "new": "2"}),)),
        Answer("Work is done."),
    )
    return _team({"ada": ada})


@player
def rewound(root: Path, session: str) -> None:
    """A complete turn, and a second one that goes back to a point within it."""
    run = over(_start(root, session, _in_three_steps()))
    again = _team({"ada": ScriptedModel(Answer("Another end."))})
    to = "ada's 1st write_file"
    begun = nb_agents.rewind(
        session, to, config=again, options=RunOptions(session_root=run.path.parents[1])
    )
    over(begun)


@player
def resumed(root: Path, session: str) -> None:
    """A stopped turn and its resume."""
    ada, gate = ScriptedModel(Answer("Ada's."), Vote("agent1")), Gate()
    ben = ScriptedModel(Turn("Words of ben ", gate=gate, calls=(_write("b.md", "ben"),)))
    run = _start(
        root, session, _team({"ada": ada, "ben": ben}, defer_voting_until_all_answered=True)
    )
    wait_until(lambda: run.view.agents["ada"].answers)
    gate.wait_reached()
    run.stop(now=True)
    over(run)
    ada = ScriptedModel(Vote("agent1"), Turn("The presented one."))
    ben = ScriptedModel(Answer("Ben's."), Vote("agent1"))
    team = _team({"ada": ada, "ben": ben}, defer_voting_until_all_answered=True)
    over(nb_agents.resume(session, team, options=RunOptions(session_root=root)))


@player
def paused(root: Path, session: str) -> None:
    """The user adds a text, pauses the turn and lets it continue."""
    gate = Gate()
    ada = ScriptedModel(
        Turn("Working. ", gate=gate, calls=(_write("a.md", "a"),)), Answer("With the addition.")
    )
    run = _start(root, session, _team({"ada": ada}))
    gate.wait_reached()
    run.say("Write in British English.")
    run.pause()
    gate.open()
    wait_until(lambda: run.status == "awaiting")
    run.resume()
    over(run)


@player
def asked(root: Path, session: str) -> None:
    """A tool asks the user a question, and the user answers."""

    def choose() -> str:
        """Let the user choose."""
        return nb_agents.ask("Which colour?")

    ada = ScriptedModel(Turn(calls=(Call("choose", {}),)), Answer("Blue it is."))
    run = _start(root, session, _team({"ada": ada}), tools=[choose])
    wait_until(lambda: run.view.gates)
    run.answer("blue")
    over(run)


@player
def contested(root: Path, session: str) -> None:
    """Stale votes, a rejected reply, an empty one and a round that takes too long."""
    gate = Gate()
    ada = ScriptedModel(
        Answer("Ada's first."),
        Vote("agent2"),
        Turn("Only words, no decision."),
        Turn("Again only words."),
        Vote("agent2"),
        Turn("Presented."),
    )
    ben = ScriptedModel(Answer("Ben's, later.", gate=gate), Vote("agent9"), Vote("agent2"))
    cleo = ScriptedModel(Turn("Slow words ", hang=True))
    agents = {"ada": ada, "ben": ben, "cleo": cleo}
    spec = [
        {"id": name, "backend": {"type": "python", "instance": model}}
        for name, model in agents.items()
    ]
    limits = {
        "initial_round_timeout_seconds": 2,
        "subsequent_round_timeout_seconds": 2,
        "round_timeout_grace_seconds": 0,
    }
    team = TeamSpec.model_validate({"agents": spec, "timeout_settings": limits})
    run = _start(root, session, team)
    wait_until(lambda: any(v.vote for v in run.view.agents.values()) or len(ada.requests) > 1)
    gate.open()
    over(run)


@player
def function_agents(root: Path, session: str) -> None:
    """Agents that are functions: one with steps, one that streams its words."""

    async def worker(task: str, ctx: Any) -> str:
        first = await ctx.step("first", str.upper, "one")
        second = await ctx.step("second", str.upper, "two")
        return f"{first} {second}"

    async def talk(task: str, ctx: Any) -> AsyncIterator[str]:
        if ctx.voters:
            yield ctx.voters[-1]
            return
        for word in ("so ", "it ", "is"):
            yield word

    over(_start(root, session, TeamSpec.model_validate({"agents": [worker, talk]})))


@player
def external_agent(root: Path, session: str) -> None:
    """An agent that is another program, by the Agent Client Protocol; it is stopped at last."""
    command = [sys.executable, str(Path(__file__).parents[1] / "acp" / "agent.py")]
    steps = ["plan Look", "tool read notes.txt", "cost 0.25", "think So.", "say one two", "hang"]
    agent = {"id": "ada", "backend": {"type": "acp", "command": [*command, *steps]}}
    run = _start(root, session, TeamSpec.model_validate({"agents": [agent]}))
    wait_until(lambda: "two" in run.view.agents["ada"].partial)
    run.stop(now=True, reason="enough")
    over(run)


@player
def hostile(root: Path, session: str) -> None:
    """Markup, formulas, control characters and long words in all that models and users write."""
    evil = (
        "<script>alert(1)</script><img src=x onerror=alert(1)> [x](javascript:alert(1)) "
        r"![i](http://e) $\href{javascript:1}{x}$ \x1b[2J שלום 𝛼 &amp;"
    )
    ada = ScriptedModel(
        Turn(calls=(_write("<b>.md", evil),)),
        Turn(evil, calls=(Call("<i>", {"<u>": evil}),)),
        Answer(evil),
    )
    ben = ScriptedModel(Turn(evil, hang=True))
    run = _start(root, session, _team({"ada": ada, "ben": ben}), f"Compare {evil}")
    wait_until(lambda: run.view.agents["ada"].answers and run.view.agents["ben"].partial)
    run.stop(now=True, reason=evil)
    over(run)


@player
def context_path(root: Path, session: str) -> None:
    """An agent changes a directory of the user."""
    place = root / "project"
    place.mkdir()
    (place / "old.txt").write_text("old\n")
    ada = ScriptedModel(
        Turn(calls=(Call("write_file", {"path": str(place / "new.txt"), "content": "new"}),)),
        Turn(calls=(Call("delete_file", {"path": str(place / "old.txt")}),)),
        Answer("Changed it."),
    )
    paths = [{"path": str(place), "permission": "write"}]
    over(_start(root, session, _team({"ada": ada}, context_paths=paths)))


@player
def restarted(root: Path, session: str) -> None:
    """The presenter starts the coordination again."""
    ada = ScriptedModel(
        Answer("A draft."),
        Turn(
            calls=(
                Call(
                    "restart_orchestration", {"reason": "too thin", "instructions": "Add figures."}
                ),
            )
        ),
        Answer("With figures."),
        Turn("Good now."),
    )
    over(_start(root, session, _team({"ada": ada}, coordination={"max_orchestration_restarts": 1})))
