"""The command line: ``nb-agents``, with the options and words of the cells.

Exit codes: 0 complete, 1 failed, 2 usage, 3 incomplete.
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nb_agents.cancel import StopResult
from nb_agents.chat import STOPPING, Chat
from nb_agents.config.team import TeamSpec, chosen_team
from nb_agents.config.uploads import Mentions, mentions
from nb_agents.errors import RunCancelled, RunFailed, UnknownRunError, UserError
from nb_agents.jupyter import text
from nb_agents.jupyter.cards import card_bundle, card_text
from nb_agents.options import RunOptions
from nb_agents.runs.file_report import check_file
from nb_agents.runs.registry import find_known, runs, start
from nb_agents.runs.resume import preview, resume
from nb_agents.runs.run import Run
from nb_agents.runs.status import failure_of, log_lines
from nb_agents.runs.team_report import AgentReport
from nb_agents.session.history import load_session
from nb_agents.session.journal import follow
from nb_agents.session.layout import LISTED, find_session, session_root, sessions_in
from nb_agents.session.manage import export_session
from nb_agents.sweeps.manifest import resolve_sweep, stop_sweep
from nb_agents.sweeps.prune import PruneSpec, parse_age, prune
from nb_agents.unicode import without_controls
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunView

__all__ = ["app", "main"]

COMPLETE, FAILED, USAGE, INCOMPLETE = 0, 1, 2, 3

_COMMANDS = {
    "`%agents`": "`nb-agents runs`",
    "%%agents": "nb-agents run",
    "%agents": "nb-agents",
    "%env ": "export ",
}
"""What a remedy names, and what that is in a terminal; the first that fits counts."""

MAX_WIDTH = 1000

app = typer.Typer(
    help="Teams of LLM agents that you can stop at any moment without losing anything.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _known_sessions() -> list[str]:
    return [path.name for path in sessions_in(session_root()).by_use]


def _known_runs() -> list[str]:
    live = [f"{run.session}/{run.turn}" for run in runs()]
    return [*live, *_known_sessions()]


RunName = Annotated[
    str,
    typer.Argument(
        help="Run, session or session/turn; by default the only one.", autocompletion=_known_runs
    ),
]
SomeRun = Annotated[
    str, typer.Argument(help="Session or session/turn.", autocompletion=_known_runs)
]
Root = Annotated[Path | None, typer.Option("--session-root", help="Where sessions are.")]
Config = Annotated[str | None, typer.Option("--config", "-c", help="Team file.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="openai:gpt-5-mini")]
Bundles = Annotated[list[str] | None, typer.Option("--bundle", help="NAME=DIR")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE")]
Session = Annotated[
    str | None,
    typer.Option("--session", "-s", help="Its id.", autocompletion=_known_sessions),
]
SomeSession = Annotated[
    str, typer.Argument(help="By default the one used last.", autocompletion=_known_sessions)
]
Continue = Annotated[bool, typer.Option("--continue", help="Next turn of a session.")]
Timeout = Annotated[float | None, typer.Option("--orchestrator-timeout", help="Seconds.")]
Detach = Annotated[bool, typer.Option("--detach", help="In a process of its own; returns at once.")]
ClusterAddress = Annotated[
    str | None, typer.Option("--cluster", help="Scheduler of a Dask cluster, or local:N.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def main() -> None:
    """Run the command line; a person's mistake is one sentence and no traceback."""
    # A search for cycles in all that was loaded would be a quarter of a short command's time.
    atexit.register(gc.freeze)
    try:
        app()
    except UserError as exc:
        typer.echo(without_controls(_in_terminal(str(exc))), err=True)
        sys.exit(USAGE)


def _in_terminal(sentence: str) -> str:
    """Name the commands of a terminal where a sentence names those of a notebook."""
    for cell, command in _COMMANDS.items():
        sentence = sentence.replace(cell, command)
    return sentence


