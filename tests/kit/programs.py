"""External agents and objects of other frameworks."""

from nb_agents.config.mcp_servers import TEAM
from nb_agents.extensions.external_agents import EXTENSION
from nb_agents.extensions.external_agents.acp import acp_link, acp_runner, acp_session
from nb_agents.extensions.external_agents.acp.acp_errors import call_error
from nb_agents.extensions.external_agents.acp.acp_link import AcpLink
from nb_agents.extensions.external_agents.acp.agent_programs import prepare
from nb_agents.extensions.external_agents.frameworks.function_agent import AgentContext
from nb_agents.extensions.external_agents.frameworks.refused_calls import refusal_in
from nb_agents.extensions.external_agents.program_types import ACP_TYPES, PROGRAM_TYPES
from nb_agents.extensions.external_agents.tool_server import ToolServer

__all__ = [
    "ACP_TYPES",
    "AcpLink",
    "AgentContext",
    "EXTENSION",
    "PROGRAM_TYPES",
    "TEAM",
    "ToolServer",
    "acp_link",
    "acp_runner",
    "acp_session",
    "call_error",
    "prepare",
    "refusal_in",
]
