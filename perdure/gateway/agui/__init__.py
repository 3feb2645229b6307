"""The adapter for AG-UI's clients: a thread is a session in which an agent answers, and an approval request is an interrupt (R17.3).

`requests` parses a client's input. `events` shows a run's events and state as AG-UI's (pure). `adapter` has the route, waits for runs, and
sends the answers to interrupts to their run.
"""

from perdure.gateway.agui.adapter import agui_adapter

__all__ = ["agui_adapter"]
