"""The behaviours that Amplifier's tests check for stops, loops, sub-recipes, gates and failures.

Source: amplifier-bundle-recipes b6ee26d, modules/tool-recipes/tests.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import (
    CancellationRequestedError,
    RecipeError,
    RunFailed,
    UnknownSessionError,
)
from nb_agents.testing import Call, Gate, ScriptedModel, Turn
from tests.kit.cards import panel_state, steps_text
from tests.kit.processes import MAX_CAPTURED_BYTES
from tests.kit.runs import Run, post, preview
from tests.kit.sessions import load_session, sessions_in
from tests.kit.teams import team_from_options
from tests.kit.views import MAX_TAIL
from tests.recipes.live import (
    answering,
    begin,
    files_of,
    hold,
    let_go,
    ran,
    resume,
    wait_for_gate,
    wait_held,
    write,
)
from tests.team_kit import events, finish, loop_held, outcomes, prompt

# test_cancellation.py ----------------------------------------------------------------------------

AGENT = """
steps:
- {id: first, agent: worker, prompt: "Say one"}
- {id: second, agent: worker, prompt: "Say two"}
"""


def stopped(run: Run) -> CancellationRequestedError:
    with pytest.raises(CancellationRequestedError) as caught:
        finish(run).wait(0)
    return caught.value


@pytest.mark.parametrize("now", [False, True])
def test_stop_before_the_start_calls_no_model(tmp_path: Path, now: bool) -> None:
    model = answering("one", "two")
    with loop_held():
        run = begin(write(tmp_path, AGENT), model)
        run.stop(now=now)
    exc = stopped(run)
    assert (model.requests, exc.is_immediate, exc.current_step) == ([], now, "first")
    assert f"({'immediate' if now else 'graceful'}) at step 'first'" in str(exc)


def test_stop_between_two_steps_names_the_next_step(tmp_path: Path) -> None:
    body = f"""
steps:
- {{id: first, type: bash, command: "{hold("a")}"}}
- {{id: second, agent: worker, prompt: "Say two"}}
"""
    model = answering("two")
    run = begin(write(tmp_path, body), model)
    wait_held(run, "a")
    run.stop()
    let_go(run, "a")
    assert stopped(run).current_step == "second"
    assert model.requests == []


LOOP = """
context: {names: [a, b, c, d]}
steps:
- {id: each, type: bash, foreach: "{{names}}", collect: all, %s
   command: "touch {{item}}.begun; until [ -e {{item}}.go ]; do sleep 0.02; done; echo {{item}}"}
- {id: last, type: bash, command: "echo last", output: last}
"""


def looping(root: Path, more: str = "") -> Run:
    """Start a loop over four waiting commands. The first has ended and the second is running."""
    run = begin(write(root, LOOP % more))
    wait_held(run, "a")
    let_go(run, "a")
    wait_held(run, "b")
    return run


def test_stop_in_the_second_iteration_leaves_two_iterations(tmp_path: Path) -> None:
    run = looping(tmp_path)
    run.stop()
    let_go(run, "b")
    assert stopped(run).current_step == "each"
    assert ran(run) == ["each[0]", "each[1]"]


def test_stopped_recipe_calls_no_sub_recipe(tmp_path: Path) -> None:
    write(tmp_path, AGENT, "sub")
    body = f"""
steps:
- {{id: first, type: bash, command: "{hold("a")}"}}
- {{id: sub, type: recipe, recipe: sub.yaml}}
"""
    model = answering("one")
    run = begin(write(tmp_path, body), model)
    wait_held(run, "a")
    run.stop()
    let_go(run, "a")
    assert stopped(run).current_step == "sub"
    assert model.requests == []
    assert [e.step for e in events(run, ev.RecipeLoaded)] == [""]


# test_foreach_checkpointing.py -------------------------------------------------------------------


@pytest.mark.parametrize("more", ["", "checkpoint_iterations: true,", "parallel: 1,"])
def test_loop_resumes_at_the_open_iteration(tmp_path: Path, more: str) -> None:
    run = looping(tmp_path, more)
    run.stop(now=True)
    finish(run)
    let_go(run, "b", "c", "d")
    again = finish(resume(run))
    assert ran(again) == ["each[1]", "each[2]", "each[3]", "last"]
    assert again.result == {"all": ["a", "b", "c", "d"], "last": "last"}


def test_tolerated_failed_iterations_are_not_retried(tmp_path: Path) -> None:
    body = """
