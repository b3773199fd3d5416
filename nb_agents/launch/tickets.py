"""Tickets: files in a session root that let a run on a cluster start at most once.

A ticket waits until a worker takes it. It counts as started once that worker is about to start the
run. If the worker dies before that, the submitter puts the ticket back. Each step renames the file,
so only one of two processes succeeds. A worker does not start a run if its ticket was put back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from nb_agents.disk.private import make_folder, open_private
from nb_agents.errors import as_storage_error
from nb_agents.session.layout import TICKETS
from nb_agents.unicode import json_text

_TAKEN = ".taken-"
_BEGUN = ".begun"


@dataclass(frozen=True)
class Ticket:
    """The ticket of a run.

    Attributes:
        path: The file of a waiting ticket.
    """

    path: Path

    @classmethod
    def new(cls, root: Path, name: str) -> Ticket:
        """Create a waiting ticket in a session root.

        Raises:
            StorageError: The session root can't be written.
        """
        return cls(new_file(root / TICKETS / name))

    @property
    def name(self) -> str:
        """The ticket's unique name."""
        return self.path.name

    @property
    def root(self) -> Path:
        """The session root."""
        return self.path.parents[1]

    @property
    def is_waiting(self) -> bool:
        """Whether no worker has taken the ticket."""
        return self.path.exists()

    @property
    def worker(self) -> str:
        """The worker that has taken the ticket and not begun, or ""."""
        return next((unquote(path.name.split(_TAKEN)[1]) for path in self._taken_files()), "")

    @property
    def answer(self) -> Mapping[str, str] | None:
        """The worker's report when it started, or None."""
        try:
            answer: Mapping[str, str] = json.loads(self._begun_file.read_bytes())
        except (OSError, ValueError):
            return None
        return answer

    def take(self, worker: str) -> bool:
        """Take the ticket for a worker. Return False if it is not waiting or not visible here."""
        return _renamed(self.path, self._file_of(worker))

    def begin(self, worker: str, answer: Mapping[str, str]) -> bool:
        """Mark a taken ticket as begun. Return False if it was put back or withdrawn."""
        claimed = self._file_of(worker)
        try:
            with open(claimed, "r+b") as file:  # does not create the file if it was put back
                file.write(json_text(answer).encode())
        except OSError:
            return False
        return _renamed(claimed, self._begun_file)

    def put_back(self) -> bool:
        """Let another worker take the ticket. Return whether it was taken and had not begun."""
        return any(_renamed(path, self.path) for path in self._taken_files())

    def take_away(self) -> bool:
        """Remove a taken ticket. Return whether it was taken and had not begun."""
        return any(_removed(path) for path in self._taken_files())

    def withdraw(self) -> bool:
        """Remove the ticket. Return True if the run had not begun. In that case, it never will."""
        return any(_removed(path) for path in (self.path, *self._taken_files(), self.path))

    def close(self) -> None:
        """Remove the ticket, after the result of the run is known."""
        for path in (self.path, *self._taken_files(), self._begun_file):
            _removed(path)

    @property
    def _begun_file(self) -> Path:
        return self.path.with_name(self.name + _BEGUN)

    def _file_of(self, worker: str) -> Path:
        return self.path.with_name(self.name + _TAKEN + quote(worker, safe=""))

    def _taken_files(self) -> Iterator[Path]:
        return self.path.parent.glob(f"{self.name}{_TAKEN}*")


def new_file(path: Path) -> Path:
    """Create a file and its directory.

    Raises:
        StorageError: The file can't be created.
    """
    with as_storage_error(path.parent):
        make_folder(path.parent)
        open_private(path, "xb").close()
    return path


def _renamed(path: Path, to: Path) -> bool:
    try:
        os.rename(path, to)
    except OSError:
        return False
    return True


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
