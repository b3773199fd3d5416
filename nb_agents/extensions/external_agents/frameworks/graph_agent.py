"""Runs LangGraph's compiled graphs, whose checkpoints are saved in the turn's journal.

A graph's model calls can't be recorded, because they are in closures. A resume therefore continues
at the interrupted node. A graph with its own checkpointer uses that one. A graph compiled with
``checkpointer=False`` starts again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, get_type_hints

from langgraph.checkpoint.memory import InMemorySaver

from nb_agents import events as ev
from nb_agents.agents.placed_calls import TEXT_PLACE
from nb_agents.agents.runner import TextStream
from nb_agents.extensions.external_agents.frameworks.call_log import CallLog
from nb_agents.extensions.external_agents.frameworks.program_runner import Conversation, Framework
from nb_agents.json_text import json_text
from nb_agents.models.usage import UsageMeter

_PARTS = ("thread_id", "checkpoint_ns", "checkpoint_id")


def framework(graph: Any) -> Framework:
    """Return the `Framework` for a graph."""
    keeps = graph.checkpointer is not False
    return Framework(converse, resumes="in steps" if keeps else "starts again", calls_tools=False)


async def converse(graph: Any, talk: Conversation, /, **more: Any) -> str:
    """Run a graph until it ends. See `program_runner.Converse`."""
    log, address = talk.log, talk.log.place("graph")
    if graph.checkpointer in (None, True) or isinstance(graph.checkpointer, InMemorySaver):
        graph = graph.copy({"checkpointer": _JournalSaver(log, address)})
    config = {"configurable": {"thread_id": f"{log.round.agent}{address}"}}
    if graph.checkpointer:
        more["durability"] = "sync"

    async def run(call: TextStream) -> str:
        state: Any = _input_of(graph, talk)
        if graph.checkpointer and (await graph.aget_state(config)).values:
            state = None  # continue at the checkpoint
        stream = graph.astream(state, config, stream_mode=["messages", "updates"], **more)
        async with aclosing(stream):
            async for mode, data in stream:
                if mode == "messages":
                    _write(call, data[0])
                else:  # between two steps
                    await log.checkpoint()
        return await _output_of(graph, config, data if mode == "updates" else {})

    await log.checkpoint()
    if graph.checkpointer:
        return await log.text(run)
    async with log.round.call(TEXT_PLACE) as call:  # a repetition would start again
        return await run(call)


def _input_of(graph: Any, talk: Conversation) -> dict[str, Any]:
    builder = getattr(graph, "builder", None)
    keys = list(get_type_hints(builder.input_schema)) if builder else ["messages"]
    if "messages" not in keys:
        return {keys[0]: talk.prompt}
    system = [("system", talk.system)] if talk.system else []
    return {"messages": [*system, ("user", talk.prompt)]}


def _write(call: TextStream, chunk: Any) -> None:
    if type(chunk).__name__ != "AIMessageChunk":
        return
    call.write(str(chunk.text))
    if call.meter is None:  # the first model has begun to reply
        call.meter = UsageMeter(lambda: 0, lambda: call.chars)
    if used := chunk.usage_metadata:
        call.usage = ev.Usage(
            input_tokens=call.usage.input_tokens + used["input_tokens"],
            output_tokens=call.usage.output_tokens + used["output_tokens"],
        )
        call.meter.report(call.usage.input_tokens, call.usage.output_tokens)


async def _output_of(graph: Any, config: Any, last: Mapping[str, Any]) -> str:
    if graph.checkpointer:
        values = (await graph.aget_state(config)).values
    else:
        values = {key: each for update in last.values() for key, each in (update or {}).items()}
    if messages := values.get("messages"):
        return str(messages[-1].text)
    texts = [each for each in values.values() if isinstance(each, str)]
    return texts[-1] if texts else json_text(values)


class _JournalSaver(InMemorySaver):
    """A checkpointer that saves checkpoints in the journal and loads them from there.

    Args:
        log: The call log of the round.
        address: The graph's address.
    """

    def __init__(self, log: CallLog, address: str) -> None:
        super().__init__()
        self._log = log
        self._address = address
        for kind, data in log.saved(address):
            arguments = self.serde.loads_typed((kind, data.encode("latin-1")))
            is_writes = len(arguments) == 3 and isinstance(arguments[2], str)
            (super().put_writes if is_writes else super().put)(*arguments)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        saved = super().put(config, checkpoint, metadata, new_versions)
        plain_metadata = json.loads(json.dumps(dict(metadata), default=str))
        self._save([_plain(config), checkpoint, plain_metadata, dict(new_versions)])
        return saved

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        super().put_writes(config, writes, task_id, task_path)
        self._save([_plain(config), [*writes], task_id])

    def _save(self, arguments: list[Any]) -> None:
        kind, data = self.serde.dumps_typed(arguments)
        self._log.save(self._address, kind, data.decode("latin-1"))


def _plain(config: Any) -> dict[str, Any]:
    """Return a LangGraph config with only the keys that identify a checkpoint."""
    values = config["configurable"]
    return {"configurable": {key: values[key] for key in _PARTS if key in values}}
