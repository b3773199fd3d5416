"""The fold of a turn's events to its view.

`apply` is a pure function; `fold` runs it over a journal. Nothing here reads a clock or a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeVar

from nb_agents import events as ev
from nb_agents.config.decision_tools import VOTE
from nb_agents.view.growing import grown
from nb_agents.view.run_view import (
    AgentPhase,
    AgentView,
    Learned,
    RunStatus,
    RunView,
    StopView,
    ToolView,
    UnsubmittedText,
    VoteView,
    call_so_far,
)
from nb_agents.view.steps import (
    MAX_TAIL,
    ApprovalView,
    apply_gate,
    apply_step,
    at_the_end,
    revised,
)


def fold(events: Iterable[ev.Event], view: RunView | None = None) -> RunView:
    """Fold events into a view.

    Args:
        events: In journal order.
        view: Where to start from; an empty one by default.

    Returns:
        The view after the last event.
    """
    view = view or RunView()
    for is_words, stretch in groupby(events, lambda event: isinstance(event, ev.TextStreamed)):
        for event in _joined(stretch) if is_words else stretch:
            view = apply(view, event)
    return view


def _joined(words: Iterable[Any]) -> Iterable[ev.TextStreamed]:
    """Join each agent's words of a stretch: added one by one, a long text costs its square."""
    parts: dict[tuple[str, str], list[ev.TextStreamed]] = {}
    seq = 0
    for event in words:
        key = (event.agent, _GROWS[event.channel])
        # Put in again, so that who wrote last is last: that says what the agent is doing.
        parts[key] = texts = parts.pop(key, [])
        texts.append(event)
        seq = event.seq or seq
    for texts in parts.values():
        text, at = "".join(part.text for part in texts), max(part.at for part in texts)
        yield replace(texts[-1], text=text, seq=seq, at=at)


MAX_NOTICE_CHARS = 300
MAX_LEARNED, MAX_LEARNED_CHARS = 8, 4_000
"""Results of an agent's tools that are kept, and characters of each: the journal has them whole."""

_GROWS: dict[ev.Channel, str] = {
    "text": "partial",
    "answer": "partial",
    "thinking": "thinking",
    "call": "partial_call",
}
"""What of its agent's view grows by the words of a channel."""


def apply(view: RunView, event: ev.Event) -> RunView:
    """Return the view after one event.

    Args:
        view: The view before.
        event: What happened.

    Returns:
        A new view; ``view`` is unchanged. An event about an unknown agent changes nothing but
        the position, so that a damaged journal still folds.
    """
    agent = getattr(event, "agent", None)
    # A stop's agent may be "": it is the run's then. One that is called becomes known by that.
    if agent is None or agent in view.agents or event.kind in ("stop_requested", "agent_called"):
        view = _APPLY[event.kind](view, event)
    return _changed(view, seq=event.seq or view.seq, last_at=max(view.last_at, event.at))


def _with_agent(view: RunView, agent: str, **changes: Any) -> RunView:
    changed = _changed(view.agents[agent], **changes)
    return _changed(view, agents=grown(view.agents, agent, changed))


_View = TypeVar("_View", AgentView, RunView)


def _changed(view: _View, **changes: Any) -> _View:
    """Return a copy of a view with fields replaced, five times as fast as `dataclasses.replace`."""
    new = object.__new__(type(view))
    new.__dict__.update(view.__dict__)
    new.__dict__.update(changes)
    return new


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
    )
    if not e.resumes:
        return fresh
    went_on = _go_on_from(view, fresh, e.again)
    if e.revised:
        went_on = replace(went_on, steps=MappingProxyType(revised(went_on.steps, e.revised)))
    # Who takes part again may change what was chosen.
    return replace(went_on, phase="coordinating", winner="") if e.again else went_on


