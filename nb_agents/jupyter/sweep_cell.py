"""The cell of a sweep: what ``%%agents --over`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nb_agents.config.team import TeamSpec, chosen_team, with_objects
from nb_agents.config.uploads import mentions
from nb_agents.errors import TaskError, UserError
from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.panel import show_sweep
from nb_agents.jupyter.waiting import pressing_new, waits_for
from nb_agents.loop import interrupt_calls
from nb_agents.options import RunOptions
from nb_agents.tools.functions import find_functions

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep_handle import SweepHandle

_ONLY_ONE = ("session", "continue_", "from_turn", "settings", "detach")


def work_over(ip: Any, args: Any, task: str, options: RunOptions) -> Any:
    """Start the sweep of a cell, or go on with it.

    Args:
        ip: The shell.
        args: The line's.
        task: The cell's text, with ``{{column}}`` in it; the agents may read each ``@path``.
        options: How each row's run goes.

    Returns:
        The sweep.

    Raises:
        UserError: It can't be started.
    """
    from nb_agents.sweeps.mapping import DEFAULT_LIMIT, map

    names = ip.user_ns
    for option in _ONLY_ONE:
        if getattr(args, option):
            flag = "--set" if option == "settings" else f"--{option.rstrip('_').split('_')[0]}"
            raise TaskError(f"{flag} is for one run, and --over starts many. Drop one of them.")
    team = chosen_team(args.config, args.model, args.bundles)
    team = with_objects(team, args.agents or "", names)
    named = mentions(task)  # of what stands in the rows nobody has typed it
    with pressing_new(ip, wait=args.wait):
        sweep = map(
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
        follow_sweep(ip, sweep, wait=args.wait)
    return sweep


def follow_sweep(ip: Any, sweep: SweepHandle, *, wait: bool) -> None:
    """Show a sweep, and wait for it if asked to, or if nobody could see it later.

    Args:
        ip: The shell.
        sweep: The sweep.
        wait: Whether the person asked to wait.
    """
    has_front_end, waits = kernel.has_front_end(ip), waits_for(ip, wait)
    # From here on, as an interrupt may come while the panel is made.
    with interrupt_calls(sweep.press) if waits else nullcontext():
        if has_front_end:
            show_sweep(sweep)
        if waits:
            sweep.wait()
        if not has_front_end:
            display({"text/plain": repr(sweep)})


def _scorer(
    name: str, names: Mapping[str, Any], team: str | TeamSpec | None
) -> Callable[..., Any] | str:
    """Find who gives the scores: a function of the notebook, or an agent of the team, by its id."""
    spec = TeamSpec.from_file(team) if isinstance(team, str) else team
    is_agent = spec is not None and name in {agent.id for agent in spec.callable_agents}
    if is_agent and name in names:
        raise UserError(
            f"--score {name}: the notebook has a variable and the team an agent of that name. "
            "Rename one of them."
        )
    return name if is_agent else find_functions(name, names)[0]
