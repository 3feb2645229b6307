"""The door for AG-UI's clients: a thread is a session, an agent answers in it, and what a person is asked is an interrupt (R17.3).

`reading` says what a client's input asks for, `telling` and `patches` what a run's events and state are in AG-UI's (pure);
`deciding` takes the answers to interrupts to their run, `following` waits for runs, `door` is the route.
"""

from perdure.gateway.agui.adapter import agui_adapter

__all__ = ["agui_adapter"]
