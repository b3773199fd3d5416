"""Canary keys: all tests run with them, and the files of all tests are searched for them.

They are in the environment of each process (as a token, a password with odd characters, and an
address), and tests with a model server give it `KEY`, which it repeats in its headers and errors.
Searched are, at the end of all tests, what runs have left below pytest's directory: each session (a
directory with ``turn_*`` in it), export, ``debug.log`` and saved notebook; after each test what it
has logged and printed; and every message of a kernel as it comes. What a test itself wrote down,
such as a team file with the key in it, is not searched.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Iterator, MutableMapping
from functools import cache
from pathlib import Path

__all__ = ["KEY", "found_in", "found_on_disk", "plant"]

_CORE = re.compile("c4n4ry[0-9a-f]{20}")
_MAX_BYTES = 50_000_000


def _new() -> str:
    return f"c4n4ry{secrets.token_hex(10)}"


# With letters before it that end no word: what may be the beginning of a key is held back.
KEY = f"Zq-{_new()}"
"""The key of models behind a server."""

_PLANTED = {
    "CANARY_TOKEN": "Zq-{}",
    "CANARY_PASSWORD": 'Zq"\\ü{}',
    "CANARY_URL": "https://someone:Zq-{}@canary.invalid/",
}


def plant(environment: MutableMapping[str, str]) -> None:
    """Put canaries into the environment; processes that are started from now on inherit them."""
    for name, shape in _PLANTED.items():
        environment.setdefault(name, shape.format(_new()))


def found_in(data: bytes) -> list[str]:
    """Name the canaries in what was written, in whatever way it was quoted, in base64 too."""
    return [name for name, needles in _needles().items() if any(each in data for each in needles)]


def found_on_disk(root: Path) -> Iterator[str]:
    """Return a list of the runs' files that contain a canary."""
    for file in _left_by_runs(root):
        for data in _contents(file):
            for name in found_in(data):
                yield f"{file} holds {name}"


@cache
def _needles() -> dict[str, tuple[bytes, ...]]:
    values = {name: os.environ[name] for name in _PLANTED} | {"the key of models": KEY}
    cores = {name: _CORE.findall(value)[0].encode() for name, value in values.items()}
    return {name: (core, *_in_base64(core)) for name, core in cores.items()}


def _in_base64(core: bytes) -> Iterator[bytes]:
    """Return the part of a text's base64 form that does not depend on the surrounding text."""
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + core)
        yield coded[4 if before else 0 :].rstrip(b"=")[:-2]


def _left_by_runs(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        is_in_turn = any(part.startswith("turn_") for part in Path(place).relative_to(root).parts)
        is_session = any(folder.startswith("turn_") for folder in folders)
        for name in files:
            if is_in_turn or is_session or name.endswith(("debug.log", ".ipynb", ".zip")):
                yield Path(place, name)


def _contents(file: Path) -> Iterator[bytes]:
    try:
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            return
        yield file.read_bytes()
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as packed:
                yield from map(packed.read, packed.namelist())
    except OSError:  # a test took the right to read it away, or it is gone
        return
