"""One test for each defect of stopping and resuming in Amplifier's recipes.

Source: amplifier-bundle-recipes b6ee26d, read and run. "There" means Amplifier.
"""

from pathlib import Path

import pytest

from nb_agents import events as ev
from nb_agents.errors import CancellationRequestedError, RunFailed
from nb_agents.testing import Gate, ScriptedModel, Turn
from tests.kit.runs import CancellationStatus, Run
from tests.kit.sessions import SessionStore
from tests.model_server import wait_until
from tests.recipes.live import (
    answering,
    begin,
    commands_alive,
    files_of,
    hold,
    let_go,
    ran,
    resume,
    wait_for_gate,
    wait_held,
    write,
)
from tests.team_kit import WAIT_S, events, finish, prompt

CANCELLED = CancellationStatus.CANCELLED


def bash(name: str, command: str, more: str = "") -> str:
    """Return a YAML line with a step that runs a command."""
    return f'{{id: {name}, type: bash, command: "{command}"{more}}}'


def flat(*steps: str) -> str:
    return "steps:\n" + "".join(f"- {step}\n" for step in steps)


THREE = flat(
    bash("one", hold("one"), ", output: one"),
    bash("two", hold("two"), ", output: two"),
    bash("three", "echo three", ", output: three"),
)
BROKEN_OFF = (("one", "finished"), ("two", "killed"), ("three", "never started"))
OUTPUTS = {"one": "one", "two": "two", "three": "three"}


def status(root: Path) -> CancellationStatus:
    return SessionStore(root / "sessions").get_cancellation_status("s")


@pytest.mark.parametrize("now", [False, True])
def test_1_stop_request_during_a_step_is_not_lost(tmp_path: Path, now: bool) -> None:
    """There, the step's checkpoint overwrites the request, and all steps run."""
    run = begin(write(tmp_path, THREE))
    wait_held(run, "one")
    SessionStore(tmp_path / "sessions").request_cancellation("s", immediate=now)
    wait_until(lambda: run.view.stop, WAIT_S, "the stop")
    let_go(run, "one")
    finish(run)
    assert (run.status, ran(run)) == ("cancelled", ["one"])
    let_go(run, "one", "two")
    assert finish(resume(run)).result == OUTPUTS


def test_2_stop_at_a_later_step_is_recorded(tmp_path: Path) -> None:
    """There, saving the stop erases the marker and the step."""
    run = begin(write(tmp_path, THREE))
    wait_held(run, "one")
    let_go(run, "one")
    wait_held(run, "two")
    run.stop(now=True)
    finish(run)
    assert status(tmp_path) is CANCELLED
    assert run.view.current_step == "two"
    assert run.receipt.steps == BROKEN_OFF


CALLS = """
steps:
- {id: sub, type: recipe, recipe: middle.yaml}
- {id: after, type: bash, command: "echo after"}
"""
MIDDLE = """
steps:
- {id: deeper, type: recipe, recipe: deep.yaml}
- {id: behind, type: bash, command: "echo behind"}
"""
DEEP = flat(bash("first", hold("first"), ", output: first"), bash("second", "echo second"))


@pytest.mark.parametrize("now", [False, True])
def test_3_stop_reaches_nested_recipes(tmp_path: Path, now: bool) -> None:
    """There, the sub-recipe and its caller run to their end."""
    write(tmp_path, MIDDLE, "middle")
    write(tmp_path, DEEP, "deep")
    run = begin(write(tmp_path, CALLS))
    wait_held(run, "first")
    run.stop(now=now)
    let_go(run, "first")
    finish(run)
    assert (run.status, ran(run)) == ("cancelled", ["sub/deeper/first"])
    let_go(run, "first")
    again = finish(resume(run))
    first = ["sub/deeper/first"] if now else []
    assert ran(again) == [*first, "sub/deeper/second", "sub/behind", "after"]


