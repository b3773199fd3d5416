"""The demo model: deterministic, offline and free, at a readable speed.

It works like an agent: it reads the files that the task mentions, writes a note to its workspace,
answers, reads other answers, votes, and presents if it wins. In a recipe it completes a step with
the fields that later steps read. Its answers state that it is the demo model. They depend only on
the conversation, so the same task always produces the same run.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from nb_agents.config.decision_tools import ANSWER, VOTE
from nb_agents.models.backend import PydanticBackend
from nb_agents.models.message_order import team_messages
from nb_agents.nouns import count

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models.function import AgentInfo

DEMO_WORDS_PER_SECOND = 25.0
"""Slow enough to read, and similar to a mid-sized hosted model."""

_TASK = re.compile(r"<TASK>\n?(.*?)\n?</TASK>", re.DOTALL)
_FILES = re.compile(r"(?<!\S)/\S*[^\s.,:;)]")
"""The absolute paths in a task, which `@path` becomes."""

_READ = re.compile(r'^\d+\.1 read_file \{"path": "(.*?)"\}:', re.MULTILINE)
"""A line about a call in the ledger of a folded conversation."""

_PEERS = re.compile(r'<ANSWER from="(agent\d+)">')
_FIELDS = re.compile(
    r"^Later steps read these fields of your result.*?```json\n(.*?)\n```", re.DOTALL | re.MULTILINE
)
_RIDER = re.compile(r"\n\n(?:End with the result as JSON|Later steps (?:read|compare))\b")
_WORDS = re.compile(r"^Later steps compare your whole result with (.*)\.$", re.MULTILINE)


def demo_backend(
    name: str, words_per_second: float | None = None, context_window: int | None = None
) -> PydanticBackend:
    """Return a backend with the demo model, which needs no network and no key.

    Args:
        name: The name that the model uses in its answers, so that the answers of a team differ.
        words_per_second: The speed. Defaults to `DEMO_WORDS_PER_SECOND`.
        context_window: The number of tokens at which conversations are folded. None means no limit.
    """
    from pydantic_ai.models.function import FunctionModel

    pause_s = 1 / (words_per_second or DEMO_WORDS_PER_SECOND)

    async def write(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        text, tool, args = _next_move(messages, {t.name for t in info.function_tools}, name)
        async for delta in _stream(text, tool, args, pause_s, f"demo_{len(messages)}"):
            yield delta

    model = FunctionModel(stream_function=write, model_name="demo")
    return PydanticBackend(model, "demo", is_free=True, context_window=context_window)


async def _stream(
    text: str, tool: str, args: dict[str, str], pause_s: float, call_id: str
) -> AsyncIterator[Any]:
    from pydantic_ai.models.function import DeltaToolCall

    for word in _words(text):
        yield word
        await anyio.sleep(pause_s)
    if not tool:
        return
    name: str | None = tool
    for piece in _words(json.dumps(args)):
        yield {1: DeltaToolCall(name, piece, tool_call_id=call_id)}
        name = None
        await anyio.sleep(pause_s)


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _next_move(messages: list[Any], tools: set[str], name: str) -> tuple[str, str, dict[str, str]]:
    """Return the next text, tool and arguments for a conversation."""
    # Other agents' answers are in the first prompt; later ones arrive between two calls.
    prompt = _prompts(messages)
    done = [p.tool_name for m in messages for p in m.parts if p.part_kind == "tool-return"]
    if not tools & {ANSWER.name, VOTE.name}:
        return _step(prompt, tools - set(done), name)
    task = _task(prompt)
    if "<FINAL PRESENTATION>" in prompt:
        return _presentation(task), "", {}
    peers = _PEERS.findall(prompt)
    if peers and VOTE.name in tools:
        return _judge(peers, done, prompt)
    if "read_file" in tools and (path := _next_file(task, messages, prompt)):
        return f"I read {path.rpartition('/')[2]}. ", "read_file", {"path": path}
    if "write_file" in tools and "write_file" not in done:
        note = f"# Notes on the task\n\n{task}\n\nWritten by the demo model; no LLM was called.\n"
        return (
            f"I am the demo model. Let me first note down the task: {_short(task)}. ",
            "write_file",
            {"path": "notes.md", "content": note},
        )
    return "Now I can answer. ", ANSWER.name, {"content": _answer(task, name)}


def _step(prompt: str, tools: set[str], name: str) -> tuple[str, str, dict[str, str]]:
    """Write a note named after the step, because steps share a workspace; then finish."""
    if "write_file" not in tools:
        return _result(prompt, name), "", {}
    task = _RIDER.split(prompt)[0].strip()
    slug = "-".join(re.findall(r"[a-z0-9]+", task.lower())[:6])[:60] or "step"
    note = f"# Notes on a step\n\n{task}\n\nWritten by the demo model; no LLM was called.\n"
    text = f"I am the demo model. Let me first note down the step: {_short(task)}. "
    return text, "write_file", {"path": f"notes/{slug}.md", "content": note}


def _result(prompt: str, name: str) -> str:
    """Return the demo model's result of a step.

    If later steps compare the result with fixed values, this is one of those; otherwise a demo
    text.
    """
    for words in _WORDS.findall(prompt)[-1:]:
        with suppress(ValueError):  # not our prompt, but similar text in a task
            word, _ = json.JSONDecoder().raw_decode(words)
            return word if isinstance(word, str) else json.dumps(word)
    fields = "".join(f"\n\n```json\n{each}\n```" for each in _FIELDS.findall(prompt)[-1:])
    return (
        f"**This is the demo model** ({name}), doing one step: no LLM was called and nothing was "
        f"spent.\n\nYou asked: {_short(_RIDER.split(prompt)[0])}{fields}"
    )


def _next_file(task: str, messages: list[Any], prompt: str) -> str | None:
    """Return the readable file of the task after the last one that was read, or None."""
    responses = (each for each in messages if each.kind == "response")
    calls = (call for each in responses for call in each.tool_calls)
    read = {call.args_as_dict().get("path") for call in calls} | {*_READ.findall(prompt)}
    rules = "\n".join(
        p.content for m in messages for p in m.parts if p.part_kind == "system-prompt"
    )
    files = [path for path in _FILES.findall(task) if f"\n- {path}" in rules]
    last = max((n for n, path in enumerate(files) if path in read), default=-1)
    return files[last + 1] if last + 1 < len(files) else None


def _judge(peers: list[str], done: list[str], prompt: str) -> tuple[str, str, dict[str, str]]:
    own_answer = re.search(r'<ANSWER from="(agent\d+)">\n\(your own answer\)', prompt)
    other_agents = [peer for peer in peers if own_answer is None or peer != own_answer[1]]
    best = other_agents[0] if other_agents else peers[0]
    if "read_file" not in done:
        path = f"peers/{best}/notes.md" if other_agents else "notes.md"
        text = f"I look at {best}'s notes. " if other_agents else "Mine is the only answer so far. "
        return text, "read_file", {"path": path}
    reason = "It covers the task in full. (The demo model prefers the first answer of a peer.)"
    return (
        f"I compared {count(len(set(peers)), 'answer')}. ",
        VOTE.name,
        {"agent_id": best, "reason": reason},
    )


def _answer(task: str, name: str) -> str:
    return (
        f"**This is the demo model**: no LLM was called and nothing was spent.\n\n"
        f"You asked: {_short(task)}\n\n"
        f"1. A team of real models would now each draft an answer, as I, {name}, do here.\n"
        "2. They read each other's drafts and files, and improve on them or vote.\n"
        "3. The one with most votes presents the final answer.\n\n"
        "To use real models, list them in a team file and pass it with `--config team.yaml`."
    )


def _presentation(task: str) -> str:
    return (
        f"**This is the demo model**, presenting for the team.\n\n"
        f"You asked: {_short(task)}\n\n"
        "All agents answered, read each other's answers and voted; this is the answer that won. "
        "My notes are in `notes.md` in the workspace of this turn. "
        "To get an answer from real models, pass a team file with `--config team.yaml`."
    )


def _short(task: str, limit: int = 120) -> str:
    line = " ".join(task.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _task(prompt: str) -> str:
    match = _TASK.search(prompt)
    return match[1].strip() if match else prompt.strip()


def _prompts(messages: list[Any]) -> str:
    return "\n".join(
        text for message in messages for part in message.parts for text in _texts(part)
    )


def _texts(part: Any) -> tuple[str, ...]:
    """Return the text of a request part, without tool results."""
    if part.part_kind == "tool-return":
        return team_messages(str(part.content))
    return (str(part.content),) if part.part_kind == "user-prompt" else ()
