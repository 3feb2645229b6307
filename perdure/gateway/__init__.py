"""The gateway (section 17): programs and people talk to agents over HTTP. It uses the Python API alone, and stores nothing itself.

To add an adapter for another protocol:

1. Write a function of the `Gateway` that returns an `Adapter`: its routes (starlette's), who may use them, and the form of its errors.

       def my_adapter(gateway: Gateway) -> Adapter:
           async def list_agents(request: Request) -> Response:
               caller = caller_of(request)
               caller.check("read", "look at agents")
               return JSONResponse({"agents": gateway.agents.names()})

           return Adapter("mine", [Route("/mine/agents", list_agents)], problem=my_form_of_errors)

2. Name the function in the list `ADAPTERS` of `perdure/cli/_gateway.py`. Without the command: `create_app(perdure, settings, adapters=[my_adapter])`.

A route receives: `caller_of(request)`, a `Caller` with the tenant, the sender and the rights that its token names, never what a
body says; `gateway.perdure`, the Python API; `gateway.agents.get(name)`, the agents that this gateway knows; `read_json(request)`, a body
within the bounds. A route may raise any `PerdureError`, starlette's `HTTPException`, or `HttpError`; `errors.py` alone maps them to a status.
Long answers use `EventStream` (`streams.py`): it bounds them for each token, sends signs of life, drops clients that do not read, and
ends when the gateway does. The frame (`app.py`) has then done the rest: Host and Origin, the token, its rate, the size of the body,
headers, one line in the log. `gateway.own_run` and `gateway.session` find a run or a session by an id from outside. They answer for another
tenant's as for none.
"""

from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.ai_sdk import chat_response, resume_response
from perdure.gateway.app import create_app
from perdure.gateway.callers import Caller, caller_of
from perdure.gateway.errors import HttpError
from perdure.gateway.triggers import SessionMapping, Trigger
from perdure.gateway.webhooks import trigger_adapter

__all__ = [
    "Adapter",
    "Caller",
    "Gateway",
    "HttpError",
    "SessionMapping",
    "Trigger",
    "caller_of",
    "chat_response",
    "create_app",
    "resume_response",
    "trigger_adapter",
]
