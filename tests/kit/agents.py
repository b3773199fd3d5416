"""Rounds, decisions, votes and prompts of agents."""

from nb_agents.agents import decisions, prompts, runner, stream_buffer, subagents, voting
from nb_agents.agents.ballot import Ballot
from nb_agents.agents.context_folding import ContextFolder, Folding, Summary
from nb_agents.agents.decisions import (
    Abstention,
    Answered,
    Decision,
    Note,
    Offer,
    Rejected,
    Stale,
    Submitted,
    TeamContext,
    Verdict,
    Voted,
    decision_tools,
)
from nb_agents.agents.folded_history import History, Segment, ledger_lines
from nb_agents.agents.memory_notes import MAX_SHOWN_CHARS, memory_note
from nb_agents.agents.message_json import Opening, dump_messages, load_messages
from nb_agents.agents.model_runner import ModelRound, ModelRunner, requested
from nb_agents.agents.past_wait import PastWait
from nb_agents.agents.placed_calls import PLACED_CALLS, TEXT_PLACE, is_place
from nb_agents.agents.prompts import (
    MAY_HAVE_HAPPENED,
    Elapsed,
    duration,
    is_late,
    round_is_over,
    time_note,
)
from nb_agents.agents.replay import REPLAY, Exchange, Past, PastRound, replay
from nb_agents.agents.replies import MAX_PAUSES
from nb_agents.agents.runner import Promise, Round
from nb_agents.agents.runner_types import runner_for
from nb_agents.agents.stop_scope import PauseGate, RunPolicy, StopScope, bind_policy, current_policy
from nb_agents.agents.stream_buffer import (
    Cut,
    StreamBuffer,
    cut_message,
    cut_of,
    join,
    mark_incomplete,
)
from nb_agents.agents.subagents import SubAgents
from nb_agents.agents.team_driver import Team
from nb_agents.agents.voting import VOTING, Rules, rules_of, similarity

__all__ = [
    "ledger_lines",
    "Abstention",
    "Answered",
    "Ballot",
    "ContextFolder",
    "Cut",
    "Decision",
    "Elapsed",
    "Exchange",
    "Folding",
    "History",
    "MAX_PAUSES",
    "MAX_SHOWN_CHARS",
    "MAY_HAVE_HAPPENED",
    "ModelRound",
    "ModelRunner",
    "Note",
    "Offer",
    "Opening",
    "PLACED_CALLS",
    "Past",
    "PastRound",
    "PastWait",
    "PauseGate",
    "Promise",
    "REPLAY",
    "Rejected",
    "Round",
    "Rules",
    "RunPolicy",
    "Stale",
    "StopScope",
    "StreamBuffer",
    "Segment",
    "Summary",
    "SubAgents",
    "Submitted",
    "TEXT_PLACE",
    "Team",
    "TeamContext",
    "VOTING",
    "Verdict",
    "Voted",
    "bind_policy",
    "current_policy",
    "cut_message",
    "cut_of",
    "decision_tools",
    "decisions",
    "dump_messages",
    "duration",
    "is_late",
    "is_place",
    "join",
    "load_messages",
    "mark_incomplete",
    "memory_note",
    "prompts",
    "replay",
    "requested",
    "round_is_over",
    "rules_of",
    "runner",
    "runner_for",
    "similarity",
    "stream_buffer",
    "subagents",
    "time_note",
    "voting",
]
