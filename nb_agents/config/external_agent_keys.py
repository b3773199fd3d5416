"""The backend keys of external agents, which are programs that an extension starts."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from nb_agents.config.mcp_servers import as_words
from nb_agents.config.spec import Spec, as_text, start_directory


class ExternalAgentKeys(Spec):
    """The keys of a backend for an external agent.

    Attributes:
        command: For type ``acp``, the program's command line. For other types, the path of the
            program if it is not on the PATH.
        args: Additional arguments of the program.
        env: Additional environment variables of the program.
        use_my_settings: Whether the program uses your login and settings. By default, it has its
            own home directory in the session's directory.
    """

    command: Annotated[tuple[str, ...], BeforeValidator(as_words)] = Field(default=(), repr=False)
    args: tuple[Annotated[str, BeforeValidator(as_text)], ...] = Field(default=(), repr=False)
    env: dict[str, Annotated[SecretStr, BeforeValidator(as_text)]] = Field(default_factory=dict)
    use_my_settings: bool = False

    @field_validator("command", "args")
    @classmethod
    def _absolute_files(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # The program runs in another directory, and a resume reads the command from the journal.
        folder = start_directory()
        # Not Path.is_file, which raises for text that is too long for a file name.
        return tuple(str(folder / w) if os.path.isfile(folder / w) else w for w in value)
