"""Only valid JSON is written and sent: by `json_text`, or from a value known to be valid.

Python's own `json.dumps` writes NaN and Infinity, which no other reader of JSON takes.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "nb_agents"

ALLOWED = {
    "a text for a model or a person, which nothing reads as JSON again": (
        "extensions.external_agents.acp.acp_errors",
        "extensions.external_agents.acp.acp_updates",
        "agents.message_json",
        "extensions.external_agents.frameworks.call_log",
        "extensions.external_agents.frameworks.function_agent",
        "extensions.external_agents.frameworks.graph_agent",
        "agents.spawning",
        "agents.context_folding",
        "agents.folded_history",
        "agents.stream_buffer",
        "extensions.external_agents.team_agent",
        "extensions.external_agents.team_server",
        "models.cassettes",
        "models.demo",
        "models.streamed_calls",
        "presentation.steps_card",
        "presentation.transcript",
        "extensions.recipes.output",
        "extensions.sweeps.mapping",
        "extensions.sweeps.row_titles",
        "extensions.sweeps.sweep_table",
        "view.step_values",
        "testing",
        "tools.base",
        "tools.policy",
        "tools.task_plan",
    ),
    "written by pydantic-core from its own parse, which has no such number": ("json_text",),
    "values of a journal line, a message or a notebook that was read as JSON": (
        "events.codec",
        "extensions.notebook_cells.apply_verb",
        "session.ownership",
        "tools.mcp_sdk",
    ),
    "only compared, counted or made a digest of": (
        "models.tool_rules",
        "tools.gate",
        "launch.once",
        "presentation.cards",
        "extensions.sweeps.compare",
        "extensions.sweeps.forks",
        "extensions.sweeps.source",
    ),
    "texts and whole numbers of our own": (
        "extensions.external_agents.acp.agent_programs",
        "cli.beginning",
        "config.new_team",
        "masking",
        "session.export_manifest",
        "tools.python_kernel",
    ),
}


def may_write_nan(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    given = {each.arg: ast.unparse(each.value) for each in node.keywords}
    match ast.unparse(node.func):
        case "json.dumps" | "json.dump":
            return given.get("allow_nan") != "False"
        case "to_json":
            return given.get("inf_nan_mode") not in ("'null'", "'strings'")
    return False


def test_other_writers_of_json_are_listed_with_a_reason() -> None:
    found = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if any(map(may_write_nan, ast.walk(ast.parse(path.read_text()))))
    }
    assert sorted(found) == sorted(each for modules in ALLOWED.values() for each in modules)
