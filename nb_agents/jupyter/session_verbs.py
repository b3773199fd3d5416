"""What ``%agents VERB`` does with whole sessions on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nb_agents.disk.entry import in_words
from nb_agents.errors import UserError
from nb_agents.jupyter import text
from nb_agents.jupyter.ipython import argument, arguments, display
from nb_agents.jupyter.panel import shown_path
from nb_agents.jupyter.tables import show_table
from nb_agents.jupyter.waiting import question
from nb_agents.receipt import total_cost
from nb_agents.session.history import PastTurn, Session, load_session, load_turn
from nb_agents.session.layout import (
    TurnPaths,
    find_session,
    session_root,
    sessions_in,
    turns_of,
)
from nb_agents.session.manage import delete_session, export_session, rename_session
from nb_agents.session.views import read_json
from nb_agents.terminal import without_controls

__all__ = [
    "SESSION_VERBS",
    "listed",
    "options_option",
    "root_option",
    "tell_of_dead_turns",
    "tools_option",
]

logger = logging.getLogger("nb_agents")

tools_option = argument(
    "--tools", metavar="F,G", help="functions of the notebook that the agents may call"
)
options_option = argument(
    "--options", metavar="NAME", help="a variable with RunOptions: retries, stops, approvals"
)
root_option = argument("--session-root", metavar="DIR", help="where sessions are")
_session = argument("session", metavar="SESSION", help="the session's id")


@arguments("agents sessions")
@root_option
def sessions(ip: Any, args: Any) -> None:
    """List the sessions on disk, the one used last first."""
    root = session_root(args.session_root)
    found = sessions_in(root)
    rows: list[tuple[str, ...]] = []
    said = [str(each) for each in found.unreadable]
    for path in found.by_use:
        with _alone(path, said):
            session = load_session(path)
            rows.append(listed(session))
            said += _unread(session.turns)
    if rows or not said:
        heads = ("session", "turns", "last turn", "used", "tokens", "cost", "task")
        show_table(heads, rows, f"No sessions in {shown_path(root)}. %%agents begins one.")
    if said:
        _say("\n".join(said))


@arguments("agents rename")
@_session
@argument("name", metavar="NAME", help="its new id")
@root_option
def rename(ip: Any, args: Any) -> None:
    """Give a session another name."""
    target = rename_session(_find(args), args.name)
    _say(f"Session {args.session} is {target.name} now.")


@arguments("agents export")
@_session
@argument("file", nargs="?", metavar="FILE", help="the zip (default: SESSION.zip here)")
@root_option
def export(ip: Any, args: Any) -> None:
    """Put a session into a zip."""
    made = export_session(_find(args), args.file)
    size = text.size(made.path.stat().st_size)
    left_out = f" Left out: {in_words(made.left_out)}." if made.left_out else ""
    _say(f"Wrote {shown_path(made.path)} ({size}).{left_out}")


@arguments("agents delete")
@_session
@argument("--yes", action="store_true", help="don't ask")
@root_option
def delete(ip: Any, args: Any) -> None:
    """Delete a session and all its files, after asking."""
    path = _find(args)
    turns = len(load_session(path).turns)
    question = f"Delete session {path.name} ({turns} turn(s)) and all its files? [y/N] "
    if not args.yes and input(without_controls(question)).strip().lower() not in ("y", "yes"):
        _say("Nothing was deleted.")
        return
    delete_session(path)
    _say(f"Session {path.name} is deleted.")


SESSION_VERBS: dict[str, Callable[[Any, Any], None]] = {
    "sessions": sessions,
    "rename": rename,
    "export": export,
    "delete": delete,
}


def tell_of_dead_turns() -> None:
    """Say which turns were cut off when their kernel died; reading them mends their files."""
    found = sessions_in(session_root())
    said = [str(each) for each in found.unreadable]
    for path in found.by_use:
        with _alone(path, said):
            last = turns_of(path)[-1]
            if _never_ended(last) and not last.is_live():
                said.append(_died(load_turn(last)))
    for sentence in said:
        _say(sentence)


def _died(turn: PastTurn) -> str:
    name = turn.paths.session
    go_on = f"%agents resume {name}" if turn.view.recipe else "%%agents --continue"
    said = (
        f"Incomplete turn {name}/{turn.paths.number}: its kernel died. Kept: {_kept(turn)}. "
        f"`%agents show {name}` shows it, `{go_on}` goes on."
    )
    return " ".join([said, *map(question, turn.view.gates.values()), *_unread([turn])])


def _never_ended(paths: TurnPaths) -> bool:
    data = read_json(paths.metadata)
    if not data:
        return os.path.lexists(paths.journal)
    return data.get("run_status") in ("pending", "in-progress", "awaiting")


def _kept(turn: PastTurn) -> str:
    if turn.view.recipe:
        steps = [s for s in turn.view.steps.values() if s.unit in ("agent", "bash")]
        done = sum(s.status == "ok" for s in steps)
        return f"{done} step(s), {turn.view.file_count or 0} file(s)"
    agents = turn.view.agents.values()
    answers, partial = sum(1 for a in agents if a.answers), sum(1 for a in agents if a.unsubmitted)
    return f"{answers} answer(s), {partial} partial text(s), {turn.view.file_count or 0} file(s)"


@contextmanager
def _alone(path: Path, said: list[str]) -> Iterator[None]:
    """Let a session that can't be shown cost no other one: a sentence tells about it."""
    try:
        yield
    except UserError as exc:
        said.append(str(exc))
    except Exception as exc:  # a defect of ours, which must not hide all sessions until it is gone
        logger.exception("session %s can't be shown", path.name)
        said.append(f"Session {path.name!r} can't be shown: {type(exc).__name__}: {exc}.")


def _unread(turns: Sequence[PastTurn]) -> list[str]:
    """Say what of some turns could not be read, in a sentence."""
    found = [f"{t.paths.session}/{t.paths.number}: {w}" for t in turns for w in t.warnings]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return [f"Not read: {found[0]}{more}."] if found else []


def _find(args: Any) -> Path:
    return find_session(session_root(args.session_root), args.session)


def _say(sentence: str) -> None:
    display({"text/plain": sentence})


def listed(session: Session) -> tuple[str, ...]:
    """Make the row of a session: its name, turns, state, last use, tokens, cost and task."""
    last = session.turns[-1].view
    agents = [a for turn in session.turns for a in turn.view.agents.values()]
    # A turn without a journal tells neither.
    is_known = any(turn.view.seq for turn in session.turns)
    costs = [total_cost(turn.view) for turn in session.turns]
    known = [c for c in costs if c is not None]
    return (
        session.path.name,
        str(len(session.turns)),
        session.turns[-1].state,
        text.when(last.last_at or last.ended_at or 0.0),
        text.tokens(sum(a.tokens for a in agents)) if is_known else "unknown",
        text.cost(sum(known)) if len(known) == len(costs) and any(known) else "unknown",
        text.clip(last.task, 60),
    )
