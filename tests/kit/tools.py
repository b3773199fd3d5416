"""Tools of agents, their policies and sandboxes."""

from nb_agents.config.mcp_servers import McpServerSpec, is_storable
from nb_agents.config.permissions import (
    Blocked,
    CommandLimits,
    CommandRules,
    PermissionSpec,
    from_glob,
)
from nb_agents.config.tools import NATIVE_KEYS, CustomToolSpec, ToolKeys, has_search_library
from nb_agents.tools import functions, mcp, mcp_server, mcp_stdio, offer, python_kernel, sandbox
from nb_agents.tools.base import (
    MAX_RESULT_CHARS,
    Tool,
    Toolbox,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolError,
    ToolResult,
    use_call,
)
from nb_agents.tools.command_guard import read_commands
from nb_agents.tools.data_store import DataStore
from nb_agents.tools.data_tools import AgentStore
from nb_agents.tools.functions import EMPTY_RESULT, function_tool, result_text
from nb_agents.tools.functions import _AsyncThread as AsyncThread
from nb_agents.tools.gate import ToolGate
from nb_agents.tools.mcp import McpServers, tool_name
from nb_agents.tools.mcp_server import _text as text
from nb_agents.tools.mcp_stdio import stdio_streams
from nb_agents.tools.offer import CallInbox, CallRequest
from nb_agents.tools.policy import ApprovalDecision, Tally, judge
from nb_agents.tools.run_tools import RunTools, RunToolSettings, tool_notices
from nb_agents.tools.sandbox import Confinement, Sandbox, confinement
from nb_agents.tools.shell import MAX_SHOWN_CHARS, Shell
from nb_agents.tools.task_plan import PLAN_TOOLS
from nb_agents.tools.tool_schemas import SchemaFault, fit_schema
from nb_agents.tools.workspace import Workspace

__all__ = [
    "AgentStore",
    "ApprovalDecision",
    "AsyncThread",
    "Blocked",
    "CallInbox",
    "CallRequest",
    "CommandLimits",
    "CommandRules",
    "Confinement",
    "CustomToolSpec",
    "DataStore",
    "EMPTY_RESULT",
    "MAX_RESULT_CHARS",
    "MAX_SHOWN_CHARS",
    "McpServerSpec",
    "McpServers",
    "NATIVE_KEYS",
    "PLAN_TOOLS",
    "PermissionSpec",
    "RunToolSettings",
    "RunTools",
    "Sandbox",
    "SchemaFault",
    "Shell",
    "Tally",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolGate",
    "ToolKeys",
    "ToolResult",
    "Toolbox",
    "Workspace",
    "confinement",
    "fit_schema",
    "from_glob",
    "function_tool",
    "functions",
    "has_search_library",
    "is_storable",
    "judge",
    "mcp",
    "mcp_server",
    "mcp_stdio",
    "offer",
    "python_kernel",
    "read_commands",
    "result_text",
    "sandbox",
    "stdio_streams",
    "text",
    "tool_name",
    "tool_notices",
    "use_call",
]
