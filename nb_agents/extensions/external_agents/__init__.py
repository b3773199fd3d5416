"""External agents: ACP agents, agents of other frameworks, and functions as agents.

The package also has the commands ``nb-agents acp`` and ``nb-agents mcp``, which serve a team to
other programs.
"""

from nb_agents.plugins import Extension

_TYPES = ("acp", "claude_code", "codex", "copilot", "gemini_cli", "opencode", "qwen_code")

EXTENSION = Extension(
    name="external_agents",
    backend_types={kind: f"{__name__}.backend_types:{kind.upper()}" for kind in _TYPES},
    runner_types=dict.fromkeys(_TYPES, f"{__name__}.acp_runners:ACP_RUNNER"),
    agent_objects={"frameworks": f"{__name__}.frameworks.program_objects:FRAMEWORKS"},
    commands={
        "acp": f"{__name__}.team_agent:COMMAND",
        "mcp": f"{__name__}.team_server:COMMAND",
    },
)
