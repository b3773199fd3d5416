"""The magics: ``%%agents`` starts a run, ``%agents`` looks after runs and sessions.

Arguments are declared with IPython's magic_arguments, so ``%%agents?`` is the reference. A stopped
run ends its cell with its card, and a person's mistake with a sentence: neither shows a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from keyword import iskeyword
from types import TracebackType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.uploads import Mentions, mentions
from nb_agents.errors import RunCancelled, TaskError, UserError
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
from nb_agents.jupyter.panel import show_turn
from nb_agents.jupyter.sweep_cell import work_over
from nb_agents.jupyter.verbs import declared
from nb_agents.jupyter.waiting import follow_new
from nb_agents.masking import Mask
from nb_agents.nouns import did_you_mean
from nb_agents.presentation.arguments import context_of, fill_in
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.unicode import without_controls
from nb_agents.verbs.parameters import RUN
from nb_agents.verbs.resuming import begin_of, options_of
from nb_agents.verbs.table import VERBS as TABLE
from nb_agents.verbs.verb import Verb

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

USAGE_WIDTH = 88
"""Columns of a verb's usage in help."""

_WITH_OVER = ("limit", "name", "max_cost", "score", "retry_failed")


def show_cancelled_as_cards(ip: Any) -> None:
    """Show a RunCancelled that ends a cell as the turn's card instead of a traceback.

    The cell still counts as ended by an exception, so cells queued behind it don't run on.
    """
    previous, others = ip.CustomTB, ip.custom_exceptions

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

    if RunCancelled not in others:
        ip.set_custom_exc((*others, RunCancelled), show)


def as_usage_error(exc: UserError) -> UsageError:
    """Return a mistake in a magic as the error that IPython prints as one line, without secrets."""
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
        r"""Start a team of agents on the task that the cell holds, in the background.

        {{name}} in the task takes a notebook variable; write \{{name}} for the braces themselves.
        @path in the task lets the agents read that file or directory.
        With --over there is a task for each row, and {{column}} takes its value; the same cell goes
        on with the rows that are missing.
        With --recipe the cell holds the values that it starts with, as YAML: one `name: value` a
        line. A recipe that needs none is started by a line: %agents --recipe FILE
        Without --config and --model three demo agents run: offline, free, no key needed.
        """
        args = _parse(type(self).agents, line)
        self._guarded(lambda: self._start(args, cell))

    @line_magic("agents")
    def agents_line(self, line: str) -> None:
        """Look after runs and sessions.

        %agents                  the same as %agents runs
        %agents --recipe FILE    starts a recipe, as %%agents does
        {verbs}

        A RUN is a run's id, or the name of a session here, else of a live one anywhere. Without
        one, the latest run of this kernel is meant, else the only live one of this notebook. With
        --session-root DIR (before RUN where a text follows), a verb looks nowhere else.
        """
        verb, _, rest = line.strip().partition(" ")
        if verb.startswith("-"):
            self._start_by_line(line)
            return
        action = verbs.VERBS.get(verb)
        if action is None:
            known = [name for name in verbs.VERBS if name]
            hint = did_you_mean(verb, known)
            has = ", ".join(known)
            raise UsageError(f"%agents has no verb {verb!r}.{hint} It has: {has}. See %agents?")
        declared = TABLE.get(verb)
        args = _parse(action, rest, has_message=bool(declared and declared.ends_in_text))
        self._guarded(lambda: action(self.shell, args))

    def report_dead_turns(self) -> None:
        """Print which turns were cut off when their kernel died, and mend their files."""
        self._guarded(report_dead_turns)

    def _start_by_line(self, line: str) -> None:
        """Start a recipe without a cell of values: IPython refuses a cell magic without a body."""
        args = _parse(type(self).agents, line)
        if not args.recipe and line.split()[0].startswith("--session-root"):
            runs = verbs.VERBS[""]
            self._guarded(lambda: runs(self.shell, _parse(runs, line)))
            return
        if not args.recipe:
            raise UsageError("A task goes below %%agents; only --recipe starts from a line.")
        self._guarded(lambda: self._start(args, ""))

    def _start(self, args: Any, cell: str) -> None:
        names = self.shell.user_ns
        if args.out is not None and (not args.out.isidentifier() or iskeyword(args.out)):
            raise TaskError(f"--out {args.out} is not a variable name. Write, say, --out run.")
        if args.over:
            made = work_over(self.shell, args, cell, options_of(vars(args), names))
            if args.out:
                names[args.out] = made
            return
        if name := next((n for n in _WITH_OVER if getattr(args, n)), ""):
            raise TaskError(f"--{name.replace('_', '-')} goes with --over.")
        if args.settings and not args.recipe:
            raise TaskError("--set gives a value to a recipe: it goes with --recipe.")
        if args.bundles and not args.recipe:
            raise TaskError("--bundle says where a recipe's bundles are: it goes with --recipe.")
        # Before variables are put in: what they hold nobody typed.
        named = Mentions("", ()) if args.recipe else mentions(cell)
        named = named._replace(task=fill_in(named.task, names))
        context = context_of(cell, args.settings, names) if args.recipe else None
        begin = begin_of(vars(args), named, context, names)
        follow_new(self.shell, begin, wait=args.wait, out=args.out)

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except UserError as exc:
            raise as_usage_error(exc) from None


def _lines_of(verb: Verb) -> str:
    parts = [f"{'':<8}%agents {verb.name}", *(each.usage for each in verb.on_line("cell"))]
    lines = [parts[0]]
    for part in parts[1:]:
        fits = len(lines[-1]) + len(part) < USAGE_WIDTH
        lines[-1:] = [f"{lines[-1]} {part}"] if fits else [lines[-1], f"{'':<15}{part}"]
    return "\n".join([*lines, f"{'':<12}{verb.help}"])


_agents_line = AgentsMagics.agents_line
_agents_line.__doc__ = (_agents_line.__doc__ or "").format(
    verbs="\n".join(_lines_of(TABLE[name]) for name in verbs.VERBS if name)
)


def _parse(function: Any, line: str, *, has_message: bool = False) -> Any:
    try:
        return (parse_message if has_message else parse_line)(function, line)
    except UsageError as exc:
        said = f"{str(exc)[:1].upper()}{str(exc)[1:]}".removesuffix(".")
        end = "" if said.endswith("?") else "."
        raise UsageError(f"{said}{end} %%agents? and %agents? list the options.") from None
    except ValueError as exc:
        raise UsageError(f"The line can't be split into words: {exc}. Close the quote.") from None
