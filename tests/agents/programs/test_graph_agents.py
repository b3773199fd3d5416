"""Tests of LangGraph's graphs as agents: a resume does not repeat finished nodes."""

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Gate
from tests.kit.runs import Run
from tests.team_kit import events, finish


class State(TypedDict):
    task: str
    found: Annotated[list[str], operator.add]
    answer: str


class Work:
    """A graph of three nodes. Two run in parallel, and the last one waits."""

    def __init__(self, **compiled: Any) -> None:
        from langgraph.graph import END, START, StateGraph

        self.gate, self.done, self.errors = Gate(), list[str](), list[Exception]()
        graph = StateGraph(State)
        for name in ("left", "right"):
            graph.add_node(name, self._looks(name))
            graph.add_edge(START, name)
            graph.add_edge(name, "tell")
        graph.add_node("tell", self._tell)
        graph.add_edge("tell", END)
        self.graph = graph.compile(**compiled)

    def _looks(self, name: str) -> Any:
        async def look(state: State) -> dict[str, Any]:
            self.done.append(name)
            return {"found": [name]}

        return look

    async def _tell(self, state: State) -> dict[str, Any]:
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop()
        self.done.append("tell")
        return {"answer": " and ".join(sorted(state["found"]))}


def start(root: Path, graph: Any) -> Run:
    return nb_agents.start("t", TeamSpec(agents=[graph]), options=RunOptions(session_root=root))


def again(run: Run, graph: Any) -> Run:
    options = RunOptions(session_root=run.path.parents[1])
    return finish(nb_agents.resume(run.session, TeamSpec(agents=[graph]), options=options))


@pytest.mark.parametrize("keeps", [True, False])
def test_stop_preserves_finished_nodes_of_a_graph_with_a_checkpointer(
    tmp_path: Path, keeps: bool
) -> None:
    work = Work(checkpointer=None if keeps else False)
    run = start(tmp_path, work.graph)
    work.gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    told = "with finished steps kept" if keeps else "Started again from the beginning"
    assert told in str(run.preview)
    work.gate.open()
    assert again(run, work.graph).result == "left and right"
    assert sorted(work.done) == sorted(["left", "right", "tell"] + ["left", "right"] * (not keeps))


def test_text_of_a_graphs_model_is_streamed(tmp_path: Path) -> None:
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph

    model = GenericFakeChatModel(messages=iter([AIMessage("So it is.")]))

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    run = finish(start(tmp_path, graph.compile()))
    assert run.result == "So it is."
    assert "".join(e.text for e in events(run, ev.TextStreamed)) == "So it is."


def test_resume_runs_only_the_node_that_failed_to_connect(tmp_path: Path) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    work = Work(checkpointer=InMemorySaver())
    work.gate.open()
    work.errors.append(ConnectionError("refused"))
    run = finish(start(tmp_path, work.graph))
    assert (
        run.status == "failed" and "refused" in run.view.agents[next(iter(run.view.agents))].error
    )
    assert again(run, work.graph).result == "left and right"
    assert sorted(work.done) == ["left", "right", "tell"]
