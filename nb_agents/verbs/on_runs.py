"""Verbs that act on runs and groups of runs, live in any process or ended."""

from __future__ import annotations

from typing import Any

from nb_agents.errors import UnknownRunError, UserError
from nb_agents.launch.finding import find_run
from nb_agents.launch.group_lookup import find_group, open_group
from nb_agents.presentation.asking import decide_gate
from nb_agents.presentation.text import REQUESTED_BY
from nb_agents.turns.groups import group_of_turn
from nb_agents.verbs.on_turns import find_turn_handle
from nb_agents.verbs.outcome import Reply, Work
from nb_agents.verbs.targets import target_of
from nb_agents.verbs.verb import Caller


def find_work(name: str, caller: Caller, agent: str | None = None) -> Work:
    """Find a run or group by name.

    Args:
        name: As for `find_live` and `find_group`. "" means the current run, or its group if it is
            in one.
        caller: The user interface that makes the request.
        agent: The agent to act on. If given, only runs match.

    Raises:
        UnknownRunError: No run or group matches.
        UserError: Several match.
    """
    group = None if agent else find_group(name, caller.root)
    if group is not None and not group.is_over:
        return group
    try:
        run = find_run(name, caller.root)
    except UnknownRunError:
        if group is None:
            raise
        return group
    if name or agent or (path := group_of_turn(run.path)) is None:
        return run
    return open_group(path) or run


def find_to_show(name: str, caller: Caller) -> Work:
    """Find a run or group to show. If there is none, return the handle of a turn on disk.

    Args:
        name: As for `find_work` and `find_turn_handle`.
        caller: The user interface that makes the request.

    Raises:
        UserError: Nothing matches, or several do.
    """
    try:
        return find_work(name, caller)
    except UnknownRunError:
        return find_turn_handle(name, caller)


def stop(
    work: Work, caller: Caller, *, now: bool = False, agent: str | None = None, reason: str = ""
) -> Reply:
    """Stop a run or sweep. Without a name, stops the current run of this notebook or directory.

    Args:
        work: The run or group.
        caller: The user interface that makes the request.
        now: Whether to interrupt calls in flight.
        agent: Id of the only agent to stop.
        reason: The reason, for the journal. By default, the name of the user who is signed in to
            the Jupyter server.

    Raises:
        UserError: There is no such agent, or `work` is a group.
    """
    target = target_of(work)
    reason = reason or (f"{REQUESTED_BY}{caller.user}" if caller.user else "")
    result = target.stop(now, agent, reason, caller.source)
    # Only for ended runs. For a live run in another process, this would read its journal.
    is_over = result.status == "finished" and not agent
    state = f" ({target.status})" if is_over else ""
    messages = {
        "finished": f"is already over{state}; nothing was changed.",
        "asked": "will stop as soon as its process can be reached.",
        "vetoed": "continues: its before_cancel hook vetoed the stop. --now can't be vetoed.",
        "stopping": f"is stopping; {target.after_stop}",
        "stopping-now": "is stopping now.",
    }
    subject = f"Agent {agent} of {target}" if agent else target.at_start
    facts = {target.noun: target.name, "changed": result.changed, "status": result.status}
    return Reply(f"{subject} {messages.get(result.status, result.status)}", facts)


def pause(work: Work, caller: Caller) -> Reply:
    """Pause a run or sweep at its next boundary. The pause does not count towards time limits."""
    target = target_of(work)
    target.set_paused(True)
    unpause = caller.entry_point.line("unpause", [target.name])
    message = f"is paused: calls in flight finish, {target.while_paused}. `{unpause}` continues it."
    return Reply(f"{target.at_start} {message}", status_of_work(work))


def unpause(work: Work, caller: Caller) -> Reply:
    """Unpause a run or sweep."""
    target = target_of(work)
    target.set_paused(False)
    return Reply(f"{target.at_start} continues.", status_of_work(work))


def say(work: Work, caller: Caller, *, message: str) -> Reply:
    """Send a message to the agents of a live run."""
    run = target_of(work).run
    run.say(message)
    return Reply("The agents receive it with their next request.", status_of_work(run))


def fold(work: Work, caller: Caller, *, agent: str | None = None, say: str = "") -> Reply:
    """Fold an agent's conversation, so that it needs less of the model's context window."""
    run = target_of(work).run
    if agent is None:
        agents = list(run.view.agents)
        if len(agents) != 1:
            raise UserError(f"Name the agent to fold with --agent: {', '.join(agents)}.")
        agent = agents[0]
    run.fold(agent, say)
    message = f"The conversation of {agent} is folded before its next model request."
    return Reply(message, status_of_work(run))


def approve(work: Work, caller: Caller, *, message: str = "", gate: str = "") -> Reply:
    """Approve the tool call or recipe gate that a run waits for."""
    run = target_of(work).run
    return Reply(decide_gate(run, True, message, gate), status_of_work(run))


def deny(work: Work, caller: Caller, *, message: str = "", gate: str = "") -> Reply:
    """Deny the tool call or gate that a run waits for. A recipe stops and asks again on resume."""
    run = target_of(work).run
    return Reply(decide_gate(run, False, message, gate), status_of_work(run))


def answer(work: Work, caller: Caller, *, message: str) -> Reply:
    """Answer the question that an agent of a run has asked."""
    run = target_of(work).run
    run.answer(message)
    return Reply(f"The answer was sent to run {run.id}.", status_of_work(run))


def status_of_work(work: Work) -> dict[str, Any]:
    """Return the name and state of a run or group, for JSON."""
    target = target_of(work)
    return {target.noun: target.name, "status": target.status}
