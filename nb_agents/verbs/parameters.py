"""Arguments of the verbs and of the commands that start runs, shared by all user interfaces.

`StartRequest`, `ResumeRequest`, `RewindRequest` and `RunOptions` declare the arguments of runs.
Here, each user interface lists which of them it leaves out, and declares what it adds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from nb_agents.launch.here import RunRequest
from nb_agents.launch.resume import ResumeRequest
from nb_agents.launch.rewind import RewindRequest
from nb_agents.launch.start import StartRequest
from nb_agents.options import RunOptions
from nb_agents.signatures import Argument, arguments_of
from nb_agents.verbs.verb import LINES, REQUIRED, Parameter

_option = partial(Parameter, is_option=True)
_flag = partial(_option, default=False)
_cell_option = partial(_option, interfaces=("cell",), default=None)
_cell_flag = partial(_flag, interfaces=("cell",))

TEXT = Parameter("message", "the text", REQUIRED, metavar="TEXT", wire="text")
DECISION = (
    Parameter("message", "a message to send with the decision, such as why you approve or deny"),
    Parameter(
        "gate", "the gate (default: the one that has been waiting longest)", interfaces=("http",)
    ),
)
STOP = (
    _flag("now", "stop now: interrupt model and tool calls in progress", wire="immediate"),
    _option("agent", "stop only this agent", None, metavar="A"),
    _option("reason", "the reason, recorded in the journal", metavar="T"),
)
FOLD = (
    _option("agent", "the agent; needed if the team has several", None, metavar="A"),
    _option("say", "what the summary must keep", metavar="TEXT"),
)
YES = _flag("yes", "do not ask for confirmation")
PRUNE = (
    _option(
        "older",
        "remove sessions and rows last used longer ago than this: 12h, 30d, 8w",
        REQUIRED,
        metavar="AGE",
    ),
    _flag("keep_answers", "keep answers, metadata and receipts"),
    _flag("incomplete", "also remove sessions that could be resumed"),
    YES._replace(help="remove them; without this flag, only list them"),
)

_SETTINGS = _option(
    "settings",
    "an initial value of the recipe; can be repeated",
    (),
    metavar="NAME=VALUE",
    flags=("--set",),
)
_BUNDLES = _option(
    "bundles",
    "directory of a recipe bundle, which steps refer to as @NAME:path; can be repeated",
    (),
    metavar="NAME=DIR",
    flags=("--bundle",),
)
_MODEL = _option(
    "model",
    "run a single agent with this model, such as openai:gpt-5-mini; no prefix is needed if the "
    "name implies the provider (gpt, o3, claude, gemini, grok)",
    None,
    metavar="T:M",
    flags=("--model", "-m"),
)
_BACKEND = _option(
    "backend", "with --model: the provider of the model, such as openai", None, metavar="T"
)
_TOOLS = _cell_option("tools", "functions of the notebook that agents can call", metavar="F,G")
_OPTIONS = _cell_option(
    "options", "a variable with RunOptions: retries, stops, approvals", metavar="NAME"
)
_WAIT = _cell_flag("wait", "wait in the cell until the run is over")
_OVER = (
    _cell_option(
        "over",
        "run the task once for each row of a CSV, JSONL or Parquet file or a variable; --max-cost "
        "then limits all rows together",
        metavar="ROWS",
    ),
    _cell_option(
        "limit",
        "with --over: maximum number of rows that run at the same time (default: 8)",
        metavar="N",
        kind=int,
    ),
    _cell_option("name", "with --over: name of the sweep", metavar="S"),
    _cell_option(
        "score",
        "with --over: a function that takes a task and its answer and rates the answer, or an "
        "agent",
        metavar="F",
    ),
    _cell_flag("retry_failed", "with --over: run failed rows again, too"),
    _cell_option(
        "compare",
        "with --over and --score: two team files, to find out which team is better with as few "
        "rows as possible",
        metavar="A B",
        values=2,
    ),
    _cell_option(
        "max_rows", "with --compare: maximum number of rows to compare", metavar="N", kind=int
    ),
    _cell_option(
        "score_range",
        "with --compare: the lowest and the highest possible score (default: 0 1)",
        metavar="LOW HIGH",
        kind=float,
        values=2,
    ),
    _cell_option(
        "margin",
        "with --compare: difference of the mean scores below which the teams count as equal",
        metavar="X",
        kind=float,
    ),
    _cell_option(
        "seed", "with --compare: determines the random order (default: 0)", metavar="N", kind=int
    ),
)

# The arguments of requests ------------------------------------------------------------------------

ONLY_IN_PYTHON = (
    *("session_root", "retry", "cancel", "approval", "context_paths"),
    *("on_complete", "on_failed", "on_status_change"),
)
"""The options that only Python offers by name. Lines have ``--options`` and ``--session-root``."""
OPTIONS = arguments_of(RunOptions, without=ONLY_IN_PYTHON)
"""The options that all user interfaces can offer."""
_OPTION_NAMES = {each.name for each in OPTIONS}


def arguments_in(request: type[RunRequest], *, without: Collection[str]) -> tuple[Argument, ...]:
    """Return the arguments of a request that a user interface offers, then its options.

    Args:
        request: The class of the request, which declares the arguments.
        without: Names of the arguments and options that the interface does not offer.

    Raises:
        LookupError: There is no argument or option of a name in ``without``.
    """
    own = arguments_of(request, without={*without} - _OPTION_NAMES)
    return *own, *(each for each in OPTIONS if each.name not in without)


def on_lines(request: type[RunRequest], *, without: Collection[str]) -> tuple[Parameter, ...]:
    """Return the parameters of a verb or command for the arguments of a request."""
    return tuple(map(on_line, arguments_in(request, without=without)))


_ON_LINES = {"tools": _TOOLS, "options": _OPTIONS, "context": _SETTINGS}
"""How lines take arguments that are not text, by the name of the argument."""


def on_line(argument: Argument) -> Parameter:
    """Return the parameter of a verb or command for an argument."""
    if field := _ON_LINES.get(argument.name):
        return field
    name, help = argument.name, argument.help
    kind: Any = argument.kind
    if kind is bool:
        return _flag(name, help, flags=argument.flags)
    return _option(name, help, None, metavar=argument.metavar, flags=argument.flags, kind=kind)


def split_options(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split arguments into those of a request and those of `RunOptions`, without missing ones.

    Args:
        arguments: The arguments by name. None, and False for a flag, mean that an argument is
            missing.
    """
    present = {
        name: each for name, each in arguments.items() if each is not None and each is not False
    }
    options = {name: present.pop(name) for name in _OPTION_NAMES & present.keys()}
    return present, options


