"""A ledger of what turns have used of a limit that they share, in several processes.

A turn reserves a part of what is left before it uses it, so that all turns together do not exceed
the limit. An entry has the total that its turn has used, not the differences, so writing it again
counts nothing twice. If a process dies, its turn's journal has what it used: the next reservation
replaces the entry's reservation with that.
"""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from nb_agents.disk.entry import open_file
from nb_agents.disk.private import make_folder, private_lock
from nb_agents.errors import UserError
from nb_agents.session.views import write_atomic

logger = logging.getLogger("nb_agents")

LARGEST_PART = 0.05
"""The share of what is left of the limit that a turn reserves each time."""

SMALLEST_PART = 0.002
"""The share of the limit that a turn reserves at least, if that much is left."""


class LedgerError(UserError):
    """Raised when a ledger can't be read or written."""


class LedgerEntry(NamedTuple):
    """What a turn has used.

    Attributes:
        spent: The amount that it has used.
        reserved: The amount that it may use in addition.
        before: The amount that it had used before the period of the ledger.
        turn: The turn's path. Defaults to the entry's key.
    """

    spent: float = 0.0
    reserved: float = 0.0
    before: float = 0.0
    turn: str = ""


class Grant(NamedTuple):
    """A reservation.

    Attributes:
        up_to: The total up to which the turn may use the limit.
        is_refused: Whether nothing was left of the limit.
        spent_by_others: The amount that other turns have used.
    """

    up_to: float
    is_refused: bool
    spent_by_others: float


_ENTRIES = TypeAdapter(dict[str, LedgerEntry], config=ConfigDict(allow_inf_nan=False))


def read_entries(path: Path) -> dict[str, LedgerEntry]:
    """Return the entries in the file of a ledger.

    Raises:
        ValidationError: The file is damaged.
        OSError: The file can't be read.
    """
    with open_file(path) as file:
        return _ENTRIES.validate_json(file.read())


class Ledger(ABC):
    """What turns have used of a limit that they share.

    Args:
        folder: The directory of the ledger.
        final: Returns what a turn has used whose process has ended, and None for a live one.
    """

    def __init__(self, folder: Path, final: Callable[[str], float | None]) -> None:
        self._folder = folder
        self._final = final

    @property
    def folder(self) -> Path:
        """The directory."""
        return self._folder

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file."""

    @property
    @abstractmethod
    def remedy(self) -> str:
        """A sentence that says what to do with a damaged file."""

    def before(self, key: str) -> float:
        """Return what a turn had used before the period of the ledger."""
        return 0.0

    def reserve(self, key: str, used: float, limit: float, turn: str = "") -> Grant:
        """Record what a turn has used so far, and reserve a part of what is left of the limit.

        Args:
            key: The turn's key.
            used: The total that the turn has used.
            limit: The limit of all turns together.
            turn: The turn's path. Defaults to the key.

        Raises:
            LedgerError: The ledger can't be read or written.
        """
        with self._locked():
            entries = self._settled(key)
            entry = self._entry(entries, key, used)._replace(turn=turn)
            others = [each for name, each in entries.items() if name != key]
            spent, reserved = sum(e.spent for e in others), sum(e.reserved for e in others)
            remaining = limit - spent - reserved - entry.spent
            part = min(remaining, max(remaining * LARGEST_PART, limit * SMALLEST_PART))
            entries[key] = entry = entry._replace(reserved=max(0.0, part))
            self._write(entries)
        up_to = entry.before + entry.spent + entry.reserved
        return Grant(up_to, up_to <= used, spent)

    def release(self, key: str, used: float) -> None:
        """Record what a turn has used in the end, and end its reservation.

        Raises:
            LedgerError: The ledger can't be read or written.
        """
        with self._locked():
            entries = self.read(self.path)
            entries[key] = self._entry(entries, key, used)._replace(reserved=0.0)
            self._write(entries)

    def total(self) -> float:
        """Return the amount that all turns have used, or that live turns have reserved.

        Raises:
            LedgerError: The ledger can't be read or written.
        """
        if not os.path.lexists(self.path):
            return sum(entry.spent for entry in self.read(self.path).values())
        with self._locked():
            entries = self._settled()
            self._write(entries)
        return sum(entry.spent + entry.reserved for entry in entries.values())

    def read(self, path: Path) -> dict[str, LedgerEntry]:
        """Return the entries in a file, by the keys of their turns.

        Raises:
            LedgerError: The file is damaged.
            OSError: The file can't be read.
        """
        try:
            return read_entries(path)
        except FileNotFoundError:
            return {}
        except ValidationError:
            raise LedgerError(f"{path} is damaged. {self.remedy}") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            make_folder(self._folder)
            with private_lock(self._folder / "lock"):
                yield
        except OSError as exc:
            raise LedgerError(
                f"{self.path} can't be used ({exc.strerror or exc}). Remove it if it is not a "
                "regular file, and make sure that its directory is writable and has free space."
            ) from exc

    def _entry(self, entries: dict[str, LedgerEntry], key: str, used: float) -> LedgerEntry:
        entry = entries.get(key) or LedgerEntry(before=self.before(key))
        return entry._replace(spent=max(0.0, used - entry.before))

    def _settled(self, own: str = "") -> dict[str, LedgerEntry]:
        """Return the entries, with the final amounts of turns whose process has died."""
        entries = self.read(self.path)
        for key, entry in entries.items():
            if key != own and entry.reserved:
                entries[key] = self._settle(entry.turn or key, entry)
        return entries

    def _settle(self, turn: str, entry: LedgerEntry) -> LedgerEntry:
        try:
            used = self._final(turn)
        except Exception:
            # The turn was deleted or damaged. It may have used all of its reservation, which is a
            # small part of the limit. If less were counted, the turns could exceed the limit.
            logger.debug("what %s has used is unknown", turn, exc_info=True)
            return entry._replace(spent=entry.spent + entry.reserved, reserved=0.0)
        if used is None:
            return entry
        return entry._replace(spent=max(entry.spent, used - entry.before), reserved=0.0)

    def _write(self, entries: dict[str, LedgerEntry]) -> None:
        write_atomic(self.path, json.dumps(entries, allow_nan=False))
