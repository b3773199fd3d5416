"""The magics: ``%%agents`` starts a run, ``%agents`` manages runs and sessions.

Arguments are declared with IPython's magic_arguments, so ``%%agents?`` is the reference. If a run
is stopped, its cell ends with a card. After a user error, it ends with a sentence. Neither shows a
traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from keyword import iskeyword
from types import TracebackType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.team import add_object_agents, team_from_options
from nb_agents.config.uploads import Mentions, mentions
from nb_agents.errors import RunCancelled, RunFailed, TaskError, UserError
from nb_agents.jupyter import verbs
from nb_agents.jupyter.dead_turns import report_dead_turns
from nb_agents.jupyter.ipython import (
    Magics,
    arguments,
    cell_magic,
    line_magic,
    magics_class,
    parse_line,
    parse_message,
    root_option,
)
from nb_agents.jupyter.panel import cells_of, show_turn
from nb_agents.jupyter.verbs import declared
from nb_agents.jupyter.waiting import (
    follow,
    follow_group,
    follow_new,
    interrupts_stop_new_runs,
)
from nb_agents.launch.run import Run
from nb_agents.masking import Mask
from nb_agents.nouns import did_you_mean
from nb_agents.plugins import ExtensionPoint
from nb_agents.presentation.arguments import insert_variables, recipe_context
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.groups import Group, kind_that_starts
from nb_agents.unicode import without_controls
from nb_agents.verbs.parameters import RUN
from nb_agents.verbs.resuming import run_options, run_starter
from nb_agents.verbs.table import VERBS as TABLE
from nb_agents.verbs.verb import Verb

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

USAGE_WIDTH = 88
"""Width of a verb's usage in help, in columns."""

_NOT_WITH_REPLAY = ("session", "continue_", "detach", "cluster")
_WITH_COMPARE = ("max_rows", "score_range", "margin", "seed")
_WITH_OVER = ("limit", "name", "score", "retry_failed", "compare", *_WITH_COMPARE)


_FUNCTIONS = ExtensionPoint[Callable[..., Run | Group]]("public_names")


def show_cancelled_as_cards(ip: Any) -> None:
    """Show the turn's card instead of a traceback if a cell ends with RunCancelled.

    The cell is still marked as failed, so queued cells after it do not run.
    """
    previous, custom_exceptions = ip.CustomTB, ip.custom_exceptions

    def show(
        shell: InteractiveShell,
        kind: type[BaseException],
        exc: BaseException,
        trace: TracebackType | None,
        tb_offset: int | None = None,
    ) -> list[str]:
        if not isinstance(exc, RunCancelled):
            return list(previous(kind, exc, trace, tb_offset=tb_offset) or [])
        show_turn(load_turn(TurnPaths(exc.path)))
        return []

    if RunCancelled not in custom_exceptions:
        ip.set_custom_exc((*custom_exceptions, RunCancelled), show)


def as_usage_error(exc: UserError) -> UsageError:
    """Return a user error as the exception that IPython prints as one line, without secrets."""
    return UsageError(without_controls(Mask(secrets_of_environment()).text(str(exc))))


