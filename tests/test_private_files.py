"""Only their owner can access the files of nb_agents, whatever the umask."""

from __future__ import annotations

import ast
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.events import Pause
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, Vote, scripted_team
from tests import processes
from tests.kit.disk import (
    Directory,
    is_held,
    make_folder,
    open_private,
    private_lock,
    write_private,
)
from tests.kit.processes import WritablePath, WriteAccess, drop_special_bits
from tests.kit.sessions import (
    CLAIM_LOCK,
    SessionStore,
    TurnPaths,
    export_session,
    fork_session,
    send,
    strip_session,
)
from tests.kit.tools import CallInbox
from tests.recipes.live import write
from tests.team_kit import WAIT_S, finish
from tests.tools.sandboxes import Place, both, place

__all__ = ["place"]

PACKAGE = Path(nb_agents.__file__).parent

MAY_CREATE = {
    "cli/beginning.py": "the user's own team file",
    "cli/printing.py": "the null device",
    "disk/directory.py": "files in workspaces and of the user; private ones on request",
    "disk/private.py": "everything else",
    "extensions/replays/recording_file.py": "the user's own recording, which a repository contains",
    "process/command.py": "pipes, and files in memory",
    "process/readonly_devices.py": "the kernel's files",
    "session/archive.py": "entries of a zip file",
    "snapshots/user_file_restore.py": "the user's files, with their own modes",
    "snapshots/checkout.py": "files of workspaces, with their own modes",
}
"""Modules that create files in another way, and which files."""


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def creations(path: Path) -> list[str]:
    """Return the calls in a module that create a file or directory with the umask's modes."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
        opens = name == "open" and any(str(text)[:1] in "wax" for text in texts)
        makes = {"mkdir", "makedirs", "write_text", "write_bytes", "touch", "FileLock", "mkfifo"}
        creates = "O_CREAT" in (text := ast.unparse(node)) and "FILE_MODE" not in text
        if opens or (name == "open" and creates) or name in makes:
            found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)[:60]}")
    return found


def test_one_module_creates_all_files_of_a_session() -> None:
    found = [each for path in PACKAGE.rglob("*.py") for each in creations(path)]
    assert [each for each in found if each.partition(":")[0] not in MAY_CREATE] == []
    assert {each.partition(":")[0] for each in found} == MAY_CREATE.keys()


def loose(root: Path) -> list[str]:
    """Return paths that other users can access, and programs with special permission bits."""
    found = []
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            is_programs = _made_by_programs(path.relative_to(root).parts)
            if mode & (0o6000 if is_programs else 0o077) and not stat.S_ISLNK(mode):
                found.append(f"{stat.S_IMODE(mode):o} {path.relative_to(root)}")
    return found


def _made_by_programs(parts: tuple[str, ...]) -> bool:
    """Return whether a path is in an agent's workspace, or in the git repository."""
    depths = {"workspaces": 2, "worktrees.git": 1}
    starts = [at + depths[name] for at, name in enumerate(parts) if name in depths]
    return bool(starts) and len(parts) > min(starts)


RECIPE = """
steps:
- {id: make, type: bash, output: a, command: "echo x > made; chmod 4777 made"}
- {id: say, agent: worker, prompt: "Say it", output: b}
"""


def _plays(name: str) -> Any:
    command = "mkdir -p d; echo x > d/x; chmod 6777 d/x; chmod 777 d; seq 100000"
    calls = (
        Call("write_file", {"path": "in/note.md", "content": "note"}),
        Call("run_command", {"command": command}),
        Call("create_task_plan", {"tasks": ["one"]}),
        Call("data_set", {"key": "k", "value": 1}),
        Call("write_file", {"path": "memory/short_term/a.md", "content": "---\nname: a\n---\nx"}),
    )

    def reply(messages: Any) -> Turn:
        said, done = str(messages), sum(message.kind == "response" for message in messages)
        if "<FINAL PRESENTATION>" in said:
            last = Call("write_file", {"path": "end.md", "content": "the end"})
            return Turn("The end.") if done else Turn(calls=(last,))
        if f"answer of {name}" in said:
            return Vote("agent1")
        return Turn(calls=(calls[done],)) if done < len(calls) else Answer(f"answer of {name}")

    return reply


def _team(site: Path) -> TeamSpec:
    keys = {"enable_mcp_command_line": True, "data_store": True}
    agents = [
        {"id": n, "backend": {"type": "python", "instance": ScriptedModel(_plays(n)), **keys}}
        for n in "ab"
    ]
    coordination = {
        "enable_memory_filesystem_mode": True,
        "enable_agent_task_planning": True,
        "task_planning_filesystem_mode": True,
        "write_mode": "worktree",
    }
    given = [{"path": str(site), "permission": "write"}]
    rules = {"coordination": coordination, "context_paths": given}
    return TeamSpec.model_validate({"agents": agents, "orchestrator": rules})


