"""The door for MCP clients: each agent is a tool, a long one a task (R17.4)."""

from perdure.gateway.mcp.door import mcp_door

__all__ = ["mcp_door"]
