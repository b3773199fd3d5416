"""Writes a session into a zip file, and finds what was changed in it later."""

from __future__ import annotations

import os
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import DirEntry, RefusedError, open_file, printable_name
from nb_agents.errors import UserError
from nb_agents.session.copying import copy_file
from nb_agents.session.export_manifest import (
    JOURNAL,
    MANIFEST,
    Change,
    EntryDigest,
    ExportEntry,
    ExportManifest,
    compare_entries,
    read_manifest,
    write_manifest,
)
from nb_agents.session.layout import COPIES_FOLDER, store_workspaces_if_dead, turns_of
from nb_agents.session.ownership import evidence_of, find_owner_mark, user_mark

_FIRST_S, _LAST_S = 315_619_200, 4_354_646_400
"""The range of times in a zip file in Unix seconds, with a day's margin for time zones.

The years 1980 to 2107. Source: PKWARE's APPNOTE, 4.4.6.
"""
_MAX_MANIFEST_BYTES = 1 << 28
_MAX_ENTRIES = 1_000_000
_PIECE_BYTES = 1 << 20
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What `zipfile` raises for damaged, encrypted or unsupported content."""


class Verification(NamedTuple):
    """What was found in an export.

    Attributes:
        manifest: The export's manifest.
        changes: What was changed since the export.
        entries: The number of files, directories and links in the archive, without the manifest.
        events: The number of events in its journals.
    """

    manifest: ExportManifest
    changes: tuple[Change, ...]
    entries: int
    events: int


def add_session(archive: zipfile.ZipFile, session: Path) -> tuple[str, ...]:
    """Add a session and its manifest to a zip file.

    Returns:
        Descriptions of skipped entries.
    """
    left_out, entries = list[str](), list[ExportEntry]()
    for turn in turns_of(session)[-1:]:
        store_workspaces_if_dead(turn)
    mark = find_owner_mark(evidence_of(session), user_mark)
    with Directory.real(Path(os.path.realpath(session))) as directory:
        for entry in directory.walk():
            if PurePosixPath(entry.path).is_relative_to(COPIES_FOLDER) or entry.path == MANIFEST:
                continue
            try:
                entries.append(_add(archive, session.name, entry))
            except RefusedError as exc:
                left_out.append(f"{printable_name(entry.path)} ({exc.strerror})")
    info = zipfile.ZipInfo(f"{session.name}/{MANIFEST}", time.localtime()[:6])
    info.external_attr = (stat.S_IFREG | 0o600) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, write_manifest(session.name, entries, mark))
    return tuple(left_out)


def _add(archive: zipfile.ZipFile, session: str, entry: DirEntry) -> ExportEntry:
    # Names in a zip are Unicode: bytes that are not UTF-8 are escaped.
    name = f"{session}/{entry.path}".encode(errors="surrogateescape").decode(
        errors="backslashreplace"
    )
    moment = time.localtime(min(max(entry.stat.st_mtime, _FIRST_S), _LAST_S))
    info = zipfile.ZipInfo(name, moment[:6])
    info.external_attr = entry.stat.st_mode << 16
    digest = EntryDigest(entry.name == JOURNAL)
    if entry.kind == "folder":
        info.filename += "/"
        archive.writestr(info, b"")
    elif entry.kind == "link":
        target = _inner(entry)
        digest.write(target)
        archive.writestr(info, target)
    elif entry.kind == "file":
        info.compress_type = zipfile.ZIP_DEFLATED
        info.file_size = entry.stat.st_size
        with entry.open() as source, archive.open(info, "w") as file:
            copy_file(source, file, info.file_size, digest.write)
    else:
        raise RefusedError(entry.what)
    return _entry(info, session, digest)


def _inner(entry: DirEntry) -> bytes:
    """Return the target of a symlink. Raises `RefusedError` if it might be outside the session.

    ``..`` is allowed only at the start, where the parents are real directories. After the name of
    another link, it could point anywhere.
    """
    text = entry.target()
    ups = [part == ".." for part in text.split("/")]
    if text.startswith("/") or sum(ups) > entry.depth or sorted(ups, reverse=True) != ups:
        raise RefusedError("points outside the session")
    return os.fsencode(text)


def _entry(info: zipfile.ZipInfo, session: str, digest: EntryDigest) -> ExportEntry:
    path = info.filename.removeprefix(f"{session}/").removesuffix("/")
    mode = info.external_attr >> 16
    kind = _KINDS.get(stat.S_IFMT(mode), "unknown")
    *day, seconds = info.date_time  # a zip file has steps of two seconds
    return digest.entry(path, kind, mode, " ".join(map(str, (*day, seconds // 2 * 2))))


def verify_archive(path: Path) -> Verification:
    """Find what was changed in an exported session. Extracts nothing.

    Args:
        path: The zip file.

    Raises:
        UserError: It can't be read, it is not an export, or it has no manifest.
    """
    try:
        with open_file(os.path.realpath(path)) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            if len(infos) > _MAX_ENTRIES:
                raise UserError(f"{path} has more than {_MAX_ENTRIES:,} entries.")
            place = _manifest_place(infos, path)
            manifest = _read_manifest(archive, place, path)
            damaged = list[Change]()
            found = tuple(_read_entries(archive, infos, place, damaged))
    except OSError as exc:
        raise UserError(f"{path} can't be read: {exc.strerror or exc}.") from None
    except _DAMAGED as exc:
        raise UserError(f"{path} is not a zip file, or it is damaged: {exc}.") from None
    broken = {change.path for change in damaged}
    readable = [entry for entry in manifest.entries if entry.path not in broken]
    differences = compare_entries(readable, [each for each in found if each.path not in broken])
    changes = (*manifest.changes, *damaged, *differences)
    return Verification(
        manifest, changes, len(infos) - 1, sum(len(entry.lines or ()) for entry in found)
    )


def _manifest_place(infos: list[zipfile.ZipInfo], path: Path) -> zipfile.ZipInfo:
    named = [info for info in infos if info.filename.rpartition("/")[2] == MANIFEST]
    places = [info for info in named if info.filename.count("/") == 1]
    if not places:
        raise UserError(
            f"{path} has no {MANIFEST}: it is not an exported session, it was exported by an older "
            f"nb_agents, or the manifest was removed."
        )
    return places[-1]


def _read_manifest(archive: zipfile.ZipFile, place: zipfile.ZipInfo, path: Path) -> ExportManifest:
    try:
        with archive.open(place) as file:
            data = file.read(_MAX_MANIFEST_BYTES + 1)
        if len(data) > _MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {_MAX_MANIFEST_BYTES:,} bytes")
        return read_manifest(data)
    except (ValueError, TypeError, KeyError, RecursionError, *_DAMAGED) as exc:
        raise UserError(f"The manifest of {path} was changed or is damaged: {exc}.") from None


def _read_entries(
    archive: zipfile.ZipFile,
    infos: list[zipfile.ZipInfo],
    place: zipfile.ZipInfo,
    damaged: list[Change],
) -> Iterator[ExportEntry]:
    session = place.filename.partition("/")[0]
    for info in infos:
        if info is place:
            continue
        digest = EntryDigest(info.filename.rpartition("/")[2] == JOURNAL)
        try:
            with archive.open(info) as file:
                while data := file.read(_PIECE_BYTES):
                    digest.write(data)
        except _DAMAGED as exc:
            path = _entry(info, session, EntryDigest()).path
            damaged.append(Change(path, "edited", f"its content is damaged ({exc})"))
        yield _entry(info, session, digest)
