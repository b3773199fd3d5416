"""Comparing two turns, such as two branches of one: answers side by side, votes, files, cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import printable_name
from nb_agents.presentation import text
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.lookup import find_turn
from nb_agents.verbs.verb import Caller, Outcome
from nb_agents.view.receipt import total_cost

MAX_CELL = 160
"""Characters of an answer; the turn's card has it all."""


def diff(root: Path, caller: Caller, *, first: str, second: str) -> Outcome:
    """Compare two turns: answers side by side, votes, files and cost.

    Args:
        root: The session root.
        caller: Who asks.
        first: SESSION/TURN, or SESSION for its last turn.
        second: The other one.

    Raises:
        UserError: There is no such turn.
    """
    turns = [load_turn(find_turn(root, name)) for name in (first, second)]
    names = [f"{turn.paths.session}/{turn.paths.number}" for turn in turns]
    rows = [row for row in _rows(*turns) if any(row[1:])]
    return Outcome("", {}, ("", *names), [*rows, *_files(*turns)])


def _rows(a: PastTurn, b: PastTurn) -> Iterator[tuple[str, ...]]:
    yield "state", a.state, b.state
    yield "goes back to", _origin(a), _origin(b)
    yield "you said", *("; ".join(turn.view.said) for turn in (a, b))
    for agent in dict.fromkeys([*a.view.agents, *b.view.agents]):
        yield f"answer of {agent}", *(_answer(turn, agent) for turn in (a, b))
        yield f"vote of {agent}", *(_vote(turn, agent) for turn in (a, b))
    yield "result", *(text.clip(turn.view.answer, MAX_CELL) for turn in (a, b))
    for output in dict.fromkeys([*a.view.outputs, *b.view.outputs]):
        outputs = (str(turn.view.outputs.get(output, "")) for turn in (a, b))
        yield f"output {output}", *(text.clip(each, MAX_CELL) for each in outputs)
    yield "tokens", *(text.tokens(turn.view.tokens) for turn in (a, b))
    yield "cost", *(_cost(turn) for turn in (a, b))


def _origin(turn: PastTurn) -> str:
    view = turn.view
    return f"event {view.point} of turn {view.resumes}" if view.point else ""


def _answer(turn: PastTurn, agent: str) -> str:
    known = turn.view.agents.get(agent)
    return text.clip(known.answer or known.unsubmitted, MAX_CELL) if known else ""


def _vote(turn: PastTurn, agent: str) -> str:
    known = turn.view.agents.get(agent)
    return known.vote.target if known and known.vote else ""


def _cost(turn: PastTurn) -> str:
    known = total_cost(turn.view)
    return "" if known is None else text.cost(known)


def _files(a: PastTurn, b: PastTurn) -> Iterator[tuple[str, ...]]:
    """Yield a row for each file that one lacks, or that holds something else there."""
    first, second = ({f"{f.agent}/{f.path}": f.size for f in turn.view.files} for turn in (a, b))
    here, there = _by_name(a), _by_name(b)
    for name in sorted({*first, *second}):
        if name in here and name in there and _is_same(here[name], there[name]):
            continue
        sizes = (text.size(each[name]) if name in each else "—" for each in (first, second))
        yield f"file {name}", *sizes


def _by_name(turn: PastTurn) -> dict[str, Path]:
    """Return where each file is, by the name that is printed."""
    root = turn.paths.workspaces
    try:
        with Directory.at(root) as directory:
            return {printable_name(entry.path): root / entry.path for entry in directory.walk()}
    except OSError:
        return {}


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.stat().st_size == b.stat().st_size and a.read_bytes() == b.read_bytes()
    except OSError:
        return False
