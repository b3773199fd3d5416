"""Everything that can happen in a turn, as frozen dataclasses.

Drivers emit events; the journal, the live panel and the final card are three readers of one fold
over them (`nb_agents.view.fold`). An event is one JSON line of ``events.jsonl``; its ``kind`` names
the class. Fields may be added with a default; a field is never renamed or re-used for something
else.

Versions of the journal (the first event carries it):
    1: first release.
"""

from __future__ import annotations

from typing import Annotated, Any, Union

from pydantic import Discriminator, TypeAdapter

from nb_agents.events.agent_events import *
from nb_agents.events.base_event import *
from nb_agents.events.recipe_events import *
from nb_agents.events.turn_events import *

_any_event: Any = Union[tuple(KINDS.values())]  # noqa: UP007
EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[_any_event, Discriminator("kind")])
"""Reads and writes an event's JSON."""
