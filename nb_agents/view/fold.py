"""Folds the events of a turn into its view.

`apply` is a pure function, and `fold` applies it to a journal. No clock and no disk is read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeVar

from nb_agents import events as ev
from nb_agents.config.decision_tools import VOTE
from nb_agents.view.growing import with_entry
from nb_agents.view.run_view import (
    AgentPhase,
    AgentView,
    FoldView,
    ProviderWait,
    ReceivedResult,
    RunStatus,
    RunView,
    StopView,
    ToolView,
    UnsubmittedText,
    VoteView,
    call_so_far,
)
from nb_agents.view.steps import (
    MAX_PROMPT,
    MAX_TAIL,
    ApprovalView,
    apply_gate,
    apply_step,
    steps_at_end,
    with_outputs,
)

VIEW: ev.Fold[RunView] = ev.Fold("view")
"""The handlers that update the view for each kind of event."""


def fold(events: Iterable[ev.Event], view: RunView | None = None) -> RunView:
    """Fold events into a view.

    Args:
        events: The events in journal order.
        view: The view to start with. By default, an empty one.

    Returns:
        The view after the last event.
    """
    view = view or RunView()
    for is_text, group in groupby(events, lambda event: isinstance(event, ev.TextStreamed)):
        for event in _joined(group) if is_text else group:
            view = apply(view, event)
    return view


def _joined(streamed: Iterable[Any]) -> Iterable[ev.TextStreamed]:
    """Join the streamed text of each agent.

    Appending it chunk by chunk would take quadratic time.
    """
    parts: dict[tuple[str, str], list[ev.TextStreamed]] = {}
    seq = 0
    for event in streamed:
        key = (event.agent, _GROWS[event.channel])
        # Moved to the end, because the last text decides the agent's phase.
        parts[key] = texts = parts.pop(key, [])
        texts.append(event)
        seq = event.seq or seq
    for texts in parts.values():
        text, at = "".join(part.text for part in texts), max(part.at for part in texts)
        yield replace(texts[-1], text=text, seq=seq, at=at)


MAX_NOTICE_CHARS = 300
MAX_LEARNED, MAX_LEARNED_CHARS = 8, 4_000
"""Maximum number of tool results stored per agent, and maximum length of each in characters."""

_GROWS: dict[ev.Channel, str] = {
    "text": "partial",
    "answer": "partial",
    "thinking": "thinking",
    "call": "partial_call",
}
"""The `AgentView` attribute to which the text of each channel is appended."""


def apply(view: RunView, event: ev.Event) -> RunView:
    """Return the view after an event. ``view`` is unchanged.

    An event about an unknown agent changes only the position, so damaged journals can be folded.
    """
    agent = getattr(event, "agent", None)
    # The agent of a run's stop is "". A called agent is unknown until this event.
    if agent is None or agent in view.agents or event.kind in ("stop_requested", "agent_called"):
        view = VIEW.apply(view, event)
    return _changed(view, seq=event.seq or view.seq, last_at=max(view.last_at, event.at))


def _with_agent(view: RunView, agent: str, **changes: Any) -> RunView:
    changed = _changed(view.agents[agent], **changes)
    return _changed(view, agents=with_entry(view.agents, agent, changed))


_View = TypeVar("_View", AgentView, RunView)


def _changed(view: _View, **changes: Any) -> _View:
    """Return a copy of a view with changed fields. Five times as fast as `dataclasses.replace`."""
    new = object.__new__(type(view))
    new.__dict__.update(view.__dict__)
    new.__dict__.update(changes)
    return new


@VIEW.on(ev.TurnStarted)
def _turn_started(view: RunView, e: ev.TurnStarted) -> RunView:
    agents = {a.id: AgentView(a.id, a.model) for a in e.agents}
    fresh = RunView(
        session=e.session,
        turn=e.turn,
        task=e.task,
        status="in-progress",
        agents=MappingProxyType(agents),
        started_at=e.at,
        timeout_s=e.timeout_s,
        notices=e.notices,
        resumes=e.resumes,
        point=e.point,
        recipe=e.recipe,
        origin=e.origin,
        digest=e.digest,
        max_cost=e.max_cost,
        max_tokens=e.max_tokens,
        on_budget=e.on_budget,
    )
    if not e.resumes:
        return fresh
    resumed = _resumed(view, fresh, e.again)
    if e.revised:
        resumed = replace(resumed, steps=MappingProxyType(with_outputs(resumed.steps, e.revised)))
    # Agents that work again may change the result of the vote.
    return replace(resumed, phase="coordinating", winner="") if e.again else resumed


def _resumed(past: RunView, fresh: RunView, again: Collection[str]) -> RunView:
    """Return a new turn's view with the work of the turn it resumes. Usage starts at 0."""
    agents = {
        k: _resumed_agent(a, past.agents[k], again) if k in past.agents else a
        for k, a in fresh.agents.items()
    }
    return replace(
        fresh,
        agents=MappingProxyType(agents),
        tokens_before=past.task_tokens,
        cost_before=past.task_cost,
        phase=past.phase,
        winner=past.winner,
        attempt=past.attempt,
        said=past.said,
        # Finished units stay, and units that contain others.
        steps=MappingProxyType(
            {k: s for k, s in past.steps.items() if s.is_over or s.unit not in ("agent", "bash")}
        ),
        approvals=tuple(a for a in past.approvals if a.approved),
        outlines=past.outlines,
        worktrees=past.worktrees,
        extension_state=past.extension_state,
    )


