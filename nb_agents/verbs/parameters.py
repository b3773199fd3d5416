"""The arguments of verbs and of what starts runs, as every user interface has them."""

from __future__ import annotations

from functools import partial

from nb_agents.verbs.verb import REQUIRED, Parameter

_option = partial(Parameter, is_option=True)
_flag = partial(_option, default=False)
_cell_option = partial(_option, interfaces=("cell",), default=None)
_cell_flag = partial(_flag, interfaces=("cell",))

TEXT = Parameter("message", "the text", REQUIRED, metavar="TEXT", wire="text")
DECISION = (
    Parameter("message", "what is said about it"),
    Parameter("gate", "which gate; by default the one that waits longest", interfaces=("http",)),
)
STOP = (
    _flag("now", "cut the calls in flight", wire="immediate"),
    _option("agent", "stop this agent alone", None, metavar="A"),
    _option("reason", "why, for the record", metavar="T"),
)
YES = _flag("yes", "don't ask")
PRUNE = (
    _option("older", "last used longer ago: 12h, 30d, 8w", REQUIRED, metavar="AGE"),
    _flag("keep_answers", "keep answers, metadata and receipts"),
    _flag("incomplete", "those, too, that could be resumed"),
    YES._replace(help="remove it; without, only say what would go"),
)

_CONFIG = _option(
    "config",
    "team file (MassGen's YAML or JSON)",
    None,
    metavar="F",
    flags=("--config", "-c", "--agents-config"),
)
_RECIPE = _option("recipe", "recipe to work through", None, metavar="F", flags=("--recipe", "-r"))
_SETTINGS = _option(
    "settings",
    "a value that the recipe starts with",
    (),
    metavar="NAME=VALUE",
    flags=("--set",),
)
_BUNDLES = _option(
    "bundles",
    "where the recipes of a bundle are, which steps name as @NAME:path",
    (),
    metavar="NAME=DIR",
    flags=("--bundle",),
)
_MODEL = _option(
    "model",
    "one agent of this model: openai:gpt-5-mini",
    None,
    metavar="T:M",
    flags=("--model", "-m"),
)
_TRUST = _flag("trust", "go on with a session that you have not made here")
_TOOLS = _cell_option("tools", "functions of the notebook that the agents may call", metavar="F,G")
_TIMEOUT = _option(
    "timeout",
    "seconds until the run is stopped (default: the config's, else 1800)",
    None,
    metavar="S",
    flags=("--orchestrator-timeout",),
    kind=float,
)
_HOW = (
    _cell_option(
        "options", "a variable with RunOptions: retries, stops, approvals", metavar="NAME"
    ),
    _flag("detach", "in a process of its own, which goes on alone"),
    _option(
        "cluster",
        "on the workers of a Dask cluster; local:N begins one here",
        None,
        metavar="ADDRESS",
    ),
    _TRUST,
    _cell_flag("wait", "stay in the cell until the run is over"),
)
_SWEEP = (
    _cell_option("over", "a task for each row: CSV, JSONL, Parquet or variable", metavar="ROWS"),
    _cell_option("limit", "with --over: rows at a time (default: 8)", metavar="N", kind=int),
    _cell_option("name", "with --over: the sweep's name", metavar="S"),
    _cell_option("max_cost", "with --over: for all rows together", metavar="USD", kind=float),
    _cell_option(
        "score", "with --over: function of a task and its answer, or agent of the team", metavar="F"
    ),
    _cell_flag("retry_failed", "with --over: rows that failed, too"),
)

RUN = (
    _CONFIG,
    _RECIPE,
    _SETTINGS,
    _BUNDLES,
    _TOOLS,
    _MODEL,
    _cell_option(
        "agents",
        "agents of the notebook: functions, or agents of other frameworks",
        metavar="A,B",
    ),
    _flag("skip_unsupported", "run a team without its agents that can't run here"),
    _option(
        "session",
        "session to go on in, or to begin by that name",
        None,
        metavar="S",
        flags=("--session", "-s"),
    ),
    _flag(
        "continue_",
        "next turn of the last session of here (or of --session)",
        flags=("--continue",),
    ),
    _option(
        "from_turn",
        "with --continue: go on from this turn, in a new session",
        None,
        metavar="TURN",
        flags=("--from",),
        kind=int,
    ),
    _TIMEOUT,
    *_HOW,
    _flag("once", "an unchanged request shows the turn that it has had ($NB_AGENTS_ONCE=1: each)"),
    _flag("fresh", "with --once: start a new turn in any case"),
    _cell_option("out", "keep the run in this variable", metavar="NAME"),
    _flag("debug", "write debug.log into the turn's directory"),
    *_SWEEP,
)
"""The arguments of ``%%agents`` and of ``nb-agents run``."""


def of_run(*names: str) -> list[Parameter]:
    """Return those of `RUN` with these names."""
    return [each for each in RUN if each.name in names]


SHOW = (
    _flag("html", "the card as HTML", interfaces=("terminal",)),
    _TOOLS._replace(help="functions that a detached run calls from now on"),
)
RESUME = (
    Parameter("session", "the session's id; by default this notebook's last, or a terminal's"),
    _CONFIG._replace(help="team file (default: the turn's own)"),
    _RECIPE._replace(help="a changed recipe, in the place of the turn's own"),
    _SETTINGS,
    _option(
        "from_step",
        "step of a recipe that runs again, with all after it",
        metavar="STEP",
        flags=("--from",),
    ),
    _TOOLS,
    _TIMEOUT,
    _flag("preview", "only say what would run again"),
    *_HOW,
)
REWIND = (
    _option("to", "an event's number, words, or a time", REQUIRED, metavar="POINT"),
    _option("say", "a text for the agents", metavar="TEXT"),
    _option("agent", "the text is for this agent alone", None, metavar="A"),
    _option("times", "go on from there N times, as a sweep", None, metavar="N", kind=int),
    _CONFIG._replace(help="go on with this team file, of the same agents"),
    _MODEL._replace(help="go on with this model for all agents: openai:gpt-5-mini"),
    _flag("preview", "only say what would be kept and left out"),
    _flag("now", "cut the calls in flight of a live turn"),
    _TRUST,
)
CHECK = (
    _CONFIG._replace(help="for a recipe: its team file"),
    _BUNDLES,
    _flag("connect", "load custom tools and start MCP servers, to try them"),
)
