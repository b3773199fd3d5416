"""The planned work and the variables of steps: one row per behaviour of the language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from nb_agents import events as ev
from nb_agents.extensions.recipes.plan import plan
from nb_agents.options import ApprovalConfig
from tests.kit.recipes import (
    JSON_PROMPT_SUFFIX,
    AgentWork,
    CommandWork,
    Completed,
    Denied,
    Failed,
    GateWork,
    LoadWork,
    Recipe,
    check,
    fold,
)
from tests.kit.teams import TeamSpec
from tests.recipes.play import (
    Approve,
    Deny,
    Fail,
    Give,
    Order,
    Outcomes,
    Play,
    first,
    last,
    recipe,
)


@dataclass(frozen=True)
class Row:
    """A recipe with its outcomes, and the expected prompts and results.

    Attributes:
        says: The behaviour.
        body: The `steps:` or `stages:`; "@name" is an agent step with that id.
        happens: Outcomes by address.
        asked: The expected prompts in order, as (address, text), or only the addresses.
        gives: Expected outputs; others are not compared.
        fails: A part of the expected error.
        at: The expected failed units.
        skipped: Why units were skipped, by address.
        context: The initial values.
        calls: Recipes that it calls.
    """

    says: str
    body: str
    happens: Outcomes = field(default_factory=dict)
    asked: list[Any] | None = None
    gives: Mapping[str, Any] | None = None
    fails: str = ""
    at: tuple[str, ...] | None = None
    skipped: Mapping[str, str] | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)


def agent(id_: str, more: str = "", prompt: str = "do") -> str:
    """Return an agent step as one line of YAML."""
    more = f", {more}" if more else ""
    return f"{{id: {id_}, agent: x, prompt: '{prompt}'{more}}}"


def bash(id_: str, more: str = "", command: str = "do") -> str:
    """Return a bash step as one line of YAML."""
    more = f", {more}" if more else ""
    return f"{{id: {id_}, type: bash, command: '{command}'{more}}}"


def call(id_: str, path: str = "sub.yaml", more: str = "") -> str:
    """Return a step that calls a recipe, as one line of YAML."""
    more = f", {more}" if more else ""
    return f"{{id: {id_}, type: recipe, recipe: '{path}'{more}}}"


def steps(*each: str) -> str:
    """Return the steps of a recipe."""
    return "steps:\n" + "".join(f"  - {step}\n" for step in each)


def group(id_: str, loop: str, *each: str) -> str:
    """Return a loop with nested steps."""
    return f"{{id: {id_}, {loop}, steps: [{', '.join(each)}]}}"


def stages(*each: tuple[str, str, str]) -> str:
    """Return stages, each given as (name, more keys, steps)."""
    text = "stages:\n"
    for name, more, inner in each:
        more = f", {more}" if more else ""
        text += f"  - {{name: {name}, steps: [{inner}]{more}}}\n"
    return text


THREE = 'context: {xs: [a, b, c], none: [], text: "[1, 2]", map: {k: 1}, five: 5}\n'
GATE = "approval: {required: true, prompt: 'go {{name}}?'}"

ORDER = [
    Row(
        "steps run one after the other",
        steps(agent("a"), bash("b"), agent("c")),
        asked=["a", "b", "c"],
    ),
    Row(
        "a step sees the outputs before it",
        steps(agent("a", "output: x"), agent("b", prompt="see {{x}}")),
        {"a": "hello\n"},
        asked=[("a", "do"), ("b", "see hello")],
        gives={"x": "hello"},
    ),
    Row(
        "JSON as a whole becomes a value, and its keys can be named",
        steps(agent("a", "output: x"), agent("b", prompt="{{x.k}} {{x}}")),
        {"a": '{"k": [1, true]}'},
        asked=["a", ("b", '[1, true] {"k": [1, true]}')],
        gives={"x": {"k": [1, True]}},
    ),
    Row(
        "JSON within text stays text",
        steps(agent("a", "output: x")),
        {"a": 'so: {"k": 1}'},
        gives={"x": 'so: {"k": 1}'},
    ),
    Row(
        "parse_json asks for JSON and finds it within text",
        steps(agent("a", "output: x, parse_json: true")),
        {"a": 'so: {"k": 1}'},
        asked=[("a", "do" + JSON_PROMPT_SUFFIX)],
        gives={"x": {"k": 1}},
    ),
    Row(
        "JSON that a command prints is found, and its text is not asked for it",
        steps(bash("a", "output: x")),
        {"a": 'log\n[{"k": 1}]\n'},
        asked=[("a", "do")],
        gives={"x": [{"k": 1}]},
    ),
    Row(
        "a command's exit code is text, and other than 0 only where it may fail",
        steps(bash("a", "output: x, output_exit_code: c, on_error: continue")),
        {"a": Give("said", 3)},
        gives={"c": "3", "x": "said"},
    ),
    Row(
        "the mode stands before the prompt",
        steps(agent("a", "mode: PLAN")),
        asked=[("a", "MODE: PLAN\n\ndo")],
    ),
    Row(
        "the start values override the recipe's own",
        "context: {a: 1, b: 2}\n" + steps(agent("s", prompt="{{a}} {{b}}")),
        asked=[("s", "1 3")],
        context={"b": 3},
    ),
    Row(
        "steps see recipe, session, stage and step, whatever the context says",
        "context: {recipe: no, step: no, session: no, stage: no}\n"
        + stages(
            ("one", "", agent("a", prompt="{{recipe.name}} {{recipe.version}} {{session.id}}")),
            ("two", "", agent("b") + "," + agent("c", prompt="{{stage.name}}{{stage.index}}")),
            ("three", "", agent("d", prompt="{{step.id}} {{step.index}} {{step.stage}}")),
        ),
        asked=[("one/a", "r 1.0.0 s"), "two/b", ("two/c", "two1"), ("three/d", "d 0 three")],
    ),
    Row(
        "the start values are not outputs; outputs stand in the order in which they were set last",
        "context: {z: 1}\n"
        + steps(agent("a", "output: x"), agent("b", "output: y"))
        + "  - "
        + agent("c", "output: x")
        + "\n",
        gives={"y": "<b>", "x": "<c>"},
    ),
    Row(
        "a variable that is not defined fails the step, before anyone is asked",
        steps(agent("a", prompt="{{nope}}")),
        asked=[],
        fails="{{nope}} is not defined",
        at=("a",),
    ),
]

CONDITIONS = [
    Row(
        "a step whose condition is false is skipped, and says so",
        steps(
            agent("a", "output: x"),
            agent("b", "condition: \"{{x}} == 'no'\""),
            agent("c", prompt="{{_skipped_steps}}"),
        ),
        {"a": "yes"},
        asked=["a", ("c", '["b"]')],
        skipped={"b": "its condition is false: {{x}} == 'no'"},
    ),
    Row(
        "a condition may be of a step's own output, and is asked once",
        'context: {x: ""}\n' + steps(agent("a", "condition: 'not {{x}}', output: x")),
        asked=["a"],
        gives={"x": "<a>"},
    ),
    Row(
        "a condition that can't be told fails the step",
        steps(agent("a", "condition: '{{nope}}'")),
        asked=[],
        fails="condition: Condition `{{nope}}`",
        at=("a",),
    ),
    Row(
        "a loop's condition that can't be told fails it once, where it may fail",
        THREE
        + steps(
            agent("a", "condition: '{{nope}}', foreach: '{{xs}}', on_error: continue"), agent("b")
        ),
        asked=["b"],
    ),
    Row(
        "a step that depends on one whose failure is passed over runs",
        steps(agent("a", "on_error: continue"), agent("b", "depends_on: [a]")),
        {"a": Fail()},
        asked=["a", "b"],
    ),
    Row(
        "a step that depends on one whose condition was false runs",
        steps(agent("a", "condition: 'false'"), agent("b", "depends_on: [a]")),
        asked=["b"],
    ),
]

ERRORS = [
    Row(
        "a failure ends the recipe",
        steps(agent("a"), agent("b")),
        {"a": Fail("no luck")},
        asked=["a"],
        fails="no luck",
        at=("a",),
    ),
    Row(
        "on_error continue goes on with nothing as the output",
        steps(agent("a", "on_error: continue, output: x"), agent("b", "condition: 'not {{x}}'")),
        {"a": Fail()},
        asked=["a", "b"],
        gives={"x": None},
    ),
    Row(
        "on_error skip_remaining skips the rest, and the recipe completes",
        steps(agent("a", "on_error: skip_remaining, output: x"), agent("b")),
        {"a": Fail()},
        asked=["a"],
        gives={"x": None},
    ),
    Row(
        "skip_remaining skips the rest of its stage only; the gate is asked",
        stages(
            ("one", GATE, agent("a", "on_error: skip_remaining") + "," + agent("b")),
            ("two", "", agent("c")),
        ),
        {"one/a": Fail()},
        asked=["one/a", ("one", "go Ann?"), "two/c"],
        context={"name": "Ann"},
    ),
    Row(
        "a command with another exit code than 0 fails",
        steps(bash("a"), bash("b")),
        {"a": Give("", 2)},
        fails="exit code 2",
        at=("a",),
    ),
    Row(
        "a command that can't even run gives nothing under continue",
        steps(bash("a", "on_error: continue, output: x, output_exit_code: c"), agent("b")),
        {"a": Fail()},
        asked=["a", "b"],
        gives={"c": None, "x": None},
    ),
    Row(
        "on_error continue keeps a loop going, with nothing in that place",
        THREE + steps(agent("a", "foreach: '{{xs}}', collect: r, on_error: continue"), agent("b")),
        {"a[1]": Fail()},
        asked=["a[0]", "a[1]", "a[2]", "b"],
        gives={"r": ["<a[0]>", None, "<a[2]>"]},
    ),
    Row(
        "a failed iteration ends the loop and the recipe",
        THREE + steps(agent("a", "foreach: '{{xs}}', collect: r"), agent("b")),
        {"a[1]": Fail()},
        asked=["a[0]", "a[1]"],
        fails="broken",
        at=("a[1]",),
    ),
    Row(
        "a failed iteration under skip_remaining ends loop and stage, and the loop gives nothing",
        THREE
        + steps(agent("a", "foreach: '{{xs}}', collect: r, on_error: skip_remaining"), agent("b")),
        {"a[1]": Fail()},
        asked=["a[0]", "a[1]"],
        gives={"r": None},
    ),
    Row(
        "a step within a loop that skips the rest ends the loop",
        THREE
        + steps(
            group(
                "l",
                "foreach: '{{xs}}', collect: r",
                agent("a", "on_error: skip_remaining"),
                agent("b"),
            ),
            agent("c"),
        ),
        {"l[1]/a": Fail()},
        asked=["l[0]/a", "l[0]/b", "l[1]/a"],
        gives={"r": ["<l[0]/b>", None]},
    ),
    Row(
        "a step within a while loop that skips the rest ends the loop",
        steps(
            group("l", "while_condition: 'true'", agent("a", "on_error: skip_remaining")),
            agent("c"),
        ),
        {"l[1]/a": Fail()},
        asked=["l[0]/a", "l[1]/a"],
    ),
    Row(
        "a nested step that may fail gives nothing as its iteration's value",
        THREE
        + steps(
            group(
                "l", "foreach: '{{xs}}', collect: r", agent("a"), agent("b", "on_error: continue")
            )
        ),
        {"l[0]/b": Fail()},
        gives={"r": [None, "<l[1]/b>", "<l[2]/b>"]},
    ),
    Row(
        "what earlier steps of a failed iteration gave stays",
        THREE
        + steps(
            group(
                "l", "foreach: '{{xs}}', on_error: continue", agent("a", "output: o"), agent("b")
            ),
            agent("c", prompt="{{o}}"),
        ),
        {"l[2]/b": Fail()},
        asked=[
            *("l[0]/a", "l[0]/b", "l[1]/a", "l[1]/b", "l[2]/a", "l[2]/b"),
            ("c", "<l[2]/a>"),
        ],
    ),
    Row(
        "what earlier iterations of a failed loop gave stays",
        THREE
        + stages(
            ("one", "", agent("a", "foreach: '{{xs}}', output: o, on_error: skip_remaining")),
            ("two", "", agent("b", prompt="{{#if o}}{{o}}{{else}}nothing{{/if}}")),
        ),
        {"one/a[1]": Fail()},
        asked=["one/a[0]", "one/a[1]", ("two/b", "nothing")],
    ),
    Row(
        "a recipe that failed fails its step",
        steps(call("s", more="on_error: continue, output: o"), agent("b")),
        {"s/t": Fail()},
        asked=["s/t", "b"],
        gives={"o": None},
        calls={"sub.yaml": recipe(steps(agent("t")), "sub")},
    ),
    Row(
        "a recipe that can't be loaded fails its step",
        steps(call("s", "gone.yaml")),
        fails="no file gone.yaml",
        at=("s",),
    ),
]

FOREACH = [
    Row(
        "a loop that its limit ends, and not its condition, still gives what it gave",
        "context: {go: yes}\n"
        + steps(
            agent("a", "while_condition: '{{go}}', max_while_iterations: 2, collect: r"), agent("b")
        ),
        asked=["a[0]", "a[1]", "b"],
        gives={"r": ["<a[0]>", "<a[1]>"]},
    ),
    Row(
        "foreach runs once for each item, in order, and collects",
        THREE + steps(agent("a", "foreach: '{{xs}}', as: x, collect: r", prompt="on {{x}}")),
        asked=[("a[0]", "on a"), ("a[1]", "on b"), ("a[2]", "on c")],
        gives={"r": ["<a[0]>", "<a[1]>", "<a[2]>"]},
    ),
    Row(
        "without collect, a loop gives its last value",
        THREE + steps(agent("a", "foreach: '{{xs}}', output: o")),
        gives={"o": "<a[2]>"},
    ),
    Row(
        "without collect, a parallel loop gives its last value too",
        THREE + steps(agent("a", "foreach: '{{xs}}', output: o, parallel: true")),
        gives={"o": "<a[2]>"},
    ),
    Row(
        "an empty list gives an empty list, and the step counts as skipped",
        THREE
        + steps(
            agent("a", "foreach: '{{none}}', collect: r"), agent("b", prompt="{{_skipped_steps}}")
        ),
        asked=[("b", '["a"]')],
        gives={"r": []},
    ),
    Row(
        "an empty list is no fault of a parallel loop",
        THREE + steps(agent("a", "foreach: '{{none}}', collect: r, parallel: true")),
        asked=[],
        gives={"r": []},
    ),
    Row(
        "JSON text is a list, too",
        THREE + steps(agent("a", "foreach: '{{text}}'", prompt="{{item}}")),
        asked=[("a[0]", "1"), ("a[1]", "2")],
    ),
    Row(
        "a list inside a value can be named",
        steps(agent("a", "output: o"), agent("b", "foreach: '{{o.files}}'", prompt="{{item.n}}")),
        {"a": '{"files": [{"n": 1}, {"n": 2}]}'},
        asked=["a", ("b[0]", "1"), ("b[1]", "2")],
    ),
    Row(
        "what is no list fails the loop",
        THREE + steps(agent("a", "foreach: '{{map}}'")),
        fails="foreach needs a list, but {{map}} is a mapping.",
        at=("a",),
    ),
    Row(
        "a text that has no list says what gives one",
        steps(agent("a", "output: o"), agent("b", "foreach: '{{o}}'")),
        {"a": "one, two"},
        fails="{{o}} is text. A step with `parse_json: true` returns one.",
        at=("b",),
    ),
    Row(
        "what a failed step gave is no list",
        steps(agent("a", "on_error: continue, output: o"), agent("b", "foreach: '{{o}}'")),
        {"a": Fail()},
        fails="{{o}} is empty",
        at=("b",),
    ),
    Row(
        "max_iterations refuses longer lists",
        THREE + steps(agent("a", "foreach: '{{xs}}', max_iterations: 2")),
        asked=[],
        fails="{{xs}} has 3 items, but max_iterations is 2.",
    ),
    Row(
        "ten thousand items are refused where nothing allows them",
        f"context: {{xs: {list(range(10_000))}}}\n" + steps(agent("a", "foreach: '{{xs}}'")),
        asked=[],
        fails="{{xs}} has 10000 items, but max_iterations is 100.",
        at=("a",),
    ),
    Row(
        "one item more than max_iterations is refused, however many they are",
        f"context: {{xs: {list(range(10_001))}}}\n"
        + steps(agent("a", "foreach: '{{xs}}', max_iterations: 10000")),
        asked=[],
        fails="{{xs}} has 10001 items, but max_iterations is 10000.",
    ),
    Row(
        "a million is a number, too",
        steps(agent("a", "foreach: '{{xs}}', max_iterations: 1000000")),
        asked=[],
        fails="{{xs}} has 1000001 items, but max_iterations is 1000000.",
        context={"xs": [0] * 1_000_001},
    ),
    Row(
        "the loop variable is gone afterwards",
        THREE + steps(agent("a", "foreach: '{{xs}}'"), agent("b", prompt="{{item}}")),
        fails="{{item}} is not defined",
        at=("b",),
    ),
    Row(
        "a loop variable hides another one for a while, and nested loops may share its name",
        "context: {xs: [1, 2], item: mine}\n"
        + steps(
            group(
                "l",
                "foreach: '{{xs}}'",
                agent("i", "foreach: '{{xs}}'", prompt="i{{item}}"),
                agent("o", prompt="o{{item}}"),
            ),
            agent("b", prompt="{{item}}"),
        ),
        asked=[
            *(("l[0]/i[0]", "i1"), ("l[0]/i[1]", "i2"), ("l[0]/o", "o1")),
            *(("l[1]/i[0]", "i1"), ("l[1]/i[1]", "i2"), ("l[1]/o", "o2")),
            ("b", "mine"),
        ],
    ),
    Row(
        "a loop variable may hide what the run sets, in nested steps too",
        THREE
        + stages(
            (
                "s",
                "",
                agent("a", "foreach: '{{xs}}', as: recipe", prompt="{{recipe}}")
                + ","
                + group("g", "foreach: '{{xs}}', as: step", agent("b", prompt="{{step}}"))
                + ","
                + agent("c", "foreach: '{{none}}', as: stage", prompt="{{stage}}")
                + ","
                + agent("d", prompt="{{recipe.name}} {{step.id}} {{step.stage}} {{stage.name}}"),
            )
        ),
        asked=[
            *(("s/a[0]", "a"), ("s/a[1]", "b"), ("s/a[2]", "c")),
            *(("s/g[0]/b", "a"), ("s/g[1]/b", "b"), ("s/g[2]/b", "c")),
            ("s/d", "r d s s"),
        ],
    ),
    Row(
        "an output may be called stage, and the steps after it still know theirs",
        stages(
            ("s", "", agent("a", "output: stage") + "," + agent("b", prompt="{{step.stage}}")),
        ),
        asked=["s/a", ("s/b", "s")],
    ),
    Row(
        "break_when ends a loop over items after the one where it holds",
        THREE
        + steps(
            agent("a", "foreach: '{{xs}}', output: o, collect: r, break_when: '{{item}} == b'")
        ),
        asked=["a[0]", "a[1]"],
        gives={"r": ["<a[0]>", "<a[1]>"], "o": "<a[1]>"},
    ),
    Row(
        "the loop variable goes with a failed loop, too",
        THREE
        + stages(
            ("one", "", agent("a", "foreach: '{{xs}}', on_error: skip_remaining")),
            ("two", "", agent("b", prompt="{{item}}")),
        ),
        {"one/a[0]": Fail()},
        fails="{{item}} is not defined",
    ),
    Row(
        "one iteration sees what the one before it gave",
        "context: {xs: [1, 2], o: start}\n"
        + steps(agent("a", "foreach: '{{xs}}', output: o", prompt="{{o}}")),
        asked=[("a[0]", "start"), ("a[1]", "<a[0]>")],
    ),
    Row(
        "an iteration's value is its last step's that ran",
        THREE
        + steps(
            group(
                "l",
                "foreach: '{{xs}}', collect: r",
                agent("a"),
                agent("b", "condition: \"{{item}} == 'b'\""),
            )
        ),
        gives={"r": ["<l[0]/a>", "<l[1]/b>", "<l[2]/a>"]},
    ),
    Row(
        "the value of a loop inside is its list when it collects, else its last value",
        "context: {xs: [1, 2]}\n"
        + steps(
            group(
                "l", "foreach: '{{xs}}', collect: r", agent("a", "foreach: '{{xs}}', collect: q")
            ),
            group("m", "foreach: '{{xs}}', collect: s", agent("b", "foreach: '{{xs}}'")),
        ),
        gives={
            "r": [["<l[0]/a[0]>", "<l[0]/a[1]>"], ["<l[1]/a[0]>", "<l[1]/a[1]>"]],
            "s": ["<m[0]/b[1]>", "<m[1]/b[1]>"],
        },
    ),
    Row(
        "parallel iterations don't see each other, and neither does what follows",
        "context: {xs: [1, 2], o: start}\n"
        + steps(
            group(
                "l",
                "foreach: '{{xs}}', parallel: true, collect: r",
                agent("a", "output: o", prompt="{{o}}"),
                agent("b", prompt="{{o}} {{_parallel_group_id}}"),
            ),
            agent("c", prompt="{{o}}"),
        ),
        asked=[
            *(("l[0]/a", "start"), ("l[1]/a", "start")),
            *(("l[0]/b", "<l[0]/a> l"), ("l[1]/b", "<l[1]/a> l"), ("c", "start")),
        ],
        gives={"r": ["<l[0]/b>", "<l[1]/b>"]},
    ),
    Row(
        "parallel iterations that may fail give nothing",
        THREE
        + steps(agent("a", "foreach: '{{xs}}', parallel: true, collect: r, on_error: continue")),
        {"a[0]": Fail(), "a[2]": Fail()},
        gives={"r": [None, "<a[1]>", None]},
    ),
    Row(
        "all parallel iterations end before a failure of some fails the loop",
        THREE + steps(agent("a", "foreach: '{{xs}}', parallel: true"), agent("b")),
        {"a[0]": Fail("one"), "a[2]": Fail("two")},
        asked=["a[0]", "a[1]", "a[2]"],
        fails="2 of 3 iterations failed: one; two",
        at=("a[0]", "a[2]"),
    ),
    Row(
        "after a failure no further parallel iteration begins",
        "context: {xs: [1, 2, 3, 4, 5]}\n" + steps(agent("a", "foreach: '{{xs}}', parallel: 2")),
        {"a[0]": Fail()},
        asked=["a[0]", "a[1]"],
        fails="1 of 5 iterations failed: broken",
    ),
    Row(
        "a parallel iteration that skips the rest lets the others end, and ends its stage",
        THREE
        + steps(
            group(
                "l",
                "foreach: '{{xs}}', parallel: 2, collect: r",
                agent("a", "on_error: skip_remaining"),
                agent("b"),
            ),
            agent("c"),
        ),
        {"l[0]/a": Fail()},
        asked=["l[0]/a", "l[1]/a", "l[1]/b"],
        gives={"r": [None, "<l[1]/b>", None]},
    ),
    Row(
        "a template says how many run at the same time",
        "context: {xs: [1, 2, 3], n: '2', b: true}\n"
        + steps(
            agent("a", "foreach: '{{xs}}', parallel: '{{n}}'"),
            agent("b", "foreach: '{{xs}}', parallel: '{{b}}'"),
        ),
        asked=[f"{name}[{i}]" for name in "ab" for i in range(3)],
    ),
    Row(
        "a template that says no number fails the loop",
        THREE + steps(agent("a", "foreach: '{{xs}}', parallel: '{{text}}'")),
        asked=[],
        fails="'[1, 2]' is not a whole number >= 1",
        at=("a",),
    ),
]

WHILE = [
    Row(
        "while goes on until its condition is false",
        "context: {state: go}\n"
        + steps(agent("a", "while_condition: \"{{state}} != 'done'\", output: state")),
        {"a[1]": "done"},
        asked=["a[0]", "a[1]"],
        gives={"state": "done"},
    ),
    Row(
        "a condition that is false at once runs nothing",
        steps(agent("a", "while_condition: \"{{recipe.name}} == 'no'\", collect: c")),
        asked=[],
        gives={"c": []},
    ),
    Row(
        "while ends at max_while_iterations",
        steps(agent("a", "while_condition: 'true', max_while_iterations: 3, collect: c")),
        asked=["a[0]", "a[1]", "a[2]"],
        gives={"c": ["<a[0]>", "<a[1]>", "<a[2]>"]},
    ),
    Row(
        "a template says how often at most",
        "context: {n: 2}\n"
        + steps(agent("a", "while_condition: 'true', max_while_iterations: '{{n}}'")),
        asked=["a[0]", "a[1]"],
    ),
    Row(
        "while ends after the iteration in which break_when holds",
        steps(agent("a", "while_condition: 'true', break_when: \"{{o}} == 'stop'\", output: o")),
        {"a[2]": "stop"},
        asked=["a[0]", "a[1]", "a[2]"],
    ),
    Row(
        "update_context is set after each iteration, with types",
        "context: {acc: [], xs: 0}\n"
        + steps(
            agent(
                "a",
                "while_condition: 'true', max_while_iterations: 2, output: o, "
                "update_context: {acc: '{{o}}', note: 'was {{o}}'}",
                prompt="{{acc}}",
            ),
            agent("b", prompt="{{note}} {{acc}}"),
        ),
        {"a[0]": '{"n": 1}', "a[1]": '{"n": 2}'},
        asked=[("a[0]", "[]"), ("a[1]", '{"n": 1}'), ("b", 'was {"n": 2} {"n": 2}')],
        gives={"acc": {"n": 2}, "note": 'was {"n": 2}'},
    ),
    Row(
        "steps see the loop's index; a loop inside has its own, and both are gone afterwards",
        steps(
            group(
                "l",
                "while_condition: '{{_loop_index}} < 2'",
                agent("i", "while_condition: '{{_loop_index}} < 1'", prompt="i{{_loop_index}}"),
                agent("o", prompt="{{_loop_index}} {{_loop_iteration}}"),
            ),
            agent("b", prompt="{{_loop_index}}"),
        ),
        asked=[
            *(("l[0]/i[0]", "i0"), ("l[0]/o", "0 1")),
            *(("l[1]/i[0]", "i0"), ("l[1]/o", "1 2")),
        ],
        fails="{{_loop_index}} is not defined",
        at=("b",),
    ),
    Row(
        "the body of a while loop is called while_steps in Amplifier's reference",
        "context: {n: 0}\n"
        + steps(
            "{id: l, while_condition: '{{n}} < 2', update_context: {n: '{{_loop_iteration}}'}, "
            f"collect: c, while_steps: [{agent('i')}, {agent('j', prompt='{{n}}')}]}}"
        ),
        asked=[("l[0]/i", "do"), ("l[0]/j", "0"), ("l[1]/i", "do"), ("l[1]/j", "1")],
        gives={"c": ["<l[0]/j>", "<l[1]/j>"]},
    ),
    Row(
        "a failing iteration gives nothing where it may, and the loop goes on",
        "context: {o: x}\n"
        + steps(
            agent(
                "a",
                "while_condition: 'true', max_while_iterations: 3, on_error: continue, "
                "output: o, collect: c",
                prompt="[{{o}}]",
            )
        ),
        {"a[0]": Fail()},
        asked=[("a[0]", "[x]"), ("a[1]", "[]"), ("a[2]", "[<a[1]>]")],
        gives={"c": [None, "<a[1]>", "<a[2]>"], "o": "<a[2]>"},
    ),
    Row(
        "a break_when that can't be told fails the loop",
        steps(agent("a", "while_condition: 'true', break_when: '{{nope}}'")),
        asked=["a[0]"],
        fails="break_when: Condition `{{nope}}`",
        at=("a",),
    ),
]

RETRY = [
    Row(
        "a step is tried as often as it says",
        steps(agent("a", "retry: {max_attempts: 3}, output: o")),
        {"a": [Fail(), Fail(early=True), "well"]},
        asked=["a", "a", "a"],
        gives={"o": "well"},
    ),
    Row(
        "after the last attempt it has failed",
        steps(agent("a", "retry: {max_attempts: 2}")),
        {"a": [Fail("one"), Fail("two")]},
        asked=["a", "a"],
        fails="two",
        at=("a",),
    ),
    Row(
        "an attempt that fails before it has begun counts",
        steps(agent("a")),
        {"a": Fail("no key", early=True)},
        asked=["a"],
        fails="no key",
    ),
    Row(
        "commands are tried again, too; the last result is kept where it may fail",
        steps(bash("a", "retry: {max_attempts: 2}, on_error: continue, output: o")),
        {"a": [Give("no", 1), Give("no again", 1)]},
        asked=["a", "a"],
        gives={"o": "no again"},
    ),
    Row(
        "a template says how often",
        "context: {n: 2}\n" + steps(agent("a", "retry: {max_attempts: '{{n}}'}")),
        {"a": Fail()},
        asked=["a", "a"],
        fails="broken",
    ),
]

STAGES = [
    Row(
        "stages run one after the other, each gate after its steps",
        stages(
            ("one", GATE, agent("a", "output: name")),
            ("two", "", agent("b", prompt="[{{_approval_message}}]")),
        ),
        {"one/a": "Ann"},
        asked=["one/a", ("one", "go Ann?"), ("two/b", "[]")],
    ),
    Row(
        "approval_required and approval_message make a gate, too",
        stages(("one", "approval_required: true, approval_message: 'go?'", agent("a"))),
        asked=["one/a", ("one", "go?")],
    ),
    Row(
        "a stage whose condition is false is skipped with its gate",
        stages(("one", GATE + ", condition: 'false'", agent("a")), ("two", "", agent("b"))),
        asked=["two/b"],
        skipped={"one": "its condition is false: false"},
    ),
    Row(
        "a stage's condition that can't be told ends the recipe",
        stages(("one", "condition: '{{nope}}'", agent("a"))),
        asked=[],
        fails="{{nope}} is not defined",
        at=("one",),
    ),
    Row(
        "nobody is asked when all of auto_approve_if hold",
        stages(
            (
                "one",
                GATE + ", auto_approve_if: ['true', \"{{o}} == 'fine'\"]",
                agent("a", "output: o"),
            ),
            ("two", "", agent("b")),
        ),
        {"one/a": "fine"},
        asked=["one/a", "two/b"],
    ),
    Row(
        "a person is asked when one of auto_approve_if does not hold",
        stages(("one", GATE + ", auto_approve_if: ['true', 'false']", agent("a"))),
        asked=["one/a", ("one", "go Ann?")],
        context={"name": "Ann"},
    ),
    Row(
        "a prompt that can't be filled in fails its stage, and nobody is asked",
        stages(("one", GATE, agent("a"))),
        asked=["one/a"],
        fails="{{name}} is not defined",
        at=("one",),
    ),
]

SUB = recipe(
    "context: {greet: hi, who: nobody}\n"
    + steps(agent("t", "output: said", prompt="{{greet}} {{who}}"), agent("u", "output: more")),
    "sub",
)
STAGED_SUB = recipe(
    stages(
        ("x", GATE.replace("{{name}}", "sub"), agent("t")),
        ("y", "", agent("u", prompt="[{{_approval_message}}]")),
    ),
    "sub",
)
SELF = recipe(steps(agent("a"), call("s", "self.yaml")), "self")

SUB_RECIPES = [
    Row(
        "a recipe sees its own context with what the step gives, and gives that and its outputs",
        "context: {secret: 1}\n"
        + steps(
            call("s", more="context: {who: '{{secret}}'}, output: o"), agent("b", prompt="{{o}}")
        ),
        asked=[
            *(("s/t", "hi 1"), "s/u"),
            ("b", '{"greet": "hi", "said": "<s/t>", "more": "<s/u>"}'),
        ],
        gives={"o": {"greet": "hi", "said": "<s/t>", "more": "<s/u>"}},
        calls={"sub.yaml": SUB},
    ),
    Row(
        "it sees nothing else, and leaves nothing else",
        "context: {secret: 1}\n" + steps(call("s"), agent("b", prompt="{{said}}")),
        asked=["s/t"],
        fails="{{secret}} is not defined",
        calls={
            "sub.yaml": recipe(steps(agent("t", "output: said"), agent("u", prompt="{{secret}}")))
        },
    ),
    Row(
        "values that it is given keep their types",
        THREE + steps(call("s", more="context: {list: '{{xs}}', text: 'n{{five}}'}")),
        asked=[("s/t[0]", "a n5"), ("s/t[1]", "b n5"), ("s/t[2]", "c n5")],
        calls={
            "sub.yaml": recipe(steps(agent("t", "foreach: '{{list}}'", prompt="{{item}} {{text}}")))
        },
    ),
    Row(
        "a path may be a template",
        "context: {n: sub}\n" + steps(call("s", "{{n}}.yaml")),
        asked=["s/t", "s/u"],
        calls={"sub.yaml": SUB},
    ),
    Row(
        "the gates of a recipe inside are asked, and what was said stays inside",
        steps(call("s"), agent("b", prompt="[{{_approval_message}}]")),
        asked=["s/x/t", ("s/x", "go sub?"), ("s/y/u", "[]"), ("b", "[]")],
        calls={"sub.yaml": STAGED_SUB},
    ),
    Row(
        "a recipe may be called in a loop",
        THREE + steps(call("s", more="foreach: '{{xs}}', context: {who: '{{item}}'}, collect: r")),
        asked=[f"s[{i}]/{step}" for i in range(3) for step in "tu"],
        gives={
            "r": [{"greet": "hi", "said": f"<s[{i}]/t>", "more": f"<s[{i}]/u>"} for i in range(3)]
        },
        calls={"sub.yaml": SUB},
    ),
    Row(
        "recipes may call each other as deep as max_depth says",
        "recursion: {max_depth: 3}\n" + steps(call("s", "self.yaml")),
        asked=["s/a", "s/s/a"],
        fails="Recipe calls are nested deeper than 3: r → self → self.",
        at=("s/s/s",),
        calls={"self.yaml": SELF},
    ),
    Row(
        "the step's own recursion limits come before the recipe's",
        steps(call("s", "self.yaml", "recursion: {max_depth: 2}")),
        asked=["s/a"],
        fails="deeper than 2",
        calls={"self.yaml": SELF},
    ),
    Row(
        "a parallel loop that would go beyond max_total_steps asks nobody",
        "recursion: {max_total_steps: 3}\n"
        + THREE
        + steps(agent("a"), agent("b", "foreach: '{{xs}}', parallel: 2"), agent("c")),
        asked=["a"],
        fails="1 agent steps and 3 in parallel exceed the limit of 3 (max_total_steps).",
        at=("b",),
    ),
    Row(
        "exactly max_total_steps agent steps run in the whole tree; commands don't count",
        "recursion: {max_total_steps: 3}\n"
        + steps(agent("a"), bash("b"), call("s"), bash("c"), agent("d")),
        asked=["a", "b", "s/t", "s/u", "c"],
        fails="The limit of 3 agent steps is reached",
        at=("d",),
        calls={"sub.yaml": SUB},
    ),
    Row(
        "the iterations of a parallel loop count, those of a sequential one too",
        "recursion: {max_total_steps: 5}\n"
        + THREE
        + steps(agent("a", "foreach: '{{xs}}'"), agent("b", "foreach: '{{xs}}', parallel: true")),
        asked=["a[0]", "a[1]", "a[2]"],
        fails="3 agent steps and 3 in parallel exceed the limit of 5 (max_total_steps).",
        at=("b",),
    ),
    Row(
        "a retry is no further step",
        "recursion: {max_total_steps: 2}\n"
        + steps(agent("a", "retry: {max_attempts: 3}"), agent("b")),
        {"a": [Fail(), Fail(early=True), "well"]},
        asked=["a", "a", "a", "b"],
    ),
]

ALL = {
    row.says: row
    for rows in (ORDER, CONDITIONS, ERRORS, FOREACH, WHILE, RETRY, STAGES, SUB_RECIPES)
    for row in rows
}


@pytest.mark.parametrize("row", ALL.values(), ids=ALL)
def test_each_row_of_the_table_behaves_as_described(row: Row) -> None:
    play = Play(recipe(row.body), row.happens, row.calls, row.context).run()

    if row.fails:
        assert isinstance(play.ended, Failed), play.ended
        assert row.fails in play.ended.error
        assert row.at in (None, play.ended.addresses)
    else:
        outputs = play.outputs
        assert {name: outputs[name] for name in row.gives or {}} == (row.gives or {})
        assert [name for name in outputs if name in (row.gives or {})] == list(row.gives or {})
    if row.asked is not None:
        shown = [
            a if isinstance(e, tuple) else a[0] for a, e in zip(play.asked, row.asked, strict=False)
        ]
        assert (shown, play.addresses[len(shown) :]) == (row.asked, [])
    told = {a: unit.why for a, unit in play.progress.units.items() if unit.outcome == "skipped"}
    assert row.skipped is None or told == row.skipped


def _work(play: Play) -> list[AgentWork | CommandWork]:
    return [work for work in play.done if isinstance(work, AgentWork | CommandWork)]


@pytest.mark.parametrize(
    "retry, delays",
    [
        ("max_attempts: 5", [0, 5, 10, 20, 40]),
        ("max_attempts: 4, backoff: linear, initial_delay: 2", [0, 2, 2, 2]),
        ("max_attempts: 4, initial_delay: 3, max_delay: 7", [0, 3, 6, 7]),
        ("max_attempts: 3, initial_delay: '{{d}}', max_delay: '{{m}}'", [0, 0.5, 0.75]),
        ("max_attempts: 3, initial_delay: 0", [0, 0, 0]),
    ],
)
def test_retry_delays_double_or_stay_and_are_limited(retry: str, delays: list[float]) -> None:
    play = Play(
        recipe(steps(agent("a", f"retry: {{{retry}}}"))),
        {"a": Fail()},
        context={"d": 0.5, "m": "0.75"},
    ).run()

    assert [work.delay_s for work in _work(play)] == delays
    assert [work.attempt for work in _work(play)] == list(range(1, len(delays) + 1))


def test_thousands_of_attempts_have_a_finite_delay() -> None:
    text = recipe(steps(agent("a", "retry: {max_attempts: 9000, initial_delay: 0.5}")))
    progress = Play(text).run(cut=2).progress
    failed = ev.StepFailed(step="a", attempt=8000, error="broken")

    (work,) = plan(fold([failed], progress)).work

    assert isinstance(work, AgentWork)
    assert work.delay_s == 300


def test_templates_set_a_commands_directory_variables_and_timeout() -> None:
    more = "cwd: 'd/{{x}}', env: {A: '{{x}}', B: 5}, timeout: '{{t}}', on_error: continue"
    play = Play(recipe(steps(bash("a", more))), context={"x": "v", "t": 7}).run()

    (work,) = _work(play)
    assert isinstance(work, CommandWork)
    assert (work.cwd, work.env, work.timeout_s) == ("d/v", {"A": "v", "B": "5"}, 7)
    assert work.tolerates


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (
            "é" * 65_536,
            "BIG in env has 131072 bytes, but the limit is 131067 bytes.",
        ),
        ("a\0b", "BIG in env contains a NUL, which can't be passed to a program."),
    ],
)
def test_variable_that_cannot_be_passed_to_a_program_is_reported(value: str, error: str) -> None:
    step = bash("b", "env: {BIG: '{{big}}'}, retry: {max_attempts: 3}")
    play = Play(recipe(steps(step)), context={"big": value}).run()
    assert isinstance(play.ended, Failed)
    assert play.ended.error.startswith(f"/recipes/main.yaml:5:5: {error}")
    most = Play(recipe(steps(step)), context={"big": "x" * 131_067}).run()
    assert most.addresses == ["b"]


def test_called_recipe_is_loaded_relative_to_its_caller() -> None:
    inner = recipe(steps(call("deep", "deep.yaml")))
    deep = recipe(steps(agent("a")))
    play = Play(
        recipe(steps(call("s", "sub/inner.yaml"))),
        recipes={"sub/inner.yaml": inner, "deep.yaml": deep},
    ).run()

    loads = [work for work in play.done if isinstance(work, LoadWork)]
    assert [(str(work.caller_path), work.path) for work in loads] == [
        ("/recipes/main.yaml", "sub/inner.yaml"),
        ("/recipes/sub/inner.yaml", "deep.yaml"),
    ]


def test_missing_required_value_fails_the_calling_step() -> None:
    sub = recipe("context: {who: {type: string, required: true}}\n" + steps(agent("t")), "sub")
    play = Play(recipe(steps(call("s"))), recipes={"sub.yaml": sub}).run()

    assert isinstance(play.ended, Failed) and play.ended.addresses == ("s",)
    assert play.ended.error == _at(play.text, "'sub.yaml'", "sub requires 'who' in its context.")


def _at(text: str, part: str, error: str) -> str:
    """Return an error message with the position of a part of a recipe's text."""
    before = text[: text.index(part)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f"/recipes/main.yaml:{line}:{column}: {error}"


def test_values_can_name_the_agent_and_model_of_a_step() -> None:
    text = recipe(
        "context: {who: ada, where: openai, which: gpt-5}\n"
        + steps(
            "{id: a, agent: '{{who}}', prompt: p, provider: '{{where}}', model: '{{which}}'}",
            "{id: b, agent: x, prompt: p, provider_preferences: "
            "[{provider: '{{where}}', model: 'o*', required: true}]}",
        )
    )
    one, two = (work.step for work in Play(text).run().done if isinstance(work, AgentWork))
    assert (one.agent, one.provider, one.model) == ("ada", "openai", "gpt-5")
    (wish,) = two.provider_preferences
    assert (wish.provider, wish.model, wish.required) == ("openai", "o*", True)
    team = TeamSpec.model_validate({"agents": [{"id": "x", "backend": {"type": "demo"}}]})
    assert check(Recipe.from_text(text, "r.yaml"), team).faults == ()


def test_too_deep_recursion_is_reported_with_the_calls_position() -> None:
    text = recipe(steps(call("s", "self.yaml", "recursion: {max_depth: 1}")))
    play = Play(text, recipes={"self.yaml": SELF}).run()

    assert isinstance(play.ended, Failed)
    told = "Recipe calls are nested deeper than 1: r → self."
    assert play.ended.error == _at(text, "'self.yaml'", told)


def test_parallel_limits_concurrent_iterations() -> None:
    text = recipe(
        "context: {xs: [1, 2, 3, 4, 5]}\n" + steps(agent("a", "foreach: '{{xs}}', parallel: 2"))
    )
    most = 0

    def order(addresses: Any) -> str:
        nonlocal most
        most = max(most, len(addresses))
        return str(addresses[-1])

    play = Play(text, order=order).run()

    assert sorted(play.addresses) == [f"a[{i}]" for i in range(5)]
    assert most == 2


def test_results_are_in_the_order_of_the_items() -> None:
    play = Play(
        recipe(THREE + steps(agent("a", "foreach: '{{xs}}', parallel: true, collect: r"))),
        order=last,
    ).run()

    assert play.outputs["r"] == ["<a[0]>", "<a[1]>", "<a[2]>"]


def test_gate_has_its_timeout_and_default() -> None:
    gate = "approval: {required: true, prompt: go, timeout: '{{t}}', default: approve}"
    play = Play(recipe(stages(("one", gate, agent("a")))), context={"t": 60}).run()

    gates = [work for work in play.done if isinstance(work, GateWork)]
    assert gates == [GateWork(address="one", timeout_s=60, default="approve")]
    (asked,) = [e for e in play.journal if isinstance(e, ev.ApprovalAsked)]
    assert (asked.timeout_s, asked.default) == (60, "approve")


@pytest.mark.parametrize(
    "more, given, timeout_s, default",
    [
        ("", ApprovalConfig(), 0, "deny"),
        ("", ApprovalConfig(timeout=9), 9, "deny"),
        ("", ApprovalConfig(timeout=9, auto_approve_on_timeout=True), 9, "approve"),
        ("timeout: 0", ApprovalConfig(timeout=9, auto_approve_on_timeout=True), 9, "approve"),
        ("default: deny", ApprovalConfig(timeout=9, auto_approve_on_timeout=True), 9, "deny"),
        ("default: approve", ApprovalConfig(timeout=9), 9, "approve"),
        ("default: approve", ApprovalConfig(), 0, "approve"),
        ("timeout: 5", ApprovalConfig(timeout=9, auto_approve_on_timeout=True), 5, "deny"),
        ("timeout: '{{t}}', default: approve", ApprovalConfig(timeout=9), 5, "approve"),
    ],
)
def test_gate_without_settings_uses_those_of_the_run(
    more: str, given: ApprovalConfig, timeout_s: float, default: str
) -> None:
    gate = f"approval: {{{', '.join(filter(None, ['required: true, prompt: go', more]))}}}"
    play = Play(recipe(stages(("one", gate, agent("a")))), context={"t": 5}).run(cut=6)

    now = plan(play.progress, approval=given)

    (asked,) = [e for e in now.events if isinstance(e, ev.ApprovalAsked)]
    (work,) = now.work
    assert isinstance(work, GateWork)
    assert (asked.timeout_s, asked.default) == (work.timeout_s, work.default)
    assert (work.timeout_s, work.default) == (timeout_s, default)


def test_approval_message_is_visible_to_later_steps() -> None:
    body = stages(
        ("one", GATE, agent("a")), ("two", "", agent("b", prompt="{{_approval_message}}"))
    )
    play = Play(recipe(body), {"one": Approve("with care")}, context={"name": "x"}).run()

    assert play.asked[-1] == ("two/b", "with care")


def test_denied_gate_ends_the_recipe_and_asks_again_after_a_resume() -> None:
    body = stages(("one", GATE, agent("a")), ("two", "", agent("b")))
    play = Play(recipe(body), {"one": Deny("not yet")}, context={"name": "x"}).run()
    assert play.ended == Denied("one", "not yet")
    assert play.addresses == ["one/a", "one"]

    again = play.resume({}).run()

    assert again.addresses == ["one", "two/b"]
    assert again.outputs == {}


def test_denied_gate_of_a_called_recipe_ends_everything() -> None:
    play = Play(
        recipe(steps(call("s", more="on_error: continue"), agent("b"))),
        {"s/x": Deny()},
        {"sub.yaml": STAGED_SUB},
    ).run()

    assert play.ended == Denied("s/x", "")
    assert play.addresses == ["s/x/t", "s/x"]


def test_resume_retries_the_failed_step_and_keeps_finished_ones() -> None:
    text = recipe(steps(agent("a", "output: x"), agent("b", "retry: {max_attempts: 2}", "{{x}}")))
    play = Play(text, {"b": Fail()}).run()
    assert isinstance(play.ended, Failed)

    again = play.resume({"b": [Fail(), "well"]}).run()

    assert again.asked == [("b", "<a>"), ("b", "<a>")]
    assert again.outputs == {"x": "<a>"}


def test_tolerated_failure_is_kept_after_a_resume() -> None:
    text = recipe(steps(agent("a", "on_error: continue, output: x"), agent("b")))
    play = Play(text, {"a": Fail(), "b": Fail()}).run()

    again = play.resume({}).run()

    assert again.addresses == ["b"]
    assert again.outputs == {"x": None}


@pytest.mark.parametrize("before", ["foreach: '{{xs}}', collect: x", "output: x"])
def test_former_loop_or_call_begins_again_as_a_command_in_a_changed_recipe(
    before: str,
) -> None:
    old = bash("a", before) if "foreach" in before else call("a", more=before)
    sub = {"sub.yaml": recipe(steps(bash("t", "output: r")), "sub")}
    play = Play(recipe(THREE + steps(old, bash("b"))), {"b": Fail()}, sub).run()
    assert isinstance(play.ended, Failed)

    changed = recipe(THREE + steps(bash("a", "output: x"), bash("b", command="see {{x}}")))
    again = Play(changed, {"a": "new"}, sub, journal=play.journal).run()

    assert again.addresses == ["a", "b"]
    assert again.outputs == {"x": "new"}


def test_failed_iteration_is_retried_with_the_interrupted_ones() -> None:
    text = recipe(THREE + steps(agent("a", "foreach: '{{xs}}', parallel: true, collect: r")))
    turns = count()
    play = Play(text, {"a[0]": Fail()}, order=lambda at: at[next(turns) % len(at)])
    events = play.run().journal
    failed = next(i for i, e in enumerate(events) if getattr(e, "outcome", "") == "failed")
    cut = Play(text, journal=events[: failed + 1])
    assert {cut.progress.units[f"a[{i}]"].outcome for i in (1, 2)} == {""}

    again = cut.run()

    assert sorted(again.addresses) == ["a[0]", "a[1]", "a[2]"]
    assert again.outputs["r"] == ["<a[0]>", "<a[1]>", "<a[2]>"]
    assert _began(again, "a") == 1


@pytest.mark.parametrize("ends", [first, last], ids=["first", "last"])
def test_failed_iteration_is_retried_although_another_skipped_the_rest(
    ends: Order,
) -> None:
    body = group(
        "l",
        "foreach: '{{xs}}', parallel: 2, collect: r",
        agent("a", "on_error: skip_remaining"),
        agent("b"),
    )
    outcomes = {"l[0]/a": Fail(), "l[1]/b": Fail()}
    play = Play(recipe(THREE + steps(body)), outcomes, order=ends).run()
    assert isinstance(play.ended, Failed) and play.ended.addresses == ("l[1]/b",)

    again = play.resume({}).run()

    assert again.addresses == ["l[1]/b"]
    assert again.outputs["r"] == [None, "<l[1]/b>", None]


def test_containers_of_a_failed_step_fail_and_begin_again_with_a_resume() -> None:
    loop = group("l", "while_condition: 'true', max_while_iterations: 1", call("s"))
    sub = recipe(stages(("in", "", agent("t"))), "sub")
    holders = ["one", "one/l", "one/l[0]", "one/l[0]/s", "one/l[0]/s/in"]
    play = Play(
        recipe(stages(("one", "", agent("a") + ", " + loop))),
        {"one/l[0]/s/in/t": Fail()},
        {"sub.yaml": sub},
    ).run()
    assert isinstance(play.ended, Failed)
    assert play.ended.addresses == ("one/l[0]/s/in/t",)
    assert {play.progress.units[each].outcome for each in holders} == {"failed"}

    again = play.resume({}).run()

    assert again.addresses == ["one/l[0]/s/in/t"]
    assert {again.progress.units[each].outcome for each in holders} == {"ok"}
    assert [_began(again, each) for each in holders] == [2] * 5


def _began(play: Play, address: str) -> int:
    return sum(isinstance(e, ev.StepStarted) and e.step == address for e in play.journal)


def test_count_of_agent_steps_continues_after_a_resume() -> None:
    text = recipe("recursion: {max_total_steps: 2}\n" + steps(agent("a"), agent("b"), agent("c")))
    play = Play(text, {"b": Fail()}).run()

    again = play.resume({}).run()

    assert again.addresses == ["b"]
    told = "The limit of 2 agent steps is reached (max_total_steps)."
    assert again.ended == Failed(("c",), _at(text, "{id: c", told))
    assert again.resume({}).run().addresses == []


def test_step_waits_while_running_steps_may_reach_the_limit() -> None:
    text = recipe(
        "recursion: {max_total_steps: 3}\ncontext: {xs: [1, 2]}\n"
        + steps(group("l", "foreach: '{{xs}}', parallel: true", agent("a"), agent("b")))
    )
    play = Play(text, order=last).run()

    assert play.addresses == ["l[0]/a", "l[1]/a", "l[1]/b"]
    assert isinstance(play.ended, Failed)
    assert play.ended.addresses == ("l[0]/b",)


def test_running_work_of_unknown_kind_counts_towards_the_limit() -> None:
    text = recipe(
        "recursion: {max_total_steps: 3}\ncontext: {xs: [1, 2]}\n"
        + steps(group("l", "foreach: '{{xs}}', parallel: true", agent("a"), agent("b")))
    )
    full = Play(text, order=last).run(cut=8)
    progress = fold(
        [
            ev.StepStarted(step="l[0]/a", unit="agent"),
            ev.StepFinished(step="l[0]/a", outcome="ok", output="x"),
        ],
        full.progress,
    )
    assert {a for a, u in progress.units.items() if u.kind == "agent"} == {"l[0]/a", "l[1]/a"}

    now = plan(progress, frozenset({"l[1]/b"}))
    assert (now.events, now.work, now.ended) == ((), (), None)

    begun = fold([ev.StepStarted(step="l[1]/b", unit="agent")], progress)
    (failed,) = [e for e in plan(begun, frozenset({"l[1]/b"})).events if e.step == "l[0]/b"]
    assert isinstance(failed, ev.StepFinished) and failed.outcome == "failed"


def test_failure_waits_for_work_that_has_not_begun() -> None:
    progress = (
        Play(recipe(THREE + steps(agent("a", "foreach: '{{xs}}', parallel: true"))))
        .run(cut=3)
        .progress
    )
    failed = ev.StepFailed(step="a[0]", attempt=1, error="broken")
    progress = fold([failed], progress)
    progress = fold(plan(progress, frozenset({"a[1]", "a[2]"})).events, progress)

    now = plan(progress, frozenset({"a[1]", "a[2]"}))

    assert (now.ended, now.work) == (None, ())


def test_slashes_and_brackets_in_names_are_escaped_in_addresses() -> None:
    play = Play(recipe(steps(agent("a/b"), agent("'a[0]'")))).run()

    assert play.addresses == ["a∕b", "a❲0]"]


def test_walk_over_a_thousand_finished_steps_ends() -> None:
    text = recipe(
        f"context: {{xs: {list(range(100))}}}\nrecursion: {{max_total_steps: 1000}}\n"
        + steps(
            group(
                "l",
                "foreach: '{{xs}}', collect: r",
                *(agent(f"s{i}", f"output: o{i}") for i in range(10)),
            )
        )
    )
    reply = '{"summary": "' + "word " * 100 + '", "items": [1, 2, 3]}'
    play = Play(text).run(cut=2)
    events: list[ev.Event] = []
    for i in range(100):
        for j in range(10):
            place = f"l[{i}]/s{j}"
            events.append(ev.StepStarted(step=place, unit="agent"))
            events.append(ev.StepFinished(step=place, outcome="ok", output=reply))
    progress = fold(events, play.progress)
    progress = fold(plan(progress).events, progress)

    now = plan(progress)

    assert now.ended is not None and now.events == ()


def test_loop_over_ten_thousand_items_begins_resumes_and_ends() -> None:
    text = recipe(
        f"context: {{xs: {list(range(10_000))}}}\n"
        + steps(bash("a", "foreach: '{{xs}}', collect: r, max_iterations: 10000", "echo {{item}}"))
    )
    play = Play(text).run(cut=2)
    now = plan(play.progress)
    progress = fold(now.events, play.progress)
    assert [e.total for e in now.events if isinstance(e, ev.StepStarted)] == [10_000]
    ended: list[int] = []
    for upto in (0, 1, 5_000, 9_999):
        progress = fold(_echoed(range(len(ended), upto)), progress)
        ended = list(range(upto))
        assert [work.address for work in plan(progress).work] == [f"a[{upto}]"]

    progress = fold(_echoed(range(9_999, 10_000)), progress)
    progress = fold(plan(progress).events, progress)

    end = plan(progress).ended
    assert isinstance(end, Completed)
    assert end.outputs == {"r": list(range(10_000))}


def _echoed(numbers: range) -> list[ev.Event]:
    found: list[ev.Event] = []
    for n in numbers:
        place = f"a[{n}]"
        found.append(ev.StepStarted(step=place, unit="bash"))
        found.append(ev.StepFinished(step=place, outcome="ok", output=f"{n}\n", exit_code=0))
    return found


NOT_DEFINED = "{{nope}} is not defined."


@pytest.mark.parametrize(
    "body",
    [
        steps(agent("a"), agent("b", prompt="see {{nope}}")),
        steps(agent("a", "condition: '{{nope}}'")),
        THREE + steps(agent("a", "foreach: '{{xs}}', parallel: 2", "{{nope}}")),
        THREE + steps(group("l", "foreach: '{{xs}}'", agent("a", prompt="{{nope}}"))),
        steps(bash("a", command="echo {{nope}}")),
        stages(("s", "condition: '{{nope}}'", agent("a"))),
    ],
)
def test_error_in_the_recipe_has_its_position(body: str) -> None:
    play = Play(recipe(body)).run()
    before = play.text[: play.text.index("{{nope}}")]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    assert isinstance(play.ended, Failed)
    assert NOT_DEFINED in play.ended.error
    assert f"/recipes/main.yaml:{line}:{column}: " in play.ended.error


def test_error_of_an_agent_or_command_has_no_position() -> None:
    assert Play(recipe(steps(agent("a"))), {"a": Fail("no luck")}).run().ended == Failed(
        ("a",), "no luck"
    )


@pytest.mark.parametrize(
    "loop, told",
    [
        (
            "while_condition: '{{go}}', max_while_iterations: 2",
            ["The loop a ended at its limit of 2 repetitions (max_while_iterations)."],
        ),
        (
            "while_condition: 'true', break_when: 'not {{go}}', max_while_iterations: 3",
            ["The loop a ended at its limit of 3 repetitions (max_while_iterations)."],
        ),
        ("while_condition: 'true', max_while_iterations: 3", []),
        ("while_condition: '{{go}} and {{_loop_index}} < 2', max_while_iterations: 2", []),
        ("while_condition: '{{go}}', break_when: '{{go}}', max_while_iterations: 1", []),
    ],
)
def test_loop_that_reaches_its_limit_is_reported(loop: str, told: list[str]) -> None:
    play = Play(recipe("context: {go: go on}\n" + steps(agent("a", loop), agent("b")))).run()
    assert [e.text for e in play.journal if isinstance(e, ev.Noticed)] == told