def _resumed_agent(fresh: AgentView, past: AgentView, again: Collection[str]) -> AgentView:
    """Return an agent's view with its earlier work.

    An agent that was stopped individually stays stopped.
    """
    agent = replace(
        fresh,
        round=past.round,
        calls=past.calls,
        answers=past.answers,
        vote=past.vote,
        phase=_resting_phase(past),
        heard=past.heard,
        error=past.error,
        outcome="failed" if past.error else None,
    )
    is_out = past.stop and past.outcome in _STOPPED and past.id not in again
    if not is_out:
        return agent
    return replace(
        agent, phase="stopped", stop=past.stop, outcome=past.outcome, partial=past.partial
    )


_STOPPED = frozenset({"stopped", "killed", "never started"})


def _resting_phase(agent: AgentView) -> AgentPhase:
    if agent.error:
        return "failed"
    if agent.vote:
        return "voted"
    return "answered" if agent.answers else "waiting"


def _drafts(agent: AgentView, answer: str = "") -> dict[str, Any]:
    """Return view fields with the last call's text moved to the drafts, except for answers."""
    last = _without(UnsubmittedText(agent.partial, agent.thinking), *agent.answers, agent.returned)
    if call := call_so_far(agent.partial_call):
        last = replace(last, text=f"{last.text}\n[{agent.tool}] {call}".strip())
    drafts = (*agent.drafts, last) if last.text or last.thinking else agent.drafts
    if answer:  # earlier answers were removed from the drafts before
        rest = (_without(each, answer) for each in drafts)
        drafts = tuple(each for each in rest if each.text or each.thinking)
    return {"drafts": drafts, "partial": "", "kept": "", "thinking": "", "partial_call": ""}


def _without(draft: UnsubmittedText, *answers: str) -> UnsubmittedText:
    return replace(draft, text=_unanswered_text(draft.text, answers))


def _unanswered_text(words: str, answers: Iterable[str]) -> str:
    """Return text without the answers in it, or "" if an answer contains all of it."""
    words = words.strip()
    for answer in filter(None, map(str.strip, answers)):
        if words in answer:
            return ""
        words = words.replace(answer, "", 1).strip()
    return words


@VIEW.on(ev.RoundStarted)
def _round_started(view: RunView, e: ev.RoundStarted) -> RunView:
    drafts = _drafts(view.agents[e.agent])
    return _with_agent(view, e.agent, round=e.number, phase="thinking", heard=e.heard, **drafts)


