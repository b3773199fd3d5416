"""What ``%agents VERB`` does with whole sessions on disk."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from nb_agents.jupyter import text
from nb_agents.jupyter.ipython import argument, arguments, display
from nb_agents.jupyter.panel import shown_path
from nb_agents.jupyter.tables import show_table
from nb_agents.receipt import total_cost
from nb_agents.session.history import Session, load_session
from nb_agents.session.layout import find_session, session_root, sessions_by_use
from nb_agents.session.manage import delete_session, export_session, rename_session

__all__ = ["SESSION_VERBS", "options_option", "root_option", "tools_option"]

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
    rows = [_row(load_session(path)) for path in sessions_by_use(root)]
    heads = ("session", "turns", "last turn", "used", "tokens", "cost", "task")
    show_table(heads, rows, f"No sessions in {shown_path(root)}. %%agents begins one.")


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
    _say(f"Wrote {shown_path(made)} ({text.size(made.stat().st_size)}).")


@arguments("agents delete")
@_session
@argument("--yes", action="store_true", help="don't ask")
@root_option
def delete(ip: Any, args: Any) -> None:
    """Delete a session and all its files, after asking."""
    path = _find(args)
    turns = len(load_session(path).turns)
    question = f"Delete session {path.name} ({turns} turn(s)) and all its files? [y/N] "
    if not args.yes and input(question).strip().lower() not in ("y", "yes"):
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


def _find(args: Any) -> Path:
    return find_session(session_root(args.session_root), args.session)


def _say(sentence: str) -> None:
    display({"text/plain": sentence}, raw=True)


def _row(session: Session) -> tuple[str, ...]:
    last = session.turns[-1].view
    agents = [a for turn in session.turns for a in turn.view.agents.values()]
    used = datetime.fromtimestamp(last.last_at or session.path.stat().st_mtime)
    costs = [total_cost(turn.view) for turn in session.turns]
    known = [c for c in costs if c is not None]
    return (
        session.path.name,
        str(len(session.turns)),
        session.turns[-1].state,
        f"{used:%Y-%m-%d %H:%M}",
        text.tokens(sum(a.tokens for a in agents)),
        text.cost(sum(known)) if len(known) == len(costs) and any(known) else "unknown",
        text.clip(last.task, 60),
    )
