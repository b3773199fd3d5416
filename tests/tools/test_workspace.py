"""The file tools: an agent can write only its workspace, and read permitted paths."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.tools import workspace
from nb_agents.tools.workspace import Workspace
from tests.kit.disk import Directory
from tests.kit.runs import AgentStopped, CancellationStatus, CancelToken, bind
from tests.kit.tools import Toolbox, ToolCall, ToolResult, use_call

NAMES = ("list_files", "read_file", "write_file", "edit_file", "delete_file")


class Place:
    """A workspace with peers and context paths, and a secret file outside of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own, self.peer, self.context = path / "own", path / "peer", path / "context"
        for folder in (self.own, self.peer, self.context):
            folder.mkdir(parents=True)
        (self.peer / "draft.md").write_text("peer's draft")
        (self.context / "data.csv").write_text("a,b")
        self.secret = path / "secret.txt"
        self.secret.write_text("secret")
        space = Workspace(self.own, {"agent1": self.peer}, [self.context])
        self._tools = Toolbox(space.tools())

    async def call(self, tool: str, **args: Any) -> ToolResult:
        return await self._tools.call(tool, args)

    async def ok(self, tool: str, **args: Any) -> str:
        result = await self.call(tool, **args)
        assert not result.is_error, result
        return result

    async def refused(self, tool: str, **args: Any) -> str:
        result = await self.call(tool, **args)
        assert result.is_error, result
        return result

    def everything(self) -> dict[str, bytes | str]:
        """Return all files and links outside of the workspace."""
        found: dict[str, bytes | str] = {}
        for path in sorted(self.path.rglob("*")):
            if path.is_symlink():
                found[str(path)] = os.readlink(path)
            elif path.is_file() and not path.is_relative_to(self.own):
                found[str(path)] = path.read_bytes()
        return found


