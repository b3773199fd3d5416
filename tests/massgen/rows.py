"""Tables of statements about other agent programs, each with a check of nb_agents.

A row is a function: its name is the row's, its decorator has the statement, its body the check.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.kit.models import Backend
from tests.kit.runs import Run
from tests.kit.sessions import Session, load_session
from tests.model_server import wait_until
from tests.team_kit import finish

SESSION = "s"
TASK = "Which cache?"
# The longest of the answers is not the one with most votes.
ANSWERS = {"agent_a": "A's answer, which is much longer than the other.", "agent_b": "B's answer."}
HALF = "Half a thought "


@dataclass(frozen=True)
class Row:
    """A row: a statement, and a check that it is true of nb_agents."""

    name: str
    says: str
    check: Callable[..., None]

    def hold(self, *stage: Any) -> None:
        """Check the row. A failure names the statement."""
        try:
            self.check(*stage)
        except BaseException as exc:
            exc.add_note(f"Statement: {self.says}")
            raise


class Table:
    """Rows in the order of their definition.

    Example:
        @TABLE.says("Answers that were submitted before the stop are saved.")
        def answers_are_saved(root: Path) -> None: ...
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def says(self, statement: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a row."""

        def add(check: Callable[..., None]) -> Callable[..., None]:
            assert check.__name__ not in [row.name for row in self.rows], check.__name__
            self.rows.append(Row(check.__name__, statement, check))
            return check

        return add

    def parametrize(self) -> pytest.MarkDecorator:
        """Make a test of each row, with the argument ``row``."""
        return pytest.mark.parametrize("row", self.rows, ids=lambda row: row.name)


def begin(root: Path, task: str = TASK, session: str = SESSION, **models: Backend) -> Run:
    """Start a turn of the session."""
    return nb_agents.start(
        task, scripted_team(None, **models), session, options=RunOptions(session_root=root)
    )


def writes(name: str, content: str = "kept") -> Turn:
    return Turn(calls=(Call("write_file", {"path": name, "content": content}),))


def complete(root: Path, task: str = "An earlier question", answer: str = "Its answer.") -> Run:
    """Complete a turn with a file."""
    model = ScriptedModel(writes("early.md"), Answer(answer))
    return finish(begin(root, task, agent_a=model))


def stopped(root: Path, *, task: str = TASK, now: bool = True, reason: str = "") -> Run:
    """A turn that was stopped while agents answered and voted.

    agent_a has answered and voted for agent_b, who has answered and is judging; agent_c is at work:
    a file, and half a thought.
    """
    gate, going = Gate(), Gate()
    a = ScriptedModel(writes("a.md"), Answer(ANSWERS["agent_a"], gate=gate), Vote("agent2"))
    b = ScriptedModel(Answer(ANSWERS["agent_b"]), Turn("Judging ", gate=going))
    c = ScriptedModel(writes("c.md"), Turn(HALF, gate=going))
    run = begin(root, task, agent_a=a, agent_b=b, agent_c=c)
    wait_until(lambda: run.view.agents["agent_b"].answers)
    gate.open()
    wait_until(lambda: run.view.agents["agent_a"].vote)
    going.wait_reached(2)
    run.stop(now=now, reason=reason)
    going.open()
    return finish(run)


def stopped_early(root: Path, text: str = "") -> Run:
    """Stop a turn of one agent before it has an answer or a file."""
    gate = Gate()
    run = begin(root, agent_a=ScriptedModel(Turn(text, gate=gate)))
    gate.wait_reached()
    run.stop(now=True)
    return finish(run)


def go_on(
    root: Path, *turns: Turn, task: str = "And now?", trust: bool = False
) -> tuple[Run, ScriptedModel]:
    """Start the last session's next turn with a new agent."""
    model = ScriptedModel(*turns, Answer("Done."))
    team = scripted_team(None, newcomer=model)
    options = RunOptions(session_root=root, trust=trust)
    return finish(nb_agents.start(task, team, continue_=True, options=options)), model


def partial_answers(path: Path) -> dict[str, dict[str, Any]]:
    """Return the content of a turn's partial_answers.json."""
    return dict(json.loads((path / "partial_answers.json").read_text()))


def files_below(path: Path) -> dict[str, str]:
    """Return all files below a directory with their texts."""
    found = sorted(p for p in path.rglob("*") if p.is_file())
    return {p.relative_to(path).as_posix(): p.read_text() for p in found}


def session_in(root: Path) -> Session:
    return load_session(root / SESSION)
