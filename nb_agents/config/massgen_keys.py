"""The keys of MassGen's files that no spec of ours has as a field, each sorted: a table.

A restriction in a file is never only words. So what may be ignored is listed here by name, and no
other key is ever told of as ignored:

- *harmless*: it asks for what is not to be had here, or is of no consequence here; it is listed.
- *enforced*: it restricts, and what it restricts is so in any case; nothing is said.
- *withheld*: it restricts a tool, and can't be enforced: the agent does not get that tool.
- *refused*: it restricts, and can't be enforced: the team does not start.
- *unknown*: in none of the tables. Where every key restricts (`Section.is_strict`), and where its
  name sounds like a restriction (`sounds_restricting`), it is treated as one that can't be
  enforced, else listed as unknown. Not every unknown key is refused, because MassGen passes what it
  does not know to the model's API, and has new keys each week.

Keys that a spec has as a field are *supported*; `ENFORCED_FIELDS` are those of them that restrict.

Source: MassGen 0.1.97, `backend/_excluded_params.py`, `agent_config.py`, `config_validator.py`,
`mcp_tools/security.py`, `permissions/`, and the keys of its 276 configs. The tests hold the table
against all of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

__all__ = [
    "ENFORCED_FIELDS",
    "Restriction",
    "SECTIONS",
    "Section",
    "Sort",
    "sort_of",
    "sounds_restricting",
]

Sort = Literal["supported", "enforced", "withheld", "refused", "harmless", "unknown"]

Path = tuple[str, ...]
"""A section of a file: keys from the top, with "*" for an item of a list."""


class Restriction(NamedTuple):
    """What a key restricts, and what can be done about it.

    Attributes:
        what: What it restricts, after "restricts".
        restricts: Whether a value of it does.
        remedy: What to do.
    """

    what: str
    restricts: Callable[[Any], bool] = bool
    remedy: str = "Remove it if the agents may work without it."


@dataclass(frozen=True)
class Section:
    """The keys of one section that are no field of its spec.

    Attributes:
        harmless: Those that may be ignored.
        enforced: Those that restrict what is so restricted in any case.
        withheld: Those for which a tool is withheld.
        refused: Those with which a team does not start.
        is_strict: Whether a key that is not known restricts, whatever its name.
        withholds: Whether one that restricts withholds the tool, instead of refusing the start.
    """

    harmless: frozenset[str] = frozenset()
    enforced: frozenset[str] = frozenset()
    withheld: Mapping[str, Restriction] = field(default_factory=dict)
    refused: Mapping[str, Restriction] = field(default_factory=dict)
    is_strict: bool = False
    withholds: bool = False


def _other_than(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value not in values


def _always(_: Any) -> bool:
    return True


def _is_false(value: Any) -> bool:
    return value is False


_COMMANDS = "the command line"
_TOOLS = "which tools agents may call"
_TIME = Restriction("how long agents may work", remedy="Write `timeout_settings`.")

_BACKEND: Path = ("agents", "*", "backend")
_SERVER: Path = (*_BACKEND, "mcp_servers", "*")
_HOOKS = Section(
    harmless=frozenset({"PostToolUse", "override"}),
    refused={"PreToolUse": Restriction(_TOOLS)},
    is_strict=True,
)

_OF_SANDBOX_RUNTIME = {
    "command_line_srt_deny_read": Restriction(_COMMANDS),
    "command_line_srt_network_allowed_domains": Restriction(_COMMANDS, _always),
    "command_line_srt_read_mode": Restriction(_COMMANDS, _other_than("open")),
}
_OF_DOCKER = {
    "command_line_docker_cpu_limit": Restriction(_COMMANDS),
    "command_line_docker_memory_limit": Restriction(_COMMANDS),
    "command_line_docker_network_mode": Restriction(_COMMANDS, _other_than("bridge", "host")),
}

# Some of those that follow limit something, by their names: what is not here needs no limit.
_PARAMETERS_OF_MODELS = """
    audio engine function_calling_mode logprobs metadata modalities model_reasoning_effort n
    organization output_schema prediction previous_response_id provider stream stream_options
    top_logprobs transforms
