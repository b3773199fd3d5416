"""All keys of MassGen's files are classified, and no restriction is ever ignored.

`python -m tests.config.test_massgen_keys` writes the page that lists them.
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nb_agents import TeamSpec
from nb_agents.config.massgen_keys import SECTIONS, KeyStatus, foreign_keys, status_of_key
from nb_agents.errors import ConfigError
from tests.config.massgen_page import PAGE, SPECS, page, rows
from tests.kit.models import check_start, unsupported_reason
from tests.kit.secrets import snapshot
from tests.kit.teams import report_on
from tests.kit.tools import tool_notices

ROOT = Path(__file__).parents[2]
BACKEND = ("agents", "*", "backend")


def fields(section: tuple[str, ...]) -> frozenset[str]:
    spec = SPECS.get(section)
    return frozenset(spec.model_fields) if spec else frozenset()


def sort(section: tuple[str, ...], key: str) -> KeyStatus:
    return status_of_key(section, key, fields(section))


def team(backend: dict[str, Any] | None = None, **more: Any) -> TeamSpec:
    agent = {"id": "ada", "backend": {"type": "demo", **(backend or {})}}
    return TeamSpec.model_validate({"agents": [agent], **more})


# The table


def test_table_has_no_duplicates_and_no_fields() -> None:
    for section, table in SECTIONS.items():
        groups = [table.harmless, table.enforced, {*table.withheld}, {*table.refused}]
        listed = [key for group in groups for key in group]
        assert len(listed) == len({*listed}), section
        assert not fields(section) & {*listed}, section


def test_restricting_fields_exist() -> None:
    for section, table in SECTIONS.items():
        assert table.fields <= fields(section), section


@pytest.mark.parametrize("section", SECTIONS)
def test_restricting_key_is_never_reported_as_ignored(section: tuple[str, ...]) -> None:
    table = SECTIONS[section]
    for key in (*table.enforced, *table.withheld, *table.refused):
        for value in (True, "x", ["x"], {"x": 1}):
            told = _in_section(section, key, value)
            assert not any(key in each for each in (*told.ignored, *told.unknown)), key


def _in_section(section: tuple[str, ...], key: str, value: Any) -> TeamSpec:
    """Return a team with a key in a section, and with the section's required keys."""
    needed: dict[str, Any] = {
        "mcp_servers": {"name": "s", "command": "python"},
        "custom_tools": {"function": "f"},
        "tool_policy": {"match": "x", "action": "ask"},
        "context_paths": {"path": "."},
        "backend": {"type": "demo"},
    }
    inner: Any = {key: value}
    for number in range(len(section) - 1, -1, -1):
        part = section[number]
        if part == "*":
            inner = [{**needed.get(section[number - 1], {}), **inner}]
        else:
            inner = {part: {**needed.get(part, {}), **inner} if isinstance(inner, dict) else inner}
    if section[:2] == ("agents", "*"):
        inner["agents"][0].setdefault("backend", needed["backend"])
    else:
        inner["agents"] = [{"backend": needed["backend"]}]
    return TeamSpec.model_validate(inner)


# Classification


REFUSED = [
    ({"timeout": {"orchestrator_timeout_seconds": 60}}, {}, "`timeout` restricts how long"),
    ({"hooks": {"PreToolUse": [{"handler": "x.y"}]}}, {}, "`hooks.PreToolUse` restricts which"),
    ({"hooks": ["x"]}, {}, "`hooks` restricts"),
    ({"checkpoint": {"gated_patterns": ["mcp__x*"]}}, {}, "`checkpoint.gated_patterns`"),
    ({"orchestrator": {"max_turns": 5}}, {}, "Write `max_cost`."),
    ({"orchestrator": {"context_paths": [{"path": ".", "read_only": 1}]}}, {}, "read_only"),
    ({"timeout_settings": {"tool_timeout": 5}}, {}, "`timeout_settings.tool_timeout`"),
    ({}, {"hooks": {"PreToolUse": [{}]}}, "`agents.backend.hooks.PreToolUse`"),
    ({}, {"disallowed_tools": ["Bash"]}, "Write `exclude_tools`."),
    ({}, {"permission_mode": "plan"}, "`agents.backend.permission_mode`"),
    ({}, {"permissions": {"sandboxed": True}}, "`agents.backend.permissions.sandboxed`"),
    ({}, {"permissions": {"settings_path": "x.json"}}, "Write its rules under `permissions`."),
    # Unknown keys, which are classified by their names.
    ({}, {"forbidden_hosts": ["*"]}, "`agents.backend.forbidden_hosts`"),
    ({}, {"net": {"deny_all": True}}, "`agents.backend.net`"),
    ({"read_only": True}, {}, "`read_only`"),
]