@VIEW.on(ev.ModelStarted)
def _model_started(view: RunView, e: ev.ModelStarted) -> RunView:
    agent = view.agents[e.agent]
    # The beginning of a continued answer is not a draft. New text is appended to it.
    drafts = _drafts(replace(agent, partial=agent.partial.removeprefix(agent.kept)))
    drafts |= {"partial": agent.kept, "kept": agent.kept}
    return _with_agent(
        view,
        e.agent,
        calls=e.call,
        in_flight=True,
        streamed_at=max(agent.streamed_at, e.at),
        was_cut=False,
        phase="thinking",
        tool="",
        tool_summary="",
        wait=None,
        **drafts,
        # A resume gives agents that failed or were stopped another try.
        is_too_long=False,
        error="",
        outcome=None,
        stop="" if agent.outcome else agent.stop,
    )


@VIEW.on(ev.TextStreamed)
def _text_streamed(view: RunView, e: ev.TextStreamed) -> RunView:
    agent = view.agents[e.agent]
    match e.channel:
        case "call":
            changes = {"partial_call": agent.partial_call + e.text, "tool": e.tool}
        case "thinking":
            changes = {"thinking": agent.thinking + e.text}
        case _:
            changes = {"partial": agent.partial + e.text}
    phase = "thinking" if e.channel == "thinking" else "writing"
    streamed_at = max(agent.streamed_at, e.at)
    return _with_agent(view, e.agent, phase=phase, streamed_at=streamed_at, **changes)


@VIEW.on(ev.ModelFinished)
def _model_finished(view: RunView, e: ev.ModelFinished) -> RunView:
    agent = view.agents[e.agent]
    # A vote stays visible until it is cast. Other calls have their own events.
    is_vote = agent.tool == VOTE.name
    return _with_agent(
        view,
        e.agent,
        in_flight=False,
        is_throttled=False,
        wait=None,
        partial_call=agent.partial_call if is_vote else "",
        tool=agent.tool if is_vote else "",
        **_ended_call(agent, e.call, e.usage),
    )


@VIEW.on(ev.UsageUpdated)
def _usage_updated(view: RunView, e: ev.UsageUpdated) -> RunView:
    agent = view.agents[e.agent]
    open_usage = {**agent.open_usage, e.call: e.usage}
    return _with_agent(view, e.agent, **_usage(agent.ended_usage, open_usage))


@VIEW.on(ev.ContextFolded)
def _context_folded(view: RunView, e: ev.ContextFolded) -> RunView:
    return _with_agent(view, e.agent, folds=(*view.agents[e.agent].folds, fold_view(e)))


def fold_view(e: ev.ContextFolded) -> FoldView:
    """Return a fold as views show it."""
    cost = e.summary_usage.cost if e.summary_usage else None
    parts = len(e.references)
    return FoldView(e.level, parts, e.before, e.after, e.summary, cost, e.ledger)


def _ended_call(agent: AgentView, call: int, usage: ev.Usage | None) -> dict[str, Any]:
    """Return the view fields for an agent's usage after a call has ended.

    If `usage` is None, the call adds nothing.
    """
    open_usage = {number: each for number, each in agent.open_usage.items() if number != call}
    ended_usage = agent.ended_usage if usage is None else agent.ended_usage + usage
    return _usage(ended_usage, open_usage)


def _usage(ended_usage: ev.Usage, open_usage: Mapping[int, ev.Usage]) -> dict[str, Any]:
    total = sum(open_usage.values(), ended_usage)
    return {
        "ended_usage": ended_usage,
        "open_usage": MappingProxyType(open_usage),
        "input_tokens": total.input_tokens,
        "output_tokens": total.output_tokens,
        "cost": total.cost,
        "is_estimated": total.estimated,
    }