"""
_FEATURES_OF_BACKENDS = """
    agent_config agent_id agent_name agent_temporary_workspace agent_temporary_workspace_parent
    audio_generation_backend audio_generation_model auto_discover_custom_tools azure_endpoint
    command_line_docker_credentials command_line_docker_enable_sudo command_line_docker_image
    command_line_docker_packages command_line_srt_allow_read command_line_srt_allow_unix_sockets
    computer_environment context_files context_paths copilot_system_message_mode custom_tools_path
    cwd dangerously_skip_permissions debug_delay_after_n_tools debug_delay_seconds
    direct_mcp_servers disable_auto_update display_height display_width enable_audio_generation
    enable_code_based_tools enable_computer_use
    enable_file_generation enable_interrupt_resume enable_multimodal_tools
    enable_nlip enable_programmatic_flow enable_strict_tool_use enable_tool_search
    enable_video_generation enable_x_search env filesystem_session_id
    gemini_backoff_initial_delay gemini_backoff_jitter gemini_backoff_max_attempts
    gemini_backoff_max_delay gemini_backoff_multiplier google_search_retrieval group_config
    image_generation_backend image_generation_model instance_id interrupt_poll_seconds
    max_incomplete_response_retries max_interrupts_per_turn max_mcp_message_history max_results
    mcp_sdk_auto media_max_file_size_mb multimodal_config nlip nlip_config plugins redis_client
    reset_chat search_context_size search_prompt session_id session_send_timeout_seconds
    system_prompt session_storage_base setting_sources shared_tools_directory skip_health_check
    system_message_mode tool_search_variant ttl use_default_prompt
    use_mcpwrapped_for_tool_filtering use_multi_mcp use_no_roots_wrapper use_two_tier_workspace
    video_generation_backend video_generation_model websocket_mode working_dir write_mode
"""
# MassGen hands them from the orchestrator's section down to each backend; here they mean nothing.
_HANDED_DOWN = """
    allow_midstream_peer_updates_before_checklist_submit bootstrap_max_per_agent_per_round
    bootstrap_max_total checklist_first_answer checklist_require_gap_report checkpoint_enabled
    checkpoint_guidance checkpoint_mode coordination_mode criteria_mode
    defer_peer_updates_until_restart disable_final_only_round_capture_fallback
    drift_conflict_policy enable_execution_trace_analyzer enable_novelty_on_iteration
    enable_quality_rethink_on_iteration fairness_enabled fairness_lead_cap_answers
    final_answer_strategy gap_report_mode improvements learning_capture_mode main_agent
    max_checklist_calls_per_round max_midstream_injections_per_round novelty_injection
    orchestrator_managed_round_evaluator plan_depth plan_target_chunks plan_target_steps
    plan_thoroughness presenter_agent round_evaluator_before_checklist round_evaluator_refine
    round_evaluator_skip_synthesis round_evaluator_transformation_pressure
    standalone_checkpoint_enabled standalone_checkpoint_include_workspace_context
    standalone_checkpoint_mode standalone_checkpoint_single standalone_checkpoint_team_config
    subagent_types subtask voting_sensitivity voting_threshold
"""
_FEATURES_OF_ORCHESTRATORS = """
    agent_temporary_workspace allow_midstream_peer_updates_before_checklist_submit
    audio_generation_backend audio_generation_model checklist_first_answer
    checklist_require_gap_report coordination_mode debug_final_answer
    defer_peer_updates_until_restart disable_injection docker dspy enable_multimodal_tools
    enable_nlip gap_report_mode image_generation_backend image_generation_model interactive_mode
    max_checklist_calls_per_round max_midstream_injections_per_round multimodal_config nlip
    nlip_config presenter_agent session_storage skills_directory skip_coordination_rounds
    snapshot_storage type video_generation_backend video_generation_model voting_threshold
"""
_FEATURES_OF_COORDINATION = """
    auto_trace_analysis bootstrap_max_per_agent_per_round bootstrap_max_total broadcast
    broadcast_sensitivity broadcast_timeout broadcast_wait_by_default checklist_criteria_inline
    checklist_criteria_preset checkpoint_enabled checkpoint_guidance checkpoint_mode
    compression_target_ratio criteria_mode disable_final_only_round_capture_fallback
    enable_changedoc enable_evaluator_personas
    enable_execution_trace_analyzer enable_novelty_on_iteration enable_quality_rethink_on_iteration
    evaluation_criteria_generator evolving_criteria evolving_criteria_max_evolutions
    evolving_criteria_min_high_score_count evolving_criteria_score_threshold
    evolving_criteria_timeout fast_iteration_mode improvements learning_capture_mode
    load_previous_session_skills max_broadcasts_per_agent max_internal_fix_loops
    max_verifications_per_round novelty_injection orchestrator_managed_round_evaluator
    persona_generator plan_depth plan_target_chunks plan_target_steps plan_thoroughness
    planning_mode_instruction pre_collab_voting_threshold prompt_improver response_depth
    resume_from_log round_evaluator_before_checklist round_evaluator_refine
    round_evaluator_skip_synthesis round_evaluator_transformation_pressure
    skip_redundant_scaffolding standalone_checkpoint standalone_checkpoint_enabled
    standalone_checkpoint_include_workspace_context standalone_checkpoint_mode
    standalone_checkpoint_single standalone_checkpoint_team_config subagent_host_launch_prefix
    subagent_orchestrator subagent_runtime_fallback_mode subagent_runtime_mode subagent_types
    task_decomposer use_two_tier_workspace web_review
