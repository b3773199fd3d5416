"""Invalid tools are left out: strict servers accept every request and other tools work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field
from pydantic_ai.messages import ModelRequest, UserPromptPart

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from nb_agents.tools.gate import MAX_CHARS, ToolGate
from tests.kit.agents import requested
from tests.kit.models import ANY_MODEL, PydanticBackend, ToolRules, backend_for, http_client
from tests.kit.runs import Run
from tests.kit.tools import (
    McpServers,
    McpServerSpec,
    SchemaFault,
    Tool,
    Toolbox,
    ToolContext,
    ToolDefinition,
    ToolKeys,
    fit_schema,
    function_tool,
    tool_name,
)
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.strict_tools import tools_fault
from tests.team_kit import events, finish

SCRIPT = Path(__file__).with_name("raw_mcp_server.py")
MODELS = {
    "openai": "gpt-5-mini",
    "responses": "gpt-5-mini",
    "claude": "claude-opus-4-6",
    "gemini": "gemini-3-pro-preview",
}
Schema = dict[str, Any]


def properties(**schemas: Any) -> Schema:
    return {"type": "object", "properties": schemas}


def deep(levels: int) -> Schema:
    inner: Schema = {"type": "string"}
    for _ in range(levels):
        inner = properties(a=inner)
    return inner


def cyclic(*names: str) -> dict[str, Schema]:
    return {
        name: {"$ref": f"#/$defs/{other}"}
        for name, other in zip(names, [*names[1:], names[0]], strict=True)
    }


def bomb(levels: int) -> dict[str, Schema]:
    """Return definitions, each of which refers to the next one ten times."""
    made: dict[str, Schema] = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        twice = {f"p{n}": {"$ref": f"#/$defs/d{level + 1}"} for n in range(10)}
        made[f"d{level}"] = properties(**twice)
    return made


A = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
NODE = properties(next={"$ref": "#/$defs/Node"}, name={"type": "string"})

ODD: dict[str, Any] = {
    "nothing": {},
    "no_type": {"properties": {"a": {"type": "string"}}},
    "any_of": {"anyOf": [A, properties(b={"type": "integer"})]},
    "one_of_typed": {"type": "object", "oneOf": [A, properties(b={"type": "integer"})]},
    "all_of": {"type": "object", "allOf": [A]},
    "any_of_required": A | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "not_at_top": A | {"not": {"required": ["b"]}},
    "enum_at_top": {"type": "object", "enum": [{"a": 1}]},
    "a_string": {"type": "string"},
    "a_list": {"type": "array", "items": {"type": "string"}},
    "nullable": {"type": ["object", "null"], "properties": {"a": {"type": "string"}}},
    "null_keywords": {"type": "object", "properties": None, "required": None},
    "no_schema": None,
    "not_a_schema": ["a", "b"],
    "spaces": properties(**{"the id": {"type": "string"}}) | {"required": ["the id"]},
    "brackets": properties(**{"filter[id]": {}, "filter(id)": {}, "$top": {"type": "integer"}}),
    "unicode": properties(**{"größe": {}, "名前": {}, "\u202eevil": {}, "": {}}),
    "long_key": properties(**{"k" * 65: {"type": "string"}, "k" * 66: {"type": "string"}}),
    "unknown_type": properties(a={"type": "any"}),
    "type_is_a_list_of_nothing": properties(a={"type": []}),
    "properties_are_a_list": {"type": "object", "properties": [{"name": "a"}]},
    "a_property_is_a_text": properties(a="string"),
    "a_property_is_true": properties(a=True),
    "required_is_true": properties(a={"type": "string", "required": True}),
    "required_is_unknown": properties() | {"required": ["missing"]},
    "required_twice": A | {"required": ["a", "a"]},
    "bare_array": properties(a={"type": "array"}),
    "array_or_null": properties(a={"type": ["array", "null"]}),
    "old_tuple": properties(a={"type": "array", "items": [{"type": "string"}]}),
    "old_minimum": properties(a={"type": "number", "minimum": 1, "exclusiveMinimum": True}),
    "bad_pattern": properties(a={"type": "string", "pattern": "(["}),
    "their_pattern": properties(a={"type": "string", "pattern": r"^\p{L}+$"}),
    "empty_enum": properties(a={"type": "string", "enum": []}),
    "empty_any_of": properties(a={"anyOf": []}),
    "no_target": properties(a={"$ref": "#/$defs/Missing"}),
    "remote": properties(a={"$ref": "http://169.254.169.254/latest"}),
    "local_file": properties(a={"$ref": "file:///etc/passwd"}),
    "by_anchor": properties(a={"$ref": "#node"}, b={"$anchor": "node"}),
    "dynamic": properties(a={"$dynamicRef": "#node"}),
    "tree": NODE | {"$defs": {"Node": NODE}},
    "tree_at_top": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "tree_by_place": properties(a=properties(again={"$ref": "#/properties/a"})),
    "itself_at_top": {"$ref": "#"},
    "circle": properties(a={"$ref": "#/$defs/x"}) | {"$defs": cyclic("x", "y", "z")},
    "circle_at_top": {"$ref": "#/$defs/x", "$defs": cyclic("x", "y")},
    "bomb": properties(a={"$ref": "#/$defs/d0"}) | {"$defs": bomb(9)},
    "definitions_of_draft_7": properties(a={"$ref": "#/definitions/A"}) | {"definitions": {"A": A}},
    "wrapped_definitions": {"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}},
    "wrapped_places": {"anyOf": [A], "properties": {"b": {}, "c": {"$ref": "#/properties/b"}}},
    "deep": deep(20),
    "too_deep": deep(90),
    "no_strict_mode_takes_it": properties(a={"properties": {"b": {}}}) | {"required": ["a"]},
    "untyped": properties(a={"description": "anything"}) | {"required": ["a"]},
    "large": properties(a={"enum": [f"w{number}" for number in range(5000)]}),
    "whose_schema": A | {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x/y"},
    "description_is_null": properties(a={"type": "string", "description": None}),
    "title_is_a_number": properties(a={"type": "string", "title": 5}),
    "many_levels_of_any_of": properties(a={"anyOf": [{"allOf": [{"oneOf": [A]}]}]}),
    "data_that_looks_like_a_schema": properties(a={"default": {"type": "array", "$ref": "x"}}),
}
"""Schemas that a provider refuses, by the tool's name."""

