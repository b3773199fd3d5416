"""Going back with files of the person's own: what agents changed there goes back, and no more."""

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
from nb_agents.config.team import TeamSpec
from nb_agents.errors import StorageError, UserError
from nb_agents.runs.run import Run
from nb_agents.session.manage import export_session, strip_session
from nb_agents.session.own_files import OwnFiles
from nb_agents.session.snapshots import HELD
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.cli.calls import call_here
from tests.model_server import wait_until
from tests.recipes.live import write
from tests.session.test_snapshots import State, state
from tests.team_kit import WAIT_S, events, finish, script, team_by_rules


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of the person's: a repository with work in it."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("index", "style", "old"):
        (folder / name).write_text(f"{name}\n")
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "add", "."], check=True)
    return folder


class Played:
    """One agent that changes the person's files, by tools alone; what it finds there is noted."""

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


def test_from_each_call_the_persons_files_are_what_they_were_and_come_out_the_same(
    tmp_path: Path, site: Path
) -> None:
    played = Played(tmp_path, site)
    first, end = [*played.seen], state(site)
    for number in range(1, 7):
        again = played.back(f"before a's {number}th model call" if number > 1 else 1)
        assert played.seen[0] == first[number - 1], number
        assert state(site) == end
        assert again.result == played.run.result
    changed = [e for e in events(played.run, ev.OwnFilesKept) if e.count]
    assert [e.changed for e in changed] == [("index",), ("in", "in/new"), ("style",), ("old",)]


def test_the_earlier_turn_is_gone_back_to_after_another_went_on_differently(
    tmp_path: Path, site: Path
) -> None:
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


def test_what_the_person_changed_since_stays_and_preview_and_result_name_the_patch(
    tmp_path: Path, site: Path
) -> None:
    played = Played(tmp_path, site)
    (site / "index").write_text("index by a\nand mine\n")
    (site / "in" / "new").rename(site / "in" / "mine")
    before = state(tmp_path)
    told = played.run.preview_rewind(1)
    assert state(tmp_path) == before
    assert {f.path for f in told.files} == {f"{site}/old", f"{site}/style", "a/notes"}
    assert {line.partition(";")[0].rpartition("site/")[2] for line in told.refused} == {
        "in holds files that stay.",
        "index was changed since",
    }
    assert told.outside == ()
    again = played.back(1)
    mine = played.seen[0]
    assert mine[b"index"][1] == b"index by a\nand mine\n"
    assert b"in/new" not in mine and b"in/mine" in mine
    assert (mine[b"style"][1], mine[b"old"][1]) == (b"style\n", b"old\n")
    (notice,) = (n for n in again.view.notices if n.startswith("Not put back"))
    named = [line.partition("turn_2/")[2] for line in told.refused]
    for name in filter(None, named):
        assert (again.path / name).is_file()
        assert f"{again.path}/{name}" in notice
    assert any(n.startswith("Put back of your own files:") for n in again.view.notices)


def _written(place: Path, site: Path, files: Mapping[Path, str]) -> Run:
    """Run an agent that writes these files of the person's own."""
    calls = tuple(
        Call("write_file", {"path": str(path), "content": text}) for path, text in files.items()
    )
    given = {"context_paths": [{"path": str(site), "permission": "write"}]}
    team = team_by_rules({"a": ScriptedModel(Turn(calls=calls), Answer("done"))}, **given)
    options = RunOptions(session_root=place / "sessions")
    return finish(nb_agents.start("t", team, session="s", options=options))


