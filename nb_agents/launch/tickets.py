"""Tickets: files in a session root by which a run of a cluster begins at most once.

A ticket waits until a worker takes it, and has begun once that worker is about to start the run.
The submitter puts a taken one back when its worker dies. Each step renames the file, so that of two
processes only one takes it; a worker whose ticket was put back does not start the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from nb_agents.errors import as_storage_error
from nb_agents.session.layout import TICKETS

_TAKEN = ".taken-"
_BEGUN = ".begun"


@dataclass(frozen=True)
class Ticket:
    """The ticket of a run.

    Attributes:
        path: Its file while it waits.
    """

    path: Path

    @classmethod
    def new(cls, root: Path, name: str) -> Ticket:
        """Create a ticket in a session root, waiting.

        Raises:
            StorageError: The session root can't be written.
        """
        return cls(new_file(root / TICKETS / name))

    @property
    def name(self) -> str:
        """Its name, which is unique."""
        return self.path.name

    @property
    def root(self) -> Path:
        """The session root."""
        return self.path.parents[1]

    @property
    def is_waiting(self) -> bool:
        """Whether no worker has taken it."""
        return self.path.exists()

    @property
    def worker(self) -> str:
        """The worker that has taken it and not begun; "" without one."""
        return next((unquote(path.name.split(_TAKEN)[1]) for path in self._taken()), "")

    @property
    def answer(self) -> Mapping[str, str] | None:
        """The worker's report at its start; None before that."""
        try:
            answer: Mapping[str, str] = json.loads(self._begun.read_bytes())
        except (OSError, ValueError):
            return None
        return answer

    def take(self, worker: str) -> bool:
        """Take it for a worker; return whether it was waiting, and is seen here."""
        return _renamed(self.path, self._taken_by(worker))

    def begin(self, worker: str, answer: Mapping[str, str]) -> bool:
        """Begin what a worker has taken; return False if it was put back or withdrawn."""
        taken = self._taken_by(worker)
        try:
            with open(taken, "r+b") as file:  # creates no file where it was put back
                file.write(json.dumps(answer).encode())
        except OSError:
            return False
        return _renamed(taken, self._begun)

    def put_back(self) -> bool:
        """Let another worker take it; return whether it was taken and had not begun."""
        return any(_renamed(path, self.path) for path in self._taken())

    def take_away(self) -> bool:
        """Let no worker take it again; return whether it was taken and had not begun."""
        return any(_removed(path) for path in self._taken())

    def withdraw(self) -> bool:
        """Remove it; return whether the run has not begun, and never will."""
        return any(_removed(path) for path in (self.path, *self._taken(), self.path))

    def close(self) -> None:
        """Remove it, now that it is known what became of the run."""
        for path in (self.path, *self._taken(), self._begun):
            _removed(path)

    @property
    def _begun(self) -> Path:
        return self.path.with_name(self.name + _BEGUN)

    def _taken_by(self, worker: str) -> Path:
        return self.path.with_name(self.name + _TAKEN + quote(worker, safe=""))

    def _taken(self) -> Iterator[Path]:
        return self.path.parent.glob(f"{self.name}{_TAKEN}*")


def new_file(path: Path) -> Path:
    """Create a file, and the directory that it is in.

    Raises:
        StorageError: It can't be created.
    """
    with as_storage_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
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