@pytest.mark.parametrize("on_error", ["fail", "continue"])
def test_4_stop_of_a_parallel_loop_is_not_a_failure(tmp_path: Path, on_error: str) -> None:
    """There, it is "2/4 iterations failed" or, with on_error, the recipe completes."""
    step = (
        "{id: each, type: bash, foreach: '{{names}}', parallel: 3, collect: all, "
        f'on_error: {on_error}, command: "touch {{{{item}}}}.begun; '
        'until [ -e {{item}}.go ]; do sleep 0.02; done; echo {{item}}"}'
    )
    body = "context: {names: [a, b, c, d]}\n" + flat(step, bash("last", "echo last"))
    run = begin(write(tmp_path, body))
    wait_held(run, "a", "b", "c")
    let_go(run, "c")
    wait_held(run, "d")
    run.stop()
    let_go(run, "b")
    wait_until(lambda: run.view.steps["each[1]"].is_over, WAIT_S, "b")
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    assert [e.level for e in events(run, ev.StopRequested)] == ["requested", "immediate"]
    assert events(run, ev.StepFailed) == []
    assert dict(run.receipt.steps) == {
        "each[0]": "killed",
        "each[1]": "finished",
        "each[2]": "finished",
        "each[3]": "killed",
        "last": "never started",
    }
    let_go(run, "a", "d")
    again = finish(resume(run))
    assert ran(again) == ["each[0]", "each[3]", "last"]
    assert again.result == {"all": ["a", "b", "c", "d"]}


STAGED = f"""
stages:
- name: a
  approval: {{required: true, prompt: "Go on?"}}
  steps:
  - {bash("a1", "echo a1")}
  - {bash("a2", "echo a2")}
- name: b
  steps:
  - {bash("b1", "echo b1")}
  - {bash("b2", hold("b2"), ", output: b2")}
  - {bash("b3", "echo {{_approval_message}}", ", output: b3")}
"""


def test_5_resume_knows_the_stage_step_and_gate(tmp_path: Path) -> None:
    """There, all steps of both stages run again, and the gate asks again."""
    run = begin(write(tmp_path, STAGED))
    wait_for_gate(run)
    run.approve("so it is")
    wait_held(run, "b2")
    run.stop(now=True)
    finish(run)
    let_go(run, "b2")
    again = finish(resume(run))
    assert ran(again) == ["b/b2", "b/b3"]
    assert events(again, ev.ApprovalAsked) == []
    assert again.result == {"b2": "b2", "b3": "so it is"}


def test_6_resume_does_not_pass_a_denied_gate(tmp_path: Path) -> None:
    """There, a resume continues with the next stage."""
    run = begin(write(tmp_path, STAGED))
    for _ in range(3):
        wait_for_gate(run)
        run.deny()
        assert finish(run).status == "cancelled"
        run = resume(run)
    wait_for_gate(run)
    assert ran(run) == []
    run.stop(now=True)
    finish(run)


def test_7_resume_finds_sub_recipes_next_to_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, the recipe's location is not stored."""
    write(tmp_path, flat(bash("in", "echo inside")), "sub")
    body = flat(bash("first", "test -e ready"), "{id: sub, type: recipe, recipe: sub.yaml}")
    run = finish(begin(write(tmp_path, body)))
    with pytest.raises(RunFailed):
        run.wait(0)
    (run.path / "workspaces/main/ready").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = finish(resume(run))
    assert (again.status, ran(again)) == ("completed", ["first", "sub/in"])


def test_8_resumed_session_can_be_stopped_again_but_not_a_completed_one(
    tmp_path: Path,
) -> None:
    """There, the first is "already cancelled", and the second becomes cancelled."""
    run = begin(write(tmp_path, THREE))
    run.stop(now=True)
    finish(run)
    again = resume(run)
    wait_held(again, "one")
    store = SessionStore(tmp_path / "sessions")
    assert store.request_cancellation("s").changed
    let_go(again, "one")
    finish(again)
    assert again.status == "cancelled"
    let_go(again, "two")
    assert finish(resume(again)).result == OUTPUTS
    assert not store.request_cancellation("s").changed
    assert status(tmp_path) is CancellationStatus.NONE


