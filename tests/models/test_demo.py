"""The demo model: offline, deterministic, and recognizable as a demo."""

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.models.demo import DEMO_WORDS_PER_SECOND
from tests.kit.cards import text
from tests.kit.recipes import Recipe
from tests.model_server import wait_until
from tests.team_kit import events, finish

FAST = 100_000.0


def _run(
    root: Path,
    task: str = "Compare three caches",
    agents: int = 3,
    window: int | None = None,
    reads: list[Path] | None = None,
) -> nb_agents.Run:
    backend = {"type": "demo", "words_per_second": FAST, "context_window": window}
    spec = {"agents": [{"id": f"demo_{n}", "backend": backend} for n in range(agents)]}
    return nb_agents.start(
        task,
        TeamSpec.model_validate(spec),
        options=RunOptions(session_root=root, context_paths=reads or []),
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> nb_agents.Run:
    return finish(_run(tmp_path_factory.mktemp("demo")))


def test_demo_completes_a_turn_and_identifies_itself(done: nb_agents.Run) -> None:
    assert done.status == "completed"
    assert "This is the demo model" in (done.result or "")
    assert "Compare three caches" in (done.result or "")
    for agent in done.view.agents.values():
        assert "no LLM was called" in agent.answer


def test_demo_writes_a_note_reads_and_votes(done: nb_agents.Run) -> None:
    note = done.path / "workspace" / "notes.md"
    assert "Compare three caches" in note.read_text()
    tools = {(t.agent, t.tool, t.outcome) for t in done.view.tools}
    for agent in done.view.agents:
        assert (agent, "write_file", "ok") in tools
        assert (agent, "read_file", "ok") in tools
    assert all(v.vote and v.vote.target != k for k, v in done.view.agents.items())


def test_demo_runs_are_deterministic(done: nb_agents.Run, tmp_path: Path) -> None:
    again = finish(_run(tmp_path))
    assert again.result == done.result
    assert again.view.agents["demo_0"].answers == done.view.agents["demo_0"].answers
    assert _said(again, "demo_1", 1) == _said(done, "demo_1", 1) != ""


def test_demo_costs_nothing(done: nb_agents.Run) -> None:
    assert done.receipt.cost == 0
    assert text.spent(done.view).endswith("$0")


def test_demo_works_as_a_single_agent(tmp_path: Path) -> None:
    run = finish(_run(tmp_path, agents=1))
    assert "demo model" in (run.result or "")


def test_task_with_our_tags_is_harmless(tmp_path: Path) -> None:
    task = '<ANSWER from="agent1"> {braces} </TASK> <FINAL PRESENTATION> "quotes" \\ 😀'
    assert finish(_run(tmp_path, task)).status == "completed"


def test_demo_writes_at_a_readable_speed_and_stops_immediately(tmp_path: Path) -> None:
    assert 10 <= DEMO_WORDS_PER_SECOND <= 50
    run = nb_agents.start("t", options=RunOptions(session_root=tmp_path))
    wait_until(lambda: all("I am" in a.partial for a in run.view.agents.values()))
    run.stop(now=True)
    finish(run)
    assert all("I am" in a.partial for a in run.view.agents.values())


STEPS = """
name: ask
description: d
version: 1.0.0
steps:
- {id: word, agent: x, prompt: "Is it good?", output: word}
- {id: list, agent: x, prompt: "<FINAL PRESENTATION> List files", output: listed}
- {id: each, foreach: "{{listed.files}}", agent: x, prompt: "Open {{item.name}}", collect: opened}
- {id: end, condition: "{{word}} == 'yes'", agent: x, prompt: "<TASK>End it", output: end}
"""


def _play(root: Path, text: str = STEPS) -> nb_agents.Run:
    backend = {"type": "demo", "words_per_second": FAST}
    spec = TeamSpec.model_validate({"agents": [{"id": "demo_0", "backend": backend}]})
    return finish(
        nb_agents.start(
            recipe=Recipe.from_text(text, "ask.yaml"),
            config=spec,
            options=RunOptions(session_root=root),
        )
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> nb_agents.Run:
    return _play(tmp_path_factory.mktemp("recipe"))


def test_demo_answers_recipe_steps_in_plain_text(played: nb_agents.Run) -> None:
    assert played.status == "completed"
    end = _results(played)["end"]
    assert "This is the demo model" in end and "no LLM was called" in end and "demo_0" in end
    assert "You asked: <TASK>End it" in end


def test_demo_returns_the_fields_that_later_steps_read(played: nb_agents.Run) -> None:
    assert _results(played)["listed"] == {"files": [{"name": "…"}]}
    assert "You asked: Open …" in _results(played)["opened"][0]
    said = next(e.output for e in events(played, ev.StepFinished) if e.step == "list")
    assert said.startswith("**This is the demo model**")
    assert said.endswith('List files\n\n```json\n{"files": [{"name": "…"}]}\n```')


def test_demo_returns_the_word_that_later_steps_compare(played: nb_agents.Run) -> None:
    assert _results(played)["word"] == "yes"


def test_demo_writes_one_note_per_step(played: nb_agents.Run) -> None:
    assert {(t.agent, t.tool, t.outcome) for t in played.view.tools} == {
        (step, "write_file", "ok") for step in ("word", "list", "each[0]", "end")
    }
    assert len(played.view.tools) == 4
    (note,) = played.path.glob("workspaces/*/notes/is-it-good.md")
    assert note.read_text().splitlines()[2:4] == ["Is it good?", ""]


def test_demo_recipe_runs_are_deterministic(played: nb_agents.Run, tmp_path: Path) -> None:
    assert _results(_play(tmp_path)) == _results(played)


def test_demo_handles_empty_steps_and_our_own_phrases(tmp_path: Path) -> None:
    odd = "Later steps compare your whole result with nothing.\nLater steps read ```json\n{\n```"
    text = STEPS.replace("Is it good?", "!").replace("<TASK>End it", odd.replace("\n", "\\n"))
    run = _play(tmp_path, text)
    assert run.status == "completed", run.view.notices
    assert (run.path / "workspaces" / "ask" / "notes" / "step.md").is_file()


def _results(run: nb_agents.Run) -> dict[str, Any]:
    assert isinstance(run.result, dict)
    return run.result


def _said(run: nb_agents.Run, agent: str, call: int) -> Any:
    found = [e for e in events(run, ev.TextStreamed) if (e.agent, e.call) == (agent, call)]
    return "".join(e.text for e in found if e.channel == "text")


def test_demo_reads_the_files_of_a_task_and_its_conversation_is_folded(tmp_path: Path) -> None:
    files = [tmp_path / f"part{n}.txt" for n in range(6)]
    for n, file in enumerate(files):
        file.write_text(f"Table {n}\n" + "north 41 south 38 east 17\n" * 100)
    task = f"Compare {', '.join(map(str, files))}. Leave {tmp_path / 'hidden.txt'} alone."
    run = _run(tmp_path, task, agents=1, window=4000, reads=files)
    finish(run)
    calls = [each for each in events(run, ev.ToolStarted) if each.tool == "read_file"]
    assert [json.loads(each.args)["path"] for each in calls] == list(map(str, files))
    assert {each.level for each in events(run) if isinstance(each, ev.ContextFolded)} == {"results"}
    assert run.status == "completed"
