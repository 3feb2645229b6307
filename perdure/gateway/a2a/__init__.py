"""The adapter for A2A's clients: each agent is an A2A agent, a context is a session, and a task is a run of it (R21.4).

`_messages` parses a client's message (pure). `_objects` shows agents and runs as A2A's objects (pure), `_events` a run's events as updates of its
task (pure). `_methods` has the protocol's methods, and `adapter` the routes.
"""

from perdure.gateway.a2a.adapter import a2a_adapter

__all__ = ["a2a_adapter"]
