"""The table of verbs, and the facts that they return."""

from nb_agents.signatures import arguments_of, described, takes_keywords
from nb_agents.verbs import on_sessions
from nb_agents.verbs.comparing import diff
from nb_agents.verbs.facts import run_facts, session_facts
from nb_agents.verbs.on_files import check
from nb_agents.verbs.on_runs import find_work, status_of_work, stop
from nb_agents.verbs.on_sessions import sessions
from nb_agents.verbs.outcome import NewRun, Reply
from nb_agents.verbs.parameters import (
    NOT_IN_REWIND,
    NOT_OVER_HTTP,
    ONLY_IN_PYTHON,
    RUN,
    arguments_in,
    on_lines,
)
from nb_agents.verbs.requests import BODIES, body_of, read
from nb_agents.verbs.resuming import resume, run_options
from nb_agents.verbs.table import ROUTES, VERBS, run_verb
from nb_agents.verbs.verb import REQUIRED, Caller, Verb

__all__ = [
    "BODIES",
    "NOT_IN_REWIND",
    "NOT_OVER_HTTP",
    "ONLY_IN_PYTHON",
    "arguments_in",
    "check",
    "arguments_of",
    "described",
    "takes_keywords",
    "body_of",
    "on_lines",
    "Caller",
    "Reply",
    "NewRun",
    "REQUIRED",
    "RUN",
    "ROUTES",
    "VERBS",
    "Verb",
    "diff",
    "find_work",
    "on_sessions",
    "read",
    "resume",
    "run_facts",
    "run_options",
    "run_verb",
    "stop",
    "session_facts",
    "sessions",
    "status_of_work",
]