def test_9_interrupted_command_leaves_no_process(tmp_path: Path) -> None:
    """There, the process continues and writes its file."""
    command = "touch held.begun; (until [ -e held.go ]; do sleep 0.02; done; touch late) & wait"
    run = begin(write(tmp_path, flat(bash("one", command))))
    wait_held(run, "held")
    run.stop(now=True)
    finish(run)
    assert commands_alive(tmp_path) == []
    let_go(run, "held")
    assert "main/late" not in files_of(run)
    assert status(tmp_path) is CANCELLED
    assert run.view.steps["one"].status == "cut"


def test_9_text_of_an_interrupted_agent_is_kept(tmp_path: Path) -> None:
    """There, the state does not contain it."""
    gate = Gate()
    model = ScriptedModel(Turn(text="words so far ", gate=gate), Turn(text="all"))
    body = flat("{id: talk, agent: worker, prompt: talk, output: said}")
    run = begin(write(tmp_path, body), model)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert model.open_streams == 0
    with pytest.raises(CancellationRequestedError) as stopped:
        run.wait(0)
    assert stopped.value.partial_answers == {"talk": "words so far "}
    assert finish(resume(run)).result == {"said": "all"}


@pytest.mark.parametrize("now", [False, True])
def test_10_stop_ends_the_delay_before_a_retry(tmp_path: Path, now: bool) -> None:
    """There, it sleeps for the whole delay, up to five minutes."""
    more = ", retry: {max_attempts: 3, initial_delay: 300}"
    body = flat(bash("one", "echo tried >> tries; test -e ready", more))
    run = begin(write(tmp_path, body))
    wait_until(lambda: events(run, ev.StepFailed), WAIT_S, "the first failure")
    run.stop(now=now)
    finish(run)
    assert run.status == "cancelled"
    assert dict(run.receipt.steps) == {"one": "stopped"}
    (run.path / "workspaces/main/ready").touch()
    again = finish(resume(run))
    assert files_of(again)["main/tries"] == "tried\n" * 2


def test_11_stop_is_reported_as_a_stop(tmp_path: Path) -> None:
    """There, it is an ordinary failure without outputs or session."""
    run = begin(write(tmp_path, THREE))
    wait_held(run, "one")
    let_go(run, "one")
    wait_held(run, "two")
    run.stop(now=True, reason="enough")
    finish(run)
    with pytest.raises(CancellationRequestedError) as stopped:
        run.wait(0)
    exc = stopped.value
    assert (exc.session_id, exc.is_immediate, exc.current_step) == ("s", True, "two")
    assert (exc.receipt.source, exc.receipt.reason) == ("api", "enough")
    assert exc.receipt.steps == BROKEN_OFF
    assert str(exc) == (
        f"Recipe s was stopped (immediate) at step 'two'. Finished work is saved in {run.path}. "
        "Resume it with `%agents resume s`."
    )
    assert run.view.steps["one"].output == "one\n"


def test_12_large_values_are_complete_after_a_resume(tmp_path: Path) -> None:
    """There, a step after a resume reads "[trimmed: …KB …]"."""
    model = answering("read")
    body = flat(
        bash("make", "head -c 200000 /dev/zero | tr '\\\\0' x", ", output: large"),
        bash("wait", hold("wait")),
        "{id: read, agent: worker, prompt: 'Read {{large}}'}",
    )
    run = begin(write(tmp_path, body), model)
    wait_held(run, "wait")
    run.stop(now=True)
    finish(run)
    let_go(run, "wait")
    assert finish(resume(run)).status == "completed"
    assert "Read " + "x" * 200_000 in prompt(model, 0)


def test_12_gate_prompt_has_its_values_filled_in(tmp_path: Path) -> None:
    """There, the event contains the template."""
    run: Run = begin(write(tmp_path, STAGED.replace("Go on?", "Go on, {{recipe.name}}?")))
    wait_for_gate(run)
    assert [e.prompt for e in events(run, ev.ApprovalAsked)] == ["Go on, main?"]
    run.stop(now=True)
    finish(run)
