"""Commands, their sandbox and their environment."""

from nb_agents.process import bubblewrap, command, environment, fork_server, git, lines
from nb_agents.process.bubblewrap import (
    Unusable,
    argv,
    check_confinement,
    installed,
    readable_directories,
)
from nb_agents.process.command import (
    MAX_CAPTURED_BYTES,
    Finished,
    open_command,
    run_bash,
    run_command,
)
from nb_agents.process.environment import ScratchFolder, remove_leftovers
from nb_agents.process.git import Repository
from nb_agents.process.lines import OutputTail, read_chunk
from nb_agents.process.readonly_devices import SHOWN
from nb_agents.process.special_bits import drop_special_bits
from nb_agents.process.writable import WritablePath, WriteAccess

__all__ = [
    "Finished",
    "MAX_CAPTURED_BYTES",
    "OutputTail",
    "Repository",
    "SHOWN",
    "ScratchFolder",
    "Unusable",
    "WritablePath",
    "WriteAccess",
    "argv",
    "bubblewrap",
    "check_confinement",
    "command",
    "drop_special_bits",
    "environment",
    "fork_server",
    "git",
    "installed",
    "lines",
    "open_command",
    "read_chunk",
    "readable_directories",
    "remove_leftovers",
    "run_bash",
    "run_command",
]
