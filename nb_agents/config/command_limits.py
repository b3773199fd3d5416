"""What an agent's commands may use of the machine."""

from __future__ import annotations

from pydantic import ConfigDict

from nb_agents.config.spec import Count, Spec

__all__ = ["CommandLimits"]

PROCESSES = 2_000
MEMORY_MB = 8_000
TMP_MB = 2_000
OPEN_FILES = 4_096
FILE_SIZE_MB = 10_000
WORKSPACE_MB = 20_000

_UNITS = {
    "processes": "processes and threads",
    "memory_mb": "MB of memory",
    "workspace_mb": "MB in its workspace",
    "file_size_mb": "MB in one file",
}


class CommandLimits(Spec):
    """The limits of one command, or of an agent's Python; a megabyte is a million bytes.

    Attributes:
        processes: Its processes and threads. A command that has more is ended.
        memory_mb: What its processes hold in memory, files on disk that they map aside. One process
            is refused more; a command whose processes have more together is ended.
        tmp_mb: What its ``/tmp`` and its ``/dev/shm`` may hold each in a sandbox: they are memory,
            and gone when it ends.
        open_files: What one process may have open; it is refused more.
        file_size_mb: How large a file may become that it writes; it is refused more.
        workspace_mb: What its workspace may hold. A command that makes it more is ended.
    """

    # A limit that is not known here must not be taken for one that holds.
    model_config = ConfigDict(extra="forbid")

    processes: Count = PROCESSES
    memory_mb: Count = MEMORY_MB
    tmp_mb: Count = TMP_MB
    open_files: Count = OPEN_FILES
    file_size_mb: Count = FILE_SIZE_MB
    workspace_mb: Count = WORKSPACE_MB

    def exceeded(self, name: str) -> str:
        """Say which limit a command went beyond.

        Args:
            name: A field's.

        Example:
            >>> CommandLimits(processes=20).exceeded("processes")
            'more than 20 processes and threads (`processes` of its limits)'
        """
        return f"more than {getattr(self, name)} {_UNITS[name]} (`{name}` of its limits)"
