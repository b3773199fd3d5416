"""Starting the run that a line asks for, and the verbs that start one from a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_agents.config.team import chosen_team, with_objects
from nb_agents.config.uploads import Mentions
from nb_agents.errors import UserError
from nb_agents.launch.api import resume as resume_turn
from nb_agents.launch.once import EarlierOrNew, begin_new, once_is_default, resume_once, run_once
from nb_agents.launch.resume import preview as preview_turn
from nb_agents.launch.start import StartRequest
from nb_agents.options import RunOptions
from nb_agents.presentation.arguments import context_of
from nb_agents.tools.functions import find_functions
from nb_agents.verbs.on_runs import run_of
from nb_agents.verbs.verb import Caller, Outcome

if TYPE_CHECKING:
    from nb_agents.launch.rewind_plan import RewindPreview
    from nb_agents.verbs.verb import Work

_FLAGS = {
    "session_root": "--session-root",
    "timeout": "--orchestrator-timeout",
    "from_turn": "--from",
    "skip_unsupported": "--skip-unsupported",
    "debug": "--debug",
    "detach": "--detach",
    "cluster": "--cluster",
    "trust": "--trust",
}
"""The flags that stand for an option, by its name."""


def resume(
    root: Path,
    caller: Caller,
    *,
    session: str = "",
    config: str | None = None,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    from_step: str = "",
    preview: bool = False,
    tools: str = "",
    wait: bool = False,
    **flags: Any,
) -> Outcome:
    """Go on with an incomplete turn; nothing that finished runs again."""
    options = options_of({**flags, "session_root": caller.root}, caller.names)
    changes: dict[str, Any] = {
        "recipe": recipe,
        "context": context_of("", settings, {}),
        "from_step": from_step,
    }
    if preview:
        found = preview_turn(session, config, **changes, session_root=options.session_root)
        return Outcome(str(found), asdict(found))
    again = partial(
        resume_turn,
        session,
        config,
        **changes,
        tools=find_functions(tools, caller.names) if tools else (),
        options=options,
    )
    is_new = bool(from_step or recipe or settings)
    return Outcome(begin=partial(resume_once, session, options, again, is_new=is_new), waits=wait)


def rewind(
    work: Work,
    caller: Caller,
    *,
    to: str,
    say: str = "",
    agent: str | None = None,
    times: int | None = None,
    config: str | None = None,
    model: str | None = None,
    preview: bool = False,
    now: bool = False,
    trust: bool = False,
) -> Outcome:
    """Go back to a point of a turn, and on from there in a new turn; the old one stays.

    Args:
        work: The run.
        caller: Who asks.
        to: The point; see `nb_agents.rewind`.
        say: A text for the agents.
        agent: The one agent that it is for.
        times: How often to go on from there, as a sweep.
        config: A team file with the same agents.
        model: The model that all agents ask from then on.
        preview: Whether only to say what would be kept and what left out.
        now: Whether to cut what is in flight in a live turn.
        trust: Whether to go on with a session that this user has not made.
    """
    run = run_of(work)
    facts: dict[str, Any] = {"run": run.id, "status": run.view.standing}
    options = replace(run.options, trust=trust, detach=True if caller.source == "rest" else None)
    given: dict[str, Any] = {
        "agent": agent or "",
        "config": config,
        "model": model or "",
        "times": times,
        "options": options,
    }
    if preview:
        found = run.preview_rewind(to, say, **given)
        return Outcome(str(found), facts | _facts_of_preview(found))
    if times is not None:
        return Outcome(facts=facts, begin_sweep=lambda: run.rewind(to, say, now=now, **given))
    return Outcome(
        facts=facts, begin=lambda: EarlierOrNew(run.rewind(to, say, now=now, **given), False)
    )


def _facts_of_preview(found: RewindPreview) -> dict[str, Any]:
    points = [{"seq": p.seq, "at": p.at, "agent": p.agent, "says": str(p)} for p in found.points]
    files = [file._asdict() for file in found.files]
    facts = asdict(replace(found, points=()))
    return {**facts, "points": points, "files": files, "lines": found.lines}


def begin_of(
    given: Mapping[str, Any],
    named: Mentions,
    context: Mapping[str, Any] | None,
    names: Mapping[str, Any],
) -> Callable[[], EarlierOrNew]:
    """Return what begins the run that a line asks for.

    Args:
        given: Its arguments, those of `RUN`, by name.
        named: The task and the files that it names.
        context: The values that its recipe starts with.
        names: The variables of the notebook.

    Raises:
        UserError: An argument can't be used.
    """
    team = chosen_team(given["config"], given["model"], given["bundles"])
    tools = given.get("tools")
    request = StartRequest(
        task=named.task,
        config=with_objects(team, given.get("agents") or "", names),
        tools=find_functions(tools, names) if tools else (),
        recipe=given["recipe"],
        context=context,
        session=given["session"],
        continue_=given["continue_"],
        options=replace(options_of(given, names), context_paths=named.paths),
    )
    if given["once"] or given["fresh"] or once_is_default():
        return partial(run_once, request, fresh=given["fresh"])
    return partial(begin_new, request)


def options_of(given: Mapping[str, Any], names: Mapping[str, Any]) -> RunOptions:
    """Combine ``--options`` with the flags beside it.

    Args:
        given: The arguments of the line by name.
        names: The variables of the notebook, among which ``--options NAME`` is looked up.

    Raises:
        UserError: There is no such variable, it holds something else, or one is given twice.
    """
    name = given.get("options")
    base = _named_options(name, names) if name else RunOptions()
    flags: dict[str, Any] = {}
    for option, flag in _FLAGS.items():
        value = given.get(option)
        if value is None or value is False:
            continue
        if getattr(base, option):
            raise UserError(f"{flag} is given, and --options {name} has it too. Drop one.")
        flags[option] = value
    return replace(base, **flags)


def _named_options(name: str, names: Mapping[str, Any]) -> RunOptions:
    if name not in names:
        raise UserError(
            f"--options {name}: no variable {name!r} is defined. Define it in a cell before: "
            f"{name} = nb_agents.RunOptions(…)"
        )
    found = names[name]
    if not isinstance(found, RunOptions):
        kind = type(found).__name__
        raise UserError(
            f"--options {name}: {name!r} is of type {kind}, not RunOptions. Make it with "
            "nb_agents.RunOptions(…)."
        )
    return found