def _go_on_from(past: RunView, fresh: RunView, again: Collection[str]) -> RunView:
    """Keep what a resumed turn brings along; what is spent and shown from now on starts at 0."""
    agents = {
        k: _brought_along(a, past.agents[k], again) if k in past.agents else a
        for k, a in fresh.agents.items()
    }
    return replace(
        fresh,
        agents=MappingProxyType(agents),
        phase=past.phase,
        winner=past.winner,
        attempt=past.attempt,
        said=past.said,
        # A unit stays that is over or holds others.
        steps=MappingProxyType(
            {k: s for k, s in past.steps.items() if s.is_over or s.unit not in ("agent", "bash")}
        ),
        approvals=tuple(a for a in past.approvals if a.approved),
        outlines=past.outlines,
        worktrees=past.worktrees,
    )


def _brought_along(fresh: AgentView, past: AgentView, again: Collection[str]) -> AgentView:
    """Keep what an agent brings along; one that was stopped alone stays as it was left."""
    kept = replace(
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
        return kept
    return replace(
        kept, phase="stopped", stop=past.stop, outcome=past.outcome, partial=past.partial
    )


_STOPPED = frozenset({"stopped", "killed", "never started"})


def _resting_phase(agent: AgentView) -> AgentPhase:
    if agent.error:
        return "failed"
    if agent.vote:
        return "voted"
    return "answered" if agent.answers else "waiting"


def _drafts(agent: AgentView, answer: str = "") -> dict[str, Any]:
    """Set the words of the last model call aside, and drop those that an answer now contains."""
    last = _without(UnsubmittedText(agent.partial, agent.thinking), *agent.answers, agent.returned)
    if call := call_so_far(agent.partial_call):
        last = replace(last, text=f"{last.text}\n[{agent.tool}] {call}".strip())
    kept = (*agent.drafts, last) if last.text or last.thinking else agent.drafts
    if answer:  # what was set aside before holds nothing of earlier ones
        rest = (_without(each, answer) for each in kept)
        kept = tuple(each for each in rest if each.text or each.thinking)
    return {"drafts": kept, "partial": "", "kept": "", "thinking": "", "partial_call": ""}


def _without(said: UnsubmittedText, *answers: str) -> UnsubmittedText:
    return replace(said, text=_rest(said.text, answers))


def _rest(words: str, answers: Iterable[str]) -> str:
    """Return the words that no answer contains, such as those around an answer."""
    words = words.strip()
    for answer in filter(None, map(str.strip, answers)):
        if words in answer:
            return ""
        words = words.replace(answer, "", 1).strip()
    return words


def _round_started(view: RunView, e: ev.RoundStarted) -> RunView:
    drafts = _drafts(view.agents[e.agent])
    return _with_agent(view, e.agent, round=e.number, phase="thinking", heard=e.heard, **drafts)


def _model_started(view: RunView, e: ev.ModelStarted) -> RunView:
    agent = view.agents[e.agent]
    # What is kept of an answer that goes on was not set aside: its words go on there.
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
        **drafts,
        # An agent that had failed or was stopped got another try when the turn was resumed.
        error="",
        outcome=None,
        stop="" if agent.outcome else agent.stop,
    )


def _text_streamed(view: RunView, e: ev.TextStreamed) -> RunView:
    agent = view.agents[e.agent]
    match e.channel:
        case "call":
            said = {"partial_call": agent.partial_call + e.text, "tool": e.tool}
        case "thinking":
            said = {"thinking": agent.thinking + e.text}
        case _:
            said = {"partial": agent.partial + e.text}
    phase = "thinking" if e.channel == "thinking" else "writing"
    return _with_agent(view, e.agent, phase=phase, streamed_at=max(agent.streamed_at, e.at), **said)


def _model_finished(view: RunView, e: ev.ModelFinished) -> RunView:
    agent, usage = view.agents[e.agent], e.usage
    cost = None if agent.cost is None or usage.cost is None else agent.cost + usage.cost
    # A vote is known once it is cast; any other call has events of its own.
    is_vote = agent.tool == VOTE.name
    return _with_agent(
        view,
        e.agent,
        in_flight=False,
        is_throttled=False,
        partial_call=agent.partial_call if is_vote else "",
        tool=agent.tool if is_vote else "",
        input_tokens=agent.input_tokens + usage.input_tokens,
        output_tokens=agent.output_tokens + usage.output_tokens,
        cost=cost,
    )