@VIEW.on(ev.ModelFailed)
def _model_failed(view: RunView, e: ev.ModelFailed) -> RunView:
    is_throttled = e.is_throttled and e.retry_in_s is not None
    used = _ended_call(view.agents[e.agent], e.call, e.usage)
    wait = None
    if e.waits_for and e.retry_at is not None:
        wait = ProviderWait(e.waits_for, e.retry_at, e.wait_limit_s or 0.0, e.error)
    return _with_agent(
        view,
        e.agent,
        in_flight=False,
        phase="waiting",
        is_throttled=is_throttled,
        is_too_long=e.is_too_long,
        wait=wait,
        **used,
    )


BATCH_LIMIT_S = 24 * 3600.0
"""Seconds after which batches of OpenAI and Anthropic end in any case."""


@VIEW.on(ev.ModelBatched)
def _model_batched(view: RunView, e: ev.ModelBatched) -> RunView:
    wait = ProviderWait("batch", (e.sent_at or e.at) + BATCH_LIMIT_S, BATCH_LIMIT_S, "", e.sent_at)
    return _with_agent(view, e.agent, in_flight=False, phase="waiting", wait=wait)


@VIEW.on(ev.ModelCut)
def _model_cut(view: RunView, e: ev.ModelCut) -> RunView:
    agent = view.agents[e.agent]
    return _with_agent(
        view,
        e.agent,
        in_flight=False,
        was_cut=True,
        is_throttled=False,
        uncounted_calls=agent.uncounted_calls + (e.usage is None),
        **_ended_call(agent, e.call, e.usage),
    )


@VIEW.on(ev.ToolStarted)
def _tool_started(view: RunView, e: ev.ToolStarted) -> RunView:
    call = ToolView(e.agent, e.call_id, e.tool, summary=e.summary)
    view = replace(view, tools=(*view.tools, call))
    return _with_agent(
        view, e.agent, phase="tool", tool=e.tool, tool_summary=e.summary, tool_tail=""
    )


@VIEW.on(ev.ToolNotice)
def _tool_told(view: RunView, e: ev.ToolNotice) -> RunView:
    tail = (view.agents[e.agent].tool_tail + e.text)[-MAX_TAIL:]
    return _with_agent(view, e.agent, tool_tail=tail)


@VIEW.on(ev.ToolFinished)
def _tool_finished(view: RunView, e: ev.ToolFinished) -> RunView:
    tools = _end_call(view.tools, e)
    view = _with_agent(
        replace(view, tools=tools), e.agent, phase="thinking", tool="", tool_summary=""
    )
    if e.agent not in view.agents or e.outcome not in ("ok", "error") or not e.result:
        return view
    matching_calls = (
        each for each in reversed(tools) if (each.agent, each.call_id) == (e.agent, e.call_id)
    )
    learned = ReceivedResult(
        f"{e.tool} {next(matching_calls).summary}".strip(), e.result[:MAX_LEARNED_CHARS]
    )
    return _with_agent(
        view, e.agent, learned=(*view.agents[e.agent].learned, learned)[-MAX_LEARNED:]
    )


def _end_call(tools: tuple[ToolView, ...], e: ev.ToolFinished) -> tuple[ToolView, ...]:
    # From the end, because a turn may have thousands of calls and open ones are recent.
    for index in range(len(tools) - 1, -1, -1):
        call = tools[index]
        if (call.agent, call.call_id) == (e.agent, e.call_id):
            over = replace(call, outcome=e.outcome, size=e.size, seconds=e.seconds, thread=e.thread)
            return (*tools[:index], over, *tools[index + 1 :])
    return (*tools, ToolView(e.agent, e.call_id, e.tool, e.outcome, size=e.size))


@VIEW.on(ev.TurnRejected)
def _turn_rejected(view: RunView, e: ev.TurnRejected) -> RunView:
    return _with_agent(view, e.agent, phase="thinking")


