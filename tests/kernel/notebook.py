"""A notebook with agents of a `ModelServer`, for the tests of stops and sessions.

`Notebook` is a live kernel plus the server plus a team file of three agents (models m1, m2, m3).
By default each model streams `WORDS` and then answers, votes or presents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import canaries
from tests.kernel.driver import Comm, Kernel, Result
from tests.kit.sessions import TurnPaths
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until

__all__ = [
    "AGENTS",
    "HELD",
    "TURN_MIME",
    "WIDGET_MIME",
    "WORDS",
    "Notebook",
    "Turn",
    "assert_stopped_gracefully",
    "assert_stopped_now",
    "play",
    "write_team",
]

AGENTS = ("ada", "Ben", "cleo")
WORDS = "alpha beta gamma delta epsilon zeta"
HELD = "alpha beta gamma"
TURN_MIME = "application/vnd.nb-agents.turn+json"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def play(request: Request) -> Reply:
    """Act as an agent: answer, vote for the first answer, or present."""
    if "<FINAL PRESENTATION>" in request.prompt:
        return Reply(text="The team's final answer.")
    if answered := re.search(r'<ANSWER from="(agent\d)">', request.prompt):
        args = {"agent_id": answered[1], "reason": "It is the first."}
        return Reply(text=WORDS, tool_calls=(ToolCall("vote", args),))
    call = ToolCall("new_answer", {"content": f"The answer of {request.model}."})
    return Reply(text=WORDS, tool_calls=(call,))


def write_team(
    path: Path, server: ModelServer, extra: str = "", backend: Mapping[str, str] | None = None
) -> Path:
    """Write a team file with three agents that use the server."""
    fields = {"type": "chatcompletion", "base_url": server.url, "api_key": canaries.KEY}
    lines = ["agents:"]
    for number, agent in enumerate(AGENTS, 1):
        options = {**fields, "model": f"m{number}", **(backend or {})}
        lines += [f"  - id: {agent}", "    backend:"]
        lines += [f"      {name}: {json.dumps(value)}" for name, value in options.items()]
    path.write_text("\n".join([*lines, extra, ""]))
    return path


@dataclass(frozen=True)
class Turn:
    """A turn on disk, which is read again for each query.

    Attributes:
        run: The run's id in its kernel.
        cell: The message that started it.
    """

    path: Path
    run: str = ""
    cell: str = ""

    @property
    def name(self) -> str:
        """The turn as `%agents show` takes it: SESSION/TURN."""
        return f"{self.path.parent.name}/{self.path.name.removeprefix('turn_')}"

    @property
    def session(self) -> str:
        return self.path.parent.name

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the complete events of the journal (of this kind)."""
        journal = self.path / "events.jsonl"
        lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
        return [e for e in map(json.loads, lines) if kind in ("", e["kind"])]

    def streamed(self) -> dict[str, str]:
        """Return the streamed text of each agent in the journal."""
        texts: dict[str, str] = {}
        for event in self.events("text_streamed"):
            texts[event["agent"]] = texts.get(event["agent"], "") + event["text"]
        return texts

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "metadata.json").read_text()))

    @property
    def partial_answers(self) -> dict[str, dict[str, Any]]:
        return dict(json.loads((self.path / "partial_answers.json").read_text()))

    @property
    def answer(self) -> str:
        return (self.path / "answer.txt").read_text()

    @property
    def summary(self) -> str:
        return (self.path.parent / "SESSION_SUMMARY.txt").read_text()

    @property
    def is_over(self) -> bool:
        return bool(self.events("turn_ended"))

    def wait_streamed(self, words: str = HELD, agents: int = len(AGENTS)) -> None:
        """Wait until the journal has text of this number of agents."""
        there = lambda: [t for t in self.streamed().values() if words in t]  # noqa: E731
        wait_until(lambda: len(there()) >= agents, 60, f"{words!r} on disk", self.streamed)

    def wait_stop(self, level: str = "requested", agent: str = "") -> None:
        """Wait until a stop of this level is in the journal."""
        wanted = (level, agent)
        stops = lambda: [(e["level"], e["agent"]) for e in self.events("stop_requested")]  # noqa: E731
        wait_until(lambda: wanted in stops(), 60, f"a stop {wanted}", stops)

    def wait_over(self) -> None:
        """Wait until the turn has ended, its metadata is saved and its lock is released."""
        ended = lambda: self.metadata["run_status"] in ("completed", "cancelled", "failed")  # noqa: E731
        wait_until(ended, 60, "the turn's end", self.events)
        turn = TurnPaths(self.path)
        wait_until(lambda: not turn.is_live(), 60, "the end of its lock", self.events)


