"""Resumes a turn from the button on its card. The card's output then shows the run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nb_agents.errors import NotYoursError, UserError
from nb_agents.jupyter.magic import as_usage_error
from nb_agents.launch.api import resume
from nb_agents.launch.once import resume_once
from nb_agents.options import RunOptions
from nb_agents.presentation import text
from nb_agents.presentation.cards import card_bundle
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import find_turn


def resume_in_place(turn: str, trust: bool) -> dict[str, Any]:
    """Resume an incomplete turn for a page. A turn that is complete or live by now is only shown.

    Args:
        turn: The turn's directory, as recorded in its card.
        trust: Whether to accept a session that was created by another user or on another machine.

    Returns:
        The ``bundle`` of the run, or a ``refusal`` message. ``is_not_yours`` is true if trust is
        missing.
    """
    options = RunOptions(trust=trust)
    try:
        paths = TurnPaths(Path(turn).absolute())
        if not paths.path.is_dir():  # the kernel has changed its working directory
            paths = find_turn(session_root(None), f"{paths.session}/{paths.number}")
        options = replace(options, session_root=paths.root)
        begin = partial(resume, paths.session, options=options)
        run = resume_once(paths.session, options, begin).run
    except UserError as exc:
        return {"refusal": str(as_usage_error(exc)), "is_not_yours": isinstance(exc, NotYoursError)}
    view = run.view
    return {"bundle": card_bundle(view, text.shown_path(run.path), run.timeline, run.preview)}