context: {names: [a, b, c]}
steps:
- {id: each, agent: nobody, foreach: "{{names}}", collect: all, on_error: continue,
   timeout: "{{limit}}", prompt: "Say {{item}}"}
- {id: wait, type: bash, command: "HOLD"}
""".replace("HOLD", hold("wait"))
    model = answering("fine")
    run = begin(write(tmp_path, body), model, context={"limit": "0.000001"})
    wait_held(run, "wait")
    assert [s.status for s in run.view.steps.values() if s.unit == "agent"] == ["failed"] * 3
    run.stop(now=True)
    let_go(finish(run), "wait")
    again = finish(resume(run))
    assert ran(again) == ["wait"]
    assert again.result["all"] == [None, None, None]


def test_empty_list_runs_nothing(tmp_path: Path) -> None:
    body = LOOP.replace("[a, b, c, d]", "[]") % ""
    assert finish(begin(write(tmp_path, body))).result == {"all": [], "last": "last"}


BODY_OF_TWO = """
context: {names: [a, b]}
steps:
- id: each
  foreach: "{{names}}"
  collect: all
  steps:
  - {id: one, type: bash, command: "echo {{item}} >> log", output: x}
  - {id: two, type: bash, output: y,
     command: "touch {{item}}.begun; until [ -e {{item}}.go ]; do sleep 0.02; done; cat log"}
"""


def test_iteration_of_two_steps_resumes_at_the_second(tmp_path: Path) -> None:
    run = begin(write(tmp_path, BODY_OF_TWO))
    wait_held(run, "a")
    let_go(run, "a")
    wait_held(run, "b")
    run.stop(now=True)
    finish(run)
    let_go(run, "b")
    again = finish(resume(run))
    assert ran(again) == ["each[1]/two"]
    assert again.result["all"] == ["a", "a\nb"]


def test_finished_loop_does_not_run_again(tmp_path: Path) -> None:
    run = begin(write(tmp_path, LOOP % "" + f'- {{id: end, type: bash, command: "{hold("e")}"}}\n'))
    let_go(run, "a", "b", "c", "d")
    wait_held(run, "e")
    run.stop(now=True)
    let_go(finish(run), "e")
    assert ran(finish(resume(run))) == ["end"]


# test_staged_sub_recipe.py -----------------------------------------------------------------------

CHILD = """
stages:
- name: check
  approval: {required: true, prompt: "Check {{thing}}?"}
  steps:
  - {id: look, type: bash, command: "echo {{thing}}"}
- name: tell
  steps:
  - {id: tell, type: bash, command: "echo {{_approval_message}}", output: told}