@pytest.mark.parametrize("name", ["index", "my file", "new\nline", 'q"\\x', "tab\t1", "é b/in"])
def test_the_first_line_of_a_patch_applies_it_whatever_the_file_is_called(
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


def test_a_preview_names_twenty_files_that_stay_and_counts_the_others(
    tmp_path: Path, site: Path
) -> None:
    files = [site / f"{number}.md" for number in range(21)]
    run = _written(tmp_path, site, dict.fromkeys(files, "by a"))
    for file in files:
        file.write_text("mine")
    lines = [line for line in run.preview_rewind(1).lines if line.startswith("Not put back: ")]
    assert len(lines) == 21
    assert lines[-1] == "Not put back: 1 more file"


def test_the_persons_repository_is_not_written_to(tmp_path: Path, site: Path) -> None:
    hook = site / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    before = state(site / ".git")
    played = Played(tmp_path, site)
    played.back(1)
    assert state(site / ".git") == before
    assert not (tmp_path / "ran").exists()


def test_without_snapshots_nothing_is_kept_and_nothing_put_back(tmp_path: Path, site: Path) -> None:
    played = Played(tmp_path, site, snapshots=False)
    end = state(site)
    assert not events(played.run, ev.OwnFilesKept)
    assert not (tmp_path / "sessions" / "s" / "snapshots").exists()
    told = played.run.preview_rewind(1)
    assert f"{site}/index" in told.outside and not told.files
    played.back(1)
    assert played.seen[0] == end


def test_prune_takes_what_was_kept_and_an_export_has_nothing_that_was_only_held(
    tmp_path: Path, site: Path
) -> None:
    played = Played(tmp_path, site)
    session = played.run.path.parent
    held = session / HELD / "files"
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
    with pytest.raises(UserError, match=r"can't all change your own files in .*write_mode: auto"):
        played.run.rewind(1, times=2)
    assert state(site) == before


def test_a_rewind_that_can_not_begin_leaves_the_persons_files_as_they_are(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path, site)
    before, found = state(site), list[State]()

    def fail(*_: Any) -> None:
        found.append(state(site))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nb_agents.launch.here.TurnWriter", fail)
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


def test_a_recipes_commands_in_the_persons_directory_are_gone_back_over(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = state(site)
    run = finish(_recipe(tmp_path, site, monkeypatch))
    end = state(site)
    assert "Files stay as they are" not in str(run.preview_rewind("step make"))
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
    assert not (run.path.parent / HELD).exists()


def test_what_a_killed_command_may_have_changed_stays_and_has_a_patch(
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
    assert f"Not put back: {site}/style was changed while or after a call was cut" in told
    again = finish(nb_agents.rewind("s/1", "the start", options=options))
    assert again.status == "completed", again.view.notices
    assert (site / "index").read_text() == "index\n1\n"  # put back, and made again
    assert (site / "style").read_text() == "style\n2\n2\n"
    (patch,) = (again.path / "changes").glob("*style.patch")
    assert "-2\n" in patch.read_text()
    doubt = [e for e in events(again, ev.OwnFilesKept) if not e.is_sure]
    assert any("style" in e.changed for e in doubt)
    assert not (again.path.parent / HELD).exists()


def _stopped(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A recipe whose command has changed files of the person's when a stop cut it."""
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


def test_what_a_stopped_command_had_changed_is_known_and_goes_back(
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
    kept = events(again, ev.OwnFilesKept)
    assert all(each.is_sure for each in kept)
    assert {name for each in kept for name in each.changed} == {"at", "index"}
    assert not (again.path.parent / HELD).exists()


def test_a_stop_waits_for_no_look_at_the_persons_files_and_what_they_save_then_is_theirs(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, look = threading.Event(), OwnFiles.look

    def held_up(*place: Any) -> Any:
        if (site / "at").exists():  # else it is the look before the command
            assert go_on.wait(WAIT_S)
        return look(*place)

    monkeypatch.setattr(OwnFiles, "look", held_up)
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


def test_commands_at_one_time_and_the_persons_own_edits_between_are_told_apart(
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
        (site / "index").write_text("mine\n")  # as the person does, while no agent writes
        return Turn("Now.")

    team = scripted_team(None, worker=ScriptedModel(edit))
    run = finish(_recipe(tmp_path, site, monkeypatch, body, team))
    assert run.status == "completed", run.view.notices
    names = {name for e in events(run, ev.OwnFilesKept) for name in e.changed}
    assert names == {"x", "y", "z"}
    assert not run.preview_rewind("the start").refused
    finish(run.rewind("the start", config=team))
    assert (site / "index").read_text() == "mine\n"


def test_a_merge_of_copies_is_gone_back_over_too(tmp_path: Path, site: Path) -> None:
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