"""


def _words(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


SECTIONS: Mapping[Path, Section] = {
    (): Section(
        harmless=_words("display enable_nlip memory nlip nlip_config session_id task ui"),
        refused={"timeout": _TIME},
    ),
    ("hooks",): _HOOKS,
    ("checkpoint",): Section(
        harmless=_words("enabled guidance mode"),
        refused={"gated_patterns": Restriction(_TOOLS)},
        is_strict=True,
    ),
    ("agents", "*"): Section(
        harmless=_words(
            "append_system_prompt cwd enable_nlip main_agent nlip nlip_config subagent_agents",
            "subtask voting_sensitivity voting_threshold",
        )
    ),
    _BACKEND: Section(
        harmless=_words(_PARAMETERS_OF_MODELS, _FEATURES_OF_BACKENDS, _HANDED_DOWN),
        # Calls of one reply are made one after the other; no tool comes without being named; and
        # only a presenter ever writes below a context path.
        enforced=_words(
            "concurrent_tool_execution context_write_access_enabled disable_parallel_tool_use",
            "exclude_custom_tools max_concurrent_tools",
        ),
        withheld=_OF_DOCKER | _OF_SANDBOX_RUNTIME,
        refused={
            "approval_mode": Restriction(_TOOLS, _other_than("yolo"), "Write `tool_policy`."),
            "checkpoint_gated_patterns": Restriction(_TOOLS, remedy="Write `tool_policy`."),
            "copilot_permission_policy": Restriction(_TOOLS, remedy="Write `tool_policy`."),
            "disallowed_tools": Restriction(_TOOLS, remedy="Write `exclude_tools`."),
            "enable_rate_limit": Restriction("how often models are called"),
            "enforce_read_before_delete": Restriction("which files may be deleted"),
            "max_thinking_tokens": Restriction("how much a model thinks"),
            "permission_mode": Restriction(
                _TOOLS, _other_than("bypassPermissions"), "Write `tool_policy`."
            ),
            "permission_policy": Restriction(_TOOLS, remedy="Write `tool_policy`."),
            "timeout": _TIME,
            "timeout_seconds": _TIME,
            "tool_config": Restriction(_TOOLS),
            "tools": Restriction(_TOOLS, remedy="Write `allowed_tools`."),
            "vote_only": Restriction("what an agent may submit"),
        },
    ),
    (*_BACKEND, "hooks"): _HOOKS,
    (*_BACKEND, "permissions"): Section(
        # A person is asked each time, whoever watches, and every decision is in the journal.
        enforced=_words(
            "approval_dir approval_mode audit automation_default max_consecutive_auto",
            "persist_approvals",
        ),
        refused={
            "settings_path": Restriction(_TOOLS, remedy="Write its rules under `permissions`.")
        },
        is_strict=True,
    ),
    (*_BACKEND, "permissions", "rules"): Section(is_strict=True),
    (*_BACKEND, "tool_policy", "*"): Section(is_strict=True),
    (*_BACKEND, "custom_tools", "*"): Section(
        harmless=_words("category class default_params defer_loading strict")
    ),
    _SERVER: Section(
        harmless=_words("defer_loading description http_read_timeout strict transport"),
        withheld={
            "disabled": Restriction("a server"),
            "enabled": Restriction("a server", _is_false),
        },
        withholds=True,
    ),
    (*_SERVER, "security"): Section(
        withheld={"resolve_dns": Restriction("a server")}, is_strict=True, withholds=True
    ),
    (*_SERVER, "security", "env"): Section(is_strict=True, withholds=True),
    ("orchestrator",): Section(
        harmless=_words(_FEATURES_OF_ORCHESTRATORS),
        refused={
            "max_turns": Restriction("how long agents may work", remedy="Write `max_cost`."),
            "timeout": _TIME,
        },
    ),
    ("orchestrator", "context_paths", "*"): Section(is_strict=True),
    ("orchestrator", "coordination"): Section(
        harmless=_words(_FEATURES_OF_COORDINATION),
        refused={
            "checkpoint_gated_patterns": Restriction(_TOOLS, remedy="Write `tool_policy`."),
            "subagent_round_timeouts": Restriction(
                "how long sub-agents work", remedy="Write `subagent_default_timeout`."
            ),
        },
    ),
    ("orchestrator", "coordination", "background_subagents"): Section(),
    ("timeout_settings",): Section(is_strict=True),
    ("retry",): Section(),
    ("cancel",): Section(),
    ("approval",): Section(is_strict=True),
}
"""What becomes of keys that no spec has, section by section.

