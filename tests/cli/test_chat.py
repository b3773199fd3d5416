"""Text typed into a chat starts a turn, reaches the live turn, or answers its gates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

import nb_agents
from nb_agents import Run, RunOptions, TeamSpec, UserError
from nb_agents import events as ev
from nb_agents.cli.chat import GOODBYE, Chat
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, events, finish

ASKS = {"tool_policy": [{"match": "colour", "action": "ask"}]}


def colour() -> str:
    """Ask which colour."""
    return nb_agents.ask("Which colour?")


class Talk:
    """A chat with the test as its user. Each turn has its own model."""

    def __init__(self, root: Path) -> None:
        self.told: list[str] = []
        self.runs: list[Run] = []
        self.models: list[ScriptedModel] = []
        self.keys: dict[str, object] = {}
        self.problem = ""
        self._root = root
        self._typed: Queue[str | None] = Queue()
        chat = Chat(self._begin, lambda run: str(run.result), self.told.append)
        self.thread = Thread(target=chat.talk, args=(iter(self._typed.get, None),), daemon=True)
        self.thread.start()

    def _begin(self, task: str) -> Run:
        if self.problem:
            raise UserError(self.problem)
        backend = {"type": "python", "instance": self.models.pop(0), **self.keys}
        team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        options = RunOptions(session_root=self._root)
        self.runs.append(nb_agents.start(task, team, "s", options=options, tools=[colour]))
        return self.runs[-1]

    def type(self, text: str | None) -> None:
        self._typed.put(text)

    def wait_told(self, what: str) -> None:
        wait_until(lambda: any(what in line for line in self.told), WAIT_S, what, lambda: self.told)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    yield talk
    talk.type(None)
    talk.thread.join(WAIT_S)
    assert talk.told[-1] == GOODBYE


def test_chat_answers_a_question_with_typed_text(talk: Talk) -> None:
    talk.models = [ScriptedModel(Turn(calls=(Call("colour", {}),)), Answer("done"))]
    talk.type("paint it")
    talk.wait_told("Which colour? (type the answer)")
    talk.type("blue")
    talk.wait_told("done")
    [finished] = events(finish(talk.runs[0]), ev.ToolFinished)
    assert finished.result == "blue"


@pytest.mark.parametrize(("typed", "is_approved"), [("Yes, please", True), ("n too dear", False)])
def test_chat_approves_or_denies_a_call_with_typed_reason(
    talk: Talk, typed: str, is_approved: bool
) -> None:
    talk.keys = ASKS
    talk.models = [ScriptedModel(Turn(calls=(Call("colour", {}),)), Answer("done"))]
    talk.type("paint it")
    talk.wait_told("(type yes or no, and optionally a reason)")
    talk.type(typed)
    if is_approved:
        talk.wait_told("Which colour?")
        talk.type("blue")
    talk.wait_told("done")
    first = finish(talk.runs[0]).view.approvals[0]
    assert (first.approved, first.message) == (is_approved, typed.partition(" ")[2])


def test_chat_sends_text_to_the_live_turn_and_later_text_starts_the_next(
    talk: Talk,
) -> None:
    gate = Gate()
    held = ScriptedModel(Turn(text="hm", gate=gate), Answer("the first"))
    talk.models = [held, ScriptedModel(Answer("the second"))]
    talk.type("count")
    talk.wait_told("a: writing")  # the turn works slightly before the chat has its handle
    talk.type("in tens")
    talk.wait_told("next request")
    gate.open()
    talk.wait_told("the first")
    talk.type("again")
    talk.wait_told("the second")
    assert [finish(run).view.task for run in talk.runs] == ["count", "again"]
    assert talk.runs[0].view.said == ("in tens",)


def test_chat_reports_a_turn_that_cannot_start_and_prompts_again(talk: Talk) -> None:
    talk.problem = "The team has no key."
    talk.type("count")
    talk.wait_told("The team has no key.")
    talk.problem, talk.models = "", [ScriptedModel(Answer("the second"))]
    talk.type("again")
    talk.wait_told("the second")


@pytest.mark.parametrize("moment", ["begin", "show", "You:"])
def test_interrupt_at_the_prompt_ends_the_chat_without_traceback(
    tmp_path: Path, moment: str
) -> None:
    told = list[str]()

    def reach(this: str) -> None:
        if this == moment and (told or this != "You:"):  # at the second prompt
            raise KeyboardInterrupt

    def begin(task: str) -> Run:
        reach("begin")
        backend = {"type": "python", "instance": ScriptedModel(Answer("done"))}
        team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        return nb_agents.start(task, team, options=RunOptions(session_root=tmp_path))

    def show(run: Run) -> str:
        reach("show")
        return str(run.result)

    def tell(line: str) -> None:
        reach(line)
        told.append(line)

    Chat(begin, show, tell).talk(["count", "again"])
    assert told[-1] == GOODBYE
    assert "again" not in told
    assert ("done" in told) is (moment == "You:")
