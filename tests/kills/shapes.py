"""Shapes of work: the situations in which runs may be killed.

A shape's function does the rest of its work, in a process that may be killed at any moment: it
starts the work, resumes what an earlier process left, or does nothing if all is complete. The
models' replies depend only on the requests, so a repeated request gets the same reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from tests.hard_window import refusal, tokens_of
from tests.kit.runs import Run
from tests.kit.sessions import PastTurn, load_session, read_journal
from tests.kit.tools import ToolContext
from tests.kit.views import RunView
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until

__all__ = ["FOLDED", "SHAPES", "TOOLS_URL", "Shape", "do", "events_of", "turns_in"]

SESSION = "s"
TASKS = ("First one.", "Then two.", "Then three.", "Or else four.")
SAID = "Write in verse."
TOOLS_URL = "TESTS_TOOLS_URL"


@dataclass(frozen=True)
class Shape:
    """One shape of work.

    Attributes:
        title: The name in tables.
        work: The function that does the rest of the work.
        reply: Returns the models' reply to a request.
        team: Returns the team for a model server.
        recipe: The recipe, if it is not a team.
        waits: Returns the condition on the journals before a request is answered.
        besides: Content that a request may have or lack, depending on the time of the kill.
    """

    title: str
    work: Callable[[Path], object]
    reply: Callable[[Request], Reply]
    team: Callable[[ModelServer], dict[str, Any]]
    recipe: str = ""
    waits: Callable[[Request], Callable[[Sequence[Any]], bool] | None] = lambda request: None
    besides: str = "^$"

    def prepare(self, root: Path, server: ModelServer, **more: Any) -> None:
        """Write the team file and the recipe file."""
        root.mkdir()
        (root / "team.yaml").write_text(json.dumps(self.team(server) | more))
        if self.recipe:
            (root / "recipe.yaml").write_text(self.recipe)


def turns_in(root: Path) -> list[PastTurn]:
    """Return the started turns of all sessions in order, without copies."""
    sessions = sorted({path.parent for path in root.glob("*/turn_*")})
    turns = [turn for path in sessions for turn in load_session(path).begun]
    by_time = {turn.view.started_at: turn for turn in turns}
    return [turn for _, turn in sorted(by_time.items())]


def events_of(root: Path) -> list[Any]:
    """Return the events of all turns, in the order of the turns."""
    return [e for turn in turns_in(root) for e in read_journal(turn.paths.journal).events]


# Work in a process that may be killed -------------------------------------------------------------


def _go_on(root: Path, task: str = "t", **more: Any) -> Run | None:
    """Start or resume a task. Return None if it is complete."""
    mine = [turn for turn in turns_in(root) if turn.view.task == task]
    if any(turn.is_complete for turn in mine):
        return None
    options = RunOptions(session_root=root)
    if mine:
        tools = more.get("tools", ())
        return nb_agents.resume(mine[-1].paths.session, tools=tools, options=options)
    given = {"options": options, "session": SESSION} | more
    return nb_agents.start(task, root / "team.yaml", **given)


def plain(root: Path | str) -> None:
    """One task."""
    if run := _go_on(Path(root)):
        run.wait(200, raise_on_stop=False)


@nb_agents.tool(repeatable=True)
async def measure(name: str, context: ToolContext, length: int = 0) -> str:
    """Measure something, which takes a while, and write it down."""
    await asyncio.sleep(0.05)
    (context.workspace / name).write_text("42")
    return f"{name} is 42" + "." * length


def measuring(root: Path) -> None:
    """One task, with a function that may be called again."""
    if run := _go_on(root, tools=[measure]):
        run.wait(200, raise_on_stop=False)


def stopped_presenter(root: Path | str, now: str = "") -> None:
    """One task, which is stopped once while its answer is presented."""
    was_stopped = any(isinstance(event, ev.StopRequested) for event in events_of(Path(root)))
    run = _go_on(Path(root))
    if run is None:
        return
    if not was_stopped:
        run.subscribe(lambda view: view.phase == "presenting" and run.stop(now == "now"))
    run.wait(200, raise_on_stop=False)


def conversation(root: Path) -> None:
    """Three tasks in a row, and another one that continues from the second."""
    for number, task in enumerate(TASKS):
        more: dict[str, Any] = {"continue_": number > 0}
        if number == 3:
            second = next(t for t in turns_in(root) if t.view.task == TASKS[1] and t.is_complete)
            fork = RunOptions(session_root=root, from_turn=second.paths.number)
            more["options"] = fork
        run = _go_on(root, task, **more)
        if run is not None:
            run.wait(200, raise_on_stop=False)
            if run.state == "stopped":  # the next process resumes it before the later turns
                return


def talked_to(root: Path) -> None:
    """One task; a user sends a message, pauses it, and unpauses it."""
    has_said = any(isinstance(event, ev.UserMessage) for event in events_of(root))
    run = _go_on(root)
    if run is None:
        return
    threading.Thread(target=_talk, args=(run, has_said), daemon=True).start()
    run.wait(200, raise_on_stop=False)


def _talk(run: Run, has_said: bool) -> None:
    """Send a message during the second call, pause the run, and unpause it once it has paused."""
    try:
        if not has_said:
            wait_until(lambda: run.is_over or _calls(run.view) >= 2)
            run.say(SAID)
        run.pause()
        wait_until(lambda: run.is_over or run.status == "awaiting")
        run.resume()
    except UserError:  # the run has ended
        pass


def _calls(view: RunView) -> int:
    return max((agent.calls for agent in view.agents.values()), default=0)


def approved(root: Path) -> None:
    """A recipe with a gate, which a user approves."""
    options = RunOptions(session_root=root)
    turns = turns_in(root)
    if turns and turns[-1].is_complete:
        return
    if turns:
        run = nb_agents.resume(SESSION, options=options)
    else:
        recipe = root / "recipe.yaml"
        run = nb_agents.start("", root / "team.yaml", SESSION, recipe=recipe, options=options)
    threading.Thread(target=_approve, args=(run,), daemon=True).start()
    run.wait(200, raise_on_stop=False)


def in_recipe(root: Path) -> None:
    """A recipe that runs to its end."""
    options, turns = RunOptions(session_root=root), turns_in(root)
    if turns and turns[-1].is_complete:
        return
    if turns:
        run = nb_agents.resume(SESSION, options=options)
    else:
        recipe = root / "recipe.yaml"
        run = nb_agents.start("", root / "team.yaml", SESSION, recipe=recipe, options=options)
    run.wait(200, raise_on_stop=False)


def _approve(run: Run) -> None:
    try:
        wait_until(lambda: run.is_over or run.view.gates)
        run.approve("the matt one", by="ann")
    except UserError:  # decided before, or the run has ended
        pass


# Replies of the models ----------------------------------------------------------------------------


def _results(request: Request) -> int:
    """Return the number of tool results since the last task."""
    count = 0
    for message in request.messages:
        kinds = _kinds(message)
        if "task" in kinds:
            count = 0
        count += kinds.count("result")
    return count


def _kinds(message: dict[str, Any]) -> list[str]:
    """Return the kinds of a message in any API: tool results, or a user's task."""
    if message.get("role") == "tool" or message.get("type") == "function_call_output":
        return ["result"]
    content = message.get("content") or message.get("parts") or []
    if isinstance(content, str):
        return _told(message, content)
    kinds = []
    for part in content:
        is_result = part.get("type") == "tool_result" or "functionResponse" in part
        kinds += ["result"] if is_result else _told(message, str(part.get("text", "")))
    return kinds


