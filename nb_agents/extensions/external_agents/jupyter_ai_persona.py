"""The demo team, or the team in ``NB_AGENTS_PERSONA_TEAM``, as a persona of Jupyter AI's chat.

Jupyter AI finds the class by its entry point. Nothing else imports this module.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from jupyter_ai_acp_client.base_acp_persona import BaseAcpPersona
from jupyter_ai_persona_manager import PersonaDefaults

TEAM_VARIABLE = "NB_AGENTS_PERSONA_TEAM"
"""The environment variable with the path of the persona's team file."""


class NbAgentsPersona(BaseAcpPersona):  # type: ignore[misc]  # its library is optional
    """A team of agents that a chat talks to by the Agent Client Protocol."""

    NOTEBOOK_EDITING_GUIDANCE = ""
    """What Jupyter AI puts before the first prompt. A team has no notebook tools in a chat."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, executable=_command(), **kwargs)

    @property
    def defaults(self) -> PersonaDefaults:
        """How the chat presents the persona."""
        return PersonaDefaults(
            name="nb_agents",
            description="A team of agents that you can stop and resume",
            avatar_path="",
            system_prompt="",
        )


def _command() -> list[str]:
    path = os.environ.get(TEAM_VARIABLE)
    return [sys.executable, "-m", "nb_agents.cli", "acp", *(["--config", path] if path else [])]
