"""The commands that start a run, or go on with one, and wait for its end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from nb_agents.cli.application import (
    COMPLETE,
    FAILED,
    INCOMPLETE,
    Bundles,
    ClusterAddress,
    Config,
    Continue,
    Detach,
    Json,
    Model,
    RecipeFile,
    Root,
    Session,
    Settings,
    SomeSession,
    Timeout,
    Trust,
    app,
)
from nb_agents.cli.chat import Chat
from nb_agents.cli.live_view import told_of
from nb_agents.cli.printing import say, say_json, warn
from nb_agents.cli.saving import save
from nb_agents.config.team import TeamSpec, chosen_team
from nb_agents.config.uploads import Mentions, mentions
from nb_agents.errors import RunCancelled, RunFailed
from nb_agents.launch.api import resume, start
from nb_agents.launch.once import once, once_is_default
from nb_agents.launch.resume import preview
from nb_agents.options import RunOptions
from nb_agents.presentation.arguments import context_of
from nb_agents.presentation.asking import TERMINAL, wait_for_gate
from nb_agents.presentation.cards import card_text
from nb_agents.runs.live_runs import begun_runs
from nb_agents.runs.registry import interrupts_press_new
from nb_agents.runs.run import Run
from nb_agents.runs.status import failure_of, result_of
from nb_agents.view.receipt import total_cost

_EXAMPLES = (
    "Examples:",
    'nb-agents run "Compare three caches" -m openai:gpt-5-mini',
    'nb-agents run "Review @src for races" -c team.yaml --orchestrator-timeout 600',
    "git diff | nb-agents run - -c team.yaml --json",
    "nb-agents run -r review.yaml --set depth=3",
    'nb-agents run --continue "Now as a table"',
)


@app.command("run", epilog="\n\n".join(_EXAMPLES))
def run_(
    task: Annotated[
        str, typer.Argument(help="What is asked; @path lets it be read, - takes the input.")
    ] = "",
    config: Config = None,
    model: Model = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    bundles: Bundles = None,
    session: Session = None,
    continue_: Continue = False,
    from_turn: Annotated[int | None, typer.Option("--from", help="With --continue.")] = None,
    timeout: Timeout = None,
    root: Root = None,
    skip_unsupported: Annotated[bool, typer.Option("--skip-unsupported")] = False,
    trust: Trust = False,
    debug: Annotated[bool, typer.Option("--debug")] = False,
    detach: Detach = False,
    cluster: ClusterAddress = None,
    is_once: Annotated[
        bool, typer.Option("--once", help="Show the turn that the same request has had.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="With --once: start it anew.")] = False,
    as_json: Json = False,
) -> None:
    """Start a team on a task, or on a recipe, and wait for it. Ctrl+C stops it; twice: at once."""
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
        trust=trust,
    )
    begin = partial(
        partial(once, fresh=fresh) if is_once or fresh or once_is_default() else start,
        named.task,
        chosen_team(config, model, bundles or []),
        session,
        continue_,
        recipe=recipe,
        context=context_of("", settings or [], {}) if recipe or settings else None,
        options=options,
    )
    work(begin, as_json, detach=detach)


@app.command("chat")
def chat(
    config: Config = None,
    model: Model = None,
    session: Session = None,
    continue_: Continue = False,
    timeout: Timeout = None,
    root: Root = None,
    trust: Trust = False,
) -> None:
    """Talk with a team, turn by turn. What is typed while it works is said to it; /quit ends."""
    team = chosen_team(config, model)
    if isinstance(team, str):
        TeamSpec.from_file(team)  # a mistake in it is told before the first prompt
    begun: list[str] = []

    def begin(task: str) -> Run:
        named = mentions(task)
        options = RunOptions(
            session_root=root, timeout=timeout, context_paths=named.paths, trust=trust
        )
        name = begun[-1] if begun else session
        run = start(named.task, team, name, continue_ and not begun, options=options)
        begun.append(run.session)
        return run

    def ending(run: Run) -> str:
        is_told = run.status == "completed" and isinstance(run.result, str)
        return str(run.result) if is_told else card_of(run)

    Chat(begin, ending, say).talk(sys.stdin)
    if not all(save(run, asks=False) for run in begun_runs()):
        raise typer.Exit(FAILED)


@app.command("resume")
def resume_(
    session: SomeSession = "",
    config: Config = None,
    recipe: RecipeFile = None,
    settings: Settings = None,
    timeout: Timeout = None,
    root: Root = None,
    from_step: Annotated[
        str, typer.Option("--from", help="Step of a recipe that runs again, with all after it.")
    ] = "",
    is_preview: Annotated[bool, typer.Option("--preview", help="Only say what would run.")] = False,
    detach: Detach = False,
    cluster: ClusterAddress = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Go on with an incomplete turn: nothing that finished runs again."""
    context = context_of("", settings or [], {})
    if is_preview:
        told = preview(
            session,
            config,
            recipe=recipe,
            context=context,
            from_step=from_step,
            session_root=root,
        )
        if as_json:
            say_json({**asdict(told), "said": str(told)})
        else:
            say(str(told))
        return
    options = RunOptions(
        session_root=root, timeout=timeout, detach=detach or None, cluster=cluster, trust=trust
    )
    begin = partial(
        resume,
        session,
        config,
        recipe=recipe,
        context=context,
        from_step=from_step,
        options=options,
    )
    work(begin, as_json, detach=detach)