@VIEW.on(ev.ReplyCut)
def _reply_cut(view: RunView, e: ev.ReplyCut) -> RunView:
    drafts = _drafts(view.agents[e.agent], e.kept) | {"partial": e.kept, "kept": e.kept}
    return _with_agent(view, e.agent, phase="thinking", **drafts)


@VIEW.on(ev.NoteSent)
def _note_received(view: RunView, e: ev.NoteSent) -> RunView:
    return view if e.heard is None else _with_agent(view, e.agent, heard=e.heard)


@VIEW.on(ev.RoundTimedOut)
def _round_timed_out(view: RunView, e: ev.RoundTimedOut) -> RunView:
    if view.agents[e.agent].answers:
        return _with_agent(view, e.agent, phase="answered", in_flight=False, tool="")
    error = f"No answer within {e.limit_s:g} s and {e.grace_s:g} s to wrap up."
    return _agent_failed(view, ev.AgentFailed(agent=e.agent, error=error))


@VIEW.on(ev.AnswerGiven)
def _answer_given(view: RunView, e: ev.AnswerGiven) -> RunView:
    agents = {k: _without_vote(a) for k, a in view.agents.items()}
    author = agents[e.agent]
    agents[e.agent] = replace(
        author,
        answers=(*author.answers, e.answer),
        phase="answered",
        learned=(),
        **_drafts(author, e.answer),
    )
    return replace(view, agents=MappingProxyType(agents))


def _without_vote(agent: AgentView) -> AgentView:
    return replace(agent, vote=None, phase="waiting" if agent.phase == "voted" else agent.phase)


@VIEW.on(ev.VoteCast)
def _vote_cast(view: RunView, e: ev.VoteCast) -> RunView:
    vote = VoteView(e.target, e.reason)
    drafts = _drafts(replace(view.agents[e.agent], partial_call=""))
    return _with_agent(view, e.agent, vote=vote, phase="voted", tool="", **drafts)


@VIEW.on(ev.VoteIgnored)
def _vote_ignored(view: RunView, e: ev.VoteIgnored) -> RunView:
    return _with_agent(view, e.agent, phase="waiting", **_drafts(view.agents[e.agent]), tool="")


@VIEW.on(ev.Abstained)
def _abstained(view: RunView, e: ev.Abstained) -> RunView:
    return _with_agent(view, e.agent, phase="answered", **_drafts(view.agents[e.agent]), tool="")


@VIEW.on(ev.AgentFailed)
def _agent_failed(view: RunView, e: ev.AgentFailed) -> RunView:
    return _with_agent(
        view, e.agent, phase="failed", error=e.error, outcome="failed", in_flight=False
    )


@VIEW.on(ev.AgentCalled)
def _agent_called(view: RunView, e: ev.AgentCalled) -> RunView:
    caller = view.agents.get(e.caller)
    depth = caller.depth + 1 if caller else 1
    agent = AgentView(e.agent, e.model, caller=e.caller, workspace=e.workspace, depth=depth)
    items = list(view.agents.items())
    above = f"{e.caller}/"
    family = [
        n for n, (k, a) in enumerate(items) if k == e.caller or f"{a.caller}/".startswith(above)
    ]
    index = family[-1] + 1 if family else len(items)
    agents = dict([*items[:index], (e.agent, agent), *items[index:]])
    return replace(view, agents=MappingProxyType(agents))


@VIEW.on(ev.AgentEnded)
def _agent_ended(view: RunView, e: ev.AgentEnded) -> RunView:
    agent = view.agents[e.agent]
    if e.outcome == "finished":
        text = (e.text or agent.partial).strip()
        changes = {"phase": "answered", "returned": text, **_drafts(agent, text)}
        return _with_agent(view, e.agent, outcome=e.outcome, **changes)
    return _with_agent(view, e.agent, phase="stopped", outcome=e.outcome, in_flight=False, tool="")


@VIEW.on(ev.PresentationStarted)
def _presentation_started(view: RunView, e: ev.PresentationStarted) -> RunView:
    view = _with_agent(view, e.agent, phase="thinking")
    return replace(view, phase="presenting", winner=e.agent)


