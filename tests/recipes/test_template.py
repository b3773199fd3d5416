"""Templates: values are inserted once as text, and a lone variable keeps its type."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.config.template import fill, render, render_value, shapes, variables
from nb_agents.errors import RecipeError

CONTEXT: dict[str, Any] = {
    "a": "x",
    "step": {"id": 7, "list": [1, "é"]},
    "yes": True,
    "nothing": None,
    "empty": "",
    "Company name": "Acme {{a}}",
    "user-id": 7,
    "Price ($)": "5",
    "v1.2": "dots",
}


@pytest.mark.parametrize(
    "text, rendered",
    [
        ("", ""),
        ("{{a}}{{a}}", "xx"),
        ("{{step.id}} {{step.list}}", '7 [1, "é"]'),
        ("{{yes}} [{{nothing}}]", "true []"),
        ("{{ a }}", "x"),
        ("{{a | raw}} {{a|raw}}", "x x"),
        (r"\{{a}} \{{#if a}} \{{/if}}", "{{a}} {{#if a}} {{/if}}"),
        ("${{ a }} ${{a}}", "${{ a }} $x"),
        ("{{Company name}} {{ user-id }} {{Price ($)}} {{v1.2}}", "Acme {{a}} 7 5 dots"),
        ("${{Company name}} ${{ Company name }}", "$Acme {{a}} ${{ Company name }}"),
        (
            r"\{{Company name}} \{{x + 1}} {{company name}}",
            r"{{Company name}} \{{x + 1}} {{company name}}",
        ),
        ('{"k": {"j": 1}} {{"k": 1}} {% if x %} {{#each x}} {{a-b}} {{}}', None),
        ("{{{a}}}", "{x}"),
        ("{{ setp }} {{ step.ids }} {{b\n}} {{ a }}", "{{ setp }} {{ step.ids }} {{b\n}} x"),
        ("{{a | upper}} {{ a | default('b') }}", None),
        ("{{#if setp}}A{{else}}B{{/if}}{{#if not setp or a == 'x'}}C{{/if}}", "BC"),
        ("{{#if a}}A{{/if}}", "A"),
        ("{{#if empty}}A{{/if}}B", "B"),
        ("{{#if nothing}}A{{else}}B{{/if}}", "B"),
        ("{{#if a == 'x' and step.id > 6}}A{{else}}B{{/if}}", "A"),
        ("{{#if not yes}}A{{else}}B{{/if}}", "B"),
        ("{{#if a}}1{{#if empty}}2{{else}}3{{#if yes}}4{{/if}}{{/if}}5{{else}}6{{/if}}", "1345"),
        ("{{#if empty}}{{missing}}{{/if}}", ""),
        ("{{#if a}}\n{{a}}\n{{/if}}\n", "\nx\n\n"),
    ],
)
def test_template_is_filled_in(text: str, rendered: str | None) -> None:
    assert render(text, CONTEXT) == (text if rendered is None else rendered)


@pytest.mark.parametrize(
    "text, words",
    [
        ("{{setp}}", ["{{setp}} is not defined", "Did you mean {{step}}?", "a, step, yes"]),
        ("{{step.ids}}", ["Did you mean {{step.id}}?"]),
        ("{{a.b}}", ["'a' is text and has no keys"]),
        ("{{nothing.b}}", ["'nothing' is empty"]),
        ("\n{{#if a}}", ["Line 2", "no {{/if}}"]),
        ("{{/if}}", ["Line 1", "without {{#if …}}"]),
        ("{{else}}", ["without {{#if …}}"]),
        ("{{#if a}}{{else}}{{else}}{{/if}}", ["second {{else}}"]),
        ("{{ setp | raw }}", ["{{setp}} is not defined"]),
        ("{{#if setp.x}}{{/if}}", ["{{setp.x}} is not defined"]),
        ("{{#if a ==}}{{/if}}", ["expected a value"]),
    ],
)
def test_error_has_the_position_or_name(text: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        render(text, CONTEXT)
    assert [word for word in words if word not in str(caught.value)] == []


def test_only_some_of_many_names_are_listed() -> None:
    with pytest.raises(RecipeError, match="and 88 more"):
        render("{{x}}", {f"name{n}": n for n in range(100)})


def test_lone_variable_keeps_its_type_at_any_depth() -> None:
    value = {"a": "{{step}}", "b": ["{{step.id}}", "n {{step.id}}", {"c": "{{yes}}"}], "d": 3}
    assert render_value(value, CONTEXT) == {
        "a": CONTEXT["step"],
        "b": [7, "n 7", {"c": True}],
        "d": 3,
    }
    assert render_value("{{nothing}}", CONTEXT) is None
    assert render_value(" {{step.id}}", CONTEXT) == " 7"


def test_variables_of_a_template_are_listed_in_order() -> None:
    text = r"{{b.c}} {{#if d == e and f}}{{a}}{{else}}{{b.c}}{{g | raw}}{{/if}} \{{no}}"
    assert variables(text) == ("b.c", "d", "f", "a", "g")
    assert variables("{{a-b}} {{ Company name }} {{#each x}}") == ("a-b", "Company name")


def test_insertion_has_its_line_and_raw_flag() -> None:
    pieces = fill("1\n{{a}}\n{{#if a}}\n{{a | raw}}{{/if}}", CONTEXT)
    found = [(p.line, p.is_raw) for p in pieces if not isinstance(p, str)]
    assert found == [(2, False), (4, True)]


def test_template_is_split_for_each_branch_without_values() -> None:
    text = "{{#if a}}1 {{b}}{{else}}2 {{ c }}{{/if}} {{ jinja.d }} {{e | raw}}"
    shown = [
        "".join(p if isinstance(p, str) else f"<{p.path}>" for p in pieces)
        for pieces in shapes(text, lambda name: name != "jinja.d")
    ]
    assert shown == ["1 <b> {{ jinja.d }} <e>", "2 <c> {{ jinja.d }} <e>"]
    assert len(shapes("{{a}}", lambda _: True)) == 1


HOSTILE = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(["{{a}}", "{{", "}}", "{{#if a}}", "{{/if}}", "\\", "{{else}}", "| raw"])
    ).map("".join),
)


@given(value=HOSTILE)
def test_inserted_value_is_not_parsed(value: str) -> None:
    context = {"v": value, "a": "secret", "map": {"k": value}}
    assert render("[{{v}}|{{map.k}}]", context) == f"[{value}|{value}]"
    assert render("{{#if yes}}{{v}}{{/if}}", context | {"yes": True}) == value
    assert render_value(["{{v}}"], context) == [value]
    assert render_value({"k": "{{map}}"}, context) == {"k": {"k": value}}


@given(text=st.text(alphabet="{}#/ifelse a|\\raw\n"))
def test_any_text_is_rendered_or_refused(text: str) -> None:
    try:
        render(text, CONTEXT)
    except RecipeError as exc:
        assert str(exc)
