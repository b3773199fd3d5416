"""A recipe as a flowchart: its structure, and the escaping of its labels."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_agents.extensions.recipes.diagram import mermaid
from tests.kit.recipes import Recipe

HEAD = "name: r\ndescription: d\nversion: 1.0.0\n"


def drawn(text: str) -> list[str]:
    chart = mermaid(Recipe.from_text(HEAD + text, "r.yaml"))
    return [line.strip() for line in chart.splitlines()]


def test_steps_have_shapes_by_kind_and_form_a_chain() -> None:
    assert drawn(
        """\
steps:
- {id: ask, agent: x, prompt: p}
- {id: run, type: bash, command: ls, condition: "{{ok}}"}
- {id: call, type: recipe, recipe: b.yaml}
"""
    ) == [
        "flowchart TD",
        'n0(["r 1.0.0"])',
        'n1("ask<br/>agent x")',
        'n2[/"run<br/>bash"/]',
        'n3[["call<br/>recipe b.yaml"]]',
        'n4(["complete"])',
        "n0 --> n1",
        'n1 -->|"if #123;#123;ok#125;#125;"| n2',
        "n2 --> n3",
        "n3 --> n4",
    ]


def test_gate_follows_its_stage_and_has_two_exits() -> None:
    assert drawn(
        """\
stages:
- {name: one, approval: {required: true, prompt: Go on}, steps: [{id: a, agent: x, prompt: p}]}
- {name: two, condition: "{{c}}", steps: [{id: b, agent: x, prompt: p, condition: "{{d}}"}]}
"""
    ) == [
        "flowchart TD",
        'n0(["r 1.0.0"])',
        'subgraph b1[" "]',
        'n1["one"]',
        'n2("a<br/>agent x")',
        "end",
        'n3{"Go on"}',
        'n4(["stopped"])',
        'subgraph b7[" "]',
        'n5["two"]',
        'n6("b<br/>agent x")',
        "end",
        'n7(["complete"])',
        "n0 --> n1",
        "n1 --> n2",
        "n2 --> n3",
        'n3 -->|"denied"| n4',
        'n3 -->|"approved · if #123;#123;c#125;#125;"| n5',
        'n5 -->|"if #123;#123;d#125;#125;"| n6',
        "n6 --> n7",
    ]


def test_loops_have_back_edges_and_dependencies_are_dotted() -> None:
    assert drawn(
        """\
steps:
- {id: a, agent: x, prompt: p, foreach: "{{l}}", as: f}
- id: g
  while_condition: true
  max_while_iterations: 3
  steps:
  - {id: b, agent: x, prompt: p}
  - {id: c, agent: x, prompt: p, depends_on: [a, b]}
- {id: d, agent: x, prompt: p, depends_on: [g, a]}
"""
    ) == [
        "flowchart TD",
        'n0(["r 1.0.0"])',
        'n1("a<br/>agent x<br/>for each f of #123;#123;l#125;#125;")',
        'subgraph b2[" "]',
        'n2["g<br/>while true, at most 3 times"]',
        'n3("b<br/>agent x")',
        'n4("c<br/>agent x")',
        "end",
        'n5("d<br/>agent x")',
        'n6(["complete"])',
        "n0 --> n1",
        "n1 --> n2",
        "n2 --> n3",
        "n3 --> n4",
        "n1 -.-> n4",
        "n4 --> n2",
        "n4 --> n5",
        "n1 -.-> n5",
        "n5 --> n6",
    ]


LINE = re.compile(
    r"""  (?:
      \ *n\d+(?:\(\["L"\]\)|\("L"\)|\[/"L"/\]|\[\["L"\]\]|\{"L"\}|\["L"\])
    | \ *subgraph\ b\d+\["\ "\] | \ *end
    | \ \ n\d+\ (?:-->|-\.->)(?:\|"L"\|)?\ n\d+
    )""".replace('"L"', r'"(?:[\w ,:/·….-]|\#\d+;|<br/>)+"'),
    re.VERBOSE,
)
NASTY = st.text(
    st.sampled_from("\"`<>&#;|(){}[]%\\~=-_.*!$@^'\n ß°¶ﬂaß1end:,/"), min_size=1
) | st.text(min_size=1)


SAID = NASTY.filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(SAID, SAID)
def test_no_text_can_end_its_label(said: str, asked: str) -> None:
    steps = [
        {
            "id": f"a{said}".strip().replace("\n", " "),
            "agent": said,
            "prompt": "p",
            "condition": asked,
        },
        {"id": "c", "type": "recipe", "recipe": asked, "foreach": "{{l}}"},
    ]
    if not steps[0]["id"].isprintable() or len(said) > 190:
        steps[0]["id"] = "a"
    stage = {"name": "end", "approval": {"required": True, "prompt": asked}, "steps": steps}
    head = {"name": "r", "description": "d", "version": "1.0.0"}
    chart = mermaid(Recipe.from_text(json.dumps({**head, "stages": [stage]}), "r"))
    first, *lines = chart.splitlines()
    assert first == "flowchart TD"
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert len(lines) == 15


@pytest.mark.parametrize(
    "said, label",
    [
        ("<script>", "#60;script#62;"),
        ("&lt;", "#38;lt#59;"),
        ("#quot;", "#35;quot#59;"),
        ("1. one", "1#46; one"),
        ("- one", "#45; one"),
        ("a-b_c.d", "a-b_c.d"),
        ("ﬂ°", "#64258;#176;"),
    ],
)
def test_mermaid_syntax_is_escaped(said: str, label: str) -> None:
    lines = drawn(f"steps: [{{id: {json.dumps(said)}, type: bash, command: ls}}]")
    assert lines[2] == f'n1[/"{label}<br/>bash"/]'
