"""The path of a token from a provider's SDK to the journal's buffer."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import nb_agents
from nb_agents.options import RunOptions
from tests.kit.agents import ModelRound
from tests.kit.runs import submit
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, ToolCall

TOKENS = 400
MAX_FUNCTIONS = 7

_OURS = str(Path(nb_agents.__file__).parent)
_BEFORE = ("response_limits.py", "reading.py", "openai_client.py", "streamed_calls.py")
"""What the SDK's chunk has passed: the limits on what a server may send, and how it is read."""


class Calls:
    """Counts the calls to our functions in a model's stream. A coroutine counts once."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self._seen: set[FrameType] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_OURS) or frame in self._seen:
            return
        if not code.co_filename.endswith(_BEFORE) and _is_in_stream(frame):
            self._seen.add(frame)
            self.count[code.co_qualname] += 1


def test_token_passes_few_functions_after_the_sdk(tmp_path: Path) -> None:
    answer = ToolCall("new_answer", {"content": "an answer"})
    reply = Reply(text="word " * TOKENS, tool_calls=(answer,))
    calls = Calls()
    with ModelServer(default=reply) as server:
        team = TeamSpec.model_validate(_team(server.url))
        submit(_profile, calls).result()
        try:
            run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
            assert run.wait() == "an answer"
        finally:
            submit(_profile, None).result()
    assert calls.count["StreamBuffer.add"] > TOKENS
    per_token = {name: count / TOKENS for name, count in calls.count.items()}
    assert sum(per_token.values()) <= MAX_FUNCTIONS, per_token


def _is_in_stream(frame: FrameType | None) -> bool:
    """Whether the loop over a stream has called it, and not the run's clock."""
    while frame is not None and frame.f_code is not ModelRound._stream.__code__:
        frame = frame.f_back
    return frame is not None


def _team(url: str) -> dict[str, Any]:
    backend = {"type": "openai", "model": "m", "base_url": url, "api_key": "k"}
    rules = {"skip_voting": True, "skip_final_presentation": True}
    return {"agents": [{"id": "a", "backend": backend}], "orchestrator": rules}


async def _profile(calls: Calls | None) -> None:
    """Begin to count on the thread of all runs, or end."""
    sys.setprofile(calls.note if calls else None)
