"""The commands on what is on disk: team files, recipes, sessions and sweeps."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nb_agents.cli.application import (
    COMPLETE,
    FAILED,
    Bundles,
    Config,
    File,
    Json,
    Root,
    StoredSession,
    app,
)
from nb_agents.cli.printing import say, say_json, shown, table, warn
from nb_agents.disk.entry import join_names
from nb_agents.launch.file_report import check_file
from nb_agents.launch.team_report import AgentReport
from nb_agents.presentation import text
from nb_agents.presentation.sweep_list import SWEEP_HEADS, sweep_rows
from nb_agents.session.history import load_session
from nb_agents.session.layout import LISTED, session_root, sessions_in
from nb_agents.session.lookup import find_session
from nb_agents.session.manage import delete_session, export_session, rename_session
from nb_agents.sweeps.prune import PruneSpec, parse_age, prune


@app.command("check")
def check(
    file: File,
    config: Config = None,
    bundles: Bundles = None,
    connects: Annotated[
        bool, typer.Option("--connect", help="Load custom tools and start MCP servers, to try.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a team file or a recipe without running it; exits with 1 if it can't start."""
    told = check_file(file, config, bundles or [], connects=connects)
    if as_json:
        agents = [agent._asdict() for agent in told.agents]
        say_json({"can_start": told.can_start, "agents": agents, "lines": told.lines})
    else:
        if told.agents:
            table(AgentReport._fields, told.agents, False, "")
        say("\n".join(told.lines))
    sys.exit(COMPLETE if told.can_start else FAILED)


@app.command("plan")
def plan(file: File, as_json: Json = False) -> None:
    """Show what a recipe would do, without running it; --json has it as a Mermaid diagram, too."""
    from nb_agents.config.recipe import Recipe
    from nb_agents.recipes.check import check
    from nb_agents.recipes.diagram import mermaid

    recipe = Recipe.from_file(file)
    lines = check(recipe).plan
    if as_json:
        say_json({"lines": lines, "mermaid": mermaid(recipe)})
    else:
        say("\n".join(lines))


@app.command("sessions")
def sessions_(
    root: Root = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"And not only the {LISTED} used last.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the sessions on disk, the one used last first."""
    found = sessions_in(session_root(root))
    listed = found.by_use if every else found.by_use[:LISTED]
    rows = [text.listed(load_session(path)) for path in listed]
    heads = ("session", "turns", "last turn", "used", "tokens", "cost", "task")
    table(heads, rows, as_json, "No sessions.")
    if more := text.older(len(found.by_use) - len(listed)):
        warn(more)
    for unreadable in found.unreadable:
        warn(str(unreadable))


@app.command("sweeps")
def sweeps(root: Root = None, as_json: Json = False) -> None:
    """List the sweeps on disk."""
    table(SWEEP_HEADS, sweep_rows(session_root(root)), as_json, "There are no sweeps.")


@app.command("rename")
def rename(
    session: StoredSession,
    name: Annotated[str, typer.Argument(help="Its new id.")],
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Rename a session."""
    path = rename_session(_found(session, root), name)
    if as_json:
        say_json({"session": path.name, "path": path})
    else:
        say(f"Session {session} is {path.name} now.")


@app.command("export")
def export(
    session: StoredSession,
    file: Annotated[str | None, typer.Argument(help="By default SESSION.zip here.")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Put a session into a zip."""
    made = export_session(_found(session, root), file)
    size = made.path.stat().st_size
    if as_json:
        say_json({"path": made.path, "bytes": size, "left_out": made.left_out})
        return
    left_out = f" Left out: {join_names(made.left_out)}." if made.left_out else ""
    say(f"Wrote {made.path} ({text.size(size)}).{left_out}")


@app.command("delete")
def delete(
    session: StoredSession,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Delete a session and all its files, after asking."""
    path = _found(session, root)
    turns = len(load_session(path).turns)
    asked = f"Delete session {path.name} ({turns} turn(s)) and all its files?"
    is_meant = yes or typer.confirm(shown(asked), err=True)
    if is_meant:
        delete_session(path)
    if as_json:
        say_json({"session": path.name, "deleted": is_meant})
    else:
        say(f"Session {path.name} is deleted." if is_meant else "Nothing was deleted.")


@app.command("prune")
def prune_(
    older: Annotated[str, typer.Option("--older", help="Last used longer ago: 12h, 30d, 8w.")],
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Keep answers, metadata and receipts.")
    ] = False,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Those, too, that could be resumed.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove it; without, only say what would go.")
    ] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Remove the sessions, and rows of sweeps, that were not used for long."""
    before = time.time() - parse_age(older)
    spec = PruneSpec(before, keep_answers, incomplete, is_dry_run=not yes)
    done = prune(session_root(root), spec)
    if as_json:
        say_json({"removed": yes, **asdict(done)})
    else:
        say(text.pruned(done, spec))


def _found(name: str, root: Path | None) -> Path:
    return find_session(session_root(root), name)
