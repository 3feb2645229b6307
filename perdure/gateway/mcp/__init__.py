"""The adapter for MCP clients: each agent is a tool, and a long call is a task (R17.4)."""

from perdure.gateway.mcp.adapter import mcp_adapter

__all__ = ["mcp_adapter"]