def _model_failed(view: RunView, e: ev.ModelFailed) -> RunView:
    is_throttled = e.is_throttled and e.retry_in_s is not None
    return _with_agent(view, e.agent, in_flight=False, phase="waiting", is_throttled=is_throttled)


def _model_cut(view: RunView, e: ev.ModelCut) -> RunView:
    return _with_agent(view, e.agent, in_flight=False, was_cut=True, is_throttled=False)


def _tool_started(view: RunView, e: ev.ToolStarted) -> RunView:
    call = ToolView(e.agent, e.call_id, e.tool, summary=e.summary)
    view = replace(view, tools=(*view.tools, call))
    return _with_agent(
        view, e.agent, phase="tool", tool=e.tool, tool_summary=e.summary, tool_tail=""
    )


def _tool_told(view: RunView, e: ev.ToolTold) -> RunView:
    tail = (view.agents[e.agent].tool_tail + e.text)[-MAX_TAIL:]
    return _with_agent(view, e.agent, tool_tail=tail)


def _tool_finished(view: RunView, e: ev.ToolFinished) -> RunView:
    tools = _ended(view.tools, e)
    view = _with_agent(
        replace(view, tools=tools), e.agent, phase="thinking", tool="", tool_summary=""
    )
    if e.agent not in view.agents or e.outcome not in ("ok", "error") or not e.result:
        return view
    ended = (each for each in reversed(tools) if (each.agent, each.call_id) == (e.agent, e.call_id))
    learned = Learned(f"{e.tool} {next(ended).summary}".strip(), e.result[:MAX_LEARNED_CHARS])
    return _with_agent(
        view, e.agent, learned=(*view.agents[e.agent].learned, learned)[-MAX_LEARNED:]
    )


def _ended(tools: tuple[ToolView, ...], e: ev.ToolFinished) -> tuple[ToolView, ...]:
    # From the end: what finishes has begun lately, and a turn may have thousands of calls.
    for place in range(len(tools) - 1, -1, -1):
        call = tools[place]
        if (call.agent, call.call_id) == (e.agent, e.call_id):
            over = replace(call, outcome=e.outcome, size=e.size, seconds=e.seconds, thread=e.thread)
            return (*tools[:place], over, *tools[place + 1 :])
    return (*tools, ToolView(e.agent, e.call_id, e.tool, e.outcome, size=e.size))


def _turn_rejected(view: RunView, e: ev.TurnRejected) -> RunView:
    return _with_agent(view, e.agent, phase="thinking")


def _reply_cut(view: RunView, e: ev.ReplyCut) -> RunView:
    drafts = _drafts(view.agents[e.agent], e.kept) | {"partial": e.kept, "kept": e.kept}
    return _with_agent(view, e.agent, phase="thinking", **drafts)


def _told(view: RunView, e: ev.Told) -> RunView:
    return view if e.heard is None else _with_agent(view, e.agent, heard=e.heard)


def _round_timed_out(view: RunView, e: ev.RoundTimedOut) -> RunView:
    if view.agents[e.agent].answers:
        return _with_agent(view, e.agent, phase="answered", in_flight=False, tool="")
    error = f"No answer within {e.limit_s:g} s and {e.grace_s:g} s to wrap up."
    return _agent_failed(view, ev.AgentFailed(agent=e.agent, error=error))


def _answer_given(view: RunView, e: ev.AnswerGiven) -> RunView:
    agents = {k: _without_vote(a) for k, a in view.agents.items()}
    mine = agents[e.agent]
    agents[e.agent] = replace(
        mine,
        answers=(*mine.answers, e.answer),
        phase="answered",
        learned=(),
        **_drafts(mine, e.answer),
    )
    return replace(view, agents=MappingProxyType(agents))


def _without_vote(agent: AgentView) -> AgentView:
    return replace(agent, vote=None, phase="waiting" if agent.phase == "voted" else agent.phase)


def _vote_cast(view: RunView, e: ev.VoteCast) -> RunView:
    vote = VoteView(e.target, e.reason)
    drafts = _drafts(replace(view.agents[e.agent], partial_call=""))
    return _with_agent(view, e.agent, vote=vote, phase="voted", tool="", **drafts)