@app.command("demo")
def demo(detach: Detach = False, root: Root = None, as_json: Json = False) -> None:
    """Let three demo agents answer: offline, free, no key needed."""
    options = RunOptions(session_root=root, detach=detach or None)
    begin = partial(start, "Compare three ways to cache embeddings.", options=options)
    work(begin, as_json, detach=detach)


def work(begin: Callable[[], Run], as_json: bool, *, detach: bool = False) -> NoReturn:
    """Begin a run, wait for it, print its end and exit accordingly; one that is detached goes on.

    Args:
        begin: Begins the run.
        as_json: Whether facts are printed, and not words.
        detach: Whether an interrupt is none of its run.
    """
    with nullcontext() if detach else interrupts_press_new():
        run = begin()
        _leave(run, as_json)


def _leave(run: Run, as_json: bool) -> NoReturn:
    if run.where and not (run.options.cluster and not run.options.detach):
        if as_json:
            say_json(facts_of(run))
        else:
            say(f"Run {run.id} goes on: nb-agents follow {run.id}   nb-agents stop {run.id}")
        sys.exit(COMPLETE)
    wait_for_end(run, as_json)


def wait_for_end(run: Run, as_json: bool) -> NoReturn:
    """Show a run until it is over, print its end and exit accordingly."""
    with told_of(run):
        nobody = "" if sys.stdin.isatty() else _stop_when_asked(run)
        code = _wait(run)
    with suppress(typer.Exit):  # the run is what it is, whoever can read of it
        if as_json:
            say_json(facts_of(run))
        else:
            say(card_of(run))
    if nobody:
        warn(nobody)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    sys.exit(code if save(run, asks=asks) else FAILED)


def _stop_when_asked(run: Run) -> str:
    """Wait for the end; a gate that waits for a person, who is not there, stops the run.

    Returns:
        What the person should know of that, or "".
    """
    gate = wait_for_gate(run)
    if gate is None:
        return ""
    run.stop(reason=f"nobody is there to answer {gate.address!r}", source="approval")
    return (
        "Nobody can be asked, as the input is no terminal, so the run was stopped. "
        f"`nb-agents resume {run.session}` asks again in a terminal, and waits with --detach; a "
        "gate with a timeout decides by itself."
    )


def _wait(run: Run) -> int:
    try:
        run.wait()
    except RunCancelled:
        return INCOMPLETE
    except RunFailed:
        return FAILED
    return COMPLETE


def card_of(run: Run) -> str:
    """Return the card of a run, as a terminal's text; whole, as it may be all that is left."""
    return card_text(run.view, str(run.path), run.preview, TERMINAL, limit=sys.maxsize)


def facts_of(run: Run) -> dict[str, Any]:
    """Return what ``--json`` has of a run."""
    view = run.view
    has_failed = run.status == "failed"
    return {
        "session": run.session,
        "turn": run.turn,
        "status": run.status,
        "where": run.where,
        "task": view.task,
        "result": result_of(view),
        "failed": failure_of(run.id, view, run.path).reasons if has_failed else {},
        "partial": {a.id: a.unsubmitted for a in view.agents.values() if a.unsubmitted},
        "asks": {gate.address: gate.prompt for gate in view.gates.values()},
        "tokens": sum(a.tokens for a in view.agents.values()),
        "cost": total_cost(view),
        "path": str(run.path),
    }