"""
PARENT = """
steps:
- {id: before, type: bash, command: "echo before"}
- {id: child, type: recipe, recipe: child.yaml, output: child, context: {thing: sky}}
- {id: after, type: bash, output: after, command: "echo after {{child.told}}"}
"""


def test_gate_of_a_called_recipe_waits_in_the_calling_run(tmp_path: Path) -> None:
    write(tmp_path, CHILD, "child")
    run = begin(write(tmp_path, PARENT))
    assert wait_for_gate(run) == ["child/check"]
    assert run.view.gates["child/check"].prompt == "Check sky?"
    run.stop(now=True)
    finish(run)
    again = resume(run)
    assert wait_for_gate(again) == ["child/check"]
    again.approve("blue")
    finish(again)
    assert again.result == {"child": {"told": "blue"}, "after": "after blue"}
    assert ran(again) == ["child/tell/tell", "after"]


def test_denial_in_a_called_recipe_stops_the_caller(tmp_path: Path) -> None:
    write(tmp_path, CHILD, "child")
    run = begin(write(tmp_path, PARENT))
    wait_for_gate(run)
    run.deny()
    exc = stopped(run)
    assert (exc.receipt.source, exc.current_step) == ("approval", "child/check")
    assert ran(run) == ["before", "child/check/look"]


# test_on_error_correctness.py --------------------------------------------------------------------

FAILS = '{id: bad, type: bash, command: "echo no >&2; exit 3", output: bad, %s}'


def failing(root: Path, more: str) -> Run:
    after = '{id: after, type: bash, command: "echo after", output: after}'
    return finish(begin(write(root, f"steps:\n- {FAILS % more}\n- {after}\n")))


def test_failure_ends_the_recipe_and_a_resume_retries(tmp_path: Path) -> None:
    run = failing(tmp_path, "on_error: fail")
    with pytest.raises(RunFailed, match="exit code 3: no"):
        run.wait(0)
    assert dict(run.receipt.steps) == {"bad": "failed", "after": "never started"}
    assert "the command of bad (it failed)" in str(preview("s", session_root=tmp_path / "sessions"))
    assert ran(finish(resume(run))) == ["bad"]


def test_undefined_variable_is_reported_with_position_and_alternatives(
    tmp_path: Path,
) -> None:
    body = """
context: {topic: bees}
steps:
- {id: first, type: bash, command: "echo 1", output: count}
- {id: look, type: bash, command: "echo {{topik}}"}
"""
    run = finish(begin(write(tmp_path, body)))
    with pytest.raises(RunFailed) as caught:
        run.wait(0)
    said = str(caught.value)
    assert "look" in said and "{{topik}} is not defined" in said
    assert "Did you mean {{topic}}?" in said and "count" in said
    assert dict(run.receipt.steps) == {"first": "finished", "look": "failed"}


def test_recursion_limit_reports_the_chain_of_calls(tmp_path: Path) -> None:
    there = "steps:\n- {id: there, condition: 'true', type: recipe, recipe: %s.yaml}\n"
    write(tmp_path, there % "main", name="other")
    run = finish(begin(write(tmp_path, there % "other")))
    with pytest.raises(RunFailed) as caught:
        run.wait(0)
    assert str(caught.value).count("Recipe calls are nested") == 1
    assert "deeper than 5: main → other → main." in str(caught.value)


def test_loop_over_ten_thousand_items_can_be_stopped_early(tmp_path: Path) -> None:
    body = f"""
context: {{names: {list(range(10_000))}}}
steps:
- {{id: each, type: bash, foreach: "{{{{names}}}}", collect: all, max_iterations: 10000,
   command: "if [ {{{{item}}}} = 2 ]; then {hold("third")}; fi"}}
"""
    run = begin(write(tmp_path, body))
    wait_held(run, "third")
    run.stop(now=True)
    stopped(run)
    assert ran(run) == ["each[0]", "each[1]", "each[2]"]
    assert len(run.receipt.steps) < 10
    assert "2 finished steps" in str(preview("s", session_root=tmp_path / "sessions"))


def test_hundred_megabytes_of_output_are_truncated(
    tmp_path: Path,
) -> None:
    body = r"""
