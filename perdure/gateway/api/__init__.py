"""The HTTP API (R17.1): agents, runs, sessions, decisions and events, each operation defined once, for its route and for the OpenAPI document."""

from perdure.gateway.api.adapter import api

__all__ = ["api"]