@magics_class
class AgentsMagics(Magics):
    """Registers ``%%agents`` and ``%agents``."""

    shell: InteractiveShell

    @arguments("%agents")
    @declared(*RUN)
    @root_option
    @cell_magic("agents")
    def agents(self, line: str, cell: str) -> None:
        r"""Start a team of agents with the task in this cell, in the background.

        {{name}} in the task inserts a notebook variable; \{{name}} inserts literal braces.
        @path in the task lets the agents read that file or directory.
        With --over, the task runs once for each row, and {{column}} inserts the row's value.
        Running the same cell again continues with the missing rows.
        With --recipe, the cell contains the recipe's initial values as YAML, one `name: value` per
        line. A recipe without values can be started from a line: %agents --recipe FILE
        Without --config and --model, three demo agents run: offline, free, no key needed.
        """
        args = _parse(type(self).agents, line)
        self._guarded(lambda: self._start(args, cell))

    @line_magic("agents")
    def agents_line(self, line: str) -> None:
        """Manage runs and sessions.

        %agents                  the same as %agents runs
        %agents --recipe FILE    starts a recipe, like %%agents
        {verbs}

        RUN is a run's id or a session's name. It is looked up in this directory, then among all
        live runs. By default, it is the latest run of this kernel or, if there is none, the only
        live run of this notebook. --session-root DIR limits a verb to that directory. Write it
        before RUN if text follows.
        """
        verb, _, rest = line.strip().partition(" ")
        if verb.startswith("-"):
            self._start_by_line(line)
            return
        action = verbs.VERBS.get(verb) or verbs.ALIASES.get(verb)
        if action is None:
            names = [name for name in verbs.VERBS if name]
            hint = did_you_mean(verb, names)
            names_text = ", ".join(names)
            raise UsageError(
                f"%agents has no verb {verb!r}.{hint} The verbs are: {names_text}. See %agents?"
            )
        declared = TABLE.get(verb)
        args = _parse(action, rest, has_message=bool(declared and declared.ends_in_text))
        self._guarded(lambda: action(self.shell, args))

    def report_dead_turns(self) -> None:
        """Print the turns that were cut off because their kernel died, and repair their files."""
        self._guarded(report_dead_turns)

    def _start_by_line(self, line: str) -> None:
        """Start a recipe from a line, because IPython rejects a cell magic without a body."""
        args = _parse(type(self).agents, line)
        if not args.recipe and line.split()[0].startswith("--session-root"):
            runs = verbs.VERBS[""]
            self._guarded(lambda: runs(self.shell, _parse(runs, line)))
            return
        if not args.recipe:
            raise UsageError("Write the task below %%agents. Only --recipe can start from a line.")
        self._guarded(lambda: self._start(args, ""))

    def _start(self, args: Any, cell: str) -> None:
        names = self.shell.user_ns
        if args.out is not None and (not args.out.isidentifier() or iskeyword(args.out)):
            raise TaskError(
                f"--out {args.out} is not a variable name. Write, for example, --out run."
            )
        if name := next((n for n in _WITH_COMPARE if getattr(args, n) is not None), ""):
            if not args.compare:
                raise TaskError(f"--{name.replace('_', '-')} needs --compare.")
        if args.over and args.replay:
            if args.compare:
                raise TaskError(
                    "--compare can't be combined with --replay. `%agents replay FILE` replays a "
                    "comparison."
                )
            self._replay(args, mentions(cell).task, None)
            return
        if args.over:
            cells = cells_of(kind_that_starts("--over"))
            # The budget in dollars is that of the group.
            options = run_options({**vars(args), "max_cost": None}, names)
            group = cells.start(self.shell, args, cell, options)
            if args.out:
                names[args.out] = group
            return
        if name := next((n for n in _WITH_OVER if getattr(args, n)), ""):
            raise TaskError(f"--{name.replace('_', '-')} needs --over.")
        if args.settings and not args.recipe:
            raise TaskError("--set can only be used with --recipe.")
        if args.bundles and not args.recipe:
            raise TaskError("--bundle can only be used with --recipe.")
        # Before variables are inserted, because an @path in their values was not typed by the user.
        named = Mentions("", ()) if args.recipe else mentions(cell)
        named = named._replace(task=insert_variables(named.task, names))
        context = recipe_context(cell, args.settings, names) if args.recipe else None
        if args.replay:
            self._replay(args, named.task, context)
            return
        begin = run_starter(vars(args), named, context, names)
        follow_new(self.shell, begin, wait=args.wait, out=args.out)

    def _replay(self, args: Any, task: str, context: Mapping[str, Any] | None) -> None:
        """Replay a recording with the cell's content.

        Raises:
            UserError: It can't start, or differs from the recording.
        """
        if name := next((n for n in _NOT_WITH_REPLAY if getattr(args, n, None)), ""):
            raise TaskError(
                f"--{name.strip('_')} can't be combined with --replay, which starts a new session "
                "here."
            )
        names = self.shell.user_ns
        team = team_from_options(args.config, args.model, args.bundles, args.backend)
        team = add_object_agents(team, args.agents or "", names)
        work = {"recipe": args.recipe, "context": context} if args.recipe else {"task": task}
        options = run_options(vars(args), names)
        if args.over:
            work["source"] = names.get(args.over, args.over)
        replay = partial(_FUNCTIONS["replay"], args.replay, config=team, options=options, **work)
        with interrupts_stop_new_runs(self.shell, wait=True):
            replayed = replay()
            if args.out:
                names[args.out] = replayed
            if not isinstance(replayed, Run):
                follow_group(self.shell, replayed, wait=True)
                return
            follow(self.shell, replayed, wait=True)
        with suppress(RunCancelled, RunFailed):  # as in the recording
            replayed.wait()

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except UserError as exc:
            if exc.code == "replay":  # pytest plugins for notebooks don't see usage errors
                raise
            raise as_usage_error(exc) from None


def _lines_of(verb: Verb) -> str:
    parts = [f"{'':<8}%agents {verb.name}", *(each.usage for each in verb.on_line("cell"))]
    lines = [parts[0]]
    for part in parts[1:]:
        fits = len(lines[-1]) + len(part) < USAGE_WIDTH
        lines[-1:] = [f"{lines[-1]} {part}"] if fits else [lines[-1], f"{'':<15}{part}"]
    return "\n".join([*lines, f"{'':<12}{verb.help}"])


_HELP = AgentsMagics.agents_line.__doc__ or ""


def _help() -> str:
    """Return the help of ``%agents``, with all verbs that are registered."""
    return _HELP.format(verbs="\n".join(_lines_of(TABLE[name]) for name in verbs.VERBS if name))


AgentsMagics.agents_line.__doc__ = _help()
AgentsMagics.agents_line.getdoc = _help  # type: ignore[attr-defined]  # for `%agents?`


def _parse(function: Any, line: str, *, has_message: bool = False) -> Any:
    try:
        return (parse_message if has_message else parse_line)(function, line)
    except UsageError as exc:
        message = f"{str(exc)[:1].upper()}{str(exc)[1:]}".removesuffix(".")
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{message}{end} %%agents? and %agents? list the options.") from None
    except ValueError as exc:
        raise UsageError(f"The line can't be parsed: {exc}. Close the quote.") from None
