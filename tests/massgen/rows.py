"""Tables of what others say about their agents, each row with a check against ours.

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
from nb_agents.models.backend import Backend
from nb_agents.runs.run import Run
from nb_agents.session.history import Session, load_session
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.model_server import wait_until
from tests.team_kit import finish

SESSION = "s"
TASK = "Which cache?"
# The longest of the answers is not the one with most votes.
ANSWERS = {"agent_a": "A's answer, which is much longer than the other.", "agent_b": "B's answer."}
HALF = "Half a thought "


@dataclass(frozen=True)
class Row:
    """One row: what is said, and the check that it holds here."""

    name: str
    says: str
    check: Callable[..., None]

    def hold(self, *stage: Any) -> None:
        """Check it; a failure says which statement does not hold."""
        try:
            self.check(*stage)
        except BaseException as exc:
            exc.add_note(f"Statement: {self.says}")
            raise


class Table:
    """Rows, in the order in which they are written down.

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
        """Make a test of each row; it is given as ``row``."""
        return pytest.mark.parametrize("row", self.rows, ids=lambda row: row.name)


def begin(root: Path, task: str = TASK, session: str = SESSION, **models: Backend) -> Run:
    """Start a turn of the session."""
    return nb_agents.start(
        task, scripted_team(None, **models), session, options=RunOptions(session_root=root)
    )


def writes(name: str, content: str = "kept") -> Turn:
    return Turn(calls=(Call("write_file", {"path": name, "content": content}),))


def complete(root: Path, task: str = "An earlier question", answer: str = "Its answer.") -> Run:
    """A turn that came to its end, with a file."""
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
    """A turn of one agent that was stopped before it had an answer or a file."""
    gate = Gate()
    run = begin(root, agent_a=ScriptedModel(Turn(text, gate=gate)))
    gate.wait_reached()
    run.stop(now=True)
    return finish(run)


def go_on(
    root: Path, *turns: Turn, task: str = "And now?", trust: bool = False
) -> tuple[Run, ScriptedModel]:
    """The next turn of the session used last, by an agent that was not there before."""
    model = ScriptedModel(*turns, Answer("Done."))
    team = scripted_team(None, newcomer=model)
    options = RunOptions(session_root=root, trust=trust)
    return finish(nb_agents.start(task, team, continue_=True, options=options)), model


def partial_answers(path: Path) -> dict[str, dict[str, Any]]:
    """What a turn's partial_answers.json says."""
    return dict(json.loads((path / "partial_answers.json").read_text()))


def files_below(path: Path) -> dict[str, str]:
    """All files below a directory, with their texts."""
    found = sorted(p for p in path.rglob("*") if p.is_file())
    return {p.relative_to(path).as_posix(): p.read_text() for p in found}


def session_in(root: Path) -> Session:
    return load_session(root / SESSION)
