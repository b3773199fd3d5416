"""MCP clients. Import it inside a test, because it loads the protocol's SDK."""

from nb_agents.tools.mcp_sdk import connect, http_transport

__all__ = [
    "connect",
    "http_transport",
]