NOT_OVER_HTTP = ("tools", "options", "from_turn", "detach", "cluster", "notebook_file")
"""Functions and options of one process. A run that is started over HTTP is always detached."""
HTTP_START = arguments_in(StartRequest, without=("task", "continue_", *NOT_OVER_HTTP))
HTTP_NEXT_TASK = arguments_in(
    StartRequest,
    without=("task", "config", "session", "continue_", "recipe", "context", *NOT_OVER_HTTP),
)
HTTP_RESUME = arguments_in(ResumeRequest, without=("session", "skip_unsupported", *NOT_OVER_HTTP))
NOT_IN_REWIND = ("turn", "skip_unsupported", *NOT_OVER_HTTP)
"""A rewind has the team and tools of its turn, and runs in this process or, over HTTP, its own."""
HTTP_REWIND = arguments_in(RewindRequest, without=("to", *NOT_IN_REWIND))

RUN = (
    *on_lines(StartRequest, without=("task",)),
    _BUNDLES,
    _MODEL,
    _BACKEND,
    _cell_option(
        "agents",
        "variables of the notebook that are agents: functions, or agents of other frameworks",
        metavar="A,B",
    ),
    _WAIT,
    _flag(
        "once",
        "if an identical request has completed, show its result instead of running it again "
        "(NB_AGENTS_ONCE=1 makes this the default)",
    ),
    _flag("fresh", "with --once: run it again anyway"),
    _cell_option("out", "assign the run to this variable", metavar="NAME"),
    _cell_option(
        "replay",
        "answer from this recording instead of calling models and tools, and wait until the run or "
        "sweep is over; see `%agents record`",
        metavar="FILE",
    ),
    *_OVER,
)
"""The arguments of ``%%agents`` and of ``nb-agents run``."""


def run_parameters(*names: str) -> list[Parameter]:
    """Return the parameters of `RUN` with these names."""
    return [each for each in RUN if each.name in names]


SHOW = (
    _flag("html", "print the card as HTML", interfaces=("terminal",)),
    _TOOLS._replace(help="functions that a detached run can call from now on"),
)
_SESSION, *_RESUMED = on_lines(ResumeRequest, without=("from_turn", "skip_unsupported"))
RESUME = (
    _SESSION._replace(is_option=False, default=""),
    *_RESUMED,
    _flag("preview", "only show which work would be repeated"),
    _WAIT,
    _flag("retry_failed", "for a sweep: run failed rows again, too"),
)
_TO, *_REWOUND = on_lines(RewindRequest, without=NOT_IN_REWIND)
REWIND = (
    _TO._replace(default=REQUIRED, interfaces=("http",)),
    _TO._replace(help=f"{_TO.help}. Without it, all checkpoints are listed", interfaces=LINES),
    *_REWOUND,
    _option("times", "start N new turns from there, as a sweep", None, metavar="N", kind=int),
    _flag("preview", "only show which work would be kept and which would be undone"),
)
CHECK = (
    run_parameters("config")[0]._replace(help="the recipe's team file"),
    _BUNDLES,
    _flag("connect", "also load custom tools and start MCP servers to test them"),
)
_CONFIG, _OF_MODEL, _OF_BACKEND = run_parameters("config", "model", "backend")
DOCTOR = (
    _option(
        "record",
        "send a small request to a model and write the raw response to this file, without keys, to "
        "attach to an issue",
        None,
        metavar="FILE",
    ),
    _CONFIG._replace(help="with --record: the team file with the model"),
    _OF_MODEL._replace(help="with --record: the model, such as openai:gpt-5-mini"),
    _OF_BACKEND._replace(help="with --record and --model: the provider, such as openai"),
    _option("agent", "with --record: the agent, if several have a model", None, metavar="A"),
    _option("task", "with --record: the text of the request", None, metavar="TEXT"),
)
