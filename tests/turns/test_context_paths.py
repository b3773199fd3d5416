"""Context paths in real runs: all agents read, the presenter writes, changes are reported."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.cards import card_text
from tests.kit.runs import Run
from tests.model_server import wait_until
from tests.recipes.live import write
from tests.team_kit import WAIT_S, events, finish, metadata, prompt
from tests.tools.sandboxes import needs_sandbox

DONE = Turn(text="done")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "keep").mkdir(parents=True)
    for name in ("index.html", "style.css", "keep/a.txt"):
        (folder / name).write_text(f"old {name}")
    return folder


def calls(*made: Call) -> Turn:
    return Turn(calls=made)


def put(path: Path, content: str = "new") -> Turn:
    return calls(Call("write_file", {"path": str(path), "content": content}))


def shell(command: str) -> Turn:
    return calls(Call("run_command", {"command": command}))


def team(
    models: Sequence[ScriptedModel],
    site: Path,
    orchestrator: dict[str, Any] | None = None,
    backend: dict[str, Any] | None = None,
    **keys: Any,
) -> TeamSpec:
    agents = [
        {"id": name, "backend": {"type": "python", "instance": model, **(backend or {})}}
        for name, model in zip("ab", models, strict=False)
    ]
    given = {"path": str(site), "permission": "write", **keys}
    return TeamSpec.model_validate(
        {"agents": agents, "orchestrator": {"context_paths": [given], **(orchestrator or {})}}
    )


def run(root: Path, spec: TeamSpec) -> Run:
    return finish(
        nb_agents.start("the task", spec, options=RunOptions(session_root=root / "sessions"))
    )


def said(run: Run, tool: str) -> list[str]:
    return [each.result for each in events(run, ev.ToolFinished) if each.tool == tool]


def read(site: Path) -> dict[str, str]:
    return {p.relative_to(site).as_posix(): p.read_text() for p in site.rglob("*") if p.is_file()}


def test_only_the_presenter_writes(tmp_path: Path, site: Path) -> None:
    early = put(site / "style.css", "early")
    first = ScriptedModel(early, Answer("mine"), Vote("agent1"), put(site / "style.css"), DONE)
    other = ScriptedModel(put(site / "style.css", "other"), Vote("agent1"))
    it = run(tmp_path, team([first, other], site))
    assert it.result == "done"
    results = said(it, "write_file")
    assert [each.startswith("Error") for each in results] == [True, True, False], results
    assert read(site)["style.css"] == "new"
    assert (
        f"You can read, but not change, these paths and everything below them:\n- {site}"
        in prompt(first, 0)
    )
    assert (
        f"can read and change these paths and everything below them. Use absolute paths:\n- {site}"
        in (prompt(first, -1))
    )


def test_changes_are_in_receipt_metadata_and_card(tmp_path: Path, site: Path) -> None:
    model = ScriptedModel(
        put(site / "style.css"),
        put(site / "made.html"),
        calls(Call("delete_file", {"path": str(site / "keep" / "a.txt")})),
        Answer("done"),
    )
    it = run(tmp_path, team([model], site))
    changed = (
        (str(site / "made.html"), "made"),
        (str(site / "style.css"), "changed"),
        (str(site / "keep" / "a.txt"), "deleted"),
    )
    assert it.receipt.context_changes == changed
    assert metadata(it)["receipt"]["context_changes"] == [[*each] for each in changed]
    card = card_text(it.view, str(it.path))
    assert f"3 files changed in context paths: made {site / 'made.html'}; changed" in card


def test_changes_are_reported_for_a_stopped_turn(tmp_path: Path, site: Path) -> None:
    gate = Gate()
    model = ScriptedModel(put(site / "style.css"), Turn(text="never", gate=gate))
    it = nb_agents.start(
        "the task", team([model], site), options=RunOptions(session_root=tmp_path / "sessions")
    )
    wait_until(lambda: read(site)["style.css"] == "new", WAIT_S, "the write", lambda: it.view)
    it.stop(now=True)
    finish(it)
    assert it.receipt.context_changes == ((str(site / "style.css"), "changed"),)


def test_no_report_without_changes(tmp_path: Path, site: Path) -> None:
    it = run(tmp_path, team([ScriptedModel(Answer("done"))], site))
    assert it.receipt.context_changes == () and not events(it, ev.ContextChanged)


@pytest.mark.parametrize(
    "path",
    ["index.html", "keep/a.txt", "keep/new.txt", "keep/../index.html", ".git/config", "x/.env"],
)
def test_protected_paths_are_not_changed(tmp_path: Path, site: Path, path: str) -> None:
    before = read(site)
    model = ScriptedModel(put(site / path), Answer("done"))
    it = run(tmp_path, team([model], site, protected_paths=["index.html", str(site / "keep")]))
    assert said(it, "write_file")[0].startswith("Error")
    assert read(site) == before


def test_sessions_below_a_writable_path_are_not_written(tmp_path: Path, site: Path) -> None:
    sessions = site / "runs"
    model = ScriptedModel(
        put(sessions / "x.txt"),
        put(Path("own.txt")),
        put(site / "style.css"),
        Answer("done"),
    )
    spec = team([model], site)
    it = finish(nb_agents.start("the task", spec, options=RunOptions(session_root=sessions)))
    tried, own, there = said(it, "write_file")
    assert tried.startswith("Error") and own.startswith("Wrote") and there.startswith("Wrote")
    assert it.receipt.context_changes == ((str(site / "style.css"), "changed"),)


def test_read_only_path_inside_a_writable_path_is_not_changed(tmp_path: Path, site: Path) -> None:
    model = ScriptedModel(put(site / "keep" / "a.txt"), Answer("done"))
    inner = {"path": str(site / "keep"), "permission": "read"}
    outer = {"path": str(site), "permission": "write"}
    it = run(tmp_path, team([model], site, {"context_paths": [outer, inner]}))
    assert said(it, "write_file")[0].startswith("Error")
    assert read(site)["keep/a.txt"] == "old keep/a.txt"


def test_while_a_team_plans_only_the_presenter_acts(tmp_path: Path, site: Path) -> None:
    planner = ScriptedModel(Answer("plan"), Vote("agent1"), put(site / "style.css"), DONE)
    other = ScriptedModel(put(site / "style.css", "early"), Vote("agent1"))
    plans = {"coordination": {"enable_planning_mode": True}}
    it = run(tmp_path, team([planner, other], site, plans))
    assert read(site)["style.css"] == "new"
    assert said(it, "write_file")[0].startswith("Error: no tool 'write_file'")


def test_team_that_reuses_its_winners_answer_presents_if_files_are_writable(
    tmp_path: Path, site: Path
) -> None:
    models = [
        ScriptedModel(Answer("mine"), Vote("agent1"), put(site / "style.css"), DONE),
        ScriptedModel(Vote("agent1")),
    ]
    it = run(tmp_path, team(models, site, {"skip_final_presentation": True}))
    assert (it.result, read(site)["style.css"]) == ("done", "new")


def test_agents_of_a_recipe_only_read_with_a_notice(tmp_path: Path, site: Path) -> None:
    recipe = write(tmp_path, "steps:\n- {id: do, agent: worker, prompt: go, output: said}\n")
    spec = team([ScriptedModel(put(site / "style.css"), DONE)], site)
    it = nb_agents.start(
        recipe=recipe, config=spec, options=RunOptions(session_root=tmp_path / "sessions")
    )
    finish(it)
    assert said(it, "write_file")[0].startswith("Error")
    assert any("In a recipe, context paths are read-only" in notice for notice in it.view.notices)


# Commands

WITH_SHELL = {"enable_mcp_command_line": True}


@needs_sandbox
def test_presenters_commands_write_only_unprotected_paths(tmp_path: Path, site: Path) -> None:
    before = read(site)
    tries = [
        f"echo x > {site}/index.html",
        f"rm -f {site}/index.html",
        f"mv {site}/index.html {site}/gone",
        f"mv {site}/keep {site}/moved; mkdir -p {site}/keep; echo x > {site}/keep/a.txt",
        f"mv {site} {site}2",
        f"ln -f {site}/keep/a.txt {site}/linked && echo x > {site}/linked",
        f"sed -i s/old/new/ {site}/keep/a.txt",
    ]
    early = shell(f"echo early > {site}/style.css")
    first = ScriptedModel(
        early,
        Answer("mine"),
        Vote("agent1"),
        *map(shell, tries),
        shell(f"echo new > {site}/style.css; echo made > {site}/made.txt"),
        DONE,
    )
    spec = team(
        [first, ScriptedModel(Vote("agent1"))],
        site,
        backend=WITH_SHELL,
        protected_paths=["index.html", "keep/a.txt"],
    )
    it = run(tmp_path, spec)
    results = said(it, "run_command")
    assert "exit code 0" not in "".join(results[:-1]) and "exit code 0" in results[-1], results
    assert read(site) == before | {"style.css": "new\n", "made.txt": "made\n"}
    assert {name for name, _ in it.receipt.context_changes} == {
        str(site / "style.css"),
        str(site / "made.txt"),
    }


@needs_sandbox
def test_commands_cannot_create_missing_protected_paths(tmp_path: Path, site: Path) -> None:
    tries = [shell(f"echo x > {site}/{name}") for name in ("secret.txt", "style.css")]
    model = ScriptedModel(*tries, put(site / "style.css"), Answer("done"))
    it = run(tmp_path, team([model], site, backend=WITH_SHELL, protected_paths=["secret.txt"]))
    assert "Read-only file system" in "".join(said(it, "run_command"))
    assert read(site)["style.css"] == "new" and "secret.txt" not in read(site)


@needs_sandbox
def test_python_can_write_once_its_agent_presents(tmp_path: Path, site: Path) -> None:
    def cell(text: str) -> Turn:
        code = f"open({str(site / 'style.css')!r}, 'w').write({text!r})"
        return calls(Call("run_python", {"code": code}))

    first = ScriptedModel(cell("early"), Answer("mine"), Vote("agent1"), cell("new"), DONE)
    it = run(tmp_path, team([first, ScriptedModel(Vote("agent1"))], site, backend=WITH_SHELL))
    early, late = said(it, "run_python")
    assert "Read-only file system" in early
    assert late.startswith("[Python was restarted") and read(site)["style.css"] == "new"


def test_without_a_sandbox_protected_paths_leave_no_command_line(
    tmp_path: Path, site: Path
) -> None:
    model = ScriptedModel(shell("true"), Answer("done"))
    keys = {**WITH_SHELL, "sandbox": False}
    it = run(tmp_path, team([model], site, backend=keys, protected_paths=["index.html"]))
    assert said(it, "run_command")[0].startswith("Error: no tool 'run_command'")
    assert any("`protected_paths` can't be enforced" in n for n in it.view.notices)


def test_a_resumed_presenter_may_still_write(tmp_path: Path, site: Path) -> None:
    gate = Gate()
    first = ScriptedModel(Answer("mine"), Vote("agent1"), Turn(text="never", gate=gate))
    spec = team([first, ScriptedModel(Vote("agent1"))], site)
    it = nb_agents.start("the task", spec, options=RunOptions(session_root=tmp_path / "sessions"))
    wait_until(lambda: it.view.phase == "presenting", WAIT_S, "presenting", lambda: it.view)
    it.stop(now=True)
    finish(it)
    again = team([ScriptedModel(put(site / "style.css"), DONE), ScriptedModel()], site)
    resumed = nb_agents.resume(
        it.session, again, options=RunOptions(session_root=tmp_path / "sessions")
    )
    resumed.wait(WAIT_S, raise_on_stop=False)
    assert (resumed.result, read(site)["style.css"]) == ("done", "new")
    assert json.loads((resumed.path / "metadata.json").read_text())["receipt"]["context_changes"]