steps:
- {id: flood, type: bash, command: "head -c 100000000 /dev/zero | tr '\\0' x"}
- {id: next, type: bash, command: "echo next", output: next}
"""
    run = finish(begin(write(tmp_path, body)))
    assert (run.status, run.result) == ("completed", {"next": "next"})
    kept = run.view.steps["flood"].output
    note = (
        f"\n[truncated: 100000000 bytes in total; only the first {MAX_CAPTURED_BYTES} are shown]\n"
    )
    assert kept == "x" * MAX_CAPTURED_BYTES + note
    # Once in full for a resume, and once as the shortened stream.
    assert (run.path / "events.jsonl").stat().st_size < 1.5 * MAX_CAPTURED_BYTES
    assert all(len(e.text) < 110_000 for e in events(run, ev.OutputStreamed))
    assert len(run.view.steps["flood"].tail) <= MAX_TAIL
    assert len(json.dumps(panel_state(run.view, run.id, 0.0))) < 100_000
    assert len(steps_text(run.view)) < 100_000


def test_tolerated_failed_command_keeps_its_output(tmp_path: Path) -> None:
    run = failing(tmp_path, "on_error: continue, output_exit_code: code")
    assert run.result == {"code": "3", "bad": "", "after": "after"}


def test_failure_can_skip_the_rest(tmp_path: Path) -> None:
    run = failing(tmp_path, "on_error: skip_remaining")
    assert run.status == "completed"
    assert (ran(run), run.result) == (["bad"], {"bad": None})


# Retries and budgets -----------------------------------------------------------------------------

BUDGET = """
recursion: {max_total_steps: 2}
steps:
- {id: a, agent: worker, prompt: "Say one"}
- {id: b, agent: worker, prompt: "Say two", retry: {max_attempts: 3, initial_delay: 0.01}}
- {id: c, agent: worker, prompt: "Say three"}
"""


def test_resume_keeps_the_used_step_budget(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(
        Turn(text="one"), Turn(error=RuntimeError("lost")), Turn(text="so ", gate=gate), Turn("two")
    )
    run = begin(write(tmp_path, BUDGET), model)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert run.receipt.steps == (("a", "finished"), ("b", "killed"), ("c", "never started"))
    assert outcomes(run) == {"a": "finished", "b": "killed"}
    again = finish(resume(run))
    assert len(model.requests) == 4
    assert again.view.steps["b"].output == "two"
    with pytest.raises(RunFailed, match=r"The limit of 2 agent steps is reached"):
        again.wait(0)


# test_session.py ---------------------------------------------------------------------------------


def test_recipe_sessions_are_listed_and_unknown_ones_reported(tmp_path: Path) -> None:
    run = failing(tmp_path, "on_error: continue")
    assert [p.name for p in sessions_in(tmp_path / "sessions").by_use] == ["s"]
    (turn,) = load_session(run.path.parent).turns
    assert (turn.is_complete, turn.view.recipe, turn.view.task) == (True, "main", "main: d")
    with pytest.raises(UnknownSessionError):
        nb_agents.resume("nobody", options=RunOptions(session_root=tmp_path / "sessions"))


# A changed recipe file ---------------------------------------------------------------------------

OLD = f"""
steps:
- {{id: one, type: bash, command: "{hold("one")}", output: one}}
- {{id: two, type: bash, command: "echo old", output: two}}
"""


def test_initial_value_that_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"The value of 'files' can't be used: it is not plain"):
        begin(write(tmp_path, AGENT), context={"depth": 2, "files": [tmp_path]})


def test_resume_finds_bundled_recipes_like_the_start(tmp_path: Path) -> None:
    write(
        tmp_path / "kit", "steps:\n- {id: b, type: bash, command: echo found, output: o}\n", "sub"
    )
    body = f"""
steps:
- {{id: first, type: bash, command: "{hold("a")}"}}
- {{id: call, type: recipe, recipe: "@kit:sub.yaml", output: got}}
"""
    team = team_from_options(None, None, [f"kit={tmp_path / 'kit'}"])
    options = RunOptions(session_root=tmp_path / "sessions")
    run = nb_agents.start(recipe=write(tmp_path, body), config=team, options=options)
    wait_held(run, "a")
    run.stop()
    let_go(run, "a")
    finish(run)
    assert finish(resume(run)).result == {"got": {"o": "found"}}


def test_unused_initial_value_is_reported(tmp_path: Path) -> None:
    body = """
