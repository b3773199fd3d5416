"""Starts runs from parsed arguments, and implements the verbs that continue a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_agents.config.team import add_object_agents, team_from_options
from nb_agents.config.uploads import Mentions
from nb_agents.errors import UserError
from nb_agents.launch.api import resume as resume_turn
from nb_agents.launch.begin import begin_forks
from nb_agents.launch.group_lookup import find_group
from nb_agents.launch.once import CachedRun, once_is_default, resume_once, run_once, start_new
from nb_agents.launch.resume import ResumeRequest
from nb_agents.launch.rewind import check_times
from nb_agents.launch.rewind_plan import TurnPrefix
from nb_agents.launch.run import rewind_request
from nb_agents.launch.start import StartRequest
from nb_agents.nouns import count
from nb_agents.options import RunOptions
from nb_agents.presentation import text
from nb_agents.presentation.arguments import recipe_context
from nb_agents.session.layout import TurnPaths
from nb_agents.signatures import arguments_of
from nb_agents.tools.functions import find_functions
from nb_agents.verbs.on_runs import status_of_work
from nb_agents.verbs.outcome import NewGroup, NewRun, Reply, Table, Work
from nb_agents.verbs.parameters import OPTIONS, split_options
from nb_agents.verbs.targets import target_of
from nb_agents.verbs.verb import Caller
from nb_agents.view.points import Checkpoint

if TYPE_CHECKING:
    from nb_agents.launch.rewind_plan import RewindPreview

MAX_LISTED = 60
"""Maximum number of checkpoints in a list: the latest ones."""
_FLAGS = {"session_root": "--session-root"} | {
    each.name: (each.flags or (f"--{each.name.replace('_', '-')}",))[0] for each in OPTIONS
}
"""The flag that sets each option, by the option's name."""


def resume(
    root: Path,
    caller: Caller,
    *,
    settings: Sequence[str] = (),
    tools: str = "",
    preview: bool = False,
    wait: bool = False,
    retry_failed: bool = False,
    **arguments_by_name: Any,
) -> Reply | NewRun | NewGroup:
    """Resume an incomplete turn or sweep. Finished work is not repeated.

    Args:
        root: The session root.
        caller: The user interface that makes the request.
        settings: Values of the recipe, as ``NAME=VALUE``.
        tools: Names of functions in the notebook.
        preview: Whether to only show which work would be repeated.
        wait: Whether a cell waits for the end of the run.
        retry_failed: Whether a sweep runs failed rows again, too.
        arguments_by_name: The other arguments of `RESUME`, by name.
    """
    session = arguments_by_name.get("session") or ""
    group = find_group(session, caller.root) if session else None
    if group is not None:
        return NewGroup(lambda: group.resume(retry_failed))
    if retry_failed:
        raise UserError("--retry-failed is an option for sweeps. Give the name of a sweep.")
    options = run_options({**arguments_by_name, "session_root": caller.root}, caller.names)
    arguments, _ = split_options({**arguments_by_name, "options": None})
    if context := recipe_context("", settings, {}):
        arguments["context"] = context
    if preview:
        resume_preview = ResumeRequest(**arguments, options=options).preview()
        return Reply(str(resume_preview), asdict(resume_preview))
    functions = find_functions(tools, caller.names) if tools else ()
    again = partial(resume_turn, **arguments, tools=functions, options=options)
    is_new = bool(arguments.keys() & {"from_step", "recipe", "context", "agent"})
    return NewRun(partial(resume_once, session, options, again, is_new=is_new), wait)


def rewind(
    work: Work,
    caller: Caller,
    *,
    times: int | None = None,
    preview: bool = False,
    **arguments_by_name: Any,
) -> Reply | NewRun | NewGroup | Table:
    """Go back to a turn's checkpoint and continue from there in a new turn. The old turn is kept.

    Args:
        work: The run.
        caller: The user interface that makes the request.
        times: Number of new turns to start from there, as a group.
        preview: Whether to only show which work would be kept and which would be undone.
        arguments_by_name: The other arguments of `REWIND`, by name. Without ``to``, the checkpoints
            are listed.
    """
    run = target_of(work).run
    arguments, changed = split_options(arguments_by_name)
    if not arguments.get("to"):
        return _checkpoints(TurnPrefix(TurnPaths(run.path), "the end"), caller)
    detach = True if caller.source == "rest" else None
    options = replace(run.options, **{"trust": False, "detach": detach, **changed})
    arguments["options"] = options
    if times is not None:
        check_times(times)
    if preview:
        planned = run.preview_rewind(**arguments)
        return Reply(str(planned), {**status_of_work(run), **_facts_of_preview(planned)})
    if times is not None:
        return NewGroup(lambda: begin_forks(rewind_request(run, **arguments), times))
    return NewRun(lambda: CachedRun(run.rewind(**arguments), False))


