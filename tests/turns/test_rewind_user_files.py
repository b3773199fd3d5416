"""Rewind with user files: changes by agents are undone, and no others."""

import errno
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import StorageError, UserError
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.cli.calls import call_here
from tests.kit.runs import Run, here
from tests.kit.sessions import export_session, strip_session
from tests.kit.snapshots import COPIES_FOLDER, UserFiles
from tests.kit.teams import TeamSpec
from tests.model_server import wait_until
from tests.recipes.live import write
from tests.snapshots.test_store import State, state
from tests.team_kit import WAIT_S, events, finish, script, team_by_rules


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A user directory: a repository with uncommitted work."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("index", "style", "old"):
        (folder / name).write_text(f"{name}\n")
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "add", "."], check=True)
    return folder


class Played:
    """One agent that changes user files with tools; notes the files that it finds."""

    def __init__(self, root: Path, site: Path, **more: Any) -> None:
        self.root, self.site, self.seen = root, site, list[State]()
        given = {"path": str(site), "permission": "write"}
        self.team = TeamSpec.model_validate(
            {
                "agents": [
                    {"id": "a", "backend": {"type": "python", "instance": ScriptedModel(self._say)}}
                ],
                "orchestrator": {"context_paths": [given], **more.pop("orchestrator", {})},
                **more,
            }
        )
        self.options = RunOptions(session_root=root / "sessions")
        self.run = finish(nb_agents.start("the task", self.team, session="s", options=self.options))
        assert self.run.status == "completed", self.run.view.notices

    def _say(self, messages: Any) -> Turn:
        self.seen.append(state(self.site))
        calls: Sequence[tuple[str, dict[str, str]]] = (
            ("write_file", {"path": f"{self.site}/index", "content": "index by a\n"}),
            ("write_file", {"path": f"{self.site}/in/new", "content": "new\n"}),
            ("edit_file", {"path": f"{self.site}/style", "old": "style", "new": "style by a"}),
            ("delete_file", {"path": f"{self.site}/old"}),
            ("write_file", {"path": "notes", "content": "of its own"}),
        )
        done = sum(message.kind == "response" for message in messages)
        if done == len(calls):
            return Answer("done")
        return Turn(calls=(Call(*calls[done]),))

    def back(self, to: str | int, **more: Any) -> Run:
        self.seen.clear()
        return finish(self.run.rewind(to, **more))


def test_rewind_to_each_call_restores_the_user_files(tmp_path: Path, site: Path) -> None:
    played = Played(tmp_path, site)
    first, end = [*played.seen], state(site)
    for number in range(1, 7):
        again = played.back(f"before a's {number}th model call" if number > 1 else 1)
        assert played.seen[0] == first[number - 1], number
        assert state(site) == end
        assert again.result == played.run.result
    changed = [e for e in events(played.run, ev.UserFilesSaved) if e.count]
    assert [e.changed for e in changed] == [("index",), ("in", "in/new"), ("style",), ("old",)]


def test_earlier_turn_can_be_restored_after_a_diverging_turn(tmp_path: Path, site: Path) -> None:
    played = Played(tmp_path, site)
    end = state(site)
    other = ScriptedModel(
        Turn(calls=(Call("write_file", {"path": f"{site}/index", "content": "otherwise\n"}),)),
        Answer("differently"),
    )
    agents = [{"id": "a", "backend": {"type": "python", "instance": other}}]
    team = played.team.model_validate(
        {
            "agents": agents,
            "orchestrator": {"context_paths": played.team.orchestrator.context_paths},
        }
    )
    second = finish(played.run.rewind(1, config=team))
    assert (site / "index").read_text() == "otherwise\n"
    assert (site / "old").exists()
    played.back("a's answer")
    assert state(site) == end
    finish(second.rewind("a's answer", config=team))
    assert (site / "index").read_text() == "otherwise\n"