context: {kept: 1}
rate_limiting: {max_concurrent_llm: "{{most}}"}
steps:
- {id: a, type: bash, command: "echo {{depth}}"}
"""
    given = {"depth": 1, "dept": 2, "kept": 3, "most": 4}
    run = finish(begin(write(tmp_path, body), context=given))
    told = "The recipe does not read the given value 'dept'. Did you mean 'depth'?"
    assert [text for text in run.view.notices if "does not read" in text] == [told]


def interrupted(root: Path) -> Run:
    """Stop a recipe in its first step, then change its file."""
    run = begin(write(root, OLD))
    wait_held(run, "one")
    run.stop(now=True)
    let_go(finish(run), "one")
    write(root, OLD.replace("echo old", "echo new"))
    return run


def test_resume_uses_the_copy_in_the_turn(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    again = finish(resume(run))
    assert again.result == {"one": "one", "two": "old"}
    (told,) = [n for n in again.view.notices if "has changed" in n]
    assert told == (
        f"{tmp_path / 'main.yaml'} has changed. This run uses the copy in the turn. "
        "To use the changed recipe, resume with `--recipe FILE`."
    )
    assert (again.path / "recipe.yaml").read_text() == (run.path / "recipe.yaml").read_text()


def test_resume_uses_the_changed_file_on_request(tmp_path: Path) -> None:
    again = finish(resume(interrupted(tmp_path), recipe=tmp_path / "main.yaml"))
    assert again.result == {"one": "one", "two": "new"}
    assert [n for n in again.view.notices if "has changed" in n] == []
    assert "echo new" in (again.path / "recipe.yaml").read_text()
    third = load_session(again.path.parent).turns[-1]
    assert third.view.outputs == {"one": "one", "two": "new"}


def test_renamed_recipe_keeps_its_workspace(tmp_path: Path) -> None:
    body = """
steps:
- {id: one, type: bash, command: "echo kept > note"}
- {id: two, type: bash, command: "cat note && false", output: two}
"""
    run = finish(begin(write(tmp_path, body)))
    renamed = write(tmp_path, body.replace(" && false", ""), "renamed")
    again = finish(resume(run, recipe=renamed))
    assert again.result == {"two": "kept"}
    assert files_of(again) == {"renamed/note": "kept\n"}


def test_session_start_time_is_the_same_after_a_resume(
    tmp_path: Path,
) -> None:
    tell = "echo {{session.started}}"
    steps = f"{{id: one, type: bash, command: '{tell}', output: one}}"
    body = f"steps:\n- {steps}\n- {{id: two, type: bash, command: '{tell}; exit 1', output: two}}\n"
    run = finish(begin(write(tmp_path, body)))
    write(tmp_path, body.replace("; exit 1", ""))
    again = finish(resume(run, recipe=tmp_path / "main.yaml"))
    began = datetime.fromtimestamp(run.view.started_at, UTC).isoformat(timespec="seconds")
    assert again.result == {"one": began, "two": began}


def test_unchanged_text_causes_no_notice(tmp_path: Path) -> None:
    path = tmp_path / "main.yaml"
    path.write_bytes(write(tmp_path, OLD).read_bytes().replace(b"\n", b"\r\n"))
    run = begin(path)
    wait_held(run, "one")
    run.stop(now=True)
    let_go(finish(run), "one")
    told = [n for n in finish(resume(run)).view.notices if not n.startswith("Session: ")]
    assert len(told) == 1


def test_deleted_recipe_file_does_not_prevent_a_resume(tmp_path: Path) -> None:
    run = interrupted(tmp_path)
    (tmp_path / "main.yaml").unlink()
    again = finish(resume(run))
    assert again.result == {"one": "one", "two": "old"}


def test_changed_called_recipe_is_reported(tmp_path: Path) -> None:
    write(tmp_path, CHILD, "child")
    run = begin(write(tmp_path, PARENT))
    wait_for_gate(run)
    run.stop(now=True)
    finish(run)
    write(tmp_path, CHILD.replace("echo {{_approval", "echo new {{_approval"), "child")
    again = resume(run)
    wait_for_gate(again)
    again.approve("blue")
    assert finish(again).result["after"] == "after blue"
    assert f"{tmp_path / 'child.yaml'} has changed." in again.view.notices[-1]


@pytest.mark.parametrize("loop", ["", "foreach: '{{two}}', parallel: true, "])
def test_changed_recipe_can_call_another_file_in_an_unfinished_step(
    tmp_path: Path, loop: str
) -> None:
    sub = "steps:\n- {id: one, type: bash, command: echo one, output: one}\n"
    tell = "- {{id: two, type: bash, command: {}, output: two}}\n"
    write(tmp_path, sub + tell.format("exit 1"), "child")
    write(tmp_path, sub + tell.format("echo mended"), "mended")
    body = f"""
