"""Compares two turns, such as two forks of a turn: answers side by side, votes, files and cost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import printable_name
from nb_agents.nouns import dollars, token_count
from nb_agents.presentation import text
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.layout import session_root
from nb_agents.session.lookup import find_turn, parse_reference
from nb_agents.verbs.outcome import Table
from nb_agents.verbs.verb import Caller
from nb_agents.view.receipt import total_cost

MAX_CELL = 160
"""Maximum number of characters shown of an answer. The turn's card shows the whole answer."""
_CHUNK_BYTES = 1_000_000


def diff(root: Path, caller: Caller, *, first: str, second: str) -> Table:
    """Compare two turns: answers, votes, files and cost.

    Args:
        root: The session root.
        caller: The user interface that makes the request.
        first: SESSION/TURN, SESSION for its last turn, or the path of either.
        second: The turn to compare it with, in the same format.

    Raises:
        UserError: A turn does not exist.
    """
    named = [parse_reference(name, caller.root) for name in (first, second)]
    turns = [load_turn(find_turn(session_root(each.root or root), each.name)) for each in named]
    names = [f"{turn.paths.session}/{turn.paths.number}" for turn in turns]
    rows = [row for row in _rows(*turns) if any(row[1:])]
    return Table(("", *names), [*rows, *_files(*turns)])


def _rows(a: PastTurn, b: PastTurn) -> Iterator[tuple[str, ...]]:
    yield "state", a.state, b.state
    yield "rewinds to", _origin(a), _origin(b)
    yield "your message", *("; ".join(turn.view.said) for turn in (a, b))
    for agent in dict.fromkeys([*a.view.agents, *b.view.agents]):
        yield f"answer of {agent}", *(_answer(turn, agent) for turn in (a, b))
        yield f"vote of {agent}", *(_vote(turn, agent) for turn in (a, b))
    yield "result", *(text.clip(turn.view.answer, MAX_CELL) for turn in (a, b))
    for output in dict.fromkeys([*a.view.outputs, *b.view.outputs]):
        outputs = (str(turn.view.outputs.get(output, "")) for turn in (a, b))
        yield f"output {output}", *(text.clip(each, MAX_CELL) for each in outputs)
    yield "tokens", *(token_count(turn.view.tokens, turn.view.is_estimated) for turn in (a, b))
    yield "cost", *(_cost(turn) for turn in (a, b))


def _origin(turn: PastTurn) -> str:
    view = turn.view
    return f"event {view.point} of turn {view.resumes}" if view.point else ""


def _answer(turn: PastTurn, agent: str) -> str:
    view = turn.view.agents.get(agent)
    return text.clip(view.answer or view.unsubmitted, MAX_CELL) if view else ""


def _vote(turn: PastTurn, agent: str) -> str:
    view = turn.view.agents.get(agent)
    return view.vote.target if view and view.vote else ""


def _cost(turn: PastTurn) -> str:
    return dollars(total_cost(turn.view))


def _files(a: PastTurn, b: PastTurn) -> Iterator[tuple[str, ...]]:
    """Yield a row for each file that is missing from one turn or differs between the turns."""
    first, second = ({f"{f.agent}/{f.path}": f.size for f in turn.view.files} for turn in (a, b))
    paths_a, paths_b = _by_name(a), _by_name(b)
    roots = a.paths.workspaces, b.paths.workspaces
    for name in sorted({*first, *second}):
        paths = paths_a.get(name), paths_b.get(name)
        if paths[0] and paths[1] and _is_same(roots, (paths[0], paths[1])):
            continue
        sizes = (text.size(each[name]) if name in each else "—" for each in (first, second))
        yield f"file {name}", *sizes


def _by_name(turn: PastTurn) -> dict[str, str]:
    """Return the paths of the files in a turn's workspaces, by their printable names."""
    try:
        with Directory.at(turn.paths.workspaces) as directory:
            files = (entry for entry in directory.walk() if entry.kind == "file")
            return {printable_name(entry.path): entry.path for entry in files}
    except OSError:
        return {}


def _is_same(roots: tuple[Path, Path], paths: tuple[str, str]) -> bool:
    """Return whether two files have the same content. Agents may have replaced them with links."""
    try:
        with ExitStack() as stack:
            files = []
            for root, path in zip(roots, paths, strict=True):
                folder = stack.enter_context(Directory.at(root, follows_links=False))
                files.append(stack.enter_context(folder.open(path, follow=False)))
            return _has_same_content(*files)
    except OSError:
        return False


def _has_same_content(one: BinaryIO, other: BinaryIO) -> bool:
    sizes = [os.fstat(file.fileno()).st_size for file in (one, other)]
    if sizes[0] != sizes[1]:
        return False
    while (data := one.read(_CHUNK_BYTES)) == other.read(_CHUNK_BYTES):
        if not data:
            return True
    return False
