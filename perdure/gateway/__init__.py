"""The gateway (section 17): programs and people talk to agents over HTTP. It stands on the Python API alone, and keeps nothing of its own.

How a door is added:

1. A door is a function of the `Gateway` that gives a `Door`: its routes (starlette's), who is let in, and how its protocol says that
   something was refused.

       def my_door(gateway: Gateway) -> Door:
           async def list_agents(request: Request) -> Response:
               caller = caller_of(request)
               caller.check("read", "look at agents")
               return JSONResponse({"agents": gateway.agents.names()})

           return Door("mine", [Route("/mine/agents", list_agents)], problem=my_form_of_errors)

2. It is named in the list `doors` of `perdure/cli/gateway.py`; `create_app(perdure, settings, doors=[my_door])` is the same without the command.

What a route is given: `caller_of(request)`, a `Caller` with the tenant, the sender and the rights that its token names, never what a
body says; `gateway.perdure`, the Python API; `gateway.agents.get(name)`, the agents that this gateway knows; `read_json(request)`, a body
within the bounds. What it may raise: any `PerdureError`, starlette's `HTTPException`, or `HttpError`; `problems.py` alone says which status that
is. Long answers go out by `EventStream` (`streams.py`), which bounds them for each token, says that it is there, drops who does not
read, and ends when the gateway does. The frame (`app.py`) has then done the rest: Host and Origin, the token, its rate, the size of the body,
headers, one line in the log. A run's or a session's id from outside is looked at by `gateway.own_run` and `gateway.session`, which answer for
another tenant's as for none.
"""

from perdure.gateway.adapter import Adapter, Gateway
from perdure.gateway.app import create_app
from perdure.gateway.callers import Caller, caller_of
from perdure.gateway.errors import HttpError

__all__ = ["Caller", "Adapter", "Gateway", "HttpError", "caller_of", "create_app"]