def list_files(root: Path) -> list[tuple[str, int]]:
    """Return the paths and sizes of all files below a directory."""
    with Directory.at(root) as directory:
        return [(e.path, e.stat.st_size) for e in directory.walk() if e.kind == "file"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def arguments(tool: str, path: str) -> dict[str, Any]:
    more = {"write_file": {"content": "x"}, "edit_file": {"old": "e", "new": "x"}}
    return {"path": path, **more.get(tool, {})}


WAYS_OUT = [
    "..", "../secret.txt", "a/../../secret.txt", "./../secret.txt", "..\\secret.txt",
    "a\\..\\..\\secret.txt", "peers/../../secret.txt", "peers/agent1/../../secret.txt",
    "peers\\agent1\\..\\draft.md", "/etc/passwd", "//etc/passwd", "\\etc\\passwd", "\\\\host\\x",
    "{root}/secret.txt", "{root}/own/../secret.txt", "{root}/context/../secret.txt",
    "{root}/contextual", "link_dir/secret.txt", "link_file", "link_up/link_file", "loop", "loop/x",
    "a\0b", "/a\0b", "half\ud800", "/half\ud800", "x" * 5000, "/".join(["x"] * 5000),
]  # fmt: skip


@pytest.mark.parametrize("tool", NAMES)
@pytest.mark.parametrize("path", WAYS_OUT, ids=lambda p: ascii(p[:30]))
async def test_no_path_leads_out_of_the_workspace(place: Place, tool: str, path: str) -> None:
    (place.own / "link_dir").symlink_to(place.path, target_is_directory=True)
    (place.own / "link_up").symlink_to(place.own, target_is_directory=True)
    (place.own / "link_file").symlink_to(place.secret)
    (place.own / "loop").symlink_to("loop")
    (place.path / "contextual").write_text("secret beside the context")
    before = place.everything()
    result = await place.refused(tool, **arguments(tool, path.format(root=place.path)))
    assert "secret" not in result.replace("secret.txt", "").replace("contextual", "")
    assert place.everything() == before


@pytest.mark.parametrize("tool", ["write_file", "edit_file", "delete_file"])
@pytest.mark.parametrize(
    "path",
    ["peers/agent1/draft.md", "peers/x", "peers\\agent1\\draft.md", "{root}/context/data.csv"],
)
async def test_peers_and_context_are_read_only(place: Place, tool: str, path: str) -> None:
    before = place.everything()
    await place.refused(tool, **arguments(tool, path.format(root=place.path)))
    assert place.everything() == before
    assert list_files(place.own) == []


async def test_peers_context_and_own_files_can_be_read(place: Place) -> None:
    await place.ok("write_file", path="notes/a.md", content="mine")
    assert await place.ok("read_file", path="notes/a.md") == "mine"
    assert await place.ok("read_file", path="notes\\a.md") == "mine"
    assert await place.ok("read_file", path=str(place.own / "notes" / "a.md")) == "mine"
    assert await place.ok("read_file", path="peers/agent1/draft.md") == "peer's draft"
    assert await place.ok("read_file", path=str(place.context / "data.csv")) == "a,b"
    assert await place.ok("list_files") == "notes/a.md  4"
    assert await place.ok("list_files", path="peers") == "peers/agent1/"
    assert await place.ok("list_files", path="peers/agent1") == "draft.md  12"
    assert await place.ok("list_files", path=str(place.context)) == "data.csv  3"
    file = str(place.context / "data.csv")
    assert await place.ok("list_files", path=file) == f"{file}  3"


async def test_symlink_in_a_peers_workspace_is_refused(place: Place) -> None:
    (place.peer / "out").symlink_to(place.secret)
    await place.refused("read_file", path="peers/agent1/out")
    assert "out" not in await place.ok("list_files", path="peers/agent1")


async def test_symlink_in_a_context_path_is_refused(place: Place) -> None:
    (place.context / "out").symlink_to(place.secret)
    await place.refused("read_file", path=str(place.context / "out"))


async def test_a_write_replaces_the_whole_file(place: Place) -> None:
    await place.ok("write_file", path="a.txt", content="long old text")
    inode = (place.own / "a.txt").stat().st_ino
    assert await place.ok("write_file", path="a.txt", content="né\n") == "Wrote a.txt (4 bytes)."
    assert (place.own / "a.txt").read_bytes() == "né\n".encode()
    assert (place.own / "a.txt").stat().st_ino != inode


async def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.ok("write_file", path="a.txt", content="old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in await place.refused("write_file", path="a.txt", content="new")
    assert os.listdir(place.own) == ["a.txt"]
    assert (place.own / "a.txt").read_text() == "old"


async def test_half_a_surrogate_pair_in_the_content_does_not_break_a_write(place: Place) -> None:
    await place.ok("write_file", path="a.txt", content="a\ud800b")
    assert (place.own / "a.txt").read_text() == "a?b"


@pytest.mark.parametrize("path", ["folder", "file/below", ".", "", "x" * 256])
async def test_impossible_file_name_is_reported(place: Place, path: str) -> None:
    (place.own / "folder").mkdir()
    (place.own / "file").write_text("x")
    await place.refused("write_file", path=path, content="x")
    assert sorted(os.listdir(place.own)) == ["file", "folder"]


async def test_an_edit_replaces_one_passage(place: Place) -> None:
    (place.own / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    await place.ok("edit_file", path="a.txt", old="two", new="2")
    assert (place.own / "a.txt").read_bytes() == b"one\r\n2\r\n"


@pytest.mark.parametrize("old, times", [("x", 0), ("one", 2), ("", 0)])
async def test_an_edit_must_match_exactly_once(place: Place, old: str, times: int) -> None:
    (place.own / "a.txt").write_text("one one")
    told = await place.refused("edit_file", path="a.txt", old=old, new="y")
    assert f"occurs {times} times" in told
    assert (place.own / "a.txt").read_text() == "one one"


async def test_a_file_that_is_not_text_is_not_edited(place: Place) -> None:
    data = b"\x89PNG one \xff\xfe"
    (place.own / "a.png").write_bytes(data)
    assert "not UTF-8" in await place.refused("edit_file", path="a.png", old="one", new="two")
    assert (place.own / "a.png").read_bytes() == data


async def test_binary_file_is_reported_and_other_encodings_are_read(place: Place) -> None:
    (place.own / "a.bin").write_bytes(b"\0" * 1000)
    assert "binary file of 1000 bytes" in await place.refused("read_file", path="a.bin")
    (place.own / "latin.txt").write_bytes(b"caf\xe9")
    assert await place.ok("read_file", path="latin.txt") == "caf\ufffd"


@pytest.mark.parametrize("tool", ["read_file", "edit_file", "delete_file"])
@pytest.mark.parametrize("path", ["nothing", "folder"])
async def test_path_that_is_not_a_file_is_reported(place: Place, tool: str, path: str) -> None:
    (place.own / "folder").mkdir()
    assert "there is no file" in await place.refused(tool, **arguments(tool, path))


def make_special(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            # A path may have at most 100 bytes.
            server.bind(os.path.relpath(path))
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("tool", ["read_file", "edit_file", "write_file", "delete_file"])
async def test_pipes_sockets_and_devices_are_not_opened(
    place: Place, tool: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.own)
    make_special(place.own / "it", kind)
    before = (place.own / "it").lstat()
    told = await place.refused(tool, **arguments(tool, "it"))
    assert kind in told or "is outside" in told or "a symlink" in told
    assert (place.own / "it").lstat().st_ino == before.st_ino


async def test_listing_shows_special_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.own)
    make_special(place.own / "p", "pipe")
    make_special(place.own / "s", "socket")
    (place.own / "name\nb  5").write_text("x")
    assert await place.ok("list_files") == "name\\nb  5  1\np (a pipe)\ns (a socket)"
    assert "is a pipe" in await place.refused("list_files", path="p")


async def test_a_link_that_stays_in_the_workspace_can_be_followed(place: Place) -> None:
    (place.own / "run3").mkdir()
    (place.own / "latest").symlink_to("run3")
    (place.own / "same").symlink_to(place.own / "run3")
    await place.ok("write_file", path="latest/a.txt", content="x")
    (place.own / "a.txt").symlink_to("latest/a.txt")
    for path in ("run3/a.txt", "latest/a.txt", "same/a.txt", "a.txt", f"{place.own}/same/a.txt"):
        assert await place.ok("read_file", path=path) == "x"
    assert await place.ok("list_files", path="latest") == "a.txt  1"
    assert await place.ok("list_files") == "run3/a.txt  1"
    assert "is a symlink" in await place.refused("write_file", path="a.txt", content="y")


async def test_a_file_keeps_its_permissions(place: Place) -> None:
    (place.own / "run.sh").write_text("echo one")
    (place.own / "run.sh").chmod(0o750)
    await place.ok("edit_file", path="run.sh", old="one", new="two")
    assert (place.own / "run.sh").stat().st_mode & 0o777 == 0o750


async def test_hard_link_is_replaced_not_written_through(place: Place) -> None:
    os.link(place.secret, place.own / "hard")
    await place.ok("write_file", path="hard", content="mine")
    assert place.secret.read_text() == "secret"


async def test_delete_file(place: Place) -> None:
    await place.ok("write_file", path="a/b.txt", content="x")
    assert await place.ok("delete_file", path="a/b.txt") == "Deleted a/b.txt."
    assert await place.ok("list_files") == "(no files)"


async def test_a_long_file_is_read_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MAX_READ_CHARS", 4)
    (place.own / "a.txt").write_text("abcdefghij")
    assert await place.ok("read_file", path="a.txt") == "abcd\n[truncated; continue with offset=4]"
    assert (
        await place.ok("read_file", path="a.txt", offset=4)
        == "efgh\n[truncated; continue with offset=8]"
    )
    assert await place.ok("read_file", path="a.txt", offset=8) == "ij"
    assert (
        await place.ok("read_file", path="a.txt", offset=-3)
        == "abcd\n[truncated; continue with offset=4]"
    )
    assert await place.ok("read_file", path="a.txt", offset=99) == ""


@pytest.mark.parametrize("tool", ["read_file", "edit_file"])
async def test_oversized_file_is_not_read(
    place: Place, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setattr(workspace, "MAX_READ_BYTES", 4)
    (place.own / "a.txt").write_text("abcde")
    assert "larger than 4 bytes" in await place.refused(tool, **arguments(tool, "a.txt"))


async def test_size_of_a_written_file_is_limited(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MAX_WRITE_CHARS", 4)
    assert "the limit is 4" in await place.refused("write_file", path="a.txt", content="abcde")
    await place.ok("write_file", path="a.txt", content="abcd")
    assert "the limit is 4" in await place.refused("edit_file", path="a.txt", old="d", new="de")
    assert (place.own / "a.txt").read_text() == "abcd"


async def test_length_of_a_listing_is_limited(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MAX_LISTED", 3)
    for number in range(5):
        (place.own / f"{number}.txt").touch()
    assert (
        await place.ok("list_files") == "0.txt  0\n1.txt  0\n2.txt  0\n(more files are not listed)"
    )


@pytest.mark.parametrize("tool", NAMES)
async def test_disk_access_runs_in_worker_threads(
    place: Place, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.own / "a.txt").write_text("e")
    loop, calls = threading.get_ident(), []

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            calls.append((name, threading.get_ident()))
            return real(*args, **more)

        return call

    for name in ("open", "stat", "lstat", "readlink", "listdir", "mkdir", "replace", "unlink"):
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    space = Workspace(place.own, {"agent1": place.peer}, [place.context])
    result = await Toolbox(space.tools()).call(tool, arguments(tool, "a.txt"))
    monkeypatch.undo()
    assert not result.is_error
    assert calls and not [name for name, thread in calls if thread == loop]


@pytest.mark.parametrize("tool", NAMES)
async def test_stopped_agent_accesses_no_file(place: Place, tool: str) -> None:
    (place.own / "a.txt").write_text("e")
    token = CancelToken()
    token.request(CancellationStatus.REQUESTED, "api")
    with bind(token), pytest.raises(AgentStopped):
        await place.call(tool, **arguments(tool, "a.txt"))
    assert (place.own / "a.txt").read_text() == "e"


PIECES = st.sampled_from(
    ["..", ".", "a", "link", "peers", "agent1", "", "~", "\\", "/", "C:", "a\0"]
)


@given(st.lists(PIECES, max_size=6).map("/".join) | st.text(max_size=10), st.sampled_from(NAMES))
async def test_no_generated_path_leads_out_or_crashes_a_tool(
    tmp_path_factory: pytest.TempPathFactory, path: str, tool: str
) -> None:
    place = Place(tmp_path_factory.mktemp("any"))
    (place.own / "link").symlink_to(place.path, target_is_directory=True)
    before = place.everything()
    result = await place.call(tool, **arguments(tool, path))
    assert "secret" not in result
    assert place.everything() == before


@pytest.mark.parametrize(
    ("found", "old", "new", "left"),
    [
        ("one 2", "two", "2", "one 2"),  # done before
        ("one two", "two", "2", "one 2"),  # not done before
        ("a two, 2", "two", "2", "a 2, 2"),  # not done, although the new text exists already
        ("one one two", "one two", "one one two", "one one two"),  # the new text contains the old
        ("one ", "two", "", "one "),
        ("one two", "two", "", "one "),
    ],
)
async def test_interrupted_edit_happens_once(
    place: Place, found: str, old: str, new: str, left: str
) -> None:
    (place.own / "a.txt").write_text(found)
    with use_call(ToolCall(is_repeated=True)):
        await place.ok("edit_file", path="a.txt", old=old, new=new)
    assert (place.own / "a.txt").read_text() == left


LOOKALIKES = [
    "\uff0e\uff0e/secret.txt",  # fullwidth dots
    "..\uff0fsecret.txt",  # a fullwidth slash
    "\u2025/secret.txt",  # two dots in one character
    "..\u2215secret.txt",
    "..\u2044secret.txt",
    "%2e%2e/secret.txt",
    "..%2fsecret.txt",
    ".../secret.txt",
    ".. /secret.txt",
    "..\u200b/secret.txt",
    "~/secret.txt",
    "~root/secret.txt",
    "$HOME/secret.txt",
    "secret.txt.",
    "secret.txt ",
    "PEERS/agent1/draft.md",
    "peers./agent1/draft.md",
    "\uff50eers/agent1/draft.md",
    "C:/secret.txt",
    "file:/secret.txt",
]


@pytest.mark.parametrize("path", LOOKALIKES, ids=ascii)
async def test_name_that_resembles_a_parent_path_is_ordinary(place: Place, path: str) -> None:
    before = place.everything()
    await place.refused("read_file", path=path)
    await place.ok("write_file", path=path, content="mine")
    assert list_files(place.own) == [(path, 4)]
    assert place.everything() == before
    assert await place.ok("read_file", path=path) == "mine"
    await place.ok("delete_file", path=path)
    assert place.everything() == before


def _beside(place: Place, name: str) -> Path:
    """Create a directory next to the workspace with a similar name."""
    folder = place.path / name
    try:
        folder.mkdir()
    except FileExistsError:
        pytest.skip("this disk takes both names for one")
    (folder / "a").write_text("secret")
    return folder


@pytest.mark.parametrize("tool", NAMES)
@pytest.mark.parametrize("name", ["OWN", "Own", "own.", "own ", "\uff4fwn", "own\u200b"], ids=ascii)
async def test_directory_with_a_similar_name_is_outside(place: Place, tool: str, name: str) -> None:
    other = _beside(place, name)
    before = place.everything()
    for path in (f"{other}/a", str(other), f"../{name}/a", f"{place.own}/../{name}/a"):
        assert "secret" not in await place.refused(tool, **arguments(tool, path))
    assert place.everything() == before


async def test_unicode_variants_of_a_name_stay_in_the_workspace(place: Place) -> None:
    composed, decomposed = "caf\u00e9.txt", "cafe\u0301.txt"
    before = place.everything()
    await place.ok("write_file", path=composed, content="one")
    await place.ok("write_file", path=decomposed, content="two")
    # A file system that treats both names as equal has one file, others have two.
    sizes = [size for _, size in list_files(place.own)]
    assert sizes in ([3], [3, 3])
    assert await place.ok("read_file", path=decomposed) == "two"
    assert await place.ok("read_file", path=composed) == ("one" if len(sizes) == 2 else "two")
    assert place.everything() == before