ODD_NAMES = (
    "user/profile",
    "user.profile",
    "user profile",
    "user_profile",
    "n" * 100,
    "n" * 101,
    "größe",
    "\u202eevil",
    "",
    "\ud800",
    "a\nb",
    "new_answer",
)

FILE = """
from typing import Annotated
from pydantic import Field

def odd(a: Annotated[str, Field(json_schema_extra={"type": "any"})]) -> str:
    return a

def good(a: str) -> str:
    return f"good {a}"
"""

FOLDED = {"anyOf": [A, properties(b={"type": "integer"})]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def server_of(path: Path, tools: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    path.write_text(json.dumps({"tools": tools, **more}))
    return {"name": "s", "command": [sys.executable, str(SCRIPT), str(path)]}


def listed(name: str, schema: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": A if schema is None else schema, **more}


def odd_tools() -> list[dict[str, Any]]:
    odd = [{"name": name, "inputSchema": schema} for name, schema in ODD.items()]
    return [*odd, *map(listed, ODD_NAMES), listed("wordy", description="d" * 50_000)]


def called(name: str, **args: Any) -> Callable[[Request], Reply]:
    """Call a tool, and answer after its result."""

    def reply(request: Request) -> Reply:
        has_called = any(name in json.dumps(each) for each in request.messages)
        call = ToolCall("new_answer", {"content": "done"}) if has_called else ToolCall(name, args)
        return Reply(tool_calls=(call,))

    return reply


def run_of(root: Path, backend: Mapping[str, Any], *functions: Any) -> Run:
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    options = RunOptions(session_root=root / "sessions")
    return finish(nb_agents.start("the task", team, options=options, tools=functions))


def notices(run: Run) -> str:
    return "\n".join(each.text for each in events(run, ev.Noticed))


@pytest.mark.parametrize("kind", MODELS)
def test_invalid_server_tools_affect_only_themselves(tmp_path: Path, kind: str) -> None:
    tools = [listed("first"), *odd_tools(), listed("last")]
    with ModelServer(called("mcp__s__last", a="b"), strict=True) as server:
        backend = server.backend(
            kind, model=MODELS[kind], mcp_servers=[server_of(tmp_path / "s.json", tools)]
        )
        run = run_of(tmp_path, backend)
        assert run.result == "done", notices(run)
        offered = server.requests[0].tool_names
    assert [each.result for each in events(run, ev.ToolFinished)] == ['["last", {"a": "b"}]']
    assert {"mcp__s__first", "mcp__s__last"} <= {*offered}
    for name in ODD:
        assert (f"mcp__s__{name}" in offered) != (f"'mcp__s__{name}' is left out" in notices(run))


def odd(a: Annotated[str, Field(json_schema_extra={"type": "any"})]) -> str:
    return a


def test_function_with_an_invalid_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its schema is not valid at 'properties.a.type'"):
        function_tool(odd)


@pytest.mark.parametrize("kind", MODELS)
def test_invalid_custom_tool_affects_only_itself(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "tools.py"
    file.write_text(FILE)
    custom = [{"path": str(file), "function": ["odd", "good"]}]
    with ModelServer(called("custom_tool__good", a="b"), strict=True) as server:
        run = run_of(tmp_path, server.backend(kind, model=MODELS[kind], custom_tools=custom))
        assert run.result == "done"
    assert [each.result for each in events(run, ev.ToolFinished)] == ["good b"]
    assert "Custom tool 'odd' of ann is left out: 'custom_tool__odd' can't be a" in notices(run)


@pytest.mark.parametrize("kind", MODELS)
def test_tools_over_the_models_limit_are_left_out(tmp_path: Path, kind: str) -> None:
    tools = [listed(f"tool{number}") for number in range(300)]
    with ModelServer(called("mcp__s__tool7", a="b"), strict=True) as server:
        backend = server.backend(
            kind, model=MODELS[kind], mcp_servers=[server_of(tmp_path / "s.json", tools)]
        )
        run = run_of(tmp_path, backend)
        assert run.result == "done", notices(run)
        offered = server.requests[0].tool_names
    has_all = kind in ("claude", "gemini")
    assert ("mcp__s__tool299" in offered) == has_all
    fact = "'mcp__s__tool299' is left out: the model accepts at most 128 tools"
    assert (fact in notices(run)) != has_all


def test_chosen_tool_among_many_is_offered(tmp_path: Path) -> None:
    tools = [listed(f"tool{number}") for number in range(300)]
    server_keys = server_of(tmp_path / "s.json", tools) | {"allowed_tools": ["tool250"]}
    with ModelServer(called("mcp__s__tool250", a="b"), strict=True) as server:
        run = run_of(
            tmp_path, server.backend("openai", model="gpt-5-mini", mcp_servers=[server_keys])
        )
        assert run.result == "done", notices(run)
    assert not notices(run)


# Names


def context(path: Path) -> ToolContext:
    return ToolContext("ann", path, (), path, path, (), lambda _: None)


async def tools_of(path: Path, names: list[str]) -> dict[str, str]:
    """Return the tool that a call reaches, by the name for models."""
    spec = McpServerSpec.model_validate(server_of(path / "s.json", [*map(listed, names)]))
    async with McpServers(pytest.fail) as servers:
        found = await servers.tools(context(path), [spec])
        toolbox = await ToolGate(pytest.fail).admit("ann", Toolbox(found), ANY_MODEL)
        results = {tool.name: str(await tool.call({"a": "b"})) for tool in toolbox.tools}
    return {name: json.loads(result)[0] for name, result in results.items()}


@pytest.mark.anyio
async def test_each_unusual_name_reaches_its_own_tool(tmp_path: Path) -> None:
    names = [name for name in ODD_NAMES if name.isprintable()]
    whole = await tools_of(tmp_path, names)
    assert sorted(whole.values()) == sorted(names)
    for some in (names[::-1], names[::2], names[1:2]):
        assert (await tools_of(tmp_path, some)).items() <= whole.items()


@pytest.mark.anyio
async def test_tools_of_two_servers_have_different_names(tmp_path: Path) -> None:
    pairs = [("a", "b__c"), ("a__b", "c"), ("a b", "c"), ("a.b", "c"), ("a_", "b"), ("a", "_b")]
    specs = [
        McpServerSpec.model_validate(
            server_of(tmp_path / f"{number}.json", [listed(tool)]) | {"name": server}
        )
        for number, (server, tool) in enumerate(pairs)
    ]
    async with McpServers(pytest.fail) as servers:
        found = await servers.tools(context(tmp_path), specs)
    assert len({tool.name for tool in found}) == len(pairs)


def test_second_tool_with_one_name_is_left_out_with_a_notice(tmp_path: Path) -> None:
    def mcp__s__first(a: str) -> str:
        return f"mine {a}"

    keys = server_of(tmp_path / "s.json", [listed("first"), listed("twice"), listed("twice")])
    model = ScriptedModel(Turn(calls=(Call("mcp__s__first", {"a": "b"}),)), Answer("done"))
    backend = {"type": "python", "instance": model, "mcp_servers": [keys]}
    run = run_of(tmp_path, backend, mcp__s__first)
    assert [each.result for each in events(run, ev.ToolFinished)] == ["mine b"]
    for name in ("mcp__s__first", "mcp__s__twice"):
        assert f"ann: two tools are named {name!r}; the second is left out." in notices(run)


@pytest.mark.anyio
async def test_rules_match_a_tools_plain_name(tmp_path: Path) -> None:
    keys = server_of(tmp_path / "s.json", [listed("delete.all"), listed("look.up")])
    spec = McpServerSpec.model_validate(keys)
    only = ToolKeys(allowed_tools=("mcp__s__look_up",))
    async with McpServers(pytest.fail) as servers:
        found = await servers.tools(context(tmp_path), [spec], only.takes)
    assert [tool.definition.other_name for tool in found] == ["mcp__s__look_up"]


@pytest.mark.parametrize(
    "rule",
    [
        {"tool_policy": [{"match": "mcp__s__delete_all", "action": "deny"}]},
        {"permissions": {"rules": {"deny": ["mcp(s/delete_all)"], "allow": ["mcp(*)"]}}},
    ],
)
def test_denied_tool_stays_denied_by_its_plain_name(tmp_path: Path, rule: dict[str, Any]) -> None:
    keys = server_of(tmp_path / "s.json", [listed("delete.all")])
    name = tool_name("s", "delete.all")
    model = ScriptedModel(Turn(calls=(Call(name, {"a": "b"}),)), Answer("done"))
    backend = {"type": "python", "instance": model, "mcp_servers": [keys], **rule}
    run = run_of(tmp_path, backend)
    [end] = events(run, ev.ToolFinished)
    assert end.outcome == "error" and "den" in end.result


# Arguments


async def call_of(schema: Schema, args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a tool with this schema gets for a model's arguments."""
    got: list[dict[str, Any]] = []

    async def call(given: dict[str, Any]) -> str:
        got.append(given)
        return "called"

    tool = Tool.from_definition(ToolDefinition("odd", None, schema), call)
    toolbox = await ToolGate(pytest.fail).admit("ann", Toolbox([tool]), ANY_MODEL)
    for asked in (args, json.dumps(args)):
        assert await toolbox.call("odd", asked) == "called"
    assert got[0] == got[1]
    return got[0]


@pytest.mark.anyio
async def test_arguments_are_restored_to_their_own_names() -> None:
    schema = ODD["brackets"]
    names = [*fit_schema(schema).schema["properties"]]
    args = dict(zip(names, (1, 2, 3), strict=True))
    assert await call_of(schema, args) == {"filter[id]": 1, "filter(id)": 2, "$top": 3}
    # As in a turn that was started by a version without the gate.
    assert await call_of(schema, {"$top": 3}) == {"$top": 3}


@pytest.mark.anyio
async def test_alternatives_at_the_top_level_are_wrapped_and_restored() -> None:
    assert fit_schema(FOLDED).schema["properties"]["arguments"]["anyOf"] == FOLDED["anyOf"]
    assert await call_of(FOLDED, {"arguments": {"a": "b"}}) == {"a": "b"}
    assert await call_of(FOLDED, {"a": "b"}) == {"a": "b"}


def test_accepted_schema_is_not_changed() -> None:
    schema = {"additionalProperties": False, **A, "$defs": {"Node": NODE}}
    found = fit_schema(schema)
    assert found.restore is None and json.dumps(found.schema) == json.dumps(schema)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unknown_type", "is not valid at 'properties.a.type'"),
        ("a_string", "has the type 'string', but arguments are an object"),
        ("remote", "refers to 'http://169.254.169.254/latest', which does not exist"),
        ("circle", "has a circular reference"),
        ("too_deep", "is more than 64 levels deep"),
    ],
)
def test_refusal_describes_the_fault(name: str, why: str) -> None:
    with pytest.raises(SchemaFault, match=why.replace(".", r"\.").replace("'", ".")):
        fit_schema(ODD[name])


# Any schema


class _Sent(Exception):
    """Raised instead of sending a request."""


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["string", "object", "a", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b c", "$ref", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_REFS = st.sampled_from(["#", "#/$defs/a", "#/$defs/b c", "#/properties/a", "x.json", "#a"])


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate schemas, in which a keyword sometimes has an invalid value."""
    named = st.dictionaries(st.sampled_from(["a", "b c", "$x", "é", "k" * 70]), inner, max_size=3)
    kinds = st.sampled_from(["object", "array", "string", "integer", "null", "any"])
    many = st.lists(inner, max_size=3)
    known: dict[str, st.SearchStrategy[Any]] = {
        "type": kinds | st.lists(kinds, max_size=2),
        "properties": named,
        "$defs": named,
        "definitions": named,
        "items": inner | many,
        "additionalProperties": inner,
        "anyOf": many,
        "oneOf": many,
        "allOf": many,
        "not": inner,
        "prefixItems": many,
        "required": st.lists(st.sampled_from(["a", "b c", "missing"]), max_size=3),
        "enum": st.lists(_VALUES, max_size=3),
        "const": _VALUES,
        "default": _VALUES,
        "pattern": st.sampled_from(["a+", "([", r"\p{L}"]),
        "minLength": st.integers(-1, 3),
        "exclusiveMinimum": st.booleans() | st.integers(0, 3),
        "description": st.sampled_from(["words", ""]) | st.none(),
        "format": st.sampled_from(["date", "x"]),
        "$ref": _REFS,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "(["]), inner, max_size=1),
        "dependentRequired": st.just({"a": ["b c"]}),
        "if": inner,
        "uniqueItems": st.booleans() | st.just("yes"),
    }
    return st.fixed_dictionaries({}, optional=known) | st.fixed_dictionaries(
        {}, optional=dict.fromkeys(known, _VALUES)
    )


SCHEMAS = st.recursive(st.booleans() | st.just({}) | _VALUES, _keywords, max_leaves=8).filter(
    lambda value: isinstance(value, dict)
)


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, PydanticBackend]]:
    """Return a backend per protocol that sends nothing; `sent` has the last request's body."""
    made = {}
    for kind, model in MODELS.items():
        keys = ModelServer().backend(kind, model=model, max_tokens=100)
        keys["base_url"] = "http://127.0.0.1:9"
        [agent] = TeamSpec.model_validate({"agents": [{"id": "a", "backend": keys}]}).agents
        client = http_client()
        made[kind] = backend_for(agent, lambda client=client: client), client
    yield made


PROTOCOLS = {"openai": "openai", "responses": "responses", "claude": "anthropic"} | {
    "gemini": "google"
}


async def sent_by(backend: Any, client: httpx2.AsyncClient, toolbox: Toolbox) -> dict[str, Any]:
    """Return the body of a request that offers these tools."""
    sent: list[dict[str, Any]] = []

    async def look(request: httpx2.Request) -> None:
        sent.append(json.loads(await request.aread()))
        raise _Sent

    client.event_hooks["request"] = [look]
    asked = [ModelRequest(parts=[UserPromptPart("Help.")])]
    failed: Exception | None = None
    try:
        async with backend.stream(asked, requested(toolbox.definitions)):
            pass
    except Exception as exc:
        failed = exc
    assert sent, failed
    return sent[0]


@pytest.mark.anyio
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(SCHEMAS)
async def test_every_provider_accepts_all_admitted_tools(backends: Any, schema: Schema) -> None:
    async def call(args: dict[str, Any]) -> str:
        return "called"

    tools = [
        Tool.from_definition(ToolDefinition(name, name, each, is_foreign=True), call)
        for name, each in (("odd", schema), ("good", A))
    ]
    for kind, (backend, client) in backends.items():
        told: list[str] = []
        toolbox = await ToolGate(told.append).admit("ann", Toolbox(tools), backend.tool_rules)
        names = [tool.name for tool in toolbox.tools]
        assert names == (["odd", "good"] if not told else ["good"]), told
        body = await sent_by(backend, client, toolbox)
        assert tools_fault(PROTOCOLS[kind], body) == ""


# Sizes


@pytest.mark.anyio
async def test_total_size_of_tools_is_limited() -> None:
    async def call(args: dict[str, Any]) -> str:
        return "called"

    tools = [
        Tool.from_definition(ToolDefinition(f"t{number}", "d" * 9_000, A), call)
        for number in range(100)
    ]
    told: list[str] = []
    rules = ToolRules(None, 10_000)
    offered = await ToolGate(told.append).admit("ann", Toolbox(tools), rules)
    assert sum(len(tool.definition.description or "") for tool in offered.tools) <= MAX_CHARS
    assert len(offered.tools) + len(told) == 100
    assert f"more than {MAX_CHARS} characters" in told[0]
