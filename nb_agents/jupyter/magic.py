"""The magics: ``%%agents`` starts a run, ``%agents`` looks after runs and sessions.

Arguments are declared with IPython's magic_arguments, so ``%%agents?`` is the reference. A stopped
run ends its cell with its card, and a person's mistake with a sentence: neither shows a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from keyword import iskeyword
from types import TracebackType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from nb_agents.config.faults import nearest
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.team import chosen_team, with_objects
from nb_agents.config.uploads import Mentions, mentions
from nb_agents.errors import RunCancelled, TaskError, UserError
from nb_agents.jupyter import verbs
from nb_agents.jupyter.ipython import (
    Magics,
    argument,
    arguments,
    cell_magic,
    line_magic,
    magics_class,
    parse_line,
    parse_message,
)
from nb_agents.jupyter.panel import show_turn
from nb_agents.jupyter.sweep_verbs import sweep_options, work_over
from nb_agents.jupyter.verbs import (
    bundle_option,
    cluster_option,
    options_of,
    options_option,
    set_option,
    tell_of_dead_turns,
    tools_option,
    trust_option,
)
from nb_agents.jupyter.waiting import follow_new
from nb_agents.launch.once import begin_new, once_is_default, run_once
from nb_agents.launch.start import StartRequest
from nb_agents.masking import Mask
from nb_agents.presentation.arguments import context_of, fill_in
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.tools.functions import find_functions
from nb_agents.unicode import without_controls
from nb_agents.verbs.table import VERBS as TABLE
from nb_agents.verbs.verb import Verb

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

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
    @argument(
        "--config", "-c", "--agents-config", metavar="F", help="team file (MassGen's YAML or JSON)"
    )
    @argument("--recipe", "-r", metavar="F", help="recipe to work through; see above")
    @set_option
    @bundle_option
    @tools_option
    @argument("--model", "-m", metavar="T:M", help="one agent of this model: openai:gpt-5-mini")
    @argument(
        "--agents",
        metavar="A,B",
        help="agents of the notebook: functions, or agents of other frameworks",
    )
    @argument(
        "--skip-unsupported",
        action="store_true",
        help="run a team without its agents that can't run here",
    )
    @argument("--session", "-s", metavar="S", help="session to go on in, or to begin by that name")
    @argument(
        "--continue",
        dest="continue_",
        action="store_true",
        help="next turn of this notebook's last session (or of --session)",
    )
    @argument(
        "--from",
        dest="from_turn",
        type=int,
        metavar="TURN",
        help="with --continue: go on from this turn, in a new session",
    )
    @argument(
        "--orchestrator-timeout",
        dest="timeout",
        type=float,
        metavar="S",
        help="seconds until the run is stopped (default: the config's, else 1800)",
    )
    @argument(
        "--session-root",
        metavar="DIR",
        help="where sessions are (default: $NB_AGENTS_SESSIONS, else .nb_agents/sessions)",
    )
    @options_option
    @argument(
        "--detach", action="store_true", help="in a process of its own, which outlives the kernel"
    )
    @cluster_option
    @trust_option
    @argument("--wait", action="store_true", help="stay in the cell until the run is over")
    @argument(
        "--once",
        action="store_true",
        help="an unchanged cell shows the turn that it has had ($NB_AGENTS_ONCE=1: every cell)",
    )
    @argument("--fresh", action="store_true", help="with --once: start a new turn in any case")
    @argument("--out", metavar="NAME", help="keep the run in this variable")
    @argument("--debug", action="store_true", help="write debug.log into the turn's directory")
    @sweep_options
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

        %agents                                  table of this kernel's runs, and of live ones
        {verbs}
        %agents wait [RUN]                       stay in the cell until it is over
        %agents show [RUN | SESSION[/TURN]]      the live panel, or the card
               [--tools F,G]                     offers a detached run its functions again
        %agents log [RUN | SESSION[/TURN]]       what happened, line by line
        %agents check FILE [--config F]          what would become of a team file or a recipe
               [--bundle N=DIR] [--connect]      tries its custom tools and MCP servers, too
        %agents resume [SESSION] [--preview]     go on with the incomplete turn; also [--wait]
               [--config F] [--recipe F] [--set N=V] [--from STEP] [--tools F,G]
               [--options NAME]
               [--orchestrator-timeout S] [--detach] [--cluster ADDRESS | local:N] [--trust]
        %agents --recipe FILE [--set N=V]        start a recipe, as %%agents does
        %agents plan RECIPE                      what a recipe would do, as a diagram

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
            hint = f" Did you mean {near!r}?" if (near := nearest(verb, known)) else ""
            has = ", ".join(known)
            raise UsageError(f"%agents has no verb {verb!r}.{hint} It has: {has}. See %agents?")
        declared = TABLE.get(verb)
        args = _parse(action, rest, has_message=bool(declared and declared.ends_in_text))
        self._guarded(lambda: action(self.shell, args))

    def tell_of_dead_turns(self) -> None:
        """Print which turns were cut off when their kernel died, and mend their files."""
        self._guarded(tell_of_dead_turns)

    def _start_by_line(self, line: str) -> None:
        """Start a recipe without a cell of values: IPython refuses a cell magic without a body."""
        args = _parse(type(self).agents, line)
        if not args.recipe and line.split()[0].startswith("--session-root"):
            self._guarded(lambda: verbs.table(self.shell, _parse(verbs.table, line)))
            return
        if not args.recipe:
            raise UsageError("A task goes below %%agents; only --recipe starts from a line.")
        self._guarded(lambda: self._start(args, ""))

    def _start(self, args: Any, cell: str) -> None:
        names = self.shell.user_ns
        if args.out is not None and (not args.out.isidentifier() or iskeyword(args.out)):
            raise TaskError(f"--out {args.out} is not a variable name. Write, say, --out run.")
        if args.over:
            made = work_over(self.shell, args, cell, options_of(args, names))
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
        request = StartRequest(
            task=fill_in(named.task, names),
            config=with_objects(
                chosen_team(args.config, args.model, args.bundles), args.agents or "", names
            ),
            tools=find_functions(args.tools, names) if args.tools else (),
            recipe=args.recipe,
            context=context_of(cell, args.settings, names) if args.recipe else None,
            session=args.session,
            continue_=args.continue_,
            options=replace(options_of(args, names), context_paths=named.paths),
        )
        if args.once or args.fresh or once_is_default():
            begin = partial(run_once, request, fresh=args.fresh)
        else:
            begin = partial(begin_new, request)
        follow_new(self.shell, begin, wait=args.wait, out=args.out)

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except UserError as exc:
            raise as_usage_error(exc) from None


def _lines_of(verb: Verb) -> str:
    line, help = f"        %agents {verb.usage}", f"{verb.help[:1].lower()}{verb.help[1:-1]}"
    return f"{line:<48} {help}" if len(line) < 48 else f"{line}\n{'':<48} {help}"


_agents_line = AgentsMagics.agents_line
_agents_line.__doc__ = (_agents_line.__doc__ or "").format(
    verbs="\n".join(map(_lines_of, TABLE.values()))
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