def _checkpoints(turn: TurnPrefix, caller: Caller) -> Table:
    """List the checkpoints of a turn, the latest last."""
    facts = _facts_of_points(turn.points, turn.words)
    rows = [
        (str(p["seq"]), f"{datetime.fromtimestamp(p['at']):%H:%M:%S}", p["says"], p["text"])
        for p in facts[-MAX_LISTED:]
    ]
    notes = []
    if more := len(facts) - len(rows):
        notes.append(f"Not listed: {count(more, 'earlier checkpoint')}.")
    if rows:
        example = caller.entry_point.line("rewind", [turn.name, "--to", rows[-1][0]])
        notes.append(f"Nothing was changed. Choose a checkpoint, such as `{example}`.")
    return Table(
        ("event", "time", "checkpoint", "answer"),
        rows,
        facts,
        notes,
        empty=f"Turn {turn.name} has no journal, so it has no checkpoints.",
    )


def _facts_of_points(points: Sequence[Checkpoint], words: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "seq": p.seq,
            "at": p.at,
            "agent": p.agent,
            "says": str(p),
            "text": text.without_markdown(line, 100),
        }
        for p, line in zip(points, words, strict=True)
    ]


def _facts_of_preview(preview: RewindPreview) -> dict[str, Any]:
    points = _facts_of_points(preview.points, preview.words)
    files = [file._asdict() for file in preview.files]
    facts = asdict(replace(preview, points=()))
    del facts["words"]
    return {**facts, "points": points, "files": files, "lines": preview.lines}


def run_starter(
    values: Mapping[str, Any],
    named: Mentions,
    context: Mapping[str, Any] | None,
    names: Mapping[str, Any],
) -> Callable[[], CachedRun]:
    """Return a function that starts the run that a command's arguments describe.

    Args:
        values: Values of the parameters of `RUN`, by name.
        named: The task and the files that it mentions.
        context: Initial values of the recipe.
        names: The variables of the notebook.

    Raises:
        UserError: An argument can't be used.
    """
    team = team_from_options(
        values["config"], values["model"], values["bundles"], values.get("backend")
    )
    own = {each.name for each in arguments_of(StartRequest)}
    arguments, _ = split_options({name: values[name] for name in own & values.keys()})
    tools = values.get("tools")
    arguments |= {
        "task": named.task,
        "config": add_object_agents(team, values.get("agents") or "", names),
        "context": context,
        "tools": find_functions(tools, names) if tools else (),
        "options": replace(run_options(values, names), context_paths=named.paths),
    }
    request = StartRequest(**arguments)
    if values["once"] or values["fresh"] or once_is_default():
        return partial(run_once, request, fresh=values["fresh"])
    return partial(start_new, request)


def run_options(arguments: Mapping[str, Any], names: Mapping[str, Any]) -> RunOptions:
    """Combine ``--options`` with the other flags of a command.

    Args:
        arguments: The command's arguments by name.
        names: The variables of the notebook, for ``--options NAME``.

    Raises:
        UserError: The variable does not exist or is not a `RunOptions`, or an option is set both
            there and by a flag.
    """
    name = arguments.get("options")
    base = _named_options(name, names) if name else RunOptions()
    flags: dict[str, Any] = {}
    for option, flag in _FLAGS.items():
        value = arguments.get(option)
        if value is None or value is False:
            continue
        if getattr(base, option):
            raise UserError(f"--options {name} already sets {flag}. Remove one of them.")
        flags[option] = value
    return replace(base, **flags)


def _named_options(name: str, names: Mapping[str, Any]) -> RunOptions:
    if name not in names:
        raise UserError(
            f"--options {name}: variable {name!r} is not defined. Define it in an earlier cell: "
            f"{name} = nb_agents.RunOptions(…)"
        )
    options = names[name]
    if not isinstance(options, RunOptions):
        kind = type(options).__name__
        raise UserError(
            f"--options {name}: {name!r} is of type {kind}, not RunOptions. Create it with "
            "nb_agents.RunOptions(…)."
        )
    return options