def _told(message: dict[str, Any], text: str) -> list[str]:
    is_task = message.get("role") == "user" and any(task in text for task in TASKS)
    return ["task"] if is_task else []


def _says(replies: Sequence[Reply], request: Request) -> Reply:
    """Return the next reply, once the calls in the previous ones have their results."""
    made = list(accumulate((len(reply.tool_calls) for reply in replies[:-1]), initial=0))
    return replies[made.index(_results(request))]


def _file(verb: str, path: str, **more: str) -> ToolCall:
    return ToolCall(f"{verb}_file", {"path": path, **more}, f"{verb}-{path}")


def _answer(text: str) -> ToolCall:
    return ToolCall("new_answer", {"content": text}, "answer")


WORK = (
    Reply("To work.", (_file("write", "a.md", content="one"),), thoughts="First a file."),
    Reply(
        "",
        (_file("read", "a.md"), _file("write", "b.md", content="two")),
        thoughts="Now look at it, and write another.",
    ),
    Reply("Better so.", (_file("edit", "b.md", old="two", new="2"),), thoughts="It is short."),
    Reply("", (_answer("All is done."),), thoughts="That is all."),
)


MEASURES = partial(
    _says,
    (
        Reply("", (ToolCall("measure", {"name": "x"}, "x"),)),
        Reply("", tuple(ToolCall("measure", {"name": name}, name) for name in "yz")),
        Reply("", (_answer("All is measured."),)),
    ),
)
WRITES = partial(
    _says,
    (
        Reply("", (ToolCall("mcp__t__line", {"text": "one"}, "one"),)),
        Reply(
            "", tuple(ToolCall("mcp__t__line", {"text": text}, text) for text in ("two", "three"))
        ),
        Reply("", (_answer("All is written."),)),
    ),
)
WORKS = partial(_says, WORK)