def test_only_its_user_can_use_a_session(
    tmp_path: Path, no_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    site, root = tmp_path / "site", tmp_path / ".nb_agents" / "sessions"
    site.mkdir()
    (site / "a.txt").write_text("x")
    team, options = _team(site), RunOptions(session_root=root, debug=True)
    run = finish(nb_agents.start("the task", team, "s", options=options))
    assert run.status == "completed", run.view.notices
    finish(run.rewind(1))
    finish(nb_agents.start("more", team, "s", True, options=options))
    echo = scripted_team(worker=ScriptedModel(Turn("So.")))
    recipe = nb_agents.start("", echo, "r", recipe=write(tmp_path, RECIPE), options=options)
    finish(recipe)
    nb_agents.map(
        [{"q": 1}],
        "Why {{q}}?",
        scripted_team(a=ScriptedModel(Answer("x"))),
        name="m",
        options=options,
    ).wait(WAIT_S)
    send(TurnPaths(run.path), Pause())
    SessionStore(root).mark_cancelled("r")
    offer = CallInbox.make(root)
    fork = fork_session(run.path.parent, 1, datetime(2026, 1, 1)).path
    strip_session(fork)
    zipped = export_session(run.path.parent, tmp_path / "s.zip").path
    assert loose(tmp_path / ".nb_agents") == []
    assert stat.S_IMODE(zipped.stat().st_mode) == 0o600
    offer.withdraw()
    names = {path.name for path in root.rglob("*")}
    parts = {"debug.log", "data_store.sqlite", "worktrees.git", "commands", "rows.jsonl", "tools"}
    assert parts | {"owner.lock", CLAIM_LOCK, "recipe.yaml", ".offers", "stop.json"} <= names


def test_special_bits_are_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    for folder in (work / "in", work / "closed", outside):
        folder.mkdir(parents=True)
    made = [work / "a", work / "in" / "b", work / "closed" / "c", outside / "d"]
    for path in made:
        path.write_text("x")
        path.chmod(0o6755)
    (work / "link").symlink_to(outside / "d")
    (work / "folder").symlink_to(outside)
    (work / "closed").chmod(0o111)
    (work / "in").chmod(0o2755)
    drop_special_bits(work)
    assert stat.S_IMODE((work / "closed").stat().st_mode) == 0o111
    assert stat.S_IMODE((work / "in").stat().st_mode) == 0o2755
    assert [oct(path.stat().st_mode & 0o7777) for path in made] == ["0o755"] * 3 + ["0o6755"]


def test_bits_that_the_user_set_stay_and_deep_files_are_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    path.chmod(0o4755)
    drop_special_bits(tmp_path, path.stat().st_ctime_ns + 1)
    assert path.stat().st_mode & 0o4000
    drop_special_bits(tmp_path, path.stat().st_ctime_ns)
    assert not path.stat().st_mode & 0o4000
    deep = tmp_path.joinpath(*["d"] * 110)
    deep.mkdir(parents=True)
    drop_special_bits(tmp_path)
    assert any(not each.stat().st_mode & 0o077 for each in [deep, *deep.parents][:-2])


@both
async def test_a_command_leaves_no_file_with_special_bits(place: Place) -> None:
    site = place.root / "site"
    site.mkdir()
    access = WriteAccess([WritablePath(site)], is_open=True)
    (site / "old").write_text("x")
    (site / "old").chmod(0o4755)
    await anyio.sleep(0.05)  # more than a tick of the file system's clock
    sandbox = place.sandbox(replace(place.context, access=access))
    done = await sandbox.run(
        ["bash", "-c", f"cp /bin/true a; cp a {site}/b; chmod 6755 a {site}/b"]
    )
    assert done.exit_code == 0, done.errors
    made = (place.workspace / "a", site / "b", site / "old")
    assert [oct(path.stat().st_mode & 0o7000) for path in made] == ["0o0", "0o0", "0o4000"]


HOLD = """
import fcntl, os, sys
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    file = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
except OSError as exc:
    print(type(exc).__name__, flush=True)
sys.stdin.read()
"""


def test_another_user_cannot_hold_a_lock(tmp_path: Path) -> None:
    """Not even if others can enter the directory; without root, only the modes are checked."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o711)
    old = tmp_path / "old.lock"
    old.touch(0o644)
    for path in (tmp_path / "owner.lock", old):
        with private_lock(path):
            assert is_held(private_lock(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with processes.python(HOLD, path) as other:
            said = processes.read_line(other)
            assert said == ("PermissionError\n" if os.getuid() == 0 else "held\n")
            assert is_held(private_lock(path)) is (os.getuid() != 0)


def test_a_lock_file_of_another_user_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "owner.lock"
    path.touch(0o666)
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_held(private_lock(path)) is (os.getuid() != 0)


def test_created_paths_are_private_and_existing_ones_keep_their_modes(
    tmp_path: Path, no_umask: None
) -> None:
    (tmp_path / "shared").mkdir(0o755)
    made = make_folder(tmp_path / "shared" / "a" / "b")
    write_private(made / "file", "text")
    open_private(made / "other", "xb").close()
    with Directory.made(made) as opened:
        opened.replace("new/settings", b"text")
        opened.create("new/log").close()
        os.close(opened.new_descriptor("here"))
    found = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.rglob("*")}
    private = dict.fromkeys(["a", "b", "new"], "0o700")
    private |= dict.fromkeys(["file", "other", "settings", "log", "here"], "0o600")
    assert found == {"shared": "0o755", **private}
    assert make_folder(made) == made
    with pytest.raises(FileExistsError):
        make_folder(made, exist_ok=False)
    with pytest.raises(FileExistsError):
        make_folder(made / "file")
