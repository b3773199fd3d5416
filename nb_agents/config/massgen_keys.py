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
        harmless: Those that may be ignored, each with the reason.
        enforced: Those that restrict what is so restricted in any case.
        withheld: Those for which a tool is withheld.
        refused: Those with which a team does not start.
        is_strict: Whether a key that is not known restricts, whatever its name.
        withholds: Whether one that restricts withholds the tool, instead of refusing the start.
    """

    harmless: Mapping[str, str] = field(default_factory=dict)
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
    harmless=dict.fromkeys(("PostToolUse", "override"), "No hooks of MassGen's are called here."),
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


def _words(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


def _because(why: str, *texts: str) -> dict[str, str]:
    return dict.fromkeys(" ".join(texts).split(), why)


# Some of those that follow limit something, by their names: what is not here needs no limit.
_NLIP = _because("Calls of tools are not routed by NLIP.", "enable_nlip nlip nlip_config")
_MEDIA = _because(
    "MassGen's own tools that make and read media are not to be had here.",
    "audio_generation_backend audio_generation_model enable_multimodal_tools",
    "image_generation_backend image_generation_model multimodal_config video_generation_backend",
    "video_generation_model",
)
_PARAMETERS_OF_MODELS = {
    **_because("Replies are always streamed.", "stream stream_options"),
    **_because("Whole conversations are sent, one reply is asked for.", "n previous_response_id"),
    **_because(
        "This parameter of a model's API is not sent.",
        "audio engine function_calling_mode logprobs metadata modalities organization",
        "output_schema prediction provider top_logprobs transforms",
    ),
}
_FEATURES_OF_BACKENDS = {
    **_NLIP,
    **_MEDIA,
    **_because(
        "MassGen's own tools that make and read media are not to be had here.",
        "enable_audio_generation enable_file_generation enable_video_generation",
        "media_max_file_size_mb",
    ),
    **_because(
        "It is for a type that is a program or a framework, and not to be had here.",
        "agent_config copilot_system_message_mode",
        "dangerously_skip_permissions disable_auto_update group_config model_reasoning_effort",
        "plugins setting_sources system_message_mode system_prompt use_default_prompt",
    ),
    **_because(
        "Commands run in no container here.",
        "command_line_docker_credentials command_line_docker_enable_sudo",
        "command_line_docker_image command_line_docker_packages",
    ),
    **_because(
        "It widens MassGen's sandbox, which is not used here.",
        "command_line_srt_allow_read command_line_srt_allow_unix_sockets",
    ),
    **_because(
        "No agent sees or controls a screen here.",
        "computer_environment display_height display_width enable_computer_use",
    ),
    **_because(
        "Tools are offered one by one, as themselves, and those alone that the file names.",
        "auto_discover_custom_tools custom_tools_path direct_mcp_servers enable_code_based_tools",
        "enable_programmatic_flow enable_strict_tool_use enable_tool_search",
        "max_mcp_message_history mcp_sdk_auto shared_tools_directory tool_search_variant",
        "use_mcpwrapped_for_tool_filtering use_multi_mcp",
    ),
    **_because(
        "Each agent has a workspace of its own in the session's directory.",
        "agent_temporary_workspace agent_temporary_workspace_parent cwd filesystem_session_id",
        "use_no_roots_wrapper use_two_tier_workspace working_dir",
    ),
    **_because(
        "Files that all agents may read are `orchestrator.context_paths`.",
        "context_files context_paths",
    ),
    **_because(
        "Searches by a provider have no parameters here.",
        "google_search_retrieval max_results search_context_size search_prompt",
    ),
    **_because("xAI's search of X is not to be had here.", "enable_x_search"),
    **_because(
        "Failed calls are tried again as `retry` says.",
        "gemini_backoff_initial_delay gemini_backoff_jitter gemini_backoff_max_attempts",
        "gemini_backoff_max_delay gemini_backoff_multiplier max_incomplete_response_retries",
    ),
    **_because("Write `base_url`.", "azure_endpoint"),
    **_because("Variables of tools are those of `mcp_servers`.", "env"),
    **_because(
        "Replies are streamed over HTTP, and people say things by the panel.",
        "enable_interrupt_resume interrupt_poll_seconds max_interrupts_per_turn",
        "session_send_timeout_seconds skip_health_check websocket_mode",
    ),
    **_because(
        "MassGen sets it itself while it runs.",
        "agent_id agent_name instance_id redis_client reset_chat session_id session_storage_base",
        "ttl",
    ),
    **_because(
        "It is for tests of MassGen itself.", "debug_delay_after_n_tools debug_delay_seconds"
    ),
    **_because("It is the coordination's; there it counts.", "write_mode"),
}
# MassGen hands them from the orchestrator's section down to each backend.
_HANDED_DOWN = _because(
    "It is the orchestrator's, and means nothing at a backend.",
    "allow_midstream_peer_updates_before_checklist_submit bootstrap_max_per_agent_per_round",
    "bootstrap_max_total checklist_first_answer checklist_require_gap_report checkpoint_enabled",
    "checkpoint_guidance checkpoint_mode coordination_mode criteria_mode",
    "defer_peer_updates_until_restart disable_final_only_round_capture_fallback",
    "drift_conflict_policy enable_execution_trace_analyzer enable_novelty_on_iteration",
    "enable_quality_rethink_on_iteration fairness_enabled fairness_lead_cap_answers",
    "final_answer_strategy gap_report_mode improvements learning_capture_mode main_agent",
    "max_checklist_calls_per_round max_midstream_injections_per_round novelty_injection",
    "orchestrator_managed_round_evaluator plan_depth plan_target_chunks plan_target_steps",
    "plan_thoroughness presenter_agent round_evaluator_before_checklist round_evaluator_refine",
    "round_evaluator_skip_synthesis round_evaluator_transformation_pressure",
    "standalone_checkpoint_enabled standalone_checkpoint_include_workspace_context",
    "standalone_checkpoint_mode standalone_checkpoint_single standalone_checkpoint_team_config",
    "subagent_types subtask voting_sensitivity voting_threshold",
)
_CHECKPOINTS = "No agent works with checkpoints: all of them coordinate from the start."
_FEATURES_OF_ORCHESTRATORS = {
    **_NLIP,
    **_MEDIA,
    **_because(
        "All that is kept of a run is in its session's directory.",
        "agent_temporary_workspace session_storage snapshot_storage",
    ),
    **_because(
        "Which new answers an agent is shown, and when, is the same for all teams here.",
        "allow_midstream_peer_updates_before_checklist_submit defer_peer_updates_until_restart",
        "disable_injection max_midstream_injections_per_round",
    ),
    **_because(
        "Agents judge by `voting_sensitivity`, without a list of criteria and points.",
        "checklist_first_answer checklist_require_gap_report gap_report_mode",
        "max_checklist_calls_per_round voting_threshold",
    ),
    **_because(
        "Agents answer and vote here; whoever wins presents.", "coordination_mode presenter_agent"
    ),
    **_because("It is for tests of MassGen itself.", "debug_final_answer skip_coordination_rounds"),
    **_because("Commands run in no container here.", "docker"),
    **_because("Tasks are given as they are written, not reworded.", "dspy"),
    **_because("It is about MassGen's command line.", "interactive_mode type"),
    **_because("Write it under `orchestrator.coordination`.", "skills_directory"),
}
_FEATURES_OF_COORDINATION = {
    **_because(
        "Agents learn nothing from one run for the next but memories in files.",
        "auto_trace_analysis bootstrap_max_per_agent_per_round bootstrap_max_total",
        "disable_final_only_round_capture_fallback enable_execution_trace_analyzer",
        "learning_capture_mode load_previous_session_skills resume_from_log",
    ),
    **_because(
        "Agents do not ask one another, or people, by broadcasts.",
        "broadcast broadcast_sensitivity broadcast_timeout broadcast_wait_by_default",
        "max_broadcasts_per_agent response_depth",
    ),
    **_because(
        "Agents judge by `voting_sensitivity`, without a list of criteria and points.",
        "checklist_criteria_inline checklist_criteria_preset criteria_mode",
        "evaluation_criteria_generator evolving_criteria evolving_criteria_max_evolutions",
        "evolving_criteria_min_high_score_count evolving_criteria_score_threshold",
        "evolving_criteria_timeout fast_iteration_mode improvements pre_collab_voting_threshold",
    ),
    **_because(
        _CHECKPOINTS,
        "checkpoint_enabled checkpoint_guidance checkpoint_mode standalone_checkpoint",
        "standalone_checkpoint_enabled standalone_checkpoint_include_workspace_context",
        "standalone_checkpoint_mode standalone_checkpoint_single",
        "standalone_checkpoint_team_config",
    ),
    **_because("Conversations are not shortened by a summary.", "compression_target_ratio"),
    **_because(
        "All agents get the task as it is written, without roles or parts of it made for them.",
        "enable_evaluator_personas persona_generator prompt_improver task_decomposer",
    ),
    **_because(
        "Rounds are alike: no agent is pressed to revise or to begin anew.",
        "enable_changedoc enable_novelty_on_iteration enable_quality_rethink_on_iteration",
        "max_internal_fix_loops max_verifications_per_round novelty_injection",
        "orchestrator_managed_round_evaluator round_evaluator_before_checklist",
        "round_evaluator_refine round_evaluator_skip_synthesis",
        "round_evaluator_transformation_pressure skip_redundant_scaffolding web_review",
    ),
    **_because(
        "How long a plan gets is left to the agents.",
        "plan_depth plan_target_chunks plan_target_steps plan_thoroughness",
    ),
    **_because(
        "Sub-agents are of their agent's own kind, and run in its process.",
        "subagent_host_launch_prefix subagent_orchestrator subagent_runtime_fallback_mode",
        "subagent_runtime_mode subagent_types",
    ),
    **_because("Each agent has one workspace.", "use_two_tier_workspace"),
}


SECTIONS: Mapping[Path, Section] = {
    (): Section(
        harmless={
            **_NLIP,
            **_because("Panels and cards show a run.", "display ui"),
            **_because("Memories are files; there is no store of vectors.", "memory"),
            **_because("Conversations are not shortened by a summary.", "filesystem_memory"),
            **_because("The task is what the cell or the command line says.", "task"),
            **_because("Sessions are named by `--session`.", "session_id"),
        },
        refused={"timeout": _TIME},
    ),
    # These two are only for the page: the whole of them is ignored.
    ("ui",): Section(
        harmless={
            **_because("Panels and cards show a run.", "display_type type"),
            **_because("Every run has a journal.", "logging_enabled"),
        }
    ),
    ("filesystem_memory",): Section(
        harmless={
            **_because("Write `enable_memory_filesystem_mode`.", "enabled"),
            **_because("Conversations are not shortened by a summary.", "compression"),
        }
    ),
    ("filesystem_memory", "compression"): Section(
        harmless=_because(
            "Conversations are not shortened by a summary.", "target_ratio trigger_threshold"
        )
    ),
    ("hooks",): _HOOKS,
    ("checkpoint",): Section(
        harmless=_because(_CHECKPOINTS, "enabled guidance mode"),
        refused={"gated_patterns": Restriction(_TOOLS)},
        is_strict=True,
    ),
    ("agents", "*"): Section(
        harmless={
            **_NLIP,
            **_because("Write `system_message`.", "append_system_prompt"),
            **_because("Each agent has a workspace of its own in the session's directory.", "cwd"),
            **_because("Agents answer and vote here; whoever wins presents.", "main_agent subtask"),
            **_because("Sub-agents are of their agent's own kind.", "subagent_agents"),
            **_because("All agents judge alike.", "voting_sensitivity voting_threshold"),
        }
    ),
    _BACKEND: Section(
        harmless={**_PARAMETERS_OF_MODELS, **_FEATURES_OF_BACKENDS, **_HANDED_DOWN},
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
        harmless=_because(
            "Functions are offered as they are written, all from the start.",
            "category class default_params defer_loading strict",
        )
    ),
    _SERVER: Section(
        harmless={
            **_because(
                "Its tools are offered from the start, as it has them.", "defer_loading strict"
            ),
            **_because("The agents are told what its tools say of themselves.", "description"),
            **_because("A call of a tool has its time by `tool_timeout_sec`.", "http_read_timeout"),
            **_because("Write `type`.", "transport"),
        },
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
        harmless=_FEATURES_OF_ORCHESTRATORS,
        refused={
            "max_turns": Restriction("how long agents may work", remedy="Write `max_cost`."),
            "timeout": _TIME,
        },
    ),
    ("orchestrator", "context_paths", "*"): Section(is_strict=True),
    ("orchestrator", "coordination"): Section(
        harmless=_FEATURES_OF_COORDINATION,
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

What stands below a key that may be ignored falls with it; below one that is in none of the tables,
it is sorted if that is a section of its own."""

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