@app.command("run")
def run_(
    task: Annotated[
        str, typer.Argument(help="What is asked; @path lets it be read, - takes the input.")
    ] = "",
    config: Config = None,
    model: Model = None,
    recipe: Annotated[str | None, typer.Option("--recipe", "-r", help="Recipe file.")] = None,
    settings: Settings = None,
    bundles: Bundles = None,
    session: Session = None,
    continue_: Continue = False,
    from_turn: Annotated[int | None, typer.Option("--from", help="With --continue.")] = None,
    timeout: Timeout = None,
    root: Root = None,
    skip_unsupported: Annotated[bool, typer.Option("--skip-unsupported")] = False,
    debug: Annotated[bool, typer.Option("--debug")] = False,
    detach: Detach = False,
    cluster: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Start a team on a task, or on a recipe, and wait for it. Ctrl+C stops it; twice: at once."""
    from nb_agents.jupyter.recipe_verbs import context_of  # brings IPython along

    # What is piped in nobody typed.
    named = Mentions(sys.stdin.read(), ()) if task == "-" else mentions(task)
    options = RunOptions(
        session_root=root,
        timeout=timeout,
        from_turn=from_turn,
        skip_unsupported=skip_unsupported,
        debug=debug,
        detach=detach or None,
        cluster=cluster,
        context_paths=named.paths,
    )
    run = start(
        named.task,
        chosen_team(config, model, bundles or []),
        session,
        continue_,
        recipe=recipe,
        context=context_of("", settings or [], {}) if recipe or settings else None,
        options=options,
    )
    _leave(run, as_json)


@app.command("chat")
def chat(
    config: Config = None,
    model: Model = None,
    session: Session = None,
    continue_: Continue = False,
    timeout: Timeout = None,
    root: Root = None,
) -> None:
    """Talk with a team, turn by turn. What is typed while it works is said to it; /quit ends."""
    team = chosen_team(config, model)
    if isinstance(team, str):
        TeamSpec.from_file(team)  # a mistake in it is told before the first prompt
    begun: list[str] = []

    def begin(task: str) -> Run:
        named = mentions(task)
        options = RunOptions(session_root=root, timeout=timeout, context_paths=named.paths)
        name = begun[-1] if begun else session
        run = start(named.task, team, name, continue_ and not begun, options=options)
        begun.append(run.session)
        return run

    def ending(run: Run) -> str:
        is_told = run.status == "completed" and isinstance(run.result, str)
        return str(run.result) if is_told else card_text(run.view, str(run.path), run.preview)

    Chat(begin, ending, _say).talk(sys.stdin)


@app.command("resume")
def resume_(
    session: SomeSession = "",
    config: Config = None,
    recipe: Annotated[str | None, typer.Option("--recipe", "-r", help="A changed recipe.")] = None,
    settings: Settings = None,
    timeout: Timeout = None,
    root: Root = None,
    is_preview: Annotated[bool, typer.Option("--preview", help="Only say what would run.")] = False,
    detach: Detach = False,
    cluster: ClusterAddress = None,
    as_json: Json = False,
) -> None:
    """Go on with an incomplete turn: nothing that finished runs again."""
    from nb_agents.jupyter.recipe_verbs import context_of  # brings IPython along

    context = context_of("", settings or [], {})
    if is_preview:
        told = preview(session, config, recipe=recipe, context=context, session_root=root)
        _say(str(told))
        return
    options = RunOptions(session_root=root, timeout=timeout, detach=detach or None, cluster=cluster)
    run = resume(session, config, recipe=recipe, context=context, options=options)
    _leave(run, as_json)


@app.command("demo")
def demo(detach: Detach = False, root: Root = None, as_json: Json = False) -> None:
    """Let three demo agents answer: offline, free, no key needed."""
    options = RunOptions(session_root=root, detach=detach or None)
    _leave(start("Compare three ways to cache embeddings.", options=options), as_json)


@app.command("runs")
def runs_(as_json: Json = False) -> None:
    """List the live runs of this user."""
    rows = [(r.session, str(r.turn), text.chip(r.view), r.where, r.view.task) for r in runs()]
    _table(("session", "turn", "status", "where", "task"), rows, as_json, "Nothing is running.")


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
    shown = found.by_use if every else found.by_use[:LISTED]
    rows = [text.listed(load_session(path)) for path in shown]
    heads = ("session", "turns", "last turn", "used", "tokens", "cost", "task")
    _table(heads, rows, as_json, "No sessions.")
    if more := text.older(len(found.by_use) - len(shown)):
        typer.echo(more, err=True)
    for unreadable in found.unreadable:
        typer.echo(without_controls(str(unreadable)), err=True)


@app.command("show")
def show(
    name: RunName = "",
    html: Annotated[bool, typer.Option("--html", help="The card as HTML.")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show a turn: what was answered or kept, and how to go on."""
    run = _find(name, root)
    if as_json:
        typer.echo(json.dumps(_told(run), ensure_ascii=False))
    elif html:
        typer.echo(card_bundle(run.view, str(run.path), run.timeline, run.preview)["text/html"])
    else:
        _say(card_text(run.view, str(run.path), run.preview))


@app.command("follow")
def follow_(name: RunName = "", root: Root = None, as_json: Json = False) -> None:
    """Tell what happens in a turn, line by line, until it is over. Ctrl+C ends this alone."""

    async def tell() -> None:
        async for event in follow(_find(name, root).path):
            if as_json:
                typer.echo(json.dumps(asdict(event), default=str))
            else:
                for line in log_lines([event]):
                    typer.echo(line)

    try:
        anyio.run(tell)
    except KeyboardInterrupt:
        typer.echo("The run goes on.", err=True)


@app.command("stop")
def stop(
    name: RunName = "",
    now: Annotated[bool, typer.Option("--now", help="Cut the calls in flight.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", help="Stop this agent alone.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Stop a run or a sweep, wherever it lives."""
    sweep = None if agent else resolve_sweep(name, session_root(root))
    if sweep is not None and stop_sweep(sweep, now, "cli", reason):
        answer = {"changed": True, "status": "asked", "sweep": sweep.name}
        _say(json.dumps(answer) if as_json else f"Sweep {sweep.name} is asked to stop.")
        return
    run = _find(name, root)
    result = run.stop(now, agent, reason, source="cli")
    if as_json:
        typer.echo(json.dumps({**asdict(result), "run": run.id}))
    else:
        _say(_stopped(run, result))


def _stopped(run: Run, result: StopResult) -> str:
    said = {
        "finished": f"Run {run.id} is over already ({run.status}); nothing was changed.",
        "asked": f"Run {run.id} is asked to stop; it will as soon as it can be reached.",
        "vetoed": f"Run {run.id} goes on: its before_cancel hook vetoed the stop. Try --now.",
        "stopping": f"Run {run.id} is stopping; calls in flight may finish. --now cuts them.",
        "stopping-now": f"Run {run.id} is stopping now.",
    }
    return said.get(result.status, result.status)


def _verb(name: str, act: Callable[[Run, str], object], said: str, has_text: bool) -> None:
    """Add a command that asks something of a run."""

    def with_text(
        name: SomeRun, text: Annotated[str, typer.Argument()] = "", root: Root = None
    ) -> None:
        act(_find(name, root), text)
        _say(said)

    def without_text(name: RunName = "", root: Root = None) -> None:
        act(_find(name, root), "")
        _say(said)

    app.command(name, help=_HELP[name])(with_text if has_text else without_text)


_HELP = {
    "say": "Add a text to a run's task while it works.",
    "approve": "Approve what a run waits for; a message is given to it.",
    "deny": "Deny what a run waits for; a message is given to it.",
    "answer": "Answer the question that a run waits with.",
    "pause": "Let a run hold still at its next boundary.",
    "continue": "Let a paused run go on.",
}
_verb("say", lambda run, said: run.say(said), "Its agents read it with their next request.", True)
_verb("approve", lambda run, said: run.approve(said), "Approved.", True)
_verb("deny", lambda run, said: run.deny(said), "Denied.", True)
_verb("answer", lambda run, said: run.answer(said), "Answered.", True)
_verb("pause", lambda run, _: run.pause(), "Paused: calls in flight finish, none begins.", False)
_verb("continue", lambda run, _: _go_on(run), "It goes on.", False)


@app.command("check")
def check(
    file: Annotated[str, typer.Argument(help="Team file or recipe.")],
    config: Config = None,
    bundles: Bundles = None,
    connects: Annotated[
        bool, typer.Option("--connect", help="Load custom tools and start MCP servers, to try.")
    ] = False,
) -> None:
    """Check a team file or a recipe without running it; exits with 1 if it can't start."""
    told = check_file(file, config, bundles or [], connects=connects)
    if told.agents:
        _table(AgentReport._fields, told.agents, False, "")
    _say(_in_terminal("\n".join(told.lines)))
    sys.exit(COMPLETE if told.can_start else FAILED)


@app.command("export")
def export(
    session: Annotated[str, typer.Argument(autocompletion=_known_sessions)],
    file: Annotated[str | None, typer.Argument(help="By default SESSION.zip here.")] = None,
    root: Root = None,
) -> None:
    """Put a session into a zip."""
    made = export_session(find_session(session_root(root), session), file)
    _say(f"Wrote {made.path}.")


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
        typer.echo(json.dumps({"removed": yes, **asdict(done)}))
    else:
        _say(text.pruned(done, spec))


def _find(name: str, root: Path | None) -> Run:
    """Find a run of whoever's process, or else a turn on disk: by default the last one."""
    try:
        return find_known(name, root)
    except UnknownRunError:
        if name:
            raise
        return find_known(find_session(session_root(root)).name, root)


def _go_on(run: Run) -> None:
    if not run.view.is_paused:
        raise UserError(f"Run {run.id} is not paused; it is {run.status}.")
    run.resume()


def _leave(run: Run, as_json: bool) -> NoReturn:
    """Wait for a run, tell its end and exit accordingly; one that is detached goes on."""
    if run.where and not (run.options.cluster and not run.options.detach):
        hint = f"nb-agents follow {run.id}   nb-agents stop {run.id}"
        typer.echo(json.dumps(_told(run)) if as_json else f"Run {run.id} goes on: {hint}")
        sys.exit(COMPLETE)
    with _telling(run):
        code = _wait(run)
    if as_json:
        typer.echo(json.dumps(_told(run), ensure_ascii=False))
    else:
        _say(card_text(run.view, str(run.path), run.preview))
    sys.exit(code)


def _wait(run: Run) -> int:
    try:
        run.wait()
    except RunCancelled:
        return INCOMPLETE
    except RunFailed:
        return FAILED
    return COMPLETE


@contextmanager
def _telling(run: Run) -> Iterator[None]:
    """Say on the error output how far a run is, and once that its stop was heard."""
    console = Console(stderr=True)
    told: set[str] = set()

    def tell(view: RunView) -> None:
        if view.stop and not view.is_over and STOPPING not in told:
            told.add(STOPPING)
            console.print(Text(STOPPING))
        status.update(Text(_progress(view)))

    with console.status(Text(_progress(run.view))) as status:
        end = run.subscribe(tell)
        try:
            yield
        finally:
            end()


def _progress(view: RunView) -> str:
    doing = [f"{a.id}: {a.phase}" for a in view.agents.values()]
    return without_controls(" · ".join([text.chip(view), view.current_step, *doing]))


def _told(run: Run) -> dict[str, Any]:
    view = run.view
    has_failed = run.status == "failed"
    return {
        "session": run.session,
        "turn": run.turn,
        "status": run.status,
        "where": run.where,
        "task": view.task,
        "result": run.result,
        "failed": failure_of(run.id, view, run.path).reasons if has_failed else {},
        "partial": {a.id: a.unsubmitted for a in view.agents.values() if a.unsubmitted},
        "tokens": sum(a.tokens for a in view.agents.values()),
        "cost": total_cost(view),
        "path": str(run.path),
    }


def _table(
    heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], as_json: bool, empty: str
) -> None:
    rows = list(rows)
    if as_json:
        told = [dict(zip(heads, row, strict=True)) for row in rows]
        typer.echo(json.dumps(told, ensure_ascii=False))
    elif not rows:
        _say(empty)
    else:
        table = Table(box=None)
        for head in heads:
            table.add_column(head, no_wrap=head != "task")  # names are there to be typed
        for row in rows:
            table.add_row(*(Text(without_controls(cell)) for cell in row))
        # A program that reads it wants a row a line.
        Console(width=None if sys.stdout.isatty() else MAX_WIDTH).print(table)


def _say(said: str) -> None:
    typer.echo(without_controls(said))


if __name__ == "__main__":
    main()