def _vote_ignored(view: RunView, e: ev.VoteIgnored) -> RunView:
    return _with_agent(view, e.agent, phase="waiting", **_drafts(view.agents[e.agent]), tool="")


def _abstained(view: RunView, e: ev.Abstained) -> RunView:
    return _with_agent(view, e.agent, phase="answered", **_drafts(view.agents[e.agent]), tool="")


def _agent_failed(view: RunView, e: ev.AgentFailed) -> RunView:
    return _with_agent(
        view, e.agent, phase="failed", error=e.error, outcome="failed", in_flight=False
    )


def _agent_called(view: RunView, e: ev.AgentCalled) -> RunView:
    caller = view.agents.get(e.caller)
    depth = caller.depth + 1 if caller else 1
    called = AgentView(e.agent, e.model, caller=e.caller, workspace=e.workspace, depth=depth)
    items = list(view.agents.items())
    above = f"{e.caller}/"
    family = [
        n for n, (k, a) in enumerate(items) if k == e.caller or f"{a.caller}/".startswith(above)
    ]
    place = family[-1] + 1 if family else len(items)
    agents = dict([*items[:place], (e.agent, called), *items[place:]])
    return replace(view, agents=MappingProxyType(agents))


def _agent_ended(view: RunView, e: ev.AgentEnded) -> RunView:
    agent = view.agents[e.agent]
    if e.outcome == "finished":
        text = (e.text or agent.partial).strip()
        done = {"phase": "answered", "returned": text, **_drafts(agent, text)}
        return _with_agent(view, e.agent, outcome=e.outcome, **done)
    return _with_agent(view, e.agent, phase="stopped", outcome=e.outcome, in_flight=False, tool="")


def _presentation_started(view: RunView, e: ev.PresentationStarted) -> RunView:
    view = _with_agent(view, e.agent, phase="thinking")
    return replace(view, phase="presenting", winner=e.agent)


def _final_answer_given(view: RunView, e: ev.FinalAnswerGiven) -> RunView:
    mine = view.agents[e.agent]
    answers = mine.answers if e.answer in mine.answers else (*mine.answers, e.answer)
    drafts = _drafts(mine, e.answer)
    view = _with_agent(view, e.agent, answers=answers, phase="answered", **drafts)
    return replace(view, phase="presenting", winner=e.agent)


def _orchestration_restarted(view: RunView, e: ev.OrchestrationRestarted) -> RunView:
    why = " ".join(e.reason.split())
    notice = f"Attempt {e.attempt}: {e.agent} judged the final answer insufficient ({why})"
    agents = {k: _back_at_work(a) for k, a in view.agents.items()}
    return replace(
        view,
        agents=MappingProxyType(agents),
        phase="coordinating",
        winner="",
        attempt=e.attempt,
        notices=(*view.notices, notice[:MAX_NOTICE_CHARS]),
    )


def _back_at_work(agent: AgentView) -> AgentView:
    if agent.outcome or agent.error:
        return agent
    return replace(agent, vote=None, phase="waiting", **_drafts(agent))


def _recipe_loaded(view: RunView, e: ev.RecipeLoaded) -> RunView:
    return _changed(view, outlines=grown(view.outlines, e.step, e.outline))


def _step_event(view: RunView, e: Any) -> RunView:
    return _changed(view, steps=apply_step(view.steps, e))


_output_streamed = _step_failed = _step_event


def _step_started(view: RunView, e: ev.StepStarted) -> RunView:
    view = _step_event(view, e)
    if e.unit != "agent" or e.step in view.agents:
        return view
    return _changed(view, agents=grown(view.agents, e.step, AgentView(e.step, e.model)))


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


def _approval_asked(view: RunView, e: ev.ApprovalAsked) -> RunView:
    return replace(view, gates=apply_gate(view.gates, e), status="awaiting")


