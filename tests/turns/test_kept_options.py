"""Which options of a start the later turns of its task keep, and which apply to one turn."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.options import ApprovalConfig, CancelPolicy, Retry, RunOptions
from tests.kit.runs import Run
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import WAIT_S

TEAM = "agents:\n  - {id: a, backend: {type: demo}}\n"

OF_TASK: dict[str, Any] = {
    "context_paths": ("notes.md",),
    "max_cost": 3.0,
    "max_tokens": 1_000_000,
    "wait_for_quota": 60.0,
    "on_budget": "ask",
    "notebook": "read",
    "notebook_file": str(Path(__file__).resolve()),  # any file that exists
    "approval": ApprovalConfig(timeout=5, approvers=("ann", "bob"), required_approvals=2),
}
"""Options that apply to the whole task, with values that a start sets."""

OF_TURN: dict[str, Any] = {
    "timeout": 1000.0,
    "retry": Retry(attempts=7),
    "cancel": CancelPolicy(grace_timeout_s=3),
    "on_complete": lambda result: None,
    "on_failed": lambda error: None,
    "on_status_change": lambda status: None,
    "skip_unsupported": True,
    "debug": True,
    "detach": False,
}
"""Options that apply to one turn. A `Run` keeps them, because it has the objects."""

NOT_CHOICES = {"session_root", "from_turn", "cluster", "trust"}
"""Options that say where a turn is and who has checked it."""


def stopped(run: Run) -> Run:
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    return run


Again = Callable[[Run], Run]

BY_NAME: dict[str, Again] = {
    "resume": lambda run: nb_agents.resume(run.session),
    "rewind": lambda run: nb_agents.rewind(run.path, "the end"),
    "resume of a rewind": lambda run: nb_agents.resume(stopped(BY_NAME["rewind"](run)).session),
}
BY_HANDLE: dict[str, Again] = {
    "run.resume": lambda run: run.resume(),
    "run.rewind": lambda run: run.rewind("the end"),
}


def chosen(options: RunOptions, names: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names}


def started(path: Path) -> ev.TurnStarted:
    first = read_journal(path / "events.jsonl").events[0]
    assert isinstance(first, ev.TurnStarted)
    return first


def kept(path: Path) -> dict[str, Any]:
    """Return the options of the task in the journal of a turn, with what its agents may read."""
    first = started(path)
    assert first.team is not None
    readable = tuple(each["path"] for each in first.team["orchestrator"]["context_paths"])
    assert readable == first.context_paths
    assert first.approval is not None
    rules = {"approval": ApprovalConfig(**asdict(first.approval))}
    return {name: getattr(first, name) for name in OF_TASK} | rules


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A stopped run of a team file, started with all options."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team.yaml").write_text(TEAM)
    (tmp_path / "notes.md").write_text("# Notes")
    options = RunOptions(**OF_TASK, **OF_TURN)
    return stopped(nb_agents.start("Compare caches.", "team.yaml", options=options))


def test_each_option_belongs_to_the_task_or_to_a_turn() -> None:
    assert {each.name for each in fields(RunOptions)} == {*OF_TASK, *OF_TURN, *NOT_CHOICES}


@pytest.mark.parametrize(
    "again", [*BY_NAME.values(), *BY_HANDLE.values()], ids=[*BY_NAME, *BY_HANDLE]
)
def test_later_turn_of_a_task_keeps_its_options(run: Run, again: Again) -> None:
    notes = str(Path("notes.md").resolve())
    assert kept(stopped(again(run)).path) == OF_TASK | {"context_paths": (notes,)}


def test_fork_of_a_task_keeps_its_options(run: Run) -> None:
    sweep = nb_agents.fork(run.path, "the end", times=1)
    (row,) = sweep.table()
    journal = Path(row["session"]) / f"turn_{run.turn + 1}" / "events.jsonl"
    wait_until(lambda: journal.exists() and bool(read_journal(journal).events))
    sweep.stop(now=True)
    sweep.wait(WAIT_S)
    assert kept(journal.parent) == kept(run.path)


@pytest.mark.parametrize("again", BY_NAME.values(), ids=BY_NAME)
def test_turn_that_is_continued_by_name_has_its_own_other_options(run: Run, again: Again) -> None:
    assert chosen(stopped(again(run)).options, OF_TURN) == chosen(RunOptions(), OF_TURN)


@pytest.mark.parametrize("again", BY_HANDLE.values(), ids=BY_HANDLE)
def test_turn_that_is_continued_from_its_run_keeps_all_options(run: Run, again: Again) -> None:
    assert chosen(stopped(again(run)).options, OF_TURN) == OF_TURN


def test_next_task_of_a_session_has_its_own_options(run: Run) -> None:
    after = stopped(nb_agents.start("Next.", "team.yaml", run.session, continue_=True))
    names = OF_TASK | OF_TURN
    assert chosen(after.options, names) == chosen(RunOptions(), names)


def test_options_of_a_resume_replace_those_of_the_task(run: Run) -> None:
    Path("more.md").write_text("# More")
    changed = {**OF_TASK, "wait_for_quota": 0.0, "notebook": "propose", "max_cost": 9.0}
    changed |= {"approval": ApprovalConfig(auto_approve_on_timeout=True, timeout=9)}
    changed |= {"max_tokens": 2_000_000, "on_budget": "stop", "context_paths": ("more.md",)}
    again = stopped(nb_agents.resume(run.session, options=RunOptions(**changed)))
    paths = tuple(str(Path(name).resolve()) for name in ("notes.md", "more.md"))
    assert kept(again.path) == changed | {"context_paths": paths}


def test_resume_leaves_out_a_context_path_that_was_deleted(run: Run) -> None:
    Path("notes.md").unlink()
    assert kept(stopped(nb_agents.resume(run.session)).path)["context_paths"] == ()


@pytest.mark.parametrize("again", BY_NAME.values(), ids=BY_NAME)
def test_rules_for_approvals_apply_after_a_resume_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: Again
) -> None:
    """The team file lets everybody approve."""
    monkeypatch.chdir(tmp_path)
    with ModelServer() as server:
        call = ToolCall("write_file", {"path": "a.txt", "content": "a"})
        answer = ToolCall("new_answer", {"content": "done"})
        server.script("m", Reply(tool_calls=(call,)), Reply(tool_calls=(answer,)))
        backend = server.backend("vllm", model="m")
        backend["tool_policy"] = [{"match": "write_file", "action": "ask"}]
        Path("team.yaml").write_text(json.dumps({"agents": [{"id": "a", "backend": backend}]}))
        rules = ApprovalConfig(approvers=("ann", "bob"), required_approvals=2)
        run = nb_agents.start("t", "team.yaml", options=RunOptions(approval=rules))
        wait_until(lambda: run.view.gates)
        resumed = again(stopped(run))
        wait_until(lambda: resumed.view.gates)
        with pytest.raises(UserError, match="ann"):
            resumed.approve(by="eve")
        resumed.approve(by="ann")
        assert resumed.view.gates
        resumed.approve(by="bob")
        assert resumed.wait(WAIT_S) == "done"
