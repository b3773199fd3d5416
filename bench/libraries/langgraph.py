"""langgraph: a graph for each agent, checkpointed in SQLite; stopped by cancelling its task."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

from bench.libraries.player import NAMES, PROMPT, play, work


class LanggraphAgents:
    """Three graphs, each a thread of one checkpointer."""

    def __init__(self, url: str, root: Path) -> None:
        self._url = url
        self._file = str(root / "checkpoints.sqlite")
        self._tasks: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        async with AsyncSqliteSaver.from_conn_string(self._file) as saver:
            fresh = {"messages": [("user", PROMPT)]}
            self._tasks = [asyncio.create_task(self._run(saver, n, fresh)) for n in NAMES]
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def saved(self) -> dict[str, str]:
        async with AsyncSqliteSaver.from_conn_string(self._file) as saver:
            return {name: await self._words(saver, name) for name in NAMES}

    async def resume(self) -> None:
        async with AsyncSqliteSaver.from_conn_string(self._file) as saver:
            # Without input a graph resumes from its checkpoint; a finished one does nothing.
            await asyncio.gather(*(self._run(saver, name, None) for name in NAMES))

    async def _run(self, saver: AsyncSqliteSaver, name: str, fresh: Any) -> None:
        await self._graph(saver, name).ainvoke(fresh, _thread(name))

    async def _words(self, saver: AsyncSqliteSaver, name: str) -> str:
        state = await self._graph(saver, name).aget_state(_thread(name))
        said = [m.text for m in state.values.get("messages", []) if isinstance(m, AIMessage)]
        return next(filter(None, reversed(said)), "")

    def _graph(self, saver: AsyncSqliteSaver, name: str) -> Any:
        key = SecretStr("k")
        model = ChatOpenAI(model=name, base_url=self._url, api_key=key, streaming=True)
        bound = model.bind_tools([work])

        async def ask(state: MessagesState) -> Any:
            return {"messages": [await bound.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("model", ask).add_node(ToolNode([work]))
        graph.add_edge(START, "model").add_edge("tools", "model")
        return graph.add_conditional_edges("model", tools_condition).compile(checkpointer=saver)


def _thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


if __name__ == "__main__":
    play(LanggraphAgents)
