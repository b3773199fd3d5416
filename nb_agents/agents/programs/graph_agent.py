"""LangGraph's compiled graphs: their checkpoints are kept in the turn's journal.

A graph's models are closures, so that its calls can't be wrapped: a resume goes on at the node that
was cut. A graph with a checkpointer of its own keeps it; one compiled with ``checkpointer=False``
starts again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, get_type_hints

from langgraph.checkpoint.memory import InMemorySaver

from nb_agents import events as ev
from nb_agents.agents.placed_calls import WORDS
from nb_agents.agents.programs.call_log import CallLog
from nb_agents.agents.programs.program_runner import Conversation, Framework
from nb_agents.agents.runner import WordStream

_PARTS = ("thread_id", "checkpoint_ns", "checkpoint_id")


def framework(graph: Any) -> Framework:
    """Return how a graph is run."""
    keeps = graph.checkpointer is not False
    return Framework(converse, resumes="in steps" if keeps else "starts again", calls_tools=False)


async def converse(graph: Any, talk: Conversation, /, **more: Any) -> str:
    """Run a graph to its end; see `program_runner.Converse`."""
    log, place = talk.log, talk.log.place("graph")
    if graph.checkpointer in (None, True) or isinstance(graph.checkpointer, InMemorySaver):
        graph = graph.copy({"checkpointer": _JournalSaver(log, place)})
    config = {"configurable": {"thread_id": f"{log.round.agent}{place}"}}
    given: Any = _input_of(graph, talk)
    if graph.checkpointer and (await graph.aget_state(config)).values:
        given = None
    durable = {"durability": "sync"} if graph.checkpointer else {}
    await log.checkpoint()
    async with log.round.call(WORDS) as call:
        stream = graph.astream(
            given, config, stream_mode=["messages", "updates"], **durable, **more
        )
        async with aclosing(stream):
            async for mode, data in stream:
                if mode == "messages":
                    _write(call, data[0])
                else:  # between two steps
                    await log.checkpoint()
        said = await _output_of(graph, config, data if mode == "updates" else {})
    return said


def _input_of(graph: Any, talk: Conversation) -> dict[str, Any]:
    builder = getattr(graph, "builder", None)
    keys = list(get_type_hints(builder.input_schema)) if builder else ["messages"]
    if "messages" not in keys:
        return {keys[0]: talk.prompt}
    system = [("system", talk.system)] if talk.system else []
    return {"messages": [*system, ("user", talk.prompt)]}


def _write(call: WordStream, chunk: Any) -> None:
    if type(chunk).__name__ != "AIMessageChunk":
        return
    call.write(str(chunk.text))
    if used := chunk.usage_metadata:
        call.usage = ev.Usage(
            input_tokens=call.usage.input_tokens + used["input_tokens"],
            output_tokens=call.usage.output_tokens + used["output_tokens"],
        )


async def _output_of(graph: Any, config: Any, last: Mapping[str, Any]) -> str:
    if graph.checkpointer:
        values = (await graph.aget_state(config)).values
    else:
        values = {key: each for update in last.values() for key, each in (update or {}).items()}
    if messages := values.get("messages"):
        return str(messages[-1].text)
    texts = [each for each in values.values() if isinstance(each, str)]
    return texts[-1] if texts else json.dumps(values, default=str)


class _JournalSaver(InMemorySaver):
    """A checkpointer that journals what it is given, and begins with what is journalled.

    Args:
        log: The journal.
        place: The graph's place.
    """

    def __init__(self, log: CallLog, place: str) -> None:
        super().__init__()
        self._log = log
        self._place = place
        for kind, data in log.saved(place):
            given = self.serde.loads_typed((kind, data.encode("latin-1")))
            is_writes = len(given) == 3 and isinstance(given[2], str)
            (super().put_writes if is_writes else super().put)(*given)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        saved = super().put(config, checkpoint, metadata, new_versions)
        known = json.loads(json.dumps(dict(metadata), default=str))
        self._keep([_plain(config), checkpoint, known, dict(new_versions)])
        return saved

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        super().put_writes(config, writes, task_id, task_path)
        self._keep([_plain(config), [*writes], task_id])

    def _keep(self, given: list[Any]) -> None:
        kind, data = self.serde.dumps_typed(given)
        self._log.save(self._place, kind, data.decode("latin-1"))


def _plain(config: Any) -> dict[str, Any]:
    """Return what of a config names a checkpoint; the rest holds callbacks."""
    known = config["configurable"]
    return {"configurable": {key: known[key] for key in _PARTS if key in known}}