def _converses(request: Request) -> Reply:
    number = max(n for n, task in enumerate(TASKS) if task in request.prompt)
    replies = (
        Reply("", (_file("write", f"{number}.md", content=TASKS[number]),)),
        Reply("", (_answer(f"Done: {TASKS[number]}"),)),
    )
    return _says(replies, request)


WINDOW = 5000
"""The context window of the model that folds, in tokens."""
STEPS = 10


def _reads_much(request: Request) -> Reply:
    """Read more than fits in the window, with the number of the step in each text."""
    sent = tokens_of(request)
    if sent > WINDOW:
        return refusal(request.protocol, sent, WINDOW)
    done = max(map(int, re.findall(r"Step (\d+)", request.prompt)), default=0)
    if "Write the summary now" in request.prompt:
        return Reply(f"Done up to Step {done}.", input_tokens=sent)
    calls = (ToolCall("measure", {"name": f"file{done}", "length": 2500}, f"m{done}"),)
    if done == STEPS:
        calls = (_answer("All is read."),)
    text = f"Step {done + 1} " + "it is long " * 60
    return Reply(text, calls, input_tokens=sent, thoughts="Think.")


LEVELS = ("top", "mid", "low")


def _calls_others(request: Request) -> Reply:
    """Each agent of a tree calls two agents of the next level, and edits a file in between."""
    first = next(m for m in request.messages if m["role"] == "user")
    asked = re.search(r"(top|mid|low) [.0-9]+", str(first["content"]))
    own, path = asked[0].split() if asked else ("", "0")
    below = LEVELS[LEVELS.index(own) + 1 :] if own else LEVELS
    calls = [
        ToolCall("call_agent", {"name": below[0], "input": f"{below[0]} {path}.{n}"}, f"{path}.{n}")
        for n in (1, 2)[: len(below)]
    ]
    work = Reply("", tuple(calls[:1]))
    more = Reply("", (_file("write", f"{path}.md", content=path), *calls[1:]))
    if own == "low":
        more = Reply("", (_file("write", f"{path}.md", content=path),))
    replies = ([work] * bool(calls)) + [more, Reply(f"{own} {path} is done.")]
    count = sum(m["role"] == "assistant" for m in request.messages)
    return replies[min(count, len(replies) - 1)]


# Teams --------------------------------------------------------------------------------------------


