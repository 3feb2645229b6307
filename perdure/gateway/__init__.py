"""The gateway (section 17): programs and people use agents over HTTP. It uses the Python API only, and stores nothing
itself.

To add an adapter for another protocol:

1. Write a function of the `Gateway` that returns an `Adapter`: its starlette routes, their access, and its errors' form.

       def my_adapter(gateway: Gateway) -> Adapter:
           async def list_agents(request: Request) -> Response:
               caller = caller_of(request)
               caller.check("read", "look at agents")
               return JSONResponse({"agents": gateway.agents.names()})

           return Adapter("mine", [Route("/mine/agents", list_agents)], problem=my_form_of_errors)

2. Name the function in the list `ADAPTERS` of `perdure/cli/_gateway.py`. Without the command: `create_app(perdure, settings, adapters=[my_adapter])`.

A route uses: `caller_of(request)`, a `Caller` with the tenant, the sender and the rights of its token, never of a body;
`gateway.perdure`, the Python API; `gateway.agents.get(name)`, an agent of this gateway; `read_json(request)`, a body
within the limits. A route may raise any `PerdureError`, starlette's `HTTPException`, or `HttpError`; `errors.py` alone
maps them to a status. Long answers use `EventStream` (`streams.py`): it limits streams for each token, sends
keep-alives, drops clients that do not read, and ends with the gateway. The frame (`app.py`) does the rest: Host and
Origin, the token, its rate, the size of the body, headers, one line in the log. `gateway.own_run` and `gateway.session`
find a run or a session by a client's id. They treat another tenant's id as an unknown one.
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