@pytest.mark.parametrize("top, backend, told", REFUSED)
def test_unenforceable_restriction_prevents_the_start(
    top: dict[str, Any], backend: dict[str, Any], told: str
) -> None:
    spec = team(backend, **top)
    with pytest.raises(ConfigError, match="can't be enforced here") as refused:
        check_start(spec)
    assert told in refused.value.message
    verdict = report_on(spec).verdict
    assert verdict.startswith("Can't start.") and refused.value.message in verdict
    assert not spec.ignored


def test_refused_key_error_has_its_position(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text("agents:\n- id: a\n  backend:\n    type: demo\n    vote_only: true\n")
    (refused,) = TeamSpec.from_file(file).refusals
    assert (refused.line, refused.column) == (5, 16)


@pytest.mark.parametrize(
    "top, backend",
    [
        ({}, {"permission_mode": "bypassPermissions"}),
        ({}, {"vote_only": False, "disallowed_tools": []}),
        ({}, {"command_line_docker_network_mode": "bridge"}),
        ({"hooks": {"PreToolUse": []}}, {}),
    ],
)
def test_value_without_restriction_does_not_prevent_the_start(
    top: dict[str, Any], backend: dict[str, Any]
) -> None:
    spec = team(backend, **top)
    assert not spec.refusals and not spec.ignored and not spec.notices


def test_massgen_key_is_not_a_misspelling(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    backend = {"type": "demo", "enable_video_generation": True, "disallowed_tools": ["x"]}
    file.write_text(yaml.safe_dump({"agents": [{"id": "ada", "backend": backend}]}))
    spec = TeamSpec.from_file(file)
    assert spec.ignored == ("agents.backend.enable_video_generation",)
    assert "Write `exclude_tools`" in str(spec.refusals[0])


def test_unknown_keys_are_reported_apart_from_ignored_ones() -> None:
    spec = team({"enable_audio_generation": True, "colour": "red"}, ui={})
    assert spec.notices == (
        "Ignored keys: ui, agents.backend.enable_audio_generation",
        "Unknown keys without effect: agents.backend.colour",
    )
    assert spec.notices == report_on(spec).lines[1:3]
    assert not spec.refusals


def test_restrictions_of_a_removed_agent_do_not_apply() -> None:
    coder = {"id": "coder", "backend": {"type": "antigravity_cli", "permission_mode": "plan"}}
    spec = TeamSpec.model_validate({"agents": [coder, {"backend": {"type": "demo"}}]})
    assert not spec.without_unsupported().refusals


def test_tool_stays_withheld_after_a_resume_from_the_journal() -> None:
    keys = {
        "enable_mcp_command_line": True,
        "command_line_docker_memory_limit": "2g",
        "mcp_servers": [{"name": "s", "command": "python", "disabled": True}],
    }
    where = {"context_paths": [{"path": ".", "permission": "write"}]}
    spec = team(keys, orchestrator={**where, "coordination": {"write_mode": "isolated"}})
    stored = snapshot(spec)
    assert stored is not None and "2g" not in str(stored)
    for each in (spec, TeamSpec.model_validate(stored)):
        keys_of = each.agents[0].backend
        assert len([*tool_notices([("a", keys_of)], has_protected_paths=False)]) == 2
        assert each.orchestrator.copies_context_paths
        assert not each.orchestrator.writes_context_paths


# MassGen's sources


def massgen(*path: str) -> Path:
    found = ROOT.joinpath(".venv/massgen-0.1.97/massgen", *path)
    if not found.exists():
        missing = "MassGen 0.1.97 is not installed. `make .venv/massgen-0.1.97/.installed` does it."
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return found


def _places(data: Any, section: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each key of a file with its section, including nested sections."""
    if isinstance(data, list):
        for item in data:
            yield from _places(item, (*section, "*"))
    for key, value in data.items() if isinstance(data, dict) else ():
        yield section, key
        inner = (*section, key)
        if key == "mcp_servers" and isinstance(value, dict):
            value = [value] if "name" in value else list(value.values())
        if inner in SECTIONS or (*inner, "*") in SECTIONS:
            yield from _places(value, inner)


def _configs() -> list[Path]:
    found = massgen("configs").rglob("*")
    return sorted(p for p in found if p.suffix in (".yaml", ".yml", ".json"))


def test_every_key_of_massgens_configs_is_classified() -> None:
    files, unsorted = _configs(), set()
    assert len(files) == 276
    for file in files:
        data = yaml.safe_load(file.read_text("utf-8"))
        if "agent" in data:
            data["agents"] = [data.pop("agent")]
        if "agents" in data:  # the other is a table of rate limits
            unsorted |= {place for place in _places(data) if sort(*place) == "unknown"}
    assert not unsorted


def test_every_parameter_of_massgens_backends_is_classified() -> None:
    source = massgen("backend", "_excluded_params.py").read_text("utf-8")
    names = {n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)}
    words = {n for n in names if isinstance(n, str) and n.isidentifier()}
    assert len(words) > 90
    assert {key for key in words if sort(BACKEND, key) == "unknown"} == set()


def test_every_key_of_massgens_orchestrator_and_coordination_is_classified() -> None:
    tree = ast.parse(massgen("agent_config.py").read_text("utf-8"))
    classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    functions = (n for n in classes["AgentConfig"].body if isinstance(n, ast.FunctionDef))
    named = [
        n for n in functions if n.name.endswith(("_fields", "_runtime_keys", "_orchestrator_keys"))
    ]
    keys = {c.value for n in named for c in ast.walk(n) if isinstance(c, ast.Constant)}
    keys = {key for key in keys if isinstance(key, str) and key.isidentifier()}
    assert len(keys) > 30
    assert {key for key in keys if sort(("orchestrator",), key) == "unknown"} == set()
    annotated = (n for n in classes["CoordinationConfig"].body if isinstance(n, ast.AnnAssign))
    keys = {n.target.id for n in annotated if isinstance(n.target, ast.Name)}
    assert len(keys) > 70
    place = ("orchestrator", "coordination")
    assert {key for key in keys if sort(place, key) == "unknown"} == set()


def test_massgens_configs_load_without_ignoring_restrictions() -> None:
    starts, refused = 0, {}
    for file in _configs():
        spec = TeamSpec.from_file(file)
        for found in foreign_keys(spec):
            assert found.sort != "unknown" or not spec.agents, found.name
        able = [a for a in spec.agents if not unsupported_reason(a.backend.type)]
        if able and (faults := spec.without_unsupported().refusals):
            refused[file.name] = [fault.message.partition(" ")[0] for fault in faults]
        starts += bool(able)
    # Limits that MassGen itself ignores.
    assert refused == {
        "error_respawn_test.yaml": ["`timeout`"],
        "openrouter_web_search.yaml": ["`orchestrator.max_turns`"],
    }
    assert starts > 200


# The page

DOCUMENTED = {
    "": "agents agent memory filesystem_memory orchestrator ui timeout_settings",
    "agents": "id backend system_message",
    "agents.backend": (
        "type model api_key base_url cwd exclude_file_operation_mcps enable_image_generation "
        "enable_audio_generation enable_file_generation enable_video_generation "
        "enable_code_based_tools custom_tools_path auto_discover_custom_tools exclude_custom_tools "
        "direct_mcp_servers shared_tools_directory concurrent_tool_execution "
        "enable_mcp_command_line command_line_execution_mode command_line_docker_image "
        "command_line_docker_memory_limit command_line_docker_cpu_limit "
        "command_line_docker_network_mode model_reasoning_effort command_line_docker_enable_sudo "
        "command_line_docker_credentials command_line_docker_packages "
        "command_line_allowed_commands command_line_blocked_commands mcp_servers exclude_tools "
        "temperature max_tokens permission_mode agent_config enable_web_search use_default_prompt "
        "enable_code_execution enable_code_interpreter allowed_tools disallowed_tools "
        "max_thinking_tokens system_prompt api_version copilot_system_message_mode "
        "copilot_permission_policy enable_multimodal_tools custom_tools reasoning"
    ),
    "agents.backend.mcp_servers": (
        "name type command args url env allowed_tools exclude_tools security"
    ),
    "agents.backend.mcp_servers.security": "level allow_localhost allow_private_ips",
    "orchestrator": (
        "snapshot_storage agent_temporary_workspace session_storage context_paths coordination "
        "skip_coordination_rounds debug_final_answer timeout voting_sensitivity "
        "max_new_answers_per_agent max_new_answers_global answer_novelty_requirement "
        "fairness_enabled fairness_lead_cap_answers max_midstream_injections_per_round "
        "defer_peer_updates_until_restart allow_midstream_peer_updates_before_checklist_submit "
        "coordination_mode presenter_agent disable_injection defer_voting_until_all_answered "
        "final_answer_strategy"
    ),
    "orchestrator.coordination": (
        "enable_planning_mode planning_mode_instruction plan_depth plan_target_steps "
        "plan_target_chunks max_orchestration_restarts use_skills skills_directory massgen_skills "
        "subagent_types enable_subagents subagent_default_timeout subagent_min_timeout "
        "subagent_max_timeout subagent_max_concurrent subagent_round_timeouts "
        "subagent_runtime_mode subagent_runtime_fallback_mode subagent_host_launch_prefix "
        "subagent_orchestrator background_subagents round_evaluator_before_checklist "
        "orchestrator_managed_round_evaluator round_evaluator_refine "
        "round_evaluator_transformation_pressure fast_iteration_mode"
    ),
    "orchestrator.coordination.background_subagents": "enabled injection_strategy",
    "orchestrator.context_paths": "path permission",
    "timeout_settings": (
        "orchestrator_timeout_seconds initial_round_timeout_seconds "
        "subsequent_round_timeout_seconds round_timeout_grace_seconds"
    ),
    "ui": "display_type logging_enabled",
    "filesystem_memory": "enabled compression",
    "filesystem_memory.compression": "trigger_threshold target_ratio",
}
"""The keys of MassGen's own reference, docs/source/reference/yaml_schema.rst of 2026."""


def test_page_of_keys_is_up_to_date() -> None:
    told = "`python -m tests.config.test_massgen_keys` writes it anew."
    assert PAGE.read_text("utf-8") == page(), told


def test_page_has_each_key_of_massgens_reference_and_of_the_tables() -> None:
    listed = {key for key, _, _ in rows()}
    named = ((place, key) for place, keys in DOCUMENTED.items() for key in keys.split())
    wanted = {f"{place}.{key}" if place else key for place, key in named}
    for section, table in SECTIONS.items():
        prefix = "".join(f"{part}." for part in section if part != "*")
        keys = (*table.harmless, *table.enforced, *table.withheld, *table.refused)
        wanted |= {prefix + key for key in keys}
    assert wanted - listed == set()


def test_page_describes_each_supported_and_ignored_key() -> None:
    told = ("supported", "ignored")
    assert [key for key, happens, said in rows() if happens in told and not said] == []


def test_ignored_section_is_reported_once() -> None:
    memory = {"enabled": True, "compression": {"trigger_threshold": 0.8, "target_ratio": 0.3}}
    spec = team(ui={"display_type": "simple", "colour": "red"}, filesystem_memory=memory)
    assert spec.notices == ("Ignored keys: ui, filesystem_memory",)
    assert not spec.refusals


def test_single_agent_without_a_list_is_a_team(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text("agent: {id: ada, backend: {type: demo}, system_message: Be brief.}\n")
    (ada,) = TeamSpec.from_file(file).agents
    assert (ada.id, ada.system_message) == ("ada", "Be brief.")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
