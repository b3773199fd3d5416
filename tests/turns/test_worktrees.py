"""Context paths that are changed in copies: git worktrees, which are merged at the end."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.cards import card_text
from tests.kit.processes import git as git_module
from tests.kit.runs import Run
from tests.kit.sessions import delete_session
from tests.kit.teams import report_on
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, events, finish, prompt
from tests.tools.sandboxes import needs_sandbox

DONE = Turn(text="done")
COPY = "worktrees/site"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A git work tree with a commit, and with changes that are not committed."""
    folder = tmp_path / "site"
    (folder / "keep").mkdir(parents=True)
    for name in ("index.html", "style.css", "gone.txt", "keep/a.txt", ".gitignore"):
        (folder / name).write_text(f"old {name}\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    (folder / "style.css").write_text("uncommitted\n")
    (folder / "new.txt").write_text("untracked\n")
    (folder / "gone.txt").unlink()
    (folder / "run.log").write_text("ignored\n")
    (folder / ".env").write_text("SECRET=1\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    argv = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=200).stdout


def put(path: str, content: str = "new\n") -> Turn:
    return Turn(calls=(Call("write_file", {"path": path, "content": content}),))


def shell(command: str) -> Turn:
    return Turn(calls=(Call("run_command", {"command": command}),))


def team(
    models: Sequence[ScriptedModel], path: Path, mode: str = "worktree", **keys: Any
) -> TeamSpec:
    backend, policy = keys.pop("backend", {}), keys.pop("policy", "")
    agents = [
        {"id": name, "backend": {"type": "python", "instance": model, **backend}}
        for name, model in zip("ab", models, strict=False)
    ]
    paths = [path, *keys.pop("others", ())]
    given = [{"path": str(each), "permission": "write", **keys} for each in paths]
    coordination = {"write_mode": mode, **({"drift_conflict_policy": policy} if policy else {})}
    orchestrator = {"context_paths": given, "coordination": coordination}
    return TeamSpec.model_validate({"agents": agents, "orchestrator": orchestrator})


def start(root: Path, spec: TeamSpec) -> Run:
    return nb_agents.start("the task", spec, options=RunOptions(session_root=root / "sessions"))


def run(root: Path, spec: TeamSpec) -> Run:
    return finish(start(root, spec))


def resume(it: Run, root: Path, spec: TeamSpec, trust: bool = False) -> Run:
    options = RunOptions(session_root=root / "sessions", trust=trust)
    return finish(nb_agents.resume(it.session, spec, options=options))


def read(folder: Path) -> dict[str, str]:
    found = (p for p in folder.rglob("*") if p.is_file() and ".git" not in p.parts)
    return {p.relative_to(folder).as_posix(): p.read_text() for p in found}


def notices(it: Run) -> str:
    return "\n".join(it.view.notices)


def cut_before_the_merge(it: Run) -> None:
    """Leave of a run what there is when it is killed once it has merged."""
    journal = it.path / "events.jsonl"
    kinds = ("context_changed", "turn_ended", "files_listed")
    lines = journal.read_text().splitlines(keepends=True)
    cut = [line for line in lines if not any(f'"{kind}"' in line for kind in kinds)]
    based = [n for n, line in enumerate(cut) if '"worktree_based"' in line]
    journal.write_text("".join(cut[: based[-1]]))
    for view in ("metadata.json", "answer.txt"):
        (it.path / view).unlink()


def test_each_agent_changes_its_own_copy_and_the_presenters_is_merged(
    tmp_path: Path, site: Path
) -> None:
    before = read(site)
    first = ScriptedModel(put(f"{COPY}/style.css", "mine\n"), Answer("x"), Vote("agent1"), DONE)
    other = ScriptedModel(put(f"{COPY}/style.css", "other\n"), Vote("agent1"))
    it = run(tmp_path, team([first, other], site))
    assert it.result == "done"
    assert read(site) == before | {"style.css": "mine\n"}
    assert it.receipt.context_changes == ((str(site / "style.css"), "changed"),)
    other_copy = it.path / "workspaces" / "b" / COPY
    assert read(other_copy)["style.css"] == "other\n"
    assert f"`{COPY}`: copy of {site}" in prompt(first, 0)
    assert f"1 file changed in context paths: changed {site / 'style.css'}" in card_text(
        it.view, str(it.path)
    )


def test_copy_contains_uncommitted_files_but_no_ignored_ones(tmp_path: Path, site: Path) -> None:
    it = run(tmp_path, team([ScriptedModel(Answer("done"))], site))
    copy = read(it.path / "workspaces" / "a" / COPY)
    assert copy == {
        "index.html": "old index.html\n",
        "style.css": "uncommitted\n",
        "new.txt": "untracked\n",
        "keep/a.txt": "old keep/a.txt\n",
        ".gitignore": "*.log\n",
    }
    assert not it.receipt.context_changes


@pytest.mark.parametrize("mode", ["auto", "worktree", "isolated"])
def test_directory_without_git_is_copied_too(tmp_path: Path, mode: str) -> None:
    plain = tmp_path / "site"
    (plain / "sub").mkdir(parents=True)
    (plain / "sub" / "a.txt").write_bytes(b"caf\xe9\r\n")
    (plain / "run.sh").write_text("true\n")
    (plain / ".gitattributes").write_text("* text eol=crlf working-tree-encoding=UTF-16\n")
    (plain / "run.sh").chmod(0o755)
    model = ScriptedModel(put(f"{COPY}/made/b.txt"), Answer("done"))
    it = run(tmp_path, team([model], plain, mode))
    assert (plain / "made" / "b.txt").read_text() == "new\n"
    copy = it.path / "workspaces" / "a" / COPY
    assert (copy / "sub" / "a.txt").read_bytes() == b"caf\xe9\r\n"
    assert (copy / "run.sh").read_bytes() == b"true\n" and os.access(copy / "run.sh", os.X_OK)


def test_single_file_is_copied_without_its_directory(tmp_path: Path, site: Path) -> None:
    before = read(site)
    copy = "worktrees/style.css"
    model = ScriptedModel(put(f"{copy}/style.css"), put(f"{copy}/more.css"), Answer("done"))
    it = run(tmp_path, team([model], site / "style.css"))
    assert read(it.path / "workspaces" / "a" / copy).keys() == {"style.css", "more.css"}
    assert read(site) == before | {"style.css": "new\n"}


def test_files_are_created_changed_and_deleted(tmp_path: Path, site: Path) -> None:
    model = ScriptedModel(
        put(f"{COPY}/made.bin", "\0\1"),
        put(f"{COPY}/index.html"),
        Turn(calls=(Call("delete_file", {"path": f"{COPY}/keep/a.txt"}),)),
        Answer("done"),
    )
    it = run(tmp_path, team([model], site))
    assert it.receipt.context_changes == (
        (str(site / "made.bin"), "made"),
        (str(site / "index.html"), "changed"),
        (str(site / "keep" / "a.txt"), "deleted"),
    )
    found = read(site)
    assert (found["made.bin"], found["index.html"], "keep/a.txt" in found) == (
        "\0\1",
        "new\n",
        False,
    )


def test_concurrent_changes_of_the_user_stay_and_conflicts_lose_nothing(
    tmp_path: Path, site: Path
) -> None:
    gate = Gate()
    model = ScriptedModel(
        put(f"{COPY}/style.css"),
        put(f"{COPY}/index.html"),
        Answer("done", gate=gate),
    )
    it = start(tmp_path, team([model], site))
    gate.wait_reached(timeout_s=WAIT_S)
    (site / "style.css").write_text("the person's\n")
    before = read(site)
    gate.open()
    finish(it)
    assert it.result == "done" and read(site) == before
    assert not it.receipt.context_changes
    patch = it.path / "changes" / "a-site.patch"
    told = notices(it)
    assert f"a's changes to {site} were not merged, because patch failed: style.css:1" in told, told
    assert subprocess.run(command_in(told), capture_output=True, timeout=200).returncode == 1
    found = read(site)
    assert (found["style.css"], found["index.html"]) == ("the person's\n", "new\n")
    assert "+new" in found["style.css.rej"]
    assert read(it.path / "workspaces" / "a" / COPY)["style.css"] == "new\n"
    assert "+new" in patch.read_text()


LINES = [f"line {number}\n" for number in range(30)]
BOTH = "".join(["new\n", *LINES[1:-1], "the person's\n"])


def meet(root: Path, site: Path, policy: str) -> Run:
    """Let an agent and the user change and delete the same files, and others."""
    (site / "[a]*.txt").write_text("old\n")
    (site / "long.txt").write_text("".join(LINES))
    gate = Gate()
    model = ScriptedModel(
        put(f"{COPY}/long.txt", "".join(["new\n", *LINES[1:]])),
        *(put(f"{COPY}/{name}") for name in ("[a]*.txt", "style.css", "new.txt", "a.txt")),
        Turn(calls=(Call("delete_file", {"path": f"{COPY}/index.html"}),)),
        Turn(calls=(Call("delete_file", {"path": f"{COPY}/keep/a.txt"}),)),
        Answer("done", gate=gate),
    )
    it = start(root, team([model], site, policy=policy))
    gate.wait_reached(timeout_s=WAIT_S)
    for name in ("style.css", "index.html"):
        (site / name).write_text("the person's\n")
    (site / "new.txt").unlink()
    (site / "long.txt").write_text("".join([*LINES[:-1], "the person's\n"]))
    (site / "mine.txt").write_text("the person's\n")
    gate.open()
    finish(it)
    assert it.result == "done"
    assert it.path.joinpath("changes", "a-site.patch").read_text().count("+new\n") == 5
    return it


def command_in(told: str) -> list[str]:
    return shlex.split(told[told.index("git -C") :].splitlines()[0])


def test_skip_merges_files_without_conflict_and_names_the_others(
    tmp_path: Path, site: Path
) -> None:
    before = read(site)
    it = meet(tmp_path, site, "skip")
    theirs = {"style.css": "the person's\n", "index.html": "the person's\n"}
    merged = {"[a]*.txt": "new\n", "a.txt": "new\n", "mine.txt": "the person's\n"}
    merged |= {"long.txt": BOTH}
    wanted = {k: v for k, v in before.items() if k not in ("new.txt", "keep/a.txt")}
    assert read(site) == wanted | theirs | merged
    assert it.receipt.context_changes == (
        (str(site / "a.txt"), "made"),
        (str(site / "[a]*.txt"), "changed"),
        (str(site / "long.txt"), "changed"),
        (str(site / "keep" / "a.txt"), "deleted"),
    )
    told = notices(it)
    assert (
        "except for files with conflicting changes" in told
        and "'index.html', 'new.txt', 'style.css'" in told
    ), told
    assert "except for files with conflicting changes" in card_text(it.view, str(it.path))
    assert subprocess.run(command_in(told), capture_output=True, timeout=200).returncode == 1
    assert "+new" in (site / "style.css.rej").read_text()
    assert not (site / "a.txt.rej").exists()


def test_prefer_presenter_replaces_changes_of_the_user_and_can_be_undone(
    tmp_path: Path, site: Path
) -> None:
    it = meet(tmp_path, site, "prefer_presenter")
    found = read(site)
    assert (found["style.css"], found["new.txt"], found["a.txt"]) == ("new\n",) * 3
    assert "index.html" not in found and found["mine.txt"] == "the person's\n"
    assert found["long.txt"] == BOTH
    assert (str(site / "new.txt"), "made") in it.receipt.context_changes
    told = notices(it)
    assert "'index.html', 'new.txt', 'style.css'. To restore your versions" in told, told
    subprocess.run(command_in(told), check=True, capture_output=True, timeout=200)
    back = read(site)
    assert back["style.css"] == back["index.html"] == "the person's\n"
    assert "new.txt" not in back and back["a.txt"] == "new\n"


def test_fail_merges_nothing_if_there_is_a_conflict(tmp_path: Path, site: Path) -> None:
    it = meet(tmp_path, site, "fail")
    found = read(site)
    assert (found["style.css"], found["[a]*.txt"]) == ("the person's\n", "old\n")
    assert "a.txt" not in found and not it.receipt.context_changes
    assert "were not merged, because" in notices(it)


@pytest.mark.parametrize("policy", ["skip", "prefer_presenter"])
def test_conflict_behind_a_link_is_skipped(tmp_path: Path, site: Path, policy: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("old keep/a.txt\n")
    gate = Gate()
    model = ScriptedModel(
        put(f"{COPY}/keep/a.txt"), put(f"{COPY}/index.html"), Answer("done", gate=gate)
    )
    it = start(tmp_path, team([model], site, policy=policy))
    gate.wait_reached(timeout_s=WAIT_S)
    (site / "keep" / "a.txt").unlink()
    (site / "keep").rmdir()
    (site / "keep").symlink_to(outside)
    gate.open()
    finish(it)
    assert (site / "index.html").read_text() == "new\n"
    assert (outside / "a.txt").read_text() == "old keep/a.txt\n"
    assert "except for files with conflicting changes" in notices(it) and "'keep/a.txt'" in notices(
        it
    )


def test_partial_merge_of_a_killed_run_is_not_repeated(tmp_path: Path, site: Path) -> None:
    it = meet(tmp_path, site, "skip")
    before = read(site)
    cut_before_the_merge(it)
    spec = team([ScriptedModel()], site, policy="skip")
    resumed = resume(it, tmp_path, spec)
    assert resumed.result == "done" and read(site) == before
    assert resumed.receipt.context_changes == it.receipt.context_changes
    assert "except for files with conflicting changes" in notices(resumed)


def test_changes_of_the_user_in_other_parts_are_not_a_conflict(tmp_path: Path, site: Path) -> None:
    lines = [f"line {number}\n" for number in range(30)]
    (site / "index.html").write_text("".join(lines))
    gate = Gate()
    mine = "".join(["mine\n", *lines[1:]])
    model = ScriptedModel(put(f"{COPY}/index.html", mine), Answer("done", gate=gate))
    it = start(tmp_path, team([model], site))
    gate.wait_reached(timeout_s=WAIT_S)
    (site / "style.css").write_text("the person's\n")
    (site / "index.html").write_text("".join([*lines[:-1], "theirs\n"]))
    gate.open()
    finish(it)
    found = read(site)
    assert found["style.css"] == "the person's\n"
    assert found["index.html"] == "".join(["mine\n", *lines[1:-1], "theirs\n"])


def test_only_the_directory_within_a_git_tree_is_copied(tmp_path: Path, site: Path) -> None:
    before = read(site)
    model = ScriptedModel(put("worktrees/keep/a.txt"), put("worktrees/keep/b.txt"), Answer("x"))
    it = run(tmp_path, team([model], site / "keep"))
    assert read(it.path / "workspaces" / "a" / "worktrees") == {
        "keep/a.txt": "new\n",
        "keep/b.txt": "new\n",
    }
    assert read(site) == before | {"keep/a.txt": "new\n", "keep/b.txt": "new\n"}


def test_agents_read_the_copies_of_the_others(tmp_path: Path, site: Path) -> None:
    look = Turn(calls=(Call("read_file", {"path": f"peers/agent1/{COPY}/index.html"}),))
    gate = Gate()
    first = ScriptedModel(put(f"{COPY}/index.html"), Answer("x"), Vote("agent1"), DONE)
    other = ScriptedModel(Turn(calls=look.calls, gate=gate), Vote("agent1"))
    it = start(tmp_path, team([first, other], site))
    wait_until(lambda: it.view.agents["a"].answers, WAIT_S, "the answer", lambda: it.view)
    gate.open()
    finish(it)
    assert [each.result for each in events(it, ev.ToolFinished) if each.tool == "read_file"] == [
        "new\n"
    ]


def test_two_paths_with_the_same_name_have_separate_copies(tmp_path: Path, site: Path) -> None:
    (tmp_path / "other" / "site").mkdir(parents=True)
    (tmp_path / "other" / "site" / "b.txt").write_text("old\n")
    model = ScriptedModel(put(f"{COPY}/index.html"), put(f"{COPY}_2/b.txt"), Answer("done"))
    run(tmp_path, team([model], site, others=[tmp_path / "other" / "site"]))
    assert (site / "index.html").read_text() == "new\n"
    assert (tmp_path / "other" / "site" / "b.txt").read_text() == "new\n"


def test_stop_merges_nothing_and_a_resume_uses_the_same_copy(tmp_path: Path, site: Path) -> None:
    before = read(site)
    gate = Gate()
    model = ScriptedModel(put(f"{COPY}/style.css"), Turn(text="never", gate=gate))
    it = start(tmp_path, team([model], site))
    gate.wait_reached(timeout_s=WAIT_S)
    it.stop(now=True)
    finish(it)
    assert read(site) == before
    kept = it.path / "workspaces" / "a" / COPY
    assert read(kept)["style.css"] == "new\n" and "style.css" in git(kept, "status", "--short")
    (site / "new.txt").write_text("meanwhile\n")
    again = ScriptedModel(put(f"{COPY}/index.html"), Answer("done"))
    resumed = resume(it, tmp_path, team([again], site))
    assert resumed.result == "done"
    assert read(site) == before | {
        "style.css": "new\n",
        "index.html": "new\n",
        "new.txt": "meanwhile\n",
    }
    assert len([e for e in events(it, ev.WorktreeBased)]) == 1


def test_completed_merge_of_a_killed_run_is_not_repeated(tmp_path: Path, site: Path) -> None:
    model = ScriptedModel(put(f"{COPY}/index.html"), Answer("done"))
    it = run(tmp_path, team([model], site))
    cut_before_the_merge(it)
    resumed = resume(it, tmp_path, team([ScriptedModel()], site))
    assert resumed.result == "done" and "not merged" not in notices(resumed)
    assert read(site)["index.html"] == "new\n"


def test_incomplete_copy_of_a_killed_run_is_created_again(tmp_path: Path, site: Path) -> None:
    gate = Gate()
    it = start(tmp_path, team([ScriptedModel(Turn(text="never", gate=gate))], site))
    gate.wait_reached(timeout_s=WAIT_S)
    it.stop(now=True)
    finish(it)
    journal = it.path / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"worktree_based"' not in line))
    (it.path / "workspaces" / "a" / COPY / "index.html").unlink()
    [made] = (it.path.parent / "worktrees.git" / "worktrees").iterdir()
    (made / "locked").write_text("initializing")
    model = ScriptedModel(put(f"{COPY}/style.css"), Answer("done"))
    resumed = resume(it, tmp_path, team([model], site), trust=True)  # its journal was changed
    assert resumed.receipt.context_changes == ((str(site / "style.css"), "changed"),), notices(
        resumed
    )


def test_next_task_of_a_session_starts_with_the_current_files(tmp_path: Path, site: Path) -> None:
    first = run(tmp_path, team([ScriptedModel(put(f"{COPY}/index.html"), Answer("x"))], site))
    (site / "style.css").write_text("the person's\n")
    model = ScriptedModel(put(f"{COPY}/new.txt", "next\n"), Answer("done"))
    options = RunOptions(session_root=tmp_path / "sessions")
    it = finish(
        nb_agents.start("more", team([model], site), first.session, continue_=True, options=options)
    )
    copy = read(it.path / "workspaces" / "a" / COPY)
    assert (copy["index.html"], copy["style.css"]) == ("new\n", "the person's\n")
    assert it.receipt.context_changes == ((str(site / "new.txt"), "changed"),)


def test_protected_paths_can_be_tried_in_a_copy_and_are_not_merged(
    tmp_path: Path, site: Path
) -> None:
    before = read(site)
    names = ("index.html", "keep/a.txt", "keep/new.txt", ".env", "node_modules/x.js", "style.css")
    model = ScriptedModel(*(put(f"{COPY}/{name}") for name in names), Answer("done"))
    run(tmp_path, team([model], site, protected_paths=["index.html", "keep"]))
    assert read(site) == before | {"style.css": "new\n"}


def test_hooks_and_filters_of_the_users_repository_are_not_run(tmp_path: Path, site: Path) -> None:
    ran = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {ran}\ncat\n"
    hooks = site / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "fsmonitor", "reference-transaction"):
        (hooks / name).write_text(script)
        (hooks / name).chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "diff.x.textconv"):
        git(site, "config", key, str(hooks / "fsmonitor"))
    (site / ".gitattributes").write_text("* filter=x diff=x\n")
    ran.unlink(missing_ok=True)
    state = {p: p.read_bytes() for p in (site / ".git").rglob("*") if p.is_file()}
    model = ScriptedModel(put(f"{COPY}/index.html"), Answer("done"))
    it = run(tmp_path, team([model], site))
    assert read(site)["index.html"] == "new\n" and it.receipt.context_changes
    assert not ran.exists()
    assert {p: p.read_bytes() for p in (site / ".git").rglob("*") if p.is_file()} == state


@needs_sandbox
def test_programs_in_an_agents_copy_are_not_executed(tmp_path: Path, site: Path) -> None:
    ran = tmp_path / "ran"
    evil = (
        f"cd {COPY} && rm -f .git && git init -q . && git config core.fsmonitor 'touch {ran}' && "
        f"printf '* filter=x\\n' > .gitattributes && git config filter.x.clean 'touch {ran}' && "
        "git init -q empty && mkdir nested && cd nested && git init -q . && "
        "git -c user.name=x -c user.email=x@x commit -q --allow-empty -m x && "
        f"git config core.fsmonitor 'touch {ran}' && cd .. && "
        "ln -s /etc out && mkfifo pipe && echo new > index.html && rm -r keep && ln -s / keep"
    )
    model = ScriptedModel(shell(evil), Answer("done"))
    spec = team([model], site, backend={"enable_mcp_command_line": True})
    it = run(tmp_path, spec)
    assert "exit code 0" in events(it, ev.ToolFinished)[0].result
    assert (site / "index.html").read_text() == "new\n" and not ran.exists()
    assert os.readlink(site / "keep") == "/" and "not merged" not in notices(it)


@pytest.mark.parametrize("swapped", [COPY, "worktrees"])
def test_link_instead_of_a_copy_is_not_merged(tmp_path: Path, site: Path, swapped: str) -> None:
    before = read(site)
    secret = tmp_path / "secret" / "site" if swapped == "worktrees" else tmp_path / "secret"
    secret.mkdir(parents=True)
    (secret / "id_rsa").write_text("canary")
    swap = f"rm -r {swapped} && ln -s {tmp_path / 'secret'} {swapped}"
    model = ScriptedModel(shell(swap), Answer("done"))
    it = run(tmp_path, team([model], site, backend={"enable_mcp_command_line": True}))
    assert "exit code 0" in events(it, ev.ToolFinished)[0].result
    assert read(site) == before
    assert f"a's changes to {site} were not merged" in notices(it)
    assert "goes through a symlink" in notices(it)
    kept = [p.read_bytes() for p in it.path.parent.rglob("*") if p.is_file()]
    assert not [data for data in kept if b"canary" in data]


@pytest.mark.parametrize("swapped", [COPY, "worktrees"])
def test_resume_does_not_touch_a_copy_that_is_a_link(
    tmp_path: Path, site: Path, swapped: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "site").mkdir(parents=True)
    (outside / "site" / "mine").write_text("mine")
    gate = Gate()
    swap = f"rm -r {swapped} && ln -s {outside} {swapped}"
    model = ScriptedModel(shell(swap), Turn(text="never", gate=gate))
    keys = {"backend": {"enable_mcp_command_line": True}}
    it = start(tmp_path, team([model], site, **keys))
    gate.wait_reached(timeout_s=WAIT_S)
    it.stop(now=True)
    finish(it)
    resumed = resume(it, tmp_path, team([ScriptedModel(Answer("done"))], site, **keys))
    assert resumed.result == "done"
    assert f"a can only read {site}, because its copy goes through a symlink" in notices(resumed)
    assert read(outside) == {"site/mine": "mine"}


@needs_sandbox
def test_agents_can_see_their_changes_with_git_but_not_change_the_repository(
    tmp_path: Path, site: Path
) -> None:
    head = git(site, "rev-parse", "HEAD")
    tries = [
        f"echo new > {COPY}/index.html; git -C {COPY} diff",
        f"echo x > {site}/index.html",
        f"git -C {COPY} update-ref -d HEAD",
    ]
    model = ScriptedModel(*map(shell, tries), Answer("done"))
    it = run(tmp_path, team([model], site, backend={"enable_mcp_command_line": True}))
    diff, direct, refs = (each.result for each in events(it, ev.ToolFinished))
    assert "+new" in diff and "exit code 0" in diff, diff
    assert "exit code 0" not in direct + refs
    assert (site / "index.html").read_text() == "new\n"
    assert git(site, "rev-parse", "HEAD") == head


def test_deleted_session_leaves_nothing_in_the_users_repository(tmp_path: Path, site: Path) -> None:
    model = ScriptedModel(put(f"{COPY}/index.html"), Answer("done"))
    it = run(tmp_path, team([model], site))
    delete_session(it.path.parent)
    assert len(git(site, "worktree", "list").splitlines()) == 1
    assert git(site, "branch", "--list").count("\n") == 1
    assert git(site, "fsck") == "" and not it.path.parent.exists()


def test_sessions_below_the_path_are_in_no_copy(tmp_path: Path, site: Path) -> None:
    model = ScriptedModel(put(f"{COPY}/index.html"), Answer("done"))
    it = run(site, team([model], site))
    assert "sessions" not in os.listdir(it.path / "workspaces" / "a" / COPY)
    assert (site / "index.html").read_text() == "new\n"


def test_too_large_path_is_read_only(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_module, "MAX_COPIED_BYTES", 10)
    model = ScriptedModel(put(str(site / "index.html")), Answer("done"))
    it = run(tmp_path, team([model], site))
    reason = f"Agents can only read {site}, because it could not be copied: it has more than"
    assert reason in notices(it)
    assert (site / "index.html").read_text() == "old index.html\n"


def test_without_git_paths_are_read_only_and_a_check_reports_it(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    model = ScriptedModel(put(str(site / "index.html")), Answer("done"))
    spec = team([model], site, "auto")
    it = run(tmp_path, spec)
    assert events(it, ev.ToolFinished)[0].result.startswith("Error")
    assert f"{site} can only be read, because git" in notices(it)
    assert f"{site} can only be read, because git" in "\n".join(report_on(spec).lines)


def test_check_names_directories_that_are_changed_in_copies(tmp_path: Path, site: Path) -> None:
    lines = report_on(team([ScriptedModel()], site)).lines
    assert f"Changed in copies that are merged at the end: {site}" in lines


def test_rewind_reports_undone_merges_and_remaining_branches(tmp_path: Path, site: Path) -> None:
    first = ScriptedModel(put(f"{COPY}/style.css", "mine\n"), Answer("x"), Vote("agent1"), DONE)
    it = run(tmp_path, team([first, ScriptedModel(Vote("agent1"))], site))
    told = it.preview_rewind("a's 1st answer")
    assert told.outside == ()
    assert f"a/{COPY}" in told.worktrees
    assert f"M {site / 'style.css'}" in str(told)
    assert f"restored, but not their branches: a/{COPY}" in str(told)
    assert read(site)["style.css"] == "mine\n"
