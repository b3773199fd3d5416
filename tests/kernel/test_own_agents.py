"""A function and a pydantic-ai agent of the notebook: stopped, and resumed after a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.kernel.notebook import HELD, WORDS, Notebook, Turn
from tests.model_server import ModelServer, Reply, Request, ToolCall

DEFINED = """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

def model(name):
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url={url!r}, api_key="k"))

my_pydantic_agent = Agent(model("own"))

@my_pydantic_agent.tool_plain
def note(word: str) -> str:
    with open({log!r}, "a") as file:
        file.write(word)
    return "It is noted."

async def my_function(task, ctx):
    if ctx.voters:
        return ctx.voters[-1]
    first = await ctx.model("The first half.", model("first"))
    return first + await ctx.model("The second half.", model("second"))
"""
START = "%%agents --agents my_function,my_pydantic_agent --session lab\nCount to six."


def says(request: Request) -> Reply:
    if request.model != "own":
        return Reply("Half. " if request.model == "first" else WORDS)
    if "<FINAL PRESENTATION>" in request.prompt:
        return Reply("The end.")
    if request.messages[-1]["role"] == "tool":
        return Reply(WORDS, tool_calls=(ToolCall("new_answer", {"content": "Six."}),))
    if "<ANSWER from" in request.prompt:
        args = {"agent_id": "agent2", "reason": "It is short."}
        return Reply(tool_calls=(ToolCall("vote", args),))
    return Reply(tool_calls=(ToolCall("note", {"word": "a"}),))


def asked(requests: list[Request]) -> Counter[str]:
    return Counter(f"{each.model}: {each.messages}" for each in requests)


@pytest.mark.parametrize("now", [False, True])
def test_notebook_agents_resume_after_a_restart_without_repeating_calls(
    open_notebook: Callable[..., Notebook], server: ModelServer, now: bool
) -> None:
    for name in ("own", "first", "second"):
        server.script(name, says)
    notebook = open_notebook()
    log = notebook.place / "noted"
    cell = DEFINED.format(url=server.url, log=str(log))
    assert notebook.kernel.run(cell).status == "ok"
    server.hold(after=3)
    old = notebook.turn_of(notebook.kernel.send(START))
    old.wait_streamed(HELD, agents=2)
    notebook.kernel.run(f"%agents stop {'--now' if now else ''}")
    old.wait_stop("immediate" if now else "requested")
    if not now:
        server.release()
    old.wait_over()
    server.wait_closed()
    assert old.metadata["run_status"] == "cancelled"
    cut = [each for each in server.requests if each.closed_by == "client"]
    assert {each.model for each in cut} == ({"own", "second"} if now else set())
    server.release()

    notebook.kernel.restart()
    notebook.use(notebook.kernel)
    assert notebook.kernel.run(f"%load_ext nb_agents\n{cell}").status == "ok"
    turn = Turn(old.path.with_name("turn_2"))
    assert notebook.kernel.run("%agents resume lab --wait").status == "ok"
    assert (turn.metadata["run_status"], turn.answer) == ("completed", "The end.")
    assert log.read_text() == "a"
    paid = asked([each for each in server.requests if each.closed_by == "server"])
    assert set(paid.values()) == {1}
    assert set(asked(cut)) <= set(paid)
    assert [each.model for each in server.requests].count("first") == 1