def test_later_changes_of_the_user_stay_and_the_patch_is_named(tmp_path: Path, site: Path) -> None:
    played = Played(tmp_path, site)
    (site / "index").write_text("index by a\nand mine\n")
    (site / "in" / "new").rename(site / "in" / "mine")
    before = state(tmp_path)
    told = played.run.preview_rewind(1)
    assert state(tmp_path) == before
    assert {f.path for f in told.files} == {f"{site}/old", f"{site}/style", "a/notes"}
    assert {line.partition(";")[0].rpartition("site/")[2] for line in told.refused} == {
        "in contains files that stay.",
        "index was changed since",
    }
    assert told.outside == ()
    again = played.back(1)
    mine = played.seen[0]
    assert mine[b"index"][1] == b"index by a\nand mine\n"
    assert b"in/new" not in mine and b"in/mine" in mine
    assert (mine[b"style"][1], mine[b"old"][1]) == (b"style\n", b"old\n")
    (notice,) = (n for n in again.view.notices if n.startswith("Not restored"))
    named = [line.partition("turn_2/")[2] for line in told.refused]
    for name in filter(None, named):
        assert (again.path / name).is_file()
        assert f"{again.path}/{name}" in notice
    assert any(n.startswith("Restored your files:") for n in again.view.notices)


def _written(place: Path, site: Path, files: Mapping[Path, str]) -> Run:
    """Run an agent that writes these user files."""
    calls = tuple(
        Call("write_file", {"path": str(path), "content": text}) for path, text in files.items()
    )
    given = {"context_paths": [{"path": str(site), "permission": "write"}]}
    team = team_by_rules({"a": ScriptedModel(Turn(calls=calls), Answer("done"))}, **given)
    options = RunOptions(session_root=place / "sessions")
    return finish(nb_agents.start("t", team, session="s", options=options))


