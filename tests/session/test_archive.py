"""Changes of an exported session are found, and where they are."""

from __future__ import annotations

import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.kit.sessions import (
    MANIFEST,
    Change,
    Verification,
    export_session,
    read_manifest,
    verify_archive,
    write_manifest,
)
from tests.samples import some_or_all

EDITS = 1_000
SAMPLE = 40


class Part(NamedTuple):
    """An entry of a zip file and its content."""

    info: zipfile.ZipInfo
    data: bytes


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a session with two turns and files."""
    root = tmp_path_factory.mktemp("sessions")
    for task in ("one", "two"):
        write = Turn(calls=(Call("write_file", {"path": f"{task}.txt", "content": task * 9}),))
        team = scripted_team(a=ScriptedModel(write, Answer(f"answer to {task}")))
        options = RunOptions(session_root=root)
        nb_agents.start(task, config=team, session="s", options=options).wait()
    return export_session(root / "s", root / "s.zip").path


def parts_of(path: Path) -> list[Part]:
    with zipfile.ZipFile(path) as archive:
        return [Part(info, archive.read(info)) for info in archive.infolist()]


def write_zip(path: Path, parts: list[Part]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in parts:
            copy = zipfile.ZipInfo(info.filename, info.date_time)
            copy.external_attr, copy.compress_type = info.external_attr, zipfile.ZIP_DEFLATED
            archive.writestr(copy, data)
    return path


def repacked(path: Path, place: Path, edit: Callable[[list[Part]], None]) -> Verification:
    """Verify a copy of an export with these changes."""
    parts = parts_of(path)
    edit(parts)
    return verify_archive(write_zip(place / "edited.zip", parts))


def index_of(parts: list[Part], name: str) -> int:
    return next(i for i, part in enumerate(parts) if part.info.filename.endswith(name))


def with_lines(parts: list[Part], name: str, edit: Callable[[list[bytes]], list[bytes]]) -> None:
    i = index_of(parts, name)
    parts[i] = Part(parts[i].info, b"".join(edit(parts[i].data.splitlines(keepends=True))))


def test_unchanged_export_has_no_changes_and_its_exporter_as_origin(exported: Path) -> None:
    verified = verify_archive(exported)
    assert verified.changes == ()
    assert verified.manifest.is_own
    assert verified.events == sum(
        part.data.count(b"\n")
        for part in parts_of(exported)
        if part.info.filename.endswith("events.jsonl")
    )


def test_export_is_unchanged_after_repacking_with_another_program(
    exported: Path, tmp_path: Path
) -> None:
    assert repacked(exported, tmp_path, lambda parts: None).changes == ()


EVENT_EDITS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], tuple[str, str]]] = {
    "edited": (
        lambda lines: [*lines[:3], lines[3].replace(b'"', b"'", 1), *lines[4:]],
        ("edited", "event 4"),
    ),
    "cut": (lambda lines: [*lines[:2], *lines[5:]], ("cut", "events 3 to 5")),
    "end cut": (lambda lines: lines[:-1], ("cut", "event {last}")),
    "added": (lambda lines: [*lines[:2], b"{}\n", *lines[2:]], ("added", "event 3")),
    "moved": (
        lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]],
        ("moved", "events 2 to 3"),
    ),
}


@pytest.mark.parametrize("edit", EVENT_EDITS)
def test_changed_events_of_a_journal_are_named(exported: Path, tmp_path: Path, edit: str) -> None:
    change, (kind, detail) = EVENT_EDITS[edit]
    journal = "turn_2/events.jsonl"
    parts = parts_of(exported)
    last = parts[index_of(parts, journal)].data.count(b"\n")
    verified = repacked(exported, tmp_path, lambda parts: with_lines(parts, journal, change))
    [found] = verified.changes
    assert found == Change(journal, kind, detail.format(last=last))  # type: ignore[arg-type]


def test_changed_files_are_named(exported: Path, tmp_path: Path) -> None:
    def edit(parts: list[Part]) -> None:
        i = index_of(parts, "turn_1/answer.txt")
        parts[i] = Part(parts[i].info, b"another answer")
        del parts[index_of(parts, "workspaces/a/one.txt")]
        parts.insert(2, Part(zipfile.ZipInfo("s/turn_1/more.txt"), b"more"))
        parts.insert(3, Part(zipfile.ZipInfo("elsewhere.txt"), b"more"))

    assert set(repacked(exported, tmp_path, edit).changes) == {
        Change("turn_1/answer.txt", "edited"),
        Change("turn_1/workspaces/a/one.txt", "cut"),
        Change("turn_1/more.txt", "added"),
        Change("elsewhere.txt", "added"),
    }


def test_rewritten_manifest_loses_its_origin(exported: Path, tmp_path: Path) -> None:
    def edit(parts: list[Part]) -> None:
        i = index_of(parts, MANIFEST)
        info, data = parts[i]
        manifest = read_manifest(data)
        end = json.loads(data.splitlines()[-1])
        [*lines, last] = write_manifest("s", manifest.entries[:-1], None).splitlines()
        forged = {**json.loads(last), "mark": end["mark"], "mac": end["mac"]}
        parts[i] = Part(info, b"\n".join([*lines, json.dumps(forged).encode(), b""]))

    verified = repacked(exported, tmp_path, edit)
    assert not verified.manifest.is_own
    assert verified.changes


def test_another_user_can_verify_integrity_but_not_origin(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    verified = verify_archive(exported)
    assert (verified.changes, verified.manifest.is_own) == ((), False)


def changed_at_random(parts: list[Part], rng: random.Random) -> None:
    """Change one byte, one line, one entry or the order of two entries."""
    i = rng.randrange(len(parts))
    info, data = parts[i]
    lines = data.splitlines(keepends=True)
    at = rng.randrange(max(len(data), 1))
    k = rng.randrange(max(len(lines), 1))
    edits: list[Callable[[], object]] = [
        lambda: parts.pop(i),
        lambda: parts.insert(i, Part(zipfile.ZipInfo(f"s/new{at}", (2026, 1, 1, 0, 0, 0)), data)),
        lambda: parts.__setitem__(i, Part(info, data + b"\n")),
    ]
    if data:
        byte = bytes([data[at] ^ (1 << rng.randrange(8))])
        edits += [
            lambda: parts.__setitem__(i, Part(info, data[:at] + byte + data[at + 1 :])),
            lambda: parts.__setitem__(i, Part(info, data[:at])),
            lambda: parts.__setitem__(i, Part(info, data[:at] + data[at + 1 :])),
            lambda: parts.__setitem__(i, Part(info, b"".join(lines[:k] + lines[k + 1 :]))),
        ]
    if not info.filename.endswith(MANIFEST):  # it may stand anywhere
        edits.append(lambda: parts.insert((i + 1) % (len(parts) - 1), parts.pop(i)))
    rng.choice(edits)()


def test_random_edits_are_found(exported: Path, tmp_path: Path) -> None:
    original = parts_of(exported)
    missed = []
    for seed in range(some_or_all(SAMPLE, EDITS)):
        parts = list(original)
        changed_at_random(parts, random.Random(seed))
        if parts == original:
            continue
        try:
            found: object = verify_archive(write_zip(tmp_path / "edited.zip", parts)).changes
        except UserError as exc:
            found = str(exc)
        if not found:
            missed.append(seed)
    assert missed == []


def test_flipped_bits_in_the_archive_are_found(exported: Path, tmp_path: Path) -> None:
    data = exported.read_bytes()
    with zipfile.ZipFile(exported) as archive:
        [answer] = [i for i in archive.infolist() if i.filename.endswith("turn_2/answer.txt")]
    start = answer.header_offset + 30 + len(answer.filename)
    for at in range(start, start + answer.compress_size):
        flipped = bytearray(data)
        flipped[at] ^= 16
        (tmp_path / "flipped.zip").write_bytes(flipped)
        is_found = bool(verify_archive(tmp_path / "flipped.zip").changes)
        assert is_found or content_of(tmp_path / "flipped.zip") == content_of(exported)


def content_of(path: Path) -> list[bytes]:
    return [part.data for part in parts_of(path)]


NOT_EXPORTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "can't be read: No such file"),
    "a directory": (lambda path: path.mkdir(), "can't be read: Is a directory"),
    "a pipe": (lambda path: os.mkfifo(path), "can't be read: is a pipe, not a file"),
    "no zip": (lambda path: path.write_text("hello"), "is not a zip file, or it is damaged"),
    "no manifest": (
        lambda path: write_zip(path, [Part(zipfile.ZipInfo("s/a"), b"")]),
        f"has no {MANIFEST}",
    ),
    "other format": (
        lambda path: write_zip(path, [Part(zipfile.ZipInfo(f"s/{MANIFEST}"), b'{"format":7}\n')]),
        "not a manifest of a known format",
    ),
    "no JSON": (
        lambda path: write_zip(path, [Part(zipfile.ZipInfo(f"s/{MANIFEST}"), b"[[[[\n")]),
        "was changed or is damaged",
    ),
}


@pytest.mark.parametrize("case", NOT_EXPORTS)
def test_file_that_is_no_export_is_refused(tmp_path: Path, case: str) -> None:
    write, said = NOT_EXPORTS[case]
    write(tmp_path / "x.zip")
    with pytest.raises(UserError, match=said):
        verify_archive(tmp_path / "x.zip")