context: {{two: [1, 2]}}
steps:
- {{id: done, type: recipe, recipe: mended.yaml, output: done}}
- {{id: sub, {loop}type: recipe, recipe: child.yaml, output: sub}}
"""
    run = finish(begin(write(tmp_path, body)))
    assert run.status == "failed"
    write(tmp_path, body.replace("child.yaml", "mended.yaml"))
    again = finish(resume(run, recipe=tmp_path / "main.yaml"))
    assert again.result["sub"] == {"one": "one", "two": "mended"}
    assert not [address for address in ran(again) if not address.endswith("/two")]


def test_step_with_a_changed_prompt_starts_again(tmp_path: Path) -> None:
    """Its open conversation was about the old prompt."""
    body = f"""
steps:
- {{id: talk, agent: worker, prompt: "Draft old", output: said}}
- {{id: wait, type: bash, command: "{hold("wait")}"}}
"""
    gate = Gate()
    listing = Turn(calls=(Call("list_files"),))
    model = ScriptedModel(listing, Turn(text="so ", gate=gate), Turn(text="new text"))
    run = begin(write(tmp_path, body), model)
    gate.wait_reached()
    run.stop(now=True)
    let_go(finish(run), "wait")
    write(tmp_path, body.replace("old", "new"))
    again = finish(resume(run, recipe=tmp_path / "main.yaml"))
    assert again.result == {"said": "new text"}
    assert "Draft new" in prompt(model, 2)
    assert "Draft old" not in prompt(model, 2)


# Messages, and the next turn ---------------------------------------------------------------------


def test_message_is_delivered_once(tmp_path: Path) -> None:
    model = answering("one")
    with loop_held():
        run = begin(write(tmp_path, "steps:\n- {id: a, agent: worker, prompt: Say it}\n"), model)
        post(run.say, "in verse")
    finish(run)
    assert prompt(model, 0).count("in verse") == 1


def test_next_turn_reads_the_results_of_a_stopped_recipe(tmp_path: Path) -> None:
    body = f"""
stages:
- name: make
  steps:
  - {{id: one, type: bash, command: "echo blue"}}
  - {{id: long, type: bash, command: "seq 9000"}}
  - {{id: two, type: bash, command: "{hold("two")}"}}
"""
    run = begin(write(tmp_path, body))
    wait_held(run, "two")
    run.stop(now=True)
    finish(run)
    asked, told = load_session(run.path.parent).messages
    assert (asked.role, asked.content) == ("user", "main: d")
    text = told.content
    assert text.startswith(
        "[INCOMPLETE TURN - Session was cancelled before completion]\n"
        "[Recipe main: stopped at make/two]\n\n"
        "## make/one (finished):\nblue\n\n## make/long (finished):\n1\n2\n"
    )
    assert text.endswith(
        " […]\n\n## make/two (command, not finished)\n\n"
        f"[Workspace available at: {run.path / 'workspaces/main'}]"
    )
    assert len(text) < 3000
    assert files_of(run) == {"main/two.begun": ""}