@VIEW.on(ev.FinalAnswerGiven)
def _final_answer_given(view: RunView, e: ev.FinalAnswerGiven) -> RunView:
    author = view.agents[e.agent]
    answers = author.answers if e.answer in author.answers else (*author.answers, e.answer)
    drafts = _drafts(author, e.answer)
    view = _with_agent(view, e.agent, answers=answers, phase="answered", **drafts)
    return replace(view, phase="presenting", winner=e.agent)


@VIEW.on(ev.OrchestrationRestarted)
def _orchestration_restarted(view: RunView, e: ev.OrchestrationRestarted) -> RunView:
    why = " ".join(e.reason.split())
    notice = f"Attempt {e.attempt}: {e.agent} judged the final answer insufficient ({why})"
    agents = {k: _restarted(a) for k, a in view.agents.items()}
    return replace(
        view,
        agents=MappingProxyType(agents),
        phase="coordinating",
        winner="",
        attempt=e.attempt,
        notices=(*view.notices, notice[:MAX_NOTICE_CHARS]),
    )


def _restarted(agent: AgentView) -> AgentView:
    if agent.outcome or agent.error:
        return agent
    return replace(agent, vote=None, phase="waiting", **_drafts(agent))


@VIEW.on(ev.RecipeLoaded)
def _recipe_loaded(view: RunView, e: ev.RecipeLoaded) -> RunView:
    return _changed(view, outlines=with_entry(view.outlines, e.step, e.outline))


@VIEW.on(ev.OutputStreamed, ev.StepFailed)
def _step_event(view: RunView, e: Any) -> RunView:
    return _changed(view, steps=apply_step(view.steps, e))


@VIEW.on(ev.StepStarted)
def _step_started(view: RunView, e: ev.StepStarted) -> RunView:
    view = _step_event(view, e)
    if e.unit != "agent" or e.step in view.agents:
        return view
    return _changed(view, agents=with_entry(view.agents, e.step, AgentView(e.step, e.model)))


@VIEW.on(ev.StepFinished)
def _step_finished(view: RunView, e: ev.StepFinished) -> RunView:
    view = _step_event(view, e)
    agent = view.agents.get(e.step)
    if agent is None or e.outcome == "skipped":
        return view
    if e.outcome == "failed":
        return _with_agent(view, e.step, phase="failed", error=e.why, outcome="failed")
    text = e.output if isinstance(e.output, str) else agent.partial
    answer = text if text.strip() else str(e.output)
    drafts = _drafts(agent, answer)
    return _with_agent(view, e.step, phase="answered", answers=(answer,), learned=(), **drafts)


@VIEW.on(ev.ApprovalAsked)
def _approval_asked(view: RunView, e: ev.ApprovalAsked) -> RunView:
    return replace(view, gates=apply_gate(view.gates, e), status="awaiting")


@VIEW.on(ev.ApprovalGiven)
def _approval_given(view: RunView, e: ev.ApprovalGiven) -> RunView:
    gate, gates = view.gates.get(e.step), apply_gate(view.gates, e)
    prompt = "" if gate is None else gate.prompt[:MAX_PROMPT]
    approval = ApprovalView(e.step, e.approved, e.message, e.by, e.at, prompt)
    is_input = gate is not None and gate.wants == "input"
    approvals = view.approvals if is_input else (*view.approvals, approval)
    status: RunStatus = "awaiting" if gates or view.is_paused else "in-progress"
    return replace(view, gates=gates, approvals=approvals, status=status)


@VIEW.on(ev.Paused)
def _paused(view: RunView, e: ev.Paused) -> RunView:
    return replace(view, is_paused=True, status="awaiting")


@VIEW.on(ev.Continued)
def _continued(view: RunView, e: ev.Continued) -> RunView:
    return replace(view, is_paused=False, status="awaiting" if view.gates else "in-progress")


