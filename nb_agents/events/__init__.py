"""Everything that can happen in a turn, as frozen dataclasses.

Drivers emit events; the journal, the live panel and the final card are three readers of one fold
over them (`nb_agents.view.fold`). An event is one JSON line of ``events.jsonl``; its ``kind`` names
the class, so the union parses itself. Fields may be added with a default; a field is never renamed
or re-used for something else.

Versions of the journal (the first event carries it):
    1: first release.
"""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Discriminator, TypeAdapter

from nb_agents.events.agent_events import (
    Abstained,
    AgentCalled,
    AgentEnded,
    AgentFailed,
    AnswerGiven,
    Channel,
    ContextChanged,
    FinalAnswerGiven,
    ModelCut,
    ModelFailed,
    ModelFinished,
    ModelStarted,
    OrchestrationRestarted,
    Outcome,
    PresentationStarted,
    ReplyCut,
    RoundStarted,
    RoundTimedOut,
    TextStreamed,
    Told,
    ToolFinished,
    ToolStarted,
    ToolTold,
    TurnRejected,
    Usage,
    VoteCast,
    VoteIgnored,
    WorktreeBased,
)
from nb_agents.events.recipe_events import (
    ApprovalAsked,
    ApprovalGiven,
    OutputStreamed,
    PlannedUnit,
    RecipeLoaded,
    StepFailed,
    StepFinished,
    StepKind,
    StepStarted,
)
from nb_agents.events.turn_events import (
    SCHEMA_VERSION,
    AgentInfo,
    Command,
    CommandAnswered,
    Continue,
    Continued,
    Decide,
    FileInfo,
    FilesListed,
    Noticed,
    OfferTools,
    Pause,
    Paused,
    Phase,
    Said,
    Say,
    StopRequested,
    TurnEnded,
    TurnStarted,
)

__all__ = [
    "Abstained",
    "AgentCalled",
    "AgentEnded",
    "AgentFailed",
    "AgentInfo",
    "AnswerGiven",
    "ApprovalAsked",
    "ApprovalGiven",
    "Channel",
    "Command",
    "CommandAnswered",
    "ContextChanged",
    "Continue",
    "Continued",
    "Decide",
    "EVENT",
    "Event",
    "FileInfo",
    "FilesListed",
    "FinalAnswerGiven",
    "KINDS",
    "ModelCut",
    "ModelFailed",
    "ModelFinished",
    "ModelStarted",
    "Noticed",
    "OfferTools",
    "OrchestrationRestarted",
    "Outcome",
    "OutputStreamed",
    "Pause",
    "Paused",
    "Phase",
    "PlannedUnit",
    "PresentationStarted",
    "RecipeLoaded",
    "ReplyCut",
    "RoundStarted",
    "RoundTimedOut",
    "SCHEMA_VERSION",
    "Said",
    "Say",
    "StepFailed",
    "StepFinished",
    "StepKind",
    "StepStarted",
    "StopRequested",
    "TextStreamed",
    "Told",
    "ToolFinished",
    "ToolStarted",
    "ToolTold",
    "TurnEnded",
    "TurnRejected",
    "TurnStarted",
    "Usage",
    "VoteCast",
    "VoteIgnored",
    "WorktreeBased",
]

Event = (
    TurnStarted
    | RoundStarted
    | ModelStarted
    | TextStreamed
    | ModelFinished
    | ModelFailed
    | ModelCut
    | ToolStarted
    | ToolTold
    | ToolFinished
    | TurnRejected
    | ReplyCut
    | Told
    | RoundTimedOut
    | AnswerGiven
    | VoteCast
    | VoteIgnored
    | Abstained
    | AgentFailed
    | AgentEnded
    | AgentCalled
    | PresentationStarted
    | FinalAnswerGiven
    | OrchestrationRestarted
    | ContextChanged
    | WorktreeBased
    | RecipeLoaded
    | StepStarted
    | OutputStreamed
    | StepFailed
    | StepFinished
    | ApprovalAsked
    | ApprovalGiven
    | StopRequested
    | Paused
    | Continued
    | Said
    | Noticed
    | CommandAnswered
    | TurnEnded
    | FilesListed
)

KINDS: tuple[str, ...] = tuple(
    each.__dataclass_fields__["kind"].default for each in get_args(Event)
)
"""The kinds of all events."""

EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Discriminator("kind")])
"""Reads and writes an event's JSON."""