@pytest.mark.parametrize("name", ["index", "my file", "new\nline", 'q"\\x', "tab\t1", "é b/in"])
def test_command_in_a_patch_applies_it_for_any_file_name(
    tmp_path: Path, site: Path, name: str
) -> None:
    file = site / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("1\n2\n3\n4\n5\n")
    run = _written(tmp_path, site, {file: "one\n2\n3\n4\n5\n"})
    file.write_text("one\n2\n3\n4\nfive\n")
    again = finish(run.rewind("the start"))
    (patch,) = (again.path / "changes").iterdir()
    command = patch.read_text().splitlines()[0].replace("THIS", shlex.quote(str(patch)))
    subprocess.run(command, shell=True, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    assert file.read_text() == "1\n2\n3\n4\nfive\n"


def test_preview_names_twenty_unrestored_files_and_counts_the_rest(
    tmp_path: Path, site: Path
) -> None:
    files = [site / f"{number}.md" for number in range(21)]
    run = _written(tmp_path, site, dict.fromkeys(files, "by a"))
    for file in files:
        file.write_text("mine")
    lines = [line for line in run.preview_rewind(1).lines if line.startswith("Not restored: ")]
    assert len(lines) == 21
    assert lines[-1] == "Not restored: 1 more file"


def test_the_users_repository_is_not_written_to(tmp_path: Path, site: Path) -> None:
    hook = site / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    before = state(site / ".git")
    played = Played(tmp_path, site)
    played.back(1)
    assert state(site / ".git") == before
    assert not (tmp_path / "ran").exists()


def test_without_snapshots_nothing_is_saved_or_restored(tmp_path: Path, site: Path) -> None:
    played = Played(tmp_path, site, snapshots=False)
    end = state(site)
    assert not events(played.run, ev.UserFilesSaved)
    assert not (tmp_path / "sessions" / "s" / "snapshots").exists()
    told = played.run.preview_rewind(1)
    assert f"{site}/index" in told.outside and not told.files
    played.back(1)
    assert played.seen[0] == end


def test_prune_deletes_saved_files_and_export_omits_temporary_ones(
    tmp_path: Path, site: Path
) -> None:
    played = Played(tmp_path, site)
    session = played.run.path.parent
    held = session / COPIES_FOLDER / "files"
    held.mkdir(parents=True)
    (held / "secret").write_text("of the person")
    zipped = export_session(session, tmp_path / "s.zip").path.read_bytes()
    assert b"snapshots/files/" in zipped and b"secret" not in zipped
    strip_session(session)
    assert not (session / "snapshots").exists()


def test_several_forks_of_one_project_are_refused_with_the_remedy(
    tmp_path: Path, site: Path
) -> None:
    played = Played(tmp_path, site)
    before = state(site)
    with pytest.raises(UserError, match=r"can't change the same user files in .*write_mode: auto"):
        nb_agents.fork(played.run.path, 1, times=2, config=played.team)
    assert state(site) == before


def test_failed_rewind_does_not_change_user_files(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path, site)
    before, found = state(site), list[State]()

    def fail(*_: Any) -> None:
        found.append(state(site))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(here, "TurnWriter", fail)
    with pytest.raises(StorageError, match="No space left"):
        played.run.rewind(1)
    assert found[0] == played.seen[0] != before
    assert state(site) == before


RECIPE = """
workspace: project
steps:
- {id: make, type: bash, command: "echo 1 >> index; printf '\\\\0' > bin; mkdir -p in", output: a}
- {id: change, type: bash, command: "mv style in; chmod 700 old; rm bin; ln -s in to", output: b}
- {id: look, type: bash, command: "cat index; ls -R", output: c}
"""


def _recipe(
    root: Path,
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str = RECIPE,
    team: TeamSpec | None = None,
) -> Run:
    monkeypatch.chdir(site)
    file, options = write(root, body), RunOptions(session_root=root / "sessions")
    return nb_agents.start("", team, "s", recipe=file, options=options)


def test_rewind_undoes_commands_of_a_recipe_in_user_files(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = state(site)
    run = finish(_recipe(tmp_path, site, monkeypatch))
    end = state(site)
    assert "Files are not restored" not in str(run.preview_rewind("step make"))
    again = finish(run.rewind("step make"))
    assert (again.result, state(site)) == (run.result, end)
    (site / "mine").write_text("mine\n")
    told = run.preview_rewind("the start")
    assert not told.refused
    again = finish(run.rewind("the start"))
    assert again.result["c"].replace("mine\n", "") == run.result["c"]
    (site / "mine").unlink()
    assert state(site) == end != begun
    kept = [*(run.path.parent / "snapshots" / "files").glob("??/*")]
    assert len(kept) == 5, kept  # index twice, bin, style and old, and nothing of .git
    assert not (run.path.parent / COPIES_FOLDER).exists()


def test_changes_of_a_killed_command_remain_with_a_patch(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(
        tmp_path,
        "workspace: project\nsteps:\n"
        "- {id: one, type: bash, command: echo 1 >> index, output: a}\n"
        "- {id: two, type: bash, output: b,"
        ' command: "echo 2 >> style; [ -e go ] || { touch at; sleep 60; }"}\n',
    )
    source = f"""
import nb_agents
from nb_agents import RunOptions
options = RunOptions(session_root={str(tmp_path / "sessions")!r})
nb_agents.start("", None, "s", recipe={str(file)!r}, options=options).wait()
"""
    monkeypatch.chdir(site)
    with script(source, site) as process:
        wait_until((site / "at").exists, WAIT_S, "the command", lambda: process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (site / "go").touch()
    options = RunOptions(session_root=tmp_path / "sessions")
    told = call_here(
        "rewind",
        "s/1",
        "--to",
        "the start",
        "--preview",
        "--session-root",
        str(tmp_path / "sessions"),
    )
    assert f"Not restored: {site}/style was changed while or after a call was cut" in told
    again = finish(nb_agents.rewind("s/1", "the start", options=options))
    assert again.status == "completed", again.view.notices
    assert (site / "index").read_text() == "index\n1\n"  # put back, and made again
    assert (site / "style").read_text() == "style\n2\n2\n"
    (patch,) = (again.path / "changes").glob("*style.patch")
    assert "-2\n" in patch.read_text()
    doubt = [e for e in events(again, ev.UserFilesSaved) if not e.is_sure]
    assert any("style" in e.changed for e in doubt)
    assert not (again.path.parent / COPIES_FOLDER).exists()


def _stopped(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A recipe with a command that was stopped after it changed user files."""
    body = """
workspace: project
steps:
- {id: one, type: bash, output: a, command: "echo 1 >> index; [ -e go ] || { touch at; sleep 60; }"}
"""
    run = _recipe(tmp_path, site, monkeypatch, body)
    wait_until((site / "at").exists, WAIT_S, "the command", lambda: run.view)
    changed_at = (site / "at").stat().st_ctime
    wait_until(lambda: time.time() > changed_at + 0.05, WAIT_S, "a tick of the clock of files")
    run.stop(now=True)
    return finish(run)


def test_changes_of_a_stopped_command_are_recorded_and_restorable(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = state(site)
    run = _stopped(tmp_path, site, monkeypatch)
    told = run.preview_rewind("the start")
    assert {file.path for file in told.files} == {f"{site}/at", f"{site}/index"}
    assert not told.refused
    (site / "go").touch()
    again = finish(run.rewind("the start"))
    (site / "go").unlink()
    assert (site / "index").read_text() == "index\n1\n"
    assert {*state(site)} == {*begun}
    kept = events(again, ev.UserFilesSaved)
    assert all(each.is_sure for each in kept)
    assert {name for each in kept for name in each.changed} == {"at", "index"}
    assert not (again.path.parent / COPIES_FOLDER).exists()


def test_stop_does_not_wait_for_a_scan_of_user_files(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, look = threading.Event(), UserFiles.scan

    def held_up(*place: Any) -> Any:
        if (site / "at").exists():  # else it is the look before the command
            assert go_on.wait(WAIT_S)
        return look(*place)

    monkeypatch.setattr(UserFiles, "scan", held_up)
    run = _stopped(tmp_path, site, monkeypatch)
    assert run.receipt.status == "stopped"
    (site / "style").write_text("style by the person\n")
    (site / "old").unlink()
    go_on.set()
    told = run.preview_rewind("the start")
    assert {file.path for file in told.files} == {f"{site}/at", f"{site}/index"}
    assert [line.split(" ")[:2] for line in told.refused] == [
        [f"{site}/{name}", "was"] for name in ("old", "style")
    ]
    (site / "go").touch()
    finish(run.rewind("the start"))
    assert (site / "style").read_text() == "style by the person\n"
    assert not (site / "old").exists()


def test_concurrent_commands_and_edits_of_the_user_are_distinguished(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
workspace: project
context: {names: [x, y]}
steps:
- id: both
  foreach: "{{names}}"
  as: n
  parallel: true
  type: bash
  output: a
  command: "echo {{n}} > {{n}}; until [ -e x ] && [ -e y ]; do sleep 0.02; done"
- {id: ask, agent: worker, prompt: "Wait.", output: b}
- {id: last, type: bash, output: c, command: "echo z > z"}
"""

    def edit(messages: Any) -> Turn:
        (site / "index").write_text("mine\n")  # as the user does, while no agent writes
        return Turn("Now.")

    team = scripted_team(None, worker=ScriptedModel(edit))
    run = finish(_recipe(tmp_path, site, monkeypatch, body, team))
    assert run.status == "completed", run.view.notices
    names = {name for e in events(run, ev.UserFilesSaved) for name in e.changed}
    assert names == {"x", "y", "z"}
    assert not run.preview_rewind("the start").refused
    finish(run.rewind("the start", config=team))
    assert (site / "index").read_text() == "mine\n"


def test_rewind_also_undoes_a_merge_of_copies(tmp_path: Path, site: Path) -> None:
    def say(messages: Any) -> Turn:
        if sum(message.kind == "response" for message in messages):
            return Answer("done")
        path = "worktrees/site/index"
        return Turn(calls=(Call("write_file", {"path": path, "content": "index by a\n"}),))

    agents = [{"id": "a", "backend": {"type": "python", "instance": ScriptedModel(say)}}]
    given = {"path": str(site), "permission": "write"}
    wanted = {"context_paths": [given], "coordination": {"write_mode": "auto"}}
    team = TeamSpec.model_validate({"agents": agents, "orchestrator": wanted})
    options = RunOptions(session_root=tmp_path / "sessions")
    run = finish(nb_agents.start("the task", team, session="s", options=options))
    assert (site / "index").read_text() == "index by a\n"
    told = run.preview_rewind(1)
    assert f"{site}/index" in {file.path for file in told.files} and not told.refused
    again = finish(run.rewind(1))
    assert (site / "index").read_text() == "index by a\n"
    assert not any("not merged" in notice for notice in again.view.notices)