def _one(kind: str, server: ModelServer, **more: Any) -> dict[str, Any]:
    backend = {**server.backend(kind), "model": "m", **more}
    return {"agents": [{"id": "a", "backend": backend}]}


def _tree(server: ModelServer) -> dict[str, Any]:
    """A team with an agent that calls agents that call other agents."""
    backend = {**server.backend("vllm"), "model": "m", "can_call": "*"}
    callable_ = [{"id": name, "backend": backend} for name in LEVELS]
    return {"agents": [{"id": "a", "backend": backend}], "callable_agents": callable_}


def _with_tools(server: ModelServer) -> dict[str, Any]:
    """A team with an agent that uses a tool server at the address from the environment."""
    given = {"url": os.environ[TOOLS_URL], "authorization": "Bearer s3cret-token"}
    return _one("vllm", server, mcp_servers=[{"name": "t", **given}])


def _waits_for_talk(request: Request) -> Callable[[Sequence[Any]], bool] | None:
    """Hold the second call until the user has sent a message and paused the run."""
    if _results(request) != 1:
        return None
    return lambda events: {"said", "paused"} <= {event.kind for event in events}


RECIPE = """\
name: asks
description: d
version: 1.0.0
stages:
- name: look
  steps:
  - {id: see, type: bash, command: "echo blue > seen.txt; cat seen.txt", output: seen}
  - {id: think, agent: a, prompt: "Think of {{seen}}.", output: thought}
  approval: {required: true, prompt: "Buy it?"}
- name: tell
  steps:
  - {id: say, type: bash, command: "echo {{_approval_message}}", output: said}
  - {id: end, agent: a, prompt: "End with {{said}} and {{thought}}.", output: ended}
"""


NESTED = """\
name: outer
description: d
version: 1.0.0
steps:
- {id: inner, type: recipe, recipe: recipe.yaml, condition: "{{depth}} == 0", context: {depth: 1}}
- {id: leaf, agent: a, prompt: "Begin.", condition: "{{depth}} == 1"}
context: {depth: 0}
"""


def _recipe_says(request: Request) -> Reply:
    return Reply("The end." if "End with" in request.prompt else "A thought.")


FOLDED = (
    ("folded", "claude", "folded twice (Anthropic)"),
    ("folded-chat", "vllm", "folded twice (Chat Completions)"),
    ("folded-responses", "responses", "folded twice (Responses)"),
    ("folded-google", "gemini", "folded twice (Google)"),
)
"""The key, kind of model and title of each shape whose conversation is folded."""

SHAPES = {
    "anthropic": Shape("signed thinking (Anthropic)", plain, WORKS, partial(_one, "claude")),
    "responses": Shape("reasoning items (Responses)", plain, WORKS, partial(_one, "responses")),
    "google": Shape("signed thinking (Google)", plain, WORKS, partial(_one, "gemini")),
    "fork": Shape("4 turns with a fork", conversation, _converses, partial(_one, "vllm")),
    "talk": Shape(
        "message and pause",
        talked_to,
        WORKS,
        partial(_one, "vllm"),
        waits=_waits_for_talk,
        besides=r"(\\n)*<TEAM_MESSAGE>\\nWhile you worked, the user .*?</TEAM_MESSAGE>",
    ),
    "tree": Shape("agents that call agents, 3 deep", plain, _calls_others, _tree),
    "nested": Shape("the same in a nested recipe", in_recipe, _calls_others, _tree, NESTED),
    "mcp": Shape("MCP over HTTP in flight", plain, WRITES, _with_tools),
    "function": Shape("repeatable function in flight", measuring, MEASURES, partial(_one, "vllm")),
    **{
        key: Shape(title, measuring, _reads_much, partial(_one, kind, context_window=WINDOW))
        for key, kind, title in FOLDED
    },
    "gate": Shape("approval of a recipe", approved, _recipe_says, partial(_one, "vllm"), RECIPE),
}


def do(key: str, root: str) -> None:
    """Do the rest of a shape's work."""
    SHAPES[key].work(Path(root))
