"""The events of a turn, as frozen dataclasses.

Drivers emit events, and the journal stores them. The live panel and the final card show the same
fold of them (`nb_agents.view.fold`). An event is one JSON line of ``events.jsonl``, and its
``kind`` names the class. New fields need a default. A field is never renamed or reused for
something else.

Versions of the journal (in the first event):
    1: first release.
"""

from __future__ import annotations

from nb_agents.events.agent_events import *
from nb_agents.events.base_event import *
from nb_agents.events.codec import *
from nb_agents.events.folds import *
from nb_agents.events.recipe_events import *
from nb_agents.events.turn_events import *