def _approval_given(view: RunView, e: ev.ApprovalGiven) -> RunView:
    gate, gates = view.gates.get(e.step), apply_gate(view.gates, e)
    given = ApprovalView(e.step, e.approved, e.message, e.by, e.at)
    is_input = gate is not None and gate.wants == "input"
    approvals = view.approvals if is_input else (*view.approvals, given)
    status: RunStatus = "awaiting" if gates or view.is_paused else "in-progress"
    return replace(view, gates=gates, approvals=approvals, status=status)


def _paused(view: RunView, e: ev.Paused) -> RunView:
    return replace(view, is_paused=True, status="awaiting")


def _continued(view: RunView, e: ev.Continued) -> RunView:
    return replace(view, is_paused=False, status="awaiting" if view.gates else "in-progress")


def _stop_requested(view: RunView, e: ev.StopRequested) -> RunView:
    if e.agent:
        known = view.agents.get(e.agent)
        if known is None or known.stop == "immediate":
            return view
        return _with_agent(view, e.agent, stop=e.level)
    first = view.stop or StopView(e.level, e.source, e.reason, e.at, e.grace_s, e.gate)
    # Notes of two threads may arrive the wrong way round; the level only rises.
    return replace(
        view, stop=first if first.level == "immediate" else replace(first, level=e.level)
    )


def _said(view: RunView, e: ev.Said) -> RunView:
    view = replace(view, said=(*view.said, e.text))
    if view.phase == "presenting":
        return view
    agents = {k: a if e.to not in ("", k) else _without_vote(a) for k, a in view.agents.items()}
    return replace(view, agents=MappingProxyType(agents))


def _noticed(view: RunView, e: ev.Noticed) -> RunView:
    is_saved = view.is_saved if e.is_saved is None else e.is_saved
    return replace(view, notices=(*view.notices, e.text), is_saved=is_saved)


def _context_changed(view: RunView, e: ev.ContextChanged) -> RunView:
    return replace(view, context_changes=(*view.context_changes, e))


def _worktree_based(view: RunView, e: ev.WorktreeBased) -> RunView:
    others = (each for each in view.worktrees if (each.agent, each.path) != (e.agent, e.path))
    return replace(view, worktrees=(*others, e))


def _end_checked(view: RunView, e: ev.EndChecked) -> RunView:
    return replace(view, ends=grown(view.ends, e.what, e))


def _turn_ended(view: RunView, e: ev.TurnEnded) -> RunView:
    if e.status == "completed" and e.winner in view.agents:
        # The presenter's words are the answer now, not something that was cut off.
        drafts = _drafts(view.agents[e.winner], e.answer)
        view = _with_agent(view, e.winner, phase="answered", **drafts)
    if e.files:
        size = sum(f.size for f in e.files)
        view = _files_listed(view, ev.FilesListed(files=e.files, count=len(e.files), size=size))
    return replace(
        view,
        steps=at_the_end(view.steps),
        status=e.status,
        phase=e.phase,
        winner=e.winner,
        answer=e.answer,
        outputs=e.outputs,
        next=e.next,
        is_paused=False,
        ended_at=e.at,
    )


def _files_listed(view: RunView, e: ev.FilesListed) -> RunView:
    return replace(view, files=e.files, file_count=e.count, file_bytes=e.size)


_SHOWN_NOWHERE = {
    "command_answered",  # what it changed has an event of its own
    "files_kept",
    "own_files_kept",
    "program_saved",
    "session_bound",
}
"""Kinds that change nothing of a view: a resume or another process reads them."""


def _function_of(kind: str) -> Callable[[RunView, Any], RunView]:
    """Return what a kind of event does to a view; a new kind that says nothing ends the import."""
    if kind in _SHOWN_NOWHERE:
        return lambda view, _: view
    change: Callable[[RunView, Any], RunView] | None = globals().get(f"_{kind}")
    if change is None:
        raise NotImplementedError(
            f"Nothing says what {ev.KINDS[kind].__name__} does to a view. Write "
            f"_{kind}(view, event) in {__file__}, or add {kind!r} to _SHOWN_NOWHERE there."
        )
    return change


_APPLY = {kind: _function_of(kind) for kind in ev.KINDS}