@VIEW.on(ev.TimeLimitChanged)
def _time_limit_changed(view: RunView, e: ev.TimeLimitChanged) -> RunView:
    return replace(view, timeout_s=e.timeout_s)


@VIEW.on(ev.BudgetRaised)
def _budget_raised(view: RunView, e: ev.BudgetRaised) -> RunView:
    raised = replace(view, max_cost=e.max_cost, max_tokens=e.max_tokens)
    return replace(raised, next_max_cost=None, next_max_tokens=None)


@VIEW.on(ev.BudgetReached)
def _budget_reached(view: RunView, e: ev.BudgetReached) -> RunView:
    return replace(view, next_max_cost=e.max_cost, next_max_tokens=e.max_tokens)


@VIEW.on(ev.StopRequested)
def _stop_requested(view: RunView, e: ev.StopRequested) -> RunView:
    if e.agent:
        agent = view.agents.get(e.agent)
        if agent is None or agent.stop == "immediate":
            return view
        return _with_agent(view, e.agent, stop=e.level)
    first = view.stop or StopView(e.level, e.source, e.reason, e.at, e.grace_s, e.gate)
    # Events from two threads may arrive in the wrong order, but the level only rises.
    return replace(
        view, stop=first if first.level == "immediate" else replace(first, level=e.level)
    )


@VIEW.on(ev.UserMessage)
def _user_message(view: RunView, e: ev.UserMessage) -> RunView:
    view = replace(view, said=(*view.said, e.text))
    if view.phase == "presenting":
        return view
    agents = {k: a if e.to not in ("", k) else _without_vote(a) for k, a in view.agents.items()}
    return replace(view, agents=MappingProxyType(agents))


@VIEW.on(ev.Noticed)
def _noticed(view: RunView, e: ev.Noticed) -> RunView:
    is_saved = view.is_saved if e.is_saved is None else e.is_saved
    return replace(view, notices=(*view.notices, e.text), is_saved=is_saved)


@VIEW.on(ev.ContextChanged)
def _context_changed(view: RunView, e: ev.ContextChanged) -> RunView:
    return replace(view, context_changes=(*view.context_changes, e))


@VIEW.on(ev.WorktreeBased)
def _worktree_based(view: RunView, e: ev.WorktreeBased) -> RunView:
    other_worktrees = (
        each for each in view.worktrees if (each.agent, each.path) != (e.agent, e.path)
    )
    return replace(view, worktrees=(*other_worktrees, e))


@VIEW.on(ev.ProcessExitChecked)
def _end_checked(view: RunView, e: ev.ProcessExitChecked) -> RunView:
    return replace(view, ends=with_entry(view.ends, e.what, e))


@VIEW.on(ev.TurnEnded)
def _turn_ended(view: RunView, e: ev.TurnEnded) -> RunView:
    if e.status == "completed" and e.winner in view.agents:
        # The presenter's text is the answer, not a partial text.
        drafts = _drafts(view.agents[e.winner], e.answer)
        view = _with_agent(view, e.winner, phase="answered", **drafts)
    if e.files:
        size = sum(f.size for f in e.files)
        view = _files_listed(view, ev.FilesListed(files=e.files, count=len(e.files), size=size))
    return replace(
        view,
        steps=steps_at_end(view.steps),
        status=e.status,
        phase=e.phase,
        winner=e.winner,
        answer=e.answer,
        outputs=e.outputs,
        next=e.next,
        is_paused=False,
        ended_at=e.at,
    )


@VIEW.on(ev.FilesListed)
def _files_listed(view: RunView, e: ev.FilesListed) -> RunView:
    return replace(view, files=e.files, file_count=e.count, file_bytes=e.size)


# These are read by a resume or another process. Changes made by a command have their own events.
VIEW.ignore(
    ev.CommandAnswered,
    ev.FoldRequested,
    ev.FilesSaved,
    ev.UserFilesSaved,
    ev.AgentStateSaved,
    ev.SessionBound,
)
VIEW.check()