What stands below a key of these tables falls with it, unless it is a section of its own."""

ENFORCED_FIELDS: Mapping[Path, frozenset[str]] = {
    _BACKEND: _words(
        "allowed_tools command_line_allowed_commands command_line_blocked_commands",
        "command_line_execution_mode exclude_file_operation_mcps exclude_tools",
        "max_completion_tokens max_output_tokens max_tokens parallel_tool_calls permissions",
        "safety_settings tool_choice tool_policy",
    ),
    (*_BACKEND, "reasoning"): _words("max_tokens"),
    (*_BACKEND, "thinking"): _words("budget_tokens thinking_budget"),
    (*_BACKEND, "thinking_config"): _words("budget_tokens thinking_budget"),
    (*_BACKEND, "permissions"): _words("enabled role rules"),
    (*_BACKEND, "permissions", "rules"): _words("allow ask deny"),
    (*_BACKEND, "tool_policy", "*"): _words("action match on_denial"),
    _SERVER: _words("allowed_tools exclude_tools security timeout tool_timeout_sec"),
    (*_SERVER, "security"): _words(
        "allow_localhost allow_private_ips allowed_executables allowed_hostnames env level"
    ),
    (*_SERVER, "security", "env"): _words("allowed_vars denied_vars level mode"),
    ("orchestrator",): _words(
        "answer_novelty_requirement defer_voting_until_all_answered fairness_enabled",
        "fairness_lead_cap_answers max_cost max_new_answers_global max_new_answers_per_agent",
        "max_orchestration_restarts max_tokens",
    ),
    ("orchestrator", "context_paths", "*"): _words("permission protected_paths"),
    ("orchestrator", "coordination"): _words(
        "drift_conflict_policy enable_planning_mode max_orchestration_restarts max_tasks_per_plan",
        "subagent_default_timeout subagent_max_concurrent subagent_max_timeout write_mode",
    ),
    ("orchestrator", "coordination", "background_subagents"): _words("enabled"),
    ("timeout_settings",): _words(
        "initial_round_timeout_seconds on_timeout orchestrator_timeout_seconds",
        "round_timeout_grace_seconds subsequent_round_timeout_seconds",
    ),
    ("approval",): _words("approvers auto_approve_on_timeout required_approvals timeout"),
}
"""Fields of our specs that restrict, and are kept."""

_RESTRICTING = re.compile(
    r"allow|approv|ask|audit|author|block|budget|cap|ceiling|confin|confirm|consent|deni|deny|"
    r"disab|disallow|except|exclud|filter|firewall|forbid|gate|guard|ignor|isolat|jail|limit|"
    r"lock|max|only|permi|polic|prevent|privil|prohib|protect|quota|read_?only|refus|reject|"
    r"require|restrict|review|safe|sandbox|scope|secur|skip|timeout|trust|white_?list|writ",
    re.IGNORECASE,
)


def sort_of(section: Path, key: str, fields: frozenset[str] = frozenset()) -> Sort:
    """Return what becomes of a key.

    Args:
        section: Where it stands.
        key: Its name.
        fields: The fields of that section's spec.

    Example:
        >>> sort_of(("agents", "*", "backend"), "enable_audio_generation")
        'harmless'
    """
    if key in fields:
        return "enforced" if key in ENFORCED_FIELDS.get(section, ()) else "supported"
    table = SECTIONS.get(section, Section())
    sorts: tuple[Sort, ...] = ("harmless", "enforced", "withheld", "refused")
    for sort in sorts:
        if key in getattr(table, sort):
            return sort
    # A section of its own is sorted key by key.
    return "supported" if (*section, key) in SECTIONS else "unknown"


def sounds_restricting(key: str) -> bool:
    """Return whether an unknown key sounds like a restriction; when in doubt, it does.

    Args:
        key: Its name.

    Example:
        >>> sounds_restricting("forbidden_hosts"), sounds_restricting("colour")
        (True, False)
    """
    return _RESTRICTING.search(key) is not None