class Notebook:
    """A kernel with nb_agents loaded, a model server and a team file.

    Args:
        kernel: A kernel with nb_agents loaded.
        server: The server of the team's models.
        place: A directory for the team file and the sessions.
    """

    def __init__(self, kernel: Kernel, server: ModelServer, place: Path) -> None:
        self.kernel = kernel
        self.server = server
        self.place = place
        self.root = place / "sessions"
        self.team = write_team(place / "team.yaml", server)
        self.use(kernel)

    def use(self, kernel: Kernel) -> None:
        """Use this kernel from now on; its sessions belong to this notebook."""
        self.kernel = kernel
        kernel.eval(f"__import__('os').environ.update(NB_AGENTS_SESSIONS={str(self.root)!r})")

    def magic(self, options: str = "", task: str = "Count to six.") -> str:
        """Return the source of a cell that starts the team."""
        return f"%%agents --config {self.team} {options}\n{task}"

    def send(self, options: str = "", task: str = "Count to six.") -> Turn:
        """Start the team in a cell, without waiting for the cell, and return its turn."""
        return self.turn_of(self.kernel.send(self.magic(options, task)))

    def turn_of(self, cell: str) -> Turn:
        """Wait for the panel of a cell and return its turn."""

        def new() -> list[Comm]:
            if self.kernel.outputs_of(cell).status == "error":
                raise AssertionError(self.kernel.outputs_of(cell))
            return [comm for comm in self.panels().values() if comm.cell == cell]

        def seen() -> Result:
            return self.kernel.outputs_of(cell)

        comm = self.kernel.wait_until(new, 60, "the panel", seen)[-1]
        state = comm.state["state"]
        path = self.root / state["session"] / f"turn_{state['turn']}"
        return Turn(path, state["run"], cell)

    def start(self, options: str = "", task: str = "Count to six.") -> Turn:
        """Start the team in a cell that returns."""
        turn = self.send(options, task)
        result = self.kernel.result(turn.cell)
        assert result.status == "ok", result
        return turn

    def start_held(self, options: str = "") -> Turn:
        """Start the team and wait until each model has streamed `HELD` and pauses there."""
        self.server.hold(after=3)
        turn = self.start(options)
        turn.wait_streamed()
        return turn

    def panels(self) -> dict[str, Comm]:
        """Return all panels that the kernel has opened, by run."""
        self.kernel._drain(0)
        states = [(c, c.state.get("state")) for c in self.kernel.comms.values()]
        return {s["run"]: c for c, s in states if isinstance(s, dict) and "run" in s}

    def panel(self, turn: Turn) -> Comm:
        return self.panels()[turn.run]

    def press(self, turn: Turn, *, now: bool = False) -> str:
        """Press the panel's Stop button; the message is sent only by the widget's comm."""
        content = {"type": "stop", "run": turn.run, "immediate": now}
        return self.kernel.send_custom(self.panel(turn).comm_id, content)

    def end_all(self) -> None:
        """Stop all runs of the kernel immediately, even while a cell waits, and wait for them."""
        for run in self.panels():
            self.kernel.control("nb_agents_stop_request", {"run": run, "immediate": True})
        self.kernel.run(
            "import nb_agents as _nb\nfor _run in _nb.runs(): _run.wait(raise_on_stop=False)"
        )

    def text(self, result: Result) -> str:
        """Return all plain text of a cell that a user sees."""
        shown = [d.data.get("text/plain", "") for d in result.displays]
        error = [result.error.evalue] if result.error else []
        return "\n".join([result.stdout, result.stderr, *shown, *error])


def assert_stopped_now(turn: Turn, server: ModelServer, source: str) -> None:
    """Assert that an immediate stop closed all three streams and saved their text."""
    assert server.endings() == ["client"] * 3
    turn.wait_over()
    _assert_incomplete(turn, source)
    assert turn.events("stop_requested")[-1]["level"] == "immediate"
    kept = turn.partial_answers
    assert sorted(kept) == sorted(AGENTS)
    for entry in kept.values():
        assert (entry["partial"], entry["partial_text"]) == (True, HELD)
    assert turn.answer.startswith("[PARTIAL TEXT - Stopped during")
    assert turn.answer.endswith(HELD)


def assert_stopped_gracefully(turn: Turn, server: ModelServer, source: str) -> None:
    """Release the held streams; assert that they ended and were saved, and no others started."""
    assert not turn.is_over
    server.release()
    turn.wait_over()
    assert server.endings() == ["server"] * 3
    _assert_incomplete(turn, source)
    assert {e["level"] for e in turn.events("stop_requested")} == {"requested"}
    kept = turn.partial_answers
    for number, agent in enumerate(AGENTS, 1):
        assert kept[agent]["answer"] == f"The answer of m{number}."
        assert kept[agent]["partial_text"] == WORDS
    assert turn.answer.startswith("[PARTIAL ANSWER - Session was cancelled during coordinating")
    assert "The answer of m" in turn.answer


def _assert_incomplete(turn: Turn, source: str) -> None:
    data = turn.metadata
    found = {name: data[name] for name in ("status", "phase", "run_status", "reason")}
    assert found == {
        "status": "incomplete",
        "phase": "coordinating",
        "run_status": "cancelled",
        "reason": "timeout" if source == "timeout" else "cancelled",
    }
    assert turn.events("stop_requested")[0]["source"] == source
    marker = "TIMEOUT" if source == "timeout" else "CANCELLED"
    assert f"TURN {data['turn']} [INCOMPLETE - {marker}]" in turn.summary
