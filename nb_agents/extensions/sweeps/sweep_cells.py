"""Sweeps in cells: ``%%agents --over``, the panel, and the card."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nb_agents.config.team import TeamSpec, add_object_agents, team_from_options
from nb_agents.config.uploads import mentions
from nb_agents.errors import TaskError, UserError
from nb_agents.extensions.sweeps.compare import TeamComparison, compare_verbatim
from nb_agents.extensions.sweeps.manifest import DEFAULT_LIMIT
from nb_agents.extensions.sweeps.mapping import map_verbatim
from nb_agents.extensions.sweeps.sweep import Sweep
from nb_agents.extensions.sweeps.sweep_card import (
    OpenedRow,
    counts,
    score_of,
    spent,
    sweep_chip,
    sweep_notices,
    sweep_state,
    sweep_title,
)
from nb_agents.extensions.sweeps.sweep_fold import SweepView
from nb_agents.extensions.sweeps.sweep_handle import SweepHandle, bundle_of
from nb_agents.jupyter.ipython import table_bundle
from nb_agents.jupyter.panel import LOCK, Milestones, Panel, carry_out
from nb_agents.jupyter.waiting import follow_group, interrupts_stop_new_runs
from nb_agents.launch.run import Run
from nb_agents.nouns import count
from nb_agents.options import RunOptions
from nb_agents.presentation import text
from nb_agents.presentation.cards import answers_of, card_bundle
from nb_agents.presentation.markdown import sanitize
from nb_agents.presentation.panel_types import SweepState
from nb_agents.tools.functions import find_functions
from nb_agents.turns.groups import Group

_ONLY_ONE = ("session", "continue_", "from_turn", "settings", "detach")


def start_sweep(ip: Any, args: Any, task: str, options: RunOptions) -> Sweep:
    """Start the sweep of a cell, or continue it with its missing rows.

    Args:
        ip: The shell.
        args: The parsed arguments of the cell magic.
        task: The cell's text, with ``{{column}}`` placeholders. The agents can read each ``@path``.
        options: The options of each row's run.

    Returns:
        The sweep.

    Raises:
        UserError: The sweep can't be started.
    """
    names = ip.user_ns
    for option in _ONLY_ONE:
        if getattr(args, option):
            flag = "--set" if option == "settings" else f"--{option.rstrip('_').split('_')[0]}"
            raise TaskError(f"{flag} can't be combined with --over. Remove one of them.")
    if args.compare:
        return start_comparison(ip, args, task, options)
    team = team_from_options(args.config, args.model, args.bundles, args.backend)
    team = add_object_agents(team, args.agents or "", names)
    named = mentions(task)  # not in the rows, because the user did not type their values
    with interrupts_stop_new_runs(ip, wait=args.wait):
        sweep = map_verbatim(
            names[args.over] if args.over in names else args.over,
            named.task,
            team,
            recipe=args.recipe,
            name=args.name or "",
            limit=DEFAULT_LIMIT if args.limit is None else args.limit,
            max_cost=args.max_cost,
            score=_scorer(args.score, names, team) if args.score else None,
            retry_failed=args.retry_failed,
            tools=find_functions(args.tools, names) if args.tools else (),
            options=replace(options, context_paths=named.paths),
        )
        follow_group(ip, sweep, wait=args.wait)
    return sweep


def start_comparison(ip: Any, args: Any, task: str, options: RunOptions) -> Sweep:
    """Start the comparison of a cell, or continue it.

    The arguments and errors are those of `start_sweep`.
    """
    for option in ("config", "model", "backend", "agents", "recipe"):
        if getattr(args, option):
            raise TaskError(f"--{option} can't be combined with --compare. Remove one of them.")
    if not args.score:
        raise TaskError("--compare needs --score: a function or an agent that judges the answers.")
    names, named = ip.user_ns, mentions(task)
    with interrupts_stop_new_runs(ip, wait=args.wait):
        comparison = compare_verbatim(
            names[args.over] if args.over in names else args.over,
            named.task,
            *args.compare,
            score=_scorer(args.score, names, *args.compare),
            name=args.name or "",
            max_rows=args.max_rows,
            max_cost=args.max_cost,
            score_range=args.score_range or (0.0, 1.0),
            margin=args.margin or 0.0,
            seed=args.seed or 0,
            limit=DEFAULT_LIMIT if args.limit is None else args.limit,
            retry_failed=args.retry_failed,
            tools=find_functions(args.tools, names) if args.tools else (),
            options=replace(options, context_paths=named.paths),
        )
        follow_group(ip, comparison, wait=args.wait)
    return comparison


def _scorer(
    name: str, names: Mapping[str, Any], *teams: str | TeamSpec | None
) -> Callable[..., Any] | str:
    """Return the notebook's function with a name, or the name itself if it is an agent's id."""
    specs = [TeamSpec.from_file(team) if isinstance(team, str) else team for team in teams]
    is_agent = any(name == agent.id for spec in specs if spec for agent in spec.callable_agents)
    if is_agent and name in names:
        raise UserError(
            f"--score {name}: the notebook has a variable and the team an agent with this name. "
            "Rename one of them."
        )
    return name if is_agent else find_functions(name, names)[0]


class SweepPanel(Panel[SweepHandle]):
    """The panel of a sweep."""

    def __init__(self, sweep: SweepHandle) -> None:
        self._title, self._path = sweep_title(sweep.path), text.shown_path(sweep.path)
        self._notices = sweep_notices(sweep.path)
        self._opened: _Opened | None = None
        super().__init__(sweep, sweep.name)

    def _state(self) -> SweepState:
        view = self._work.view
        opened = self._opened.row() if self._opened and not view.is_over else None
        state = sweep_state(view, self._title, self._path, time.time(), opened, self._notices)
        if isinstance(self._work, TeamComparison):  # the mean score of both teams says nothing
            state["in_flight"] = self._work.effect_so_far()
        return state

    def _milestones(self, view: SweepView) -> Milestones:
        return Milestones((view.status, view.waiting > 0))

    def _bundle(self, view: SweepView) -> dict[str, Any]:
        return bundle_of(self._work, view)

    def _handle_action(self, content: Any) -> None:
        match content:
            case {"sweep": str()}:
                carry_out(content, self._work)
            case {"type": "open", "row": str(row)} if not self._work.view.is_over:
                self._open(row)
            case {"run": str()}:
                carry_out(content)

    def _open(self, row: str) -> None:
        """Open a row. "" closes the open row."""
        run = self._work.run_of(row) if row else None
        with LOCK:
            self._opened = _Opened(row, run) if run is not None else None
            self._outputs.draw()


class _Opened:
    """The open row of a sweep. Its card is created once."""

    def __init__(self, name: str, run: Run) -> None:
        self._name, self._run, self._card = name, run, ""
        self._answers: tuple[str, ...] = ()

    def row(self) -> OpenedRow:
        """Return the current state of the row."""
        view = self._run.view
        if view.is_over and not self._card:
            bundle = card_bundle(view, text.shown_path(self._run.path))
            self._card, self._answers = bundle["text/html"], tuple(answers_of(bundle))
        return OpenedRow(self._name, self._run.address, view, self._card, self._answers)


class _SweepCells:
    """Starts sweeps, and shows them in cells; see `nb_agents.jupyter.panel.GroupCells`."""

    def start(self, shell: Any, args: Any, task: str, options: RunOptions) -> Sweep:
        """Start the sweep of a cell, and show it."""
        return start_sweep(shell, args, task, options)

    def panel(self, group: Group) -> SweepPanel:
        """Return a new panel for a live sweep."""
        assert isinstance(group, SweepHandle)
        return SweepPanel(group)

    def card(self, group: Group) -> dict[str, Any]:
        """Return the card of a sweep as a mime bundle."""
        assert isinstance(group, SweepHandle)
        return bundle_of(group, group.view)

    def table(self, view: SweepView) -> dict[str, Any]:
        """Return a sweep's view as a mime bundle: a table with one row."""
        heads = ("sweep", "status", "rows", "progress", "used", "score")
        rows = ", ".join(words for words, _ in counts(view))
        chip, total = sweep_chip(view), count(view.total, "row")
        cells = (view.name, chip, total, rows, spent(view), score_of(view))
        return sanitize(table_bundle(heads, [cells]))


SWEEP_CELLS = _SweepCells()
"""Starts and shows sweeps in cells. The group kind refers to this object."""
