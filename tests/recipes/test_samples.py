"""Typical recipes, each run with the demo model and with a scripted one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.testing import ScriptedModel, Turn, scripted_team
from tests.kit.recipes import Recipe, check
from tests.kit.runs import Run
from tests.recipes.live import wait_for_gate
from tests.team_kit import finish, prompt

SAMPLES = Path(__file__).parent / "samples"
DEMO = TeamSpec.model_validate(
    {"agents": [{"id": "demo", "backend": {"type": "demo", "words_per_second": 100_000}}]}
)


@dataclass(frozen=True)
class Sample:
    """A recipe, and its expected results.

    Attributes:
        name: The name of its file.
        outputs: The names of its outputs, in order.
        says: Answers of a scripted model, by words in the prompt.
        gives: Expected outputs with that model; others are not compared.
        demo: Expected outputs with the demo model.
        context: The initial values.
        gates: The stages with a gate.
        unset: Variables that are never set, which a check reports.
    """

    name: str
    outputs: str
    says: Mapping[str, str]
    gives: Mapping[str, Any]
    demo: Mapping[str, Any]
    context: Mapping[str, Any] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()


ALL = [
    Sample(
        "triage",
        outputs="kind details reply report",
        context={"ticket": "It crashed {{kind}}"},
        says={
            "Classify": "defect",
            "Name what": 'So:\n```json\n{"title": "Boom", "labels": ["crash"], "urgent": ""}\n```',
            "Escalate Boom": "escalated",
            "Report on triage 1.0.0, step report.\nIt can wait.\n"
            "{% if ticket %}Jinja's own braces stay.{% endif %}\n\n"
            "So do {{ user.name }}, {{ user | upper }}, {{steps.run-tests.result}}, "
            "${{ github.ref }}\nand {{ticket}}.\nReply: escalated": "reported",
        },
        gives={"kind": "defect", "reply": "escalated", "report": "reported"},
        demo={"kind": "question", "details": {"title": "…", "urgent": True, "labels": "crash"}},
        unset=("nobody_set_this", "user.name"),
    ),
    Sample(
        "release",
        outputs="changes risk tag",
        context={"target": "staging"},
        gates=("prepare",),
        says={
            "List the changes for staging": "- one",
            "They said go on": '{"level": "low", "notes": "reviewed by two"}',
        },
        gives={"changes": "- one", "tag": "publish staging"},
        demo={"risk": {"level": "low", "notes": "reviewed"}, "tag": "publish staging"},
    ),
    Sample(
        "translate",
        outputs="words translated translations lines nothing summary",
        says={
            "Translate one two (2 words)": '{"text": "un deux", "words": 2}',
            "Translate three (1 words)": '{"text": "trois", "words": 1}',
            'Translate it\'s "four" $(exit 1) (4 words)': '{"text": "$(exit 7)", "words": 4}',
            'Sum up ["", "trois", "$(exit 7)"] and [], without ["nobody"]': "three",
        },
        gives={
            "words": 4,
            "lines": ["", "trois", "$(exit 7)"],
            "nothing": [],
            "summary": "three",
        },
        demo={
            "words": 4,
            "lines": ["…"] * 3,
            "nothing": [],
            "translated": {"words": "…", "text": "…"},
        },
    ),
    Sample(
        "audit",
        outputs="found findings fixes final_output",
        says={
            "Which files": '```json\n{"files": [{"path": "a", "kind": "x"}, '
            '{"path": "b", "kind": "y"}], "total": 2}\n```',
            "Audit a, which is x": '{"severity": "high", "advice": "it\'s $(exit 1)"}',
            "Audit b, which is y": 'Well: {"severity": "low", "advice": "none"}',
            "for 2 files": "two",
        },
        gives={"fixes": ["high=it's $(exit 1)", "low=none"], "final_output": "two"},
        demo={"findings": [{"severity": "…", "advice": "…"}], "fixes": ["…=…"]},
    ),
    Sample(
        "portfolio",
        outputs="ratings lines best",
        says={
            "Rate north in 10 lines": '```json\n{"grade": "A"}\n```',
            "Rate south in 10 lines": '{"grade": "B"}',
            "Which is best": "north",
        },
        gives={"lines": ["A NORTH: PROJECT", "B SOUTH: PROJECT"], "best": "north"},
        demo={"lines": ["… NORTH: PROJECT", "… SOUTH: PROJECT"]},
    ),
    Sample(
        "polish",
        outputs="written review draft score left published",
        says={
            "Write, time 1: nothing yet": "one",
            "Write, time 2: one": "two",
            "Review: one": '{"score": 3, "verdict": "again"}',
            "Review: two": '{"score": 8.5, "verdict": "again"}',
            "Publish two, rated 8.5": "out",
        },
        gives={"draft": "two", "score": 8.5, "left": 0, "published": "out"},
        demo={"review": {"score": 8, "verdict": "accept"}, "score": 8, "left": 0},
    ),
    Sample(
        "build",
        outputs="facts code seen told note",
        says={"Announce seen It's": "announced"},
        gives={"facts": {"title": "none", "lines": 2}, "note": "announced"},
        demo={"code": "4", "seen": "seen", "told": 'seen It\'s "the" `build` $HOME'},
    ),
    Sample(
        "recover",
        outputs="fetched extra_code extra called went_on stored report",
        says={"Go on without it.": "gone on", "Got fetched, extra 5.": "reported"},
        gives={"fetched": "fetched", "called": None, "stored": None, "report": "reported"},
        demo={"extra_code": "5", "extra": ""},
    ),
    Sample(
        "chapters",
        outputs="lines comments signed",
        says={
            "Comment on soup": "warm",
            "Comment on bread": "slow",
            'Sign ["soup takes 20 minutes", "bread takes 180 minutes"] as chapters 1.2.0.': "me",
        },
        gives={"comments": ["warm", "slow"], "signed": "me"},
        demo={"lines": ["soup takes 20 minutes", "bread takes 180 minutes"]},
    ),
    Sample(
        "rounds",
        outputs="outline result text is_good published",
        gates=("outline", "improve"),
        says={
            "Outline tea": "leaves",
            "Write leaves, better than: .": "one",
            "Write leaves, better than: one.": "two",
            "Judge one": '{"good": false}',
            "Judge two": '{"good": true}',
            "Publish (go on): two": "out",
        },
        gives={"text": "two", "is_good": True, "published": "out"},
        demo={},
    ),
    Sample(
        "inventory",
        outputs="total low orders first told",
        says={"How many nails": "100", "Tell of 43 things, nails: 100.": "told"},
        gives={"total": 43, "low": [{"name": "nails", "count": 3}], "first": "nails: 100"},
        demo={"total": 43, "low": [{"name": "nails", "count": 3}]},
    ),
    Sample(
        "convert",
        outputs="converted seen comment",
        says={"Comment on": "noted"},
        gives={
            "converted": [
                {"given": "12", "number": 30.0},
                {"given": "it's $(exit 3)", "number": None},
                {"given": "", "number": None},
            ],
            "comment": "noted",
        },
        demo={},
    ),
    Sample(
        "survey",
        outputs="gathered read count summary",
        says={'Sum up 2 of [3, "", 3], unread.': "two"},
        gives={"gathered": [3, "", 3], "read": None, "count": 2, "summary": "two"},
        demo={"gathered": [3, "", 3], "count": 2},
        unset=("nobody_gave_this",),
    ),
]

EACH = pytest.mark.parametrize("sample", ALL, ids=lambda sample: sample.name)


def _scripted(sample: Sample) -> ScriptedModel:
    def answer(messages: list[ModelMessage]) -> Turn:
        asked = str(messages[-1].parts[-1].content)  # type: ignore[union-attr]
        said = [text for words, text in sample.says.items() if words in asked]
        assert len(said) == 1, (asked, said)
        return Turn(text=said[0])

    return ScriptedModel(answer)


def _run(sample: Sample, team: TeamSpec, root: Path) -> Run:
    path = SAMPLES / f"{sample.name}.yaml"
    run = nb_agents.start(
        recipe=path, context=sample.context, config=team, options=RunOptions(session_root=root)
    )
    for stage in sample.gates:
        assert wait_for_gate(run) == [stage]
        run.approve("go on")
    return finish(run)


def _check(sample: Sample, run: Run, gives: Mapping[str, Any]) -> None:
    assert run.status == "completed", run.view.notices
    assert isinstance(run.result, Mapping)
    assert list(run.result) == sample.outputs.split()
    assert {name: run.result[name] for name in gives} == gives


@EACH
def test_recipe_completes_with_a_scripted_model(sample: Sample, tmp_path: Path) -> None:
    model = _scripted(sample)
    run = _run(sample, scripted_team(None, writer=model), tmp_path)
    _check(sample, run, sample.gives)
    asked = [prompt(model, number) for number in range(len(model.requests))]
    assert [words for words in sample.says if not any(words in each for each in asked)] == []


@EACH
def test_recipe_completes_with_the_demo_model(sample: Sample, tmp_path: Path) -> None:
    run = _run(sample, DEMO, tmp_path)
    _check(sample, run, sample.demo)
    assert isinstance(run.result, Mapping)
    assert "This is the demo model" in str(run.result) or sample.name == "release", run.result


@EACH
def test_check_finds_no_faults(sample: Sample) -> None:
    report = check(Recipe.from_file(SAMPLES / f"{sample.name}.yaml"), DEMO)
    assert report.faults == ()
    messages = [each.message for each in report.warnings]
    told = [each for each in messages if "is not a supported template" not in each]
    unset = [name for name in sample.unset if any(f"{{{{{name}}}}}, which" in one for one in told)]
    assert (unset, len(told)) == (list(sample.unset), len(sample.unset)), told


def test_recipe_without_outputs_answers_with_the_last_steps_text(
    tmp_path: Path,
) -> None:
    text = "{name: a, description: d, version: 1.0.0, steps: [{id: x, agent: z, prompt: hi}]}"
    team = scripted_team(a=ScriptedModel(Turn(text="Hello.")))
    run = nb_agents.start(
        recipe=Recipe.from_text(text, "a.yaml"),
        config=team,
        options=RunOptions(session_root=tmp_path),
    )
    assert (run.wait(), run.result) == ("Hello.", "Hello.")
